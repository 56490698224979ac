package admission

import (
	"context"
	"slices"

	lc "github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"

	"atoll.dev/atoll/internal/logicalcluster"
)

// Nowhere warns who applies something to run that nothing would run it now. It refuses nothing: a cluster may come.
type Nowhere struct {
	*admission.Handler
	why       func(cluster lc.Name, namespace string, annotations map[string]string) string
	workloads []schema.GroupResource
}

// NewNowhere returns the plugin for the given workloads. why says why an object with these annotations would run
// nowhere, and "" if something would run it.
func NewNowhere(workloads []schema.GroupResource, why func(cluster lc.Name, namespace string, annotations map[string]string) string) *Nowhere {
	return &Nowhere{Handler: admission.NewHandler(admission.Create, admission.Update), why: why, workloads: workloads}
}

// Validate adds the warning.
func (n *Nowhere) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	cluster, ok := logicalcluster.ClusterFrom(ctx)
	if !ok || cluster.Mirror || a.GetSubresource() != "" || !slices.Contains(n.workloads, a.GetResource().GroupResource()) {
		return nil
	}
	object, err := meta.Accessor(a.GetObject())
	if err != nil {
		return err
	}
	if why := n.why(cluster.Name, a.GetNamespace(), object.GetAnnotations()); why != "" {
		warning.AddWarning(ctx, "", why)
	}
	return nil
}
