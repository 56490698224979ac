package splitter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
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

// podClaims makes the workspace have the claims of a workload's pods, says of each with what it goes, and returns whether it made any: they are shown by the
// informer in a moment. Claims that are there are its pods', whoever made them. While a workspace is imported its own are on their way.
func (c *Controller) podClaims(ctx context.Context, s *source, root ctrlclient.Object, p *placementv1alpha1.Placement, leaves []ctrlclient.Object) (made bool, err error) {
	set, ok := root.(*appsv1.StatefulSet)
	if !ok || len(set.Spec.VolumeClaimTemplates) == 0 || len(placed(p)) == 0 && len(leaves) == 0 {
		return false, nil // what is placed nowhere has not begun
	}
	rk, of := client.KeyOf(root), c.sources[kinds.ClaimKind]
	if lc, ok := c.informers.LogicalClusters.Get(client.Key{Cluster: rk.Cluster, Name: corev1alpha1.LogicalClusterName}); !ok || !isReady(lc) {
		return false, nil // onLogicalCluster brings it back
	}
	ctx = client.In(ctx, rk.Cluster)
	if most := kinds.MostPodClaims / len(set.Spec.VolumeClaimTemplates); int(ptr.Deref(set.Spec.Replicas, 1)) > most {
		c.tellOnce(ctx, s, root, "many claims", corev1.EventTypeWarning, "TooManyClaims",
			fmt.Sprintf("It gets %d pods: the claims of its pods may be %d.", most, kinds.MostPodClaims))
	} else {
		c.untell(root, "many claims")
	}
	errs := []error{c.condemn(ctx, s, set, leaves)}
	var missing []kinds.PodClaim
	for _, pc := range s.PodClaimsOf(set) {
		ck := client.Key{Cluster: rk.Cluster, Namespace: rk.Namespace, Name: pc.Name}
		have, ok := of.get(ck)
		switch {
		case !ok && !slices.ContainsFunc(of.leaves(ck), c.isInMirror):
			missing = append(missing, pc)
		case !ok, have.GetDeletionTimestamp() != nil: // its end brings us back: until then a pod has it
		default:
			errs = append(errs, c.ownClaim(ctx, set, have.(*corev1.PersistentVolumeClaim), nil))
		}
	}
	for _, pc := range missing {
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
			return made, settle(errs)
		}
		// Its pod, and those after it, are not asked for.
		c.tellOnce(ctx, s, root, "claims", corev1.EventTypeWarning, "FailedCreate", fmt.Sprintf("create Claim %s in StatefulSet %s failed error: %v", pc.Name, set.Name, err))
		return made, settle(append(errs, fmt.Errorf("create claim %s of StatefulSet %s: %w", pc.Name, rk, err)))
	}
	c.untell(root, "claims")
	return made, settle(errs)
}

func (c *Controller) isInMirror(leaf ctrlclient.Object) bool {
	return c.isMirror(client.KeyOf(leaf).Cluster)
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
	claim.OwnerReferences, _ = ownersOfClaim(set, nil, nil)
	return claim
}

// ownersOfClaim returns the owners of a claim, with which it goes, and whether they are others than before: by what its StatefulSet says
// (persistentVolumeClaimRetentionPolicy), that itself, or the pod, nil if it is to have one, which it is not to have any more. As in one cluster, a claim
// whose pod went before anybody said so stays. One that something else controls is left to that.
func ownersOfClaim(set *appsv1.StatefulSet, condemned *corev1.Pod, owners []metav1.OwnerReference) (want []metav1.OwnerReference, changed bool) {
	policy := ptr.Deref(set.Spec.PersistentVolumeClaimRetentionPolicy, appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{})
	isOurs := func(o metav1.OwnerReference) bool { return o.UID == set.UID || isPodOf(set, o) }
	if slices.ContainsFunc(owners, func(o metav1.OwnerReference) bool { return ptr.Deref(o.Controller, false) && !isOurs(o) }) {
		return owners, false
	}
	want = slices.DeleteFunc(slices.Clone(owners), isOurs)
	switch {
	case condemned != nil && policy.WhenScaled == appsv1.DeletePersistentVolumeClaimRetentionPolicyType:
		want = append(want, *metav1.NewControllerRef(condemned, corev1.SchemeGroupVersion.WithKind("Pod")))
	case policy.WhenDeleted == appsv1.DeletePersistentVolumeClaimRetentionPolicyType:
		want = append(want, *metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("StatefulSet")))
	}
	return want, !equality.Semantic.DeepEqual(want, owners)
}

