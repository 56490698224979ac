package quota

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	kubequota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"

	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/queue"
)

const (
	// workers of a queue count: a count is a list for each resource that a ResourceQuota limits.
	workers = 4
	// recount is how long after its status was written a ResourceQuota is counted again. It is kube-controller-manager's
	// --resource-quota-sync-period, which counts all of them for ever.
	recount = 5 * time.Minute
	// lookAgain is how long a ResourceQuota waits for its logical cluster, which another informer brings.
	lookAgain = time.Second
	// watchAgain is the pause between two watches of a resource.
	watchAgain = time.Second
	// whileCharging is how long a count waits beside which others have charged or written, or so many times as long as it took.
	whileCharging      = 50 * time.Millisecond
	whileChargingTimes = 5
	// holdAfter is how often a count of new limits is refused until it holds up who charges: else it might never be done, and until
	// then they limit nothing. It does so holdTimes at most, before it begins anew: whatever refuses it then is not who charges.
	holdAfter, holdTimes = 3, 10
)

// Stores are the server's, in the logical cluster of ctx.
type Stores interface {
	// Known returns a logical cluster by its name, and false for one that is not known (yet, or any more).
	Known(name logicalcluster.Name) (lcctx.Cluster, bool)
	// Served says whether a logical cluster serves a resource with namespaces, and whether it is one that it defines itself.
	Served(cluster logicalcluster.Name, resource schema.GroupResource) (served, custom bool)
	// OnCustom tells, until ctx ends, where a custom resource begins or ends to be served. tell must not block.
	OnCustom(ctx context.Context, tell func(logicalcluster.Name, schema.GroupResource))
	// List returns what etcd holds now of a built-in resource.
	List(ctx context.Context, resource schema.GroupResource, namespace string) ([]runtime.Object, error)
	// Count returns of how many objects of a custom resource etcd holds now.
	Count(ctx context.Context, resource schema.GroupResource, namespace string) (int64, error)
	// Quota reads a ResourceQuota from etcd.
	Quota(ctx context.Context, namespace, name string) (*corev1.ResourceQuota, error)
	// BeginCount comes between the read of a ResourceQuota and the lists. newLimits says that it has limits that were not counted
	// before: nothing is written from then on, by any server, without a look at them, or it returns a conflict if the ResourceQuota is
	// not as it was read any more; hold, that nobody charges it until they are counted, or another count of new ones begins without.
	BeginCount(ctx context.Context, read *corev1.ResourceQuota, newLimits, hold bool) (begun int64, err error)
	// UpdateQuotaStatus writes the status of a ResourceQuota that is still as it was read, if nothing that it was charged for was
	// written since BeginCount; else it returns a conflict. What was charged and is not written then has to be charged anew.
	UpdateQuotaStatus(ctx context.Context, read *corev1.ResourceQuota, begun int64) error
	// WatchEverywhere tells what happens to a resource in all logical clusters from now on.
	WatchEverywhere(ctx context.Context, resource schema.GroupResource) (watch.Interface, error)
}

// Controller counts for the ResourceQuotas of all workspaces.
type Controller struct {
	informers *client.Informers
	exists    func(client.Key) bool // a ResourceQuota, as the informer knows
	stores    Stores
	// ResourceQuotas to count. Those that limit nothing until they are counted are counted by themselves, and do not wait behind the others.
	counts, uncounted *queue.Queue[client.Key]
	watches           *queue.Queue[schema.GroupResource] // resources to watch, or not to watch any more
	limits            *limits                            // as the informer knows

	mu      sync.Mutex // guards what follows
	watched map[schema.GroupResource]context.CancelFunc
	refused map[client.Key]refusals
	running sync.WaitGroup
}

// New returns the controller. It adds handlers to the informers, so they must not run yet.
func New(informers *client.Informers, stores Stores) *Controller {
	c := newController(stores, func(key client.Key) bool {
		_, ok := informers.ResourceQuotas.Get(key)
		return ok
	})
	c.informers = informers
	informers.ResourceQuotas.OnEvent(c.changed)
	return c
}

