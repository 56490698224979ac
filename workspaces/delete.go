package workspaces

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// lookAgain is when a deletion that waits is looked at, should an event have been missed.
const lookAgain = 15 * time.Second

// delete takes one step after the other towards a Workspace without content and then lets it go. It returns when there is
// something to wait for, whose going wakes it.
func (c *Controller) delete(ctx context.Context, w *tenancyv1alpha1.Workspace) (time.Duration, error) {
	w = w.DeepCopy()
	cluster := logicalcluster.Name(w.Spec.Cluster)
	if cluster == "" { // nothing is ever written before this name is
		return 0, c.release(ctx, w)
	}
	lc, err := c.terminate(ctx, w)
	if errors.Is(err, errForeign) {
		// Nothing in it is this Workspace's to delete.
		klog.FromContext(ctx).Info("Workspace names a logical cluster that is not its own, which stays", "workspace", client.KeyOf(w).String(), "cluster", cluster)
		return 0, c.release(ctx, w)
	}
	if err != nil {
		return 0, err
	}
	if lc != nil { // else somebody, or an attempt that did not come to its end, took it first
		left, err := c.empty(ctx, cluster)
		if err != nil {
			return 0, err
		}
		if !left.nothing() {
			return lookAgain, c.report(ctx, w, left)
		}
	}
	if err := c.opts.DeleteData(ctx, cluster); err != nil {
		return 0, fmt.Errorf("delete the data of logical cluster %q: %w", cluster, err)
	}
	if lc != nil {
		if err := c.clients.Objects.Delete(client.In(ctx, cluster), lc); err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("delete logical cluster %q: %w", cluster, err)
		}
	}
	return 0, c.release(ctx, w)
}

// errForeign says that a Workspace names a logical cluster that is not its own.
var errForeign = errors.New("the logical cluster is another's")

// owns says whether a logical cluster was made for a Workspace: a name alone is no reason to empty anything.
func owns(w *tenancyv1alpha1.Workspace, lc *corev1alpha1.LogicalCluster) bool {
	owner := lc.Spec.Owner
	return lc.Spec.Use != corev1alpha1.LogicalClusterUseMirror && owner != nil && owner.UID == w.UID && owner.Cluster == string(lcctx.NameFrom(w))
}

// terminate marks the logical cluster of a Workspace and waits until the server takes notice. It returns nil if there is
// none, and errForeign if it is not the Workspace's.
func (c *Controller) terminate(ctx context.Context, w *tenancyv1alpha1.Workspace) (*corev1alpha1.LogicalCluster, error) {
	cluster := logicalcluster.Name(w.Spec.Cluster)
	if !lcctx.IsNewName(w.Spec.Cluster) {
		return nil, errForeign // such as root, which has no owner and, half deleted, no object that could tell
	}
	lc, ok := c.informers.LogicalClusters.Get(clusterKey(cluster))
	if ok {
		lc = lc.DeepCopy()
	} else {
		lc = &corev1alpha1.LogicalCluster{}
		err := c.clients.Objects.Get(client.In(ctx, cluster), types.NamespacedName{Name: corev1alpha1.LogicalClusterName}, lc)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("get logical cluster %q: %w", cluster, err)
		}
	}
	if !owns(w, lc) {
		return nil, errForeign
	}
	if lc.Status.Phase != corev1alpha1.LogicalClusterPhaseTerminating {
		lc.Status.Phase = corev1alpha1.LogicalClusterPhaseTerminating
		err := c.clients.Objects.Status().Update(client.In(ctx, cluster), lc)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("mark logical cluster %q as terminating: %w", cluster, err)
		}
	}
	return lc, c.see(ctx, cluster, func(lc *corev1alpha1.LogicalCluster) bool {
		return lc.Status.Phase == corev1alpha1.LogicalClusterPhaseTerminating
	})
}

// empty takes the next step of deleting what has to go before the data, and returns what is left of it. Workspaces come
// first, because they may run things in physical clusters that are registered here; SyncTargets last, because somebody has
// to remove what runs there.
func (c *Controller) empty(ctx context.Context, cluster logicalcluster.Name) (remains, error) {
	var left remains
	var err error
	if left.workspaces, err = remove(ctx, c.clients, cluster, c.informers.Workspaces.List(cluster, "")); err != nil || !left.nothing() {
		return left, err
	}
	if left.clusters, err = c.emptyPlacements(ctx, cluster); err != nil {
		return left, err
	}
	for _, mirrors := range c.leaves {
		for _, mirror := range mirrors(cluster) {
			left.clusters = append(left.clusters, c.servedBy(mirror))
		}
	}
	if !left.nothing() {
		return left, nil
	}
	if left.syncTargets, err = remove(ctx, c.clients, cluster, c.informers.SyncTargets.List(cluster, "")); err != nil || !left.nothing() {
		return left, err
	}
	return c.unseen(ctx, cluster)
}

