package storage

import (
	"context"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

const (
	// lastEvents and lastFor are how many events, and how long, are remembered of what is followed: between a client's list and its
	// watch. Decoded, each may be megabytes.
	lastEvents, lastFor = 100, 10 * time.Second
	// followerRoom is how many events a watch may be behind beside those.
	followerRoom = 100
)

// followed serves watches of one logical cluster from one watch of all of them, which a part of this server has anyway (Following).
// It remembers the last events. A watch of its own would begin up to 100 ms late, since etcd catches up only so often with one from a
// position before its newest, which others write on; and each would decode what it tells.
//
// What it has not, etcd's own watch has: older events, selectors, and everything while nobody follows. Watches end when the one that they are
// served from does, and when their reader is too slow, as those of a watch cache; clients go on from where they were.
type followed struct {
	storage.Interface
	resource schema.GroupResource
	key      func(runtime.Object) (string, error) // as watches have it: with the logical cluster

	mu       sync.Mutex // guards what follows
	source   *following // nil: nobody follows
	from     uint64     // what is newer was told by source, or will be
	last     []told     // in their order, none older than lastFor
	forget   *time.Timer
	watchers map[string]map[*follower]bool // by logical cluster
}

// told is an event, of an object that nobody may change.
type told struct {
	watch.Event
	cluster, key string
	version      uint64
	at           time.Time
}

func newFollowed(inner storage.Interface, resource schema.GroupResource, key func(runtime.Object) (string, error)) *followed {
	return &followed{Interface: inner, resource: resource, key: key, watchers: map[string]map[*follower]bool{}}
}

type followingKey struct{}

func follows(ctx context.Context) bool {
	following, _ := ctx.Value(followingKey{}).(bool)
	return following
}

// Following returns a context whose watch of all logical clusters, without selectors and from a position, serves those of single ones of a
// resource that is stored as Uncached says. Its reader hears of everything first: each event is followed by a bookmark, and told to others when
// that is received, so that the reader has done with the event. They wait for it. The newest such watch serves; those before it end.
func Following(ctx context.Context) context.Context {
	return context.WithValue(ctx, followingKey{}, true)
}

// Watch implements storage.Interface.
func (f *followed) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	from, err := f.Versioner().ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	c, ok := lc.ClusterFrom(ctx)
	if follows(ctx) && c.Wildcard && from > 0 && opts.Predicate.Empty() {
		live, err := f.Interface.Watch(ctx, key, opts)
		if err != nil {
			return nil, err
		}
		return f.follow(live, from), nil
	}
	if ok && !c.Wildcard && from > 0 && isOfKey(opts) {
		if w := f.serve(c.Name.String(), key, opts.Recursive, from); w != nil {
			w.endsWith(ctx)
			return newStream(ctx, nil, nil, w, func(event watch.Event) (watch.Event, bool) {
				if isUnreadable(event.Object) {
					return watch.Event{Type: watch.Error, Object: storageStatus(unreadableError(f.resource, event.Object))}, true
				}
				event.Object = event.Object.DeepCopyObject() // receivers may change it
				return event, true
			}), nil
		}
	}
	return f.Interface.Watch(ctx, key, opts)
}

// isOfKey says whether the key alone decides which objects a watch is of: a name is a field that never changes.
func isOfKey(opts storage.ListOptions) bool {
	if opts.SendInitialEvents != nil || opts.ProgressNotify || !opts.Predicate.Label.Empty() {
		return false
	}
	_, named := opts.Predicate.Field.RequiresExactMatch("metadata.name")
	return opts.Predicate.Field.Empty() || named && !opts.Recursive && len(opts.Predicate.Field.Requirements()) == 1
}

// serve returns a watch of what comes after a position; nil if that is not known.
func (f *followed) serve(cluster, key string, recursive bool, from uint64) *follower {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.source == nil || from < f.from {
		return nil
	}
	w := &follower{of: f, cluster: cluster, key: key, recursive: recursive, from: from, result: make(chan watch.Event, lastEvents+followerRoom)}
	if f.watchers[cluster] == nil {
		f.watchers[cluster] = map[*follower]bool{}
	}
	f.watchers[cluster][w] = true
	for _, event := range f.last {
		w.take(event)
	}
	return w
}

// follow makes live the source of watches from now on. It is read by whoever asked for it.
func (f *followed) follow(live watch.Interface, from uint64) watch.Interface {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.source != nil {
		f.source.Stop()
		f.end()
	}
	s := &following{newRelay(live), f}
	f.source, f.from = s, from
	go s.run()
	return s
}

