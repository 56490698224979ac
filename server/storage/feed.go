package storage

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/metadata"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/clock"
)

// feed is the store that a cacher fills itself from.
type feed struct {
	storage.Interface
	resource schema.GroupResource
	newFunc  func() runtime.Object
	clock    clock.WithTicker
	// window is how long the cacher remembers events at least.
	window time.Duration
	stream metadata.MD
	// syncedTo is the resourceVersion that the cacher has reached; false before it is filled.
	syncedTo atomic.Pointer[func() (uint64, bool)]
	asked    atomic.Uint64

	mu     sync.Mutex
	closed bool
	watch  *filling // the last one; nil if there was none
}

func newFeed(inner storage.Interface, resource schema.GroupResource, newFunc func() runtime.Object, clk clock.WithTicker, window time.Duration) *feed {
	return &feed{
		Interface: inner, resource: resource, newFunc: newFunc, clock: clk, window: window,
		stream: metadata.Pairs("source", "cache", "resource", resource.String()),
	}
}

// IsWatchListSemanticsUnSupported is the method that client-go looks for. It makes a cacher fill itself by paged lists. By
// default it asks for a stream of initial events, which client-go collects by namespace and name: objects with one name
// in several logical clusters would silently be one in the cache.
func (*feed) IsWatchListSemanticsUnSupported() bool { return true }

// onOwnStream gives each cacher a watch stream of its own. The etcd client shares one among watches whose contexts have
// equal metadata; then events of all resources would queue up behind each other, and etcd would tell none of them how far
// it is while one lags.
func (f *feed) onOwnStream(ctx context.Context) context.Context {
	return metadata.NewOutgoingContext(ctx, f.stream)
}

// errClosed ends the watch of a cacher that is to stop. It is the one error that its reflector does not log: it waits before it
// watches again, if it is not stopped meanwhile.
var errClosed = apierrors.NewTooManyRequests("the store is closed", 1)

func (f *feed) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(ctx)
	live, err := f.Interface.Watch(f.onOwnStream(ctx), key, opts)
	if err != nil {
		cancel()
		return nil, err
	}
	live = late(live, f.resource)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		cancel()
		live.Stop()
		return nil, errClosed
	}
	f.watch = f.filling(ctx, cancel, live)
	return f.watch, nil
}

// close ends the cacher's watch, allows no other, and returns when the cacher has taken the last event. It comes before the
// cacher's Stop, which waits for whoever delivers events to it, while nobody makes room for them any more: with a hundred
// that wait it never returned.
func (f *feed) close() {
	f.mu.Lock()
	f.closed = true
	w := f.watch
	f.mu.Unlock()
	if w != nil {
		w.cancel()
		<-w.done // the cacher's reflector stops each watch that ended
	}
}

func (f *feed) RequestWatchProgress(ctx context.Context) error {
	return f.Interface.RequestWatchProgress(f.onOwnStream(ctx))
}

// GetCurrentResourceVersion is what a cacher asks before it waits until it is as new as that, to answer a consistent list.
// If it is not, because others have written other resources, etcd is asked right now to tell it: by itself the cacher asks
// every 100 ms, so that each tenant's writes would make the others' lists that slow.
func (f *feed) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	current, err := f.Interface.GetCurrentResourceVersion(ctx)
	if err != nil {
		return 0, err
	}
	syncedTo := f.syncedTo.Load()
	if syncedTo == nil {
		return current, nil
	}
	// Whoever asked for this resourceVersion or a later one asked for all earlier ones.
	asked := f.asked.Load()
	if seen, ok := (*syncedTo)(); !ok || seen >= current || asked >= current || !f.asked.CompareAndSwap(asked, current) {
		return current, nil
	}
	// The cacher asks again if this comes to nothing.
	_ = f.RequestWatchProgress(ctx)
	return current, nil
}
