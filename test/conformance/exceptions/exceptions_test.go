package exceptions

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	got, err := parse("# comment\na\n\twhy a\nb\n\twhy b\n")
	if diff := cmp.Diff([]Exception{{"a", "why a"}, {"b", "why b"}}, got); diff != "" || err != nil {
		t.Errorf("error %v, -want +got:\n%s", err, diff)
	}
	for _, text := range []string{"a", "a\nb\n\twhy", "\twhy", "a\n\t", "b\n\twhy\na\n\twhy", "a\n\twhy\na\n\twhy", "a\n\twhy\n\tmore"} {
		if _, err := parse(text); err == nil {
			t.Errorf("no error for exceptions %q", text)
		}
	}
}

func TestList(t *testing.T) {
	got := List([]Exception{{"a [Conformance]", "Why."}, {"b [Conformance]", "Why else."}, {"c [Conformance]", "Why."}})
	if want := "- Why. `a`, `c`.\n- Why else. `b`.\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestExceptionsShrink: there are as many exceptions as the file says that there may be at most, so that one that goes takes its place
// with it; and no commit before said less, where those can be read.
func TestExceptionsShrink(t *testing.T) {
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	limit, err := most(text)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != limit {
		t.Errorf("%d exceptions, and the file says %d: one more is refused, and for one less lower the number", len(all), limit)
	}
	commits, err := exec.CommandContext(t.Context(), "git", "log", "--format=%H", "-G", "^"+mostPrefix, "--", "exceptions.txt").Output()
	if err != nil {
		t.Logf("NOT COMPARED with commits before, which cannot be read: %v", err)
		return
	}
	for _, commit := range strings.Fields(string(commits)) {
		before, err := exec.CommandContext(t.Context(), "git", "show", commit+":./exceptions.txt").Output()
		if err != nil {
			t.Fatalf("read exceptions.txt of commit %s: %v", commit, err)
		}
		if had, err := most(string(before)); err == nil && had < limit {
			t.Errorf("the file says %d, and said %d in commit %s: exceptions only get fewer", limit, had, commit)
		}
	}
}

func TestMost(t *testing.T) {
	if got, err := most("# a\n# At most: 7\nb\n"); got != 7 || err != nil {
		t.Errorf("%d, %v, want 7", got, err)
	}
	for _, text := range []string{"", "# a\n", "# At most: x\n"} {
		if _, err := most(text); err == nil {
			t.Errorf("no error for %q", text)
		}
	}
}
