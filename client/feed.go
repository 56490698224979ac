package client

import (
	"context"
	"fmt"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"atoll.dev/atoll/internal/reflector"
)

// Feed tells of the objects of one type in all logical clusters and keeps none of them, for who has to look at each once it
// is written. It tells of all that there are at first and whenever the watch could not be resumed, and then of
// those deleted in between not at all.
type Feed[T object] struct {
	from   everywhere
	tell   func(obj T, gone bool)
	listed func() // nil if nobody has asked
}

// NewFeed returns a feed of example's type: a typed object, or a metav1.PartialObjectMetadata whose group, version and kind
// are set. It calls tell for one object after the other, gone ones in their last state; tell must not block.
func NewFeed[T object](c *Clients, example T, tell func(obj T, gone bool)) (*Feed[T], error) {
	gvk, err := apiutil.GVKForObject(example, Scheme)
	if err != nil {
		return nil, fmt.Errorf("feed of %T: %w", example, err)
	}
	return &Feed[T]{from: everywhere{objects: c.Objects, gvk: gvk, example: example}, tell: tell}, nil
}

// OnListed has listed called whenever all that there are have been told: of what was deleted while the feed did not watch nobody was. It must not block. Called before Run.
func (f *Feed[T]) OnListed(listed func()) { f.listed = listed }

// Run lists and watches until ctx ends.
func (f *Feed[T]) Run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	r := cache.NewReflectorWithOptions(f.from, nil, fed[T]{f.tell, f.listed}, cache.ReflectorOptions{
		Logger: &logger, Name: "feed", TypeDescription: f.from.gvk.Kind, Backoff: reflector.Backoff(),
	})
	r.WatchListPageSize = pageSize
	r.RunWithContext(ctx)
}

// fed is the store of a reflector, without anything in it.
type fed[T object] struct {
	tell   func(T, bool)
	listed func()
}

// Add takes an object that is new.
func (f fed[T]) Add(obj any) error { return f.take(obj, false) }

// Update takes an object that was changed.
func (f fed[T]) Update(obj any) error { return f.take(obj, false) }

// Delete takes an object that is gone.
func (f fed[T]) Delete(obj any) error { return f.take(obj, true) }

// Replace takes all there are.
func (f fed[T]) Replace(objs []any, _ string) error {
	for _, obj := range objs {
		if err := f.take(obj, false); err != nil {
			return err
		}
	}
	if f.listed != nil {
		f.listed()
	}
	return nil
}

// Resync does nothing: there is nothing kept that could be told again.
func (f fed[T]) Resync() error { return nil }

func (f fed[T]) take(obj any, gone bool) error {
	typed, ok := obj.(T)
	if !ok {
		return fmt.Errorf("feed of %T: it was brought a %T", typed, obj)
	}
	f.tell(typed, gone)
	return nil
}
