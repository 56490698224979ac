package server

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestHolds: what holds an object, and that etcd is asked once about a kind that is not served, however many objects it has.
func TestHolds(t *testing.T) {
	served, defined, gone := schema.GroupResource{Resource: "configmaps"}, schema.GroupResource{Group: "a.example", Resource: "widgets"}, schema.GroupResource{Group: "a.example", Resource: "gadgets"}
	asked, away := map[schema.GroupResource]int{}, errors.New("etcd is away")
	h := holds{
		served: func(_ logicalcluster.Name, gr schema.GroupResource) (schema.GroupVersionKind, bool) {
			return schema.GroupVersionKind{}, gr == served
		},
		defines: func(_ context.Context, _ logicalcluster.Name, gr schema.GroupResource) (bool, error) {
			if asked[gr]++; away != nil {
				return false, away
			}
			return gr == defined, nil
		},
		defined: map[schema.GroupResource]bool{},
	}
	if held, err := h.hold(t.Context(), "shop", gone, []string{"example.com/a"}); err == nil {
		t.Errorf("without etcd: %q, want an error", held)
	}
	away = nil
	finalizers := []string{apiextensionsv1.CustomResourceCleanupFinalizer, "example.com/a"}
	for _, tc := range []struct {
		reason   string
		resource schema.GroupResource
		of, want []string
		asked    int
	}{
		{"requests reach it", served, finalizers, []string{"example.com/a"}, 0},
		{"nothing but what ends with the workspace", defined, finalizers[:1], nil, 0},
		{"another server may serve it", defined, finalizers, []string{"example.com/a"}, 1},
		{"its definition is gone", gone, finalizers, nil, 2}, // once without an answer
	} {
		for range 10 {
			held, err := h.hold(t.Context(), "shop", tc.resource, tc.of)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, held); diff != "" {
				t.Fatalf("%s (-want +got):\n%s", tc.reason, diff)
			}
		}
		if asked[tc.resource] != tc.asked {
			t.Errorf("%s: etcd was asked %d times, want %d", tc.reason, asked[tc.resource], tc.asked)
		}
	}
}
