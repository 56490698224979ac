package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"atoll.dev/atoll/test/host"
)

// recovery is what a test says of how long something took to be as asked again, and figure of what else it measured.
var (
	recovery = regexp.MustCompile(`: recovery (.*\S)\s+(\S+)\n$`)
	figure   = regexp.MustCompile(`: figure (.*): (\S+)\n$`)
)

// soaked is a test, a part of one, or a package of them in the report of a long run.
type soaked struct {
	name, outcome string
	took          time.Duration
	measured      []string
}

// soak writes what became of the tests whose events it reads to file, as the section of a part, and tells of each as it ends. It
// fails if one did, and leaves the section as it was. With packages the section tells of those instead, for a part that runs whole suites.
func soak(in io.Reader, out io.Writer, file, part string, packages bool, this host.Run) error {
	var tests []soaked
	said := map[string][]string{}
	speaks := map[string]bool{} // of a test or part: its last line is of a message, which may have more
	var failed []string
	err := readEvents(in, func(_ []byte, e event) {
		switch e.Action {
		case "output":
			m := recovery.FindStringSubmatch(e.Output)
			if m == nil {
				m = figure.FindStringSubmatch(e.Output)
			}
			if m != nil {
				said[rowOf(e)] = append(said[rowOf(e)], m[1]+": "+m[2])
				speaks[e.Test] = false
			} else if speaks[e.Test] = messages([]string{e.Output}) != nil || speaks[e.Test] && strings.HasPrefix(e.Output, messageIndent); speaks[e.Test] {
				fmt.Fprint(out, e.Output)
			}
		case "build-output":
			fmt.Fprint(out, e.Output)
		case "build-fail":
			failed = append(failed, e.ImportPath)
		case "pass", "fail", "skip":
			if e.Action == "fail" {
				failed = append(failed, strings.TrimSpace(e.Package+" "+e.Test))
			}
			if packages != (e.Test == "") {
				return
			}
			s := soaked{rowOf(e), e.Action, time.Duration(e.Elapsed * float64(time.Second)).Round(time.Second), said[rowOf(e)]}
			tests = append(tests, s)
			fmt.Fprintf(out, "%s %s %s\n", s.outcome, s.name, s.took)
		}
	})
	switch {
	case err != nil:
		return fmt.Errorf("read the events of go test: %w", err)
	case len(failed) > 0:
		return fmt.Errorf("%s is as before, since these failed:\n  %s", file, strings.Join(failed, "\n  "))
	case len(tests) == 0:
		return errors.New("nothing ran")
	}
	old, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(file, []byte(withSection(string(old), part, soakSection(tests, this))), 0o644)
}

// rowOf is the name of what an event is about in the report: a test, or a package. Fuzz targets have their package before theirs, since
// two packages may have a target of one name.
func rowOf(e event) string {
	if strings.HasPrefix(e.Test, "Fuzz") {
		return strings.TrimPrefix(e.Package, "atoll.dev/atoll/") + "." + e.Test
	}
	return cmp.Or(e.Test, e.Package)
}

const soakHead = `# Long runs

Written by ` + "`make soak`" + `, which runs what takes too long for every change: faults that last longer than everything that waits for
their end, and fleets, with both clusters synced by the server (push) and both by syncers of their own (pull), a crash of each controller
after each of its writes, kills, of several servers on one etcd as well, leaks, a random walk, twenty charts, each fuzz target for a minute, and whole suites over watch caches that are
behind (late). What was deleted below is judged by the audit logs of the physical clusters. Each part
has its own run.
`

// heading begins the section of a part.
const heading = "\n## "

// withSection puts a section in a report in the place of the one that has its name, or in the order of names.
func withSection(report, part, section string) string {
	sections := map[string]string{}
	for _, text := range strings.Split(report, heading)[1:] {
		name, rest, _ := strings.Cut(text, "\n")
		sections[name] = rest
	}
	sections[part] = section
	var b strings.Builder
	b.WriteString(soakHead)
	for _, name := range slices.Sorted(maps.Keys(sections)) {
		b.WriteString(heading + name + "\n" + strings.TrimRight(sections[name], "\n") + "\n")
	}
	return b.String()
}

// deepest is how many names of parts follow that of a test in the report, where they measured nothing: a crash after each write
// has hundreds below.
const deepest = 3

// soakSection is a table of what became of tests and their parts.
func soakSection(tests []soaked, this host.Run) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n`%s`, %s UTC, commit %s, %s, %s, load before %s.\n\n| test | | took | recovery, figures |\n|---|---|---|---|\n",
		this.Command, this.Began, this.Commit, this.Machine, this.Go, this.Load)
	for _, t := range tests {
		if strings.Count(t.name, "/") > deepest && len(t.measured) == 0 && t.outcome == "pass" {
			continue
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", t.name, t.outcome, t.took, strings.Join(t.measured, "; "))
	}
	return b.String()
}