// servedBy names the physical cluster of a mirror: as its SyncTarget does, or as the mirror is called where that is not known.
func (c *Controller) servedBy(mirror logicalcluster.Name) string {
	if lc, ok := c.informers.LogicalClusters.Get(clusterKey(mirror)); ok && lc.Spec.Owner != nil {
		return lc.Spec.Owner.Name
	}
	return string(mirror)
}

// emptyPlacements makes every placement of a logical cluster name no physical cluster, and returns those that were named.
func (c *Controller) emptyPlacements(ctx context.Context, cluster logicalcluster.Name) (named []string, err error) {
	for _, p := range c.informers.Placements.List(cluster, "") {
		if len(p.Spec.Clusters) == 0 {
			continue
		}
		for _, placed := range p.Spec.Clusters {
			named = append(named, placed.Name)
		}
		p = p.DeepCopy()
		p.Spec.Clusters = nil
		if err := c.clients.Objects.Update(client.In(ctx, cluster), p); err != nil && !apierrors.IsNotFound(err) {
			return named, fmt.Errorf("empty placement %q of logical cluster %q: %w", p.Name, cluster, err)
		}
	}
	return named, nil
}

// unseen removes Workspaces and SyncTargets that the informers do not hold yet: with the data, the way to their logical
// clusters would be lost. Nothing new comes, because the logical cluster is known to be terminating.
func (c *Controller) unseen(ctx context.Context, cluster logicalcluster.Name) (remains, error) {
	ctx = client.In(ctx, cluster)
	workspaces, syncTargets := &tenancyv1alpha1.WorkspaceList{}, &workloadv1alpha1.SyncTargetList{}
	var errs [2]error
	var wg sync.WaitGroup
	wg.Go(func() { errs[0] = c.clients.Objects.List(ctx, workspaces) })
	wg.Go(func() { errs[1] = c.clients.Objects.List(ctx, syncTargets) })
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return remains{}, fmt.Errorf("list what is left in logical cluster %q: %w", cluster, err)
	}
	var left remains
	left.workspaces, errs[0] = remove(ctx, c.clients, cluster, pointers(workspaces.Items))
	left.syncTargets, errs[1] = remove(ctx, c.clients, cluster, pointers(syncTargets.Items))
	return left, errors.Join(errs[:]...)
}

// remove deletes objects that are not being deleted yet, and returns the names of all of them.
func remove[T ctrlclient.Object](ctx context.Context, clients *client.Clients, cluster logicalcluster.Name, objs []T) ([]string, error) {
	var names []string
	for _, obj := range objs {
		names = append(names, obj.GetName())
		if obj.GetDeletionTimestamp() != nil {
			continue
		}
		if err := clients.Objects.Delete(client.In(ctx, cluster), obj); err != nil && !apierrors.IsNotFound(err) {
			return names, fmt.Errorf("delete %T %q of logical cluster %q: %w", obj, obj.GetName(), cluster, err)
		}
	}
	return names, nil
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}

// report tells what a deletion waits for, unless the Workspace says so already.
func (c *Controller) report(ctx context.Context, w *tenancyv1alpha1.Workspace, left remains) error {
	before := w.Status.DeepCopy()
	w.Status.Phase = corev1alpha1.LogicalClusterPhaseTerminating
	meta.SetStatusCondition(&w.Status.Conditions, left.condition(w.Generation))
	if equality.Semantic.DeepEqual(before, &w.Status) {
		return nil
	}
	if err := c.clients.Objects.Status().Update(in(ctx, w), w); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("report on the deletion of workspace %q: %w", w.Name, err)
	}
	return nil
}

// release lets a Workspace go.
func (c *Controller) release(ctx context.Context, w *tenancyv1alpha1.Workspace) error {
	w.Finalizers = slices.DeleteFunc(w.Finalizers, func(f string) bool { return f == tenancyv1alpha1.WorkspaceFinalizer })
	if err := c.clients.Objects.Update(in(ctx, w), w); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("release workspace %q: %w", w.Name, err)
	}
	return nil
}
