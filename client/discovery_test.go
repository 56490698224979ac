package client

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDeletables(t *testing.T) {
	resource := func(name string, scope apidiscoveryv2.ResourceScope, verbs ...string) apidiscoveryv2.APIResourceDiscovery {
		return apidiscoveryv2.APIResourceDiscovery{Resource: name, Scope: scope, Verbs: verbs}
	}
	document := func(versions ...apidiscoveryv2.APIVersionDiscovery) *apidiscoveryv2.APIGroupDiscoveryList {
		return &apidiscoveryv2.APIGroupDiscoveryList{
			TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList"},
			Items:    []apidiscoveryv2.APIGroupDiscovery{{ObjectMeta: metav1.ObjectMeta{Name: "g"}, Versions: versions}},
		}
	}
	version := func(name string, resources ...apidiscoveryv2.APIResourceDiscovery) apidiscoveryv2.APIVersionDiscovery {
		return apidiscoveryv2.APIVersionDiscovery{Version: name, Resources: resources}
	}
	const ns, root = apidiscoveryv2.ScopeNamespace, apidiscoveryv2.ScopeCluster
	stale := version("v1")
	stale.Freshness = apidiscoveryv2.DiscoveryFreshnessStale
	for _, tc := range []struct {
		reason string
		doc    *apidiscoveryv2.APIGroupDiscoveryList
		want   map[string]bool // "version/resource" to whether it can be deleted as a whole
		fails  bool
	}{
		{"what can be listed and deleted", document(version("v1",
			resource("as", ns, "list", "delete", "deletecollection"),
			resource("bs", ns, "list", "delete"),
			resource("reviews", ns, "create"),
			resource("readonly", ns, "list", "get"),
			resource("nodes", root, "list", "delete"),
		)), map[string]bool{"v1/as": true, "v1/bs": false}, false},
		{"each in the first version that has it", document(
			version("v2", resource("as", ns, "list", "delete")),
			version("v1", resource("as", ns, "list", "delete"), resource("olds", ns, "list", "delete")),
		), map[string]bool{"v2/as": false, "v1/olds": false}, false},
		{"a part is no answer", document(stale), nil, true},
		{"nothing is no answer", &apidiscoveryv2.APIGroupDiscoveryList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList"}}, nil, true},
		{"another document is no answer", &apidiscoveryv2.APIGroupDiscoveryList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList"}}, nil, true},
	} {
		found, err := deletables(tc.doc)
		if (err != nil) != tc.fails {
			t.Errorf("%s: error %v", tc.reason, err)
		}
		got := map[string]bool{}
		for _, d := range found {
			got[d.Version+"/"+d.Resource] = d.Collection
		}
		if diff := cmp.Diff(tc.want, got); err == nil && diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
		}
	}
}
