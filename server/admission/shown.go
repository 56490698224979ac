package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	lc "github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
	"atoll.dev/atoll/internal/logicalcluster"
)

// Shown keeps the pods of a workspace that run in physical clusters from being changed there, and others from being taken for such.
// What it refuses would be undone by the next look at the cluster, or would not be: either way nothing that runs would change. The
// garbage collector, which is the server, takes owners off.
type Shown struct {
	*admission.Handler
	refused RefusedPods
}

// shownMarks are what the server alone writes of such a pod.
var shownMarks = []string{
	workloadv1alpha1.MirrorLabel, workloadv1alpha1.MirrorNamespaceAnnotation, workloadv1alpha1.APIAccessAnnotation, workloadv1alpha1.PodUIDAnnotation,
	workloadv1alpha1.ResizedAnnotation,
}

// NewShown returns the plugin.
func NewShown(refused RefusedPods) *Shown {
	return &Shown{Handler: admission.NewHandler(admission.Create, admission.Update), refused: refused}
}

// Validate refuses it, whatever subresource is written.
func (s *Shown) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	cluster, ok := logicalcluster.ClusterFrom(ctx)
	who := a.GetUserInfo()
	isServer := who.GetName() == user.APIServerUser && slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup)
	if !ok || cluster.Mirror || isServer || !reachesPods(a.GetResource().GroupResource()) {
		return nil
	}
	if old, ok := a.GetOldObject().(*core.Pod); ok && old.Labels[workloadv1alpha1.MirrorLabel] != "" {
		switch a.GetSubresource() { // of both, upstream's strategy has taken off whatever else was written that goes down or is ours
		case "ephemeralcontainers":
			return s.validateAdded(cluster.Name, a, old)
		case "resize":
			return nil // its physical cluster is asked when nobody here has anything against it: Resized
		}
		return validateMarked(a, old)
	}
	// Of a binding too: the pod gets its labels and annotations.
	written, err := meta.Accessor(a.GetObject())
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	for _, mark := range shownMarks {
		_, label := written.GetLabels()[mark]
		if _, annotation := written.GetAnnotations()[mark]; label || annotation {
			return admission.NewForbidden(a, fmt.Errorf("%s is for pods that run in physical clusters, and written by the server alone", mark))
		}
	}
	if kinds.IsBound(written) {
		return admission.NewForbidden(a, fmt.Errorf("the finalizer %s is for pods that run in physical clusters, and written by the server alone", workloadv1alpha1.SyncerFinalizer))
	}
	return nil
}

// releases says that an update takes finalizers off a pod that is being deleted, and does nothing else: one that was made here has ended below, and
// waits for somebody else yet.
func releases(a admission.Attributes, old *core.Pod) bool {
	now, ok := a.GetObject().(*core.Pod)
	if !ok || a.GetSubresource() != "" || old.DeletionTimestamp == nil || !sets.New(old.Finalizers...).IsSuperset(sets.New(now.Finalizers...)) {
		return false
	}
	want := old.ObjectMeta.DeepCopy()
	want.Finalizers, want.ManagedFields, want.ResourceVersion = now.Finalizers, now.ManagedFields, now.ResourceVersion
	return equality.Semantic.DeepEqual(*want, now.ObjectMeta) && equality.Semantic.DeepEqual(old.Spec, now.Spec)
}

