package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/atoll/test/host"
)

// TestMain makes this executable a flood where it is asked for, as main does.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == floodCommand {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestEveryRowRuns measures everything in small. Figures of such a run mean nothing.
func TestEveryRowRuns(t *testing.T) {
	if _, err := findRepository(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := bench{quick: true, workspaces: quickWorkspaces}
	if err := b.scenarios(t.Context(), scenarios()); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for _, s := range scenarios() {
		for _, r := range s.Rows {
			want[r.Name] = true
		}
	}
	got := map[string]bool{}
	for _, r := range b.results {
		got[r.Row] = true
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rows that were measured (-want +got):\n%s", diff)
	}
}

// TestProfiles: what profiles say does not depend on the row.
func TestProfiles(t *testing.T) {
	b := bench{quick: true, workspaces: quickWorkspaces, profiled: true}
	busy := slices.DeleteFunc(scenarios(), func(s Scenario) bool { return s.Name != "workspaces" })
	if err := b.scenarios(t.Context(), busy); err != nil {
		t.Fatal(err)
	}
	profiles := strings.Join(b.profiles, "")
	for _, says := range []string{"\n\nCPU: ", "\n\nHeap: ", " Held: ", "| atoll.dev/atoll/", collector} {
		if !strings.Contains(profiles, says) {
			t.Errorf("no profile says %q:\n%s", says, profiles)
		}
	}
}

func TestChoose(t *testing.T) {
	all := []Scenario{
		{Name: "one", Rows: []Row{{Name: "speed"}, {Name: "memory"}}},
		{Name: "two", Rows: []Row{{Name: "more speed"}}},
	}
	for name, tc := range map[string]struct {
		reason, pattern string
		want            []string
	}{
		"All":      {"no pattern is all", "", []string{"one/speed", "one/memory", "two/more speed"}},
		"Rows":     {"rows of any scenario", "speed", []string{"one/speed", "two/more speed"}},
		"Scenario": {"the name of a scenario is all of its rows", "^one$", []string{"one/speed", "one/memory"}},
		"None":     {"a run of nothing is a mistake", "sped", nil},
	} {
		t.Run(name, func(t *testing.T) {
			chosen, err := choose(all, regexp.MustCompile(tc.pattern))
			if (err != nil) != (tc.want == nil) {
				t.Fatalf("%s: error is %v", tc.reason, err)
			}
			var got []string
			for _, s := range chosen {
				for _, r := range s.Rows {
					got = append(got, s.Name+"/"+r.Name)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
	if _, err := choose([]Scenario{all[0], all[0]}, regexp.MustCompile("")); err == nil {
		t.Error("two rows of one name would hide each other in the report")
	}
}

func TestMerge(t *testing.T) {
	rows := []Row{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	old := []Result{{Row: "c", Figure: 1}, {Row: "gone", Figure: 1}, {Row: "a", Figure: 1}}
	got := merge(old, []Result{{Row: "b", Figure: 2}, {Row: "c", Figure: 2}}, rows)
	want := []Result{{Row: "a", Figure: 1}, {Row: "b", Figure: 2}, {Row: "c", Figure: 2}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("old rows stay, new ones replace them, in the order of all (-want +got):\n%s", diff)
	}
}

// A run of some rows leaves the others as they were: with the date, commit and load of their own run.
func TestKeep(t *testing.T) {
	rows := []Row{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	first := host.Run{Began: "2026-01-01 00:00", Commit: "aaa", Load: "0.1 0.1 0.1", Command: "make bench"}
	second := host.Run{Began: "2026-02-02 00:00", Commit: "bbb", Machine: "2 cores", Disk: "data on ext4", Load: "0.2 0.2 0.2", Command: "go run ./test/bench --rows b"}
	of := func(run host.Run, rows ...string) (results []Result) {
		for i, row := range rows {
			results = append(results, Result{Row: row, Figure: float64(i), Run: run, Samples: map[string][]float64{"ms": {1, 2}}})
		}
		return results
	}
	dir := t.TempDir()
	if err := keep(dir, of(first, "a", "b", "c"), rows, rows, first); err != nil {
		t.Fatal(err)
	}
	if err := keep(dir, of(second, "b"), rows, rows[1:2], second); err != nil {
		t.Fatal(err)
	}
	got, err := load(dir + "/" + figuresFile)
	if err != nil {
		t.Fatal(err)
	}
	want := of(first, "a", "b", "c")
	want[1] = of(second, "b")[0]
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a run of all and then of one (-want +got):\n%s", diff)
	}
	report, err := os.ReadFile(dir + "/" + reportFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"| a | 0.00 | - | - | - |  | 1 |", "| b | 0.00 | - | - | - |  | 2 |", "| c | 2.00 | - | - | - |  | 1 |",
		"| 1 | 2026-01-01 00:00 | aaa |  | 0.1 0.1 0.1 |  | `make bench` |",
		"| 2 | 2026-02-02 00:00 | bbb | 2 cores, data on ext4 | 0.2 0.2 0.2 |  | `go run ./test/bench --rows b` |",
	} {
		if !slices.Contains(strings.Split(string(report), "\n"), line) {
			t.Errorf("the report has no line %q:\n%s", line, report)
		}
	}

	third := host.Run{Began: "2026-03-03 00:00"}
	err = keep(dir, of(third, "a"), rows, rows, third)
	if err == nil || !strings.Contains(err.Error(), "2 of 3 rows: b; c") {
		t.Errorf("a run of all that measured one: error %v, want the rows that are left as they were", err)
	}
}

func TestReportIsReadAsWritten(t *testing.T) {
	first, second := host.Run{Began: "2026-01-01 00:00", Commit: "aaa", Load: "0.1 0.1 0.1"}, host.Run{Began: "2026-02-02 00:00", Commit: "bbb"}
	results := []Result{
		{Row: "fast", Unit: "/s", Figure: 12345.6, Goal: atLeast(500), How: "so", Samples: map[string][]float64{"ms": {1, 2.5}}, Run: first},
		{Row: "slow", Unit: "ms", Figure: 0.123, Goal: atMost(0.1), Detail: "p99 1 ms", Run: second},
		{Row: "floor", Figure: 2, Run: first},
		{Row: "near", Figure: 1, Goal: atLeast(1), Detail: "9 ms against 9 ms", Samples: map[string][]float64{roundRatios: {0.9, 0.95, 1, 1.1, 1.2}}, Run: first},
	}
	dir := t.TempDir()
	if err := save(dir, results); err != nil {
		t.Fatal(err)
	}
	got, err := load(dir + "/benchmarks.json")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(results, got); diff != "" {
		t.Errorf("what was read (-want +got):\n%s", diff)
	}
	text := markdown(results)
	for _, line := range []string{
		"| fast | 12,346/s | ≥ 500/s | 24.7x | ok | so | 1 |",
		"| slow | 0.12 ms (p99 1 ms) | ≤ 0.10 ms | 1.23x | **missed** |  | 2 |",
		"| floor | 2.00 | - | - | - |  | 1 |",
		"| near | 1.00 (rounds 0.90 to 1.20; 9 ms against 9 ms) | ≥ 1 | 1.00x | unsure |  | 1 |",
		"Of 3 goals 1 are met, 1 missed and 1 unsure.",
	} {
		if !slices.Contains(strings.Split(text, "\n"), line) {
			t.Errorf("the report has no line %q:\n%s", line, text)
		}
	}
	if n := strings.Count(text, "2026-01-01"); n != 1 {
		t.Errorf("the first run is told %d times, want once:\n%s", n, text)
	}
	if _, err := load(t.TempDir() + "/benchmarks.json"); err != nil {
		t.Errorf("before the first run: %v", err)
	}
}

// The report in docs is what its figures render to: neither is written by hand.
func TestReportIsOfItsFigures(t *testing.T) {
	const docs = "../../docs/"
	results, err := load(docs + figuresFile)
	if err != nil {
		t.Fatal(err)
	}
	report, err := os.ReadFile(docs + reportFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(markdown(results), string(report)); diff != "" {
		t.Errorf("docs/%s is not as `go run ./test/bench --render` writes it (-want +got):\n%s", reportFile, diff)
	}
}

func TestVerdict(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		goal   Goal
		figure float64
		rounds []float64
		want   Verdict
	}{
		"Met":             {"less than at most", atMost(2), 1, nil, Met},
		"MetAtLeast":      {"more than at least", atLeast(2), 2.1, nil, Met},
		"MetExactly":      {"at most is with the goal itself", atMost(2), 2, nil, Met},
		"Missed":          {"more than at most", atMost(2), 2.1, nil, Missed},
		"MissedAtLeast":   {"less than at least", atLeast(2), 1, nil, Missed},
		"NoGoal":          {"a row that others are compared with", Goal{}, 1, []float64{0, 1, 2}, NoGoal},
		"RoundsMeet":      {"all rounds meet it", atLeast(1), 1.1, []float64{1, 1.1, 1.2}, Met},
		"RoundsMiss":      {"all rounds miss it", atLeast(1), 0.8, []float64{0.7, 0.8, 0.99}, Missed},
		"MetWithinNoise":  {"the median meets it, two rounds do not", atLeast(1), 1.1, []float64{1.2, 0.99, 1.1, 0.98, 1.3}, Unsure},
		"MissWithinNoise": {"the median misses it, two rounds do not", atMost(1), 1.1, []float64{1.2, 0.99, 1.1, 0.98, 1.3}, Unsure},
		"BoundaryMeets":   {"a round at the goal meets it", atMost(1), 1.1, []float64{1, 1, 1.1, 1.2, 1.3}, Unsure},
		"Outlier":         {"one round that the machine disturbed", atMost(1), 1.1, []float64{1.2, 0.5, 1.1, 1.05, 1.3}, Missed},
		"FewOfMany":       {"more rounds do not make it less sure", atMost(1), 1.1, []float64{1.1, 1.1, 1.1, 1.1, 1.1, 1.1, 1.1, 0.9, 0.9}, Missed},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.goal.Verdict(tc.figure, tc.rounds); got != tc.want {
				t.Errorf("%s: %v of %v is %q, want %q", tc.reason, tc.figure, tc.rounds, got, tc.want)
			}
		})
	}
}
