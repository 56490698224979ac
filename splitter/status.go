package splitter

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
)

// unreachable is the reason of a Refusal that is none: the physical cluster does not answer.
const unreachable = "Unreachable"

// confirmDeletions is ConfirmAnnotation's value that ends Frozen.
const confirmDeletions = "deletions"

// placementStatus brings the status of a Placement up to date, at its pace: where it stands in every cluster. The conditions
// are the placement controller's. Who waits for an end, say with helm --wait, looks here next.
func (c *Controller) placementStatus(ctx context.Context, k key) (wait time.Duration, err error) {
	p, ok := c.informers.Placements.Get(k.Key)
	if !ok {
		return 0, nil
	}
	sums, planned := c.sumsOf(p)
	if !planned && (len(p.Status.Clusters) == 0 || p.Status.ObservedGeneration != p.Generation) {
		return 0, nil // what is planned by an earlier decision is no part of this one's status; the last plan brings it back
	}
	want := p.DeepCopy()
	want.Status.ObservedGeneration = p.Generation
	want.Status.Clusters = phases(p, sums, func(mirror logicalcluster.Name) string { return nameOf(c.target(mirror), mirror) })
	if equality.Semantic.DeepEqual(p.Status, want.Status) || !planned && serve(want.Status.Clusters) {
		return 0, nil // that all serves is told when all is planned, that it does no more at once
	}
	if wait := c.pace.Wait(k, p.ResourceVersion, placedMayWait(p.Status.Clusters, want.Status.Clusters)); wait > 0 {
		return wait, nil
	}
	// What was summed up is of this very Placement: a newer one, or another of its name, is not told what an earlier decision came to.
	patch := ctrlclient.MergeFromWithOptions(p, ctrlclient.MergeFromWithOptimisticLock{})
	err = c.clients.Objects.Status().Patch(client.In(ctx, k.Cluster), want, patch)
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("write the status of placement %s: %w", k.Key, err)
	}
	c.pace.Wrote(k, want.ResourceVersion)
	return 0, nil
}

// sumsOf returns what the roots of a Placement come to, by mirror: its object, or those of its namespace that have no Placement
// of their own. planned is false while not all of them are planned for by the Placement as it is.
func (c *Controller) sumsOf(p *placementv1alpha1.Placement) (sums map[logicalcluster.Name]sumOf, planned bool) {
	cluster, namespace := client.KeyOf(p).Cluster, p.Spec.Namespace
	if p.Spec.Object != nil {
		s, root := c.placedObject(p)
		if s == nil {
			return nil, true
		}
		sums, planned = c.tally.of(key{s.GVK.Kind, root}, decisionOf(p))
	} else {
		var others []key
		for _, own := range c.informers.Placements.ByIndex(byPlacedNamespace, namespaceValue(cluster, namespace)) {
			if s, root := c.placedObject(own); s != nil {
				others = append(others, key{s.GVK.Kind, root})
			}
		}
		sums, planned = c.tally.ofAll(namespaceValue(cluster, namespace), decisionOf(p), others)
	}
	maps.DeleteFunc(sums, func(mirror logicalcluster.Name, _ sumOf) bool { return !c.isMirror(mirror) })
	for mirror, sum := range sums {
		if t := c.target(mirror); lost(t) || observed(t) {
			sums[mirror] = sum.unheard()
		}
	}
	return sums, planned
}

// decisionOf is what a plan by a Placement, nil if there is none, rests on.
func decisionOf(p *placementv1alpha1.Placement) decision {
	if p == nil {
		return decision{}
	}
	return decision{p.UID, p.Generation}
}

// placedObject returns the object that a Placement is for, and its kind; nil for a namespace's.
func (c *Controller) placedObject(p *placementv1alpha1.Placement) (*source, client.Key) {
	o := p.Spec.Object
	if o == nil {
		return nil, client.Key{}
	}
	for _, s := range c.sources {
		if s.IsPlaced() && o.Group == s.GVR.Group && o.Resource == s.GVR.Resource {
			return s, client.Key{Cluster: client.KeyOf(p).Cluster, Namespace: p.Spec.Namespace, Name: o.Name}
		}
	}
	return nil, client.Key{}
}

// phaseOrder is from the least to the most advanced.
var phaseOrder = []placementv1alpha1.PlacedClusterPhase{
	placementv1alpha1.PhaseRefused, placementv1alpha1.PhasePending, placementv1alpha1.PhaseApplying, placementv1alpha1.PhaseSynced,
	placementv1alpha1.PhaseReady,
}

// phases returns the state of every cluster that a Placement names or that has leaves of it, sorted by name.
func phases(p *placementv1alpha1.Placement, sums map[logicalcluster.Name]sumOf, name func(mirror logicalcluster.Name) string) []placementv1alpha1.PlacedClusterStatus {
	var out []placementv1alpha1.PlacedClusterStatus
	assigned := map[logicalcluster.Name]bool{}
	for _, cluster := range p.Spec.Clusters {
		mirror := logicalcluster.Name(cluster.Mirror)
		if mirror != "" && assigned[mirror] {
			continue
		}
		assigned[mirror] = true
		s := sums[mirror]
		out = append(out, placementv1alpha1.PlacedClusterStatus{Name: cluster.Name, Phase: s.phase(), Replicas: s.replicas, ReadyReplicas: s.ready})
	}
	for mirror, s := range sums {
		if assigned[mirror] || s.leaves == s.ended { // what has ended stays where it was
			continue
		}
		phase := placementv1alpha1.PhaseDraining
		switch {
		case s.deleting == s.leaves:
			phase = placementv1alpha1.PhaseDeleting
		case s.staying > 0:
			phase = placementv1alpha1.PhaseStaying
		}
		out = append(out, placementv1alpha1.PlacedClusterStatus{Name: name(mirror), Phase: phase, Replicas: s.replicas, ReadyReplicas: s.ready})
	}
	slices.SortFunc(out, func(a, b placementv1alpha1.PlacedClusterStatus) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Phase, b.Phase))
	})
	// Two clusters of one name can be here for a while; the status is keyed by name.
	return slices.CompactFunc(out, func(a, b placementv1alpha1.PlacedClusterStatus) bool { return a.Name == b.Name })
}

func phaseOf(leaf ctrlclient.Object) placementv1alpha1.PlacedClusterPhase {
	switch r := workloadv1alpha1.RefusalOf(leaf); {
	case r != nil && r.Reason != unreachable:
		return placementv1alpha1.PhaseRefused
	case leaf.GetDeletionTimestamp() != nil:
		return placementv1alpha1.PhasePending // the leaf of an earlier root, which goes first
	case r != nil || !applied(leaf):
		return placementv1alpha1.PhaseApplying
	}
	if podsOf(leaf) != nil && !leafView(leaf).Serves() {
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
