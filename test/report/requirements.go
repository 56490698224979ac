package main

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"atoll.dev/atoll/internal/document"
)

var (
	requirementsSection = document.Section{Begin: "<!-- requirements: begin (make test writes this table) -->", End: "<!-- requirements: end -->"}
	exceptionsSection   = document.Section{Begin: "<!-- exceptions: begin (make generate writes this list) -->", End: "<!-- exceptions: end -->"}
)

// requirement is one line of requirements.tsv.
type requirement struct {
	id, text string
	// missing says what no test proves yet, where some are proven; empty if nothing.
	missing string
}

func parseRequirements(tsv string) ([]requirement, error) {
	var all []requirement
	for n, line := range strings.Split(strings.TrimRight(tsv, "\n"), "\n") {
		f := strings.Split(line, "\t")
		if len(f) != 3 || f[0] == "" || f[1] == "" {
			return nil, fmt.Errorf("requirements.tsv:%d: want id, text and what is missing, separated by tabs", n+1)
		}
		all = append(all, requirement{id: f[0], text: f[1], missing: f[2]})
	}
	return all, nil
}

var idPrefix = regexp.MustCompile(`^((?:[TPSKMR][0-9]+_)+)`)

// ids returns the requirements whose ids a test's name carries, or the name of a part of one: TestT1_Kubectl,
// TestFleet/T2_Move. A part without an id of its own belongs to its test, which stands for it.
func ids(test string) []string {
	name := strings.TrimPrefix(test, "Test")
	if _, part, isPart := strings.Cut(test, "/"); isPart {
		name = part
	}
	m := idPrefix.FindStringSubmatch(name)
	if m == nil || strings.Contains(name, "/") {
		return nil
	}
	return strings.Split(strings.TrimSuffix(m[1], "_"), "_")
}

// outcome of a test: the worst of all runs in the results.
type outcome int

const (
	passed outcome = iota
	skipped
	failed
)

// table is the Markdown table of requirements, with the state that results, by test name, give each.
func table(requirements []requirement, results map[string]outcome) string {
	by := map[string][]string{}
	for _, test := range slices.Sorted(maps.Keys(results)) {
		for _, id := range ids(test) {
			by[id] = append(by[id], test)
		}
	}
	var b strings.Builder
	b.WriteString("| id | requirement | state | proven by |\n|---|---|---|---|\n")
	for _, r := range requirements {
		var proofs []string
		for _, test := range by[r.id] {
			proofs = append(proofs, "`"+test+"`")
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.id, r.text, state(r, by[r.id], results), strings.Join(proofs, ", "))
	}
	return b.String()
}

func state(r requirement, tests []string, results map[string]outcome) string {
	worst := passed
	for _, test := range tests {
		worst = max(worst, results[test])
	}
	switch {
	case len(tests) == 0:
		return "not yet"
	case worst == failed:
		return "**failing**"
	case worst == skipped:
		return "not tested in the last run"
	case r.missing != "":
		return "in part; missing: " + r.missing
	}
	return "works"
}

var testName = regexp.MustCompile("`(Test[A-Za-z0-9_]+)`")

// verify compares the table in the README with the tests there are, without running any. Parts of tests are known only
// when they run: of them the table alone tells.
func verify(readme string, tests []string, requirements []requirement) error {
	_, section, _, err := requirementsSection.Cut(readme)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, r := range requirements {
		known[r.id] = true
	}
	named := map[string]bool{}
	var errs []error
	for _, m := range testName.FindAllStringSubmatch(section, -1) {
		if !named[m[1]] && !slices.Contains(tests, m[1]) {
			errs = append(errs, fmt.Errorf("the table of requirements names %s, which is no test: run make test", m[1]))
		}
		named[m[1]] = true
	}
	for _, test := range tests {
		for _, id := range ids(test) {
			if !known[id] {
				errs = append(errs, fmt.Errorf("%s proves %s, which is no requirement", test, id))
			}
		}
		if !named[test] {
			errs = append(errs, fmt.Errorf("the table of requirements lacks %s: run make test", test))
		}
	}
	return errors.Join(errs...)
}
