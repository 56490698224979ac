package splitter

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// TestReadyNoMore: a Placement stayed READY by what was known last while its cluster was away or only observed, and after its
// Deployment was deleted where the leaf may not go.
func TestReadyNoMore(t *testing.T) {
	turn := func(condition string, status metav1.ConditionStatus) func(*testing.T, *mirrored) {
		return func(t *testing.T, m *mirrored) {
			east := &workloadv1alpha1.SyncTarget{}
			if err := m.objects.Get(t.Context(), ctrlclient.ObjectKey{Name: "east"}, east); err != nil {
				t.Fatal(err)
			}
			meta.SetStatusCondition(&east.Status.Conditions, metav1.Condition{Type: condition, Status: status, Reason: "Test"})
			if err := m.objects.Status().Update(t.Context(), east); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, tc := range map[string]struct {
		happens func(*testing.T, *mirrored)
		undone  func(*testing.T, *mirrored) // nil if it cannot be
		want    placementv1alpha1.PlacedClusterPhase
	}{
		"Away":     {turn(workloadv1alpha1.SyncTargetReady, "Unknown"), turn(workloadv1alpha1.SyncTargetReady, "True"), placementv1alpha1.PhaseApplying},
		"Observed": {turn(workloadv1alpha1.SyncTargetObserveOnly, "True"), turn(workloadv1alpha1.SyncTargetObserveOnly, "False"), placementv1alpha1.PhaseApplying},
		"Frozen": {func(t *testing.T, m *mirrored) {
			m.brake.Freeze(mirrorEast)
			web := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "front", Name: "web"}}
			if err := m.objects.Delete(t.Context(), web); err != nil {
				t.Fatal(err)
			}
		}, nil, placementv1alpha1.PhaseSynced},
	} {
		t.Run(name, func(t *testing.T) {
			m, p := newServing(t)
			is := func(want placementv1alpha1.PlacedClusterPhase) {
				t.Helper()
				for began := time.Now(); ; runtime.Gosched() {
					if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(p), p); err != nil {
						t.Fatal(err)
					}
					if len(p.Status.Clusters) == 1 && p.Status.Clusters[0].Phase == want {
						return
					}
					if time.Since(began) > time.Minute {
						t.Fatalf("the clusters of the Placement are %+v, want one that is %s", p.Status.Clusters, want)
					}
				}
			}
			is(placementv1alpha1.PhaseReady)
			tc.happens(t, m)
			is(tc.want)
			if tc.undone != nil {
				tc.undone(t, m)
				is(placementv1alpha1.PhaseReady)
			}
		})
	}
}

// newServing starts a Controller that works, and whose Deployment serves as its Placement has it.
func newServing(t *testing.T) (*mirrored, *placementv1alpha1.Placement) {
	t.Helper()
	root, leaf := pair("Deployment", "web")
	p := placementOf("", "Placed", mirrorEast)
	st := &site{step: Step{Write: true, Replicas: 2}, roll: Roll{Verbatim: true}}
	k, _ := kinds.ByKind("Deployment")
	served, err := st.render(k, root.(*appsv1.Deployment), leaf.GetNamespace())
	if err != nil {
		t.Fatal(err)
	}
	served.UID = leaf.GetUID()
	served.Annotations[lcctx.Annotation] = mirrorEast
	served.Annotations[workloadv1alpha1.AppliedAnnotation] = served.Annotations[workloadv1alpha1.RenderedAnnotation]
	served.Status = appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 2}
	m := newMirrored(t, root, served, p)
	ctx, cancel := context.WithCancel(t.Context())
	var working sync.WaitGroup
	t.Cleanup(working.Wait)
	t.Cleanup(cancel)
	working.Go(func() { m.queue.Run(ctx, 1) })
	return m, p
}