// ownClaim lets a claim go with its StatefulSet or the pod that is condemned, or stay after them.
func (c *Controller) ownClaim(ctx context.Context, set *appsv1.StatefulSet, claim *corev1.PersistentVolumeClaim, condemned *corev1.Pod) error {
	owners, changed := ownersOfClaim(set, condemned, claim.OwnerReferences)
	if !changed {
		return nil
	}
	now := claim.DeepCopy()
	now.OwnerReferences = owners
	err := c.clients.Objects.Patch(ctx, now, ctrlclient.MergeFromWithOptions(claim, ctrlclient.MergeFromWithOptimisticLock{}))
	if ctrlclient.IgnoreNotFound(err) != nil {
		return fmt.Errorf("say of claim %s with what it goes: %w", client.KeyOf(claim), err)
	}
	return nil
}

// condemn says of the claims of those pods that a StatefulSet is not to have any more with what they go. With the pods, where it says so (whenScaled), once its
// leaves ask for no such pod and nobody refuses that: the garbage collector deletes them when the pods are gone. One whose pod was faster stays.
func (c *Controller) condemn(ctx context.Context, s *source, set *appsv1.StatefulSet, leaves []ctrlclient.Object) error {
	policy := ptr.Deref(set.Spec.PersistentVolumeClaimRetentionPolicy, appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{})
	goes := policy.WhenScaled == appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	var away []*corev1.PersistentVolumeClaim
	for _, o := range c.sources[kinds.ClaimKind].list(client.KeyOf(set).Cluster, set.Namespace) {
		claim, ok := o.(*corev1.PersistentVolumeClaim)
		if !ok || !kinds.IsScaledAway(set, claim.Name) || claim.DeletionTimestamp != nil {
			continue
		}
		if isPods := slices.ContainsFunc(claim.OwnerReferences, func(o metav1.OwnerReference) bool { return isPodOf(set, o) }); goes != isPods {
			away = append(away, claim)
		}
	}
	var errs []error
	if !goes {
		for _, claim := range away {
			errs = append(errs, c.ownClaim(ctx, set, claim, nil))
		}
		return errors.Join(errs...)
	}
	asked := map[string]bool{}
	for _, leaf := range leaves {
		if workloadv1alpha1.RefusalOf(leaf) != nil || observed(c.target(client.KeyOf(leaf).Cluster)) {
			return nil
		}
		for _, pc := range s.PodClaimsOf(leaf) {
			asked[pc.Name] = true
		}
	}
	away = slices.DeleteFunc(away, func(claim *corev1.PersistentVolumeClaim) bool { return asked[claim.Name] })
	if len(away) == 0 || set.Spec.Selector == nil || set.Status.ObservedGeneration == set.Generation && set.Status.Replicas <= ptr.Deref(set.Spec.Replicas, 1) {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return fmt.Errorf("read the selector of StatefulSet %s: %w", client.KeyOf(set), err)
	}
	var list corev1.PodList
	if err := c.clients.Objects.List(ctx, &list, ctrlclient.InNamespace(set.Namespace), ctrlclient.MatchingLabelsSelector{Selector: selector}); err != nil {
		return fmt.Errorf("list the pods of StatefulSet %s: %w", client.KeyOf(set), err)
	}
	pods := map[int]*corev1.Pod{}
	for i := range list.Items {
		pod := &list.Items[i]
		if ordinal, ok := kinds.PodOrdinal(set, pod.Name); ok && metav1.IsControlledBy(pod, set) {
			pods[ordinal] = pod
		}
	}
	for _, claim := range away {
		ordinal, _ := kinds.OrdinalOf(set, claim.Name)
		if pod := pods[ordinal]; pod != nil {
			errs = append(errs, c.ownClaim(ctx, set, claim, pod))
		}
	}
	return errors.Join(errs...)
}

