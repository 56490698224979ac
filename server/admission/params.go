package admission

import (
	"context"

	lc "github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/tools/cache"
)

// Params reads what policies are given: objects of any kind that a logical cluster serves, custom resources too, in the version
// that is asked for. It keeps nothing and runs nothing, so that only requests cost that need them.
type Params interface {
	// Find says which resource a kind is.
	Find(ctx context.Context, cluster lc.Name, kind schema.GroupVersionKind) (resource schema.GroupVersionResource, namespaced bool, _ error)
	// Get and List read them; namespace is empty for what has none, and for all.
	Get(ctx context.Context, cluster lc.Name, resource schema.GroupVersionResource, namespace, name string) (*unstructured.Unstructured, error)
	List(ctx context.Context, cluster lc.Name, resource schema.GroupVersionResource, namespace string, selector labels.Selector) ([]*unstructured.Unstructured, error)
}

// Schemas knows the types of what logical clusters serve.
type Schemas interface {
	Converter(ctx context.Context, cluster lc.Name, gv schema.GroupVersion) (managedfields.TypeConverter, error)
}

// params looks to upstream's dispatchers like an informer of one resource in one logical cluster.
type params struct {
	from      Params
	cluster   lc.Name
	resource  schema.GroupVersionResource
	namespace string
}

// Informer implements informers.GenericInformer.
func (params) Informer() cache.SharedIndexInformer { return synced{} }

// Lister implements informers.GenericInformer.
func (p params) Lister() cache.GenericLister { return p }

// ByNamespace implements cache.GenericLister.
func (p params) ByNamespace(namespace string) cache.GenericNamespaceLister {
	p.namespace = namespace
	return p
}

// Get implements cache.GenericLister.
func (p params) Get(name string) (runtime.Object, error) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	found, err := p.from.Get(ctx, p.cluster, p.resource, p.namespace, name)
	if err != nil {
		return nil, err // not a nil pointer in an interface
	}
	return found, nil
}

// List implements cache.GenericLister.
func (p params) List(selector labels.Selector) ([]runtime.Object, error) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	found, err := p.from.List(ctx, p.cluster, p.resource, p.namespace, selector)
	if err != nil {
		return nil, err
	}
	all := make([]runtime.Object, 0, len(found))
	for _, o := range found {
		all = append(all, o)
	}
	return all, nil
}
