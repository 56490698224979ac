package admission

import (
	"context"
	"errors"
	"fmt"
	"time"

	lc "github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	kubequota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/kubernetes/pkg/quota/v1/install"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/turns"
	"atoll.dev/atoll/server/quota"
)

// ResourceQuota refuses what would use more than the ResourceQuotas of its namespace allow, and charges them for what it
// lets through, as kube-apiserver's plugin does. That one works through goroutines and a queue that know namespaces and no
// logical clusters; here a request does its own work, one at a time for each namespace.
type ResourceQuota struct {
	*admission.Handler
	objects Objects
	charge  ChargeQuota
	charges *quota.Charges
	turns   *turns.Turns[string] // by logical cluster and namespace; other processes are kept out by the resourceVersion
}

var resourceQuotas = schema.GroupResource{Resource: "resourcequotas"}

// ChargeQuota writes the status of a ResourceQuota that is still as it was read; else it returns a conflict.
type ChargeQuota func(ctx context.Context, read *corev1.ResourceQuota) error

const (
	// attempts to charge while others do.
	attempts = 10
	// patience is how long a request waits for its turn and charges.
	patience = 10 * time.Second
	// maxQuotas of a namespace: each is charged by a write of its own for every creation that it limits.
	maxQuotas = 20
	// maxWaiting is how many requests wait for their turn in one namespace. How many of a workspace do, server/fairness bounds.
	maxWaiting = 100
)

var errPatience = errors.New("not done in time")

// NewResourceQuota returns the plugin.
func NewResourceQuota(objects Objects, charge ChargeQuota, charges *quota.Charges) *ResourceQuota {
	return &ResourceQuota{
		Handler: admission.NewHandler(admission.Create, admission.Update), objects: objects, charge: charge, charges: charges,
		turns: turns.New[string](maxWaiting + 1), // one charges
	}
}

// Validate is called after everything else, so that nothing is charged for what is refused.
func (q *ResourceQuota) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	resource := a.GetResource().GroupResource()
	if _, ignored := install.DefaultIgnoredResources()[resource]; ignored || a.GetNamespace() == "" || resource == namespaces {
		return nil
	}
	cluster, ok := logicalcluster.ClusterFrom(ctx)
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("ResourceQuota of %s %s: the request names no logical cluster", a.GetOperation(), resource))
	}
	evaluator := quota.Evaluator(resource, nil)
	if cluster.Mirror || !evaluator.Handles(a) {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errPatience)
	defer cancel()
	all := lister[corev1.ResourceQuota, *corev1.ResourceQuota]{scope{ctx, q.objects}, resourceQuotas, a.GetNamespace()}
	isNew := resource == resourceQuotas && a.GetOperation() == admission.Create && a.GetSubresource() == ""
	found, err := all.list(labels.Everything(), !isNew)
	if err != nil || len(found) == 0 {
		return err
	}
	// Those that are made at the same moment do not see each other: it may become a few more.
	if isNew && len(found) >= maxQuotas {
		return admission.NewForbidden(a, fmt.Errorf("namespace %q has %d ResourceQuotas, and may have %d", a.GetNamespace(), len(found), maxQuotas))
	}
	end, err := q.turns.Take(ctx, cluster.Name.String()+"/"+a.GetNamespace())
	switch { // nothing has been done
	case errors.Is(err, turns.ErrTooMany):
		return apierrors.NewTooManyRequests(fmt.Sprintf("%d requests wait for the ResourceQuotas of namespace %q already", maxWaiting, a.GetNamespace()), 1)
	case err != nil:
		return apierrors.NewTooManyRequests(fmt.Sprintf("the ResourceQuotas of namespace %q were busy with other requests: %v", a.GetNamespace(), err), 1)
	}
	defer end()
	charged := map[types.UID]bool{}
	for range attempts {
		if err = q.try(ctx, cluster.Name, a, evaluator, all, charged); !apierrors.IsConflict(err) {
			break
		}
	}
	return err
}

// try charges the ResourceQuotas as they are in etcd, but for those charged already, to which it adds. If it could charge
// some and not all, those are charged for nothing until they are counted again: refused too early, not let through too much.
func (q *ResourceQuota) try(ctx context.Context, cluster lc.Name, a admission.Attributes, evaluator kubequota.Evaluator, all lister[corev1.ResourceQuota, *corev1.ResourceQuota], charged map[types.UID]bool) error {
	found, err := all.List(labels.Everything())
	if err != nil {
		return err
	}
	var before []corev1.ResourceQuota
	for _, one := range found {
		if !charged[one.UID] {
			before = append(before, *one)
		}
	}
	after, err := resourcequota.CheckRequest(before, a, evaluator, nil)
	if err != nil || a.IsDryRun() {
		return err
	}
	for i := range after {
		if kubequota.Equals(before[i].Status.Used, after[i].Status.Used) {
			continue
		}
		q.charges.Begin(ctx, client.Key{Cluster: cluster, Namespace: after[i].Namespace, Name: after[i].Name})
		if err := q.charge(ctx, &after[i]); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		charged[after[i].UID] = true
	}
	return nil
}
