package kinds

import (
	"slices"
	"testing"
)

// TestKindsThatGoDownAreSupported: a kind cannot go down and be said to have no effect, or to have it here alone.
func TestKindsThatGoDownAreSupported(t *testing.T) {
	for _, k := range All {
		resource := k.GVR.GroupResource()
		if _, here := CarriedOutHere[resource]; here || slices.Contains(Kept, resource) {
			t.Errorf("%s go down and are in the list of kinds without effect below", resource)
		}
	}
}

// TestKindsAreExplained: what is not said of a kind, nobody finds in docs/kinds.md.
func TestKindsAreExplained(t *testing.T) {
	for _, k := range All {
		if k.Doc.Down == "" || k.HasStatus != (k.Doc.Up != "") {
			t.Errorf("%s: %+v, want what goes down, and what comes up of a kind with status alone", k.GVK.Kind, k.Doc)
		}
	}
}