// take remembers an event of a source and tells it.
func (f *followed) take(source *following, event watch.Event) error {
	key, err := f.key(event.Object)
	if err != nil {
		return err
	}
	version, err := f.Versioner().ObjectResourceVersion(event.Object)
	if err != nil {
		return err
	}
	now := told{Event: event, cluster: clusterOfObject(event.Object), key: key, version: version, at: time.Now()}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.source != source {
		return nil
	}
	f.last = append(f.last, now)
	f.drop(len(f.last) - lastEvents)
	if f.forget == nil {
		f.forget = time.AfterFunc(lastFor, f.forgetOld)
	}
	for w := range f.watchers[now.cluster] {
		w.take(now)
	}
	if isUnreadable(event.Object) { // it may be readable for who asks again
		f.drop(len(f.last))
	}
	return nil
}

// drop forgets the first n events. Callers hold mu.
func (f *followed) drop(n int) {
	if n <= 0 {
		return
	}
	f.from = f.last[n-1].version
	clear(f.last[:n])
	f.last = f.last[n:]
}

func (f *followed) forgetOld() {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := 0
	for old < len(f.last) && time.Since(f.last[old].at) >= lastFor {
		old++
	}
	f.drop(old)
	f.forget = nil
	if len(f.last) > 0 {
		f.forget = time.AfterFunc(time.Until(f.last[0].at.Add(lastFor)), f.forgetOld)
	}
}

// ended says that a source has.
func (f *followed) ended(source *following) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.source == source {
		f.end()
	}
}

// end ends all watches, since nobody follows any more. Callers hold mu.
func (f *followed) end() {
	f.source, f.from, f.last = nil, 0, nil
	if f.forget != nil {
		f.forget.Stop()
		f.forget = nil
	}
	for _, some := range f.watchers {
		for w := range some {
			w.end()
		}
	}
}

// following is the watch of all logical clusters, as its reader has it: without rows that cannot be read.
type following struct {
	relay
	of *followed
}

func (s *following) run() {
	ctx := context.Background() // live ends with that of its reader
	defer close(s.result)
	defer s.of.ended(s) // before its reader asks for another one
	defer s.live.Stop()
	for event := range s.live.ResultChan() {
		switch event.Type {
		case watch.Added, watch.Modified, watch.Deleted:
			if !isUnreadable(event.Object) && !(s.send(ctx, event) && s.send(ctx, watch.Event{Type: watch.Bookmark, Object: event.Object})) {
				return
			}
			if err := s.of.take(s, event); err != nil {
				klog.ErrorS(err, "Watches are not served from the one of all logical clusters any more, until it begins anew", "resource", s.of.resource)
				s.of.ended(s)
			}
		default:
			if !s.send(ctx, event) || event.Type == watch.Error {
				return
			}
		}
	}
}

// follower is a watch of one logical cluster, or of one object in it.
type follower struct {
	of           *followed
	cluster, key string
	recursive    bool
	from         uint64
	result       chan watch.Event

	// Guarded by of.mu.
	ended   bool
	release func() bool // from the context that it ends with
}

// endsWith ends the watch when ctx does.
func (w *follower) endsWith(ctx context.Context) {
	release := context.AfterFunc(ctx, w.Stop)
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	if w.release = release; w.ended {
		release()
	}
}

func (w *follower) ResultChan() <-chan watch.Event { return w.result }

func (w *follower) Stop() {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	w.end()
}

// end closes the watch, once. Callers hold of.mu.
func (w *follower) end() {
	if w.ended {
		return
	}
	w.ended = true
	if w.release != nil {
		w.release()
	}
	close(w.result)
	delete(w.of.watchers[w.cluster], w)
	if len(w.of.watchers[w.cluster]) == 0 {
		delete(w.of.watchers, w.cluster)
	}
}

// take tells an event, if it is one of the watch's, or ends the watch if its reader is too far behind. Callers hold of.mu.
func (w *follower) take(event told) {
	if w.ended || event.cluster != w.cluster || event.version <= w.from ||
		event.key != w.key && !(w.recursive && strings.HasPrefix(event.key, strings.TrimSuffix(w.key, "/")+"/")) {
		return
	}
	select {
	case w.result <- event.Event:
	default:
		klog.V(1).InfoS("A watch ends since its reader is too slow", "resource", w.of.resource, "logicalCluster", w.cluster, "behind", followerRoom)
		w.end()
	}
}
