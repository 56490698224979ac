package kinds

import (
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

func controller(change ...func(*corev1.ReplicationController)) *corev1.ReplicationController {
	since := metav1.NewTime(time.Unix(500, 0))
	rc := &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Generation: 3, Labels: map[string]string{"app": "web"}},
		Spec: corev1.ReplicationControllerSpec{
			Replicas: ptr.To[int32](3), MinReadySeconds: 5, Selector: map[string]string{"app": "web"},
			Template: &corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web", "tier": "front"}},
				Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "web"}}},
			},
		},
		Status: corev1.ReplicationControllerStatus{
			Replicas: 5, FullyLabeledReplicas: 4, ReadyReplicas: 3, AvailableReplicas: 2, ObservedGeneration: 1,
			Conditions: []corev1.ReplicationControllerCondition{{
				Type: corev1.ReplicationControllerReplicaFailure, Status: corev1.ConditionTrue, LastTransitionTime: since, Reason: "FailedCreate", Message: "quota",
			}},
		},
	}
	for _, c := range change {
		c(rc)
	}
	return rc
}

func TestAsReplicaSet(t *testing.T) {
	rc := controller()
	want := &appsv1.ReplicaSet{
		ObjectMeta: rc.ObjectMeta,
		Spec: appsv1.ReplicaSetSpec{
			Replicas: ptr.To[int32](3), MinReadySeconds: 5, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: *rc.Spec.Template,
		},
		Status: appsv1.ReplicaSetStatus{
			Replicas: 5, FullyLabeledReplicas: 4, ReadyReplicas: 3, AvailableReplicas: 2, ObservedGeneration: 1,
			Conditions: []appsv1.ReplicaSetCondition{{
				Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, LastTransitionTime: rc.Status.Conditions[0].LastTransitionTime, Reason: "FailedCreate", Message: "quota",
			}},
		},
	}
	if diff := cmp.Diff(want, AsReplicaSet(rc)); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
	// None of their fields is left out, but of pods on their way out a ReplicationController says nothing.
	for of, fields := range map[reflect.Type]int{
		reflect.TypeFor[corev1.ReplicationControllerSpec](): 4, reflect.TypeFor[appsv1.ReplicaSetSpec](): 4,
		reflect.TypeFor[corev1.ReplicationControllerStatus](): 6, reflect.TypeFor[appsv1.ReplicaSetStatus](): 7,
		reflect.TypeFor[corev1.ReplicationControllerCondition](): 5, reflect.TypeFor[appsv1.ReplicaSetCondition](): 5,
	} {
		if of.NumField() != fields {
			t.Errorf("%s has %d fields, and %d are read and written here", of, of.NumField(), fields)
		}
	}
	for reason, tc := range map[string]struct {
		change func(*corev1.ReplicationController)
		want   map[string]string
	}{
		"it says none":      {func(rc *corev1.ReplicationController) { rc.Spec.Selector = nil }, map[string]string{"app": "web", "tier": "front"}},
		"it says an empty":  {func(rc *corev1.ReplicationController) { rc.Spec.Selector = map[string]string{} }, map[string]string{"app": "web", "tier": "front"}},
		"there is no pod":   {func(rc *corev1.ReplicationController) { rc.Spec.Template = nil }, map[string]string{"app": "web"}},
		"there is no thing": {func(rc *corev1.ReplicationController) { rc.Spec = corev1.ReplicationControllerSpec{} }, nil},
	} {
		if diff := cmp.Diff(tc.want, AsReplicaSet(controller(tc.change)).Spec.Selector.MatchLabels); diff != "" {
			t.Errorf("%s: -want, +got:\n%s", reason, diff)
		}
	}
	set := &appsv1.ReplicaSet{}
	if AsReplicaSet(set) != set || AsReplicaSet(&appsv1.Deployment{}) != nil || AsReplicaSet(nil) != nil {
		t.Error("a ReplicaSet is itself, and nothing else is one")
	}
}

func TestReplicationControllerGoesDown(t *testing.T) {
	root := controller()
	k, _ := ByKind("ReplicationController")
	want := &corev1.ReplicationController{Spec: *root.Spec.DeepCopy()}
	want.Spec.Template.Spec.NodeName, want.Spec.Template.Spec.AutomountServiceAccountToken = "", ptr.To(false)
	got := k.Content(root)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("its spec goes down, without a node's name and without a token: -want, +got:\n%s", diff)
	}
	if root.Spec.Template.Spec.NodeName != "n1" {
		t.Error("the root is changed")
	}
	if dropped := k.WhatIsDropped(root); len(dropped) != 1 || !k.Unlabelled {
		t.Errorf("the user is told of %v, want the node's name; its labels stay: %v", dropped, k.Unlabelled)
	}
	*k.Division(got).Replicas = ptr.To[int32](1)
	*k.Template(got) = corev1.PodTemplateSpec{}
	if part := k.Division(want); *got.(*corev1.ReplicationController).Spec.Replicas != 1 || len(got.(*corev1.ReplicationController).Spec.Template.Labels) != 0 || part.Strategy != nil || part.Asked() != 3 {
		t.Errorf("a cluster gets its share and its template: %+v", got)
	}
	if part := k.Division(root); part.Pods != 5 || part.Updated != 5 || part.Available != 2 || part.Terminating != 0 {
		t.Errorf("its clusters say %+v", part)
	}
	empty := &corev1.ReplicationController{}
	if k.Template(empty) == nil || k.Template(k.Content(empty)) == nil || k.Division(empty).Asked() != 1 {
		t.Error("one without anything has no template")
	}
}

