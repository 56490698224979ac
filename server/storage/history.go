package storage

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher/metrics"
	compbasemetrics "k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
)

// A cacher keeps the events of the last 75 s, each with the object before and after it, for watchers that come back. It
// doubles the room for them when that is full of newer ones, and gives half of it back, with the events in it, when a
// further event finds it full of older ones. So what a busy time left behind, such as everything about 10,000 workspaces that
// were deleted, would stay until as much happens again. Therefore a feed adds events of its own, fillers, when its resource
// has been quiet for longer than the cacher must remember: some halve a room that is full; if it is not, more fill it, and
// when those are old, too, some halve it.
//
// Nobody sees a filler. It updates an object whose key, fillerKey, begins with no resource prefix, so that no list and no
// watch matches it; it belongs to no logical cluster, which dispatch.go requires; and it never reaches etcd.

const (
	// fillerUID marks fillers. Clients cannot choose or change the UID of an object.
	fillerUID types.UID = "filler"
	fillerKey string    = "filler"

	// leastRoom is how many events a cacher has room for at least.
	leastRoom = 100
	// fillerBatch is enough to halve the largest room, for 102,400 events, to the least, and too few to fill that: a room
	// that is full of new events is doubled. Fillers go to the watchers of all logical clusters, too, whose filters drop
	// them; who lags by a thousand events is cut off, so there is a pause after each batch.
	fillerBatch = 64
	fillerPause = time.Millisecond
	// quietMore is how much longer than the cacher must remember a resource is quiet before it gets fillers.
	quietMore = 5 * time.Second
)

// rooms has the metric of the rooms of all cachers, the one place that tells them.
var rooms = sync.OnceValue(func() compbasemetrics.KubeRegistry {
	registry := compbasemetrics.NewKubeRegistry()
	registry.MustRegister(metrics.WatchCacheCapacity)
	return registry
})

// roomOf is how many events the cacher of a resource has room for.
func roomOf(gr schema.GroupResource) (int, error) {
	families, err := rooms().Gather()
	if err != nil {
		return 0, err
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range metric.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["group"] == gr.Group && labels["resource"] == gr.Resource {
				return int(metric.GetGauge().GetValue()), nil
			}
		}
	}
	return 0, fmt.Errorf("no metric tells how many events of %s are remembered", gr)
}

func isFiller(obj runtime.Object) bool {
	object, err := meta.Accessor(obj)
	return err == nil && object.GetUID() == fillerUID
}

// tally is what a feed has delivered.
type tally struct {
	// changed is the resourceVersion of the last event, seen that of the last event, filler or bookmark.
	changed, seen uint64
	// at is when the last event, or the last filler, was delivered; zero when there is nothing to forget.
	at time.Time
}

// event takes notice of an event that is no filler.
func (t *tally) event(version uint64, now time.Time) {
	t.changed, t.seen, t.at = version, max(t.seen, version), now
}

// quiet says whether there may be something to forget, and nothing was delivered for that long.
func (t *tally) quiet(now time.Time, long time.Duration) bool {
	return !t.at.IsZero() && now.Sub(t.at) >= long
}

// fillerAt is the resourceVersion of fillers. It must be later than the last event: a watcher who has seen what came before
// a filler, but not that event, would not be told that he missed it. And what the cacher has seen is never later. There
// may be none yet: a bookmark says until when nothing else has happened.
func (t *tally) fillerAt(bookmark uint64) (version uint64, ok bool) {
	version = max(t.changed+1, t.seen)
	return version, version <= bookmark
}

// filling is a watch of a feed with its fillers.
type filling struct {
	feed   *feed
	live   watch.Interface
	result chan watch.Event
	last   <-chan struct{} // closed by cancel, when nothing more is to be delivered or asked for
	cancel context.CancelFunc
	done   chan struct{} // closed when nobody wants more
	stop   sync.Once
	tally  tally
	// asked says that etcd was asked how far it is, so that fillers can be delivered.
	asked bool
}

func (f *feed) filling(ctx context.Context, cancel context.CancelFunc, live watch.Interface) *filling {
	w := &filling{feed: f, live: live, result: make(chan watch.Event), last: ctx.Done(), cancel: cancel, done: make(chan struct{})}
	go w.run(ctx)
	return w
}

func (w *filling) ResultChan() <-chan watch.Event { return w.result }

func (w *filling) Stop() {
	w.stop.Do(func() {
		close(w.done)
		w.cancel()
		w.live.Stop()
	})
}

