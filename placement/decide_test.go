package placement

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// fleet returns n Ready clusters c-000..., used equally.
func ready(n int) []Candidate {
	candidates := make([]Candidate, n)
	for i := range candidates {
		name := fmt.Sprintf("c-%03d", i)
		candidates[i] = Candidate{
			Name: name, UID: types.UID("uid-" + name), Workspace: "root", Mirror: "mirror-" + name, Ready: true,
			Labels: map[string]string{"parity": []string{"even", "odd"}[i%2]},
		}
	}
	return candidates
}

func on(candidates []Candidate, indexes ...int) []placementv1alpha1.PlacedCluster {
	var placed []placementv1alpha1.PlacedCluster
	for _, i := range indexes {
		placed = append(placed, seat{Candidate: &candidates[i]}.placed(1))
	}
	return placed
}

func wishing(pairs ...string) []Level {
	l := Level{Source: "test", Annotations: map[string]string{}}
	for i := 0; i < len(pairs); i += 2 {
		l.Annotations["placement.atoll.dev/"+pairs[i]] = pairs[i+1]
	}
	return []Level{l}
}

// TestDecide has what testdata does not tell.
func TestDecide(t *testing.T) {
	tests := map[string]struct {
		levels  []Level
		allow   []placementv1alpha1.ClusterSelection
		change  func(c []Candidate)
		current []int
		running []string
		want    []string // name*weight
		reason  string   // of the condition
		why     string
	}{
		"least used": {
			change: func(c []Candidate) { c[0].Placements, c[1].Placements, c[2].Placements = 2, 1, 1 },
			want:   []string{"c-001*1"}, reason: "Placed", why: "ties go by name",
		},
		"level counts as a whole": {
			levels: append(wishing("split", "Duplicate"), wishing("clusters", "c-001,c-002")...),
			want:   []string{"c-000*1"}, reason: "Placed", why: "the object wishes a split only, and takes no clusters from its namespace",
		},
		"unlisted weighs 1": {
			levels: wishing("clusters", "*", "split", "Weighted:c-000=5"),
			want:   []string{"c-000*5", "c-001*1", "c-002*1"}, reason: "Placed", why: "a cluster without a weight weighs 1",
		},
		"weight of absent cluster": {
			levels: wishing("clusters", "*", "split", "Weighted:c-000=5,later=2"),
			want:   []string{"c-000*5", "c-001*1", "c-002*1"}, reason: "Placed", why: "it may come later",
		},
		"only zero weights left": {
			levels: wishing("clusters", "*", "split", "Weighted:c-000=0,c-001=1"),
			change: func(c []Candidate) { c[1].Ready, c[2].Ready = false, false },
			want:   []string{"c-000*1"}, reason: "Placed", why: "a sum of 0 would run nothing",
		},
		"max prefers ready": {
			levels: wishing("clusters", "c-000,c-001", "max-clusters", "1"),
			change: func(c []Candidate) { c[0].Ready = false },
			want:   []string{"c-001*1"}, reason: "Placed", why: "one that can run it now",
		},
		"max keeps current": {
			levels:  wishing("clusters", "*", "max-clusters", "1"),
			change:  func(c []Candidate) { c[2].Placements, c[2].Ready = 9, false },
			current: []int{2}, want: []string{"c-002*1"}, reason: "Placed", why: "used more and away, but it has it",
		},
		"max takes what it is leaving": {
			change:  func(c []Candidate) { c[1].Ready, c[2].Placements = false, 9 },
			running: []string{"c-001", "c-002"}, want: []string{"c-002*1"}, reason: "Placed", why: "its pods are there, and need not move; c-001 cannot run it now",
		},
		"max less than current": {
			levels:  wishing("clusters", "*", "max-clusters", "1"),
			change:  func(c []Candidate) { c[0].Ready = false },
			current: []int{0, 1}, want: []string{"c-001*1"}, reason: "Placed", why: "of two current ones the Ready one stays",
		},
		"names within selector": {
			levels: wishing("clusters", "c-000,c-001", "selector", "parity=odd"),
			want:   []string{"c-001*1"}, reason: "Placed", why: "both have to hold",
		},
		"names outside selector": {
			levels:  wishing("clusters", "c-000", "selector", "parity=odd"),
			current: []int{2}, want: []string{"c-002*1"}, reason: "NotPlaced", why: "a wish that contradicts itself moves nothing",
		},
		"selector drops a current one, another name unknown": {
			levels:  wishing("clusters", "c-000,c-001,x", "selector", "parity=odd"),
			current: []int{0}, want: []string{"c-000*1"}, reason: "UnknownCluster", why: "c-000 would be removed by a wish with a mistake",
		},
		"removed and nothing else": {
			change:  func(c []Candidate) { c[0].Deleting, c[1].Cordoned, c[2].Ready = true, true, false },
			current: []int{0}, want: []string{"c-000*1"}, reason: "Placed", why: "nothing can take it over",
		},
		"mistake and forbidden": {
			levels: wishing("clusters", "x y"), allow: []placementv1alpha1.ClusterSelection{{Names: []string{"c-001"}}},
			current: []int{0, 1}, want: []string{"c-001*1"}, reason: "InvalidPlacement", why: "a mistake does not keep what a policy forbids",
		},
		"allow nothing": {
			allow: []placementv1alpha1.ClusterSelection{{}}, current: []int{0}, reason: "NotAllowed", why: "an empty allow allows nothing",
		},
		"allow all labels": {
			allow: []placementv1alpha1.ClusterSelection{{Selector: &metav1.LabelSelector{}}}, want: []string{"c-000*1"}, reason: "Placed", why: "an empty selector matches everything, as everywhere",
		},
		"unreadable policy": {
			allow:   []placementv1alpha1.ClusterSelection{{Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}}},
			current: []int{1}, want: []string{"c-001*1"}, reason: "InvalidPlacement", why: "nothing new, nothing taken",
		},
		"no candidate ready": {
			change: func(c []Candidate) { c[0].Cordoned, c[1].Ready, c[2].Mirror = true, false, "" },
			reason: "NotPlaced", why: "waits",
		},
		"nowhere": {levels: wishing("clusters", "", "max-clusters", "2"), current: []int{0}, reason: "Nowhere", why: "on purpose, so the splitter's brake has no part in it"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			candidates := ready(3)
			current := on(candidates, tc.current...)
			if tc.change != nil {
				tc.change(candidates)
			}
			d := Decide(Request{Levels: tc.levels, Allow: tc.allow, Running: tc.running}, candidates, current)
			var got []string
			for _, c := range d.Clusters {
				got = append(got, fmt.Sprintf("%s*%d", c.Name, c.Weight))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || d.Reason != tc.reason {
				t.Errorf("%s: got reason %s (%s), want %s; clusters (-want +got):\n%s", tc.why, d.Reason, d.Message, tc.reason, diff)
			}
			if (d.Status == metav1.ConditionTrue) != (d.Reason == placementv1alpha1.ReasonPlaced) {
				t.Errorf("condition is %s with reason %s", d.Status, d.Reason)
			}
		})
	}
}

