package splitter

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
)

// confirmDeletions is ConfirmAnnotation's value that ends Frozen.
const confirmDeletions = "deletions"

// placementStatus brings the status of a Placement up to date: where it stands in every cluster. The conditions are the
// placement controller's.
func (c *Controller) placementStatus(ctx context.Context, k client.Key) error {
	p, ok := c.informers.Placements.Get(k)
	if !ok {
		return nil
	}
	want := p.DeepCopy()
	want.Status.ObservedGeneration = p.Generation
	want.Status.Clusters = phases(p, c.leavesOf(p), func(mirror logicalcluster.Name) string { return nameOf(c.target(mirror), mirror) })
	if equality.Semantic.DeepEqual(p.Status, want.Status) {
		return nil
	}
	err := c.clients.Objects.Status().Patch(client.In(ctx, k.Cluster), want, ctrlclient.MergeFrom(p))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write the status of placement %s: %w", k, err)
	}
	return nil
}

// leavesOf returns the leaves of a Placement: those of its object, or those of its namespace's objects that have no
// Placement of their own.
func (c *Controller) leavesOf(p *placementv1alpha1.Placement) (leaves []ctrlclient.Object) {
	cluster, object := client.KeyOf(p).Cluster, p.Spec.Object
	for _, s := range c.sources {
		switch {
		case s.Goes == kinds.WhereReferenced:
		case object == nil:
			for _, leaf := range s.leavesOf(cluster, p.Spec.Namespace) {
				root, _ := rootOf(leaf)
				if decides := c.placement(s, root); decides != nil && decides.Name == p.Name {
					leaves = append(leaves, leaf)
				}
			}
		case object.Group == s.GVR.Group && object.Resource == s.GVR.Resource:
			leaves = append(leaves, s.leaves(client.Key{Cluster: cluster, Namespace: p.Spec.Namespace, Name: object.Name})...)
		}
	}
	return slices.DeleteFunc(leaves, func(leaf ctrlclient.Object) bool { return !c.isMirror(client.KeyOf(leaf).Cluster) })
}

// phaseOrder is from the least to the most advanced.
var phaseOrder = []placementv1alpha1.PlacedClusterPhase{
	placementv1alpha1.PhaseRefused, placementv1alpha1.PhasePending, placementv1alpha1.PhaseApplying, placementv1alpha1.PhaseSynced,
	placementv1alpha1.PhaseReady,
}

// phases returns the state of every cluster that a Placement names or that has leaves of it, sorted by name.
func phases(p *placementv1alpha1.Placement, leaves []ctrlclient.Object, name func(mirror logicalcluster.Name) string) []placementv1alpha1.PlacedClusterStatus {
	byMirror := map[logicalcluster.Name]*placementv1alpha1.PlacedClusterStatus{}
	assigned := map[logicalcluster.Name]bool{}
	for _, cluster := range p.Spec.Clusters {
		mirror := logicalcluster.Name(cluster.Mirror)
		assigned[mirror] = true
		byMirror[mirror] = &placementv1alpha1.PlacedClusterStatus{Name: cluster.Name, Phase: placementv1alpha1.PhasePending}
	}
	seen := map[logicalcluster.Name]bool{}
	for _, leaf := range leaves {
		mirror := client.KeyOf(leaf).Cluster
		st, ok := byMirror[mirror]
		if !ok {
			st = &placementv1alpha1.PlacedClusterStatus{Name: name(mirror), Phase: placementv1alpha1.PhaseDeleting}
			byMirror[mirror] = st
		}
		if d, ok := leaf.(*appsv1.Deployment); ok {
			st.Replicas += replicasOf(d)
			st.ReadyReplicas += d.Status.ReadyReplicas
		}
		switch {
		case !assigned[mirror] && leaf.GetDeletionTimestamp() == nil:
			st.Phase = placementv1alpha1.PhaseDraining
		case assigned[mirror]:
			phase := phaseOf(leaf)
			if !seen[mirror] || slices.Index(phaseOrder, phase) < slices.Index(phaseOrder, st.Phase) {
				st.Phase = phase
			}
			seen[mirror] = true
		}
	}
	var out []placementv1alpha1.PlacedClusterStatus
	for _, st := range byMirror {
		out = append(out, *st)
	}
	slices.SortFunc(out, func(a, b placementv1alpha1.PlacedClusterStatus) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Phase, b.Phase))
	})
	// Two clusters of one name can be here for a while; the status is keyed by name.
	return slices.CompactFunc(out, func(a, b placementv1alpha1.PlacedClusterStatus) bool { return a.Name == b.Name })
}

