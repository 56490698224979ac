package splitter

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
)

// TestTally: whatever comes and goes, the sums are those of the roots that there are, and a change is told exactly when there is one.
func TestTally(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	tally := newTally()
	var roots []key
	for i := range 8 {
		roots = append(roots, key{"Deployment", client.Key{Cluster: "shop", Namespace: fmt.Sprint(i % 2), Name: fmt.Sprint(i)}})
	}
	// known is what was told of each root: kept apart, and summed up by looking at all of them.
	known := map[key]*tallied{}
	for _, root := range roots {
		known[root] = &tallied{}
	}
	mirror := func() logicalcluster.Name { return logicalcluster.Name(fmt.Sprintf("m%d", rnd.IntN(3))) }
	by := func() decision { return decision{"p", rnd.Int64N(2)} }
	for step := range 5000 {
		root := roots[rnd.IntN(len(roots))]
		r := known[root]
		before, existed, was := r.all(), r.exists, r.by()
		switch rnd.IntN(5) {
		case 0:
			now := rendition{"r", rnd.Int64N(2)}
			told := tally.expect(root, now)
			r.exists, r.of = true, now
			if want := !existed || !maps.Equal(before, r.all()); told != want {
				t.Fatalf("step %d: expect(%v, %v) says %v", step, root, now, told)
			}
		case 1:
			p := goal{by: by(), of: rendition{"r", rnd.Int64N(2)}}
			for m := range 3 {
				if rnd.IntN(2) == 0 {
					p.shares = append(p.shares, share{logicalcluster.Name(fmt.Sprintf("m%d", m)), rnd.Int32N(3)})
				}
			}
			told := tally.plan(root, p)
			if r.exists, r.plan = true, &p; r.of == (rendition{}) {
				r.of = p.of
			}
			if want := !existed || was != p.by || !maps.Equal(before, r.all()); told != want {
				t.Fatalf("step %d: plan(%v, %+v) says %v", step, root, p, told)
			}
		case 2:
			told := tally.forget(root)
			r.exists, r.of, r.plan = false, rendition{}, nil
			if want := existed || !maps.Equal(before, r.all()); told != want {
				t.Fatalf("step %d: forget(%v) says %v", step, root, told)
			}
		default:
			at := client.Key{Cluster: mirror(), Namespace: "ns", Name: fmt.Sprint(rnd.IntN(2))} // also two in a mirror
			r.leaves = slices.DeleteFunc(r.leaves, func(l tallyLeaf) bool { return l.Key == at })
			var now *counted
			if rnd.IntN(3) > 0 {
				now = &counted{of: rendition{"r", rnd.Int64N(2)}, phase: phaseOrder[rnd.IntN(len(phaseOrder))], deleting: rnd.IntN(4) == 0, replicas: rnd.Int32N(3), ready: rnd.Int32N(3)}
				r.leaves = append(r.leaves, tallyLeaf{at, *now})
				slices.SortFunc(r.leaves, func(a, b tallyLeaf) int { return a.compare(b.Key) })
			}
			if told := tally.leaf(root, at, now); told != !maps.Equal(before, r.all()) {
				t.Fatalf("step %d: leaf(%v, %v, %+v) says %v", step, root, at, now, told)
			}
		}
		one := roots[rnd.IntN(len(roots))]
		d := by()
		for _, less := range [][]key{nil, {one}} {
			want, planned := map[logicalcluster.Name]sumOf{}, true
			for _, root := range roots {
				if root.Namespace != one.Namespace || slices.Contains(less, root) {
					continue
				}
				planned = planned && (!known[root].exists || known[root].by() == d)
				for m, sum := range known[root].all() {
					want[m] = want[m].plus(sum, 1)
				}
			}
			got, ok := tally.ofAll(namespaceValue(one.Cluster, one.Namespace), d, less)
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(sumOf{})); diff != "" || ok != planned {
				t.Fatalf("step %d: sums of namespace %s without %v (planned: %v, want %v; -want +got):\n%s", step, one.Namespace, less, ok, planned, diff)
			}
		}
		got, ok := tally.of(one, d)
		if diff := cmp.Diff(known[one].all(), got, cmp.AllowUnexported(sumOf{})); diff != "" || ok != (!known[one].exists || known[one].by() == d) {
			t.Fatalf("step %d: sums of %v (planned: %v; -want +got):\n%s", step, one, ok, diff)
		}
	}
	for _, root := range roots {
		for _, leaf := range known[root].leaves {
			tally.leaf(root, leaf.Key, nil)
		}
		tally.forget(root)
	}
	if len(tally.roots) > 0 || len(tally.spaces) > 0 {
		t.Errorf("without roots and leaves there are %v in %v", tally.roots, tally.spaces)
	}
}

