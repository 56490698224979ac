package syncer

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	"k8s.io/kubernetes/pkg/apis/apps/validation"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

// TestCollisionsAreReported: the status of what was deleted below and made again counts no collisions, and is one that the hub takes after
// one that does.
func TestCollisionsAreReported(t *testing.T) {
	validate := map[string]func(now, before runtime.Object) field.ErrorList{
		"Deployment": func(now, before runtime.Object) field.ErrorList {
			return validation.ValidateDeploymentStatusUpdate(now.(*apps.Deployment), before.(*apps.Deployment))
		},
		"DaemonSet": func(now, before runtime.Object) field.ErrorList {
			return validation.ValidateDaemonSetStatusUpdate(now.(*apps.DaemonSet), before.(*apps.DaemonSet))
		},
		"StatefulSet": func(now, before runtime.Object) field.ErrorList {
			return validation.ValidateStatefulSetStatusUpdate(now.(*apps.StatefulSet), before.(*apps.StatefulSet))
		},
	}
	for _, kind := range kinds.All {
		if kind.History == nil {
			continue
		}
		t.Run(kind.GVK.Kind, func(t *testing.T) {
			with := func(count any) *unstructured.Unstructured {
				u := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{}}}
				u.SetGroupVersionKind(kind.GVK)
				u.SetLabels(map[string]string{workloadv1alpha1.RootUIDLabel: "root"})
				u.SetAnnotations(map[string]string{workloadv1alpha1.RenderedAnnotation: "1"})
				if count != nil {
					u.Object["status"] = map[string]any{"collisionCount": count}
				}
				return u
			}
			internal := func(u *unstructured.Unstructured) runtime.Object {
				o := kind.New()
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o); err != nil {
					t.Fatal(err)
				}
				converted, err := legacyscheme.Scheme.ConvertToVersion(o, apps.SchemeGroupVersion)
				if err != nil {
					t.Fatal(err)
				}
				return converted
			}
			for name, tc := range map[string]struct{ was, is, want any }{
				"MadeAgain":     {int64(2), nil, int64(2)},
				"MadeAgainZero": {int64(0), nil, int64(0)},
				"Fewer":         {int64(2), int64(1), int64(2)},
				"More":          {int64(2), int64(3), int64(3)},
				"None":          {nil, nil, nil},
				"First":         {nil, int64(1), int64(1)},
			} {
				leaf := with(tc.was)
				got, _, err := report(leaf, outcome{down: with(tc.is)}, true)
				if err != nil {
					t.Fatal(err)
				}
				if count, _, _ := unstructured.NestedFieldNoCopy(got.Object, "status", "collisionCount"); count != tc.want {
					t.Errorf("%s: it counts %v, want %v", name, count, tc.want)
				}
				for _, err := range validate[kind.GVK.Kind](internal(got), internal(leaf)) {
					if strings.HasSuffix(err.Field, "collisionCount") {
						t.Errorf("%s: the hub refuses it: %v", name, err)
					}
				}
			}
		})
	}
}
