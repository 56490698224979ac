package syncer

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

const theTarget = "target"

// boundOf is a pod that is bound, and is the one with that UID below, unless that is "".
func boundOf(uid, phase, ready string) *unstructured.Unstructured {
	pod := testPod("above", phase, ready)
	pod.SetFinalizers([]string{workloadv1alpha1.SyncerFinalizer})
	pod.SetLabels(map[string]string{workloadv1alpha1.WorkspaceLabel: "w", workloadv1alpha1.RootUIDLabel: "above"})
	if uid != "" {
		pod.SetAnnotations(map[string]string{workloadv1alpha1.PodUIDAnnotation: uid})
	}
	return pod
}

// madeOf is one below that was made of the pod of a root.
func madeOf(root, uid, phase, ready string) *unstructured.Unstructured {
	pod := testPod(uid, phase, ready)
	pod.SetLabels(map[string]string{workloadv1alpha1.WorkspaceLabel: "w", workloadv1alpha1.RootUIDLabel: root, workloadv1alpha1.SyncTargetLabel: theTarget})
	return pod
}

func withLabel(pod *unstructured.Unstructured, label, value string) *unstructured.Unstructured {
	labels := pod.GetLabels()
	labels[label] = value
	pod.SetLabels(labels)
	return pod
}

func TestToRun(t *testing.T) {
	for name, tc := range map[string]struct {
		reason       string
		bound, below *unstructured.Unstructured
		want         showing
	}{
		"new":                   {"it was not made yet", boundOf("", "Pending", "False"), nil, runIt},
		"made, and not told":    {"a crash came between", boundOf("", "Pending", "False"), madeOf("above", "a", "Pending", "False"), adoptIt},
		"made, and ends":        {"it is told first which it is", boundOf("", "Pending", "False"), ending(madeOf("above", "a", "Running", "True")), adoptIt},
		"name is taken":         {"by somebody's pod", boundOf("", "Pending", "False"), testPod("b", "Running", "True"), giveUp},
		"name is taken by ours": {"the one from before goes first", boundOf("", "Pending", "False"), ending(madeOf("before", "b", "Running", "True")), giveUp},
		"another's":             {"another Atoll's is not ours", boundOf("", "Pending", "False"), withLabel(madeOf("above", "b", "Running", "True"), workloadv1alpha1.SyncTargetLabel, "other"), giveUp},
		"other workspace":       {"nothing of one reaches another", boundOf("", "Pending", "False"), withLabel(madeOf("above", "b", "Running", "True"), workloadv1alpha1.WorkspaceLabel, "v"), giveUp},
		"never made, and ends":  {"there is nothing to wait for", ending(boundOf("", "Pending", "False")), nil, tellItEnded},
		"never made, and taken": {"what has its name is not touched", ending(boundOf("", "Pending", "False")), testPod("b", "Running", "True"), tellItEnded},
		"untold, and ends":      {"what was made is ended", ending(boundOf("", "Pending", "False")), madeOf("above", "a", "Running", "True"), endIt},
		"same":                  {"a second pass writes nothing", boundOf("a", "Running", "True"), madeOf("above", "a", "Running", "True"), showNothing},
		"changed":               {"its status is another one", boundOf("a", "Pending", "False"), madeOf("above", "a", "Running", "True"), tellStatus},
		"gone":                  {"it is not made again", boundOf("a", "Running", "True"), nil, tellItEnded},
		"another":               {"nor is what somebody made in its place taken for it", boundOf("a", "Running", "True"), madeOf("above", "b", "Running", "True"), tellItEnded},
		"ended, and gone":       {"how it ended stays", boundOf("a", "Succeeded", "False"), nil, showNothing},
		"ended, deleted":        {"until somebody deletes it", ending(boundOf("a", "Failed", "False")), nil, tellItEnded},
		"ends below":            {"somebody deletes it there", boundOf("a", "Running", "True"), ending(madeOf("above", "a", "Running", "True")), tellItEnds},
		"ends above":            {"somebody deletes it here", ending(boundOf("a", "Running", "True")), madeOf("above", "a", "Running", "True"), endIt},
		"ends":                  {"it takes its time", ending(boundOf("a", "Running", "True")), ending(madeOf("above", "a", "Running", "True")), showNothing},
		"ends, unlabelled":      {"what has lost our label is not deleted", ending(boundOf("a", "Running", "True")), testPod("a", "Running", "True"), tellItEnded},
	} {
		if got := toRun(tc.bound, tc.below, theTarget); got != tc.want {
			t.Errorf("%s: %q, want %q: %s", name, got, tc.want, tc.reason)
		}
	}
}

// TestRelabelled: what was ours and is not any more is taken away, and what others wrote is not; but a pod keeps what its namespace is called, which its
// containers read, although who shows it does not know of that.
func TestRelabelled(t *testing.T) {
	const rendered, note, told = workloadv1alpha1.RenderedAnnotation, "note", workloadv1alpha1.NamespaceAnnotation
	below := madeOf("above", "a", "Running", "True")
	below.SetAnnotations(map[string]string{rendered: "1", note: "mine", told: "shop", "theirs": "x"})
	below.SetManagedFields([]metav1.ManagedFieldsEntry{
		{Manager: workloadv1alpha1.FieldManager, FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{".":{},"f:` + rendered + `":{},"f:` + note + `":{},"f:` + told + `":{}},"f:labels":{".":{},"f:app":{}}}}`)},
		{Manager: "somebody", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:theirs":{}}}}`)},
	})
	for name, tc := range map[string]struct {
		shown map[string]string
		want  map[string]any
	}{
		"by a server that knows of it": {map[string]string{rendered: "2", told: "shop"}, map[string]any{rendered: "2", note: nil, told: "shop"}},
		"by one of before":             {map[string]string{rendered: "2"}, map[string]any{rendered: "2", note: nil}},
	} {
		want := boundOf("a", "Running", "True")
		want.SetAnnotations(tc.shown)
		data, err := relabelled(want, below)
		if err != nil {
			t.Fatal(err)
		}
		var patch struct {
			Metadata struct{ Labels, Annotations map[string]any }
		}
		if err := json.Unmarshal(data, &patch); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tc.want, patch.Metadata.Annotations); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if app, is := patch.Metadata.Labels["app"]; !is || app != nil {
			t.Errorf("%s: labels %v, want app to be taken away", name, patch.Metadata.Labels)
		}
	}
}
