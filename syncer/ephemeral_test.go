package syncer

import (
	"encoding/json"
	"errors"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

// with adds ephemeral containers to a pod.
func with(pod *unstructured.Unstructured, names ...string) *unstructured.Unstructured {
	var all []any
	for _, name := range names {
		all = append(all, map[string]any{"name": name, "image": "i", "targetContainerName": "c"})
	}
	if err := unstructured.SetNestedSlice(pod.Object, all, "spec", "ephemeralContainers"); err != nil {
		panic(err)
	}
	return pod
}

func TestAddedContainers(t *testing.T) {
	for name, tc := range map[string]struct {
		reason       string
		shown, below *unstructured.Unstructured
		want         []string
		deed         showing
	}{
		"none":           {"as nearly always", shownOf("a", "Running", "True"), testPod("a", "Running", "True"), nil, showNothing},
		"added":          {"somebody debugs it", with(shownOf("a", "Running", "True"), "d"), testPod("a", "Running", "True"), []string{"d"}, addTo},
		"another":        {"each is added once", with(shownOf("a", "Running", "True"), "d", "e"), with(testPod("a", "Running", "True"), "d"), []string{"e"}, addTo},
		"there":          {"a second pass writes nothing", with(shownOf("a", "Running", "True"), "d"), with(testPod("a", "Running", "True"), "d"), nil, showNothing},
		"added below":    {"it is nobody's to take away", shownOf("a", "Running", "True"), with(testPod("a", "Running", "True"), "d"), nil, showNothing},
		"status first":   {"one that is refused keeps no status from being told", with(shownOf("a", "Pending", "False"), "d"), testPod("a", "Running", "True"), []string{"d"}, tellStatus},
		"another pod":    {"of its name, since", with(shownOf("a", "Running", "True"), "d"), testPod("b", "Running", "True"), nil, tellItEnded},
		"gone":           {"there is none below", with(shownOf("a", "Running", "True"), "d"), nil, nil, tellItEnded},
		"ends":           {"nothing begins in it", with(ending(shownOf("a", "Running", "True")), "d"), ending(testPod("a", "Running", "True")), nil, showNothing},
		"bound":          {"one that was made in the workspace; its labels come first", with(boundOf("a", "Running", "True"), "d"), madeOf("above", "a", "Running", "True"), []string{"d"}, relabelIt},
		"bound, another": {"its name is somebody else's below", with(boundOf("a", "Succeeded", "False"), "d"), testPod("b", "Running", "True"), nil, showNothing},
	} {
		var got []string
		for _, c := range addedContainers(tc.shown, tc.below) {
			got = append(got, nameOf(c).(string))
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: (-want +got) %s: %s", name, diff, tc.reason)
		}
		s := &Syncer{config: Config{UID: string(theTarget)}}
		if deed := s.deedFor(tc.shown, tc.below); deed != tc.deed {
			t.Errorf("%s: %q, want %q: %s", name, deed, tc.deed, tc.reason)
		}
	}
}

// What is kept of a pod that is shown is what others may add to it.
func TestThinShown(t *testing.T) {
	pod := with(testPod("a", "Running", "True"), "d")
	pod.Object["spec"].(map[string]any)["containers"] = []any{map[string]any{"name": "c"}}
	want := map[string]any{"ephemeralContainers": []any{map[string]any{"name": "d", "image": "i", "targetContainerName": "c"}}}
	if diff := cmp.Diff(want, thinShown(pod).Object["spec"]); diff != "" {
		t.Errorf("(-want +got) %s", diff)
	}
	plain := testPod("a", "Running", "True")
	plain.Object["spec"] = map[string]any{"containers": []any{map[string]any{"name": "c"}}}
	if spec, ok := thinShown(plain).Object["spec"]; ok {
		t.Errorf("without any its spec is %v", spec)
	}
}

// TestRefusedContainerIsToldOnce: each try is refused, and who looks at the pod is told when there is news.
func TestRefusedContainerIsToldOnce(t *testing.T) {
	var told []string
	hub := http.StatusOK
	s := newIdle(t, func(w http.ResponseWriter, req *http.Request) {
		var event unstructured.Unstructured
		if err := json.NewDecoder(req.Body).Decode(&event.Object); err != nil {
			t.Error(err)
		}
		if hub != http.StatusOK {
			notFound(t, w)
			return
		}
		message, _, _ := unstructured.NestedString(event.Object, "message")
		told = append(told, event.GetName()+": "+message)
		answer(t, w, http.StatusOK, event.Object)
	}, func(http.ResponseWriter, *http.Request) { t.Error("a request went down") })
	refuse := func(name string, err error) {
		s.tellContainerRefused(t.Context(), key{podsGVR, "shop-1a", "web-1"}, "u", map[string]any{"name": name}, err)
	}
	privileged := apierrors.NewForbidden(podsGVR.GroupResource(), "web-1", errors.New("privileged"))
	for _, step := range []struct {
		reason, container string
		err               error
		hub               int
		want              int // Events that were written until then
	}{
		{"the hub does not take it", "d", privileged, http.StatusNotFound, 0},
		{"what could not be told is told with the next try", "d", privileged, http.StatusOK, 1},
		{"it is no news", "d", privileged, http.StatusOK, 1},
		{"it is of another container", "e", privileged, http.StatusOK, 2},
		{"it has other words", "d", apierrors.NewForbidden(podsGVR.GroupResource(), "web-1", errors.New("no right")), http.StatusOK, 3},
		{"nothing is known where nobody answers", "f", apierrors.NewInternalError(errors.New("down")), http.StatusOK, 3},
	} {
		hub = step.hub
		if refuse(step.container, step.err); len(told) != step.want {
			t.Fatalf("%s: told %q, want %d", step.reason, told, step.want)
		}
	}
}

// TestAddedContainersAreTold: an ephemeral container of a pod that is told what its namespace is called in the workspace is told it, too; of another pod it
// is told what it asks for, whatever annotations the pod has of its author.
func TestAddedContainersAreTold(t *testing.T) {
	container := func(name, field string) map[string]any {
		return map[string]any{"name": name, "image": "i", "env": []any{
			map[string]any{"name": "PLAIN", "value": "p"},
			map[string]any{"name": "POD", "valueFrom": map[string]any{"fieldRef": map[string]any{"fieldPath": "metadata.name"}}},
			map[string]any{"name": "NAMESPACE", "valueFrom": map[string]any{"fieldRef": map[string]any{"fieldPath": field}}},
		}}
	}
	for name, tc := range map[string]struct {
		annotation string // of the pod below; empty for none
		want       string
	}{
		"told":         {"shop", kinds.ToldNamespaceField},
		"untold":       {"", kinds.NamespaceField},
		"by its owner": {"kube-system", kinds.NamespaceField},
	} {
		shown, below := shownOf("a", "Running", "True"), testPod("a", "Running", "True")
		for _, pod := range []*unstructured.Unstructured{shown, below} {
			pod.SetAPIVersion("v1")
			pod.SetKind("Pod")
		}
		if tc.annotation != "" {
			below.SetAnnotations(map[string]string{workloadv1alpha1.NamespaceAnnotation: tc.annotation})
		}
		if err := unstructured.SetNestedSlice(shown.Object, []any{container("debug", kinds.NamespaceField)}, "spec", "ephemeralContainers"); err != nil {
			t.Fatal(err)
		}
		var added any
		s := newIdle(t, func(w http.ResponseWriter, _ *http.Request) { answer(t, w, http.StatusOK, shown.Object) }, func(w http.ResponseWriter, req *http.Request) {
			if req.Method != http.MethodPatch {
				answer(t, w, http.StatusOK, below.Object)
				return
			}
			var patch struct {
				Spec struct{ EphemeralContainers []any }
			}
			if err := json.NewDecoder(req.Body).Decode(&patch); err != nil || len(patch.Spec.EphemeralContainers) != 1 {
				t.Errorf("%v: %+v", err, patch)
				return
			}
			added = patch.Spec.EphemeralContainers[0]
			answer(t, w, http.StatusOK, below.Object)
		})
		namespace := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace"}}
		namespace.SetName("shop-1a")
		namespace.SetAnnotations(map[string]string{workloadv1alpha1.RootAnnotation: "/shop"})
		if err := s.mirror.informers[namespacesGVR].Add(namespace); err != nil {
			t.Fatal(err)
		}
		if err := s.addToPod(t.Context(), keyOfPod(below), shown); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(any(container("debug", tc.want)), added); diff != "" {
			t.Errorf("%s: what is added (-want +got):\n%s", name, diff)
		}
	}
	// What is no container is nobody's to read.
	for _, odd := range []any{nil, "debug", map[string]any{"name": "d"}, map[string]any{"env": "x"}, map[string]any{"env": []any{"x", map[string]any{"valueFrom": "y"}, map[string]any{"valueFrom": map[string]any{"fieldRef": "z"}}}}} {
		if diff := cmp.Diff(odd, readingTold(odd)); diff != "" {
			t.Errorf("%v is changed:\n%s", odd, diff)
		}
	}
}
