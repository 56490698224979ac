package charts

import (
	_ "embed"
	"fmt"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

//go:embed differences.tsv
var differencesText string

// listed is a difference that is known.
type listed struct {
	kind   string // that of a difference, where "*" stands for any text
	path   string
	chart  string // one in which there it is
	reason string
}

func (l listed) String() string { return l.kind + " " + l.path }

func (l listed) is(d difference) bool {
	like, _ := path.Match(l.kind, d.kind) // parse has tried it
	return like && l.path == d.path
}

// parse reads a line for each difference that is known, with its kind, path, chart and reason between tabs. None is of a spec, of all of a status, or
// of what a chart has installed.
func parse(text string) (all []listed, _ error) {
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		f := strings.Split(line, "\t")
		if len(f) != 4 || slices.Contains(f, "") {
			return nil, fmt.Errorf("line %d: want a kind, a path, a chart and a reason between tabs", i+1)
		}
		l := listed{f[0], f[1], f[2], f[3]}
		if _, err := path.Match(l.kind, ""); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		if !strings.HasPrefix(l.path, "metadata.") && !strings.HasPrefix(l.path, "status.") && l.path != workspaceOnly && l.path != plainOnly {
			return nil, fmt.Errorf("line %d: %q may not differ", i+1, l)
		}
		if i > 0 && all[i-1].String() >= l.String() {
			return nil, fmt.Errorf("line %d: %q is not sorted, or there twice", i+1, l)
		}
		all = append(all, l)
	}
	return all, nil
}

// unlisted are the differences that are not known.
func unlisted(all []listed, differences []difference) []difference {
	return slices.DeleteFunc(slices.Clone(differences), func(d difference) bool {
		return slices.ContainsFunc(all, func(l listed) bool { return l.is(d) })
	})
}

// settled says which of those listed do not differ any more in their chart, if that is one of those that ran.
func settled(all []listed, differences []difference, ran []string) (problems []string) {
	for _, l := range all {
		var in []string
		for _, d := range differences {
			if l.is(d) && !slices.Contains(in, d.chart) {
				in = append(in, d.chart)
			}
		}
		if slices.Contains(ran, l.chart) && !slices.Contains(in, l.chart) {
			slices.Sort(in)
			problems = append(problems, fmt.Sprintf("%s does not differ in chart %s any more, but in %q", l, l.chart, in))
		}
	}
	return problems
}

// propose is the text of a list of differences that are not known, for a person to find the reason of each.
func propose(differences []difference) string {
	lines := map[string]bool{}
	var all []string
	for _, d := range differences {
		if line := d.kind + "\t" + d.path; !lines[line] {
			lines[line], all = true, append(all, line+"\t"+d.chart+"\t"+d.String()+"\n")
		}
	}
	slices.Sort(all)
	return strings.Join(all, "")
}

// list is the known differences as a table in Markdown.
func list(all []listed) string {
	var b strings.Builder
	b.WriteString("| kind | path | such as in | why |\n|---|---|---|---|\n")
	for _, l := range all {
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s |\n", l.kind, l.path, l.chart, l.reason)
	}
	return b.String()
}

