package splitter

import "testing"

// TestMoveTurnedBackWhileAnUpdateIsStuck: a cluster whose update never gets through, with its surge on top, still serves all
// that is asked for. What came up elsewhere and does not serve goes at once when the move is turned back.
func TestMoveTurnedBackWhileAnUpdateIsStuck(t *testing.T) {
	steps := Plan([]Cluster{
		{Name: "east", Assigned: true, Target: 6, Leaf: &LeafState{Replicas: 6, Pods: 8, Available: 6, Settled: true, Rolling: true, Surge: 2}},
		{Name: "west", Leaf: &LeafState{Replicas: 6, Pods: 6, Available: 0, Settled: true, Rolling: true, Surge: 2}},
	}, false)
	if !steps["west"].Delete {
		t.Errorf("west: %+v, want it deleted", steps["west"])
	}
	if got := steps["east"]; !got.Write || got.Replicas != 6 {
		t.Errorf("east: %+v, want 6 replicas", got)
	}
}
