package admission

import (
	"context"
	"fmt"
	"slices"

	lc "github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	"atoll.dev/atoll/internal/logicalcluster"
)

var definitions = schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}

// Definitions refuses CustomResourceDefinitions beyond the number that a workspace may have: each is in the server's memory,
// decoded. It counts those that are known: of many that are made at the same moment a few more may pass.
type Definitions struct {
	*admission.Handler
	count  func(lc.Name) int
	most   func(lc.Name) int
	called func(lc.Name) string
}

// NewDefinitions returns the plugin. count is how many a logical cluster has, most how many it may have, and called how people call
// it.
func NewDefinitions(count, most func(lc.Name) int, called func(lc.Name) string) *Definitions {
	return &Definitions{Handler: admission.NewHandler(admission.Create), count: count, most: most, called: called}
}

// Validate implements admission.ValidationInterface.
func (d *Definitions) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != definitions || a.GetSubresource() != "" || slices.Contains(a.GetUserInfo().GetGroups(), user.SystemPrivilegedGroup) {
		return nil
	}
	cluster, ok := logicalcluster.ClusterFrom(ctx)
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("%s %s: the request names no logical cluster", a.GetOperation(), definitions))
	}
	if has, most := d.count(cluster.Name), d.most(cluster.Name); has >= most {
		return admission.NewForbidden(a, fmt.Errorf("workspace %q has %d CustomResourceDefinitions, and may have %d: delete some, or ask an administrator of the server, who may make more, or raise --max-definitions-per-workspace, or %s of the workspace's LogicalCluster",
			d.called(cluster.Name), has, most, corev1alpha1.LimitDefinitionsAnnotation))
	}
	return nil
}
