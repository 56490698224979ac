package splitter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
)

// The claims that a StatefulSet has for its pods are made in its workspace, where its users see them, delete them, and lose them with the namespace, as in
// one cluster; and go down as all claims do. The controller of the physical cluster finds them there, since the leaf asks for as many pods as have theirs.

// podClaims makes the workspace have the claims of a workload's pods, keeps or deletes them as that says, and returns whether it made any: they are shown by
// the informer in a moment. Claims that are there are its pods', whoever made them.
func (c *Controller) podClaims(ctx context.Context, s *source, root ctrlclient.Object, p *placementv1alpha1.Placement, leaves []ctrlclient.Object) (made bool, err error) {
	set, ok := root.(*appsv1.StatefulSet)
	if !ok || len(set.Spec.VolumeClaimTemplates) == 0 || len(placed(p)) == 0 && len(leaves) == 0 {
		return false, nil // what is placed nowhere has not begun
	}
	rk, of := client.KeyOf(root), c.sources[kinds.ClaimKind]
	if lc, ok := c.informers.LogicalClusters.Get(client.Key{Cluster: rk.Cluster, Name: corev1alpha1.LogicalClusterName}); ok && ending(lc) {
		return false, nil
	}
	ctx = client.In(ctx, rk.Cluster)
	claims := s.PodClaimsOf(set)
	most := kinds.MostPodClaims / len(set.Spec.VolumeClaimTemplates)
	tooMany := int(ptr.Deref(set.Spec.Replicas, 1)) > most
	if tooMany {
		c.tellOnce(ctx, s, root, "claims", corev1.EventTypeWarning, "TooManyClaims",
			fmt.Sprintf("It gets %d pods: the claims of its pods may be %d.", most, kinds.MostPodClaims))
	}
	var errs []error
	for _, pc := range claims {
		ck := client.Key{Cluster: rk.Cluster, Namespace: rk.Namespace, Name: pc.Name}
		have, ok := of.get(ck)
		switch {
		case ok && have.GetDeletionTimestamp() == nil:
			errs = append(errs, c.keepClaim(ctx, set, have.(*corev1.PersistentVolumeClaim)))
			continue
		case ok, len(of.leaves(ck)) > 0: // its end brings us back: until then a pod has it
			continue
		}
		err := c.clients.Objects.Create(ctx, claimFor(set, pc))
		switch {
		case err == nil:
			made = true
			c.tell(ctx, s, root, corev1.EventTypeNormal, "SuccessfulCreate", fmt.Sprintf("create Claim %s in StatefulSet %s success", pc.Name, set.Name), true)
			continue
		case apierrors.IsAlreadyExists(err):
			made = true
			continue
		case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			return made, errors.Join(errs...)
		}
		// Its pod, and those after it, are not asked for.
		c.tellOnce(ctx, s, root, "claims", corev1.EventTypeWarning, "FailedCreate", fmt.Sprintf("create Claim %s in StatefulSet %s failed error: %v", pc.Name, set.Name, err))
		return made, errors.Join(append(errs, fmt.Errorf("create claim %s of StatefulSet %s: %w", pc.Name, rk, err))...)
	}
	if !tooMany {
		c.untell(root, "claims")
	}
	if !made {
		errs = append(errs, c.dropClaims(ctx, s, set))
	}
	return made, settle(errs)
}

// claimFor returns the claim as Kubernetes' controller of StatefulSets makes it.
func claimFor(set *appsv1.StatefulSet, pc kinds.PodClaim) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: set.Namespace, Name: pc.Name, Labels: maps.Clone(pc.Template.Labels), Annotations: maps.Clone(pc.Template.Annotations)},
		Spec:       *pc.Template.Spec.DeepCopy(),
	}
	claim.Spec.VolumeName = "" // is told of the StatefulSet
	if claim.Labels == nil {
		claim.Labels = map[string]string{}
	}
	if set.Spec.Selector != nil {
		maps.Copy(claim.Labels, set.Spec.Selector.MatchLabels)
	}
	claim.OwnerReferences, _ = ownersOfClaim(set, nil)
	return claim
}

// ownersOfClaim returns the owners of a claim of which a StatefulSet says whether it goes with it, and whether they are others. One that something else
// controls is left to that.
func ownersOfClaim(set *appsv1.StatefulSet, owners []metav1.OwnerReference) (want []metav1.OwnerReference, changed bool) {
	policy := set.Spec.PersistentVolumeClaimRetentionPolicy
	goes := policy != nil && policy.WhenDeleted == appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	i := slices.IndexFunc(owners, func(o metav1.OwnerReference) bool { return o.UID == set.UID })
	controlled := slices.ContainsFunc(owners, func(o metav1.OwnerReference) bool { return ptr.Deref(o.Controller, false) })
	switch {
	case goes && i < 0 && !controlled:
		return append(slices.Clone(owners), *metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))), true
	case !goes && i >= 0:
		return slices.Delete(slices.Clone(owners), i, i+1), true
	}
	return owners, false
}

