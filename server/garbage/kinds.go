package garbage

import (
	"context"
	"fmt"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"atoll.dev/atoll/server/storage"
)

// Kinds knows what is stored, and what logical clusters call it. What it answers may change at run time.
type Kinds interface {
	// Stored returns one store of each resource whose objects may own others or be owned, and a channel that is closed when
	// there are others.
	Stored() (stores []*storage.Resource, changed <-chan struct{})
	// Of returns those of the resources that a logical cluster may have objects of, as etcd has it now. Stored may not have heard
	// of one yet.
	Of(ctx context.Context, cluster logicalcluster.Name) ([]*storage.Resource, error)
	// Store returns the store of a resource, also of one that is defined no more.
	Store(resource schema.GroupResource) (*storage.Resource, error)
	// Resource returns the resource that a reference to a kind means in a logical cluster, and whether its objects are in
	// namespaces. Without ok the kind is not served there, now.
	Resource(cluster logicalcluster.Name, kind schema.GroupVersionKind) (_ schema.GroupResource, namespaced, ok bool)
	// OnServed tells, until ctx ends, of each kind that a logical cluster serves and did not before. tell must not block.
	OnServed(ctx context.Context, tell func(logicalcluster.Name, schema.GroupVersionKind))
	// Kind returns how requests of a logical cluster name a resource. Without ok it is not served there, now.
	Kind(cluster logicalcluster.Name, resource schema.GroupResource) (_ schema.GroupVersionKind, ok bool)
}

// Builtin is Kinds of the types that every logical cluster has. It never changes.
type Builtin struct {
	stores []*storage.Resource
	// byKind has every version that is served, byResource the first of them.
	byKind     map[schema.GroupVersionKind]*storage.Resource
	byResource map[schema.GroupResource]schema.GroupVersionKind
	never      chan struct{}
}

var _ Kinds = (*Builtin)(nil)

// NewBuiltin returns what stores hold, of the versions that are enabled. Events are left out, as upstream: they own nothing
// and nobody owns them, and there are more of them than of all else.
func NewBuiltin(stores []*storage.Resource, enabled *serverstorage.ResourceConfig) (*Builtin, error) {
	b := &Builtin{
		byKind: map[schema.GroupVersionKind]*storage.Resource{}, byResource: map[schema.GroupResource]schema.GroupVersionKind{},
		never: make(chan struct{}),
	}
	for _, store := range stores {
		gr := store.GroupResource
		if _, again := b.byResource[gr]; again || gr.Resource == "events" {
			continue
		}
		kind, err := kindOf(store)
		if err != nil {
			return nil, fmt.Errorf("kind of %s: %w", gr, err)
		}
		for _, gv := range legacyscheme.Scheme.PrioritizedVersionsForGroup(gr.Group) {
			gvk := gv.WithKind(kind)
			if !legacyscheme.Scheme.Recognizes(gvk) || !enabled.ResourceEnabled(gv.WithResource(gr.Resource)) {
				continue
			}
			if _, ok := b.byResource[gr]; !ok {
				b.byResource[gr] = gvk
			}
			b.byKind[gvk] = store
		}
		if _, ok := b.byResource[gr]; ok {
			b.stores = append(b.stores, store)
		}
	}
	return b, nil
}

func kindOf(store *storage.Resource) (string, error) {
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(store.New())
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(kinds, func(k schema.GroupVersionKind) bool { return k.Group == store.GroupResource.Group })
	if i < 0 {
		return "", runtime.NewNotRegisteredErrForType(legacyscheme.Scheme.Name(), nil)
	}
	return kinds[i].Kind, nil
}

// Stored implements Kinds.
func (b *Builtin) Stored() ([]*storage.Resource, <-chan struct{}) { return b.stores, b.never }

// Of implements Kinds.
func (b *Builtin) Of(context.Context, logicalcluster.Name) ([]*storage.Resource, error) {
	return b.stores, nil
}

// Store implements Kinds.
func (b *Builtin) Store(resource schema.GroupResource) (*storage.Resource, error) {
	i := slices.IndexFunc(b.stores, func(r *storage.Resource) bool { return r.GroupResource == resource })
	if i < 0 {
		return nil, fmt.Errorf("store of %s: none is built in", resource)
	}
	return b.stores[i], nil
}

// Resource implements Kinds.
func (b *Builtin) Resource(_ logicalcluster.Name, kind schema.GroupVersionKind) (schema.GroupResource, bool, bool) {
	store, ok := b.byKind[kind]
	if !ok {
		return schema.GroupResource{}, false, false
	}
	return store.GroupResource, store.Namespaced, true
}

// OnServed implements Kinds: there is never anything new.
func (b *Builtin) OnServed(context.Context, func(logicalcluster.Name, schema.GroupVersionKind)) {}

// Kind implements Kinds.
func (b *Builtin) Kind(_ logicalcluster.Name, resource schema.GroupResource) (schema.GroupVersionKind, bool) {
	kind, ok := b.byResource[resource]
	return kind, ok
}