// validateMarked refuses what changes a pod that runs in a physical cluster, but for what goes down: besides ephemeral
// containers and resources, of one that was made here, its labels and annotations.
func validateMarked(a admission.Attributes, old *core.Pod) error {
	if !kinds.IsBound(old) {
		if releases(a, old) {
			return nil
		}
		return admission.NewForbidden(a, fmt.Errorf("it runs in the physical cluster %s and is only shown here: change what it belongs to", old.Spec.NodeName))
	}
	now, ok := a.GetObject().(*core.Pod)
	if !ok || a.GetSubresource() != "" {
		return admission.NewForbidden(a, fmt.Errorf("it runs in the physical cluster %s: of a pod that runs, labels, annotations, owners and finalizers can be changed, and no %q", old.Spec.NodeName, a.GetSubresource()))
	}
	if !equality.Semantic.DeepEqual(old.Spec, now.Spec) {
		return admission.NewForbidden(a, fmt.Errorf("it runs in the physical cluster %s: the spec of a pod that runs cannot be changed yet. Delete it, and make it anew", old.Spec.NodeName))
	}
	for _, mark := range shownMarks {
		if old.Labels[mark] != now.Labels[mark] || old.Annotations[mark] != now.Annotations[mark] {
			return admission.NewForbidden(a, fmt.Errorf("%s is written by the server alone", mark))
		}
	}
	if !kinds.IsBound(now) {
		return admission.NewForbidden(a, fmt.Errorf("the finalizer %s keeps the pod until it is gone in the physical cluster %s, and is taken off by the server alone", workloadv1alpha1.SyncerFinalizer, old.Spec.NodeName))
	}
	return nil
}

// mostAdded and mostOfAdded bound the ephemeral containers of a pod, in number and bytes: each is tried below by itself, and never goes away.
const (
	mostAdded   = 16
	mostOfAdded = 32 << 10
)

// namesTokens says that a container has variables of a Secret with tokens, below.
func namesTokens(c *core.EphemeralContainerCommon) bool {
	return slices.ContainsFunc(c.Env, func(v core.EnvVar) bool {
		return v.ValueFrom != nil && v.ValueFrom.SecretKeyRef != nil && kinds.IsTokenSecret(v.ValueFrom.SecretKeyRef.Name)
	}) || slices.ContainsFunc(c.EnvFrom, func(f core.EnvFromSource) bool { return f.SecretRef != nil && kinds.IsTokenSecret(f.SecretRef.Name) })
}

// validateAdded refuses more ephemeral containers than are of use, those that would have other accounts' tokens, and those that its physical cluster refuses
// for what they ask for: they would stay in the pod for good, and who waits for them would wait.
func (s *Shown) validateAdded(cluster lc.Name, a admission.Attributes, old *core.Pod) error {
	now, ok := a.GetObject().(*core.Pod)
	if !ok || len(now.Spec.EphemeralContainers) <= len(old.Spec.EphemeralContainers) {
		return nil // those that are there do not change
	}
	text, err := json.Marshal(now.Spec.EphemeralContainers)
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	for i := range now.Spec.EphemeralContainers {
		c := &now.Spec.EphemeralContainers[i].EphemeralContainerCommon
		was := slices.ContainsFunc(old.Spec.EphemeralContainers, func(was core.EphemeralContainer) bool { return was.Name == c.Name })
		if !was && namesTokens(c) {
			return admission.NewForbidden(a, fmt.Errorf("its container %s names a Secret of those with the tokens that pods talk to the API with, of which a pod has its own ServiceAccount's", c.Name))
		}
	}
	if n := len(now.Spec.EphemeralContainers); n > mostAdded || len(text) > mostOfAdded {
		return admission.NewForbidden(a, fmt.Errorf("it runs in the physical cluster %s and would have %d ephemeral containers, of %d bytes, want at most %d of %d: make a copy of the pod (kubectl debug --copy-to)",
			old.Spec.NodeName, n, len(text), mostAdded, mostOfAdded))
	}
	pod := &corev1.Pod{}
	if err := legacyscheme.Scheme.Convert(now, pod, nil); err != nil {
		return admission.NewForbidden(a, fmt.Errorf("look whether its physical cluster takes them: %w", err))
	}
	pod.Labels = old.Labels
	refused, err := s.refused(cluster, pods, a.GetNamespace(), pod)
	if err != nil {
		return admission.NewForbidden(a, fmt.Errorf("look whether its physical cluster takes them: %w", err))
	}
	if len(refused) > 0 {
		return admission.NewForbidden(a, fmt.Errorf("%s. With --profile=baseline kubectl debug asks for less", strings.Join(refused, "; ")))
	}
	return nil
}

// reachesPods says whether what is written of a resource gets into pods: that of a legacy binding does as that of pods/binding.
func reachesPods(resource schema.GroupResource) bool { return resource == pods || resource == bindings }
