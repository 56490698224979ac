package kinds

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// MostPodClaims is how many claims a workload may have for its pods: each is looked up with each change of it.
const MostPodClaims = 1000

// statefulSetContent: a claim that names a volume would take whichever of the physical cluster's it likes. When claims go the workspace decides, where
// their users see them: the physical cluster keeps them.
func statefulSetContent(root ctrlclient.Object) ctrlclient.Object {
	out := &appsv1.StatefulSet{Spec: *root.(*appsv1.StatefulSet).Spec.DeepCopy()}
	templateContent(&out.Spec.Template, root)
	for i := range out.Spec.VolumeClaimTemplates {
		out.Spec.VolumeClaimTemplates[i].Spec.VolumeName = ""
	}
	if out.Spec.PersistentVolumeClaimRetentionPolicy != nil {
		out.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
			WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType, WhenScaled: appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
		}
	}
	return out
}

// statefulSetClaims: of those pods whose claims are at most MostPodClaims.
func statefulSetClaims(obj ctrlclient.Object) (claims []PodClaim) {
	set := obj.(*appsv1.StatefulSet)
	templates := set.Spec.VolumeClaimTemplates
	if len(templates) == 0 {
		return nil
	}
	for pod := range min(int(ptr.Deref(set.Spec.Replicas, 1)), MostPodClaims/len(templates)) {
		for i := range templates {
			claims = append(claims, PodClaim{fmt.Sprintf("%s-%s-%d", templates[i].Name, set.Name, firstOrdinal(set)+pod), pod, &templates[i]})
		}
	}
	return claims
}

func firstOrdinal(set *appsv1.StatefulSet) int {
	if set.Spec.Ordinals == nil {
		return 0
	}
	return int(set.Spec.Ordinals.Start)
}

// OrdinalOf returns the ordinal of the pod, which a StatefulSet need not have now, for which it would have a claim of that name.
func OrdinalOf(set *appsv1.StatefulSet, claim string) (ordinal int, ok bool) {
	for _, template := range set.Spec.VolumeClaimTemplates {
		if pod, is := strings.CutPrefix(claim, template.Name+"-"); is {
			if ordinal, ok = PodOrdinal(set, pod); ok {
				return ordinal, true
			}
		}
	}
	return 0, false
}

// PodOrdinal returns the ordinal of a pod by its name, if that is one of a StatefulSet's.
func PodOrdinal(set *appsv1.StatefulSet, pod string) (ordinal int, ok bool) {
	text, ok := strings.CutPrefix(pod, set.Name+"-")
	n, err := strconv.ParseInt(text, 10, 32)
	return int(n), ok && err == nil && n >= 0 && strconv.FormatInt(n, 10) == text
}

// IsScaledAway says that a StatefulSet had a claim for a pod which it is not to have any more.
func IsScaledAway(set *appsv1.StatefulSet, claim string) bool {
	ordinal, ok := OrdinalOf(set, claim)
	pod := ordinal - firstOrdinal(set)
	return ok && (pod < 0 || pod >= int(ptr.Deref(set.Spec.Replicas, 1)))
}

func statefulSetDropped(root ctrlclient.Object) (dropped []string) {
	for _, claim := range root.(*appsv1.StatefulSet).Spec.VolumeClaimTemplates {
		if claim.Spec.VolumeName != "" {
			dropped = append(dropped, fmt.Sprintf("volumeName in volumeClaimTemplate %s: volumes of a physical cluster are given out by it", claim.Name))
		}
	}
	return dropped
}

// statefulSetReferences: its pods have the names that its Service gives them from their start.
func statefulSetReferences(obj ctrlclient.Object) []Reference {
	if name := obj.(*appsv1.StatefulSet).Spec.ServiceName; name != "" {
		return []Reference{{"Service", name}}
	}
	return nil
}

func statefulSetPods(leaf ctrlclient.Object) (wanted, ready int32) {
	s := leaf.(*appsv1.StatefulSet)
	return ptr.Deref(s.Spec.Replicas, 1), s.Status.ReadyReplicas
}

func statefulSetObserved(leaf ctrlclient.Object) bool {
	s := leaf.(*appsv1.StatefulSet)
	return s.Status.ObservedGeneration >= s.Generation
}

// statefulSetRolledOut asks for more than `kubectl rollout status`: what a partition holds back, or is updated by hand (OnDelete), is
// of an earlier template, and needs what that refers to.
func statefulSetRolledOut(leaf ctrlclient.Object) bool {
	want, _ := statefulSetPods(leaf)
	s := leaf.(*appsv1.StatefulSet).Status
	return s.Replicas == want && s.UpdatedReplicas == want && s.AvailableReplicas == want
}

