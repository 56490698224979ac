package admission

import (
	"context"
	"maps"
	"slices"

	lc "github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	"atoll.dev/atoll/internal/logicalcluster"
)

// Nowhere warns who applies something to run that nothing would run it now, or not as its annotations wish, and who writes
// such a wish on a Namespace or a LogicalCluster, or as a PlacementPolicy's default. It refuses nothing: a cluster may come.
type Nowhere struct {
	*admission.Handler
	why    WhyNowhere
	placed []schema.GroupResource
}

// WhyNowhere says why an object with these annotations would run nowhere, or not as it wishes, and "" if all is well. The
// namespace of a Namespace and of a LogicalCluster is empty, and a PlacementPolicy has its default's.
type WhyNowhere func(cluster lc.Name, resource schema.GroupResource, namespace, name string, annotations map[string]string) string

// NewNowhere returns the plugin for what is placed: workloads, and what may be placed apart from them.
func NewNowhere(placed []schema.GroupResource, why WhyNowhere) *Nowhere {
	return &Nowhere{Handler: admission.NewHandler(admission.Create, admission.Update), why: why, placed: placed}
}

// placementPolicies have a wish for what wishes nothing below.
var placementPolicies = schema.GroupResource{Group: placementv1alpha1.GroupVersion.Group, Resource: "placementpolicies"}

// holders have wishes for what is in them.
var holders = []schema.GroupResource{
	{Resource: "namespaces"},
	{Group: corev1alpha1.GroupVersion.Group, Resource: "logicalclusters"},
}

// Validate adds the warning.
func (n *Nowhere) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	cluster, ok := logicalcluster.ClusterFrom(ctx)
	resource := a.GetResource().GroupResource()
	holds := slices.Contains(holders, resource)
	if !ok || cluster.Mirror || a.GetSubresource() != "" || !holds && !slices.Contains(n.placed, resource) && resource != placementPolicies || isRevision(a) {
		return nil
	}
	object, err := meta.Accessor(a.GetObject())
	if err != nil {
		return err
	}
	wish := object.GetAnnotations()
	if policy, ok := a.GetObject().(*placementv1alpha1.PlacementPolicy); ok {
		if policy.Spec.Default == nil {
			return nil
		}
		wish = policy.Spec.Default.Annotations()
	}
	namespace := a.GetNamespace()
	if holds {
		namespace = "" // that of a Namespace is itself here
	}
	if holds && a.GetOperation() == admission.Update {
		old, err := meta.Accessor(a.GetOldObject())
		if err != nil {
			return err
		}
		if maps.Equal(old.GetAnnotations(), wish) {
			return nil // controllers write them too, and cannot mend the wish
		}
	}
	if why := n.why(cluster.Name, resource, namespace, object.GetName(), wish); why != "" {
		warning.AddWarning(ctx, "", why)
	}
	return nil
}
