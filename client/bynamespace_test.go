package client

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestByNamespace: names are of their namespace and logical cluster alone, and nothing is kept of a namespace in which there is nothing.
func TestByNamespace(t *testing.T) {
	b := ByNamespace[int]{}
	web, api, others := Key{"shop", "team", "web"}, Key{"shop", "team", "api"}, Key{"bank", "team", "web"}
	b.Put(web, 1)
	b.Put(api, 2)
	b.Put(others, 3)
	b.Put(web, 4)
	if diff := cmp.Diff(map[string]int{"web": 4, "api": 2}, b.In(web)); diff != "" {
		t.Errorf("in the namespace of shop: -want, +got:\n%s", diff)
	}
	b.Delete(others)
	b.Delete(others)
	b.Delete(api)
	if diff := cmp.Diff(ByNamespace[int]{{Cluster: "shop", Namespace: "team"}: {"web": 4}}, b); diff != "" {
		t.Errorf("kept: -want, +got:\n%s", diff)
	}
}
