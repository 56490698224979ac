package main

import (
	"context"
	"fmt"
	"regexp"
)

// Scenario measures some rows together, in one arrangement of servers.
type Scenario struct {
	Name string // of lower case words with dashes
	Rows []Row
	// Run reports every row of the scenario once, by Env.Report.
	Run func(ctx context.Context, env *Env) error
}

// Row is one line of the report.
type Row struct {
	Name string // unique
	Unit string // of the figure: "ms", "s", "MB", "KB", "/s", or "" for ratios
	Goal Goal
	// How it is measured, in a sentence for the reader of the report, without numbers that depend on flags.
	How string
}

// Goal is what a figure should be. The zero value is no goal: the row tells what the others are to be compared with.
type Goal struct {
	Op    string  `json:"op,omitempty"` // "<=" or ">="
	Value float64 `json:"value,omitempty"`
}

func atMost(v float64) Goal  { return Goal{"<=", v} }
func atLeast(v float64) Goal { return Goal{">=", v} }

// met says whether a figure is as good as the goal.
func (g Goal) met(figure float64) bool {
	switch g.Op {
	case "<=":
		return figure <= g.Value
	case ">=":
		return figure >= g.Value
	}
	return true
}

// Verdict is what a figure is of its goal.
type Verdict string

// What a figure can be.
const (
	NoGoal Verdict = "-"
	Met    Verdict = "ok"
	Missed Verdict = "missed"
	// Unsure is a figure whose rounds do not agree: another run may well find it on the other side of the goal.
	Unsure Verdict = "unsure"
)

// Verdict of a figure, which is the median of rounds if there are any: Unsure if a quarter of them, and more than one, are on the
// other side of the goal.
func (g Goal) Verdict(figure float64, rounds []float64) Verdict {
	met := g.met(figure)
	disagree := 0
	for _, round := range rounds {
		if g.met(round) != met {
			disagree++
		}
	}
	switch {
	case g.Op == "":
		return NoGoal
	case disagree > 1 && 4*disagree >= len(rounds):
		return Unsure
	case met:
		return Met
	}
	return Missed
}

// scenarios are all there are, in the order of a full run and of the report.
func scenarios() []Scenario {
	return []Scenario{
		start,
		many,
		deletion,
		definitions,
		watchers,
		fairness,
		switchedOn,
		etcdFloor,
		peerSameEtcd,
		peerManagedSameEtcd,
		peerOwnEtcd,
		peerManagedOwnEtcd,
		placed,
		placedThousand,
		placedHundred,
		placedDecisions,
		placedPolicy,
	}
}

// rowsOf are the rows of scenarios, in their order.
func rowsOf(scenarios []Scenario) []Row {
	var rows []Row
	for _, s := range scenarios {
		rows = append(rows, s.Rows...)
	}
	return rows
}

// choose returns the scenarios that have a row whose name, or the name of whose scenario, matches, with these rows only.
func choose(all []Scenario, pattern *regexp.Regexp) ([]Scenario, error) {
	var chosen []Scenario
	seen := map[string]bool{}
	for _, s := range all {
		var rows []Row
		for _, r := range s.Rows {
			if seen[r.Name] {
				return nil, fmt.Errorf("two rows have the name %q", r.Name)
			}
			seen[r.Name] = true
			if pattern.MatchString(r.Name) || pattern.MatchString(s.Name) {
				rows = append(rows, r)
			}
		}
		if len(rows) > 0 {
			s.Rows = rows
			chosen = append(chosen, s)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no row matches %q", pattern)
	}
	return chosen, nil
}
