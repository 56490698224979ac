package server

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"atoll.dev/atoll/server/customresources"
	"atoll.dev/atoll/server/garbage"
	"atoll.dev/atoll/server/storage"
)

// customKinds are the custom resources of logical clusters, and the definitions themselves, for the garbage collector.
type customKinds struct {
	*customresources.Definitions
	backend *storage.Backend
}

// Served implements garbage.Definitions.
func (k customKinds) Served(cluster logicalcluster.Name) []garbage.CustomResource {
	all := []garbage.CustomResource{{
		GroupResource: apiextensions.Resource("customresourcedefinitions"), Kind: "CustomResourceDefinition",
		Versions: []string{apiextensionsv1.SchemeGroupVersion.Version},
	}}
	for _, def := range k.Definitions.Served(cluster) {
		r := garbage.CustomResource{
			GroupResource: schema.GroupResource{Group: def.Spec.Group, Resource: def.Status.AcceptedNames.Plural},
			Kind:          def.Status.AcceptedNames.Kind, Namespaced: def.Spec.Scope == apiextensionsv1.NamespaceScoped,
		}
		for _, version := range def.Spec.Versions {
			if version.Served {
				r.Versions = append(r.Versions, version.Name)
			}
		}
		all = append(all, r)
	}
	return all
}

// Resources implements garbage.Definitions.
func (k customKinds) Resources() ([]schema.GroupResource, <-chan struct{}) {
	all, changed := k.Definitions.Resources()
	return append(all, apiextensions.Resource("customresourcedefinitions")), changed
}

// MayHave implements garbage.Definitions.
func (k customKinds) MayHave(ctx context.Context, cluster logicalcluster.Name) ([]schema.GroupResource, error) {
	all, err := k.backend.CustomResources(ctx, cluster)
	return append(all, apiextensions.Resource("customresourcedefinitions")), err
}
