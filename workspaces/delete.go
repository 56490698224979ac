package workspaces

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/attendance"
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
		if left := terminatorsOf(lc); !left.nothing() {
			return lookAgain, c.report(ctx, w, left)
		}
		left, again, err := c.empty(ctx, w, lc)
		if err != nil {
			return 0, err
		}
		if !left.nothing() {
			return again, c.report(ctx, w, left)
		}
	}
	data := c.opts.DeleteData
	if lc != nil && slices.ContainsFunc(lc.Finalizers, isForeign) {
		data = c.opts.Held // who reacts to the end of the LogicalCluster finds it as it was
	}
	began := time.Now()
	held, err := data(ctx, cluster)
	took := time.Since(began)
	if err != nil {
		return 0, fmt.Errorf("delete the data of logical cluster %q: %w", cluster, err)
	}
	left, again := c.ask(ctx, w, lc, held, took)
	if !left.nothing() {
		return again, c.report(ctx, w, left)
	}
	if lc != nil {
		if err := c.drop(ctx, cluster, lc); err != nil {
			return 0, err
		}
	}
	// Until then somebody could write there who had begun before, or had not heard of the end.
	if err := c.opts.DeleteRest(ctx, cluster); err != nil {
		return 0, fmt.Errorf("delete what came last to logical cluster %q: %w", cluster, err)
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
	if !lc.Status.Phase.Ends() {
		lc.Status.Phase = corev1alpha1.LogicalClusterPhaseTerminating
		err := c.clients.Objects.Status().Update(client.In(ctx, cluster), lc)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("mark logical cluster %q as terminating: %w", cluster, err)
		}
	}
	// Terminators, too, know by it that it goes.
	if lc.DeletionTimestamp == nil && (slices.ContainsFunc(lc.Finalizers, isForeign) || !terminatorsOf(lc).nothing()) {
		if err := c.announce(ctx, cluster, lc); err != nil {
			return nil, err
		}
		if now, ok := c.informers.LogicalClusters.Get(clusterKey(cluster)); ok {
			lc = now.DeepCopy()
		}
	}
	return lc, c.see(ctx, cluster, func(lc *corev1alpha1.LogicalCluster) bool {
		return lc.Status.Phase.Ends()
	})
}

// terminatorsOf says which terminators are not done.
func terminatorsOf(lc *corev1alpha1.LogicalCluster) remains {
	return remains{terminators: slices.Clone(attendance.Termination.WaitsFor(lc))}
}

// empty takes the next step of deleting what has to go before the data, and returns what is left of it and when to look
// again. Workspaces come first, because they may run things in physical clusters that are registered here. What finalizers
// hold gets some time before what runs in physical clusters goes: it may be what removes them. SyncTargets are last, because
// somebody has to remove what runs there.
func (c *Controller) empty(ctx context.Context, w *tenancyv1alpha1.Workspace, lc *corev1alpha1.LogicalCluster) (left remains, again time.Duration, err error) {
	cluster := lcctx.NameFrom(lc)
	if left.workspaces, err = remove(ctx, c.clients, cluster, c.informers.Workspaces.List(cluster, "")); err != nil || !left.nothing() {
		return left, lookAgain, err
	}
	placed := slices.DeleteFunc(c.informers.Placements.List(cluster, ""), func(p *placementv1alpha1.Placement) bool { return len(p.Spec.Clusters) == 0 })
	if len(placed) > 0 && c.patient(w) {
		began := time.Now()
		held, err := c.opts.Held(ctx, cluster)
		took := time.Since(began)
		if err != nil {
			return left, 0, fmt.Errorf("look at what finalizers hold in logical cluster %q: %w", cluster, err)
		}
		if left, again = c.ask(ctx, w, lc, held, took); !left.nothing() {
			return left, again, nil
		}
	}
	if left.clusters, err = c.emptyPlacements(ctx, cluster, placed); err != nil {
		return left, 0, err
	}
	for _, mirrors := range c.leaves {
		for _, mirror := range mirrors(cluster) {
			left.clusters = append(left.clusters, c.servedBy(mirror))
		}
	}
	if !left.nothing() {
		return left, lookAgain, nil
	}
	left.syncTargets, err = remove(ctx, c.clients, cluster, c.informers.SyncTargets.List(cluster, ""))
	return left, lookAgain, err
}

// servedBy names the physical cluster of a mirror: as its SyncTarget does, or as the mirror is called where that is not known.
func (c *Controller) servedBy(mirror logicalcluster.Name) string {
	if lc, ok := c.informers.LogicalClusters.Get(clusterKey(mirror)); ok && lc.Spec.Owner != nil {
		return lc.Spec.Owner.Name
	}
	return string(mirror)
}

// emptyPlacements makes placements of a logical cluster name no physical cluster, and returns those that were named.
func (c *Controller) emptyPlacements(ctx context.Context, cluster logicalcluster.Name, placed []*placementv1alpha1.Placement) (named []string, err error) {
	for _, p := range placed {
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

// report tells what a deletion waits for, unless the Workspace says so already.
func (c *Controller) report(ctx context.Context, w *tenancyv1alpha1.Workspace, left remains) error {
	before := w.Status.DeepCopy()
	w.Status.Phase, w.Status.Terminators = corev1alpha1.LogicalClusterPhaseDeleting, left.terminators
	if len(left.terminators) > 0 {
		w.Status.Phase = corev1alpha1.LogicalClusterPhaseTerminating
	}
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
	c.forget(client.KeyOf(w))
	if err := c.clients.Objects.Update(in(ctx, w), w); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("release workspace %q: %w", w.Name, err)
	}
	return nil
}
