package nodes

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"atoll.dev/atoll/internal/classes"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

const (
	// maxDeletions are remembered: a watch that goes on from before the oldest begins anew.
	maxDeletions = 1024
	// retryEvery is how long to wait before a feed that ended is opened again.
	retryEvery = time.Second
)

// changes tells listeners of changes to what Nodes and classes are made of. There is one feed of each resource for all logical clusters, and one
// entry for each listener.
type changes struct {
	mu        sync.Mutex
	listeners map[logicalcluster.Name]map[*listener]bool
	// feeds has up to which revision each has told all.
	feeds map[schema.GroupResource]uint64
	// lost are the deletions of SyncTargets and policies, lostRows those of rows of classes.
	lost     memory
	lostRows map[schema.GroupResource]*memory
	// complete is closed when wanted feeds are open: all.
	complete chan struct{}
	wanted   int
}

// memory has deletions, which leave no object with a later resourceVersion, and since when all are known.
type memory struct {
	deletions []deletion
	known     uint64
}

type deletion struct {
	cluster  logicalcluster.Name
	revision uint64
}

// listener is one watch.
type listener struct {
	wake chan struct{}
	// after is the revision that it began at: it knows what was before.
	after uint64
	// of is the resource that it watches: it hears of no other rows.
	of schema.GroupResource
	// chain is what it listens to, the workspace first, and changed by who listens.
	chain []logicalcluster.Name
	told  told // guarded by changes.mu
}

// told is what a listener has been told of.
type told struct {
	// first and last are the revisions of changes; 0 for none.
	first, last uint64
	// all says up to which revision there are no others.
	all uint64
	// broken says that there may be changes that nobody was told of.
	broken bool
}

func newChanges() *changes {
	c := &changes{
		listeners: map[logicalcluster.Name]map[*listener]bool{}, feeds: map[schema.GroupResource]uint64{},
		lostRows: map[schema.GroupResource]*memory{}, complete: make(chan struct{}), wanted: len(sources) + len(classes.All),
	}
	for _, k := range classes.All {
		c.lostRows[k.GVR.GroupResource()] = &memory{}
	}
	return c
}

// Run tells watches of changes until ctx ends.
func (n *Nodes) Run(ctx context.Context) {
	var feeds sync.WaitGroup
	all := slices.Clone(sources)
	for _, k := range classes.All {
		all = append(all, k.GVR.GroupResource())
	}
	for _, resource := range all {
		feeds.Go(func() {
			wait.UntilWithContext(ctx, func(ctx context.Context) {
				if err := n.feed(ctx, resource); err != nil && ctx.Err() == nil {
					klog.FromContext(ctx).Info("Watches of nodes or classes begin anew", "resource", resource.String(), "err", err)
				}
			}, retryEvery)
		})
	}
	feeds.Wait()
}

// feed tells of one resource until its watch ends.
func (n *Nodes) feed(ctx context.Context, resource schema.GroupResource) error {
	store, err := n.store(resource)
	if err != nil {
		return err
	}
	at, err := store.Storage.GetCurrentResourceVersion(lcctx.WithCluster(ctx, lcctx.Cluster{Wildcard: true}))
	if err != nil {
		return err
	}
	events, err := store.WatchEverywhere(ctx, metav1.ListOptions{ResourceVersion: strconv.FormatUint(at, 10), AllowWatchBookmarks: true},
		func(obj runtime.Object) (runtime.Object, error) { return obj, nil })
	if err != nil {
		return err
	}
	defer events.Stop()
	n.changes.begin(resource, at)
	for event := range events.ResultChan() {
		if event.Type == watch.Error {
			return fmt.Errorf("watch %s: %v", resource, event.Object)
		}
		object, err := meta.Accessor(event.Object)
		if err != nil {
			return err
		}
		revision, err := versioner.ParseResourceVersion(object.GetResourceVersion())
		if err != nil {
			return err
		}
		n.changes.tell(resource, event.Type, lcctx.NameFrom(object), revision)
	}
	return fmt.Errorf("the watch of %s ended", resource)
}

