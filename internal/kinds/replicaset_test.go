package kinds

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

func TestReplicaSetGoesDown(t *testing.T) {
	root := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"rollouts-pod-template-hash": "5d8c"}},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: ptr.To[int32](3), MinReadySeconds: 5,
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "web"}}}},
		},
		Status: appsv1.ReplicaSetStatus{ReadyReplicas: 3},
	}
	k, _ := ByKind("ReplicaSet")
	want := &appsv1.ReplicaSet{Spec: *root.Spec.DeepCopy()}
	want.Spec.Template.Spec.NodeName, want.Spec.Template.Spec.AutomountServiceAccountToken = "", ptr.To(false)
	if diff := cmp.Diff(want, k.Content(root)); diff != "" {
		t.Errorf("its spec goes down, without a node's name and without a token: -want, +got:\n%s", diff)
	}
	if got := k.WhatIsDropped(root); len(got) != 1 {
		t.Errorf("the user is told of %v, want the node's name", got)
	}
	part := k.Division(want)
	*part.Replicas = ptr.To[int32](1)
	if *want.Spec.Replicas != 1 || part.Asked() != 1 || k.Division(&appsv1.ReplicaSet{}).Asked() != 1 {
		t.Errorf("a cluster gets its share, and none says one: %v", want.Spec.Replicas)
	}
}

// TestReplicaSetHolds: which ReplicaSets go down, and which are records of what is made below.
func TestReplicaSetHolds(t *testing.T) {
	of := func(apiVersion, kind string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "o", UID: "u", Controller: ptr.To(true)}}
	}
	plain := of("apps/v1", "Deployment")
	plain[0].Controller = nil
	for name, tc := range map[string]struct {
		owners          []metav1.OwnerReference
		holds, revision bool
	}{
		"nobody's":                      {nil, true, false},
		"of a custom resource":          {of("argoproj.io/v1alpha1", "Rollout"), true, false},
		"of another Deployment":         {of("other.example.com/v1", "Deployment"), true, false},
		"of a CronJob":                  {of("batch/v1", "CronJob"), true, false},
		"of a Deployment":               {of("apps/v1", "Deployment"), false, true},
		"of a Deployment, as it was":    {of("apps/v1beta1", "Deployment"), false, true},
		"of what makes pods itself":     {of("apps/v1", "StatefulSet"), true, false},
		"of a ConfigMap":                {of("v1", "ConfigMap"), true, false},
		"a Deployment does not control": {plain, true, false},
	} {
		k, _ := ByKind("ReplicaSet")
		set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{OwnerReferences: tc.owners}}
		if got := k.Holds(set); got != tc.holds || (k.WhyWithheld(set) == "") != tc.holds {
			t.Errorf("%s: goes down: %v, want %v, and why not is %q", name, got, tc.holds, k.WhyWithheld(set))
		}
		if got := IsRevision(set); got != tc.revision {
			t.Errorf("%s: is a revision: %v, want %v", name, got, tc.revision)
		}
	}
}

// replicasIn is a leaf that has all that it asks for.
func replicasIn(cluster string, n int32, changes ...func(*Leaf, *appsv1.ReplicaSet)) Leaf {
	r := &appsv1.ReplicaSet{
		Spec:   appsv1.ReplicaSetSpec{Replicas: ptr.To(n)},
		Status: appsv1.ReplicaSetStatus{Replicas: n, FullyLabeledReplicas: n, ReadyReplicas: n, AvailableReplicas: n},
	}
	l := Leaf{Cluster: cluster, Assigned: true, Current: true, Settled: true, Target: n, Object: r}
	for _, change := range changes {
		change(&l, r)
	}
	return l
}

// TestReplicaSetServes: with all its pods, of whatever template, and no other; and is finished when none may be of an earlier one.
func TestReplicaSetServes(t *testing.T) {
	earlier := func(_ *Leaf, r *appsv1.ReplicaSet) {
		r.Annotations = map[string]string{workloadv1alpha1.EarlierTemplateAnnotation: "true"}
	}
	for name, tc := range map[string]struct {
		leaf             Leaf
		finished, serves bool
	}{
		"all serve":                      {replicasIn("east", 3), true, true},
		"all serve, of another template": {replicasIn("east", 3, earlier), false, true},
		"one is missing":                 {replicasIn("east", 3, func(_ *Leaf, r *appsv1.ReplicaSet) { r.Status.AvailableReplicas = 2 }), false, false},
		"one is too many":                {replicasIn("east", 3, func(_ *Leaf, r *appsv1.ReplicaSet) { r.Status.Replicas = 4 }), false, false},
		"not seen":                       {replicasIn("east", 3, func(l *Leaf, _ *appsv1.ReplicaSet) { l.Settled = false }), false, false},
		"none, as asked for":             {replicasIn("east", 0), true, true},
	} {
		if got := [2]bool{tc.leaf.Finished(), tc.leaf.Serves()}; got != [2]bool{tc.finished, tc.serves} {
			t.Errorf("%s: is finished and serves: %v, want %v and %v", name, got, tc.finished, tc.serves)
		}
	}
}

