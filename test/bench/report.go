package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"atoll.dev/atoll/test/host"
)

// Result is one measured row.
type Result struct {
	Row    string  `json:"row"`
	Unit   string  `json:"unit,omitempty"`
	Figure float64 `json:"figure"`
	Goal   Goal    `json:"goal,omitzero"`
	Detail string  `json:"detail,omitempty"`
	How    string  `json:"how"`
	// Samples are all that was measured, by what they are.
	Samples map[string][]float64 `json:"samples,omitempty"`
	// Run is what the row was measured in.
	Run host.Run `json:"run"`
}

// rounds that the figure is the median of, if it is one.
func (r Result) rounds() []float64 { return r.Samples[roundRatios] }

func (r Result) verdict() Verdict { return r.Goal.Verdict(r.Figure, r.rounds()) }

// number renders a figure with about three digits, and thousands apart.
func number(v float64) string {
	switch abs := math.Abs(v); {
	case abs < 10:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case abs < 100:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	digits := strconv.FormatFloat(math.Round(v), 'f', 0, 64)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

func quantity(v float64, unit string) string {
	if unit == "" || strings.HasPrefix(unit, "/") {
		return number(v) + unit
	}
	return number(v) + " " + unit
}

func (r Result) figure() string {
	return quantity(r.Figure, r.Unit) + r.explained()
}

// explained is what follows the figure: between what its rounds are, which says what a figure close to its goal means, and
// the detail.
func (r Result) explained() string {
	var parts []string
	if rounds := r.rounds(); len(rounds) > 0 {
		parts = append(parts, "rounds "+number(slices.Min(rounds))+" to "+number(slices.Max(rounds)))
	}
	if r.Detail != "" {
		parts = append(parts, r.Detail)
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, "; ") + ")"
}

func (r Result) goal() string {
	if r.Goal.Op == "" {
		return "-"
	}
	return strings.NewReplacer("<=", "≤", ">=", "≥").Replace(r.Goal.Op) + " " + strings.Replace(quantity(r.Goal.Value, r.Unit), ".00", "", 1)
}

// ofGoal is how many times the goal's value the figure is; "-" where there is no goal.
func (r Result) ofGoal() string {
	if r.Goal.Op == "" {
		return "-"
	}
	return number(r.Figure/r.Goal.Value) + "x"
}

// line is how a result is printed while the benchmark goes on.
func (r Result) line() string {
	return fmt.Sprintf("%-58s %14s  %-12s %6s  %s %s", r.Row, quantity(r.Figure, r.Unit), r.goal(), r.ofGoal(), r.verdict(), r.explained())
}

// The files of a report.
const (
	figuresFile = "benchmarks.json"
	reportFile  = "benchmarks.md"
)

// load reads the results of earlier runs; there need not be any.
func load(file string) ([]Result, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var results []Result
	if err := json.Unmarshal(data, &results); err != nil {
		return nil, fmt.Errorf("parse %s: %w", file, err)
	}
	return results, nil
}

// keep writes the results of a run into a directory, beside those of other rows that are there, and checks that every row
// that was asked for is there then, of this run.
func keep(dir string, results []Result, rows, asked []Row, run host.Run) error {
	old, err := load(filepath.Join(dir, figuresFile))
	if err != nil {
		return err
	}
	if err := save(dir, merge(old, results, rows)); err != nil {
		return err
	}
	written, err := load(filepath.Join(dir, figuresFile))
	if err != nil {
		return err
	}
	var missing []string
	for _, row := range asked {
		if !slices.ContainsFunc(written, func(r Result) bool { return r.Row == row.Name && r.Run == run }) {
			missing = append(missing, row.Name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s has no figure of this run for %d of %d rows: %s", figuresFile, len(missing), len(asked), strings.Join(missing, "; "))
	}
	return nil
}

// merge replaces old results by new ones of the same row, drops those of rows that are no more, and sorts them as the rows.
func merge(old, new []Result, rows []Row) []Result {
	order := map[string]int{}
	for i, r := range rows {
		order[r.Name] = i
	}
	byRow := map[string]Result{}
	for _, r := range slices.Concat(old, new) {
		if _, ok := order[r.Row]; ok {
			byRow[r.Row] = r
		}
	}
	var merged []Result
	for _, r := range byRow {
		merged = append(merged, r)
	}
	slices.SortFunc(merged, func(a, b Result) int { return cmp.Compare(order[a.Row], order[b.Row]) })
	return merged
}

// markdown renders the report.
func markdown(results []Result) string {
	var runs []host.Run
	var b strings.Builder
	b.WriteString(`# Benchmarks

Made by ` + "`make bench`" + `; not written by hand. [benchmarks.json](benchmarks.json) has the samples behind
figures that are made of several; a figure without is one measurement. Figures are of the built binary,
with its embedded etcd, fsync and TLS, on one machine that also makes the load. A ratio compares alternating rounds of
one run; it is the median of the rounds' ratios. Where a quarter of the rounds, and more
than one, are on the other side of the goal it is "unsure": neither met nor missed.

| | figure | goal | figure / goal | | how measured | run |
|---|---|---|---|---|---|---|
`)
	verdicts := map[Verdict]int{}
	for _, r := range results {
		run := slices.Index(runs, r.Run)
		if run < 0 {
			run = len(runs)
			runs = append(runs, r.Run)
		}
		verdict := r.verdict()
		verdicts[verdict]++
		cell := string(verdict)
		if verdict == Missed {
			cell = "**" + cell + "**"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %d |\n", r.Row, r.figure(), r.goal(), r.ofGoal(), cell, r.How, run+1)
	}
	fmt.Fprintf(&b, "\nOf %d goals %d are met, %d missed and %d unsure.\n\n## Runs\n\n",
		len(results)-verdicts[NoGoal], verdicts[Met], verdicts[Missed], verdicts[Unsure])
	b.WriteString("| run | began | commit | machine | load average before | Go | command |\n|---|---|---|---|---|---|---|\n")
	for i, r := range runs {
		fmt.Fprintf(&b, "| %d | %s | %s | %s | %s | %s | `%s` |\n", i+1, r.Began, r.Commit, machine(r), r.Load, r.Go, r.Command)
	}
	return b.String()
}

// machine of a run, with the disk, which writes are bound by.
func machine(r host.Run) string {
	if r.Disk == "" {
		return r.Machine
	}
	return r.Machine + ", " + r.Disk
}

// save writes the figures and the report into a directory.
func save(dir string, results []Result) error {
	data, err := json.Marshal(results)
	if err != nil {
		return err
	}
	// One result a line: short to read over, and good to compare.
	data = append([]byte(strings.ReplaceAll(string(data), `},{"row":`, "},\n{\"row\":")), '\n')
	if err := os.WriteFile(filepath.Join(dir, figuresFile), data, 0o644); err != nil {
		return err
	}
	return renderAgain(dir)
}

// renderAgain writes the report of the figures that are in a directory, which stay as they are.
func renderAgain(dir string) error {
	results, err := load(filepath.Join(dir, figuresFile))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, reportFile), []byte(markdown(results)), 0o644)
}
