package splitter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
)

// bury makes tombstones of the leaves whose root is no more: gone, another object of the same name by now, none that goes down any more, or being
// deleted. It returns the leaves of root (nil if the informer has none) that stay, tombstones among them, old
// leaves too: a root waits in each cluster until the leaf of the one before it is gone.
//
// What an informer does not show is never enough: the root is read, uncached, before any of its leaves is deleted.
//
// A claim that is being deleted is there until it is gone: who has a finalizer on it may read what its volume holds.
func (c *Controller) bury(ctx context.Context, s *source, k client.Key, root ctrlclient.Object) ([]ctrlclient.Object, time.Duration, error) {
	over := func(deleted *metav1.Time) bool { return deleted != nil && s.Goes != kinds.WhereMounted }
	var own, old []ctrlclient.Object
	for _, leaf := range s.leaves(k) {
		switch {
		case !c.isMirror(client.KeyOf(leaf).Cluster): // no leaf, whatever its labels say
		case root != nil && !over(root.GetDeletionTimestamp()) && leafUID(leaf) == root.GetUID():
			own = append(own, leaf)
		default:
			own = append(own, leaf)
			if leaf.GetDeletionTimestamp() == nil {
				old = append(old, leaf)
			}
		}
	}
	if len(old) == 0 {
		return own, 0, nil
	}
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(s.GVK)
	err := c.clients.Objects.Get(client.In(ctx, k.Cluster), types.NamespacedName{Namespace: k.Namespace, Name: k.Name}, live)
	gone := apierrors.IsNotFound(err)
	if err != nil && !gone {
		return own, 0, fmt.Errorf("read %s %s before its leaves are deleted: %w", s.GVK.Kind, k, err)
	}
	gone = gone || !s.Holds(live) // a Deployment has it by now
	var again time.Duration
	var errs []error
	for _, leaf := range old {
		mirror, id := client.KeyOf(leaf).Cluster, brakeID(s, leaf)
		if !gone && live.UID == leafUID(leaf) && !over(live.DeletionTimestamp) {
			again = sooner(again, lookAgain) // the informer will see it
			continue
		}
		if _, seen := c.deleted.Get(leafUID(leaf)); gone && !seen {
			ok, wait := c.brake.Missing(string(mirror), id, func() int { return c.leavesIn(mirror) })
			if !ok {
				again = sooner(again, wait)
				errs = append(errs, c.tellFrozen(ctx, mirror))
				continue
			}
		}
		if err := c.tombstone(ctx, s, leaf); err != nil {
			errs = append(errs, err)
		}
	}
	return own, again, errors.Join(errs...)
}

func leafUID(leaf ctrlclient.Object) types.UID {
	return types.UID(leaf.GetLabels()[workloadv1alpha1.RootUIDLabel])
}

func brakeID(s *source, leaf ctrlclient.Object) string {
	return s.GVK.Kind + "/" + leaf.GetNamespace() + "/" + leaf.GetName() + "/" + string(leaf.GetUID())
}

func (c *Controller) leavesIn(mirror logicalcluster.Name) (n int) {
	for _, s := range c.sources {
		n += len(s.list(mirror, "")) + len(s.bound(mirror, ""))
	}
	return n
}

// tombstone deletes a leaf, unless its mirror is frozen. The syncer's finalizer keeps it until it is gone downstream.
func (c *Controller) tombstone(ctx context.Context, s *source, leaf ctrlclient.Object) error {
	return c.tombstoneIf(ctx, s, leaf, ctrlclient.Preconditions{UID: ptr.To(leaf.GetUID())})
}

// tombstoneIf is tombstone, of a leaf that meets preconditions.
func (c *Controller) tombstoneIf(ctx context.Context, s *source, leaf ctrlclient.Object, is ctrlclient.Preconditions) error {
	lk := client.KeyOf(leaf)
	if frozen, _ := c.brake.Frozen(string(lk.Cluster)); frozen {
		klog.FromContext(ctx).V(2).Info("Leaf is kept, its mirror is frozen", "kind", s.GVK.Kind, "leaf", lk.String())
		return nil
	}
	target := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: lk.Namespace, Name: lk.Name}}
	target.SetGroupVersionKind(s.GVK)
	err := c.clients.Objects.Delete(client.In(ctx, lk.Cluster), target,
		is, ctrlclient.PropagationPolicy(metav1.DeletePropagationBackground))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete leaf %s %s: %w", s.GVK.Kind, lk, err)
	}
	klog.FromContext(ctx).V(2).Info("Made a tombstone", "kind", s.GVK.Kind, "leaf", lk.String())
	return nil
}