// TestDecideHolds draws requests and checks what always holds: the order of candidates does not matter, a second
// decision on the first one's result is the same, and nothing forbidden is assigned.
func TestDecideHolds(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	pick := func(of ...string) string { return of[rnd.IntN(len(of))] }
	for i := range 5000 {
		candidates := ready(6)
		for j := range candidates {
			c := &candidates[j]
			c.Ready, c.Cordoned, c.Deleting = rnd.IntN(3) > 0, rnd.IntN(4) == 0, rnd.IntN(5) == 0
			c.Placements = rnd.IntN(3)
			if rnd.IntN(5) == 0 {
				// Not being removed as well: then the nearer one follows with the next decision.
				c.Name, c.Shadowed, c.Deleting = candidates[0].Name, j > 0, c.Deleting && j == 0
			} else if c.Duplicate = rnd.IntN(5) == 0; c.Duplicate {
				c.Ready, c.RunsNothing = false, rnd.IntN(2) == 0
			}
		}
		var current []placementv1alpha1.PlacedCluster
		taken := map[string]bool{}
		for j := range candidates {
			if rnd.IntN(3) == 0 && !taken[candidates[j].Name] {
				taken[candidates[j].Name] = true
				current = append(current, on(candidates, j)...)
			}
		}
		pairs := []string{}
		if rnd.IntN(3) > 0 {
			pairs = append(pairs, "clusters", pick("*", "c-000", "c-001,c-002", "c-002,zz", "", "!"))
		}
		if rnd.IntN(3) == 0 {
			pairs = append(pairs, "selector", pick("parity=odd", "parity", "none"))
		}
		if rnd.IntN(3) == 0 {
			pairs = append(pairs, "max-clusters", pick("1", "2"))
		}
		req := Request{Levels: wishing(pairs...), Split: "Even"}
		if rnd.IntN(3) == 0 {
			req.Allow = []placementv1alpha1.ClusterSelection{{Names: []string{"c-000", "c-002", "c-003"}}}
		}
		first := Decide(req, candidates, current)

		shuffled := append([]Candidate(nil), candidates...)
		rnd.Shuffle(len(shuffled), func(a, b int) { shuffled[a], shuffled[b] = shuffled[b], shuffled[a] })
		if diff := cmp.Diff(first, Decide(req, shuffled, current)); diff != "" {
			t.Fatalf("round %d, %v: the order of candidates matters:\n%s", i, pairs, diff)
		}
		// Usage changes under a stable decision.
		for j := range candidates {
			candidates[j].Placements = rnd.IntN(3)
		}
		req.Split = first.Split
		if diff := cmp.Diff(first.Clusters, Decide(req, candidates, first.Clusters).Clusters); diff != "" {
			t.Fatalf("round %d, %v: the second decision differs from the first:\n%s", i, pairs, diff)
		}
		seen := map[string]bool{}
		for _, c := range first.Clusters {
			if req.Allow != nil && c.Name != "c-000" && c.Name != "c-002" && c.Name != "c-003" {
				t.Fatalf("round %d, %v: %q is not allowed", i, pairs, c.Name)
			}
			if seen[c.Name] {
				t.Fatalf("round %d, %v: %q twice", i, pairs, c.Name)
			}
			seen[c.Name] = true
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	candidates := ready(1000)
	for name, tc := range map[string]struct {
		levels  []Level
		current []placementv1alpha1.PlacedCluster
	}{
		"first":  {},
		"sticky": {current: on(candidates, 500)},
		"all":    {levels: wishing("clusters", "*"), current: on(candidates, 500)},
		"most":   {levels: wishing("selector", "parity=odd", "max-clusters", "10")},
	} {
		b.Run(name, func(b *testing.B) {
			req := Request{Levels: tc.levels, Allow: []placementv1alpha1.ClusterSelection{{Selector: &metav1.LabelSelector{}}}}
			for b.Loop() {
				Decide(req, candidates, tc.current)
			}
		})
	}
}

// TestSyncerThatDoesNotCarry: a cluster whose syncer would ignore a kind gets nothing of it, and what it runs of others stays.
func TestSyncerThatDoesNotCarry(t *testing.T) {
	const (
		waits = `Wait, or change placement.atoll.dev/clusters of test: "c-000" has a syncer that does not carry daemonsets.apps`
		note  = ` The syncer of "c-000" does not carry daemonsets.apps, which are not placed there: ` + upgrade + `.`
	)
	for reason, tc := range map[string]struct {
		levels  []Level
		needs   []string
		change  func(c []Candidate)
		current []int
		want    []string
		message string
	}{
		"another is chosen, although it is used more": {
			change: func(c []Candidate) { c[1].Placements = 7 }, needs: []string{"daemonsets.apps"},
			want: []string{`"c-001"`}, message: `Placed on "c-001".`},
		"what it carries it gets": {
			needs: []string{"deployments.apps", "services"}, want: []string{`"c-000"`}, message: `Placed on "c-000".`},
		"what it has stays, and what is missing is said": {
			current: []int{0}, needs: []string{"deployments.apps", "daemonsets.apps"}, want: []string{`"c-000"`}, message: `Placed on "c-000".` + note},
		"by its name it is waited for": {
			levels: wishing("clusters", "c-000"), needs: []string{"daemonsets.apps"}, message: waits + "; until then it is placed nowhere."},
		"of those named, the other gets it": {
			levels: wishing("clusters", "c-000,c-001"), needs: []string{"daemonsets.apps"}, want: []string{`"c-001"`},
			message: waits + `; until then it is on "c-001".`},
		"of all, only those that carry it": {
			levels: wishing("clusters", "*"), needs: []string{"daemonsets.apps"}, want: []string{`"c-001"`}, message: `Placed on "c-001".`},
		"nobody knows of one that was never heard of, and a name is honoured": {
			levels: wishing("clusters", "c-000"), needs: []string{"daemonsets.apps"},
			change: func(c []Candidate) { c[0].Ready, c[0].Carries = false, nil },
			want:   []string{`"c-000"`}, message: `Placed on "c-000".`},
	} {
		candidates := ready(2)
		candidates[0].Carries = workloadv1alpha1.CarriedByAll
		candidates[1].Carries = append([]string{"daemonsets.apps"}, workloadv1alpha1.CarriedByAll...)
		if tc.change != nil {
			tc.change(candidates)
		}
		d := Decide(Request{Levels: tc.levels, Needs: tc.needs}, candidates, on(candidates, tc.current...))
		if got := names(d.Clusters); !slices.Equal(got, tc.want) || d.Message != tc.message {
			t.Errorf("%s: %v, %q; want %v, %q", reason, got, d.Message, tc.want, tc.message)
		}
	}
}
