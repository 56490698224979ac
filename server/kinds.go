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

var _ garbage.Definitions = customKinds{}

// Every logical cluster has CustomResourceDefinitions, of which the garbage collector knows as of custom resources.
var (
	crds    = apiextensions.Resource("customresourcedefinitions")
	crdKind = apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition")
)

// Resource implements garbage.Definitions.
func (k customKinds) Resource(cluster logicalcluster.Name, kind schema.GroupVersionKind) (schema.GroupResource, bool, bool) {
	if kind == crdKind {
		return crds, false, true
	}
	def, ok := k.OfKind(cluster, kind)
	if !ok {
		return schema.GroupResource{}, false, false
	}
	resource := schema.GroupResource{Group: def.Spec.Group, Resource: def.Status.AcceptedNames.Plural}
	return resource, def.Spec.Scope == apiextensionsv1.NamespaceScoped, true
}

// Kind implements garbage.Definitions.
func (k customKinds) Kind(cluster logicalcluster.Name, resource schema.GroupResource) (schema.GroupVersionKind, bool) {
	if resource == crds {
		return crdKind, true
	}
	def, ok := k.OfResource(cluster, resource)
	if !ok {
		return schema.GroupVersionKind{}, false
	}
	for _, version := range def.Spec.Versions {
		if version.Served {
			return schema.GroupVersionKind{Group: resource.Group, Version: version.Name, Kind: def.Status.AcceptedNames.Kind}, true
		}
	}
	return schema.GroupVersionKind{}, false
}

// Resources implements garbage.Definitions.
func (k customKinds) Resources() ([]schema.GroupResource, <-chan struct{}) {
	all, changed := k.Definitions.Resources()
	return append(all, crds), changed
}

// Defined implements garbage.Definitions.
func (k customKinds) Defined(resource schema.GroupResource) bool {
	return resource == crds || k.Definitions.Defined(resource)
}

// MayHave implements garbage.Definitions.
func (k customKinds) MayHave(ctx context.Context, cluster logicalcluster.Name) ([]schema.GroupResource, error) {
	defined, err := k.Defines(ctx, cluster)
	if err != nil {
		return nil, err
	}
	all, err := k.backend.CustomResources(ctx, cluster, defined)
	return append(all, crds), err
}