// TestReadyIsTheEnd: a leaf that has all it was told is Ready only if that is what its root's plan wants there in the end.
func TestReadyIsTheEnd(t *testing.T) {
	const east, west = logicalcluster.Name("east"), logicalcluster.Name("west")
	now := rendition{"web", 2}
	plan := func(shares ...share) *goal { return &goal{of: now, shares: shares} }
	for name, tc := range map[string]struct {
		phase    placementv1alpha1.PlacedClusterPhase
		replicas int32
		of       rendition
		plan     *goal
		want     placementv1alpha1.PlacedClusterPhase
		reason   string
	}{
		"Share":       {"Ready", 5, now, plan(share{east, 5}, share{west, 4}), "Ready", "that is all"},
		"None":        {"Ready", 0, now, plan(share{east, 0}, share{west, 1}), "Ready", "fewer replicas than clusters"},
		"More":        {"Ready", 9, now, plan(share{east, 5}, share{west, 4}), "Synced", "4 are to go when they serve elsewhere"},
		"Fewer":       {"Ready", 2, now, plan(share{east, 5}, share{west, 4}), "Synced", "Recreate: the others wait until elsewhere all are gone"},
		"EarlierTurn": {"Ready", 5, rendition{"web", 1}, plan(share{east, 5}, share{west, 4}), "Synced", "an update, of which it is another cluster's turn"},
		"LaterRoot":   {"Ready", 5, rendition{"web", 1}, &goal{of: rendition{"web", 1}, shares: []share{{east, 5}}}, "Synced", "an update, which is not planned yet"},
		"EarlierRoot": {"Ready", 5, rendition{"old", 2}, plan(share{east, 5}), "Synced", "what runs is of another Deployment of that name"},
		"Left":        {"Ready", 9, now, plan(share{west, 9}), "Synced", "nothing is to stay"},
		"NoPlan":      {"Ready", 9, now, nil, "Synced", "nobody knows what it is to be"},
		"Applying":    {"Applying", 5, now, plan(share{east, 5}), "Applying", "worse is worse"},
		"Refused":     {"Refused", 9, now, plan(share{east, 5}), "Refused", "worse is worse"},
	} {
		t.Run(name, func(t *testing.T) {
			leaf := counted{of: tc.of, phase: tc.phase, replicas: tc.replicas, ready: tc.replicas}
			if got := leaf.under(&tallied{exists: true, of: now, plan: tc.plan}, east); got != tc.want {
				t.Errorf("a leaf of %d replicas is %s, want %s: %s", tc.replicas, got, tc.want, tc.reason)
			}
		})
	}
}

// TestPhases: what a Placement says of each cluster.
func TestPhases(t *testing.T) {
	now := metav1.Now()
	leaf := func(applied string, ready int32, deleted bool) *appsv1.Deployment {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			workloadv1alpha1.RenderedAnnotation: "h", workloadv1alpha1.AppliedAnnotation: applied}}, Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](2)}}
		d.Status = appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: ready, AvailableReplicas: ready}
		if deleted {
			d.DeletionTimestamp = &now
		}
		return d
	}
	applying, synced, ready, going := leaf("", 0, false), leaf("h", 1, false), leaf("h", 2, false), leaf("h", 2, true)
	for name, tc := range map[string]struct {
		east, gone []*appsv1.Deployment // in a cluster that the Placement names, and in one it does not
		lacks      bool                 // a root is to have a leaf in east, and has none
		want       []placementv1alpha1.PlacedClusterStatus
		reason     string
	}{
		"Nothing":     {nil, nil, false, []placementv1alpha1.PlacedClusterStatus{{Name: "east", Phase: "Pending"}}, "it is asked for"},
		"Applying":    {[]*appsv1.Deployment{ready, applying, synced}, nil, false, []placementv1alpha1.PlacedClusterStatus{{Name: "east", Phase: "Applying", Replicas: 6, ReadyReplicas: 3}}, "the one that has come least far"},
		"Synced":      {[]*appsv1.Deployment{ready, synced}, nil, false, []placementv1alpha1.PlacedClusterStatus{{Name: "east", Phase: "Synced", Replicas: 4, ReadyReplicas: 3}}, "a pod is not ready"},
		"Ready":       {[]*appsv1.Deployment{ready}, nil, false, []placementv1alpha1.PlacedClusterStatus{{Name: "east", Phase: "Ready", Replicas: 2, ReadyReplicas: 2}}, "all is"},
		"Lacking":     {[]*appsv1.Deployment{ready}, nil, true, []placementv1alpha1.PlacedClusterStatus{{Name: "east", Phase: "Pending", Replicas: 2, ReadyReplicas: 2}}, "another is not there yet"},
		"EarlierRoot": {[]*appsv1.Deployment{ready, going}, nil, false, []placementv1alpha1.PlacedClusterStatus{{Name: "east", Phase: "Pending", Replicas: 4, ReadyReplicas: 4}}, "it goes first"},
		"Draining": {[]*appsv1.Deployment{ready}, []*appsv1.Deployment{going, ready}, false, []placementv1alpha1.PlacedClusterStatus{
			{Name: "east", Phase: "Ready", Replicas: 2, ReadyReplicas: 2}, {Name: "mirror-gone", Phase: "Draining", Replicas: 4, ReadyReplicas: 4}}, "something stays until its replacement is there"},
		"Deleting": {nil, []*appsv1.Deployment{going}, false, []placementv1alpha1.PlacedClusterStatus{
			{Name: "east", Phase: "Pending"}, {Name: "mirror-gone", Phase: "Deleting", Replicas: 2, ReadyReplicas: 2}}, "all is a tombstone"},
	} {
		t.Run(name, func(t *testing.T) {
			sums := map[logicalcluster.Name]sumOf{}
			for mirror, leaves := range map[logicalcluster.Name][]*appsv1.Deployment{"mirror-east": tc.east, "mirror-gone": tc.gone} {
				for _, d := range leaves {
					sums[mirror] = sums[mirror].plus(count(d).sum(&tallied{plan: &goal{shares: []share{{"mirror-east", 2}}}}, mirror), 1)
				}
			}
			if tc.lacks {
				sums["mirror-east"] = sums["mirror-east"].plus(share{}.without(), 1)
			}
			p := &placementv1alpha1.Placement{Spec: placementv1alpha1.PlacementSpec{Clusters: []placementv1alpha1.PlacedCluster{{Name: "east", Mirror: "mirror-east"}}}}
			got := phases(p, sums, func(m logicalcluster.Name) string { return string(m) })
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}
