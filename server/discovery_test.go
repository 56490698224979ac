package server

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/restmapper"
)

// TestKindsAreFoundOnceEstablished discovers each of many kinds once, as soon as its definition is established, and uses
// it: nobody has to ask again. The last one is in a built-in group.
func TestKindsAreFoundOnceEstablished(t *testing.T) {
	r := startServer(t, nil)
	r.makeNamespace(t, shop, "default")
	inShop, discover := r.custom(t, shop), r.in(t, shop).Discovery()
	for i := range 20 {
		kind, plural, group := fmt.Sprintf("Thing%d", i), fmt.Sprintf("thing%ds", i), "shop.example"
		if i == 19 {
			group = "networking.k8s.io"
		}
		definition := widgets(`{"size":{"type":"integer"}}`)
		definition.Name = plural + "." + group
		definition.Annotations = map[string]string{"api-approved.kubernetes.io": "https://github.com/kubernetes/kubernetes/pull/1"}
		definition.Spec.Group = group
		definition.Spec.Names.Plural, definition.Spec.Names.Kind, definition.Spec.Names.ShortNames = plural, kind, nil
		definition.Spec.Versions[0].Name = "v9"
		inShop.define(t, definition)

		groups, err := restmapper.GetAPIGroupResources(discover)
		if err != nil {
			t.Fatal(err)
		}
		mapping, err := restmapper.NewDiscoveryRESTMapper(groups).RESTMapping(schema.GroupKind{Group: group, Kind: kind})
		if err != nil {
			t.Fatalf("%s is established and not found: %v", kind, err)
		}
		object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"size": int64(1)}}}
		object.SetGroupVersionKind(mapping.GroupVersionKind)
		object.SetName("one")
		if _, err := inShop.objects.Resource(mapping.Resource).Namespace("default").Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
			t.Fatalf("create a %s: %v", kind, err)
		}
	}
	if found, err := discover.ServerResourcesForGroupVersion("networking.k8s.io/v9"); err != nil || len(found.APIResources) == 0 {
		t.Errorf("networking.k8s.io/v9: %v, %v", found, err)
	}
}
