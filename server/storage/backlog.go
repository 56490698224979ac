package storage

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

// A watch that etcd serves is as far as its reader: etcd's client keeps for it what it has not taken, without bound, and the previous
// objects with that. A reader that stops, as one under SIGSTOP does, would fill the memory with what others write. A watch cache ends the watch of a
// reader that is too slow, and so does this.
const (
	// mostBehind is how much a watch may be behind, in bytes of etcd, and mostBehindTogether how much all of a logical cluster. One for
	// which nothing waits takes what comes together, however long it is: it is there already, and each beginning has to get on.
	mostBehind         = 8 << 20
	mostBehindTogether = 64 << 20
	// mostAhead is how much of that is decoded before the reader asks for it: decoded it takes a few times as much.
	mostAhead = 1 << 20
	// settles is how long it takes to decode that, and to find that the watch selects none of it.
	settles = 5 * time.Millisecond
)

// backlogs are how much the watches of each logical cluster are behind. One without any is not there.
type backlogs struct {
	mu    sync.Mutex // guards bytes
	bytes map[string]int64
}

// add adds to what the watches of a logical cluster are behind, and returns how much that is then.
func (b *backlogs) add(cluster string, n int64) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bytes == nil {
		b.bytes = map[string]int64{}
	}
	all := b.bytes[cluster] + n
	if b.bytes[cluster] = all; all == 0 {
		delete(b.bytes, cluster)
	}
	return all
}

// bounded ends watches that are too far behind.
type bounded struct {
	storage.Interface
	resource schema.GroupResource
	backlogs *backlogs
}

// Watch implements storage.Interface. It asks etcd to tell from time to time how far it is, where the client wants to know.
func (s *bounded) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if follows(ctx) { // its reader is this server
		return s.Interface.Watch(ctx, key, opts)
	}
	opts.ProgressNotify = opts.ProgressNotify || opts.Predicate.AllowWatchBookmarks
	c, _ := lc.ClusterFrom(ctx)
	b := &backlog{of: s.backlogs, cluster: c.String(), resource: s.resource, moved: make(chan struct{}, 1), full: make(chan struct{}, 1)}
	live, err := s.Interface.Watch(context.WithValue(ctx, backlogKey{}, b), key, opts)
	if err != nil {
		return nil, err
	}
	return newDelivery(ctx, live, opts.Predicate.AllowWatchBookmarks, b, s.Versioner()), nil
}

// delivery hands the events of a watch to its reader, and tells its backlog.
type delivery struct {
	relay
	bookmarks bool // are told
	backlog   *backlog
	version   func(watch.Event) int64
}

func newDelivery(ctx context.Context, live watch.Interface, bookmarks bool, b *backlog, versioner storage.Versioner) *delivery {
	d := &delivery{relay: newRelay(live), bookmarks: bookmarks, backlog: b, version: func(event watch.Event) int64 {
		version, err := versioner.ObjectResourceVersion(event.Object)
		if err != nil {
			return 0 // of an error, which is the last
		}
		return int64(version)
	}}
	go d.run(ctx)
	return d
}

func (d *delivery) run(ctx context.Context) {
	defer close(d.result)
	defer d.backlog.close()
	defer d.live.Stop()
	for {
		event, ok := d.next(ctx)
		if !ok {
			return
		}
		if event.Type == watch.Bookmark && !d.bookmarks { // etcd tells all that it tells by one stream, if one of them asks
			continue
		}
		version := d.version(event) // before it is its reader's, who may change it
		if !d.send(ctx, event) {
			return
		}
		d.backlog.delivered(version)
	}
}

// next is the next event of the watch; false if there is none, or nobody wants it any more.
func (d *delivery) next(ctx context.Context) (event watch.Event, ok bool) {
	for {
		select {
		case event, ok = <-d.live.ResultChan():
			return event, ok
		default:
		}
		d.backlog.caughtUp()
		var settled <-chan time.Time
		select {
		case event, ok = <-d.live.ResultChan():
			return event, ok
		case <-d.backlog.full:
			settled = time.After(settles)
		case <-d.done:
			return event, false
		case <-ctx.Done():
			return event, false
		}
		select {
		case event, ok = <-d.live.ResultChan():
			return event, ok
		case <-settled: // nothing of it was of interest
		case <-d.done:
			return event, false
		case <-ctx.Done():
			return event, false
		}
	}
}

type backlogKey struct{}

// backlog is what a watch has got from etcd and its reader has not taken yet: what waits here, and before it what was passed on to be decoded.
type backlog struct {
	of       *backlogs
	cluster  string
	resource schema.GroupResource
	moved    chan struct{} // holds one when the reader has moved on
	full     chan struct{} // holds one when no more is passed on until it has

	mu      sync.Mutex // guards what follows
	waiting int64      // bytes
	passed  []piece
	ahead   int64 // bytes of passed
	closed  bool
}

