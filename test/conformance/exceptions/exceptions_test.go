package exceptions

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
// with it.
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
}

// mayJoin is each exception that was none at first, with where it is said why it became one. Nothing is added here: what workspaces
// passed, they go on to pass.
var mayJoin = map[string]string{
	"[sig-node] Node Lifecycle should run through the lifecycle of a node [Conformance]": "docs/design/0008-nodes.md",
}

// TestNoExceptionJoins: what is an exception was one at every commit before, and none of them allowed fewer. Without the whole history it
// is skipped.
func TestNoExceptionJoins(t *testing.T) {
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), "git", args...).Output()
		return strings.TrimSpace(string(out)), err
	}
	shallow, err := git("rev-parse", "--is-shallow-repository")
	if err != nil || shallow != "false" {
		t.Skipf("NOT COMPARED with commits before: git says shallow %q, error %v; it takes a clone with all commits", shallow, err)
	}
	top, err := git("rev-parse", "--show-toplevel")
	if err != nil {
		t.Fatal(err)
	}
	now, err := versionOf(text)
	if err != nil {
		t.Fatal(err)
	}
	for spec, why := range mayJoin {
		if document, err := os.ReadFile(filepath.Join(top, why)); err != nil || !strings.Contains(string(document), strings.TrimSuffix(spec, " [Conformance]")) {
			t.Errorf("%s does not say why %q became an exception: error %v", why, spec, err)
		}
	}
	commits, err := git("-C", top, "log", "--full-history", "--format=%H", "--", ":/test/conformance/exceptions.txt", ":/test/conformance/exceptions/exceptions.txt") // it has moved
	if err != nil {
		t.Fatalf("list the commits of exceptions.txt: %v", err)
	}
	read := 0
	for _, commit := range strings.Fields(commits) {
		files, err := git("-C", top, "ls-tree", "-r", "--name-only", commit, "test/conformance/")
		if err != nil {
			t.Fatalf("list the files of commit %s: %v", commit, err)
		}
		for _, file := range strings.Fields(files) {
			if filepath.Base(file) != "exceptions.txt" {
				continue
			}
			content, err := git("-C", top, "show", commit+":"+file)
			if err != nil {
				t.Fatalf("read %s of commit %s: %v", file, commit, err)
			}
			before, err := versionOf(content)
			if err != nil {
				t.Fatalf("%s of commit %s: %v", file, commit, err)
			}
			for _, problem := range grown(before, now) {
				t.Errorf("commit %.10s: %s", commit, problem)
			}
			read++
		}
	}
	if read < 10 {
		t.Errorf("%d commits were compared with: there were more when this was written", read)
	}
}

// version is what a version of the file says.
type version struct {
	specs []string
	most  int // 0 if it says none
}

func versionOf(text string) (version, error) {
	all, err := parse(text)
	if err != nil {
		return version{}, err
	}
	var v version
	for _, e := range all {
		v.specs = append(v.specs, e.Spec)
	}
	if strings.Contains(text, mostPrefix) {
		v.most, err = most(text)
	}
	return v, err
}

// grown says what there is more of now than before.
func grown(before, now version) (problems []string) {
	for _, spec := range now.specs {
		if _, may := mayJoin[spec]; !may && !slices.Contains(before.specs, spec) {
			problems = append(problems, fmt.Sprintf("%q was no exception: it has to pass", spec))
		}
	}
	if before.most > 0 && before.most < now.most {
		problems = append(problems, fmt.Sprintf("there were %d exceptions at most, and now %d", before.most, now.most))
	}
	return problems
}

func TestGrown(t *testing.T) {
	joined := slices.Collect(maps.Keys(mayJoin))[0]
	for name, test := range map[string]struct {
		before, now version
		want        []string
	}{
		"the same":               {version{[]string{"a", "b"}, 2}, version{[]string{"a", "b"}, 2}, nil},
		"fewer":                  {version{[]string{"a", "b"}, 2}, version{[]string{"b"}, 1}, nil},
		"another in the place":   {version{[]string{"a", "b"}, 2}, version{[]string{"a", "c"}, 2}, []string{`"c" was no exception: it has to pass`}},
		"one that left and came": {version{[]string{"a"}, 0}, version{[]string{"a", "b"}, 2}, []string{`"b" was no exception: it has to pass`}},
		"the number":             {version{[]string{"a"}, 1}, version{[]string{"a"}, 2}, []string{"there were 1 exceptions at most, and now 2"}},
		"the one that may":       {version{[]string{"a"}, 0}, version{[]string{"a", joined}, 2}, nil},
	} {
		if diff := cmp.Diff(test.want, grown(test.before, test.now)); diff != "" {
			t.Errorf("%s, -want +got:\n%s", name, diff)
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
