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

// What a test of test/operators or test/realnodes says: the module and version of a program that it runs, and what it has shown.
var (
	programSaid = regexp.MustCompile(`: program: (\S+ \S+)\n$`)
	doneSaid    = regexp.MustCompile(`: done: (.*\S)\n$`)
)

// operated is a test, and what it says.
type operated struct {
	name     string
	took     time.Duration
	programs []string // each once
	done     []string // each once, in order
}

// shown writes a report of the tests whose events it reads to file, and tells of each as it ends. It fails if one did, or was skipped.
func shown(in io.Reader, out io.Writer, file, intro string, this host.Run) error {
	said := map[string]*operated{}
	var tests []*operated
	var failed []string
	lines := map[string][]string{} // of each test, for when it fails
	err := readEvents(in, func(_ []byte, e event) {
		name, _, _ := strings.Cut(e.Test, "/")
		o := said[name]
		if o == nil {
			o = &operated{name: name}
			said[name] = o
		}
		switch e.Action {
		case "output":
			lines[name] = append(lines[name], e.Output)
			if m := programSaid.FindStringSubmatch(e.Output); m != nil {
				o.programs = once(o.programs, m[1])
			}
			if m := doneSaid.FindStringSubmatch(e.Output); m != nil {
				o.done = once(o.done, m[1])
			}
		case "build-output":
			fmt.Fprint(out, e.Output)
		case "build-fail":
			failed = append(failed, e.ImportPath)
		case "fail", "skip":
			if e.Action == "skip" && e.Test == "" {
				return // a package without tests
			}
			failed = append(failed, strings.TrimSpace(e.Action+" "+e.Package+" "+e.Test))
			if e.Test == name {
				fmt.Fprint(out, strings.Join(lines[name], ""))
			}
		case "pass":
			if e.Test == "" || e.Test != name {
				return
			}
			o.took = time.Duration(e.Elapsed * float64(time.Second)).Round(time.Second)
			tests = append(tests, o)
			fmt.Fprintf(out, "pass %s %s\n", name, o.took)
		}
	})
	switch {
	case err != nil:
		return fmt.Errorf("read the events of go test: %w", err)
	case len(failed) > 0:
		return fmt.Errorf("%s is as before, since these did not pass:\n  %s", file, strings.Join(failed, "\n  "))
	case len(tests) == 0:
		return errors.New("no test ran")
	}
	return os.WriteFile(file, []byte(shownReport(tests, intro, this)), 0o644)
}

func once(all []string, one string) []string {
	for _, had := range all {
		if had == one {
			return all
		}
	}
	return append(all, one)
}

// intros are what stands before the tests of each report.
var intros = map[string]string{
	"operators": `# Controllers that nobody here wrote

Written by ` + "`make operators`" + `. Each program is built unmodified from the module proxy, installed from its own manifests in two workspaces of
one server, and run twice, each time with the token of the ServiceAccount in its manifests: one instance is given the address of its
workspace, the other one, as in a Pod, that of the server.

No process runs in a Pod here. Where a program waits for a Job or a Pod, the test writes the status that the controllers of a
physical cluster would, but in the tests that say so by their names: their workspaces are placed on physical clusters, in which pods are simulated.
Programs get the files and ports that a kubelet would give them; their webhooks are named by URL.

cert-manager is not among them: its controller is a module of its own, in a folder of another name, which the proxy does not serve.
`,
	"realnodes": `# Pods that truly run

Written by ` + "`make realnodes`" + `, which fails where a test is skipped. Other tests run against physical clusters whose pods are simulated; these against
[contrib/realnode](../contrib/realnode), a node of kubelet, containerd and runc, unmodified, in namespaces of its own.
`,
}

func shownReport(tests []*operated, intro string, this host.Run) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s UTC, commit %s, %s, %s, load before %s.\n", intro, this.Began, this.Commit, this.Machine, this.Go, this.Load)
	for _, t := range tests {
		fmt.Fprintf(&b, "\n## `%s`\n\n%s, %s.\n\n", t.name, strings.Join(append(t.programs, "pass"), ", "), t.took)
		for _, done := range t.done {
			fmt.Fprintf(&b, "- %s\n", done)
		}
	}
	return b.String()
}