// TestReplicationControllerHolds: whoever controls one in its workspace, it runs: nobody makes any below.
func TestReplicationControllerHolds(t *testing.T) {
	k, _ := ByKind("ReplicationController")
	for _, owner := range []metav1.OwnerReference{
		{}, {APIVersion: "apps.openshift.io/v1", Kind: "DeploymentConfig", Controller: ptr.To(true)}, {APIVersion: "apps/v1", Kind: "Deployment", Controller: ptr.To(true)},
	} {
		rc := controller(func(rc *corev1.ReplicationController) { rc.OwnerReferences = []metav1.OwnerReference{owner} })
		if !k.Holds(rc) || k.WhyWithheld(rc) != "" {
			t.Errorf("of %q: goes down: %v, and why not is %q", owner.Kind, k.Holds(rc), k.WhyWithheld(rc))
		}
	}
}

// TestSummariseReplicationController: what its leaves say is what those of a ReplicaSet would, in its own words.
func TestSummariseReplicationController(t *testing.T) {
	k, _ := ByKind("ReplicationController")
	leaf := func(cluster string, lost bool, n, serve int32, failure string) Leaf {
		rc := &corev1.ReplicationController{
			Spec:   corev1.ReplicationControllerSpec{Replicas: ptr.To(n)},
			Status: corev1.ReplicationControllerStatus{Replicas: n, FullyLabeledReplicas: n, ReadyReplicas: serve, AvailableReplicas: serve},
		}
		if failure != "" {
			rc.Status.Conditions = []corev1.ReplicationControllerCondition{{Type: corev1.ReplicationControllerReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: failure}}
		}
		return Leaf{Cluster: cluster, Assigned: true, Current: true, Settled: true, Lost: lost, Target: n, Object: rc}
	}
	east, west := leaf("east", false, 3, 2, "quota"), leaf("west", true, 2, 2, "")
	root := controller()
	k.Summarise(root, View{Leaves: []Leaf{east, west}, Desired: 5, Now: time.Unix(1000, 0)})
	want := corev1.ReplicationControllerStatus{
		Replicas: 5, FullyLabeledReplicas: 5, ReadyReplicas: 2, AvailableReplicas: 2, ObservedGeneration: 3,
		Conditions: []corev1.ReplicationControllerCondition{
			{Type: "ReplicaFailure", Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Unix(500, 0)), Reason: "FailedCreate", Message: `cluster "east": FailedCreate: quota`},
			{Type: ConditionSynced, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(time.Unix(1000, 0)), Reason: "Unreachable",
				Message: `Not heard of, their replicas count as not ready: cluster "west".`},
		},
	}
	if diff := cmp.Diff(want, root.Status); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
	for reason, tc := range map[string]struct {
		leaf                       Leaf
		finished, serves, observed bool
		wanted, ready              int32
		failing                    string
	}{
		"one is missing":      {east, false, false, true, 3, 2, "FailedCreate"},
		"all serve":           {leaf("east", false, 3, 3, ""), true, true, true, 3, 3, ""},
		"of another template": {earlierTemplate(leaf("east", false, 3, 3, "")), false, true, true, 3, 3, ""},
	} {
		wanted, ready := k.Pods(tc.leaf.Object)
		failing, _ := k.Failing(tc.leaf.Object)
		if tc.leaf.Finished() != tc.finished || tc.leaf.Serves() != tc.serves || k.Observed(tc.leaf.Object) != tc.observed || wanted != tc.wanted || ready != tc.ready || failing != tc.failing {
			t.Errorf("%s: is finished %v, serves %v, observed %v, %d of %d, failing %q, want %+v", reason, tc.leaf.Finished(), tc.leaf.Serves(), k.Observed(tc.leaf.Object), ready, wanted, failing, tc)
		}
	}
	if late := controller(); k.Observed(late) {
		t.Error("its controller has seen generation 1 of 3, and it is observed")
	}
}

func earlierTemplate(l Leaf) Leaf {
	l.Object.SetAnnotations(map[string]string{workloadv1alpha1.EarlierTemplateAnnotation: "true"})
	return l
}
