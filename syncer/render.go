package syncer

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// keptHere are the annotations of a leaf that mean nothing downstream, or would start a rollout or a fight there.
var keptHere = slices.Concat([]string{
	lcctx.Annotation,
	lcctx.PathAnnotation,
	workloadv1alpha1.DrainingAnnotation,
	workloadv1alpha1.APIAccessAnnotation,
	workloadv1alpha1.ResizedAnnotation,
	workloadv1alpha1.TemplateAnnotation,
	workloadv1alpha1.EarlierTemplateAnnotation,
}, workloadv1alpha1.SyncerAnnotations, kinds.OwnAnnotations)

// render returns what is applied downstream for a leaf: name, labels, annotations, and every top-level field but
// status. Whatever a server fills in is left out, so that the physical cluster's own values stay.
func render(leaf *unstructured.Unstructured, target types.UID) *unstructured.Unstructured {
	content := map[string]any{}
	for field, value := range leaf.Object {
		if field != "metadata" && field != "status" {
			content[field] = runtime.DeepCopyJSONValue(value)
		}
	}
	down := &unstructured.Unstructured{Object: content}
	down.SetName(leaf.GetName())
	down.SetNamespace(leaf.GetNamespace())

	labels := maps.Clone(leaf.GetLabels())
	if labels == nil {
		labels = map[string]string{}
	}
	labels[workloadv1alpha1.SyncTargetLabel] = string(target)
	down.SetLabels(labels)

	annotations := leaf.GetAnnotations() // a copy
	for _, a := range keptHere {
		delete(annotations, a)
	}
	if len(annotations) > 0 {
		down.SetAnnotations(annotations)
	}
	if leaf.GetKind() == "Service" {
		dropAllocated(down)
	}
	return down
}

// dropAllocated removes what a Service gets from the cluster it is in. "None" is the user's word and stays.
func dropAllocated(service *unstructured.Unstructured) {
	if ip, _, _ := unstructured.NestedString(service.Object, "spec", "clusterIP"); ip == corev1.ClusterIPNone {
		return
	}
	for _, field := range []string{"clusterIP", "clusterIPs", "healthCheckNodePort"} {
		unstructured.RemoveNestedField(service.Object, "spec", field)
	}
}

// upToDate says whether live carries everything that rendered says. A field that only the physical cluster knows is
// no difference; that a field was taken out of the leaf shows in its RenderedAnnotation.
//
// It may say no where only the spelling differs: the apply that follows changes nothing then, and brings no event.
func upToDate(rendered, live *unstructured.Unstructured) bool {
	for field, value := range rendered.Object {
		if field == "metadata" {
			continue
		}
		if !covers(value, live.Object[field]) {
			return false
		}
	}
	return coversMap(rendered.GetLabels(), live.GetLabels()) && coversMap(rendered.GetAnnotations(), live.GetAnnotations())
}

func coversMap(want, have map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// covers compares JSON values: maps by the keys of want, lists element by element, all else for equality.
func covers(want, have any) bool {
	switch want := want.(type) {
	case map[string]any:
		have, ok := have.(map[string]any)
		if !ok {
			return len(want) == 0 // an empty map and none are one in the typed API
		}
		for k, v := range want {
			got, ok := have[k]
			if !ok && !empty(v) || ok && !covers(v, got) {
				return false
			}
		}
		return true
	case []any:
		have, ok := have.([]any)
		if !ok {
			return len(want) == 0
		}
		return slices.EqualFunc(want, have, covers)
	}
	return apiequality.Semantic.DeepEqual(want, have)
}

// empty says whether the typed API may leave v out.
func empty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}

// owned says whether a downstream object is the syncer's to change.
func owned(down *unstructured.Unstructured, target types.UID) bool {
	return down.GetLabels()[workloadv1alpha1.SyncTargetLabel] == string(target)
}

// ownerOf says whose a downstream object is that is not the syncer's, and what to do about it.
func ownerOf(down *unstructured.Unstructured) string {
	other := down.GetLabels()[workloadv1alpha1.SyncTargetLabel]
	if other == "" {
		return "is not Atoll's"
	}
	return fmt.Sprintf("belongs to another registration of this cluster, the SyncTarget with UID %s. Is this one a duplicate of that, remove this one: what is there is in use. "+
		"It may be another Atoll's, too. Only if no Atoll has that SyncTarget any more, delete what it left in the cluster when it was removed, such as volumes, and what it could not reach", other)
}

// sameRoot says whether a downstream object was made for the leaf's root. Leaves of namespaces have no root's UID;
// their workspace decides.
func sameRoot(leaf, down *unstructured.Unstructured) bool {
	l, d := leaf.GetLabels(), down.GetLabels()
	return l[workloadv1alpha1.WorkspaceLabel] == d[workloadv1alpha1.WorkspaceLabel] &&
		l[workloadv1alpha1.RootUIDLabel] == d[workloadv1alpha1.RootUIDLabel]
}
