package v1alpha1

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CarriedByAll are the resources that every syncer carries: those of the first version, which did not say so.
var CarriedByAll = []string{"configmaps", "deployments.apps", "secrets", "serviceaccounts", "services"}

// CarriedBindings, among the resources that a syncer carries, says that it runs the pods that are bound to its cluster. That it
// carries "pods" says only that it shows those of leaves.
const CarriedBindings = "pods/binding"

// PodSynced is the condition of a pod, bound to a physical cluster, that is False while the cluster refuses to run it.
const PodSynced corev1.PodConditionType = "Synced"

// Carries says whether the syncer of a SyncTarget carries a resource, "<resource>.<group>": an object of another one would stay
// in the mirror, and nobody would say why. Of a syncer that was never heard of nothing more is known, nor of that of no SyncTarget (nil).
func (t *SyncTarget) Carries(resource string) bool {
	return slices.Contains(CarriedByAll, resource) || t != nil && slices.Contains(t.Status.CarriedResources, resource)
}

// ReasonCannotWatch is the reason of a SyncTarget that is not Ready since its syncer cannot watch all that it has to.
const ReasonCannotWatch = "CannotWatch"

// IsHeard says whether a syncer tells how that is which it does watch. What else it cannot watch says nothing of that.
func (s *SyncTargetStatus) IsHeard() bool {
	ready := meta.FindStatusCondition(s.Conditions, SyncTargetReady)
	return ready != nil && (ready.Status == metav1.ConditionTrue || ready.Reason == ReasonCannotWatch)
}
