package syncer

import (
	"errors"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// setIn is a StatefulSet of a mirror whose pods have a claim each.
func setIn(namespace string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": map[string]any{"name": "db", "namespace": namespace},
		"spec": map[string]any{
			"selector": map[string]any{"matchLabels": map[string]any{"app": "db"}}, "replicas": int64(2),
			"volumeClaimTemplates": []any{map[string]any{"metadata": map[string]any{"name": "data"}, "spec": map[string]any{}}},
		},
	}}
}

// TestPodClaimIsTakenOver: what the controller of StatefulSets made for one of ours is ours, and nothing else is that we did not make.
func TestPodClaimIsTakenOver(t *testing.T) {
	claim := func(name string, labels map[string]string) *unstructured.Unstructured {
		o := claimWith(map[string]any{}, "Bound")
		o.SetNamespace("shop-1")
		o.SetName(name)
		o.SetUID("u")
		o.SetLabels(labels)
		return o
	}
	labelled := map[string]string{"app": "db"}
	unlabelling := setIn("shop-1")
	unstructured.RemoveNestedField(unlabelling.Object, "spec", "selector", "matchLabels")
	for name, tc := range map[string]struct {
		set  *unstructured.Unstructured
		name string
		live map[string]string
		want bool
	}{
		"its labels are not known": {unlabelling, "data-db-0", labelled, false},
		"its pod's":                {setIn("shop-1"), "data-db-0", labelled, true},
		"a pod's that it had":      {setIn("shop-1"), "data-db-7", labelled, true},
		"no StatefulSet":           {nil, "data-db-0", labelled, false},
		"of another namespace":     {setIn("bank-1"), "data-db-0", labelled, false},
		"of another name":          {setIn("shop-1"), "data-0", labelled, false},
		"nobody labelled it":       {setIn("shop-1"), "data-db-0", nil, false},
		"of another registration":  {setIn("shop-1"), "data-db-0", map[string]string{"app": "db", workloadv1alpha1.SyncTargetLabel: "west-uid"}, false},
		"of another workspace":     {setIn("shop-1"), "data-db-0", map[string]string{"app": "db", workloadv1alpha1.WorkspaceLabel: "bank"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			live := claim(tc.name, tc.live)
			written := false
			s := newIdle(t, nil, func(w http.ResponseWriter, r *http.Request) {
				written = written || r.Method == http.MethodPatch
				answer(t, w, http.StatusOK, live.Object)
			})
			if tc.set != nil {
				if err := s.mirror.informers[statefulSetsGVR].Add(tc.set); err != nil {
					t.Fatal(err)
				}
			}
			k := key{claimsGVR, "shop-1", tc.name}
			_, err := s.apply(t.Context(), k, live, render(claim(tc.name, nil), "east-uid"))
			switch {
			case tc.want && err != nil:
				t.Errorf("it is not taken over: %v", err)
			case !tc.want && err == nil:
				t.Error("it is taken over")
			case !tc.want && refusalOf(err).reason != refusedNameConflict:
				t.Errorf("apply: %v, want a %s", err, refusedNameConflict)
			}
			if written != tc.want {
				t.Errorf("it was written to: %v, want %v", written, tc.want)
			}
		})
	}
}

// TestPodClaimThatEnds: it is waited for.
func TestPodClaimThatEnds(t *testing.T) {
	s := newIdle(t, nil, func(http.ResponseWriter, *http.Request) {})
	if err := s.mirror.informers[statefulSetsGVR].Add(setIn("shop-1")); err != nil {
		t.Fatal(err)
	}
	live := claimWith(map[string]any{}, "Bound")
	live.SetLabels(map[string]string{"app": "db"})
	k := key{claimsGVR, "shop-1", "data-db-0"}
	if !s.isPodClaim(k, live) {
		t.Error("one that stays is none")
	}
	live.SetDeletionTimestamp(ptr.To(metav1.Now()))
	if s.isPodClaim(k, live) {
		t.Error("one that ends is one")
	}
}