// statefulSetServes does not ask for pods of the present template which a partition holds back, or that are replaced by hand: nobody may ever do so.
func statefulSetServes(leaf ctrlclient.Object) bool {
	set, updated := leaf.(*appsv1.StatefulSet), int32(0)
	want, _ := statefulSetPods(leaf)
	if rolling := set.Spec.UpdateStrategy.RollingUpdate; rolling != nil {
		updated = max(0, want-ptr.Deref(rolling.Partition, 0))
	} else if set.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType {
		updated = want
	}
	return set.Status.Replicas == want && set.Status.UpdatedReplicas >= updated && set.Status.AvailableReplicas == want
}

// statefulSetStays: what its pods wrote to the volumes that it claims for each of them lies in the cluster, once they were there.
func statefulSetStays(leaf ctrlclient.Object) *Reason {
	s := leaf.(*appsv1.StatefulSet)
	ran := s.Annotations[workloadv1alpha1.AppliedAnnotation] != "" || s.Status.ObservedGeneration > 0 || s.Status.Replicas > 0
	if !ran || len(s.Spec.VolumeClaimTemplates) == 0 {
		return nil
	}
	return &volumesStay
}

// summariseStatefulSet tells of the one cluster that it runs in. As with a Deployment, pods of a cluster that is being left are none that are
// updated, so that `kubectl rollout status` ends with the move; and those of a cluster that is not heard of are not ready.
func summariseStatefulSet(obj ctrlclient.Object, view View) {
	root := obj.(*appsv1.StatefulSet)
	s := &root.Status
	sum := appsv1.StatefulSetStatus{
		ObservedGeneration: s.ObservedGeneration, CollisionCount: s.CollisionCount,
		CurrentRevision: s.CurrentRevision, UpdateRevision: s.UpdateRevision,
	}
	var unsettled int32 // updated by a report on an earlier rendering, which may have had another template
	for _, l := range view.Leaves {
		d, _ := l.Object.(*appsv1.StatefulSet)
		if d == nil {
			continue
		}
		sum.Replicas += d.Status.Replicas
		if !l.Lost {
			sum.ReadyReplicas += d.Status.ReadyReplicas
			sum.AvailableReplicas += d.Status.AvailableReplicas
		}
		sum.CollisionCount = mostCollisions(sum.CollisionCount, d.Status.CollisionCount)
		if !l.Assigned {
			continue
		}
		sum.CurrentReplicas += d.Status.CurrentReplicas
		if l.Current && l.Settled {
			sum.UpdatedReplicas += d.Status.UpdatedReplicas
		} else {
			unsettled += d.Status.UpdatedReplicas
		}
		if d.Status.UpdateRevision != "" {
			sum.CurrentRevision, sum.UpdateRevision = d.Status.CurrentRevision, d.Status.UpdateRevision
		}
		for _, c := range d.Status.Conditions {
			if !isOurs(string(c.Type)) {
				sum.Conditions = append(sum.Conditions, c)
			}
		}
	}
	if root.Generation == s.ObservedGeneration {
		sum.UpdatedReplicas = holdsOn(s.UpdatedReplicas, sum.UpdatedReplicas, unsettled)
	}
	if view.observed() {
		sum.ObservedGeneration = max(sum.ObservedGeneration, root.Generation)
	}
	since := func(c appsv1.StatefulSetCondition) (string, corev1.ConditionStatus, metav1.Time) {
		return string(c.Type), c.Status, c.LastTransitionTime
	}
	for _, c := range view.troubles() {
		sum.Conditions = append(sum.Conditions, appsv1.StatefulSetCondition{
			Type: appsv1.StatefulSetConditionType(c.condition), Status: corev1.ConditionFalse, Reason: c.Reason.Reason, Message: c.Message,
			LastTransitionTime: falseSince(s.Conditions, c.condition, view.Now, since),
		})
	}
	*s = sum
}

// nameStatefulSetRevision: the names that a cluster gave its revisions are of none that are in the workspace. An update begins with the template, and
// has ended when the cluster says so of that. While there is no revision of the template the names stay.
func nameStatefulSetRevision(before, obj ctrlclient.Object, view View, revision string, kept []string) {
	s, was := &obj.(*appsv1.StatefulSet).Status, before.(*appsv1.StatefulSet).Status
	current := was.CurrentRevision
	switch ended := s.CurrentRevision == s.UpdateRevision && view.observed(); {
	case revision == "":
		revision = was.UpdateRevision
	case ended, current == "", len(kept) > 0 && !slices.Contains(kept, current): // none are shown while the first is new
		current = revision
	}
	s.CurrentRevision, s.UpdateRevision = current, revision
}

// isOurs says that a type of condition is one of a root, which a leaf cannot speak of.
func isOurs(condition string) bool {
	return condition == ConditionPlaced || condition == ConditionSynced
}
