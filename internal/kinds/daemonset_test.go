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

func TestDaemonSetGoesDown(t *testing.T) {
	root := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "agent", Annotations: map[string]string{appsv1.DeprecatedTemplateGeneration: "7", "team": "a"}},
		Spec: appsv1.DaemonSetSpec{
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType},
			Template:       corev1.PodTemplateSpec{Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "agent"}}}},
		},
		Status: appsv1.DaemonSetStatus{NumberReady: 3},
	}
	k, _ := ByKind("DaemonSet")
	want := &appsv1.DaemonSet{Spec: *root.Spec.DeepCopy()}
	want.Spec.Template.Spec.NodeName, want.Spec.Template.Spec.AutomountServiceAccountToken = "", ptr.To(false)
	if diff := cmp.Diff(want, k.Content(root)); diff != "" {
		t.Errorf("its spec goes down whole, without a node's name and without a token: -want, +got:\n%s", diff)
	}
	// The workspace counts its own templates: below, the number would be fought over.
	if _, annotations := Metadata(root); !cmp.Equal(annotations, map[string]string{"team": "a"}) {
		t.Errorf("annotations that go down are %v", annotations)
	}
	if got := k.WhatIsDropped(root); len(got) != 1 {
		t.Errorf("the user is told of %v, want the node's name", got)
	}
}

// TestDaemonSetServes: where pods are replaced by hand, those of an earlier template serve, and what they need they need yet.
func TestDaemonSetServes(t *testing.T) {
	byHand := func(_ *Leaf, d *appsv1.DaemonSet) {
		d.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType
	}
	earlier := func(_ *Leaf, d *appsv1.DaemonSet) { d.Status.UpdatedNumberScheduled-- }
	down := func(_ *Leaf, d *appsv1.DaemonSet) { d.Status.NumberAvailable-- }
	unsettled := func(l *Leaf, _ *appsv1.DaemonSet) { l.Settled = false }
	for name, tc := range map[string]struct {
		leaf             Leaf
		serves, finished bool
	}{
		"rolled out":                   {nodes("east", 3), true, true},
		"rolling":                      {nodes("east", 3, earlier), false, false},
		"a node is down":               {nodes("east", 3, down), false, false},
		"by hand, all replaced":        {nodes("east", 3, byHand), true, true},
		"by hand, not all replaced":    {nodes("east", 3, byHand, earlier), true, false},
		"by hand, a node is down":      {nodes("east", 3, byHand, earlier, down), false, false},
		"by hand, not seen by anybody": {nodes("east", 3, byHand, unsettled), false, false},
		"none":                         {Leaf{Settled: true}, false, false},
	} {
		if got := [2]bool{tc.leaf.Serves(), tc.leaf.Finished()}; got != [2]bool{tc.serves, tc.finished} {
			t.Errorf("%s: serves and is finished: %v, want %v, %v", name, got, tc.serves, tc.finished)
		}
	}
}

// nodes is a leaf that serves on that many nodes.
func nodes(cluster string, n int32, changes ...func(*Leaf, *appsv1.DaemonSet)) Leaf {
	d := &appsv1.DaemonSet{Status: appsv1.DaemonSetStatus{
		CurrentNumberScheduled: n, DesiredNumberScheduled: n, NumberReady: n, UpdatedNumberScheduled: n, NumberAvailable: n}}
	l := Leaf{Cluster: cluster, Assigned: true, Current: true, Settled: true, Object: d}
	for _, change := range changes {
		change(&l, d)
	}
	return l
}