func (w *filling) run(ctx context.Context) {
	defer close(w.result)
	defer w.live.Stop()
	defer w.end()
	quiet := w.feed.window + quietMore
	ticker := w.feed.clock.NewTicker(quiet / 4)
	defer ticker.Stop()
	for {
		select {
		case event, ok := <-w.live.ResultChan():
			if !ok || !w.pass(event) {
				return
			}
		case <-ticker.C():
			if w.tally.quiet(w.feed.clock.Now(), quiet) {
				w.ask(ctx)
			}
		case <-w.last:
			return
		case <-w.done:
			return
		}
	}
}

// end tells the cacher that its feed is closed, if it is.
func (w *filling) end() {
	select {
	case <-w.last:
	default:
		return
	}
	select {
	case w.result <- watch.Event{Type: watch.Error, Object: &errClosed.ErrStatus}:
	case <-w.done:
	}
}

// ask asks etcd how far it is, if there is something to forget. The answer is a bookmark; if it does not come, or what
// was asked for fails, the next tick asks again.
func (w *filling) ask(ctx context.Context) {
	room, err := roomOf(w.feed.resource)
	if err == nil && room <= leastRoom {
		w.tally.at = time.Time{}
		return
	}
	if err == nil {
		err = w.feed.RequestWatchProgress(ctx)
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		klog.ErrorS(err, "A cache cannot forget old events", "resource", w.feed.resource)
		return
	}
	w.asked = true
}

// pass delivers an event of the store, and before it the fillers that are due. It returns false if nobody wants more.
func (w *filling) pass(event watch.Event) bool {
	if event.Type == watch.Error {
		return w.send(event)
	}
	version, err := w.feed.Versioner().ObjectResourceVersion(event.Object)
	if err != nil {
		klog.ErrorS(err, "An event has no resourceVersion", "resource", w.feed.resource)
		return w.send(event)
	}
	if event.Type != watch.Bookmark {
		w.asked = false
		w.tally.event(version, w.feed.clock.Now())
		if event.Type != watch.Deleted { // that is forgotten soon
			if err := shareParts(event.Object); err != nil {
				klog.ErrorS(err, "Parts of objects that are alike cannot be held once", "resource", w.feed.resource)
			}
		}
		return w.send(event)
	}
	var next *watch.Event
	if at, ok := w.tally.fillerAt(version); w.asked && ok {
		w.asked = false
		if next, ok = w.fill(at); !ok {
			return false
		}
	}
	w.tally.seen = max(w.tally.seen, version)
	return w.send(event) && (next == nil || w.pass(*next))
}

// fill delivers fillers, unless the store has an event meanwhile, which must not wait: it returns that. It returns false
// if nobody wants more.
func (w *filling) fill(version uint64) (next *watch.Event, ok bool) {
	filler, err := newFiller(w.feed.newFunc, w.feed.Versioner(), version)
	if err != nil {
		klog.ErrorS(err, "A cache cannot forget old events", "resource", w.feed.resource)
		return nil, true
	}
	before, err := roomOf(w.feed.resource)
	// A room was full when it was doubled, so half of it fills the other half, and leaves an old event in it.
	for n := 0; err == nil && n <= before/2; n += fillerBatch {
		for range fillerBatch {
			if !w.send(watch.Event{Type: watch.Modified, Object: filler}) {
				return nil, false
			}
		}
		w.tally.seen, w.tally.at = version, w.feed.clock.Now()
		var room int
		if room, err = roomOf(w.feed.resource); room != before {
			break
		}
		select {
		case <-time.After(fillerPause):
		case event, ok := <-w.live.ResultChan():
			return &event, ok
		case <-w.last:
			return nil, false
		case <-w.done:
			return nil, false
		}
	}
	if err != nil {
		klog.ErrorS(err, "A cache cannot forget old events", "resource", w.feed.resource)
	}
	return nil, true
}

func (w *filling) send(event watch.Event) bool {
	select {
	case w.result <- event:
		return true
	case <-w.last:
		return false
	case <-w.done:
		return false
	}
}

func newFiller(newFunc func() runtime.Object, versioner storage.Versioner, version uint64) (runtime.Object, error) {
	filler := newFunc()
	object, err := meta.Accessor(filler)
	if err != nil {
		return nil, err
	}
	object.SetUID(fillerUID)
	if err := versioner.UpdateObject(filler, version); err != nil {
		return nil, fmt.Errorf("set the resourceVersion of a %T: %w", filler, err)
	}
	return filler, nil
}