func phaseOf(leaf ctrlclient.Object) placementv1alpha1.PlacedClusterPhase {
	switch {
	case refusal(leaf) != nil:
		return placementv1alpha1.PhaseRefused
	case leaf.GetDeletionTimestamp() != nil:
		return placementv1alpha1.PhasePending // the leaf of an earlier root, which goes first
	case !applied(leaf):
		return placementv1alpha1.PhaseApplying
	}
	if d, ok := leaf.(*appsv1.Deployment); ok && !leafView(d).Finished() {
		return placementv1alpha1.PhaseSynced
	}
	return placementv1alpha1.PhaseReady
}

// tellFrozen writes on the SyncTarget that its mirror is frozen, if it is.
func (c *Controller) tellFrozen(ctx context.Context, mirror logicalcluster.Name) error {
	frozen, missing := c.brake.Frozen(string(mirror))
	t := c.target(mirror)
	if !frozen || t == nil || meta.IsStatusConditionTrue(t.Status.Conditions, workloadv1alpha1.SyncTargetFrozen) {
		return nil
	}
	klog.FromContext(ctx).Info("Mirror is frozen: so many leaves would go that nobody was seen to give up", "syncTarget", client.KeyOf(t).String(), "mirror", mirror, "leaves", missing)
	return c.setFrozen(ctx, t, metav1.ConditionTrue, "ManyDeletions", fmt.Sprintf(
		"Many objects here would go at once that nobody was seen to delete or to move: what asked for them is gone, or no cluster is left that may run them. Nothing is deleted here until this SyncTarget is annotated %s=%s.",
		workloadv1alpha1.ConfirmAnnotation, confirmDeletions))
}

func (c *Controller) setFrozen(ctx context.Context, t *workloadv1alpha1.SyncTarget, status metav1.ConditionStatus, reason, message string) error {
	want := t.DeepCopy()
	meta.SetStatusCondition(&want.Status.Conditions, metav1.Condition{
		Type: workloadv1alpha1.SyncTargetFrozen, Status: status, Reason: reason, Message: message,
		ObservedGeneration: t.Generation, LastTransitionTime: metav1.NewTime(c.clock.Now()),
	})
	// The list of conditions has other writers, whose words a patch of the whole list would undo.
	patch := ctrlclient.MergeFromWithOptions(t, ctrlclient.MergeFromWithOptimisticLock{})
	if err := c.clients.Objects.Status().Patch(client.In(ctx, client.KeyOf(t).Cluster), want, patch); err != nil {
		return fmt.Errorf("write the condition Frozen of SyncTarget %s: %w", client.KeyOf(t), err)
	}
	return nil
}

// syncTarget ends a freeze that an administrator confirmed, and takes the confirmation away, so that it confirms nothing else.
// It counts only if the condition says what is confirmed: a word that was left there must not end the next freeze.
func (c *Controller) syncTarget(ctx context.Context, k client.Key) error {
	t, ok := c.informers.SyncTargets.Get(k)
	if !ok || t.Annotations[workloadv1alpha1.ConfirmAnnotation] != confirmDeletions || c.isMirror(k.Cluster) {
		return nil
	}
	mirror := client.MirrorOf(t)
	if mirror == "" {
		return nil
	}
	if meta.IsStatusConditionTrue(t.Status.Conditions, workloadv1alpha1.SyncTargetFrozen) {
		_, missing := c.brake.Frozen(string(mirror))
		c.brake.Confirm(string(mirror))
		if err := c.setFrozen(ctx, t, metav1.ConditionFalse, "Confirmed", "An administrator confirmed the deletions."); err != nil {
			return err
		}
		klog.FromContext(ctx).Info("Deletions confirmed", "syncTarget", k.String(), "leaves", missing)
		c.everythingIn(mirror)
	}
	want := t.DeepCopy()
	delete(want.Annotations, workloadv1alpha1.ConfirmAnnotation)
	if err := c.clients.Objects.Patch(client.In(ctx, k.Cluster), want, ctrlclient.MergeFrom(t)); err != nil {
		return fmt.Errorf("take the confirmation off SyncTarget %s: %w", k, err)
	}
	return nil
}
