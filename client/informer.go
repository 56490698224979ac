package client

import (
	"context"
	"fmt"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"atoll.dev/atoll/internal/alike"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/reflector"
)

// pageSize of lists after a watch could not be resumed, in objects: one page stays under a few megabytes.
const pageSize = 2000

const (
	byCluster   = "cluster"
	byNamespace = "namespace"
)

// object is what an informer can hold: a pointer type, so that the zero T is nil.
type object interface {
	ctrlclient.Object
	comparable
}

// Event is one change of an object, as an informer saw it.
type Event[T object] struct {
	// Old is nil (the zero T) on the first sight of an object; New is the zero T once it is gone.
	Old, New T
	// Initial marks objects of the first list.
	Initial bool
	// Missed marks a deletion that was not seen but concluded from a later list. It is no proof that somebody
	// deleted the object: a restored server shows the same.
	Missed bool
}

// Object returns the newest state of the event.
func (e Event[T]) Object() T {
	if e.Deleted() {
		return e.Old
	}
	return e.New
}

// Deleted says whether the object is gone.
func (e Event[T]) Deleted() bool { return e.New == *new(T) }

// InformerOptions narrow what an informer holds.
type InformerOptions[T object] struct {
	// FieldSelector and LabelSelector are evaluated by the server; empty means everything.
	FieldSelector, LabelSelector string
	// Transform may drop what is not needed, in place, before an object is stored. managedFields are always dropped.
	Transform func(T)
	// Unlisted says that nobody asks for those of a logical cluster (Informer.List).
	Unlisted bool
	// Keep, unless nil, says what is held at all; what is not any more is as if it were deleted.
	Keep func(T) bool
}

// Informer holds all objects of one type in all logical clusters, and tells of changes. What it returns is shared:
// copy before changing it.
type Informer[T object] struct {
	example  T
	indexer  cache.Indexer
	from     reflector.Config
	mu       sync.Mutex // guards handlers
	handlers []func(Event[T])
	keep     func(T) bool // nil for all
	synced   chan struct{}
}

// NewInformer returns an informer for example's type: a typed object, or a metav1.PartialObjectMetadata or
// unstructured.Unstructured whose group, version and kind are set. Handlers are added before Run.
func NewInformer[T object](c *Clients, example T, opts InformerOptions[T]) (*Informer[T], error) {
	gvk, err := apiutil.GVKForObject(example, Scheme)
	if err != nil {
		return nil, fmt.Errorf("informer for %T: %w", example, err)
	}
	namespaced, err := apiutil.IsGVKNamespaced(gvk, mapper)
	if err != nil {
		namespaced = true // what Scheme does not know may have namespaces
	}
	// An index takes some 200 bytes for each of its values: of what each workspace has, only those that somebody asks.
	indexers := cache.Indexers{}
	if !opts.Unlisted {
		indexers[byCluster] = func(obj any) ([]string, error) { return []string{string(lcctx.NameFrom(obj.(T)))}, nil }
		if namespaced {
			indexers[byNamespace] = func(obj any) ([]string, error) {
				o := obj.(T)
				return []string{string(lcctx.NameFrom(o)) + "|" + o.GetNamespace()}, nil
			}
		}
	}
	i := &Informer[T]{example: example, indexer: cache.NewIndexer(keyFunc, indexers), keep: opts.Keep, synced: make(chan struct{})}
	i.from = reflector.Config{
		Queue: cache.NewRealFIFOWithOptions(cache.RealFIFOOptions{
			Name: gvk.Kind, KeyFunction: keyFunc, KnownObjects: i.indexer,
			Transformer: func(obj any) (any, error) {
				if o, ok := obj.(T); ok {
					o.SetManagedFields(nil)
					if opts.Keep != nil && !opts.Keep(o) {
						return obj, nil // it is let go as soon as its turn comes
					}
					if opts.Transform != nil {
						opts.Transform(o)
					}
					alike.Share(o) // from here on nobody changes it
				}
				return obj, nil
			},
		}),
		From:        everywhere{objects: c.Objects, gvk: gvk, example: example, fields: opts.FieldSelector, labels: opts.LabelSelector},
		Example:     example,
		Description: gvk.Kind,
		Process:     i.process,
		PageSize:    pageSize,
	}
	return i, nil
}

// OnEvent adds a handler, called for one event after the other in the order of the store. It must not block.
func (i *Informer[T]) OnEvent(handle func(Event[T])) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.handlers = append(i.handlers, handle)
}

// AddIndex files every object under the values that index gives for it; see ByIndex. Indexes are added before Run.
func (i *Informer[T]) AddIndex(name string, index func(T) []string) error {
	return i.indexer.AddIndexers(cache.Indexers{name: func(obj any) ([]string, error) { return index(obj.(T)), nil }})
}

// Run lists and watches until ctx ends.
func (i *Informer[T]) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), i.from.Queue.HasSynced) {
			close(i.synced)
		}
	})
	reflector.Run(ctx, i.from)
}

// WaitSynced blocks until the first list is in, handlers told, or ctx ends.
func (i *Informer[T]) WaitSynced(ctx context.Context) error {
	select {
	case <-i.synced:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the first list of %T: %w", i.example, context.Cause(ctx))
	}
}

// Get returns the object of that key, and whether there is one.
func (i *Informer[T]) Get(key Key) (T, bool) {
	obj, ok, _ := i.indexer.GetByKey(key.String()) // a cache.Indexer never fails here
	if !ok {
		return *new(T), false
	}
	return obj.(T), true
}

