package admission

import (
	"context"
	"fmt"

	lc "github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/tools/cache"

	"atoll.dev/atoll/internal/budget"
	"atoll.dev/atoll/internal/weight"
)

// Params reads what policies are given: objects of any kind that a logical cluster serves, custom resources too, in the version
// that is asked for. It keeps nothing and runs nothing, so that only requests cost that need them.
type Params interface {
	// Find says which resource a kind is.
	Find(ctx context.Context, cluster lc.Name, kind schema.GroupVersionKind) (resource schema.GroupVersionResource, namespaced bool, _ error)
	// Get and List read them; namespace is empty for what has none, and for all. weigh is told of the JSON as it comes in, before
	// anything is made of it, and no more is read after an error of it.
	Get(ctx context.Context, cluster lc.Name, resource schema.GroupVersionResource, namespace, name string, weigh func(text []byte) error) (*unstructured.Unstructured, error)
	List(ctx context.Context, cluster lc.Name, resource schema.GroupVersionResource, namespace string, selector labels.Selector, weigh func(text []byte) error) ([]*unstructured.Unstructured, error)
}

// Schemas knows the types of what logical clusters serve.
type Schemas interface {
	Converter(ctx context.Context, cluster lc.Name, gv schema.GroupVersion) (managedfields.TypeConverter, error)
}

// How many bytes of memory the parameters may take that requests have read, by weight: of all logical clusters, and of one of
// them. Upstream reads those of all bindings before it looks at the first, and has pointers where these are copies.
const (
	mostParams      = 1 << 30
	mostParamsOfOne = mostParams / 4
	// uncountedParams is how many of them a request reads whatever others have: how many requests there are at once is bounded.
	uncountedParams = 256 << 10
)

func newParamBudget() *budget.Budget {
	return budget.New(mostParams, mostParamsOfOne, "the parameters of the workspace's policies", "the parameters of policies in this server")
}

// reading is what one request has read of parameters: each once, however many bindings name it. It is for one goroutine.
type reading struct {
	ctx     context.Context
	from    Params
	cluster lc.Name
	budget  *budget.Budget
	weight  int64 // bytes
	taken   int64 // of them, from the budget
	known   map[string]read
}

// read is one answer.
type read struct {
	objects []runtime.Object
	err     error
}

func newReading(ctx context.Context, from Params, b *budget.Budget, cluster lc.Name) *reading {
	return &reading{ctx: ctx, from: from, budget: b, cluster: cluster, known: map[string]read{}}
}

// end gives back what was taken: nobody has the parameters any more.
func (r *reading) end() { r.budget.Give(r.cluster, r.taken) }

// once reads what is called so, if nobody has.
func (r *reading) once(called string, from func(ctx context.Context, weigh func([]byte) error) ([]runtime.Object, error)) ([]runtime.Object, error) {
	if known, ok := r.known[called]; ok {
		return known.objects, known.err
	}
	ctx, cancel := context.WithTimeout(r.ctx, readTimeout)
	defer cancel()
	var scale weight.Scale
	counted := int64(0)
	objects, err := from(ctx, func(text []byte) error {
		scale.Add(text)
		r.weight += scale.N - counted
		counted = scale.N
		more := max(0, r.weight-uncountedParams) - r.taken
		if more == 0 {
			return nil
		}
		if err := r.budget.Take(r.cluster, more); err != nil {
			return err
		}
		r.taken += more
		return nil
	})
	r.known[called] = read{objects, err}
	return objects, err
}

// params looks to upstream's dispatchers like an informer of one resource in one logical cluster, for one request.
type params struct {
	resource  schema.GroupVersionResource
	namespace string
	reads     *reading // nil until there is a request
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
	found, err := p.reads.once(fmt.Sprintf("%s/%s/%s", p.resource, p.namespace, name), func(ctx context.Context, weigh func([]byte) error) ([]runtime.Object, error) {
		found, err := p.reads.from.Get(ctx, p.reads.cluster, p.resource, p.namespace, name, weigh)
		return []runtime.Object{found}, err
	})
	if err != nil {
		return nil, err // not a nil pointer in an interface
	}
	return found[0], nil
}

// List implements cache.GenericLister.
func (p params) List(selector labels.Selector) ([]runtime.Object, error) {
	return p.reads.once(fmt.Sprintf("%s/%s?%s", p.resource, p.namespace, selector), func(ctx context.Context, weigh func([]byte) error) ([]runtime.Object, error) {
		found, err := p.reads.from.List(ctx, p.reads.cluster, p.resource, p.namespace, selector, weigh)
		all := make([]runtime.Object, 0, len(found))
		for _, o := range found {
			all = append(all, o)
		}
		return all, err
	})
}