// piece is an event as it comes from etcd, or what etcd says else.
type piece struct {
	response clientv3.WatchResponse
	revision int64
	bytes    int64
}

// pieces are the events of a response, each by itself.
func pieces(response clientv3.WatchResponse) (all []piece) {
	for _, event := range response.Events {
		one := response
		one.Events = []*clientv3.Event{event}
		p := piece{response: one, revision: event.Kv.ModRevision, bytes: int64(len(event.Kv.Key) + len(event.Kv.Value))}
		if event.PrevKv != nil {
			p.bytes += int64(len(event.PrevKv.Value))
		}
		all = append(all, p)
	}
	if len(all) == 0 {
		all = append(all, piece{response: response})
	}
	return all
}

// take adds what has come together, and says whether the watch is not too far behind by that.
func (b *backlog) take(come []piece) bool {
	var bytes int64
	for _, p := range come {
		bytes += p.bytes
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false // ctx says so in a moment
	}
	b.waiting += bytes
	together := b.of.add(b.cluster, bytes)
	return b.waiting+b.ahead <= mostBehind && together <= mostBehindTogether
}

// pass passes a piece on if that is not too far ahead of the reader.
func (b *backlog) pass(p piece) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.ahead > 0 && b.ahead+p.bytes > mostAhead {
		signal(b.full)
		return false
	}
	b.waiting -= p.bytes
	b.ahead += p.bytes
	b.passed = append(b.passed, piece{revision: p.revision, bytes: p.bytes})
	return true
}

// delivered says that the reader has taken the event of a revision, and so all before.
func (b *backlog) delivered(revision int64) {
	b.drop(func(p piece) bool { return p.revision <= revision })
}

// caughtUp says that the reader waits: what was passed on, and has not come, was of no interest to it.
func (b *backlog) caughtUp() {
	b.drop(func(piece) bool { return true })
}

// drop forgets those that were passed first, for as long as they are so.
func (b *backlog) drop(is func(piece) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, bytes := 0, int64(0)
	for n < len(b.passed) && is(b.passed[n]) {
		bytes += b.passed[n].bytes
		n++
	}
	if n == 0 {
		return
	}
	clear(b.passed[:n])
	b.passed = b.passed[n:]
	b.ahead -= bytes
	b.of.add(b.cluster, -bytes)
	signal(b.moved)
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// end forgets what waits: nothing more is passed on.
func (b *backlog) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.of.add(b.cluster, -b.waiting)
	b.waiting = 0
}

// close forgets everything: there is no reader any more.
func (b *backlog) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.of.add(b.cluster, -(b.waiting + b.ahead))
	b.waiting, b.ahead, b.passed, b.closed = 0, 0, nil, true
}

// boundedWatcher is the watcher of an etcd client that keeps the backlog which is in the context, if there is one.
type boundedWatcher struct{ clientv3.Watcher }

// withBacklogs is a client whose watches keep their backlog.
func withBacklogs(of *clientv3.Client) *clientv3.Client {
	c := clientv3.NewCtxClient(context.Background())
	c.Cluster, c.KV, c.Lease, c.Watcher = of.Cluster, of.KV, of.Lease, boundedWatcher{of.Watcher}
	c.Auth, c.Maintenance = of.Auth, of.Maintenance
	return c
}

// Watch implements clientv3.Watcher.
func (w boundedWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	b, ok := ctx.Value(backlogKey{}).(*backlog)
	if !ok {
		return w.Watcher.Watch(ctx, key, opts...)
	}
	ctx, cancel := context.WithCancel(ctx)
	out := make(chan clientv3.WatchResponse)
	go func() {
		defer cancel()
		defer close(out)
		defer b.end()
		b.forward(ctx, w.Watcher.Watch(ctx, key, opts...), out)
	}()
	return out
}

// forward takes everything that comes at once, and passes it on as the reader goes. It returns when either ends, or the reader is too far behind.
func (b *backlog) forward(ctx context.Context, in clientv3.WatchChan, out chan<- clientv3.WatchResponse) {
	var queue []piece
	offered := false // the first of the queue is
	for in != nil || len(queue) > 0 {
		var to chan<- clientv3.WatchResponse
		var first clientv3.WatchResponse
		if len(queue) > 0 && (offered || b.pass(queue[0])) {
			to, first, offered = out, queue[0].response, true
		}
		select {
		case response, ok := <-in:
			if !ok {
				in = nil
				continue
			}
			come := pieces(response)
			if !b.take(come) && len(queue) > 0 {
				klog.V(1).InfoS("A watch ends since its reader is too slow", "resource", b.resource, "logicalCluster", b.cluster)
				return
			}
			queue = append(queue, come...)
		case to <- first:
			queue[0], queue, offered = piece{}, queue[1:], false
		case <-b.moved:
		case <-ctx.Done():
			return
		}
	}
}
