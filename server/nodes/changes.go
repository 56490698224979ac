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

	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

const (
	// maxDeletions are remembered: a watch that goes on from before the oldest begins anew.
	maxDeletions = 1024
	// retryEvery is how long to wait before a feed that ended is opened again.
	retryEvery = time.Second
)

// changes tells listeners of changes to what Nodes are made of. There is one feed of each resource for all logical clusters, and one
// entry for each listener.
type changes struct {
	mu        sync.Mutex
	listeners map[logicalcluster.Name]map[*listener]bool
	// feeds has up to which revision each has told all.
	feeds map[schema.GroupResource]uint64
	// deletions of SyncTargets and policies, which leave no object with a later resourceVersion, and since when all are known.
	deletions []deletion
	known     uint64
	// complete is closed when all feeds are open.
	complete chan struct{}
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
	// chain is what it listens to, and changed by who listens.
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
	return &changes{listeners: map[logicalcluster.Name]map[*listener]bool{}, feeds: map[schema.GroupResource]uint64{}, complete: make(chan struct{})}
}

// Run tells watches of changes until ctx ends.
func (n *Nodes) Run(ctx context.Context) {
	var feeds sync.WaitGroup
	for _, resource := range sources {
		feeds.Go(func() {
			wait.UntilWithContext(ctx, func(ctx context.Context) {
				if err := n.feed(ctx, resource); err != nil && ctx.Err() == nil {
					klog.FromContext(ctx).Info("Watches of nodes begin anew", "resource", resource.String(), "err", err)
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
	c.known = max(c.known, at)
	for _, of := range c.listeners {
		for l := range of {
			l.told.broken = true
			l.awake()
		}
	}
	if len(c.feeds) == len(sources) {
		select {
		case <-c.complete:
		default:
			close(c.complete)
		}
	}
}

// tell takes one event of a feed.
func (c *changes) tell(resource schema.GroupResource, kind watch.EventType, cluster logicalcluster.Name, revision uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.feeds[resource] = max(c.feeds[resource], revision)
	if kind == watch.Bookmark {
		for _, of := range c.listeners {
			for l := range of {
				l.awake()
			}
		}
		return
	}
	if kind == watch.Deleted && resource != logicalClusters {
		if len(c.deletions) == maxDeletions {
			c.known = max(c.known, c.deletions[0].revision)
			c.deletions = slices.Delete(c.deletions, 0, 1)
		}
		c.deletions = append(c.deletions, deletion{cluster, revision})
	}
	for l := range c.listeners[cluster] {
		if revision <= l.after {
			continue
		}
		if l.told.first == 0 || revision < l.told.first {
			l.told.first = revision
		}
		l.told.last = max(l.told.last, revision)
		l.awake()
	}
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
	return t
}

// forgets says whether something may have been deleted in chain after a revision: it was, or nobody knows.
func (c *changes) forgets(chain []logicalcluster.Name, revision uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return revision < c.known || slices.ContainsFunc(c.deletions, func(d deletion) bool {
		return d.revision > revision && slices.Contains(chain, d.cluster)
	})
}
