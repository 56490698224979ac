package splitter

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// TestStuckUpdateKeepsWhatServes: a cluster that has given up waiting for an update still has old pods that serve beside new
// ones that do not. Of fewer replicas it takes away both in proportion, so leaving it must not begin before the replacement.
func TestStuckUpdateKeepsWhatServes(t *testing.T) {
	stuck := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Generation: 2, Annotations: map[string]string{
			workloadv1alpha1.RenderedAnnotation: "h", workloadv1alpha1.AppliedAnnotation: "h"}},
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](4)},
		Status: appsv1.DeploymentStatus{
			ObservedGeneration: 2, Replicas: 5, UpdatedReplicas: 2, ReadyReplicas: 3, AvailableReplicas: 3, UnavailableReplicas: 2,
			Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ProgressDeadlineExceeded"}},
		},
	}
	st := &site{id: "a", leaf: stuck}
	steps := Plan([]Cluster{
		{Name: "a", Leaf: st.state()},
		{Name: "b", Assigned: true, Target: 4, Leaf: settled(4, 4, 0)},
	}, false)
	if got := steps["a"]; got.Replicas < 4 || got.Delete {
		t.Errorf("with nothing available elsewhere, the cluster with 3 pods that serve is to do %+v", got)
	}
}

// TestOldRoot: a leaf that was read just now may be the rendering of a generation that the informer has not shown yet.
func TestOldRoot(t *testing.T) {
	root := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{UID: "root", Generation: 4}}
	for reason, test := range map[string]struct {
		uid, generation string
		want            bool
	}{
		"another has written it":         {"root", "5", true},
		"as seen":                        {"root", "4", false},
		"to be written":                  {"root", "3", false},
		"of an earlier root of its name": {"before", "9", false},
		"says nothing":                   {"root", "", false},
	} {
		leaf := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
			Labels:      map[string]string{workloadv1alpha1.RootUIDLabel: test.uid},
			Annotations: map[string]string{workloadv1alpha1.RootGenerationAnnotation: test.generation},
		}}
		if got := isAhead(leaf, root); got != test.want {
			t.Errorf("%s: %v, want %v", reason, got, test.want)
		}
	}
}
