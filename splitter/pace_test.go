package splitter

import (
	"runtime"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
)

func TestMayWait(t *testing.T) {
	status := func(observed int64, ready, available int32, conditions ...string) *appsv1.Deployment {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Generation: 2}}
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: observed, Replicas: 3, ReadyReplicas: ready, AvailableReplicas: available}
		for i := 0; i+2 < len(conditions); i += 3 {
			d.Status.Conditions = append(d.Status.Conditions, appsv1.DeploymentCondition{
				Type: appsv1.DeploymentConditionType(conditions[i]), Status: corev1.ConditionStatus(conditions[i+1]), Reason: conditions[i+2]})
		}
		return d
	}
	complete := []string{"Progressing", "True", reasonComplete}
	rolling := []string{"Progressing", "True", "ReplicaSetUpdated"}
	for name, tc := range map[string]struct {
		before, now *appsv1.Deployment
		want        time.Duration
		reason      string
	}{
		"FirstWords":     {status(0, 0, 0), status(0, 0, 0, rolling...), client.WhileNothing, "the generation that is observed says so"},
		"Observed":       {status(1, 0, 0), status(2, 0, 0, rolling...), client.WhileSettling, "rollout status waits for it"},
		"Step":           {status(2, 1, 1, rolling...), status(2, 2, 2, rolling...), client.WhileProgressing, "another pod serves"},
		"Through":        {status(2, 2, 2, rolling...), status(2, 3, 3, complete...), 0, "rollout status waits for it"},
		"ThroughAtOnce":  {status(1, 0, 0), status(2, 3, 3, complete...), 0, "rollout status waits for it"},
		"NotAnyMore":     {status(2, 3, 3, complete...), status(2, 3, 3, rolling...), 0, "it was said"},
		"Changed":        {status(1, 3, 3, complete...), status(1, 3, 3, rolling...), client.WhileNothing, "the generation says so"},
		"FewerAvailable": {status(2, 3, 3, rolling...), status(2, 3, 2, rolling...), 0, "bad news"},
		"FewerReady":     {status(2, 3, 2, rolling...), status(2, 2, 2, rolling...), 0, "bad news"},
		"Available":      {status(2, 2, 2, "Available", "False", ""), status(2, 3, 3, "Available", "True", ""), 0, "somebody may wait for it"},
		"Unavailable":    {status(2, 3, 3, "Available", "True", ""), status(2, 3, 3, "Available", "False", ""), 0, "bad news"},
		"Deadline":       {status(2, 2, 2, rolling...), status(2, 2, 2, "Progressing", "False", "ProgressDeadlineExceeded"), 0, "bad news"},
		"Failure":        {status(2, 2, 2), status(2, 2, 2, "ReplicaFailure", "True", "FailedCreate"), 0, "bad news"},
		"Refused":        {status(1, 2, 2), status(1, 2, 2, string(kinds.ConditionSynced), "False", "QuotaExceeded"), 0, "bad news"},
		"TakenAfterAll":  {status(1, 2, 2, string(kinds.ConditionSynced), "False", "QuotaExceeded"), status(1, 2, 2), 0, "somebody may wait for it"},
		"NotPlaced":      {status(0, 0, 0), status(0, 0, 0, string(kinds.ConditionPlaced), "False", "NotPlaced"), 0, "bad news"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := mayWait(tc.before, tc.now); got != tc.want {
				t.Errorf("may wait %s, want %s: %s", got, tc.want, tc.reason)
			}
		})
	}
}

