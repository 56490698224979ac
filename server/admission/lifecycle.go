package admission

import (
	"context"
	"fmt"

	lc "github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/apis/core"

	"atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/storage"
)

// immortal namespaces cannot be deleted in a workspace, as in Kubernetes.
var immortal = sets.New(metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic)

// Lifecycle refuses to create objects, and tokens, bindings and evictions of objects, in namespaces that are absent or
// terminating, and to delete immortal namespaces. It is upstream's NamespaceLifecycle for many logical clusters.
type Lifecycle struct {
	*admission.Handler
	objects     Objects
	terminating func(name lc.Name) bool
}

// NewLifecycle returns the plugin. terminating says whether a logical cluster is being deleted.
func NewLifecycle(objects Objects, terminating func(lc.Name) bool) *Lifecycle {
	return &Lifecycle{Handler: admission.NewHandler(admission.Create, admission.Delete), objects: objects, terminating: terminating}
}

// Admit is called for mutating admission, before defaults are final; lifecycle is decided there, as upstream, so that
// no other plugin acts on an object that cannot be.
func (l *Lifecycle) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	cluster, ok := logicalcluster.ClusterFrom(ctx)
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("%s %s: the request names no logical cluster", a.GetOperation(), a.GetResource().Resource))
	}
	namespaceItself := a.GetKind().GroupKind() == core.Kind("Namespace")
	if a.GetOperation() == admission.Delete {
		// They go with their workspace, by a request if somebody's finalizers hold them.
		goes := a.GetUserInfo().GetName() == user.APIServerUser && l.terminating(cluster.Name)
		if namespaceItself && !cluster.Mirror && !goes && immortal.Has(a.GetName()) {
			return apierrors.NewForbidden(a.GetResource().GroupResource(), a.GetName(), fmt.Errorf("this namespace may not be deleted"))
		}
		return nil
	}
	// Reviews, of access and of who one is, create nothing.
	if group := a.GetResource().Group; group == "authorization.k8s.io" || group == "authentication.k8s.io" {
		return nil
	}
	// Nor do tokens, bindings and evictions, which belong to what is there: who empties a workspace that goes may need them.
	// The server's own controllers finish what they do in it.
	ofAnother := a.GetSubresource() != ""
	if !ofAnother && a.GetUserInfo().GetName() != user.APIServerUser && l.terminating(cluster.Name) {
		return admission.NewForbidden(a, fmt.Errorf("the workspace is being deleted and takes nothing new"))
	}
	// In a mirror they are asked for as long as pods run in the physical cluster.
	if namespaceItself || a.GetNamespace() == "" || ofAnother && cluster.Mirror {
		return nil
	}
	object, err := get(ctx, l.objects, namespaces, metav1.NamespaceNone, a.GetNamespace())
	if err != nil {
		return err
	}
	namespace, ok := object.(*core.Namespace)
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("namespace %q is stored as a %T", a.GetNamespace(), object))
	}
	if namespace.Status.Phase != core.NamespaceTerminating {
		return nil
	}
	return storage.NamespaceEnds(a.GetResource().GroupResource(), a.GetName(), a.GetNamespace())
}