// keepClaim lets a claim go with its StatefulSet, or stay after it, as that says.
func (c *Controller) keepClaim(ctx context.Context, set *appsv1.StatefulSet, claim *corev1.PersistentVolumeClaim) error {
	owners, changed := ownersOfClaim(set, claim.OwnerReferences)
	if !changed {
		return nil
	}
	now := claim.DeepCopy()
	now.OwnerReferences = owners
	err := c.clients.Objects.Patch(ctx, now, ctrlclient.MergeFromWithOptions(claim, ctrlclient.MergeFromWithOptimisticLock{}))
	if ctrlclient.IgnoreNotFound(err) != nil {
		return fmt.Errorf("say of claim %s whether it goes with its StatefulSet: %w", client.KeyOf(claim), err)
	}
	return nil
}

// dropClaims deletes the claims of pods that a StatefulSet had before it was scaled down, where it says so (whenScaled), once they are gone. It is read
// uncached: who scales it up again has his data.
func (c *Controller) dropClaims(ctx context.Context, s *source, set *appsv1.StatefulSet) error {
	scaled := func(set *appsv1.StatefulSet) bool {
		policy := set.Spec.PersistentVolumeClaimRetentionPolicy
		return policy != nil && policy.WhenScaled == appsv1.DeletePersistentVolumeClaimRetentionPolicyType && set.DeletionTimestamp == nil &&
			set.Status.ObservedGeneration == set.Generation && set.Status.Replicas == ptr.Deref(set.Spec.Replicas, 1)
	}
	if !scaled(set) {
		return nil
	}
	rk := client.KeyOf(set)
	var errs []error
	for _, claim := range c.sources[kinds.ClaimKind].list(rk.Cluster, rk.Namespace) {
		if !kinds.IsScaledAway(set, claim.GetName()) || claim.GetDeletionTimestamp() != nil {
			continue
		}
		live := &appsv1.StatefulSet{}
		if err := c.clients.Objects.Get(ctx, ctrlclient.ObjectKeyFromObject(set), live); err != nil {
			return errors.Join(append(errs, ctrlclient.IgnoreNotFound(err))...)
		}
		if live.UID != set.UID || !scaled(live) || !kinds.IsScaledAway(live, claim.GetName()) {
			break
		}
		err := c.clients.Objects.Delete(ctx, claim, ctrlclient.Preconditions{UID: ptr.To(claim.GetUID()), ResourceVersion: ptr.To(claim.GetResourceVersion())})
		if ctrlclient.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("delete claim %s of StatefulSet %s, which was scaled down: %w", claim.GetName(), rk, err))
			continue
		}
		c.tell(ctx, s, set, corev1.EventTypeNormal, "SuccessfulDelete", fmt.Sprintf("delete Claim %s in StatefulSet %s success", claim.GetName(), set.Name), true)
	}
	return errors.Join(errs...)
}

// withClaims returns a workload as it goes down: with as many pods, from the first one on, as have claims that a cluster has taken. Those that it was to have
// there already stay: their claims may be older than what says so here.
func (c *Controller) withClaims(s *source, root ctrlclient.Object, leaves []ctrlclient.Object) ctrlclient.Object {
	claims := s.PodClaimsOf(root)
	set, ok := root.(*appsv1.StatefulSet)
	if !ok || len(set.Spec.VolumeClaimTemplates) == 0 {
		return root
	}
	pods := len(claims) / len(set.Spec.VolumeClaimTemplates)
	for _, pc := range claims {
		if !c.isTaken(client.Key{Cluster: client.KeyOf(root).Cluster, Namespace: root.GetNamespace(), Name: pc.Name}) {
			pods = pc.Pod
			break
		}
	}
	for _, leaf := range leaves {
		if leafUID(leaf) == root.GetUID() {
			pods = max(pods, int(ptr.Deref(leaf.(*appsv1.StatefulSet).Spec.Replicas, 1)))
		}
	}
	if pods >= int(ptr.Deref(set.Spec.Replicas, 1)) {
		return root
	}
	set = set.DeepCopy()
	set.Spec.Replicas = ptr.To(int32(pods))
	return set
}

// isTaken says that a claim of a workspace is in a cluster, which has taken it.
func (c *Controller) isTaken(claim client.Key) bool {
	s := c.sources[kinds.ClaimKind]
	root, ok := s.get(claim)
	return ok && slices.ContainsFunc(s.leaves(claim), func(leaf ctrlclient.Object) bool {
		return c.isMirror(client.KeyOf(leaf).Cluster) && leafUID(leaf) == root.GetUID() && leaf.GetAnnotations()[workloadv1alpha1.AppliedAnnotation] != ""
	})
}

// isAnswered says that a cluster has taken the leaf of a claim, or has refused it.
func isAnswered(leaf ctrlclient.Object) bool {
	a := leaf.GetAnnotations()
	return a[workloadv1alpha1.AppliedAnnotation] != "" || a[workloadv1alpha1.RefusedAnnotation] != ""
}
