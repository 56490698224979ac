package admission

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/core"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/logicalcluster"
)

// Resized refuses what the physical cluster of a pod says that it refuses: who resizes a pod is told at once, and nothing is
// charged for it. It is the last but for the quotas: what anybody here refuses, nobody there is asked for.
type Resized struct {
	*admission.Handler
	mayResize MayResize
}

// MayResize returns why the physical cluster that a pod of ctx's logical cluster runs in refuses what is resized of it, in
// words; nil if it takes that, or cannot be asked now.
type MayResize func(ctx context.Context, pod *core.Pod) error

// NewResized returns the plugin.
func NewResized(mayResize MayResize) *Resized {
	return &Resized{Handler: admission.NewHandler(admission.Update), mayResize: mayResize}
}

// Validate asks, where anything changes of a pod that runs in a physical cluster.
func (r *Resized) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if cluster, ok := logicalcluster.ClusterFrom(ctx); !ok || cluster.Mirror || a.GetSubresource() != "resize" || a.GetResource().GroupResource() != pods {
		return nil
	}
	old, was := a.GetOldObject().(*core.Pod)
	now, is := a.GetObject().(*core.Pod)
	if !was || !is || old.Labels[workloadv1alpha1.MirrorLabel] == "" || equality.Semantic.DeepEqual(old.Spec, now.Spec) {
		return nil
	}
	if err := r.mayResize(ctx, now); err != nil {
		return admission.NewForbidden(a, err)
	}
	return nil
}
