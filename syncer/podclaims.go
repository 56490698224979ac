package syncer

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
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

// immutable are the fields of a claim's spec that nobody changes once it is there.
var immutable = []string{"accessModes", "dataSource", "dataSourceRef", "selector", "storageClassName", "volumeMode"}

// keepClaim makes of a claim that is to be written over a downstream one what can be written: the physical cluster's controller may have given that another class, or
// an administrator there may have let it grow. Who asks for less than it was to grow to, and more than it has, is let through, as his cluster would.
func keepClaim(want, live *unstructured.Unstructured) error {
	now, ok := live.Object["spec"].(map[string]any)
	if !ok {
		return nil
	}
	for _, field := range immutable {
		if value, ok := now[field]; ok {
			if err := unstructured.SetNestedField(want.Object, runtime.DeepCopyJSONValue(value), "spec", field); err != nil {
				return fmt.Errorf("keep %s of claim %s: %w", field, want.GetName(), err)
			}
		} else {
			unstructured.RemoveNestedField(want.Object, "spec", field)
		}
	}
	storage := func(o *unstructured.Unstructured, path ...string) (string, *resource.Quantity) {
		text, ok, _ := unstructured.NestedString(o.Object, append(path, string(corev1.ResourceStorage))...)
		if q, err := resource.ParseQuantity(text); ok && err == nil {
			return text, &q
		}
		return text, nil
	}
	requests := []string{"spec", "resources", "requests"}
	_, asked := storage(want, requests...)
	text, has := storage(live, requests...)
	_, capacity := storage(live, "status", "capacity")
	if asked == nil || has == nil || asked.Cmp(*has) > 0 || capacity != nil && asked.Cmp(*capacity) > 0 {
		return nil
	}
	return unstructured.SetNestedField(want.Object, text, append(requests, string(corev1.ResourceStorage))...)
}

// rendered returns what a leaf asks to be downstream, where down is now, nil if nothing is.
func (s *Syncer) rendered(k key, leaf, down *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	want := render(leaf, types.UID(s.config.UID))
	if k.resource == claimsGVR && down != nil {
		return want, keepClaim(want, down)
	}
	return want, nil
}
