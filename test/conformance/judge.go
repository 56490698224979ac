package conformance

import (
	"fmt"
	"slices"
	"strings"

	"atoll.dev/atoll/test/conformance/exceptions"
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

// split parts specs in those that workspaces are to pass, and the allowed exceptions.
func split(specs []string, allowed []exceptions.Exception) (wanted, excepted []string) {
	for _, spec := range specs {
		if slices.ContainsFunc(allowed, func(e exceptions.Exception) bool { return e.Spec == spec }) {
			excepted = append(excepted, spec)
		} else {
			wanted = append(wanted, spec)
		}
	}
	return wanted, excepted
}

// judge says what is wrong with a run of specs on a peer, of the wanted ones in workspaces, and of the allowed exceptions apart;
// nil: nothing. What the peer failed is not judged, since it can be the machine's fault.
func judge(specs []string, allowed []exceptions.Exception, peer side, workspaces []side, apart side) (problems []string) {
	if n := peer.passes(specs); n < minPeerPasses {
		problems = append(problems, fmt.Sprintf("%s passed %d specs of %d, and has to pass %d", peer.name, n, len(specs), minPeerPasses))
	}
	for _, e := range allowed {
		if !slices.Contains(specs, e.Spec) {
			problems = append(problems, fmt.Sprintf("the exception %q is not in the list of specs: remove it", e.Spec))
		}
	}
	wanted, excepted := split(specs, allowed)
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

// group is what the name of a spec begins with: the special interest group that owns it.
func group(spec string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(spec, "[sig-"), "]")
	return name
}
