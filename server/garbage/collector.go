package garbage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/queue"
	"atoll.dev/atoll/server/storage"
)

const (
	// workers look at objects; each look is a read of the object and of each owner, and at most one or two writes.
	workers = 16
	// sweepers is for how many logical clusters at a time what waits is swept, which takes as long as they are large.
	sweepers = 4
)

// ReadFunc reads an object of a logical cluster, at a resourceVersion as in a get.
type ReadFunc func(ctx context.Context, cluster logicalcluster.Name, namespace, name, resourceVersion string, into ctrlclient.Object) (found bool, err error)

// Options are what the collector needs beside clients and informers. Both are required.
type Options struct {
	Kinds Kinds
	Read  ReadFunc
}

// Collector deletes what has no owners left, in all workspaces.
type Collector struct {
	clients   *client.Clients
	informers *client.Informers
	kinds     Kinds
	readFrom  ReadFunc

	graph *graph
	// looks holds what has to be looked at.
	looks *queue.Queue[identity]
	// waiting holds what waits for its dependents or to be orphaned, by logical cluster.
	waiting *turns[logicalcluster.Name, identity]
	// served holds the kinds that logical clusters serve and did not before.
	served *queue.Queue[kindIn]
	// suspects holds what may be worth an Event.
	suspects *turns[resourceOf, suspect]
	// leftOut holds the objects of whose owners the graph has none, to be told, by logical cluster.
	leftOut *turns[logicalcluster.Name, identity]

	mu sync.Mutex // guards what follows
	// postponed is what has to be looked at when its logical cluster is imported.
	postponed map[logicalcluster.Name]map[identity]struct{}
	followed  map[schema.GroupResource]*followed

	answers answers
}

// followed is a resource that is followed, from a store.
type followed struct {
	store *storage.Resource
	stop  context.CancelFunc // of Run alone
	// listed says that the graph has what there is of it: what has dependents there is not known before. Guarded by Collector.mu.
	listed bool
}

// New returns the collector. It adds a handler to the informers, so they must not run yet.
func New(clients *client.Clients, informers *client.Informers, opts Options) (*Collector, error) {
	if opts.Kinds == nil || opts.Read == nil {
		return nil, errors.New("garbage: Kinds and Read are required")
	}
	c := &Collector{
		clients: clients, informers: informers, kinds: opts.Kinds, readFrom: opts.Read, postponed: map[logicalcluster.Name]map[identity]struct{}{},
		followed: map[schema.GroupResource]*followed{},
	}
	c.graph = newGraph(c.resolve)
	c.looks = queue.New("garbage", c.look)
	c.served = queue.New("garbage-served", c.nowServed)
	c.waiting = newTurns("garbage-waiting", c.sweep)
	c.suspects = newTurns("garbage-events", c.tellSuspects)
	c.leftOut = newTurns("garbage-left-out", c.tellLeftOut)
	informers.OnImported(c.resume)
	return c, nil
}

