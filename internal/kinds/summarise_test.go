package kinds

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubectl/pkg/polymorphichelpers"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// leaf is a leaf of want replicas, all of which are there, of the present template, and available if not said otherwise.
func leaf(cluster string, want int32, change ...func(*Leaf, *appsv1.Deployment)) Leaf {
	d := &appsv1.Deployment{
		Spec:   appsv1.DeploymentSpec{Replicas: ptr.To(want)},
		Status: appsv1.DeploymentStatus{Replicas: want, UpdatedReplicas: want, ReadyReplicas: want, AvailableReplicas: want},
	}
	l := Leaf{Cluster: cluster, Assigned: true, Target: want, Current: true, SameTemplate: true, Settled: true, Object: d}
	for _, c := range change {
		c(&l, d)
	}
	return l
}

func available(n int32) func(*Leaf, *appsv1.Deployment) {
	return func(_ *Leaf, d *appsv1.Deployment) {
		d.Status.ReadyReplicas, d.Status.AvailableReplicas, d.Status.UnavailableReplicas = n, n, d.Status.Replicas-n
	}
}

func says(kind appsv1.DeploymentConditionType, status corev1.ConditionStatus, reason, message string) func(*Leaf, *appsv1.Deployment) {
	return func(_ *Leaf, d *appsv1.Deployment) {
		d.Status.Conditions = append(d.Status.Conditions, appsv1.DeploymentCondition{Type: kind, Status: status, Reason: reason, Message: message})
	}
}

func gone(l *Leaf, _ *appsv1.Deployment)      { l.Lost = true }
func restored(l *Leaf, _ *appsv1.Deployment)  { l.Observed = true }
func leaving(l *Leaf, _ *appsv1.Deployment)   { l.Assigned, l.Target, l.Current = false, 0, false }
func unsettled(l *Leaf, _ *appsv1.Deployment) { l.Settled = false }
func held(l *Leaf, _ *appsv1.Deployment)      { l.Current, l.SameTemplate = false, false }

