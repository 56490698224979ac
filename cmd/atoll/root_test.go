package main

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// TestHintsNameTheProgramAsCalled: what a message proposes can be pasted.
func TestHintsNameTheProgramAsCalled(t *testing.T) {
	hints := greeting("bin/atoll", time.Second, "https://127.0.0.1:6443", "x")
	for _, line := range strings.Split(hints, "\n") {
		if strings.HasPrefix(line, "  ") && !strings.HasPrefix(line, "  bin/atoll ") {
			t.Errorf("the server says: %s", line)
		}
	}
	if strings.Contains(hints, ".yaml") {
		t.Errorf("the server names a file that nobody has: %s", hints)
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