func TestSummariseReplicaSet(t *testing.T) {
	type counts struct{ Replicas, Labeled, Ready, Available int32 }
	away := func(l *Leaf, _ *appsv1.ReplicaSet) { l.Lost = true }
	left := func(l *Leaf, _ *appsv1.ReplicaSet) { l.Assigned = false }
	stale := func(l *Leaf, _ *appsv1.ReplicaSet) { l.Settled = false }
	ending := func(n int32) func(*Leaf, *appsv1.ReplicaSet) {
		return func(_ *Leaf, r *appsv1.ReplicaSet) { r.Status.TerminatingReplicas = &n }
	}
	fails := func(_ *Leaf, r *appsv1.ReplicaSet) {
		r.Status = appsv1.ReplicaSetStatus{Conditions: []appsv1.ReplicaSetCondition{{
			Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: "quota"}}}
	}
	for name, tc := range map[string]struct {
		reason      string
		leaves      []Leaf
		notPlaced   *Reason
		was         int64 // observedGeneration, of 3
		observed    int64
		counts      counts
		terminating *int32
		conditions  map[string]string
	}{
		"Sum": {reason: "all counters",
			leaves: []Leaf{replicasIn("east", 3, ending(1)), replicasIn("west", 2, ending(0), func(_ *Leaf, r *appsv1.ReplicaSet) {
				r.Status.FullyLabeledReplicas, r.Status.ReadyReplicas, r.Status.AvailableReplicas = 1, 1, 0
			})},
			observed: 3, counts: counts{5, 4, 4, 3}, terminating: ptr.To[int32](1)},
		"OneIsLate": {reason: "observed by all or not at all", leaves: []Leaf{replicasIn("east", 3), replicasIn("west", 2, stale)},
			was: 2, observed: 2, counts: counts{5, 5, 5, 5}},
		"OneIsMissing": {reason: "the leaf is not made yet", leaves: []Leaf{replicasIn("east", 3), {Cluster: "west", Assigned: true}},
			was: 2, observed: 2, counts: counts{3, 3, 3, 3}},
		"Left": {reason: "what is being left is there", leaves: []Leaf{replicasIn("east", 3, left), replicasIn("west", 2)},
			observed: 3, counts: counts{5, 5, 5, 5}},
		"Lost": {reason: "not ready, and said so", leaves: []Leaf{replicasIn("east", 3), replicasIn("west", 2, away)},
			observed: 3, counts: counts{5, 5, 3, 3},
			conditions: map[string]string{ConditionSynced: `False Unreachable: Not heard of, their replicas count as not ready: cluster "west".`}},
		"Fails": {reason: "as its cluster says it", leaves: []Leaf{replicasIn("east", 3), replicasIn("west", 2, fails)},
			observed: 3, counts: counts{3, 3, 3, 3},
			conditions: map[string]string{"ReplicaFailure": `True FailedCreate: cluster "west": FailedCreate: quota`}},
		"FailsWhereLeft": {reason: "nothing is to be made there", leaves: []Leaf{replicasIn("east", 3), replicasIn("west", 2, fails, left)},
			observed: 3, counts: counts{3, 3, 3, 3}},
		"Refused": {reason: "in the cluster's words", leaves: []Leaf{replicasIn("east", 3, stale, func(l *Leaf, r *appsv1.ReplicaSet) {
			l.Refused, r.Status = &workloadv1alpha1.Refusal{Reason: "TakenOver", Message: "Deployment web"}, appsv1.ReplicaSetStatus{}
		})}, was: 2, observed: 2,
			conditions: map[string]string{ConditionSynced: `False TakenOver: cluster "east" refused it (TakenOver): Deployment web`}},
		"NotPlaced": {reason: "the Placement's words", notPlaced: &Reason{"NotPlaced", "No cluster."}, was: 2, observed: 2,
			conditions: map[string]string{ConditionPlaced: "False NotPlaced: No cluster."}},
	} {
		t.Run(name, func(t *testing.T) {
			root := &appsv1.ReplicaSet{
				ObjectMeta: metav1.ObjectMeta{Name: "web", Generation: 3},
				Spec:       appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](5)},
				Status:     appsv1.ReplicaSetStatus{ObservedGeneration: tc.was, Replicas: 9, TerminatingReplicas: ptr.To[int32](9)},
			}
			view := View{Leaves: tc.leaves, NotPlaced: tc.notPlaced, Desired: 5, Now: time.Unix(1000, 0)}
			summariseReplicaSet(root, view)
			s := root.Status
			if s.ObservedGeneration != tc.observed {
				t.Errorf("%s: observedGeneration = %d, want %d", tc.reason, s.ObservedGeneration, tc.observed)
			}
			if diff := cmp.Diff(tc.counts, counts{s.Replicas, s.FullyLabeledReplicas, s.ReadyReplicas, s.AvailableReplicas}); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.terminating, s.TerminatingReplicas); diff != "" {
				t.Errorf("%s: on their way out: -want, +got:\n%s", tc.reason, diff)
			}
			var conditions map[string]string
			for _, c := range s.Conditions {
				if conditions == nil {
					conditions = map[string]string{}
				}
				conditions[string(c.Type)] = string(c.Status) + " " + c.Reason + ": " + c.Message
			}
			if diff := cmp.Diff(tc.conditions, conditions); diff != "" {
				t.Errorf("%s: conditions: -want, +got:\n%s", tc.reason, diff)
			}
			before := root.DeepCopy()
			view.Now = view.Now.Add(time.Hour)
			summariseReplicaSet(root, view)
			if diff := cmp.Diff(before, root); diff != "" {
				t.Errorf("%s: the same leaves give another status an hour later: -before, +after:\n%s", tc.reason, diff)
			}
		})
	}
}