func newController(stores Stores, exists func(client.Key) bool) *Controller {
	c := &Controller{exists: exists, stores: stores, limits: newLimits(), watched: map[schema.GroupResource]context.CancelFunc{}, refused: map[client.Key]refusals{}}
	c.counts = queue.New("quota", c.countAnew)
	c.uncounted = queue.New("quota-uncounted", c.count)
	c.watches = queue.New("quota-watches", c.watchLimited)
	return c
}

// changed asks for what follows from a change of a ResourceQuota.
func (c *Controller) changed(e client.Event[*corev1.ResourceQuota]) {
	other := e.Deleted() || e.Old == nil || e.Old.UID != e.New.UID || !apiequality.Semantic.DeepEqual(e.Old.Spec, e.New.Spec)
	if other {
		var limited []schema.GroupResource
		if !e.Deleted() {
			limited = limitedBy(e.New.Spec.Hard)
		}
		for _, resource := range c.limits.set(client.KeyOf(e.Object()), limited) {
			c.watches.Add(resource)
		}
	}
	switch {
	case e.Deleted():
	case !LimitsCounted(e.New):
		c.uncounted.Add(client.KeyOf(e.New))
	case other:
		c.counts.Add(client.KeyOf(e.New))
	case !kubequota.Equals(e.Old.Status.Used, e.New.Status.Used):
		// Charged for creations that may yet fail, or counted beside some that were not there yet.
		c.counts.AddAfter(client.KeyOf(e.New), recount)
	}
}

// defined asks for what follows from a custom resource that begins or ends to be served in a logical cluster. None is created until
// it is counted.
func (c *Controller) defined(cluster logicalcluster.Name, resource schema.GroupResource) {
	for _, q := range c.limits.everywhere(resource, cluster) {
		c.watches.Add(resource)
		c.uncounted.Add(q)
	}
}

// Run waits for the informers and works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	defer c.counts.Stop()
	defer c.uncounted.Stop()
	defer c.watches.Stop()
	// Before anything is counted: what is defined then is seen by the count.
	c.stores.OnCustom(ctx, c.defined)
	if err := c.informers.WaitSynced(ctx); err != nil {
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() { c.counts.Run(ctx, workers) })
	wg.Go(func() { c.uncounted.Run(ctx, workers) })
	wg.Go(func() { c.watches.Run(ctx, 1) })
	wg.Wait()
	c.running.Wait()
	return nil
}

// LimitsCounted says whether a ResourceQuota limits what it says, and no more and no less.
func LimitsCounted(q *corev1.ResourceQuota) bool {
	return apiequality.Semantic.DeepEqual(q.Spec.Hard, q.Status.Hard)
}

// refusals are those of counts of the new limits of a ResourceQuota, one after the other.
type refusals struct {
	of *corev1.ResourceQuota // without what charges change
	n  int
}

// after is what they are after one more. Who writes the ResourceQuota itself refuses its counts, too, and would not be held up.
func (r refusals) after(read *corev1.ResourceQuota) refusals {
	of := read.DeepCopy()
	of.ResourceVersion, of.ManagedFields, of.Status = "", nil, corev1.ResourceQuotaStatus{}
	if !apiequality.Semantic.DeepEqual(r.of, of) {
		r.n = 0
	}
	return refusals{of: of, n: (r.n + 1) % (holdAfter + holdTimes)}
}

func (c *Controller) refusals(key client.Key) refusals {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused[key]
}

// count counts for a ResourceQuota, and remembers how often that was refused while its limits are new.
func (c *Controller) count(ctx context.Context, key client.Key) (time.Duration, error) {
	before := c.refusals(key)
	refused, again, err := c.try(ctx, key, true, before.n >= holdAfter)
	c.mu.Lock()
	defer c.mu.Unlock()
	if refused == nil { // it is done; or it failed, and the next one begins without
		delete(c.refused, key)
	} else {
		c.refused[key] = before.after(refused)
	}
	return again, err
}

