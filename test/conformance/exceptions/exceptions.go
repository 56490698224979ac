// Package exceptions is the list of the conformance specs that workspaces do not pass. It only gets shorter.
package exceptions

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

//go:embed exceptions.txt
var text string

// Exception is a spec that workspaces do not pass.
type Exception struct{ Spec, Reason string }

// All are the exceptions, by spec.
func All() ([]Exception, error) {
	all, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("exceptions.txt: %w", err)
	}
	return all, nil
}

// mostPrefix begins the line that says how many exceptions there may be.
const mostPrefix = "# At most: "

// most returns how many exceptions the text says that there may be.
func most(text string) (int, error) {
	for _, line := range strings.Split(text, "\n") {
		if n, ok := strings.CutPrefix(line, mostPrefix); ok {
			return strconv.Atoi(n)
		}
	}
	return 0, fmt.Errorf("no line begins with %q", mostPrefix)
}

// parse reads names, each followed by an indented line with its reason; lines that begin with # are comments.
func parse(text string) ([]Exception, error) {
	var all []Exception
	named := false // the line before was a name
	for i, line := range strings.Split(text, "\n") {
		reason, indented := strings.CutPrefix(line, "\t")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case indented && named && reason != "":
			all[len(all)-1].Reason, named = reason, false
		case indented:
			return nil, fmt.Errorf("line %d: a reason without a spec, or an empty one", i+1)
		case named:
			return nil, fmt.Errorf("line %d: %q has no reason", i+1, all[len(all)-1].Spec)
		default:
			all, named = append(all, Exception{Spec: line}), true
		}
	}
	if named {
		return nil, fmt.Errorf("%q has no reason", all[len(all)-1].Spec)
	}
	if !slices.IsSortedFunc(all, func(a, b Exception) int { return cmp.Compare(a.Spec, b.Spec) }) {
		return nil, errors.New("the exceptions are not sorted")
	}
	for i := 1; i < len(all); i++ {
		if all[i].Spec == all[i-1].Spec {
			return nil, fmt.Errorf("%q is there twice", all[i].Spec)
		}
	}
	return all, nil
}

// List is a Markdown list of the reasons, each with the specs it is of.
func List(all []Exception) string {
	var reasons []string
	specs := map[string][]string{}
	for _, e := range all {
		if specs[e.Reason] == nil {
			reasons = append(reasons, e.Reason)
		}
		specs[e.Reason] = append(specs[e.Reason], "`"+strings.TrimSuffix(e.Spec, " [Conformance]")+"`")
	}
	var b strings.Builder
	for _, reason := range reasons {
		fmt.Fprintf(&b, "- %s %s.\n", reason, strings.Join(specs[reason], ", "))
	}
	return b.String()
}
