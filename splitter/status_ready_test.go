package splitter

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
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
			synctest.Test(t, func(t *testing.T) {
				m, p := newServing(t)
				m.work(t)
				m.settlesOn(t, p, placementv1alpha1.PhaseReady)
				tc.happens(t, m)
				m.settlesOn(t, p, tc.want)
				if tc.undone != nil {
					tc.undone(t, m)
					m.settlesOn(t, p, placementv1alpha1.PhaseReady)
				}
			})
		})
	}
}

// TestPlacementMadeAgain: a Placement that was deleted and made again between two looks of the informer was taken for the one
// before, and what was planned by that for no plan.
func TestPlacementMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, p := newServing(t)
		m.work(t)
		m.settlesOn(t, p, placementv1alpha1.PhaseReady)
		p.UID = "again"
		if err := m.objects.Update(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		p.Status.Clusters = nil
		if err := m.objects.Status().Update(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		m.settlesOn(t, p, placementv1alpha1.PhaseReady)
	})
}

// TestStatusIsOfThePlacementThatWasSeen: what was summed up by a decision was written on the Placement that had followed.
func TestStatusIsOfThePlacementThatWasSeen(t *testing.T) {
	for name, follow := range map[string]func(*testing.T, *mirrored, *placementv1alpha1.Placement){
		"Decided": func(t *testing.T, m *mirrored, p *placementv1alpha1.Placement) {
			p.Spec.Clusters = append(p.Spec.Clusters, placementv1alpha1.PlacedCluster{Name: "west", UID: "west", Mirror: "mirror-west", Weight: 1})
			if err := m.objects.Update(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		},
		"MadeAgain": func(t *testing.T, m *mirrored, p *placementv1alpha1.Placement) {
			if err := m.objects.Delete(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			p.UID, p.ResourceVersion = "again", ""
			if err := m.objects.Create(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, p := newServing(t)
			m.clients = &client.Clients{Objects: interceptor.NewClient(m.objects, interceptor.Funcs{
				SubResourcePatch: func(ctx context.Context, c ctrlclient.Client, sub string, o ctrlclient.Object, patch ctrlclient.Patch, opts ...ctrlclient.SubResourcePatchOption) error {
					if _, ok := o.(*placementv1alpha1.Placement); ok {
						follow(t, m, p.DeepCopy())
					}
					return c.SubResource(sub).Patch(ctx, o, patch, opts...)
				},
			})}
			if _, err := m.reconcile(t.Context(), key{"Deployment", client.Key{Cluster: "shop", Namespace: "front", Name: "web"}}); err != nil {
				t.Fatal(err)
			}
			_, err := m.reconcile(t.Context(), key{ofPlacement, client.KeyOf(p)})
			if !apierrors.IsConflict(err) {
				t.Errorf("the status of a Placement that another followed is written with %v, want a conflict", err)
			}
			if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(p), p); err != nil {
				t.Fatal(err)
			}
			if len(p.Status.Clusters) > 0 {
				t.Errorf("the Placement that followed is told %+v", p.Status.Clusters)
			}
		})
	}
}

// newServing starts a Controller whose Deployment serves as its Placement has it, and which does not work.
func newServing(t *testing.T) (*mirrored, *placementv1alpha1.Placement) {
	t.Helper()
	root, leaf := pair("Deployment", "web")
	p := placementOf("", "Placed", mirrorEast)
	st := &site{step: Step{Write: true, Replicas: 2}, roll: Roll{Verbatim: true}}
	k, _ := kinds.ByKind("Deployment")
	rendered, err := st.render(k, root, leaf.GetNamespace())
	if err != nil {
		t.Fatal(err)
	}
	served := rendered.(*appsv1.Deployment)
	served.UID = leaf.GetUID()
	served.Annotations[lcctx.Annotation] = mirrorEast
	served.Annotations[workloadv1alpha1.AppliedAnnotation] = served.Annotations[workloadv1alpha1.RenderedAnnotation]
	served.Status = appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 2}
	m := newMirrored(t, root, served, p)
	if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(p), p); err != nil {
		t.Fatal(err)
	}
	return m, p
}

// settlesOn wants a Placement to say a phase of its one cluster when nothing is left to do.
func (m *mirrored) settlesOn(t *testing.T, p *placementv1alpha1.Placement, want placementv1alpha1.PlacedClusterPhase) {
	t.Helper()
	synctest.Wait()
	if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(p), p); err != nil {
		t.Fatal(err)
	}
	if len(p.Status.Clusters) != 1 || p.Status.Clusters[0].Phase != want {
		t.Fatalf("the clusters of the Placement are %+v, want one that is %s", p.Status.Clusters, want)
	}
}

// work has the Controller do what is asked for.
func (m *mirrored) work(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var working sync.WaitGroup
	t.Cleanup(working.Wait)
	t.Cleanup(cancel)
	working.Go(func() { m.queue.Run(ctx, 1) })
}
