package host

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// What is measured is of a commit only where nothing but documents differs from it: a new file is compiled, too.
func TestChanged(t *testing.T) {
	root := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false"}, args...)...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	write := func(file string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, file), []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	changed := func(reason string, want ...string) {
		t.Helper()
		for _, dir := range []string{root, filepath.Join(root, "docs")} { // make soak writes its report into that one
			got, err := Changed(dir)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s, in %s (-want +got):\n%s", reason, filepath.Base(dir), diff)
			}
			commit, err := commitOf(dir)
			if err != nil {
				t.Fatal(err)
			}
			if dirty := strings.HasSuffix(commit, "-dirty"); dirty != (len(want) > 0) {
				t.Errorf("%s: the commit is called %q", reason, commit)
			}
		}
	}
	git("init", "-q")
	for _, file := range []string{"main.go", "gone.go", "docs/a.md"} {
		write(file)
	}
	if err := os.WriteFile(filepath.Join(root, ".gitignore"), []byte("/bin/\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	git("add", "-A")
	git("commit", "-q", "-m", "first")
	write("bin/main")
	changed("as committed, with a binary that is ignored")
	if err := os.WriteFile(filepath.Join(root, "docs/a.md"), []byte("figures"), 0o600); err != nil {
		t.Fatal(err)
	}
	write("docs/b.md")
	changed("documents are not measured")
	if err := os.Remove(filepath.Join(root, "gone.go")); err != nil {
		t.Fatal(err)
	}
	write("a package/new.go")
	git("mv", "main.go", "moved.go")
	changed("removed, moved and new files", "a package/new.go", "gone.go", "main.go", "moved.go")
}
