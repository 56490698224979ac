package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/atoll/test/host"
)

func TestIDs(t *testing.T) {
	for name, want := range map[string]string{
		"TestT1_DeploymentRuns":      "T1",
		"TestT2_T11_MoveTurnedBack":  "T2 T11",
		"TestTable":                  "",
		"TestX1_SurvivesARestart":    "", // no requirement
		"TestEverythingOfT1_AndMore": "",
	} {
		if got := strings.Join(ids(name), " "); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

var sample = []requirement{{"T1", "apply runs", ""}, {"T2", "move", "volumes"}, {"T3", "traffic", ""}, {"T4", "debug", ""}, {"T5", "state", ""}}

func TestTable(t *testing.T) {
	got := table(sample, map[string]outcome{
		"TestT1_T2_Apply": passed, "TestT2_Move": passed, "TestT3_Traffic": failed, "TestT3_Other": passed, "TestT4_Debug": skipped, "TestOther": passed,
	})
	want := "| id | requirement | state | proven by |\n|---|---|---|---|\n" +
		"| T1 | apply runs | works | `TestT1_T2_Apply` |\n" +
		"| T2 | move | in part; missing: volumes | `TestT1_T2_Apply`, `TestT2_Move` |\n" +
		"| T3 | traffic | **failing** | `TestT3_Other`, `TestT3_Traffic` |\n" +
		"| T4 | debug | not tested in the last run | `TestT4_Debug` |\n" +
		"| T5 | state | not yet |  |\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWriteBetween(t *testing.T) {
	file := filepath.Join(t.TempDir(), "README.md")
	if err := os.WriteFile(file, []byte("before\n"+requirementsSection.Begin+"\nold\n"+requirementsSection.End+"\nafter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeSection(file, requirementsSection, "new\n", true); err == nil || !strings.Contains(err.Error(), "make test") {
		t.Errorf("an old table passed the check: %v", err)
	}
	if err := writeSection(file, requirementsSection, "new\n", false); err != nil {
		t.Fatal(err)
	}
	if err := writeSection(file, requirementsSection, "new\n", true); err != nil {
		t.Errorf("the table that was just written fails the check: %v", err)
	}
	if data, _ := os.ReadFile(file); string(data) != "before\n"+requirementsSection.Begin+"\nnew\n"+requirementsSection.End+"\nafter\n" {
		t.Errorf("wrote %q", data)
	}
}

func TestVerify(t *testing.T) {
	for document, want := range map[string]string{
		"`TestT1_A`":                "",
		"":                          "lacks TestT1_A",
		"`TestT1_A` and `TestT1_B`": "names TestT1_B",
	} {
		err := verify(requirementsSection.Begin+document+requirementsSection.End, []string{"TestT1_A"}, sample)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: error %v, want %q", document, err, want)
		}
	}
	if err := verify(requirementsSection.Begin+"`TestT99_A`"+requirementsSection.End, []string{"TestT99_A"}, sample); err == nil {
		t.Error("a requirement that there is none of passed")
	}
}

func TestSummary(t *testing.T) {
	file := filepath.Join(t.TempDir(), "results.json")
	var out strings.Builder
	in := `{"Action":"output","Package":"p","Test":"TestT1_A","Output":"quiet\n"}
{"Action":"pass","Package":"p","Test":"TestT1_A"}
{"Action":"output","Package":"p","Test":"TestT2_B","Output":"loud\n"}
{"Action":"output","Package":"p","Test":"TestT2_B","Output":"    b_test.go:7: because\n"}
{"Action":"output","Package":"p","Test":"TestT2_B","Output":"        of this\n"}
{"Action":"output","Package":"p","Test":"TestT2_B","Output":"    b_test.go:8: /tmp/x/server.log:\n"}
{"Action":"output","Package":"p","Test":"TestT2_B","Output":"        a line of a log\n"}
{"Action":"fail","Package":"p","Test":"TestT2_B"}
{"Action":"output","Package":"p","Test":"TestT2_B/case","Output":"no message\n"}
{"Action":"fail","Package":"p","Test":"TestT2_B/case"}
{"Action":"output","Package":"p","Test":"TestT2_B/crash","Output":"a line of a log\npanic: of this\n"}
{"Action":"output","Package":"p","Test":"TestT2_B/crash","Output":"goroutine 1 [running]:\n"}
{"Action":"fail","Package":"p","Test":"TestT2_B/crash"}
{"Action":"output","Package":"p","Test":"TestT3_C","Output":"=== RUN TestT3_C\n"}
{"Action":"output","Package":"p","Test":"TestT3_C","Output":"panic: test timed out\n\ngoroutine 1:\nserver.go:1\n\n"}
{"Action":"output","Package":"p","Test":"TestT4_D","Output":"=== PAUSE TestT4_D\n"}
{"Action":"pause","Package":"p","Test":"TestT4_D"}
{"Action":"pause","Package":"p","Test":"TestT3_C"}
{"Action":"cont","Package":"p","Test":"TestT3_C"}
{"Action":"output","Package":"p","Test":"TestT3_C","Output":"goroutine 2:\nc_test.go:1\n"}
{"Action":"fail","Package":"p"}
`
	err := summary(strings.NewReader(in), &out, file)
	if want := "p TestT2_B\n          b_test.go:7: because\n          of this\n"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want one that names the test, and what it said: %q", err, want)
	}
	want := `--- FAIL p TestT2_B
    b_test.go:7: because
        of this
--- FAIL p TestT2_B/case
no message
--- FAIL p TestT2_B/crash
panic: of this
goroutine 1 [running]:
--- FAIL p
--- FAIL p TestT3_C
panic: test timed out

goroutine 2:
c_test.go:1

goroutine 1:
server.go:1
1 tests of p waited for their turn
`
	if diff := cmp.Diff(want+"all that was printed is in "+file+"\n1 passed, 4 failed, 0 skipped\n", out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	results, err := readResults([]string{file})
	if diff := cmp.Diff(map[string]outcome{"TestT1_A": passed, "TestT2_B": failed, "TestT2_B/case": failed, "TestT2_B/crash": failed}, results); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if err := summary(strings.NewReader(`{"Action":"fail","ImportPath":"p"}`), &out, file); err == nil {
		t.Error("a package that does not build passed")
	}
	if err := summary(strings.NewReader(""), &out, file); err == nil {
		t.Error("a run without tests passed")
	}
}

func TestRequirementsParse(t *testing.T) {
	all, err := parseRequirements(requirementsTSV)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 66 {
		t.Errorf("%d requirements, want 66", len(all))
	}
}

func TestPartsProveToo(t *testing.T) {
	for name, want := range map[string][]string{
		"TestT1_Kubectl":          {"T1"},
		"TestT1_P5_Both":          {"T1", "P5"},
		"TestT1_Kubectl/explain":  nil, // its test stands for it
		"TestFleet/T2_Move":       {"T2"},
		"TestFleet/T2_Move/again": nil,
		"TestFleet":               nil,
		"TestI1_NoBleed":          nil,
	} {
		if got := ids(name); !cmp.Equal(got, want) {
			t.Errorf("%s proves %v, want %v", name, got, want)
		}
	}
}

func TestSoak(t *testing.T) {
	file := filepath.Join(t.TempDir(), "soak.md")
	this := host.Run{Began: "2026-01-01 00:00", Commit: "abc", Command: "make soak PARTS=faults"}
	in := `{"Action":"output","Package":"p","Test":"TestFaults/Cut","Output":"    a_test.go:7: recovery from cut connections   2.5s\n"}
{"Action":"output","Package":"p","Test":"TestFaults/Cut","Output":"a line of a log\n"}
{"Action":"pass","Package":"p","Test":"TestFaults/Cut","Elapsed":61.2}
`
	var out strings.Builder
	if err := soak(strings.NewReader(in), &out, file, "faults", false, this); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if want := "| `TestFaults/Cut` | pass | 1m1s | from cut connections: 2.5s |\n"; err != nil || !strings.Contains(string(data), want) {
		t.Errorf("wrote %q (%v), want the line %q", data, err, want)
	}
	in = strings.Replace(in, `"pass"`, `"fail"`, 1)
	why := `{"Action":"output","Package":"p","Test":"TestFaults/Cut","Output":"    a_test.go:9: is otherwise:\n"}
{"Action":"output","Package":"p","Test":"TestOther","Output":"        of another\n"}
{"Action":"output","Package":"p","Test":"TestFaults/Cut","Output":"        - before\n"}
{"Action":"output","Package":"p","Test":"TestFaults/Cut","Output":"        + after\n"}
`
	if err := soak(strings.NewReader(why+in), &out, file, "faults", false, this); err == nil || !strings.Contains(err.Error(), "TestFaults/Cut") {
		t.Errorf("a failure: error %v", err)
	}
	if want := "is otherwise:\n        - before\n        + after\n"; !strings.Contains(out.String(), want) {
		t.Errorf("of a failure is told %q, want all of its message", out.String())
	}
	if now, err := os.ReadFile(file); err != nil || string(now) != string(data) {
		t.Errorf("a failure changed the report: %q (%v)", now, err)
	}
	if err := soak(strings.NewReader(""), &out, file, "faults", false, this); err == nil {
		t.Error("a run without tests passed")
	}
	in = strings.NewReplacer(`"fail"`, `"pass"`, "TestFaults/Cut", "TestCrashes/of/each/write/1").Replace(in) + `{"Action":"pass","Package":"p","Test":"TestCrashes/of/each/write/2","Elapsed":1}
`
	if err := soak(strings.NewReader(in), &out, file, "crashes", false, this); err != nil {
		t.Fatal(err)
	}
	both, err := os.ReadFile(file)
	_, section, _ := strings.Cut(string(data), "\n## faults\n")
	if err != nil || section == "" || !strings.HasSuffix(string(both), "\n## faults\n"+section) || !strings.Contains(string(both), "\n## crashes\n") {
		t.Errorf("of two parts is written (%v):\n%s", err, both)
	}
	targets := `{"Action":"output","Package":"atoll.dev/atoll/internal/a","Test":"FuzzOpen","Output":"    a_test.go:7: figure inputs: 12\n"}
{"Action":"pass","Package":"atoll.dev/atoll/internal/a","Test":"FuzzOpen","Elapsed":60}
{"Action":"pass","Package":"atoll.dev/atoll/internal/b","Test":"FuzzOpen","Elapsed":61}
`
	if err := soak(strings.NewReader(targets), &out, file, "fuzz", false, this); err != nil {
		t.Fatal(err)
	}
	fuzzed, err := os.ReadFile(file)
	if want := "| `internal/a.FuzzOpen` | pass | 1m0s | inputs: 12 |\n| `internal/b.FuzzOpen` | pass | 1m1s |  |\n"; err != nil || !strings.Contains(string(fuzzed), want) {
		t.Errorf("of two targets of one name is written (%v):\n%s\nwant in it\n%s", err, fuzzed, want)
	}
	if err := soak(strings.NewReader(in+`{"Action":"pass","Package":"p","Elapsed":70}`+"\n"), &out, file, "late", true, this); err != nil {
		t.Fatal(err)
	}
	three, err := os.ReadFile(file)
	if _, section, _ := strings.Cut(string(three), "\n## late\n"); err != nil || !strings.Contains(section, "| `p` | pass | 1m10s |  |\n") || strings.Contains(section, "Test") {
		t.Errorf("of a part by packages is written (%v):\n%s", err, three)
	}
	if !strings.Contains(string(both), "write/1") || strings.Contains(string(both), "write/2") {
		t.Errorf("parts of parts are told though they measured nothing, or not though they did:\n%s", both)
	}
}

func TestShown(t *testing.T) {
	file := filepath.Join(t.TempDir(), "operators.md")
	this := host.Run{Began: "2026-01-01 00:00", Commit: "abc", Command: "make operators"}
	in := `{"Action":"output","Package":"p","Test":"TestSets","Output":"    a_test.go:7: program: sets.example v1.2.3\n"}
{"Action":"output","Package":"p","Test":"TestSets/one/kiwi","Output":"    a_test.go:9: done: sets are made\n"}
{"Action":"output","Package":"p","Test":"TestSets/one/quince","Output":"    a_test.go:9: done: sets are made\n"}
{"Action":"pass","Package":"p","Test":"TestSets/one","Elapsed":3.2}
{"Action":"pass","Package":"p","Test":"TestSets","Elapsed":61.2}
`
	var out strings.Builder
	if err := shown(strings.NewReader(in), &out, file, "# Shown\n", this); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if want := "\n## `TestSets`\n\nsets.example v1.2.3, pass, 1m1s.\n\n- sets are made\n"; err != nil || !strings.HasSuffix(string(data), want) {
		t.Errorf("wrote %q (%v), want it to end with %q", data, err, want)
	}
	for _, not := range []string{"fail", "skip"} {
		if err := shown(strings.NewReader(strings.ReplaceAll(in, `"pass"`, `"`+not+`"`)), &out, file, "", this); err == nil || !strings.Contains(err.Error(), not+" p TestSets") {
			t.Errorf("a %s: error %v", not, err)
		}
		if now, err := os.ReadFile(file); err != nil || string(now) != string(data) {
			t.Errorf("a %s changed the report: %q (%v)", not, now, err)
		}
	}
	if err := shown(strings.NewReader(""), &out, file, "", this); err == nil {
		t.Error("a run without tests passed")
	}
}
