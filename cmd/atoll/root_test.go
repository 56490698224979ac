package main

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// TestHintsNameTheProgramAsCalled: what a message proposes can be pasted.
func TestHintsNameTheProgramAsCalled(t *testing.T) {
	for _, registered := range []bool{false, true} {
		hints := greeting("bin/atoll", time.Second, "https://127.0.0.1:6443", ".atoll/admin.kubeconfig", registered)
		for _, line := range strings.Split(hints, "\n") {
			if strings.HasPrefix(line, "  ") && !strings.HasPrefix(line, "  bin/atoll ") {
				t.Errorf("the server says: %s", line)
			}
		}
		if strings.Contains(hints, ".yaml") || strings.Contains(hints, "%!") {
			t.Errorf("the server names a file that nobody has: %s", hints)
		}
		if added := strings.Contains(hints, "cluster add"); added == registered || strings.Contains(hints, "cluster list") != registered {
			t.Errorf("where clusters are registered is %v, the server says %s", registered, hints)
		}
	}
	for kubeconfig, want := range map[string]string{
		".atoll/admin.kubeconfig": "\nkubectl works as well: export KUBECONFIG=.atoll/admin.kubeconfig\n",
		"/other/admin.kubeconfig": "terminal:\n  export KUBECONFIG=/other/admin.kubeconfig\n  atoll cluster add",
		".atoll/other.kubeconfig": "/.atoll/other.kubeconfig\n  atoll cluster add",
	} {
		if hints := greeting("atoll", time.Second, "https://127.0.0.1:6443", kubeconfig, false); !strings.Contains(hints, want) {
			t.Errorf("with %s the server says %s", kubeconfig, hints)
		}
	}
	root := &cobra.Command{Use: "atoll", Example: "  # text\n  atoll start", Run: func(*cobra.Command, []string) {}}
	sub := &cobra.Command{Use: "workspace", Example: "  atoll workspace use atoll", RunE: needsSubcommand}
	root.AddCommand(sub)
	callAs(root, "bin/atoll")
	if root.Example != "  # text\n  bin/atoll start" || sub.Example != "  bin/atoll workspace use atoll" {
		t.Errorf("examples %q and %q", root.Example, sub.Example)
	}
	if got := sub.UseLine(); !strings.HasPrefix(got, "bin/atoll workspace") {
		t.Errorf("usage %q", got)
	}
	if err := needsSubcommand(sub, []string{"x"}); !strings.Contains(err.Error(), `"bin/atoll workspace --help"`) {
		t.Errorf("error %v", err)
	}
}

// TestUnknownFlags: a flag that is misspelt is told what it may have been meant for.
func TestUnknownFlags(t *testing.T) {
	streams, _, _, _ := genericiooptions.NewTestIOStreams()
	root := newRootCommand(streams) // once in a process, as feature gates are
	for args, want := range map[string]string{
		"start --secure-prot 1":      "unknown flag --secure-prot: did you mean --secure-port?",
		"start --nothing-of-this":    "unknown flag --nothing-of-this: \"" + self + " start --help\" lists them",
		"start -x":                   "unknown shorthand flag",
		"start --secure-port eleven": "--secure-port",
		"start now":                  "unexpected argument \"now\". Usage: " + self + " start",
		"cluster lsit":               "did you mean \"list\"?",
	} {
		root.SetArgs(strings.Fields(args))
		if err := root.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", args, err, want)
		}
	}
}
