package placement

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	"atoll.dev/atoll/client"
)

var front = client.Key{Cluster: "shop", Name: "front"}

// newShop is a world with workspace shop below root, a cluster in root, and a Deployment in namespace front.
func newShop() (*fakeWorld, *reconciler) {
	w, r := newWorld()
	w.addWorkspace("root", "")
	w.addWorkspace("shop", "root")
	w.addTarget("root", "east")
	w.addNamespace("shop", "front")
	w.addDeployment("shop", "front", "web")
	return w, r
}

func reconcileOnce(t *testing.T, r *reconciler, wantAgain bool) {
	t.Helper()
	again, err := r.reconcile(t.Context(), front)
	if err != nil || (again > 0) != wantAgain {
		t.Fatalf("reconcile = %v, %v; want again: %v, no error", again, err, wantAgain)
	}
}

func clustersOf(w *fakeWorld, key client.Key) (names []string) {
	if p := w.placements[key]; p != nil {
		for _, c := range p.Spec.Clusters {
			names = append(names, c.Name)
		}
	}
	return names
}

func TestReconcileIdle(t *testing.T) {
	w, r := newShop()
	reconcileOnce(t, r, false)
	writes := w.writes
	reconcileOnce(t, r, false)
	if w.writes != writes {
		t.Errorf("a second look wrote %d times, want never", w.writes-writes)
	}
	placed := meta.FindStatusCondition(w.placements[front].Status.Conditions, placementv1alpha1.PlacementPlaced)
	if placed == nil || placed.ObservedGeneration != w.placements[front].Generation {
		t.Errorf("condition Placed is %+v, want it of generation %d", placed, w.placements[front].Generation)
	}
}

// A decision is one write, whatever it changes, and its condition is of the generation that the write makes.
func TestReconcileWritesOnce(t *testing.T) {
	w, r := newShop()
	w.addTarget("root", "west")
	for _, tc := range []struct {
		reason, wish string
		generation   int64
	}{
		{"the first placement", "east", 1},
		{"a move", "west", 2},
		{"a wish that changes nothing but what is said", "west,nort", 2},
		{"a split", "*", 3},
	} {
		w.namespaces[front].Annotations[placementv1alpha1.ClustersAnnotation] = tc.wish
		before := w.writes
		reconcileOnce(t, r, false)
		if w.writes != before+1 {
			t.Errorf("%s took %d writes, want 1", tc.reason, w.writes-before)
		}
		p := w.placements[front]
		placed := meta.FindStatusCondition(p.Status.Conditions, placementv1alpha1.PlacementPlaced)
		if p.Generation != tc.generation || placed == nil || placed.ObservedGeneration != p.Generation {
			t.Errorf("%s: generation %d, want %d; the condition is %+v", tc.reason, p.Generation, tc.generation, placed)
		}
	}
}

func TestReconcileKeepsTheSplittersStatus(t *testing.T) {
	w, r := newShop()
	reconcileOnce(t, r, false)
	stored := w.placements[front]
	stored.Status.ObservedGeneration = 1
	stored.Status.Clusters = []placementv1alpha1.PlacedClusterStatus{{Name: "east", Phase: placementv1alpha1.PhaseReady}}
	stored.Status.Conditions = append(stored.Status.Conditions, stored.Status.Conditions[0])
	stored.Status.Conditions[1].Type = "Ready"
	want := stored.Status.DeepCopy()
	w.namespaces[front].Annotations[placementv1alpha1.ClustersAnnotation] = "nort"
	reconcileOnce(t, r, false)
	got := w.placements[front].Status.DeepCopy()
	if got.Conditions[0].Reason != placementv1alpha1.ReasonUnknownCluster {
		t.Errorf("reason is %q", got.Conditions[0].Reason)
	}
	got.Conditions[0] = want.Conditions[0]
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("more than condition Placed changed (-want +got):\n%s", diff)
	}
}