func TestSummariseDaemonSet(t *testing.T) {
	type counts struct{ Current, Misscheduled, Desired, Ready, Updated, Available, Unavailable int32 }
	away := func(l *Leaf, _ *appsv1.DaemonSet) { l.Lost = true }
	left := func(l *Leaf, _ *appsv1.DaemonSet) { l.Assigned = false }
	stale := func(l *Leaf, _ *appsv1.DaemonSet) { l.Settled = false }
	tests := map[string]struct {
		reason     string
		leaves     []Leaf
		notPlaced  *Reason
		was        int64 // observedGeneration, of 3
		observed   int64
		counts     counts
		conditions map[string]string
		done       bool // as `kubectl rollout status` has it
	}{
		"Sum": {reason: "all seven counters",
			leaves: []Leaf{nodes("east", 3), nodes("west", 2, func(_ *Leaf, d *appsv1.DaemonSet) {
				d.Status.NumberMisscheduled, d.Status.NumberReady, d.Status.NumberAvailable, d.Status.NumberUnavailable = 1, 1, 1, 1
			})},
			observed: 3, counts: counts{5, 1, 5, 4, 5, 4, 1}},
		"Serves": {reason: "every node of every cluster", leaves: []Leaf{nodes("east", 3), nodes("west", 2)},
			observed: 3, counts: counts{5, 0, 5, 5, 5, 5, 0}, done: true},
		"OneIsLate": {reason: "observed by all or not at all", leaves: []Leaf{nodes("east", 3), nodes("west", 2, stale)},
			was: 2, observed: 2, counts: counts{5, 0, 5, 5, 3, 5, 0}},
		"OneIsMissing": {reason: "the leaf is not made yet", leaves: []Leaf{nodes("east", 3), {Cluster: "west", Assigned: true}},
			was: 2, observed: 2, counts: counts{3, 0, 3, 3, 3, 3, 0}},
		"Left": {reason: "a rollout ends with the move", leaves: []Leaf{nodes("east", 3, left), nodes("west", 2)},
			observed: 3, counts: counts{5, 0, 5, 5, 2, 5, 0}},
		"MetadataGoesDown": {reason: "what was told of this generation holds", leaves: []Leaf{nodes("east", 3, stale)},
			was: 3, observed: 3, counts: counts{3, 0, 3, 3, 3, 3, 0}, done: true},
		"Lost": {reason: "not ready, and said so", leaves: []Leaf{nodes("east", 3), nodes("west", 2, away)},
			observed: 3, counts: counts{5, 0, 5, 3, 5, 3, 2},
			conditions: map[string]string{ConditionSynced: `Unreachable: Not heard of, their replicas count as not ready: cluster "west".`}},
		"AllLost": {reason: "nobody has observed anything", leaves: []Leaf{nodes("east", 3, away)},
			was: 2, observed: 2, counts: counts{3, 0, 3, 0, 3, 0, 3},
			conditions: map[string]string{ConditionSynced: `Unreachable: Not heard of, their replicas count as not ready: cluster "east".`}},
		"Refused": {reason: "in the cluster's words", leaves: []Leaf{nodes("east", 3, stale, func(l *Leaf, d *appsv1.DaemonSet) {
			l.Refused, d.Status = &workloadv1alpha1.Refusal{Reason: "Forbidden", Message: "no host paths"}, appsv1.DaemonSetStatus{}
		})}, was: 2, observed: 2,
			conditions: map[string]string{ConditionSynced: `Forbidden: cluster "east" refused it (Forbidden): no host paths`}},
		"NotPlaced": {reason: "the Placement's words", notPlaced: &Reason{"NotPlaced", "No cluster."}, was: 2, observed: 2,
			conditions: map[string]string{ConditionPlaced: "NotPlaced: No cluster."}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			root := &appsv1.DaemonSet{
				TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
				ObjectMeta: metav1.ObjectMeta{Name: "agent", Generation: 3},
				Spec:       appsv1.DaemonSetSpec{UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType}},
				Status:     appsv1.DaemonSetStatus{ObservedGeneration: tc.was, UpdatedNumberScheduled: 3},
			}
			view := View{Leaves: tc.leaves, NotPlaced: tc.notPlaced, Now: time.Unix(1000, 0)}
			summariseDaemonSet(root, view)
			s := root.Status
			if s.ObservedGeneration != tc.observed {
				t.Errorf("%s: observedGeneration = %d, want %d", tc.reason, s.ObservedGeneration, tc.observed)
			}
			got := counts{s.CurrentNumberScheduled, s.NumberMisscheduled, s.DesiredNumberScheduled, s.NumberReady,
				s.UpdatedNumberScheduled, s.NumberAvailable, s.NumberUnavailable}
			if diff := cmp.Diff(tc.counts, got); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
			var conditions map[string]string
			for _, c := range s.Conditions {
				if conditions == nil {
					conditions = map[string]string{}
				}
				conditions[string(c.Type)] = c.Reason + ": " + c.Message
			}
			if diff := cmp.Diff(tc.conditions, conditions); diff != "" {
				t.Errorf("%s: conditions: -want, +got:\n%s", tc.reason, diff)
			}
			if done := rolloutStatusEnds(t, "DaemonSet", root); done != tc.done {
				t.Errorf("%s: rollout status ends: %v, want %v", tc.reason, done, tc.done)
			}
			before := root.DeepCopy()
			view.Now = view.Now.Add(time.Hour)
			summariseDaemonSet(root, view)
			if diff := cmp.Diff(before, root); diff != "" {
				t.Errorf("%s: the same leaves give another status an hour later: -before, +after:\n%s", tc.reason, diff)
			}
		})
	}
}

// rolloutStatusEnds is what `kubectl rollout status` decides; it takes a DaemonSet that wants no pod for done.
func rolloutStatusEnds(t *testing.T, kind string, o runtime.Object) bool {
	t.Helper()
	viewer, err := polymorphichelpers.StatusViewerFor(appsv1.SchemeGroupVersion.WithKind(kind).GroupKind())
	if err != nil {
		t.Fatal(err)
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		t.Fatal(err)
	}
	_, done, err := viewer.Status(&unstructured.Unstructured{Object: content}, 0)
	return done && err == nil
}
