package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"atoll.dev/atoll/test/host"
)

// recovery is what a test says of how long something took to be as asked again, and figure of what else it measured.
var (
	recovery = regexp.MustCompile(`: recovery (.*\S)\s+(\S+)\n$`)
	figure   = regexp.MustCompile(`: figure (.*): (\S+)\n$`)
)

// soaked is a test, or a part of one, in the report of a long run.
type soaked struct {
	name, outcome string
	took          time.Duration
	measured      []string
}

// soak writes a report of the tests whose events it reads to file, and tells of each as it ends. It fails if one did.
func soak(in io.Reader, out io.Writer, file string, this host.Run) error {
	var tests []soaked
	said := map[string][]string{}
	var failed []string
	err := readEvents(in, func(_ []byte, e event) {
		switch e.Action {
		case "output":
			m := recovery.FindStringSubmatch(e.Output)
			if m == nil {
				m = figure.FindStringSubmatch(e.Output)
			}
			if m != nil {
				said[e.Test] = append(said[e.Test], m[1]+": "+m[2])
			} else if messages([]string{e.Output}) != nil {
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
			if e.Test == "" {
				return
			}
			s := soaked{e.Test, e.Action, time.Duration(e.Elapsed * float64(time.Second)).Round(time.Second), said[e.Test]}
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
		return errors.New("no test ran")
	}
	return os.WriteFile(file, []byte(soakReport(tests, this)), 0o644)
}

func soakReport(tests []soaked, this host.Run) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Long runs

Written by `+"`%s`"+`, which runs what takes too long for every change: faults that last longer than everything that waits for
their end, and each fuzz target for a minute. What was deleted below is judged by the audit logs of the physical clusters.

%s UTC, commit %s, %s, %s, load before %s.

| test | | took | recovery, figures |
|---|---|---|---|
`, this.Command, this.Began, this.Commit, this.Machine, this.Go, this.Load)
	for _, t := range tests {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", t.name, t.outcome, t.took, strings.Join(t.measured, "; "))
	}
	return b.String()
}
