package builtin

import (
	"context"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	podrest "k8s.io/kubernetes/pkg/registry/core/pod/rest"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"

	"atoll.dev/atoll/internal/logicalcluster"
)

// errElsewhere answers what would need a way from this server to where pods run. Upstream's handlers would dial the
// addresses in the statuses of pods, endpoints and nodes, which a tenant can write: from here that is a way into the
// server's own network. So they are never reached.
func errElsewhere() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusNotImplemented,
		Reason:  "NotImplemented",
		Message: "pods run in physical clusters; debugging through the workspace comes with a later version",
	}}
}

// podsElsewhere says where pods are to who lists those of a namespace and finds none. kubectl logs and kubectl exec on a
// Deployment wait for a pod for up to a minute, and can only be told why: the wait is theirs.
type podsElsewhere struct {
	*podstore.REST
}

func (p podsElsewhere) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	list, err := p.REST.List(ctx, options)
	cluster, ok := logicalcluster.ClusterFrom(ctx)
	if err != nil || !ok || cluster.Mirror || cluster.Wildcard || genericapirequest.NamespaceValue(ctx) == "" {
		return list, err
	}
	if meta.LenList(list) == 0 {
		warning.AddWarning(ctx, "", "pods of workloads run in physical clusters and are not shown in a workspace yet, nor are their logs: kubectl get deployments,placements tells how they are")
	}
	return list, nil
}

// connecter is a subresource that hands the connection to a handler: exec, attach, portforward, proxy.
type connecter interface {
	rest.Storage
	rest.Connecter
}

// elsewhere shows a connecter in discovery and refuses to connect. What does not exist is still not found.
type elsewhere struct {
	connecter
	parent rest.Getter
}

func (e elsewhere) Connect(ctx context.Context, name string, _ runtime.Object, _ rest.Responder) (http.Handler, error) {
	if _, err := e.parent.Get(ctx, name, &metav1.GetOptions{}); err != nil {
		return nil, err
	}
	return nil, errElsewhere()
}

// proxyElsewhere is elsewhere for proxies, whose name may carry a scheme and a port ("https:web:443"), which is not the
// parent's name.
type proxyElsewhere struct {
	connecter
}

func (proxyElsewhere) Connect(context.Context, string, runtime.Object, rest.Responder) (http.Handler, error) {
	return nil, errElsewhere()
}

type logElsewhere struct {
	*podrest.LogREST
	pods rest.Getter
}

func (l logElsewhere) Get(ctx context.Context, name string, _ runtime.Object) (runtime.Object, error) {
	if _, err := l.pods.Get(ctx, name, &metav1.GetOptions{}); err != nil {
		return nil, err
	}
	return nil, errElsewhere()
}

// evictionElsewhere refuses evictions: upstream's looks for disruption budgets with a context of its own, so it could
// not know in which logical cluster.
type evictionElsewhere struct {
	*podstore.EvictionREST
	pods rest.Getter
}

func (e evictionElsewhere) Create(ctx context.Context, name string, _ runtime.Object, _ rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	if _, err := e.pods.Get(ctx, name, &metav1.GetOptions{}); err != nil {
		return nil, err
	}
	return nil, errElsewhere()
}
