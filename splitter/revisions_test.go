package splitter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"

	"atoll.dev/atoll/internal/kinds"
)

func TestPlanRevisions(t *testing.T) {
	kept := func(templates ...string) (all []Revision) { // numbered from 1
		for i, template := range templates {
			all = append(all, Revision{Name: "r" + template, Template: template, Number: int64(i + 1)})
		}
		return all
	}
	for reason, test := range map[string]struct {
		kept        []Revision
		template    string
		limit       int32
		runs        string
		runsEarlier bool
		want        RevisionPlan
	}{
		"the first":                                   {nil, "a", 10, "", false, RevisionPlan{Number: 1}},
		"the first, and none else shall be kept":      {nil, "a", 0, "", false, RevisionPlan{Number: 1}},
		"nothing new":                                 {kept("a", "b"), "b", 10, "", false, RevisionPlan{Current: "rb", Number: 2, Earlier: []string{"ra"}}},
		"a new template":                              {kept("a", "b"), "c", 10, "", true, RevisionPlan{Number: 3, Earlier: []string{"ra", "rb"}}},
		"one comes back":                              {kept("a", "b", "c"), "a", 10, "", true, RevisionPlan{Current: "ra", Number: 4, Earlier: []string{"rb", "rc"}}},
		"the one before it was deleted":               {[]Revision{{"ra", "a", 7}}, "a", 10, "", false, RevisionPlan{Current: "ra", Number: 7}},
		"two of one number: made before one was seen": {[]Revision{{"ra", "a", 2}, {"rb", "b", 2}}, "b", 10, "", true, RevisionPlan{Current: "rb", Number: 3, Earlier: []string{"ra"}}},
		"one says no number":                          {[]Revision{{"ra", "a", 0}}, "a", 10, "", false, RevisionPlan{Current: "ra", Number: 1}},
		"more than are kept":                          {kept("a", "b", "c"), "c", 1, "", false, RevisionPlan{Current: "rc", Number: 3, Earlier: []string{"rb"}, Delete: []string{"ra"}}},
		"none are kept, and none runs":                {kept("a", "b"), "b", 0, "", false, RevisionPlan{Current: "rb", Number: 2, Delete: []string{"ra"}}},
		"none are kept, and one runs":                 {kept("a", "b", "c"), "c", 0, "", true, RevisionPlan{Current: "rc", Number: 3, Earlier: []string{"rb"}, Delete: []string{"ra"}}},
		"none are kept, and the new one is not made":  {kept("a", "b"), "c", 0, "", false, RevisionPlan{Number: 3, Earlier: []string{"rb"}, Delete: []string{"ra"}}},
		"a partition holds one back":                  {kept("a", "b", "c"), "c", 1, "ra", true, RevisionPlan{Current: "rc", Number: 3, Earlier: []string{"ra", "rb"}}},
		"the one that runs is the present one":        {kept("a", "b", "c"), "c", 1, "rc", false, RevisionPlan{Current: "rc", Number: 3, Earlier: []string{"rb"}, Delete: []string{"ra"}}},
		"the one that runs is none of them":           {kept("a", "b", "c"), "c", 1, "rx", false, RevisionPlan{Current: "rc", Number: 3, Earlier: []string{"rb"}, Delete: []string{"ra"}}},
		"two of one template: the later one counts":   {[]Revision{{"r1", "a", 3}, {"r2", "a", 1}}, "a", 10, "", false, RevisionPlan{Current: "r1", Number: 3, Earlier: []string{"r2"}}},
	} {
		if diff := cmp.Diff(test.want, PlanRevisions(test.kept, test.template, test.limit, test.runs, test.runsEarlier)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", reason, diff)
		}
	}
}

