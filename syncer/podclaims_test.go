package syncer

import (
	"net/http"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// TestPodClaimIsTakenOver: what the controller of StatefulSets made for one of ours is ours, and nothing else is that we did not make.
func TestPodClaimIsTakenOver(t *testing.T) {
	set := func(namespace string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": map[string]any{"name": "db", "namespace": namespace},
			"spec": map[string]any{
				"selector": map[string]any{"matchLabels": map[string]any{"app": "db"}}, "replicas": int64(2),
				"volumeClaimTemplates": []any{map[string]any{"metadata": map[string]any{"name": "data"}, "spec": map[string]any{}}},
			},
		}}
	}
	claim := func(name string, labels map[string]string) *unstructured.Unstructured {
		o := claimWith(map[string]any{}, "Bound")
		o.SetNamespace("shop-1")
		o.SetName(name)
		o.SetUID("u")
		o.SetLabels(labels)
		return o
	}
	labelled := map[string]string{"app": "db"}
	for name, tc := range map[string]struct {
		set  *unstructured.Unstructured
		name string
		live map[string]string
		want bool
	}{
		"its pod's":               {set("shop-1"), "data-db-0", labelled, true},
		"a pod's that it had":     {set("shop-1"), "data-db-7", labelled, true},
		"no StatefulSet":          {nil, "data-db-0", labelled, false},
		"of another namespace":    {set("bank-1"), "data-db-0", labelled, false},
		"of another name":         {set("shop-1"), "data-0", labelled, false},
		"nobody labelled it":      {set("shop-1"), "data-db-0", nil, false},
		"of another registration": {set("shop-1"), "data-db-0", map[string]string{"app": "db", workloadv1alpha1.SyncTargetLabel: "west-uid"}, false},
		"of another workspace":    {set("shop-1"), "data-db-0", map[string]string{"app": "db", workloadv1alpha1.WorkspaceLabel: "bank"}, false},
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
