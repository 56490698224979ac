package conformance

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// minPeerPasses is how many specs a plain Kubernetes has to pass for a run to prove anything.
const minPeerPasses = 98

// side is where specs ran.
type side struct {
	name    string
	results map[string]result
}

// of is how a spec ended there.
func (s side) of(spec string) result {
	if r, ok := s.results[spec]; ok {
		return r
	}
	return result{state: absent}
}

// passes is how many of specs passed there.
func (s side) passes(specs []string) (n int) {
	for _, spec := range specs {
		if s.of(spec).state == passed {
			n++
		}
	}
	return n
}

// exception is a spec that workspaces do not pass.
type exception struct{ spec, reason string }

// split parts specs in those that workspaces are to pass, and the exceptions.
func split(specs []string, exceptions []exception) (wanted, excepted []string) {
	for _, spec := range specs {
		if slices.ContainsFunc(exceptions, func(e exception) bool { return e.spec == spec }) {
			excepted = append(excepted, spec)
		} else {
			wanted = append(wanted, spec)
		}
	}
	return wanted, excepted
}

// judge says what is wrong with a run of specs on a peer, of the wanted ones in workspaces, and of the exceptions apart;
// nil: nothing. What the peer failed is not judged, since it can be the machine's fault.
func judge(specs []string, exceptions []exception, peer side, workspaces []side, apart side) (problems []string) {
	if n := peer.passes(specs); n < minPeerPasses {
		problems = append(problems, fmt.Sprintf("%s passed %d specs of %d, and has to pass %d", peer.name, n, len(specs), minPeerPasses))
	}
	for _, e := range exceptions {
		if !slices.Contains(specs, e.spec) {
			problems = append(problems, fmt.Sprintf("the exception %q is not in the list of specs: remove it", e.spec))
		}
	}
	wanted, excepted := split(specs, exceptions)
	for _, spec := range wanted {
		for _, w := range workspaces {
			if r := w.of(spec); r.state != passed && peer.of(spec).state == passed {
				problems = append(problems, fmt.Sprintf("%s: %s in workspace %s: %s", spec, r.state, w.name, r.message))
			}
		}
	}
	for _, spec := range excepted {
		switch apart.of(spec).state {
		case passed:
			problems = append(problems, fmt.Sprintf("%s passes: remove it from the exceptions", spec))
		case absent:
			problems = append(problems, fmt.Sprintf("%s did not run: an exception has to fail", spec))
		}
	}
	return problems
}

// parseSpecs reads a list of names, one a line; lines that begin with # are comments.
func parseSpecs(text string) ([]string, error) {
	var specs []string
	for i, line := range strings.Split(text, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if !strings.HasPrefix(line, "[sig-") || !strings.HasSuffix(line, "[Conformance]") {
			return nil, fmt.Errorf("line %d: %q is no [Conformance] spec", i+1, line)
		}
		specs = append(specs, line)
	}
	if !slices.IsSorted(specs) || len(slices.Compact(slices.Clone(specs))) != len(specs) {
		return nil, fmt.Errorf("%d specs are not sorted, or not distinct", len(specs))
	}
	return specs, nil
}

// parseExceptions reads names, each followed by an indented line with its reason; lines that begin with # are comments.
func parseExceptions(text string) ([]exception, error) {
	var exceptions []exception
	named := false // the line before was a name
	for i, line := range strings.Split(text, "\n") {
		reason, indented := strings.CutPrefix(line, "\t")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case indented && named && reason != "":
			exceptions[len(exceptions)-1].reason, named = reason, false
		case indented:
			return nil, fmt.Errorf("line %d: a reason without a spec, or an empty one", i+1)
		case named:
			return nil, fmt.Errorf("line %d: %q has no reason", i+1, exceptions[len(exceptions)-1].spec)
		default:
			exceptions, named = append(exceptions, exception{spec: line}), true
		}
	}
	if named {
		return nil, fmt.Errorf("%q has no reason", exceptions[len(exceptions)-1].spec)
	}
	bySpec := func(a, b exception) int { return cmp.Compare(a.spec, b.spec) }
	if !slices.IsSortedFunc(exceptions, bySpec) {
		return nil, fmt.Errorf("the exceptions are not sorted")
	}
	for i := 1; i < len(exceptions); i++ {
		if exceptions[i].spec == exceptions[i-1].spec {
			return nil, fmt.Errorf("%q is there twice", exceptions[i].spec)
		}
	}
	return exceptions, nil
}

// group is what the name of a spec begins with: the special interest group that owns it.
func group(spec string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(spec, "[sig-"), "]")
	return name
}
