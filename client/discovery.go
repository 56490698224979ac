package client

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// aggregated asks for all groups, versions and resources in one document.
const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// Deletable is a namespaced resource whose objects can be listed and deleted.
type Deletable struct {
	schema.GroupVersionResource
	Collection bool // can be deleted as a whole
}

// Deletables returns what can be in a namespace of the context's logical cluster. It returns an error rather than a part: what is not found
// would be left behind, or taken away unseen.
func (c *Clients) Deletables(ctx context.Context) ([]Deletable, error) {
	var all []Deletable
	for _, path := range []string{"/api", "/apis"} {
		raw, err := c.Kube.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", aggregated).Do(ctx).Raw()
		if err != nil {
			return nil, fmt.Errorf("discover resources at %s: %w", path, err)
		}
		groups := &apidiscoveryv2.APIGroupDiscoveryList{}
		if err := json.Unmarshal(raw, groups); err != nil {
			return nil, fmt.Errorf("discover resources at %s: %w", path, err)
		}
		found, err := deletables(groups)
		if err != nil {
			return nil, fmt.Errorf("discover resources at %s: %w", path, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// deletables picks the resources of a discovery document, each in its preferred version.
func deletables(groups *apidiscoveryv2.APIGroupDiscoveryList) ([]Deletable, error) {
	if groups.Kind != "APIGroupDiscoveryList" || len(groups.Items) == 0 {
		return nil, fmt.Errorf("got a %q of %d groups instead of a discovery document", groups.Kind, len(groups.Items))
	}
	var found []Deletable
	seen := map[schema.GroupResource]bool{}
	for _, group := range groups.Items {
		for _, version := range group.Versions {
			if version.Freshness == apidiscoveryv2.DiscoveryFreshnessStale {
				return nil, fmt.Errorf("what is known of %s/%s is stale", group.Name, version.Version)
			}
			for _, r := range version.Resources {
				gr := schema.GroupResource{Group: group.Name, Resource: r.Resource}
				if seen[gr] || r.Scope != apidiscoveryv2.ScopeNamespace || !slices.Contains(r.Verbs, "list") {
					continue
				}
				collection := slices.Contains(r.Verbs, "deletecollection")
				if !collection && !slices.Contains(r.Verbs, "delete") {
					continue
				}
				seen[gr] = true
				found = append(found, Deletable{gr.WithVersion(version.Version), collection})
			}
		}
	}
	return found, nil
}