// TestRevisionsSettle: whatever a user changes in whatever order, what is carried out leaves nothing to do, numbers that differ, the present
// template the highest of them, and as many as are to be kept.
func TestRevisionsSettle(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 7))
		var kept []Revision
		for range 30 {
			template, limit, named, runs := fmt.Sprint(r.IntN(6)), int32(r.IntN(4)), fmt.Sprint("r", r.IntN(6)), r.IntN(2) == 0
			if len(kept) > 0 && r.IntN(4) == 0 { // somebody deletes one
				at := r.IntN(len(kept))
				kept = slices.Delete(kept, at, at+1)
			}
			highest := int64(0)
			for _, k := range kept {
				highest = max(highest, k.Number)
			}
			p := PlanRevisions(kept, template, limit, named, runs)
			if slices.Contains(p.Delete, named) {
				t.Fatalf("seed %d: %s runs, and is deleted", seed, named)
			}
			kept = slices.DeleteFunc(kept, func(k Revision) bool { return slices.Contains(p.Delete, k.Name) })
			if p.Current == "" {
				p.Current = "r" + template
				kept = append(kept, Revision{Name: p.Current, Template: template})
			}
			kept[slices.IndexFunc(kept, func(k Revision) bool { return k.Name == p.Current })].Number = p.Number
			numbers := map[int64]bool{}
			for _, k := range kept {
				if numbers[k.Number] || k.Number > p.Number {
					t.Fatalf("seed %d: %s is to be the latest of %+v", seed, p.Current, kept)
				}
				numbers[k.Number] = true
			}
			if p.Number < highest || len(kept) > int(limit)+3 || !runs && len(kept) > max(int(limit), 1)+2 {
				t.Fatalf("seed %d: with a limit of %d, after number %d: %+v", seed, limit, highest, kept)
			}
			again := PlanRevisions(kept, template, limit, named, runs)
			if again.Current != p.Current || again.Number != p.Number || runs && len(again.Delete) > 0 {
				t.Fatalf("seed %d: then %+v, after %+v", seed, again, p)
			}
		}
	}
}

func TestCountRevisions(t *testing.T) {
	leaf := func(same, settled, lost bool, pods, updated, ready, available int32) kinds.Leaf {
		return kinds.Leaf{SameTemplate: same, Settled: settled, Lost: lost, Object: &appsv1.Deployment{Status: appsv1.DeploymentStatus{
			Replicas: pods, UpdatedReplicas: updated, ReadyReplicas: ready, AvailableReplicas: available,
		}}}
	}
	for reason, test := range map[string]struct {
		leaves           []kinds.Leaf
		recorded         int32
		current, earlier podCount
	}{
		"nothing there yet":                       {[]kinds.Leaf{{}}, 0, podCount{}, podCount{}},
		"all of the present template":             {[]kinds.Leaf{leaf(true, true, false, 3, 3, 3, 2)}, 0, podCount{3, 3, 2}, podCount{}},
		"two clusters, one waits for its turn":    {[]kinds.Leaf{leaf(true, true, false, 3, 3, 3, 3), leaf(false, true, false, 2, 2, 2, 2)}, 0, podCount{3, 3, 3}, podCount{2, 2, 2}},
		"half way: the earlier ones serve":        {[]kinds.Leaf{leaf(true, true, false, 5, 2, 3, 3)}, 0, podCount{2, 0, 0}, podCount{3, 3, 3}},
		"half way: no more than are left of them": {[]kinds.Leaf{leaf(true, true, false, 5, 3, 4, 3)}, 0, podCount{3, 2, 1}, podCount{2, 2, 2}},
		"not heard of: there, and not ready":      {[]kinds.Leaf{leaf(true, true, true, 3, 3, 3, 3)}, 0, podCount{pods: 3}, podCount{}},
		"of an earlier rendering: as it was":      {[]kinds.Leaf{leaf(true, false, false, 3, 3, 3, 3)}, 3, podCount{3, 3, 3}, podCount{}},
		"of an earlier rendering: not yet":        {[]kinds.Leaf{leaf(true, false, false, 3, 3, 3, 3)}, 0, podCount{}, podCount{3, 3, 3}},
		"of an earlier rendering: what is known counts first": {
			[]kinds.Leaf{leaf(true, false, false, 2, 2, 2, 2), leaf(true, true, false, 3, 3, 3, 3)}, 4, podCount{4, 3, 3}, podCount{1, 1, 1}},
	} {
		current, earlier := countRevisions(test.leaves, test.recorded)
		if current.pods != test.current.pods || earlier != test.earlier || current != test.current && reason != "of an earlier rendering: what is known counts first" {
			t.Errorf("%s: %+v of the present template and %+v of earlier ones, want %+v and %+v", reason, current, earlier, test.current, test.earlier)
		}
	}
}