// countAnew counts for a ResourceQuota whose limits are counted. One whose are not is counted in turns of its own.
func (c *Controller) countAnew(ctx context.Context, key client.Key) (time.Duration, error) {
	_, again, err := c.try(ctx, key, false, false)
	return again, err
}

// try writes what a ResourceQuota limits and what is used of it, if its limits are counted or newToo. Where others charge it meanwhile, or
// write what they charged, that may be missing: then it is to be done again. It returns the ResourceQuota if a count of new limits
// was refused so; with hold nobody charges those.
func (c *Controller) try(ctx context.Context, key client.Key, newToo, hold bool) (refused *corev1.ResourceQuota, again time.Duration, err error) {
	if !c.exists(key) {
		return nil, 0, nil
	}
	cluster, known := c.stores.Known(key.Cluster)
	if !known {
		return nil, lookAgain, nil
	}
	if cluster.Mirror {
		return nil, 0, nil
	}
	ctx = lcctx.WithCluster(ctx, cluster)
	read, err := c.stores.Quota(ctx, key.Namespace, key.Name)
	if apierrors.IsNotFound(err) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read ResourceQuota %s: %w", key, err)
	}
	newLimits := !LimitsCounted(read)
	if newLimits && !newToo {
		return nil, 0, nil
	}
	began := time.Now()
	conflict := func() (*corev1.ResourceQuota, time.Duration, error) {
		again := max(whileCharging, whileChargingTimes*time.Since(began))
		switch {
		case !newLimits:
			return nil, again, nil
		case hold: // what was charged before is soon written
			again = whileCharging
		}
		return read, again, nil
	}
	begun, err := c.stores.BeginCount(ctx, read, newLimits, hold)
	switch {
	case apierrors.IsConflict(err):
		return conflict()
	case err != nil:
		return nil, 0, err
	}
	status, err := statusOf(read, c.evaluators(ctx, key.Cluster))
	if err != nil {
		return nil, 0, fmt.Errorf("count for ResourceQuota %s: %w", key, err)
	}
	if apiequality.Semantic.DeepEqual(read.Status.Hard, status.Hard) && kubequota.Equals(read.Status.Used, status.Used) {
		return nil, 0, nil
	}
	read.Status = status
	switch err := c.stores.UpdateQuotaStatus(ctx, read, begun); {
	case apierrors.IsConflict(err):
		return conflict()
	case err != nil && !apierrors.IsNotFound(err):
		return nil, 0, fmt.Errorf("write what is used of ResourceQuota %s: %w", key, err)
	}
	return nil, 0, nil
}

// evaluators returns one for each resource that a logical cluster, which is that of ctx wherever something is counted, serves in
// namespaces, and nil for others.
func (c *Controller) evaluators(ctx context.Context, cluster logicalcluster.Name) func(schema.GroupResource) kubequota.Evaluator {
	return func(resource schema.GroupResource) kubequota.Evaluator {
		switch served, custom := c.stores.Served(cluster, resource); {
		case !served:
			return nil
		case custom:
			return counted{Evaluator(resource, nil), func(namespace string) (int64, error) { return c.stores.Count(ctx, resource, namespace) }}
		}
		return Evaluator(resource, func(resource schema.GroupResource, namespace string) ([]runtime.Object, error) {
			return c.stores.List(ctx, resource, namespace)
		})
	}
}

// statusOf counts. What has no evaluator keeps its place in hard and has none in used.
func statusOf(q *corev1.ResourceQuota, evaluator func(schema.GroupResource) kubequota.Evaluator) (corev1.ResourceQuotaStatus, error) {
	registry := generic.NewRegistry(limited(q.Spec.Hard, evaluator))
	used, err := kubequota.CalculateUsage(q.Namespace, q.Spec.Scopes, q.Spec.Hard, registry, q.Spec.ScopeSelector)
	if err != nil {
		return corev1.ResourceQuotaStatus{}, err
	}
	return corev1.ResourceQuotaStatus{
		Hard: q.Spec.Hard.DeepCopy(), Used: kubequota.Mask(used, kubequota.ResourceNames(q.Spec.Hard)),
	}, nil
}