// TestKeepClaim: what a claim is below is kept, and asks for more where that is asked.
func TestKeepClaim(t *testing.T) {
	spec := func(class, size, volume string) map[string]any {
		s := map[string]any{"accessModes": []any{"ReadWriteOnce"}, "resources": map[string]any{"requests": map[string]any{"storage": size}}}
		if class != "" {
			s["storageClassName"] = class
		}
		if volume != "" {
			s["volumeName"] = volume
		}
		return s
	}
	attributed := spec("fast", "1Gi", "")
	attributed["volumeAttributesClassName"] = "quick"
	selecting := spec("fast", "1Gi", "")
	selecting["selector"] = map[string]any{}
	for name, tc := range map[string]struct {
		want, live, written map[string]any
		capacity            string
	}{
		"as it is":                        {spec("fast", "1Gi", ""), spec("fast", "1Gi", "pv"), spec("fast", "1Gi", ""), "1Gi"},
		"its class is the cluster's":      {spec("", "1Gi", ""), spec("slow", "1Gi", "pv"), spec("slow", "1Gi", ""), "1Gi"},
		"its class is another":            {spec("fast", "1Gi", ""), spec("slow", "1Gi", "pv"), spec("slow", "1Gi", ""), "1Gi"},
		"it has no class there":           {spec("fast", "1Gi", ""), spec("", "1Gi", "pv"), spec("", "1Gi", ""), "1Gi"},
		"it selects nothing there":        {selecting, spec("fast", "1Gi", "pv"), spec("fast", "1Gi", ""), "1Gi"},
		"it is to grow":                   {spec("fast", "2Gi", ""), spec("fast", "1Gi", "pv"), spec("fast", "2Gi", ""), "1Gi"},
		"an administrator has it grow":    {spec("fast", "1Gi", ""), spec("fast", "5Gi", "pv"), spec("fast", "5Gi", ""), "5Gi"},
		"an administrator lets it grow":   {spec("fast", "1Gi", ""), spec("fast", "5Gi", "pv"), spec("fast", "5Gi", ""), "1Gi"},
		"it is to grow by less after all": {spec("fast", "2Gi", ""), spec("fast", "5Gi", "pv"), spec("fast", "2Gi", ""), "1Gi"},
		"it has no volume yet":            {spec("fast", "1Gi", ""), spec("fast", "5Gi", ""), spec("fast", "5Gi", ""), ""},
		"the same in other words":         {spec("fast", "1024Mi", ""), spec("fast", "1Gi", "pv"), spec("fast", "1Gi", ""), "1Gi"},
		"nobody knows what it asks for":   {spec("fast", "1Gi", ""), spec("fast", "", "pv"), spec("fast", "1Gi", ""), "1Gi"},
		"its volume is to be a quick one": {attributed, spec("fast", "1Gi", "pv"), attributed, "1Gi"},
		"what is there has no spec (yet)": {spec("fast", "1Gi", ""), nil, spec("fast", "1Gi", ""), ""},
	} {
		want, live := claimWith(runtime.DeepCopyJSON(tc.want), ""), claimWith(tc.live, "Bound")
		if tc.live == nil {
			delete(live.Object, "spec")
		}
		if tc.capacity != "" {
			if err := unstructured.SetNestedField(live.Object, tc.capacity, "status", "capacity", "storage"); err != nil {
				t.Fatal(err)
			}
		}
		before := live.DeepCopy()
		if err := keepClaim(want, live); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(any(tc.written), want.Object["spec"]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(before.Object, live.Object); diff != "" {
			t.Errorf("%s: what is shared was changed (-before +now):\n%s", name, diff)
		}
	}
}

// TestClaimInThePlaceOfALostOne: another one that the controller of StatefulSets has made does not pass for the one that was deleted.
func TestClaimInThePlaceOfALostOne(t *testing.T) {
	for name, tc := range map[string]struct {
		labels map[string]string
		gone   bool
	}{
		"its controller's": {map[string]string{"app": "db"}, true},
		"somebody's":       {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			live := claimWith(map[string]any{}, "Bound")
			live.SetLabels(tc.labels)
			leaf := claimWith(map[string]any{}, "Bound")
			leaf.SetNamespace("shop-1")
			leaf.SetName("data-db-0")
			leaf.SetResourceVersion("3")
			s := newIdle(t, func(w http.ResponseWriter, _ *http.Request) {
				answer(t, w, http.StatusOK, map[string]any{"apiVersion": "v1", "kind": "PersistentVolumeClaimList", "metadata": map[string]any{}, "items": []any{leaf.Object}})
			}, func(w http.ResponseWriter, _ *http.Request) { answer(t, w, http.StatusOK, live.Object) })
			s.gate.open(s.gate.begin(), fine)
			if err := s.mirror.informers[statefulSetsGVR].Add(setIn("shop-1")); err != nil {
				t.Fatal(err)
			}
			_, err := s.confirmGone(t.Context(), key{claimsGVR, "shop-1", "data-db-0"}, leaf)
			if r := (*refusal)(nil); errors.As(err, &r) != tc.gone || tc.gone && r.reason != workloadv1alpha1.RefusedGone {
				t.Errorf("it is said: %v", err)
			}
		})
	}
}