// What a policy forbids for a moment goes back to where its pods still are, also if another cluster is used less.
func TestReconcileReturnsToWhatItIsLeaving(t *testing.T) {
	w, r := newWorld()
	w.addWorkspace("root", "")
	w.addWorkspace("shop", "root")
	w.addTarget("root", "east")
	w.addTarget("root", "west")
	w.addNamespace("shop", "front")
	w.addDeployment("shop", "front", "web")
	reconcileOnce(t, r, false)
	w.addNamespace("shop", "other").Annotations[placementv1alpha1.ClustersAnnotation] = "east"
	w.addDeployment("shop", "other", "web")
	if _, err := r.reconcile(t.Context(), client.Key{Cluster: "shop", Name: "other"}); err != nil {
		t.Fatal(err)
	}
	w.placements[front].Status.Clusters = []placementv1alpha1.PlacedClusterStatus{{Name: "east", Phase: placementv1alpha1.PhaseReady}}
	none := client.Key{Cluster: "root", Name: "none"}
	for _, tc := range []struct {
		allow *placementv1alpha1.ClusterSelection
		want  []string
	}{{nil, []string{"east"}}, {&placementv1alpha1.ClusterSelection{}, nil}, {nil, []string{"east"}}} {
		w.policies[none] = &placementv1alpha1.PlacementPolicy{Spec: placementv1alpha1.PlacementPolicySpec{Allow: tc.allow}}
		reconcileOnce(t, r, false)
		if diff := cmp.Diff(tc.want, clustersOf(w, front)); diff != "" {
			t.Errorf("allowed %v (-want +got):\n%s", tc.allow, diff)
		}
	}
}

// A namespace that was annotated just before its first object came must not be placed elsewhere first.
func TestReconcileFirstPlacementReadsWishes(t *testing.T) {
	w, r := newWorld()
	w.addWorkspace("root", "")
	w.addWorkspace("shop", "root")
	w.addTarget("root", "east")
	w.addTarget("root", "west")
	w.lagging = true
	w.addNamespace("shop", "front").Annotations[placementv1alpha1.ClustersAnnotation] = "west"
	w.addDeployment("shop", "front", "web")
	reconcileOnce(t, r, false)
	if diff := cmp.Diff([]string{"west"}, clustersOf(w, front)); diff != "" {
		t.Errorf("first placement (-want +got):\n%s", diff)
	}
}

func TestReconcileBehindItsOwnWrites(t *testing.T) {
	w, r := newShop()
	w.addTarget("root", "west")
	w.lagging = true
	reconcileOnce(t, r, false)
	want := clustersOf(w, front)
	reconcileOnce(t, r, true) // its Placement is there and not shown
	if diff := cmp.Diff(want, clustersOf(w, front)); diff != "" {
		t.Errorf("placed again (-want +got):\n%s", diff)
	}
	w.catchUp()
	reconcileOnce(t, r, false)
	if diff := cmp.Diff(map[types.UID]int{w.targets[client.Key{Cluster: "root", Name: want[0]}].UID: 1}, w.usage.count); diff != "" {
		t.Errorf("usage (-want +got):\n%s", diff)
	}
}

func TestReconcileConflict(t *testing.T) {
	w, r := newShop()
	w.failWrites = 1
	reconcileOnce(t, r, true)
	if len(w.usage.count) != 0 {
		t.Errorf("usage is %v after a write that failed, want none", w.usage.count)
	}
	w.failWrites = 0
	reconcileOnce(t, r, false)
	if got := clustersOf(w, front); len(got) != 1 {
		t.Errorf("placed on %v, want one cluster", got)
	}
}

// Every decision survives a crash between any two of its writes.
func TestReconcileResumes(t *testing.T) {
	w, r := newShop()
	w.addTarget("root", "west")
	own := w.addDeployment("shop", "front", "cache")
	own[placementv1alpha1.ClustersAnnotation] = "*"
	for failing := range 5 {
		w.placements = map[client.Key]*placementv1alpha1.Placement{}
		w.catchUp()
		for n := 0; ; n++ {
			if n > 20 {
				t.Fatalf("failing %d: not placed after 20 tries: %v", failing, describe(w))
			}
			w.failWrites = failing - n
			again, err := r.reconcile(t.Context(), front)
			if err != nil {
				t.Fatal(err)
			}
			if again == 0 {
				break
			}
			r.usage = newUsage() // a new process
			w.usage = r.usage
			w.catchUp()
		}
		cache := client.Key{Cluster: "shop", Name: "front.deployments.cache"}
		if got := clustersOf(w, cache); len(got) != 2 || len(clustersOf(w, front)) != 1 {
			t.Errorf("failing %d: placed %v", failing, describe(w))
		}
		for key, p := range w.placements {
			if len(p.Status.Conditions) != 1 {
				t.Errorf("failing %d: %s has conditions %v", failing, key, p.Status.Conditions)
			}
		}
	}
}

