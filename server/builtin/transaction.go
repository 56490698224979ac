package builtin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	api "k8s.io/kubernetes/pkg/apis/core"

	"atoll.dev/atoll/internal/logicalcluster"
)

// releaseTimeout bounds giving locks back after the request that held them is over.
const releaseTimeout = 10 * time.Second

// owner is the Service for which locks are taken: this incarnation of it.
type owner struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
}

func ownerOf(svc *api.Service) owner {
	return owner{Namespace: svc.Namespace, Name: svc.Name, UID: svc.UID}
}

// transaction is one write of one Service: a create or an update with all its attempts, or what follows a deletion.
type transaction struct {
	ctx     context.Context
	cluster logicalcluster.Cluster
	owner   owner
	ips     claims[netip.Addr]
	ports   claims[int]
}

type transactionKey struct{}

// withTransaction starts a transaction in the request's logical cluster and puts it into the returned context.
func withTransaction(ctx context.Context) (context.Context, *transaction, error) {
	cluster, ok := logicalcluster.ClusterFrom(ctx)
	if !ok || cluster.Wildcard || cluster.Name == "" {
		return nil, nil, apierrors.NewInternalError(fmt.Errorf("a Service is written without a logical cluster in the context"))
	}
	t := &transaction{ctx: ctx, cluster: cluster}
	return context.WithValue(ctx, transactionKey{}, t), t, nil
}

func transactionFrom(ctx context.Context) (*transaction, error) {
	t, ok := ctx.Value(transactionKey{}).(*transaction)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("a Service is written past its registry"))
	}
	return t, nil
}

// finish gives up the locks that the outcome of the write, err, leaves without a holder.
func (t *transaction) finish(err error, a *allocation) {
	o := outcomeOf(err)
	if o == uncertain {
		klog.FromContext(t.ctx).Info("Keeping the locks of a Service whose write may have been stored", "cluster", t.cluster, "service", klog.KRef(t.owner.Namespace, t.owner.Name), "err", err)
	}
	t.unlock(a, t.ips.unlock(o), t.ports.unlock(o))
}

func (t *transaction) unlock(a *allocation, ips []netip.Addr, ports []int) {
	if len(ips)+len(ports) == 0 {
		return
	}
	// The request's context may be cancelled by now; its values are still needed.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), releaseTimeout)
	defer cancel()
	for _, ip := range ips {
		if err := a.ips.release(ctx, ip, t.owner); err != nil {
			t.logLeft(err, "IPAddress", ip.String())
		}
	}
	for _, port := range ports {
		if err := a.ports.release(ctx, port, t.owner); err != nil {
			t.logLeft(err, "nodePort", port)
		}
	}
}

func (t *transaction) logLeft(err error, kind string, lock any) {
	klog.FromContext(t.ctx).Error(err, "A lock stays until it is taken over", kind, lock, "cluster", t.cluster, "service", klog.KRef(t.owner.Namespace, t.owner.Name))
}

// attempt starts an attempt to write svc. What an earlier attempt locked is used again, unless the Service has become
// another one since: a generated name that was taken is generated anew.
func (t *transaction) attempt(svc *api.Service, a *allocation) {
	t.ips.retry()
	t.ports.retry()
	if next := ownerOf(svc); next != t.owner {
		ips, ports := t.ips.spare, t.ports.spare
		t.ips.spare, t.ports.spare = nil, nil
		t.unlock(a, ips, ports)
		t.owner = next
	}
}

// failed ends an attempt that was not written.
func (t *transaction) failed() {
	t.ips.retry()
	t.ports.retry()
}

// outcomeOf reads the outcome of a write from its error. A refusal is an answer about the request (4xx); a timeout, a
// cancelled request and any error of storage may come after the Service was stored.
func outcomeOf(err error) outcome {
	if err == nil {
		return written
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return uncertain
	}
	code := status.Status().Code
	if code >= 400 && code < 500 && code != http.StatusRequestTimeout && status.Status().Reason != metav1.StatusReasonTimeout {
		return refused
	}
	return uncertain
}

// about makes ctx, that of a write of a Service, one for a resource of version v1 of the same logical cluster. Stores
// take the namespace and the words of errors from it, and declarative validation its version.
func about(ctx context.Context, group, resource, namespace string) context.Context {
	ctx = genericapirequest.WithNamespace(ctx, namespace)
	return genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{APIGroup: group, APIVersion: "v1", Resource: resource, Namespace: namespace})
}