// begin says that a feed tells of everything after a revision. What was between this feed and one before is not known.
func (c *changes) begin(resource schema.GroupResource, at uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.feeds[resource] = at
	lost := c.lostOf(resource)
	lost.known = max(lost.known, at)
	for _, of := range c.listeners {
		for l := range of {
			if c.concerns(l, resource) {
				l.told.broken = true
				l.awake()
			}
		}
	}
	if len(c.feeds) == c.wanted {
		select {
		case <-c.complete:
		default:
			close(c.complete)
		}
	}
}

// lostOf is where the deletions of a resource are remembered. The caller has mu.
func (c *changes) lostOf(resource schema.GroupResource) *memory {
	if rows, ok := c.lostRows[resource]; ok {
		return rows
	}
	return &c.lost
}

// concerns says whether what l watches is made of a resource. The caller has mu.
func (c *changes) concerns(l *listener, resource schema.GroupResource) bool {
	_, rows := c.lostRows[resource]
	return !rows || l.of == resource
}

// tell takes one event of a feed.
func (c *changes) tell(resource schema.GroupResource, kind watch.EventType, cluster logicalcluster.Name, revision uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.feeds[resource] = max(c.feeds[resource], revision)
	if kind == watch.Bookmark {
		for _, of := range c.listeners {
			for l := range of {
				if c.concerns(l, resource) {
					l.awake()
				}
			}
		}
		return
	}
	if kind == watch.Deleted && resource != logicalClusters {
		c.lostOf(resource).add(deletion{cluster, revision})
	}
	_, rows := c.lostRows[resource]
	for l := range c.listeners[cluster] {
		// Rows are of their own workspace alone.
		if revision <= l.after || rows && (l.of != resource || l.chain[0] != cluster) {
			continue
		}
		if l.told.first == 0 || revision < l.told.first {
			l.told.first = revision
		}
		l.told.last = max(l.told.last, revision)
		l.awake()
	}
}

func (m *memory) add(d deletion) {
	if len(m.deletions) == maxDeletions {
		m.known = max(m.known, m.deletions[0].revision)
		m.deletions = slices.Delete(m.deletions, 0, 1)
	}
	m.deletions = append(m.deletions, d)
}

// forgets says whether something may have been deleted in chain after a revision: it was, or nobody knows.
func (m *memory) forgets(chain []logicalcluster.Name, revision uint64) bool {
	return revision < m.known || slices.ContainsFunc(m.deletions, func(d deletion) bool {
		return d.revision > revision && slices.Contains(chain, d.cluster)
	})
}

func (l *listener) awake() {
	select {
	case l.wake <- struct{}{}:
	default: // it is awake already
	}
}

// listen makes l hear of changes in the logical clusters of chain, and of no others; none ends it.
func (c *changes) listen(l *listener, chain []logicalcluster.Name) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cluster := range l.chain {
		delete(c.listeners[cluster], l)
		if len(c.listeners[cluster]) == 0 {
			delete(c.listeners, cluster)
		}
	}
	l.chain = chain
	for _, cluster := range chain {
		if c.listeners[cluster] == nil {
			c.listeners[cluster] = map[*listener]bool{}
		}
		c.listeners[cluster][l] = true
	}
}

// heard returns what l was told of since it was last asked.
func (c *changes) heard(l *listener) told {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := l.told
	l.told.first, l.told.last = 0, 0
	for i, resource := range sources {
		if at := c.feeds[resource]; i == 0 || at < t.all {
			t.all = at
		}
	}
	if _, rows := c.lostRows[l.of]; rows {
		t.all = min(t.all, c.feeds[l.of])
	}
	return t
}

// forgets says whether something that l watches may have been deleted in chain after a revision: it was, or nobody knows.
func (c *changes) forgets(l *listener, chain []logicalcluster.Name, revision uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	rows, ok := c.lostRows[l.of]
	return c.lost.forgets(chain, revision) || ok && rows.forgets(chain[:1], revision)
}
