package admission

import (
	"context"
	"fmt"
	"slices"

	lc "github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	"atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/customresources"
)

var definitions = schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}

// Definitions refuses CustomResourceDefinitions beyond what a workspace may have: each is in the server's memory, decoded. It
// counts those that are known: of many that are made at the same moment a few more may pass. It has to come after all that
// changes objects: upstream looks at all schemas, and compiles all expressions, before any plugin validates.
type Definitions struct {
	*admission.Handler
	has    func(lc.Name) (number int, weight customresources.Weight)
	may    func(lc.Name) (number int, bytes int64)
	called func(lc.Name) string
}

// NewDefinitions returns the plugin. has is how many a logical cluster has and what they take together, may how many it may
// have and how much memory they may take, and called how people call it.
func NewDefinitions(has func(lc.Name) (int, customresources.Weight), may func(lc.Name) (int, int64), called func(lc.Name) string) *Definitions {
	return &Definitions{Handler: admission.NewHandler(admission.Create, admission.Update), has: has, may: may, called: called}
}

// Admit implements admission.MutationInterface, and changes nothing.
func (d *Definitions) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	crd, ok := a.GetObject().(*apiextensions.CustomResourceDefinition)
	if !ok || a.GetResource().GroupResource() != definitions {
		return nil
	}
	if err := customresources.WhyCut(crd); err != nil {
		return admission.NewForbidden(a, err)
	}
	now, before := customresources.Weigh(crd), customresources.Weight{}
	if old, ok := a.GetOldObject().(*apiextensions.CustomResourceDefinition); ok {
		before = customresources.Weigh(old)
	}
	if now.Bytes <= before.Bytes && now.Rules <= before.Rules && now.Compiled <= before.Compiled {
		return nil // what is there can be changed
	}
	if err := now.Over(); err != nil {
		return admission.NewForbidden(a, err)
	}
	if isPrivileged(a) {
		return nil
	}
	cluster, err := clusterOf(ctx, a)
	if err != nil {
		return err
	}
	_, have := d.has(cluster)
	_, most := d.may(cluster)
	if sum := have.Sum() - before.Sum() + now.Sum(); sum > most {
		return admission.NewForbidden(a, fmt.Errorf("the CustomResourceDefinitions of workspace %q would take %s of memory, and may take %s: %s delete some, or ask an administrator of the server, who may make more, or raise --max-definition-bytes-per-workspace, or %s of the workspace's LogicalCluster",
			d.called(cluster), customresources.MiB(sum), customresources.MiB(most), weighs(now), corev1alpha1.LimitDefinitionBytesAnnotation))
	}
	return nil
}

// weighs says what a definition takes.
func weighs(w customresources.Weight) string {
	if w.Rules == 0 {
		return fmt.Sprintf("this one takes %s;", customresources.MiB(w.Sum()))
	}
	return fmt.Sprintf("this one takes %s, with %d expressions;", customresources.MiB(w.Sum()), w.Rules)
}

// Validate implements admission.ValidationInterface.
func (d *Definitions) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetOperation() != admission.Create || a.GetResource().GroupResource() != definitions || a.GetSubresource() != "" || isPrivileged(a) {
		return nil
	}
	cluster, err := clusterOf(ctx, a)
	if err != nil {
		return err
	}
	has, _ := d.has(cluster)
	if most, _ := d.may(cluster); has >= most {
		return admission.NewForbidden(a, fmt.Errorf("workspace %q has %d CustomResourceDefinitions, and may have %d: delete some, or ask an administrator of the server, who may make more, or raise --max-definitions-per-workspace, or %s of the workspace's LogicalCluster",
			d.called(cluster), has, most, corev1alpha1.LimitDefinitionsAnnotation))
	}
	return nil
}

func isPrivileged(a admission.Attributes) bool {
	return slices.Contains(a.GetUserInfo().GetGroups(), user.SystemPrivilegedGroup)
}

func clusterOf(ctx context.Context, a admission.Attributes) (lc.Name, error) {
	cluster, ok := logicalcluster.ClusterFrom(ctx)
	if !ok {
		return "", apierrors.NewInternalError(fmt.Errorf("%s %s: the request names no logical cluster", a.GetOperation(), definitions))
	}
	return cluster.Name, nil
}
