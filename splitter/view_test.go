package splitter

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

// TestOldRootsPods: what the Deployment of that name before this one runs is not what this one runs.
func TestOldRootsPods(t *testing.T) {
	root := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "new", Generation: 1}, Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](3)}}
	leaf := root.DeepCopy()
	leaf.Labels = map[string]string{workloadv1alpha1.RootUIDLabel: "old"}
	leaf.Annotations = map[string]string{workloadv1alpha1.RenderedAnnotation: "h", workloadv1alpha1.AppliedAnnotation: "h"}
	leaf.Status = appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 3, UpdatedReplicas: 3, ReadyReplicas: 3, AvailableReplicas: 3}
	k, _ := kinds.ByKind("Deployment")
	view := viewOf(&source{Kind: k}, root, &placementv1alpha1.Placement{}, []*site{{id: "a", name: "a", assigned: true, target: 3, leaf: leaf, old: true}}, time.Unix(0, 0))
	k.Summarise(root, view)
	if s := root.Status; s.AvailableReplicas != 0 || s.Replicas != 0 || s.ObservedGeneration != 0 {
		t.Errorf("status is %+v, want nothing of the old one's", s)
	}
}
