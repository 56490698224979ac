package kinds

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// A pod is one row, in its workspace, whoever made it. What a physical cluster made of a leaf is shown there; what somebody made
// in the workspace is bound to one cluster, and run there. Both have the label of their mirror, and a bound one the finalizer of
// every leaf besides, which keeps it until it is gone below.

// IsBound says that a pod, of a workspace or as a mirror has it, was made in a workspace and is run by the cluster of its mirror.
func IsBound(pod metav1.Object) bool {
	return slices.Contains(pod.GetFinalizers(), workloadv1alpha1.SyncerFinalizer)
}

// Holds says that an object is one of its kind's roots or leaves: of pods, those that were made in a workspace, to be run; of ReplicaSets, those
// that are no Deployment's. What is known of it may be its metadata alone.
func (k Kind) Holds(obj metav1.Object) bool {
	switch {
	case !k.MadeBelow:
		return true
	case k.Goes != Bound:
		return !IsRevision(obj)
	case IsBound(obj):
		return true
	}
	if _, shown := obj.GetLabels()[workloadv1alpha1.MirrorLabel]; shown {
		return false
	}
	owner := metav1.GetControllerOfNoCopy(obj)
	return owner == nil || !makesItsPodsBelow(owner)
}

// makesItsPodsBelow says that an owner's pods are made by controllers of physical clusters. One that is in the workspace all the same
// belongs to nobody below.
func makesItsPodsBelow(owner *metav1.OwnerReference) bool {
	k, ok := ByKind(owner.Kind)
	return ok && k.MakesPods() && k.GVK.GroupKind() == schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind()
}

// podTemplate is a pod as a template of itself, without what the workspace's admission mounts into each.
func podTemplate(obj ctrlclient.Object) *corev1.PodTemplateSpec {
	pod := obj.(*corev1.Pod)
	t := &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations}, Spec: pod.Spec}
	dropAPIAccess(&t.Spec)
	return t
}

// podContent is what of a pod goes down: its spec without what is decided again below. A physical cluster's admission refuses a pod
// whose priority or overhead is not what it works out itself.
func podContent(root ctrlclient.Object) ctrlclient.Object {
	out := &corev1.Pod{Spec: *root.(*corev1.Pod).Spec.DeepCopy()}
	spec, access := &out.Spec, APIAccessOf(root)
	if access == NoAPIAccess {
		dropAPIAccess(spec)
	}
	podsContent(spec, access)
	if IsToldNamespace(root) { // its annotations are its view's to write
		readTold(spec)
	}
	spec.Priority, spec.PreemptionPolicy = nil, nil
	spec.Overhead = nil
	spec.Tolerations = slices.DeleteFunc(spec.Tolerations, isDefaultToleration)
	forEachTerm(spec, withoutMerged)
	spec.SchedulingGates = nil // bound, it has none
	spec.DeprecatedServiceAccount = ""
	return out
}

// forEachTerm calls f with what selects other pods in a spec: a selector, and the keys of the pod's own labels beside it that are to be alike, and
// to be not. Constraints of a topology have none of the latter.
func forEachTerm(spec *corev1.PodSpec, f func(selector *metav1.LabelSelector, alike, unlike *[]string)) {
	for i := range spec.TopologySpreadConstraints {
		c := &spec.TopologySpreadConstraints[i]
		f(c.LabelSelector, &c.MatchLabelKeys, new([]string))
	}
	terms := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		for i := range required {
			f(required[i].LabelSelector, &required[i].MatchLabelKeys, &required[i].MismatchLabelKeys)
		}
		for i := range preferred {
			t := &preferred[i].PodAffinityTerm
			f(t.LabelSelector, &t.MatchLabelKeys, &t.MismatchLabelKeys)
		}
	}
	if spec.Affinity == nil {
		return
	}
	if a := spec.Affinity.PodAffinity; a != nil {
		terms(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if a := spec.Affinity.PodAntiAffinity; a != nil {
		terms(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
	}
}

// withoutMerged takes out the keys by which the workspace's API server has merged labels into a selector, when the pod was made: a physical cluster's
// refuses a key of which the selector says something already. The selector stays, since it says the same: who changes the pod's labels changes
// nothing of it.
func withoutMerged(selector *metav1.LabelSelector, alike, unlike *[]string) {
	if selector == nil {
		return
	}
	drop := func(keys *[]string, operator metav1.LabelSelectorOperator) {
		left := slices.DeleteFunc(slices.Clone(*keys), func(key string) bool {
			return slices.ContainsFunc(selector.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool { return r.Key == key && r.Operator == operator })
		})
		if *keys = left; len(left) == 0 {
			*keys = nil
		}
	}
	drop(alike, metav1.LabelSelectorOpIn)
	drop(unlike, metav1.LabelSelectorOpNotIn)
}

// isDefaultToleration says that a toleration is what admission gives each pod that has none for its key.
func isDefaultToleration(t corev1.Toleration) bool {
	return (t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable) && t.Operator == corev1.TolerationOpExists && t.Value == "" &&
		t.Effect == corev1.TaintEffectNoExecute && ptr.Deref(t.TolerationSeconds, 0) == 300
}

// dropAPIAccess takes out of a pod's spec, which it does not share with the pod afterwards, the volume with a token of its
// ServiceAccount that admission mounts into each.
func dropAPIAccess(spec *corev1.PodSpec) {
	name := ""
	for _, v := range spec.Volumes {
		if isAPIAccess(v) {
			name = v.Name
		}
	}
	if name == "" {
		return
	}
	spec.Volumes = slices.DeleteFunc(slices.Clone(spec.Volumes), func(v corev1.Volume) bool { return v.Name == name })
	unmount(spec, name)
}

// unmount takes out of a pod's containers, which it does not share with the pod afterwards, what mounts a volume.
func unmount(spec *corev1.PodSpec, volume string) {
	from := func(mounts *[]corev1.VolumeMount) {
		*mounts = slices.DeleteFunc(slices.Clone(*mounts), func(m corev1.VolumeMount) bool { return m.Name == volume })
	}
	for _, containers := range []*[]corev1.Container{&spec.InitContainers, &spec.Containers} {
		*containers = slices.Clone(*containers)
		for i := range *containers {
			from(&(*containers)[i].VolumeMounts)
		}
	}
	spec.EphemeralContainers = slices.Clone(spec.EphemeralContainers)
	for i := range spec.EphemeralContainers {
		from(&spec.EphemeralContainers[i].VolumeMounts)
	}
}

// isAPIAccess says that a volume is the one that admission mounts, by its name and by what is in it.
func isAPIAccess(v corev1.Volume) bool {
	return strings.HasPrefix(v.Name, admittedVolumePrefix) && v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, isToken)
}

// podEnded says that nothing of a pod runs any more.
func podEnded(obj ctrlclient.Object) bool {
	phase := obj.(*corev1.Pod).Status.Phase
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

// podStays: what nobody would make again elsewhere is not ended.
func podStays(obj ctrlclient.Object) *Reason {
	if metav1.GetControllerOfNoCopy(obj) != nil {
		return nil
	}
	return &Reason{Reason: "NoOwner", Message: "nobody would make the pod again, since it has no controller. Delete it, and make it anew, to have it elsewhere"}
}

func podPods(obj ctrlclient.Object) (wanted, ready int32) {
	if podEnded(obj) {
		return 0, 0
	}
	if IsReady(obj.(*corev1.Pod)) {
		ready = 1
	}
	return 1, ready
}

// IsReady says that a pod serves.
func IsReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