func TestParse(t *testing.T) {
	got, err := parse("Pod\tin the plain cluster alone\tc\twhy a\nPod of *\tmetadata.annotations[a.b/c d]\tc\twhy b\n")
	want := []listed{{"Pod", plainOnly, "c", "why a"}, {"Pod of *", "metadata.annotations[a.b/c d]", "c", "why b"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(listed{})); diff != "" || err != nil {
		t.Errorf("error %v, -want +got:\n%s", err, diff)
	}
	for _, text := range []string{
		"", "Pod\tstatus.a\tc", "Pod\tstatus.a\t\twhy", "Pod\tstatus.a\tc\twhy\tmore", "[\tstatus.a\tc\twhy",
		"Pod\tstatus.b\tc\twhy\nPod\tstatus.a\tc\twhy", "Pod\tstatus.a\tc\twhy\nPod\tstatus.a\td\twhy",
		"Pod\tspec\tc\twhy", "Pod\tspec.a\tc\twhy", "*\tdata.a\tc\twhy", "Pod\tstatus\tc\twhy", "Pod\t" + installed + plainOnly + "\tc\twhy",
	} {
		if _, err := parse(text); err == nil {
			t.Errorf("no error for differences %q", text)
		}
	}
}

func TestUnlistedAndSettled(t *testing.T) {
	all := []listed{{"*", "metadata.a", "x", "why"}, {"Pod", "status.b", "x", "why"}, {"Pod of *", "status.b", "x", "why"}, {"Service", "status.b", "y", "why"}}
	known := []difference{{chart: "x", kind: "Pod of Job", path: "metadata.a"}, {chart: "x", kind: "Pod of Job", path: "status.b"}, {chart: "y", kind: "Pod", path: "status.b"}}
	others := []difference{{chart: "x", kind: "Pod", path: "status.b.c"}, {chart: "x", kind: "Job.batch", path: "status.b"}}
	if diff := cmp.Diff(others, unlisted(all, slices.Concat(known, others)), cmp.AllowUnexported(difference{})); diff != "" {
		t.Errorf("unlisted, -want +got:\n%s", diff)
	}
	want := []string{`Pod status.b does not differ in chart x any more, but in ["y"]`}
	if diff := cmp.Diff(want, settled(all, known, []string{"x"})); diff != "" {
		t.Errorf("settled, -want +got:\n%s", diff)
	}
}

func TestPropose(t *testing.T) {
	got := propose([]difference{{"x", "Pod", "b", "b", nil, nil}, {"x", "Pod", "a", "a", nil, "v"}, {"y", "Pod", "c", "b", nil, nil}})
	want := "Pod\ta\tx\tPod a: a is not there in the workspace, and \"v\" in the plain cluster\nPod\tb\tx\tPod b: b is not there in the workspace, and not there in the plain cluster\n"
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestList(t *testing.T) {
	got := list([]listed{{"Pod", "status.a", "x", "Why."}})
	if want := "| kind | path | such as in | why |\n|---|---|---|---|\n| `Pod` | `status.a` | x | Why. |\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestNoDifferenceJoins: what differs, differed at every commit before. Without the whole history it is skipped.
func TestNoDifferenceJoins(t *testing.T) {
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), "git", args...).Output()
		return string(out), err
	}
	shallow, err := git("rev-parse", "--is-shallow-repository")
	if err != nil || strings.TrimSpace(shallow) != "false" {
		t.Skipf("NOT COMPARED with commits before: git says shallow %q, error %v; it takes a clone with all commits", shallow, err)
	}
	commits, err := git("log", "--full-history", "--format=%H", "--", "differences.tsv")
	if err != nil {
		t.Fatalf("list the commits of differences.tsv: %v", err)
	}
	for _, commit := range strings.Fields(commits) {
		before, err := git("show", commit+":./differences.tsv")
		if err != nil {
			t.Fatalf("read differences.tsv of commit %s: %v", commit, err)
		}
		more, err := joined(before, differencesText)
		if len(more) > 0 || err != nil {
			t.Errorf("commit %.10s: %q did not differ: it has to be the same; error %v", commit, more, err)
		}
	}
}

// joined are those in the list of now that were not in the one before.
func joined(before, now string) ([]listed, error) {
	then, err := parse(before)
	if err != nil {
		return nil, err
	}
	all, err := parse(now)
	return slices.DeleteFunc(all, func(l listed) bool {
		return slices.ContainsFunc(then, func(t listed) bool { return t.String() == l.String() })
	}), err
}

func TestJoined(t *testing.T) {
	const a, b, c = "Pod\tstatus.a\tx\twhy\n", "Pod\tstatus.b\tx\twhy\n", "Pod\tstatus.c\tx\twhy\n"
	for now, want := range map[string]string{a + b: "[]", b: "[]", strings.ReplaceAll(a+b, "x", "y"): "[]", a + c: "[Pod status.c]", a + b + c: "[Pod status.c]"} {
		got, err := joined(a+b, now)
		if fmt.Sprint(got) != want || err != nil {
			t.Errorf("%v, error %v, want %s, for %q", got, err, want, now)
		}
	}
}