func TestReconcileLeavesAlone(t *testing.T) {
	tests := map[string]struct {
		change func(w *fakeWorld)
		reason string
	}{
		"mirror":           {change: func(w *fakeWorld) { w.clusters["shop"].Spec.Use = corev1alpha1.LogicalClusterUseMirror }, reason: "its Deployments are leaves"},
		"unseen workspace": {change: func(w *fakeWorld) { delete(w.clusters, "shop") }, reason: "it may have wishes"},
		"initializing":     {change: func(w *fakeWorld) { w.clusters["shop"].Status = attended(corev1alpha1.LogicalClusterPhaseInitializing) }, reason: "nobody may use it yet"},
		"unseen ancestor":  {change: func(w *fakeWorld) { delete(w.clusters, "root") }, reason: "it may have policies"},
		"cycle":            {change: func(w *fakeWorld) { w.addWorkspace("root", "shop") }, reason: "no top, no policies from the top"},
		"namespace gone":   {change: func(w *fakeWorld) { delete(w.namespaces, front) }, reason: "its objects go as well"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w, r := newShop()
			tc.change(w)
			reconcileOnce(t, r, false)
			if w.writes != 0 {
				t.Errorf("%s: wrote %v", tc.reason, describe(w))
			}
		})
	}
}

// attended is the status of a workspace that waits for an initializer or terminator in that phase.
func attended(phase corev1alpha1.LogicalClusterPhase) corev1alpha1.LogicalClusterStatus {
	by := []corev1alpha1.LogicalClusterAttendant{"root:team"}
	return corev1alpha1.LogicalClusterStatus{Phase: phase, Initializers: by, Terminators: by}
}

// What runs of a workspace that is deleted stays where it is until its terminators are done.
func TestReconcileWaitsForTerminators(t *testing.T) {
	w, r := newShop()
	reconcileOnce(t, r, false)
	before, writes := describe(w), w.writes
	w.clusters["shop"].DeletionTimestamp = &metav1.Time{}
	w.clusters["shop"].Status = attended(corev1alpha1.LogicalClusterPhaseTerminating)
	w.addTarget("root", "west")
	w.namespaces[front].Annotations[placementv1alpha1.ClustersAnnotation] = "west"
	reconcileOnce(t, r, false)
	if diff := cmp.Diff(before, describe(w)); diff != "" || w.writes != writes {
		t.Errorf("while it waits (-want +got):\n%s", diff)
	}
	w.clusters["shop"].Status.Terminators = nil
	reconcileOnce(t, r, false)
	if len(w.placements) > 0 {
		t.Errorf("afterwards there is %v", describe(w))
	}
}

// What informers do not show is not gone: the store is asked first.
func TestReconcileAsksBeforeRemoving(t *testing.T) {
	w, r := newShop()
	own := w.addDeployment("shop", "front", "cache")
	own[placementv1alpha1.ClustersAnnotation] = "*"
	reconcileOnce(t, r, false)
	before := describe(w)

	r.world = hidden{w}
	reconcileOnce(t, r, true)
	w.blind = true
	r.world = w
	reconcileOnce(t, r, true)
	if diff := cmp.Diff(before, describe(w)); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
}

// hidden is a world whose informers show no roots.
type hidden struct{ *fakeWorld }

func (hidden) Roots(client.Key) ([]string, []root) { return nil, nil }

// An informer that begins with an older view, as after a restart, moves nothing back to where it was.
func TestReconcileLeavesNothingByAnEarlierWish(t *testing.T) {
	w, r := newShop()
	w.addTarget("root", "west")
	w.namespaces[front].Annotations[placementv1alpha1.ClustersAnnotation] = "east"
	reconcileOnce(t, r, false)
	w.lagging = true
	now := w.namespaces[front].DeepCopy()
	now.Annotations[placementv1alpha1.ClustersAnnotation] = "west"
	w.namespaces[front] = now
	moved := w.placements[front].DeepCopy()
	moved.Spec.Clusters[0].Name, moved.Spec.Clusters[0].UID = "west", w.targets[client.Key{Cluster: "root", Name: "west"}].UID
	w.placements[front] = moved
	w.shownPlacements[front] = moved

	reconcileOnce(t, r, true)
	if got := clustersOf(w, front); !cmp.Equal(got, []string{"west"}) {
		t.Errorf("by the earlier wish it is placed on %v, want what is stored", got)
	}
	w.catchUp()
	reconcileOnce(t, r, false)
	if got := clustersOf(w, front); !cmp.Equal(got, []string{"west"}) {
		t.Errorf("by the present wish it is placed on %v", got)
	}
}
