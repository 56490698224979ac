package framework

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRealNodesLack: what was not built could not be, for a reason that is the machine's; or that is a fault, which is not taken for one.
func TestRealNodesLack(t *testing.T) {
	t.Setenv("ATOLL_BIN_DIR", t.TempDir()) // nothing is built
	packages := t.TempDir()
	t.Setenv("PATH", packages+":"+os.Getenv("PATH"))
	for _, c := range []struct{ status, what, why string }{
		{"install ok installed", "build", "contrib/realnode/build.sh builds it"},
		{"unknown ok not-installed", "programs", "which are not installed: gcc libc6-dev libseccomp-dev"},
	} {
		if err := os.WriteFile(filepath.Join(packages, "dpkg-query"), []byte("#!/bin/sh\necho '"+c.status+"'\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		want := Lack{c.what, c.why}
		if os.Geteuid() != 0 {
			want = Lack{"root", "this is user "}
		}
		if got := RealNodesLack(t); len(got) != 1 || got[0].What != want.What || !strings.Contains(got[0].Why, want.Why) {
			t.Errorf("packages that are %q: %+v, want %+v", c.status, got, want)
		}
	}
	// What is there is asked, whatever packages are.
	answers := filepath.Join(os.Getenv("ATOLL_BIN_DIR"), "realnode")
	if err := os.WriteFile(answers, []byte("#!/bin/sh\nprintf 'kmsg\\tno messages\\n'; exit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := RealNodesLack(t); len(got) != 1 || got[0] != (Lack{"kmsg", "no messages"}) {
		t.Errorf("a machine without kmsg lacks %+v", got)
	}
}
