package syncer

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

var claimsGVR = corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")

// isPodClaim says that a downstream claim, which nobody has labelled as his, is one that the physical cluster's controller of StatefulSets has made, or would take,
// for a pod of a StatefulSet which the mirror has in that namespace: by its name, and the labels that the controller gives it. It is data of the workspace, and
// the only thing that is taken over although the syncer did not make it. One that is being deleted is waited for.
func (s *Syncer) isPodClaim(k key, live *unstructured.Unstructured) bool {
	if k.resource != claimsGVR || live.GetDeletionTimestamp() != nil || live.GetLabels()[workloadv1alpha1.SyncTargetLabel] != "" || live.GetLabels()[workloadv1alpha1.WorkspaceLabel] != "" {
		return false
	}
	leaves := s.mirror.informers[statefulSetsGVR]
	if leaves == nil {
		return false
	}
	sets, err := leaves.ByIndex(cache.NamespaceIndex, k.namespace)
	if err != nil {
		return false
	}
	for _, o := range sets {
		set := &appsv1.StatefulSet{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.(*unstructured.Unstructured).Object, set); err != nil || set.Spec.Selector == nil || len(set.Spec.Selector.MatchLabels) == 0 {
			continue
		}
		if _, ok := kinds.OrdinalOf(set, k.name); ok && labels.SelectorFromSet(set.Spec.Selector.MatchLabels).Matches(labels.Set(live.GetLabels())) {
			return true
		}
	}
	return false
}

// keepClaim makes of a claim that is to be written over a downstream one what can be written: nothing of its spec changes but what it asks for, which only grows.
// The physical cluster's controller may have given it another class, or an administrator there may have let it grow.
func keepClaim(want, live *unstructured.Unstructured) error {
	spec, _, err := unstructured.NestedMap(live.Object, "spec")
	if err != nil || spec == nil {
		return err
	}
	delete(spec, "volumeName") // which its binder owns
	path := []string{"spec", "resources", "requests", string(corev1.ResourceStorage)}
	if asked, ok, _ := unstructured.NestedString(want.Object, path...); ok {
		has, _, _ := unstructured.NestedString(live.Object, path...)
		more, err := resource.ParseQuantity(asked)
		if err != nil {
			return fmt.Errorf("read what claim %s asks for: %w", want.GetName(), err)
		}
		if less, err := resource.ParseQuantity(has); err != nil || more.Cmp(less) > 0 {
			if err := unstructured.SetNestedField(spec, asked, path[1:]...); err != nil {
				return err
			}
		}
	}
	return unstructured.SetNestedMap(want.Object, spec, "spec")
}