// List returns the objects of a logical cluster, of one namespace unless namespace is empty, in no order. To ask for those of an
// Unlisted informer, or for a namespace of what has none, is a mistake of the programmer and panics.
func (i *Informer[T]) List(cluster logicalcluster.Name, namespace string) []T {
	if namespace == "" {
		return i.ByIndex(byCluster, string(cluster))
	}
	return i.ByIndex(byNamespace, string(cluster)+"|"+namespace)
}

// All returns every object of every logical cluster, in no order.
func (i *Informer[T]) All() []T { return typed[T](i.indexer.List()) }

// ByIndex returns the objects that an index of AddIndex files under value. An index that was not added is a mistake
// of the programmer and panics.
func (i *Informer[T]) ByIndex(index, value string) []T {
	objs, err := i.indexer.ByIndex(index, value)
	if err != nil {
		panic(err)
	}
	return typed[T](objs)
}

func typed[T any](objs []any) []T {
	out := make([]T, len(objs))
	for n, obj := range objs {
		out[n] = obj.(T)
	}
	return out
}

// drop forgets an object that is not kept, and returns what was held of it, the zero T if nothing.
func (i *Informer[T]) drop(now T) T {
	old, ok, _ := i.indexer.Get(now)
	if !ok {
		return *new(T)
	}
	_ = i.indexer.Delete(now) // fails only where no key can be made, as Get would
	return old.(T)
}

func (i *Informer[T]) process(obj any, initial bool) error {
	for _, d := range obj.(cache.Deltas) {
		var event Event[T]
		switch d.Type {
		case cache.Sync, cache.Replaced, cache.Added, cache.Updated:
			now := d.Object.(T)
			if i.keep != nil && !i.keep(now) {
				if event.Old = i.drop(now); event.Old == *new(T) {
					continue
				}
				break
			}
			if old, ok, _ := i.indexer.Get(now); ok {
				event.Old = old.(T)
				if d.Type == cache.Replaced && event.Old.GetResourceVersion() == now.GetResourceVersion() {
					continue // a relist that brings nothing new
				}
			}
			if err := i.indexer.Update(now); err != nil {
				return err
			}
			event.New, event.Initial = now, initial
		case cache.Deleted:
			gone := d.Object
			if unknown, ok := gone.(cache.DeletedFinalStateUnknown); ok {
				gone, event.Missed = unknown.Obj, true
			}
			held, ok, _ := i.indexer.Get(d.Object)
			if err := i.indexer.Delete(d.Object); err != nil {
				return err
			}
			old, isT := gone.(T)
			if !isT || i.keep != nil && !ok {
				continue
			}
			if event.Old = old; i.keep != nil && !i.keep(old) {
				event.Old = held.(T) // it stopped to be kept, and was deleted, in one
			}
		default:
			return fmt.Errorf("informer of %T: unknown change %q", i.example, d.Type)
		}
		for _, handle := range i.handlers {
			handle(event)
		}
	}
	return nil
}

// everywhere lists and watches one type in all logical clusters.
type everywhere struct {
	objects        ctrlclient.WithWatch
	gvk            schema.GroupVersionKind
	example        ctrlclient.Object
	fields, labels string
}

// IsWatchListSemanticsUnSupported keeps client-go's reflector from collecting the first list in a store of its own
// that knows no logical clusters: of equal names it would keep one, silently (it is found by this method's name).
func (everywhere) IsWatchListSemanticsUnSupported() bool { return true }

func (e everywhere) options(o metav1.ListOptions) *ctrlclient.ListOptions {
	o.FieldSelector, o.LabelSelector = e.fields, e.labels
	return &ctrlclient.ListOptions{Raw: &o, Limit: o.Limit, Continue: o.Continue}
}

func (e everywhere) newList() ctrlclient.ObjectList {
	gvk := e.gvk.GroupVersion().WithKind(e.gvk.Kind + "List")
	switch e.example.(type) {
	case *metav1.PartialObjectMetadata:
		l := &metav1.PartialObjectMetadataList{}
		l.SetGroupVersionKind(gvk)
		return l
	case *unstructured.Unstructured:
		l := &unstructured.UnstructuredList{}
		l.SetGroupVersionKind(gvk)
		return l
	}
	l, err := Scheme.New(gvk)
	if err != nil {
		panic(err) // every type of Scheme has its list
	}
	return l.(ctrlclient.ObjectList)
}

func (e everywhere) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	list := e.newList()
	if err := e.objects.List(Everywhere(ctx), list, e.options(reflector.ListOptions(o))); err != nil {
		return nil, err
	}
	// The items of a metadata list come without a kind, which the informer's type check wants.
	if _, ok := e.example.(*metav1.PartialObjectMetadata); ok {
		_ = meta.EachListItem(list, func(o runtime.Object) error {
			o.GetObjectKind().SetGroupVersionKind(e.gvk)
			return nil
		})
	}
	return list, nil
}

func (e everywhere) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return e.objects.Watch(Everywhere(ctx), e.newList(), e.options(o))
}

func (e everywhere) List(o metav1.ListOptions) (runtime.Object, error) {
	return e.ListWithContext(context.Background(), o)
}

func (e everywhere) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return e.WatchWithContext(context.Background(), o)
}
