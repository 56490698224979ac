package placement

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/fleet"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/queue"
)

const (
	// workers decide one after the other (usage), so more of them only overlap their writes: the store syncs those that
	// come together at once.
	workers = 64

	byNamespace = "placement-namespace"
	byParent    = "placement-parent"
)

// Controller keeps the Placements of all workspaces.
type Controller struct {
	Placer
	informers  *client.Informers
	namespaces *queue.Queue[client.Key]
	// subtrees has logical clusters where something changed that counts for all namespaces there and below.
	subtrees *queue.Queue[logicalcluster.Name]
}

// New returns a controller that is not running. It adds handlers and indexes to the informers, which do not run yet.
func New(clients *client.Clients, informers *client.Informers, clk clock.PassiveClock) (*Controller, error) {
	c := &Controller{informers: informers}
	r := &reconciler{clock: clk}
	c.namespaces = queue.New("placement", r.reconcile)
	c.subtrees = queue.New("placement-subtree", c.fanOut)
	var err error
	if c.Placer, err = newPlacer(&live{clients: clients, informers: informers}, c.namespaces.Add); err != nil {
		return nil, err
	}
	r.world, r.usage = c.world, c.usage
	if err := informers.LogicalClusters.AddIndex(byParent, func(lc *corev1alpha1.LogicalCluster) []string {
		if parent := fleet.ParentOf(lc); parent != "" {
			return []string{string(parent)}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	informers.Placements.OnEvent(c.onPlacement)
	informers.Namespaces.OnEvent(c.onNamespace)
	informers.LogicalClusters.OnEvent(c.onLogicalCluster)
	informers.SyncTargets.OnEvent(c.onSyncTarget)
	informers.PlacementPolicies.OnEvent(c.onPolicy)
	return c, nil
}

// Run decides until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	defer c.namespaces.Stop()
	defer c.subtrees.Stop()
	if err := c.informers.WaitSynced(ctx); err != nil {
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() { c.subtrees.Run(ctx, 1) })
	wg.Go(func() { c.namespaces.Run(ctx, workers) })
	wg.Wait()
	return nil
}

func namespaceOf(p *placementv1alpha1.Placement) client.Key {
	return client.Key{Cluster: client.KeyOf(p).Cluster, Name: p.Spec.Namespace}
}

func (c *Controller) onPlacement(e client.Event[*placementv1alpha1.Placement]) {
	c.count(e)
	p := e.Object()
	if e.Old != nil && e.New != nil && samePlacement(e.Old, e.New) {
		return
	}
	c.namespaces.Add(namespaceOf(p))
	if e.Old != nil && e.New != nil && namespaceOf(e.Old) != namespaceOf(p) {
		c.namespaces.Add(namespaceOf(e.Old))
	}
}

// samePlacement says whether nothing changed that this package writes.
func samePlacement(a, b *placementv1alpha1.Placement) bool {
	return a.UID == b.UID &&
		apiequality.Semantic.DeepEqual(a.Spec, b.Spec) &&
		apiequality.Semantic.DeepEqual(
			meta.FindStatusCondition(a.Status.Conditions, placementv1alpha1.PlacementPlaced),
			meta.FindStatusCondition(b.Status.Conditions, placementv1alpha1.PlacementPlaced))
}

func (c *Controller) onNamespace(e client.Event[*corev1.Namespace]) {
	if e.Old != nil && e.New != nil && sameWish(e.Old.Annotations, e.New.Annotations) && sameLife(e.Old, e.New) {
		return
	}
	if key := client.KeyOf(e.Object()); c.world.concerns(key) {
		c.namespaces.Add(key)
	}
}

func (c *Controller) onLogicalCluster(e client.Event[*corev1alpha1.LogicalCluster]) {
	// What is there at the start is decided because of its namespaces.
	if e.Initial || e.Deleted() || e.Old != nil && sameWish(e.Old.Annotations, e.New.Annotations) &&
		sameLife(e.Old, e.New) && isTerminating(e.Old) == isTerminating(e.New) && isAttended(e.Old) == isAttended(e.New) &&
		fleet.ParentOf(e.Old) == fleet.ParentOf(e.New) && e.Old.Annotations[lcctx.PathAnnotation] == e.New.Annotations[lcctx.PathAnnotation] {
		return
	}
	c.subtrees.Add(client.KeyOf(e.New).Cluster)
}

func (c *Controller) onSyncTarget(e client.Event[*workloadv1alpha1.SyncTarget]) {
	if e.Initial || e.Old != nil && e.New != nil && sameTarget(e.Old, e.New) {
		return
	}
	c.subtrees.Add(client.KeyOf(e.Object()).Cluster)
}

// sameTarget says whether nothing changed that a decision reads: heartbeats, capacity and conditions other than Ready
// and ObserveOnly come often and concern nobody here.
func sameTarget(a, b *workloadv1alpha1.SyncTarget) bool {
	return sameLife(a, b) && isReady(a) == isReady(b) && isObserved(a) == isObserved(b) &&
		a.IsDuplicate() == b.IsDuplicate() && a.RunsNothing() == b.RunsNothing() && maps.Equal(a.Labels, b.Labels) &&
		a.Spec.Unschedulable == b.Spec.Unschedulable && a.Spec.DedicatedTo == b.Spec.DedicatedTo &&
		client.MirrorOf(a) == client.MirrorOf(b) && slices.Equal(carries(a), carries(b))
}

func (c *Controller) onPolicy(e client.Event[*placementv1alpha1.PlacementPolicy]) {
	if e.Initial || e.Old != nil && e.New != nil && apiequality.Semantic.DeepEqual(e.Old.Spec, e.New.Spec) {
		return
	}
	c.subtrees.Add(client.KeyOf(e.Object()).Cluster)
}

// sameLife says whether two states are of one object that did not begin to end between them.
func sameLife(a, b metav1.Object) bool {
	return a.GetUID() == b.GetUID() && (a.GetDeletionTimestamp() == nil) == (b.GetDeletionTimestamp() == nil)
}

// fanOut asks for every namespace with something to place in a workspace and below. Nothing is asked for in a mirror,
// where SyncTargets have twins and namespaces hold leaves.
func (c *Controller) fanOut(_ context.Context, top logicalcluster.Name) (time.Duration, error) {
	seen := map[logicalcluster.Name]bool{top: true}
	for rest := []logicalcluster.Name{top}; len(rest) > 0; {
		cluster := rest[0]
		rest = rest[1:]
		lc, ok := c.world.LogicalCluster(cluster)
		if !ok || !fleet.IsWorkspace(lc) {
			continue
		}
		for _, ns := range c.informers.Namespaces.List(cluster, "") {
			if key := client.KeyOf(ns); c.world.concerns(key) {
				c.namespaces.Add(key)
			}
		}
		for _, child := range c.informers.LogicalClusters.ByIndex(byParent, string(cluster)) {
			if name := client.KeyOf(child).Cluster; !seen[name] {
				seen[name] = true
				rest = append(rest, name)
			}
		}
	}
	return 0, nil
}