// TestSummariseDeployment checks the sums, the conditions and what `kubectl rollout status` makes of them.
func TestSummariseDeployment(t *testing.T) {
	tests := map[string]struct {
		reason     string
		leaves     []Leaf
		notPlaced  *Reason
		desired    int32    // 6 if not said
		observed   int64    // the root is at generation 3 and has observed 2
		counts     [5]int32 // replicas, updated, ready, available, unavailable
		conditions map[string]string
		done       bool // rollout status ends
	}{
		"Complete": {
			reason: "all of both clusters", leaves: []Leaf{leaf("east", 3), leaf("west", 3)},
			observed: 3, counts: [5]int32{6, 6, 6, 6, 0}, done: true,
			conditions: map[string]string{"Available": "True MinimumReplicasAvailable", "Progressing": "True NewReplicaSetAvailable"},
		},
		"OneUnsettled": {
			reason: "a generation counts when every cluster has it, and so do updated replicas", leaves: []Leaf{leaf("east", 3), leaf("west", 3, unsettled)},
			observed: 2, counts: [5]int32{6, 3, 6, 6, 0},
			conditions: map[string]string{"Available": "True MinimumReplicasAvailable", "Progressing": "True ReplicaSetUpdated"},
		},
		"OneHeld": {
			reason: "a cluster that waits for its turn has old pods", leaves: []Leaf{leaf("east", 3), leaf("west", 3, held)},
			observed: 2, counts: [5]int32{6, 3, 6, 6, 0},
			conditions: map[string]string{"Available": "True MinimumReplicasAvailable", "Progressing": "True ReplicaSetUpdated"},
		},
		"NoLeafYet": {
			reason: "an assigned cluster without leaf has nothing applied", leaves: []Leaf{leaf("east", 3), {Cluster: "west", Assigned: true, Target: 3}},
			observed: 2, counts: [5]int32{3, 3, 3, 3, 0},
			conditions: map[string]string{"Available": "False MinimumReplicasUnavailable", "Progressing": "True ReplicaSetUpdated"},
		},
		"MovingBothThere": {
			reason: "what is being left still counts, and is not updated", leaves: []Leaf{leaf("east", 6, leaving), leaf("west", 6)},
			observed: 3, counts: [5]int32{12, 6, 12, 12, 0},
			conditions: map[string]string{"Available": "True MinimumReplicasAvailable", "Progressing": "True ReplicaSetUpdated"},
		},
		"ShrinkingAfterGrowth": {
			reason: "pods above a share will go", leaves: []Leaf{
				leaf("east", 6, func(l *Leaf, _ *appsv1.Deployment) { l.Target = 3 }), leaf("west", 3)},
			observed: 3, counts: [5]int32{9, 6, 9, 9, 0},
			conditions: map[string]string{"Available": "True MinimumReplicasAvailable", "Progressing": "True ReplicaSetUpdated"},
		},
		"ScaledDown": {
			reason: "all pods that exist are told, not only as many as are asked for", leaves: []Leaf{
				leaf("east", 6, available(0), func(l *Leaf, _ *appsv1.Deployment) { l.Target = 1 }),
				leaf("west", 6, available(0), func(l *Leaf, _ *appsv1.Deployment) { l.Target = 1 })}, desired: 2,
			observed: 3, counts: [5]int32{12, 2, 0, 0, 12},
			conditions: map[string]string{"Available": "False MinimumReplicasUnavailable", "Progressing": "True ReplicaSetUpdated"},
		},
		"NotYetAvailable": {
			reason: "4 of 6 with one that may miss is too few", leaves: []Leaf{leaf("east", 3, available(2)), leaf("west", 3, available(2))},
			observed: 3, counts: [5]int32{6, 6, 4, 4, 2},
			conditions: map[string]string{"Available": "False MinimumReplicasUnavailable", "Progressing": "True ReplicaSetUpdated"},
		},
		"OneMayMiss": {
			reason: "25 % of 6 is one", leaves: []Leaf{leaf("east", 3, available(2)), leaf("west", 3)},
			observed: 3, counts: [5]int32{6, 6, 5, 5, 1},
			conditions: map[string]string{"Available": "True MinimumReplicasAvailable", "Progressing": "True ReplicaSetUpdated"},
		},
		"Lost": {
			reason: "what is not heard of is not ready, does not hold the generation up, has updated nothing, and is named", leaves: []Leaf{leaf("east", 3), leaf("west", 3, gone, unsettled)},
			observed: 3, counts: [5]int32{6, 3, 3, 3, 3},
			conditions: map[string]string{"Available": "False MinimumReplicasUnavailable", "Progressing": "True ReplicaSetUpdated",
				"Synced": `False Unreachable: Not heard of, their replicas count as not ready: cluster "west".`},
		},
		"AllLost": {
			reason: "nobody left to confirm a generation", leaves: []Leaf{leaf("east", 6, gone)},
			observed: 2, counts: [5]int32{6, 6, 0, 0, 6},
			conditions: map[string]string{"Available": "False MinimumReplicasUnavailable", "Progressing": "True ReplicaSetUpdated",
				"Synced": `False Unreachable: Not heard of, their replicas count as not ready: cluster "east".`},
		},
		"Observed": {
			reason: "what a restored side says counts, and is not sworn to", leaves: []Leaf{leaf("east", 6, restored)},
			observed: 3, counts: [5]int32{6, 6, 6, 6, 0}, done: true,
			conditions: map[string]string{
				"Available":   "Unknown ObserveOnly",
				"Progressing": "True NewReplicaSetAvailable",
				"Synced":      `False ObserveOnly: Nothing is known to be current, and nothing is changed, where a restore is not confirmed yet by an administrator: cluster "east".`},
		},
		"OneObserved": {
			reason: "the others are not enough", leaves: []Leaf{leaf("east", 3, restored), leaf("west", 3)},
			observed: 3, counts: [5]int32{6, 6, 6, 6, 0}, done: true,
			conditions: map[string]string{
				"Available":   "Unknown ObserveOnly",
				"Progressing": "True NewReplicaSetAvailable",
				"Synced":      `False ObserveOnly: Nothing is known to be current, and nothing is changed, where a restore is not confirmed yet by an administrator: cluster "east".`},
		},
		"ObservedAndLeft": {
			reason: "what is observed where it is being left counts, and is not sworn to either", leaves: []Leaf{
				leaf("east", 6, available(0)), leaf("west", 6, restored, leaving)},
			observed: 3, counts: [5]int32{12, 6, 6, 6, 6},
			conditions: map[string]string{
				"Available":   "Unknown ObserveOnly",
				"Progressing": "True ReplicaSetUpdated",
				"Synced":      `False ObserveOnly: Nothing is known to be current, and nothing is changed, where a restore is not confirmed yet by an administrator: cluster "west".`},
		},
		"ObservedAndRefusedBefore": {
			reason: "where nothing is changed a refusal is of before", leaves: []Leaf{
				leaf("east", 6, restored, func(l *Leaf, _ *appsv1.Deployment) {
					l.Refused = &workloadv1alpha1.Refusal{Reason: "Unreachable", Message: "it does not answer"}
				})},
			observed: 3, counts: [5]int32{6, 6, 6, 6, 0}, done: true,
			conditions: map[string]string{
				"Available":   "Unknown ObserveOnly",
				"Progressing": "True NewReplicaSetAvailable",
				"Synced":      `False ObserveOnly: Nothing is known to be current, and nothing is changed, where a restore is not confirmed yet by an administrator: cluster "east".`},
		},
		"ObservedAndTooFew": {
			reason: "too few by all that is said are too few", leaves: []Leaf{leaf("east", 6, restored, available(2))},
			observed: 3, counts: [5]int32{6, 6, 2, 2, 4},
			conditions: map[string]string{"Available": "False MinimumReplicasUnavailable", "Progressing": "True ReplicaSetUpdated",
				"Synced": `False ObserveOnly: Nothing is known to be current, and nothing is changed, where a restore is not confirmed yet by an administrator: cluster "east".`},
		},
		"Deadline": {
			reason: "worst of all wins, with the cluster's name", leaves: []Leaf{
				leaf("east", 3), leaf("west", 3, available(0), says(appsv1.DeploymentProgressing, corev1.ConditionFalse, "ProgressDeadlineExceeded", "timed out"))},
			observed: 3, counts: [5]int32{6, 6, 3, 3, 3},
			conditions: map[string]string{"Available": "False MinimumReplicasUnavailable", "Progressing": `False ProgressDeadlineExceeded: cluster "west": timed out`},
		},
		"Refused": {
			reason: "in the cluster's words", leaves: []Leaf{leaf("east", 6, unsettled, available(0), func(l *Leaf, d *appsv1.Deployment) {
				d.Status = appsv1.DeploymentStatus{}
				l.Refused = &workloadv1alpha1.Refusal{Reason: "QuotaExceeded", Message: "too much"}
			})},
			observed: 2, conditions: map[string]string{"Available": "False MinimumReplicasUnavailable", "Progressing": "True ReplicaSetUpdated",
				"Synced": `False QuotaExceeded: cluster "east" refused it (QuotaExceeded): too much`},
		},
		"Unreachable": {
			reason: "who does not answer has refused nothing", leaves: []Leaf{leaf("east", 6, unsettled, available(0), func(l *Leaf, d *appsv1.Deployment) {
				d.Status = appsv1.DeploymentStatus{}
				l.Refused = &workloadv1alpha1.Refusal{Reason: "Unreachable", Message: "the physical cluster does not answer: timeout"}
			})},
			observed: 2, conditions: map[string]string{"Available": "False MinimumReplicasUnavailable", "Progressing": "True ReplicaSetUpdated",
				"Synced": `False Unreachable: cluster "east" does not have it yet: the physical cluster does not answer: timeout`},
		},
		"ReplicaFailure": {
			reason: "any of them", leaves: []Leaf{leaf("east", 3, says(appsv1.DeploymentReplicaFailure, corev1.ConditionTrue, "FailedCreate", "no")), leaf("west", 3)},
			observed: 3, counts: [5]int32{6, 6, 6, 6, 0}, done: true,
			conditions: map[string]string{"Available": "True MinimumReplicasAvailable", "Progressing": "True NewReplicaSetAvailable",
				"ReplicaFailure": `True FailedCreate: cluster "east": FailedCreate: no`},
		},
		"NotPlaced": {
			reason: "nothing has observed anything", notPlaced: &Reason{"NotPlaced", "No cluster."},
			observed: 2, conditions: map[string]string{"Placed": "False NotPlaced: No cluster."},
		},
		"Duplicate": {
			reason: "every cluster has all, and one of them is late", leaves: []Leaf{leaf("east", 6), leaf("west", 6, available(3))}, desired: 12,
			observed: 3, counts: [5]int32{12, 12, 9, 9, 3},
			conditions: map[string]string{"Available": "True MinimumReplicasAvailable", "Progressing": "True ReplicaSetUpdated"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			root := &appsv1.Deployment{
				TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
				ObjectMeta: metav1.ObjectMeta{Name: "web", Generation: 3},
				Spec:       appsv1.DeploymentSpec{Replicas: ptr.To(int32(6)), Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType}},
				Status:     appsv1.DeploymentStatus{ObservedGeneration: 2},
			}
			view := View{Leaves: tc.leaves, Desired: 6, NotPlaced: tc.notPlaced, Now: time.Unix(1000, 0)}
			if tc.desired > 0 {
				view.Desired = tc.desired
			}
			if name == "Duplicate" {
				root.Spec.Strategy.RollingUpdate = nil // 25 % of 12 may miss
			}
			summariseDeployment(root, view)
			s := root.Status
			if s.ObservedGeneration != tc.observed {
				t.Errorf("%s: observedGeneration = %d, want %d", tc.reason, s.ObservedGeneration, tc.observed)
			}
			if got := [5]int32{s.Replicas, s.UpdatedReplicas, s.ReadyReplicas, s.AvailableReplicas, s.UnavailableReplicas}; got != tc.counts {
				t.Errorf("%s: replicas, updated, ready, available, unavailable = %v, want %v", tc.reason, got, tc.counts)
			}
			conditions := map[string]string{}
			for _, c := range s.Conditions {
				conditions[string(c.Type)] = string(c.Status) + " " + c.Reason
				if c.Type != "Available" && !(c.Type == "Progressing" && c.Status == corev1.ConditionTrue) {
					conditions[string(c.Type)] += ": " + c.Message
				}
			}
			if diff := cmp.Diff(tc.conditions, conditions); diff != "" {
				t.Errorf("%s: conditions: -want, +got:\n%s", tc.reason, diff)
			}
			if done := rolloutDone(t, root); done != tc.done {
				t.Errorf("%s: rollout status ends: %v, want %v", tc.reason, done, tc.done)
			}

			before := root.DeepCopy()
			view.Now = view.Now.Add(time.Hour)
			summariseDeployment(root, view)
			if diff := cmp.Diff(before, root); diff != "" {
				t.Errorf("%s: the same leaves give another status an hour later: -before, +after:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestUpdatedStaysUpdated: updatedReplicas fell to 0 for a moment when only the placement changed, since every leaf was rendered
// anew; and what a cluster said of an earlier template is not taken for the present one.
func TestUpdatedStaysUpdated(t *testing.T) {
	share := func(target int32) func(*Leaf, *appsv1.Deployment) {
		return func(l *Leaf, _ *appsv1.Deployment) { l.Target = target }
	}
	tests := map[string]struct {
		reason   string
		observed int64 // of generation 3
		told     int32
		leaves   []Leaf
		want     int32
	}{
		"Spread":        {"the part of the strategy is new, the pods are not; those above the share will go", 3, 6, []Leaf{leaf("east", 6, unsettled, share(3)), {Cluster: "west", Assigned: true, Target: 3}}, 3},
		"Shrinking":     {"they do not become older by that", 3, 6, []Leaf{leaf("east", 3, unsettled), leaf("west", 3)}, 6},
		"Generation":    {"of a new generation nothing was told", 2, 6, []Leaf{leaf("east", 6, unsettled)}, 0},
		"NeverSo":       {"back from a move, with an update on the way: who reports has not got it", 3, 0, []Leaf{leaf("east", 6, unsettled), leaf("west", 6, leaving)}, 0},
		"PartlySo":      {"nobody knows which of them it was that had it", 3, 2, []Leaf{leaf("east", 6, unsettled), leaf("west", 6, leaving)}, 2},
		"HeldMeanwhile": {"an earlier template is an earlier template", 3, 6, []Leaf{leaf("east", 6, unsettled, held)}, 0},
		"FewerUpdated":  {"a report that says less is believed", 3, 6, []Leaf{leaf("east", 6, unsettled, func(_ *Leaf, d *appsv1.Deployment) { d.Status.UpdatedReplicas = 1 })}, 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			root := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web", Generation: 3}, Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(6))}}
			root.Status.ObservedGeneration, root.Status.UpdatedReplicas = tc.observed, tc.told
			summariseDeployment(root, View{Leaves: tc.leaves, Desired: 6, Now: time.Unix(1000, 0)})
			if got := root.Status.UpdatedReplicas; got != tc.want {
				t.Errorf("%s: updatedReplicas = %d, want %d", tc.reason, got, tc.want)
			}
		})
	}
}

// rolloutDone is what `kubectl rollout status` decides; a Deployment that fails is not done.
func rolloutDone(t *testing.T, d *appsv1.Deployment) bool {
	t.Helper()
	viewer, err := polymorphichelpers.StatusViewerFor(appsv1.SchemeGroupVersion.WithKind("Deployment").GroupKind())
	if err != nil {
		t.Fatal(err)
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(d)
	if err != nil {
		t.Fatal(err)
	}
	_, done, err := viewer.Status(&unstructured.Unstructured{Object: content}, 0)
	return done && err == nil
}

func TestSummariseService(t *testing.T) {
	service := func(cluster string, assigned, lost bool, ips ...string) Leaf {
		s := &corev1.Service{}
		for _, ip := range ips {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
		return Leaf{Cluster: cluster, Assigned: assigned, Lost: lost, Object: s}
	}
	tests := map[string]struct {
		reason string
		leaves []Leaf
		want   []string
	}{
		"Union":    {"each address once, sorted", []Leaf{service("east", true, false, "10.0.0.2", "10.0.0.1"), service("west", true, false, "10.0.0.1")}, []string{"10.0.0.1", "10.0.0.2"}},
		"Draining": {"a cluster that is being left takes no new connections", []Leaf{service("east", false, false, "10.0.0.1"), service("west", true, false, "10.0.0.2")}, []string{"10.0.0.2"}},
		"Lost":     {"nor one that is not heard of", []Leaf{service("east", true, true, "10.0.0.1"), service("west", true, false, "10.0.0.2")}, []string{"10.0.0.2"}},
		"AllLost":  {"but an address that may work is better than none", []Leaf{service("east", true, true, "10.0.0.1")}, []string{"old"}},
		"Nowhere":  {"nothing is left of one that is placed nowhere", []Leaf{service("east", false, false, "10.0.0.1")}, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			root := &corev1.Service{Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "old"}}}}}
			summariseService(root, View{Leaves: tc.leaves})
			var got []string
			for _, i := range root.Status.LoadBalancer.Ingress {
				got = append(got, i.IP)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: addresses: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}