func TestSetMayWait(t *testing.T) {
	status := func(observed int64, pods, ready int32, conditions ...string) *appsv1.ReplicaSet {
		r := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](3)}}
		r.Status = appsv1.ReplicaSetStatus{ObservedGeneration: observed, Replicas: pods, ReadyReplicas: ready, AvailableReplicas: ready}
		for _, c := range conditions {
			r.Status.Conditions = append(r.Status.Conditions, appsv1.ReplicaSetCondition{Type: kinds.ConditionSynced, Status: corev1.ConditionFalse, Reason: c})
		}
		return r
	}
	for name, tc := range map[string]struct {
		before, now *appsv1.ReplicaSet
		want        time.Duration
		reason      string
	}{
		"Observed":      {status(1, 0, 0), status(2, 0, 0), client.WhileSettling, "somebody may wait for it"},
		"Step":          {status(2, 3, 1), status(2, 3, 2), client.WhileProgressing, "another pod serves"},
		"Through":       {status(2, 3, 2), status(2, 3, 3), 0, "somebody waits for it"},
		"ThroughAtOnce": {status(1, 0, 0), status(2, 3, 3), 0, "somebody waits for it"},
		"Moved":         {status(2, 5, 5), status(2, 3, 3), 0, "what was left is gone"},
		"Fewer":         {status(2, 5, 2), status(2, 5, 1), 0, "bad news"},
		"Refused":       {status(2, 1, 1), status(2, 1, 1, "TakenOver"), 0, "bad news"},
		"TakenAfterAll": {status(2, 1, 1, "TakenOver"), status(2, 1, 1), 0, "somebody may wait for it"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := dividedMayWait(tc.before, tc.now); got != tc.want {
				t.Errorf("may wait %s, want %s: %s", got, tc.want, tc.reason)
			}
			if got := dividedMayWait(asController(tc.before), asController(tc.now)); got != tc.want {
				t.Errorf("a ReplicationController's may wait %s, want %s: %s", got, tc.want, tc.reason)
			}
		})
	}
}

func TestCopiesMayWait(t *testing.T) {
	status := func(observed int64, updated, ready int32, conditions ...string) *appsv1.DaemonSet {
		d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Generation: 2}}
		d.Status = appsv1.DaemonSetStatus{ObservedGeneration: observed, DesiredNumberScheduled: 3, UpdatedNumberScheduled: updated, NumberReady: ready, NumberAvailable: ready}
		for _, c := range conditions {
			d.Status.Conditions = append(d.Status.Conditions, appsv1.DaemonSetCondition{Type: kinds.ConditionSynced, Status: corev1.ConditionFalse, Reason: c})
		}
		return d
	}
	for name, tc := range map[string]struct {
		before, now *appsv1.DaemonSet
		want        time.Duration
		reason      string
	}{
		"Observed":      {status(1, 0, 0), status(2, 0, 0), client.WhileSettling, "rollout status waits for it"},
		"Step":          {status(2, 1, 1), status(2, 2, 2), client.WhileProgressing, "another pod serves"},
		"Through":       {status(2, 3, 2), status(2, 3, 3), 0, "rollout status waits for it"},
		"ThroughAtOnce": {status(1, 3, 3), status(2, 3, 3), 0, "rollout status waits for it"},
		"Fewer":         {status(2, 2, 3), status(2, 2, 2), 0, "bad news"},
		"Changed":       {status(2, 3, 3), status(2, 2, 3), 0, "it was said to be through"},
		"Refused":       {status(2, 1, 1), status(2, 1, 1, "QuotaExceeded"), 0, "bad news"},
		"TakenAfterAll": {status(2, 1, 1, "QuotaExceeded"), status(2, 1, 1), 0, "somebody may wait for it"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := copiesMayWait(tc.before, tc.now); got != tc.want {
				t.Errorf("may wait %s, want %s: %s", got, tc.want, tc.reason)
			}
		})
	}
}