// Run waits for the informers and works until ctx ends.
func (c *Collector) Run(ctx context.Context) error {
	defer c.looks.Stop()
	defer c.served.Stop()
	defer c.waiting.stop()
	defer c.suspects.stop()
	defer c.leftOut.stop()
	if err := c.informers.WaitSynced(ctx); err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	// Before anything is in the graph, so that nothing is missed.
	c.kinds.OnServed(ctx, func(cluster logicalcluster.Name, kind schema.GroupVersionKind) { c.served.Add(kindIn{cluster, kind}) })
	wg.Go(func() { c.looks.Run(ctx, workers) })
	wg.Go(func() { c.served.Run(ctx, 1) })
	wg.Go(func() { c.waiting.run(ctx, sweepers) })
	wg.Go(func() { c.suspects.run(ctx, 1) })
	wg.Go(func() { c.leftOut.run(ctx, 1) })
	for {
		stores, changed := c.kinds.Stored()
		begun, ended := c.follow(stores)
		for _, f := range ended {
			f.stop()
			// Its last objects may have gone untold.
			c.enqueue(c.graph.relist(f.store.GroupResource, nil))
		}
		for _, f := range begun {
			var feedCtx context.Context
			feedCtx, f.stop = context.WithCancel(ctx)
			wg.Go(func() { c.feedOf(f).run(feedCtx) })
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

func (c *Collector) feedOf(f *followed) *feed {
	return &feed{
		store:  f.store,
		wanted: func(o object) bool { return c.graph.wants(o) && !c.isMirror(o.cluster) },
		listed: func(all []object) {
			c.enqueue(c.graph.relist(f.store.GroupResource, all))
			c.setListed(f)
		},
		changed: func(o object) {
			if !c.isMirror(o.cluster) {
				c.enqueue(c.graph.see(o))
			}
		},
		ended: func(o object) { c.enqueue(c.graph.end(o.identity)) },
	}
}

// nowServed has what names a kind looked at that its logical cluster serves now.
func (c *Collector) nowServed(_ context.Context, kind kindIn) (time.Duration, error) {
	for {
		look, more := c.graph.served(kind)
		c.enqueue(look)
		if !more {
			return 0, nil
		}
	}
}

func (c *Collector) enqueue(look []identity) {
	for _, id := range look {
		c.looks.Add(id)
	}
}

// follow takes which resources are followed from now on, and returns those of them that were not, and those that are no more.
func (c *Collector) follow(stores []*storage.Resource) (begun, ended []*followed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.followed
	c.followed = make(map[schema.GroupResource]*followed, len(stores))
	for _, store := range stores {
		f := before[store.GroupResource]
		if f != nil && f.store == store {
			delete(before, store.GroupResource)
		} else {
			f = &followed{store: store}
			begun = append(begun, f)
		}
		c.followed[store.GroupResource] = f
	}
	return begun, slices.Collect(maps.Values(before))
}

// setListed takes that the graph has what there is of a resource.
func (c *Collector) setListed(f *followed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.listed = true
}

// allListed says whether the graph has what there is of some resources.
func (c *Collector) allListed(resources []schema.GroupResource) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !slices.ContainsFunc(resources, func(gr schema.GroupResource) bool {
		f := c.followed[gr]
		return f == nil || !f.listed
	})
}

// follows says whether the end of objects of a resource is told.
func (c *Collector) follows(resource schema.GroupResource) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.followed[resource]
	return f != nil && f.listed
}

// store returns the store of a resource, whether or not it is followed: what a kind owned that is not defined any more is still
// judged, and a kind may be defined before this has heard of it.
func (c *Collector) store(resource schema.GroupResource) (*storage.Resource, error) {
	c.mu.Lock()
	f := c.followed[resource]
	c.mu.Unlock()
	if f != nil {
		return f.store, nil
	}
	return c.kinds.Store(resource)
}

// read reads an object from etcd.
func (c *Collector) read(ctx context.Context, id identity) (object, bool, error) {
	store, err := c.store(id.resource)
	if err != nil {
		return object{}, false, err
	}
	return read(ctx, store, id, "")
}

// resolve says what a reference of an object names. An owner is in the object's namespace, or in none if its kind has none.
func (c *Collector) resolve(of identity, ref metav1.OwnerReference) (identity, bool) {
	resource, namespaced, ok := c.kinds.Resource(of.cluster, schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind))
	if !ok {
		return identity{}, false
	}
	id := identity{cluster: of.cluster, resource: resource, name: ref.Name, uid: ref.UID}
	if namespaced {
		id.namespace = of.namespace
	}
	return id, true
}

// isMirror says whether a logical cluster is known to be a mirror, in which nothing is collected: there the splitter and
// the syncer decide.
func (c *Collector) isMirror(cluster logicalcluster.Name) bool {
	lc, ok := c.informers.LogicalClusters.Get(client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName})
	return ok && lc.Spec.Use == corev1alpha1.LogicalClusterUseMirror
}

// postpone has an object looked at when its logical cluster is imported.
func (c *Collector) postpone(id identity) {
	c.mu.Lock()
	if c.postponed[id.cluster] == nil {
		c.postponed[id.cluster] = map[identity]struct{}{}
	}
	c.postponed[id.cluster][id] = struct{}{}
	c.mu.Unlock()
	// It may have been told just before.
	if lc, ok := c.informers.LogicalClusters.Get(client.Key{Cluster: id.cluster, Name: corev1alpha1.LogicalClusterName}); ok && !client.IsImporting(lc) {
		c.resume(id.cluster)
	}
}

// resume has what was postponed in a logical cluster looked at.
func (c *Collector) resume(cluster logicalcluster.Name) {
	c.mu.Lock()
	look := c.postponed[cluster]
	delete(c.postponed, cluster)
	c.mu.Unlock()
	c.enqueue(slices.Collect(maps.Keys(look)))
}

// workspace returns the LogicalCluster of a logical cluster that exists and is no mirror, else nil. The informer may be behind.
func (c *Collector) workspace(ctx context.Context, cluster logicalcluster.Name) (*corev1alpha1.LogicalCluster, error) {
	lc, ok := c.informers.LogicalClusters.Get(client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName})
	if !ok {
		lc = &corev1alpha1.LogicalCluster{}
		found, err := c.readFrom(ctx, cluster, "", corev1alpha1.LogicalClusterName, "", lc)
		if err != nil || !found {
			return nil, err
		}
	}
	if lc.Spec.Use == corev1alpha1.LogicalClusterUseMirror {
		return nil, nil
	}
	return lc, nil
}

// String is for logs and errors.
func (id identity) String() string {
	name := id.name
	if id.namespace != "" {
		name = id.namespace + "/" + name
	}
	return fmt.Sprintf("%s %q of logical cluster %q with UID %s", id.resource, name, id.cluster, id.uid)
}
