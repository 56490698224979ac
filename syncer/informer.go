package syncer

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"atoll.dev/atoll/internal/reflector"
)

// informer holds the objects of one resource of one side, by namespace and name. What it returns is shared: copy before
// changing it.
type informer struct {
	cache.Indexer
	from  cache.ListerWatcher
	gvr   schema.GroupVersionResource
	queue cache.Queue
	// handle is called with the old (nil: new) and the newest (nil: gone) state of what changed. It must not block.
	handle func(old, now *unstructured.Unstructured)
	// isPast, unless it is nil, says of what a list brings that it is no news to handle.
	isPast func(*unstructured.Unstructured) bool
}

// newInformer returns an informer for which r has room, without bound if that is nil. One with a room calls heard, unless that is
// nil, with the outcome of every watch, and of every list that fails.
func newInformer(sd side, gvr schema.GroupVersionResource, tweak func(*metav1.ListOptions), heard func(error), r *room) *informer {
	if tweak == nil {
		tweak = func(*metav1.ListOptions) {}
	}
	if heard == nil {
		heard = func(error) {}
	}
	trim := func(o *unstructured.Unstructured) *unstructured.Unstructured {
		o.SetManagedFields(nil)
		switch {
		case gvr == eventsGVR:
			return thinEvent(o, sd.hasNamespace(o.GetNamespace()))
		case gvr == nodesGVR:
			return thinNode(o).DeepCopy() // without the slots of conditions that were left out, which count for nothing
		case isClass(gvr):
			return thinClass(gvr, o)
		case gvr == podsGVR && r == nil:
			return thinShown(o)
		case gvr == podsGVR && !sd.hasNamespace(o.GetNamespace()):
			return thinPod(o)
		}
		return o
	}
	client := sd.dynamic.Resource(gvr)
	list, watching := client.List, client.Watch
	if r != nil {
		h, open, told := newHolding(r, trim), sd.opener(gvr, "", runtime.ContentTypeJSON), heard
		heard = func(err error) {
			r.heard(gvr, err)
			told(err)
		}
		list = func(ctx context.Context, o metav1.ListOptions) (*unstructured.UnstructuredList, error) {
			if err := r.rest(ctx, gvr); err != nil {
				return nil, err
			}
			return h.list(ctx, o, open)
		}
		watching = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if err := r.rest(ctx, gvr); err != nil {
				return nil, err
			}
			return h.watch(ctx, o, client.Watch, heard)
		}
	}
	lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			tweak(&o)
			objects, err := list(ctx, o)
			if err != nil {
				heard(err)
				return nil, err
			}
			return objects, nil // not news before it is followed by a watch
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			tweak(&o)
			return watching(ctx, o)
		},
	}, sd.dynamic)
	i := &informer{
		Indexer: cache.NewIndexer(cache.DeletionHandlingMetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}),
		from:    lw, gvr: gvr, handle: func(_, _ *unstructured.Unstructured) {},
	}
	i.queue = cache.NewRealFIFOWithOptions(cache.RealFIFOOptions{
		Name: gvr.String(), KeyFunction: cache.MetaNamespaceKeyFunc, KnownObjects: i.Indexer,
		Transformer: func(obj any) (any, error) {
			if o, ok := obj.(*unstructured.Unstructured); ok {
				return trim(o), nil
			}
			return obj, nil
		},
	})
	return i
}

// HasSynced says whether the first list is in, and told.
func (i *informer) HasSynced() bool { return i.queue.HasSynced() }

// run lists and watches until ctx ends.
func (i *informer) run(ctx context.Context) {
	reflector.Run(ctx, reflector.Config{From: i.from, Example: &unstructured.Unstructured{}, Description: i.gvr.String(), Queue: i.queue, Process: i.process})
}

func (i *informer) process(obj any, _ bool) error {
	for _, d := range obj.(cache.Deltas) {
		if err := i.take(d); err != nil {
			return err
		}
	}
	return nil
}

// take takes one change over, and tells of it. A list that brings what is known is no news.
func (i *informer) take(d cache.Delta) error {
	switch d.Type {
	case cache.Sync, cache.Replaced, cache.Added, cache.Updated:
		now := d.Object.(*unstructured.Unstructured)
		known, ok, err := i.Get(now)
		if err != nil {
			return err
		}
		if err := i.Update(now); err != nil {
			return err
		}
		var old *unstructured.Unstructured
		if ok {
			if old = known.(*unstructured.Unstructured); old.GetResourceVersion() == now.GetResourceVersion() {
				return nil
			}
		}
		if listed := d.Type == cache.Replaced || d.Type == cache.Sync; listed && i.isPast != nil && i.isPast(now) {
			return nil
		}
		i.handle(old, now)
	case cache.Deleted:
		if err := i.Delete(d.Object); err != nil {
			return err
		}
		gone := d.Object
		if unknown, ok := gone.(cache.DeletedFinalStateUnknown); ok {
			gone = unknown.Obj
		}
		i.handle(gone.(*unstructured.Unstructured), nil)
	default:
		return fmt.Errorf("informer of %s: unknown change %q", i.gvr, d.Type)
	}
	return nil
}