func TestPlacedMayWait(t *testing.T) {
	type clusters = []placementv1alpha1.PlacedClusterStatus
	on := func(name string, phase placementv1alpha1.PlacedClusterPhase, ready, replicas int32) placementv1alpha1.PlacedClusterStatus {
		return placementv1alpha1.PlacedClusterStatus{Name: name, Phase: phase, ReadyReplicas: ready, Replicas: replicas}
	}
	for name, tc := range map[string]struct {
		before, now clusters
		want        time.Duration
		reason      string
	}{
		"First":    {nil, clusters{on("east", "Pending", 0, 0)}, client.WhileProgressing, "more follows"},
		"Step":     {clusters{on("east", "Synced", 1, 3)}, clusters{on("east", "Synced", 2, 3)}, client.WhileProgressing, "another pod serves"},
		"Through":  {clusters{on("east", "Synced", 2, 3)}, clusters{on("east", "Ready", 3, 3)}, 0, "somebody waited for it"},
		"OneOfTwo": {clusters{on("east", "Synced", 2, 3), on("west", "Synced", 2, 3)}, clusters{on("east", "Ready", 3, 3), on("west", "Synced", 2, 3)}, client.WhileProgressing, "the other follows"},
		"Moving":   {clusters{on("east", "Draining", 3, 3), on("west", "Synced", 2, 3)}, clusters{on("east", "Draining", 3, 3), on("west", "Ready", 3, 3)}, client.WhileProgressing, "it goes from east next"},
		"Moved":    {clusters{on("east", "Deleting", 3, 3), on("west", "Ready", 3, 3)}, clusters{on("west", "Ready", 3, 3)}, 0, "somebody waited for it"},
		"Gone":     {clusters{on("east", "Deleting", 0, 3)}, nil, 0, "somebody waited for it"},
		"Rescaled": {clusters{on("east", "Ready", 4, 4)}, clusters{on("east", "Ready", 2, 2)}, 0, "it is what was asked for"},
		"Rolling":  {clusters{on("east", "Ready", 3, 3)}, clusters{on("east", "Applying", 3, 3)}, 0, "it was said to be through"},
		"RollsOn":  {clusters{on("east", "Applying", 3, 3)}, clusters{on("east", "Synced", 3, 3)}, client.WhileProgressing, "more follows"},
		"Refused":  {clusters{on("east", "Applying", 0, 3)}, clusters{on("east", "Refused", 0, 3)}, 0, "bad news"},
		"Refuses":  {clusters{on("east", "Refused", 1, 3)}, clusters{on("east", "Refused", 2, 3)}, client.WhileProgressing, "it was said"},
		"Taken":    {clusters{on("east", "Refused", 0, 3)}, clusters{on("east", "Applying", 0, 3)}, 0, "the bad news is over"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := placedMayWait(tc.before, tc.now); got != tc.want {
				t.Errorf("may wait %s, want %s: %s", got, tc.want, tc.reason)
			}
		})
	}
}

// TestPlacementTellsTheEndAtOnce: kubectl get placements showed "2/2 False" for a second after helm --wait was through.
func TestPlacementTellsTheEndAtOnce(t *testing.T) {
	root, leaf := pair("Deployment", "web")
	p := placementOf("", "Placed", mirrorEast)
	m := newMirrored(t, root, leaf, p)
	k := key{ofPlacement, client.KeyOf(p)}
	d := leaf.(*appsv1.Deployment)
	m.tally.plan(key{"Deployment", client.KeyOf(root)}, goal{by: decisionOf(p), of: rendition{root: root.GetUID()}, shares: []share{{mirrorEast, 2}}})
	// shown waits until the leaf counts as that, and looks; the clock stands still.
	shown := func(phase placementv1alpha1.PlacedClusterPhase) (wait time.Duration) {
		t.Helper()
		for began := time.Now(); ; runtime.Gosched() {
			sums, planned := m.sumsOf(p)
			if planned && sums[mirrorEast].phase() == phase {
				return m.look(t, k)
			}
			if time.Since(began) > time.Minute {
				t.Fatalf("the leaf counts as %v (planned: %v), want %s", sums, planned, phase)
			}
		}
	}
	told := func() placementv1alpha1.PlacedClusterPhase {
		t.Helper()
		if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(p), p); err != nil {
			t.Fatal(err)
		}
		return p.Status.Clusters[0].Phase
	}
	if wait := shown(placementv1alpha1.PhaseApplying); wait != 0 || told() != placementv1alpha1.PhaseApplying {
		t.Fatalf("the first word waits %s, and %s is told", wait, told())
	}
	d.Annotations[workloadv1alpha1.RenderedAnnotation], d.Annotations[workloadv1alpha1.AppliedAnnotation] = "h", "h"
	if err := m.objects.Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if wait := shown(placementv1alpha1.PhaseSynced); wait <= 0 || told() != placementv1alpha1.PhaseApplying {
		t.Errorf("a step on the way waits %s, and %s is told", wait, told())
	}
	d.Status = appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 2}
	if err := m.objects.Status().Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); shown(placementv1alpha1.PhaseReady) != 0 && time.Since(began) < 10*time.Second; runtime.Gosched() {
	} // until the informer shows what was written last
	if told() != placementv1alpha1.PhaseReady {
		t.Errorf("the end is not told at once: %s is", told())
	}
}
