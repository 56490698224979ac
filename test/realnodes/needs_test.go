package realnodes

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"atoll.dev/atoll/internal/programimage"
	"atoll.dev/atoll/test/framework"
)

//go:embed skips.tsv
var skipsText string

// appImage is the name of the image of app.
const appImage = "realnodes.atoll.dev/app:v1"

// parseSkips reads lines of a word, a tab and a reason.
func parseSkips(text string) (map[string]string, error) {
	skips := map[string]string{}
	for line := range strings.Lines(text) {
		what, reason, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if what == "" || len(reason) < 20 || skips[what] != "" {
			return nil, fmt.Errorf("line %q: want a word that no other line has, a tab and the reason", line)
		}
		skips[what] = reason
	}
	return skips, nil
}

// judge divides what a machine lacks into reasons to skip and faults.
func judge(lacks []framework.Lack, skips map[string]string) (reasons, faults []string) {
	for _, l := range lacks {
		said := l.What + ": " + l.Why
		if reason, ok := skips[l.What]; ok {
			reasons = append(reasons, said+" ("+reason+")")
		} else {
			faults = append(faults, said)
		}
	}
	return reasons, faults
}

func TestJudge(t *testing.T) {
	skips, err := parseSkips("kmsg\tno machine of ours has it\n")
	if err != nil {
		t.Fatal(err)
	}
	reasons, faults := judge([]framework.Lack{{What: "kmsg", Why: "gone"}, {What: "root", Why: "user 7"}}, skips)
	if want := "[kmsg: gone (no machine of ours has it)] [root: user 7]"; fmt.Sprint(reasons, faults) != want {
		t.Errorf("reasons and faults are %v %v, want %s", reasons, faults, want)
	}
	// Ours excuses what a machine has not, and not what we have not built.
	if skips, err = parseSkips(skipsText); err != nil {
		t.Fatal(err)
	}
	if reasons, faults := judge([]framework.Lack{{What: "programs"}, {What: "root"}, {What: "build"}}, skips); len(reasons) != 2 || len(faults) != 1 {
		t.Errorf("by skips.tsv, reasons and faults are %v %v", reasons, faults)
	}
	for _, bad := range []string{"kmsg\n", "kmsg\tsince\n", "\tno machine of ours has it\n", "a\tno machine of ours has it\na\tno machine of ours has it\n"} {
		if got, err := parseSkips(bad); err == nil {
			t.Errorf("%q is read as %v", bad, got)
		}
	}
}

// needsRealNodes skips a test where pods cannot run, for a reason that is on the list.
func needsRealNodes(t *testing.T) {
	t.Helper()
	skips, err := parseSkips(skipsText)
	if err != nil {
		t.Fatalf("skips.tsv: %v", err)
	}
	reasons, faults := judge(framework.RealNodesLack(t), skips)
	if len(faults) > 0 {
		t.Fatalf("this machine cannot run pods, and test/realnodes/skips.tsv does not say that it need not:\n%s", strings.Join(faults, "\n"))
	}
	if len(reasons) > 0 {
		t.Skipf("NOT TESTED: this machine cannot run pods:\n%s", strings.Join(reasons, "\n"))
	}
}

// imageOfApp builds app and returns its image.
func imageOfApp(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "app")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", program, "./app")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // there are no libraries in its image
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build app: %v\n%s", err, out)
	}
	image := filepath.Join(dir, "app.tar")
	if err := programimage.Write(image, programimage.Image{Name: appImage, Program: program, Links: []string{"tar"}}); err != nil {
		t.Fatal(err)
	}
	return image
}
