package splitter

import (
	"context"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// TestConfirmWhatWasSaid: a confirmation counts only for the freeze that the SyncTarget told of, and never twice.
func TestConfirmWhatWasSaid(t *testing.T) {
	for name, tc := range map[string]struct {
		told   bool
		frozen bool // afterwards
		reason string
	}{
		"Told":    {true, false, "what the condition says is confirmed"},
		"NotTold": {false, true, "a word from before the freeze confirms nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			east := &workloadv1alpha1.SyncTarget{
				ObjectMeta: metav1.ObjectMeta{Name: "east", UID: "u", Annotations: map[string]string{
					lcctx.Annotation: "root", workloadv1alpha1.ConfirmAnnotation: confirmDeletions}},
				Status: workloadv1alpha1.SyncTargetStatus{Mirror: mirrorEast},
			}
			if tc.told {
				meta.SetStatusCondition(&east.Status.Conditions, metav1.Condition{Type: workloadv1alpha1.SyncTargetFrozen, Status: metav1.ConditionTrue, Reason: "ManyDeletions"})
			}
			objects := fake.NewClientBuilder().WithScheme(client.Scheme).WithObjects(east).WithStatusSubresource(east).Build()
			clients := &client.Clients{Objects: objects}
			informers, err := client.NewInformers(clients)
			if err != nil {
				t.Fatal(err)
			}
			c, err := New(clients, informers, testclock.NewFakeClock(time.Unix(0, 0)))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			defer running.Wait()
			defer cancel()
			running.Go(func() { informers.SyncTargets.Run(ctx) })
			if err := informers.SyncTargets.WaitSynced(ctx); err != nil {
				t.Fatal(err)
			}
			c.brake.Freeze(mirrorEast)

			if err := c.syncTarget(ctx, client.KeyOf(east)); err != nil {
				t.Fatal(err)
			}
			if frozen, _ := c.brake.Frozen(mirrorEast); frozen != tc.frozen {
				t.Errorf("%s: frozen = %v", tc.reason, frozen)
			}
			if err := objects.Get(ctx, ctrlclient.ObjectKeyFromObject(east), east); err != nil {
				t.Fatal(err)
			}
			if word := east.Annotations[workloadv1alpha1.ConfirmAnnotation]; word != "" || meta.IsStatusConditionTrue(east.Status.Conditions, workloadv1alpha1.SyncTargetFrozen) {
				t.Errorf("%s: left are the annotation %q and the conditions %+v", tc.reason, word, east.Status.Conditions)
			}
		})
	}
}

// TestConfirmTwice: a confirmation that has to be repeated, because it could not be written, forgets nothing of the first.
func TestConfirmTwice(t *testing.T) {
	b := NewBrake(testclock.NewFakeClock(time.Unix(0, 0)))
	miss(b, 0, 30, 50)
	b.Confirm("m")
	b.Confirm("m")
	if ok, _ := b.Missing("m", "leaf-7", func() int { return 50 }); !ok {
		t.Error("a leaf that was confirmed may not go")
	}
}

// TestPhaseOfWhatServes: a cluster is Ready with what serves as well as it will; nobody may ever end a rollout that a partition holds back.
func TestPhaseOfWhatServes(t *testing.T) {
	for partition, want := range map[int32]placementv1alpha1.PlacedClusterPhase{0: placementv1alpha1.PhaseSynced, 2: placementv1alpha1.PhaseReady} {
		leaf := &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{workloadv1alpha1.RenderedAnnotation: "h", workloadv1alpha1.AppliedAnnotation: "h"}},
			Spec: appsv1.StatefulSetSpec{Replicas: ptr.To(int32(3)), UpdateStrategy: appsv1.StatefulSetUpdateStrategy{
				RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: &partition},
			}},
			Status: appsv1.StatefulSetStatus{Replicas: 3, UpdatedReplicas: 1, AvailableReplicas: 3},
		}
		if got := phaseOf(leaf); got != want {
			t.Errorf("with partition %d, and one of three pods updated: %s, want %s", partition, got, want)
		}
	}
}