// hold returns the mirrors where the leaves of a root that is there stay as they are, although its Placement p has no
// cluster left: nobody asked for that, and if a policy did, the brake does not let them go, or not yet.
func (c *Controller) hold(ctx context.Context, s *source, root ctrlclient.Object, p *placementv1alpha1.Placement, leaves []ctrlclient.Object) (held []logicalcluster.Name, again time.Duration, err error) {
	f := goes
	if s.IsPlaced() { // what workloads refer to, or is about them, stays as long as they do
		f = fateOf(p)
	}
	var errs []error
	for _, leaf := range leaves {
		mirror, id := client.KeyOf(leaf).Cluster, brakeID(s, leaf)
		switch {
		case leafUID(leaf) != root.GetUID():
		case f == goes:
			c.brake.Forget(string(mirror), id)
		case leaf.GetDeletionTimestamp() != nil:
		case f == unknown:
			held, again = append(held, mirror), sooner(again, lookAgain)
		case f == stays:
			c.brake.Forget(string(mirror), id)
			held = append(held, mirror)
		default:
			ok, wait := c.brake.Missing(string(mirror), id, func() int { return c.leavesIn(mirror) })
			if !ok {
				held, again = append(held, mirror), sooner(again, wait)
				errs = append(errs, c.tellFrozen(ctx, mirror))
			}
		}
	}
	return held, again, errors.Join(errs...)
}

// fate is what a Placement without clusters means for what runs.
type fate int

const (
	// goes: there are clusters, or somebody asked for none.
	goes fate = iota
	// stays: nobody asked for that. The wish holds a mistake, or there is nothing now that it could mean.
	stays
	// braked: a policy does not allow what it had; it goes, unless that takes too much at once.
	braked
	// unknown: the Placement's condition is about an earlier decision.
	unknown
)

func fateOf(p *placementv1alpha1.Placement) fate {
	if p == nil || len(placed(p)) > 0 {
		return goes
	}
	why := meta.FindStatusCondition(p.Status.Conditions, placementv1alpha1.PlacementPlaced)
	switch {
	case why == nil || why.ObservedGeneration != p.Generation:
		return unknown
	case why.Reason == placementv1alpha1.ReasonNowhere:
		return goes
	case why.Reason == placementv1alpha1.ReasonNotAllowed:
		return braked
	}
	return stays
}

// hasLeft says, from uncached reads, that the Placement that decides for a root, its own or its namespace's, does not
// name a mirror any more. It says no if that is not the one that was seen: then what was planned rests on another
// decision. With a workspace that is being deleted, Placements go, and everything has left.
func (c *Controller) hasLeft(ctx context.Context, s *source, root client.Key, seen *placementv1alpha1.Placement, mirrors ...logicalcluster.Name) (bool, error) {
	if len(mirrors) == 0 {
		return true, nil
	}
	if seen == nil || seen.Name == "" {
		return c.terminating(ctx, root.Cluster)
	}
	live, err := c.livePlacement(ctx, s, root)
	switch {
	case err != nil:
		return false, err
	case live != nil && decisionOf(live) == decisionOf(seen): // which may be seated
		return !slices.ContainsFunc(placed(seen), func(m logicalcluster.Name) bool { return slices.Contains(mirrors, m) }), nil
	case live != nil:
		return live.UID == seen.UID && !slices.ContainsFunc(placed(live), func(m logicalcluster.Name) bool { return slices.Contains(mirrors, m) }), nil
	}
	return c.terminating(ctx, root.Cluster)
}

// livePlacement reads, uncached, the Placement that decides for a root, its own or its namespace's; nil if there is none.
func (c *Controller) livePlacement(ctx context.Context, s *source, root client.Key) (*placementv1alpha1.Placement, error) {
	for _, name := range placementNames(s, root) {
		live := &placementv1alpha1.Placement{}
		err := c.clients.Objects.Get(client.In(ctx, root.Cluster), types.NamespacedName{Name: name}, live)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read placement %s|%s before a leaf is made or deleted: %w", root.Cluster, name, err)
		}
		return live, nil
	}
	return nil, nil
}

func (c *Controller) terminating(ctx context.Context, workspace logicalcluster.Name) (bool, error) {
	lc := &corev1alpha1.LogicalCluster{}
	if err := c.clients.Objects.Get(client.In(ctx, workspace), types.NamespacedName{Name: corev1alpha1.LogicalClusterName}, lc); err != nil {
		return false, fmt.Errorf("read logical cluster %q before a leaf is deleted: %w", workspace, err)
	}
	return ending(lc), nil
}

func ending(lc *corev1alpha1.LogicalCluster) bool {
	return lc.DeletionTimestamp != nil || lc.Status.Phase.Ends()
}
