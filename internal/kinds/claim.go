package kinds

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// ClaimKind is the kind of what holds data, and of the references to it.
const ClaimKind = "PersistentVolumeClaim"

// volumesStay is why what has data in a cluster does not leave it.
var volumesStay = Reason{"VolumesStay", "its data is in volumes there, which cannot be moved yet. To run it elsewhere without its data, delete it and its claims, and apply it again"}

// PodClaim is a claim that a workload has for one of its pods.
type PodClaim struct {
	Name string
	// Pod counts the pods from 0.
	Pod int
	// Template is what the claim is made of, in the workload that it is of.
	Template *corev1.PersistentVolumeClaim
}

// ClaimsOf returns the names of the claims that the pods of a root or a leaf mount, each once and sorted; none for what makes no pods.
// Those of ephemeral volumes have no object in the workspace and are not among them.
func ClaimsOf(obj ctrlclient.Object) (names []string) {
	k, ok := Of(obj)
	if !ok || !k.MakesPods() {
		return nil
	}
	for _, v := range k.Template(obj).Spec.Volumes {
		if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName != "" {
			names = append(names, v.PersistentVolumeClaim.ClaimName)
		}
	}
	for _, c := range k.PodClaimsOf(obj) {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// claimsStay: what the pods of a leaf wrote to claims lies in the cluster, once they were there. One that is on its way out of a cluster mounted none, or
// it would not be.
func claimsStay(leaf ctrlclient.Object) *Reason {
	a := leaf.GetAnnotations()
	if a[workloadv1alpha1.AppliedAnnotation] == "" || a[workloadv1alpha1.DrainingAnnotation] != "" || len(ClaimsOf(leaf)) == 0 {
		return nil
	}
	return &volumesStay
}

// claimContent: a claim that names a volume would take whichever of the physical cluster's it likes.
func claimContent(root ctrlclient.Object) ctrlclient.Object {
	out := &corev1.PersistentVolumeClaim{Spec: *root.(*corev1.PersistentVolumeClaim).Spec.DeepCopy()}
	out.Spec.VolumeName = ""
	return out
}

// claimDropped: once the claim is bound its volumeName is the one that came up.
func claimDropped(root ctrlclient.Object) []string {
	c := root.(*corev1.PersistentVolumeClaim)
	if c.Spec.VolumeName == "" || claimBegun(root) {
		return nil
	}
	return []string{"volumeName: volumes of a physical cluster are given out by it"}
}

// claimWithheld: without its source a claim would be empty, and its user would not know.
func claimWithheld(root ctrlclient.Object) string {
	spec := &root.(*corev1.PersistentVolumeClaim).Spec
	kind, name := "", ""
	switch {
	case spec.DataSourceRef != nil:
		kind, name = spec.DataSourceRef.Kind, spec.DataSourceRef.Name
	case spec.DataSource != nil:
		kind, name = spec.DataSource.Kind, spec.DataSource.Name
	default:
		return ""
	}
	return fmt.Sprintf("it is to be filled from the %s %q, which does not go there yet. Make one without a data source, and fill it from a pod", kind, name)
}

// claimBegun says that a claim has, or had, a volume with data: where it is gone, an empty one in its place would pass for it.
func claimBegun(obj ctrlclient.Object) bool {
	phase := obj.(*corev1.PersistentVolumeClaim).Status.Phase
	return phase == corev1.ClaimBound || phase == corev1.ClaimLost
}

// summariseClaim tells of the one cluster that has the volume. Without an answer of it the last status stays, as in a cluster whose provisioner is away.
func summariseClaim(obj ctrlclient.Object, view View) {
	root := obj.(*corev1.PersistentVolumeClaim)
	lost := view.Gone != ""
	for _, l := range view.Leaves {
		leaf, _ := l.Object.(*corev1.PersistentVolumeClaim)
		if leaf == nil {
			continue
		}
		if leaf.Status.Phase != "" {
			root.Status = *leaf.Status.DeepCopy()
		}
		lost = lost || l.Refused != nil && l.Refused.Reason == workloadv1alpha1.RefusedGone
	}
	if lost {
		root.Status.Phase = corev1.ClaimLost
	}
}

// isOfBinder says that an annotation is one in which the controllers of a cluster's volumes keep what they have done there.
func isOfBinder(annotation string) bool {
	for _, prefix := range []string{"pv.kubernetes.io/", "volume.kubernetes.io/", "volume.beta.kubernetes.io/storage-provisioner"} {
		if strings.HasPrefix(annotation, prefix) {
			return true
		}
	}
	return false
}
