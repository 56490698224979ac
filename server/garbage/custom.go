package garbage

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"atoll.dev/atoll/server/storage"
)

// Definitions are the custom resources of all logical clusters.
type Definitions interface {
	// Resource, Kind and OnServed are as in Kinds. The first two cost the same however many there are.
	Resource(cluster logicalcluster.Name, kind schema.GroupVersionKind) (_ schema.GroupResource, namespaced, ok bool)
	Kind(cluster logicalcluster.Name, resource schema.GroupResource) (_ schema.GroupVersionKind, ok bool)
	OnServed(ctx context.Context, tell func(logicalcluster.Name, schema.GroupVersionKind))
	// Resources returns those that any logical cluster defines, and a channel that is closed when these are others.
	Resources() ([]schema.GroupResource, <-chan struct{})
	// Defined says whether any logical cluster defines a resource.
	Defined(resource schema.GroupResource) bool
	// MayHave returns those that a logical cluster may have objects of, as etcd has it now.
	MayHave(ctx context.Context, cluster logicalcluster.Name) ([]schema.GroupResource, error)
}

// Custom is Kinds of the built-in types and of custom resources. Of each custom resource, in however many logical clusters
// it is defined, one store is open. When no definition is left, what its last objects owned is still read, by one that is not
// kept.
type Custom struct {
	*Builtin
	definitions Definitions
	open        func(schema.GroupResource) (*storage.Resource, error)

	mu     sync.Mutex // guards stores
	stores map[schema.GroupResource]*storage.Resource
}

var _ Kinds = (*Custom)(nil)

// NewCustom returns both; open opens a store of the metadata of a custom resource.
func NewCustom(b *Builtin, d Definitions, open func(schema.GroupResource) (*storage.Resource, error)) *Custom {
	return &Custom{Builtin: b, definitions: d, open: open, stores: map[schema.GroupResource]*storage.Resource{}}
}

// reopen is when a store that could not be opened is tried again.
const reopen = 5 * time.Second

// Stored implements Kinds.
func (c *Custom) Stored() ([]*storage.Resource, <-chan struct{}) {
	builtin, _ := c.Builtin.Stored()
	all := slices.Clone(builtin)
	resources, changed := c.definitions.Resources()
	c.keep(resources)
	for _, gr := range resources {
		store, err := c.Store(gr)
		if err != nil {
			// The memory of etcd of where there are rows cannot be written, because it is away.
			klog.Background().Error(err, "Cannot open the store of a custom resource, will try again", "resource", gr.String())
			changed = soonOr(changed)
			continue
		}
		all = append(all, store)
	}
	return all, changed
}

// keep keeps the stores of some custom resources, and of no others.
func (c *Custom) keep(some []schema.GroupResource) {
	defined := sets.New(some...)
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.stores, func(gr schema.GroupResource, _ *storage.Resource) bool { return !defined.Has(gr) })
}

// Of implements Kinds.
func (c *Custom) Of(ctx context.Context, cluster logicalcluster.Name) ([]*storage.Resource, error) {
	resources, err := c.definitions.MayHave(ctx, cluster)
	if err != nil {
		return nil, err
	}
	all := slices.Clone(c.Builtin.stores)
	for _, gr := range resources {
		store, err := c.Store(gr)
		if err != nil {
			return nil, err
		}
		all = append(all, store)
	}
	return all, nil
}

// Store implements Kinds, for others, too. What is not built in is a custom resource: there is one store of its metadata.
func (c *Custom) Store(gr schema.GroupResource) (*storage.Resource, error) {
	if store, err := c.Builtin.Store(gr); err == nil {
		return store, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if store := c.stores[gr]; store != nil {
		return store, nil
	}
	store, err := c.open(gr)
	if err == nil && c.definitions.Defined(gr) { // if it is not any more, whoever is told calls Stored
		c.stores[gr] = store
	}
	return store, err
}

// soonOr returns a channel that is closed after a while, or with another.
func soonOr(changed <-chan struct{}) <-chan struct{} {
	ctx, cancel := context.WithTimeout(context.Background(), reopen)
	go func() {
		defer cancel()
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}()
	return ctx.Done()
}

// Resource implements Kinds.
func (c *Custom) Resource(cluster logicalcluster.Name, kind schema.GroupVersionKind) (schema.GroupResource, bool, bool) {
	if gr, namespaced, ok := c.Builtin.Resource(cluster, kind); ok {
		return gr, namespaced, true
	}
	return c.definitions.Resource(cluster, kind)
}

// OnServed implements Kinds.
func (c *Custom) OnServed(ctx context.Context, tell func(logicalcluster.Name, schema.GroupVersionKind)) {
	c.definitions.OnServed(ctx, tell)
}

// Kind implements Kinds.
func (c *Custom) Kind(cluster logicalcluster.Name, resource schema.GroupResource) (schema.GroupVersionKind, bool) {
	if kind, ok := c.Builtin.Kind(cluster, resource); ok {
		return kind, true
	}
	return c.definitions.Kind(cluster, resource)
}