// isPodOf says that an owner is a pod of a StatefulSet, by its name.
func isPodOf(set *appsv1.StatefulSet, owner metav1.OwnerReference) bool {
	_, ok := kinds.PodOrdinal(set, owner.Name)
	return ok && owner.APIVersion == "v1" && owner.Kind == "Pod"
}

// withClaims returns a workload as it goes down to mirrors: with as many pods, from the first one on, as have claims that a cluster there has taken, and the name of
// the claim that the next one waits for. Those that are asked for already stay: their claims may be older than what says so here.
func (c *Controller) withClaims(s *source, root ctrlclient.Object, mirrors []logicalcluster.Name, leaves []ctrlclient.Object) (down ctrlclient.Object, awaited string) {
	set, ok := root.(*appsv1.StatefulSet)
	if !ok || len(set.Spec.VolumeClaimTemplates) == 0 {
		return root, ""
	}
	asked := map[string]bool{} // claims of pods that are asked for already
	for _, leaf := range leaves {
		if leafUID(leaf) == root.GetUID() {
			for _, pc := range s.PodClaimsOf(leaf) {
				asked[pc.Name] = true
			}
		}
	}
	claims := s.PodClaimsOf(root)
	pods := len(claims) / len(set.Spec.VolumeClaimTemplates)
	for _, pc := range claims {
		if !asked[pc.Name] && !c.isTaken(client.Key{Cluster: client.KeyOf(root).Cluster, Namespace: root.GetNamespace(), Name: pc.Name}, mirrors) {
			pods, awaited = pc.Pod, pc.Name
			break
		}
	}
	if pods >= int(ptr.Deref(set.Spec.Replicas, 1)) {
		return root, ""
	}
	set = set.DeepCopy()
	set.Spec.Replicas = ptr.To(int32(pods))
	return set, awaited
}

// tellAwaited tells which claim keeps a pod from being asked for, when that has lasted.
func (c *Controller) tellAwaited(ctx context.Context, s *source, root ctrlclient.Object, awaited string) (again time.Duration) {
	if awaited == "" {
		c.untell(root, "awaited")
		return 0
	}
	rk := client.KeyOf(root)
	claim, ok := c.sources[kinds.ClaimKind].get(client.Key{Cluster: rk.Cluster, Namespace: rk.Namespace, Name: awaited})
	if !ok {
		return 0 // it is told of
	}
	if again = patienceWithClaims - c.clock.Since(claim.GetCreationTimestamp().Time); again > 0 {
		return again
	}
	c.tellOnce(ctx, s, root, "awaited", corev1.EventTypeWarning, "VolumesAwaited", fmt.Sprintf(
		"The pod with the claim %q, and those after it, are not asked for until its cluster has taken that: see what is told of it.", awaited))
	return 0
}

// isTaken says that a claim of a workspace is in one of the mirrors, whose cluster has taken it and not lost it.
func (c *Controller) isTaken(claim client.Key, mirrors []logicalcluster.Name) bool {
	s := c.sources[kinds.ClaimKind]
	root, ok := s.get(claim)
	return ok && slices.ContainsFunc(s.leaves(claim), func(leaf ctrlclient.Object) bool {
		return slices.Contains(mirrors, client.KeyOf(leaf).Cluster) && leafUID(leaf) == root.GetUID() && replyTo(leaf) == takenThere
	})
}

// reply is what a cluster says to a leaf.
type reply int

const (
	unanswered reply = iota
	takenThere
	refusedThere
)

// replyTo returns what a cluster says to the leaf of a claim. One that it has taken, and refuses to change, is there; one that is gone is not.
func replyTo(leaf ctrlclient.Object) reply {
	r := workloadv1alpha1.RefusalOf(leaf)
	switch is := leaf.GetAnnotations()[workloadv1alpha1.AppliedAnnotation] != ""; {
	case r != nil && r.Reason == workloadv1alpha1.RefusedGone:
		return refusedThere
	case is:
		return takenThere
	case r != nil && r.Reason != unreachable:
		return refusedThere
	}
	return unanswered
}
