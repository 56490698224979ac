package admission

import (
	"context"
	"errors"
	"fmt"
	"time"

	lc "github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	kubequota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/quota/v1/install"

	"atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/turns"
	"atoll.dev/atoll/server/quota"
)

// ResourceQuota refuses what would use more than the ResourceQuotas of its namespace allow, and charges them for what it
// lets through, as kube-apiserver's plugin does. That one works through goroutines and a queue that know namespaces and no
// logical clusters; here a request does its own work, one at a time for each namespace.
type ResourceQuota struct {
	*admission.Handler
	quotas Quotas
	turns  *turns.Turns[string] // by logical cluster and namespace; other processes are kept out by the resourceVersion
}

var resourceQuotas = schema.GroupResource{Resource: "resourcequotas"}

// Quotas are the ResourceQuotas of the logical cluster in ctx, and what the request in ctx was charged: its writes depend on that.
type Quotas interface {
	// BeginCharges forgets what an earlier attempt of the request was charged. again is called if an object of the resource must
	// not be written, since a count did not see it or a limit is new: it charges what is not Charged any more.
	BeginCharges(ctx context.Context, resource schema.GroupResource, again func(context.Context) error) error
	// ListQuotas returns those of a namespace. What limits are new after that is found out by the write.
	ListQuotas(ctx context.Context, namespace string, cached bool) ([]corev1.ResourceQuota, error)
	// Charged says whether the request has charged one, or waits for its count.
	Charged(ctx context.Context, q *corev1.ResourceQuota) (bool, error)
	// CountHolds says whether one whose limits are not counted is not to be charged, nor awaited, until they are.
	CountHolds(ctx context.Context, q *corev1.ResourceQuota) (bool, error)
	// Charge writes the status of one that is still as it was read; else it returns a conflict.
	Charge(ctx context.Context, read *corev1.ResourceQuota) error
	// AwaitCount is for one whose limits are not counted: what the request writes is counted with them, or limited by them. If it is not
	// as it was read any more it returns a conflict.
	AwaitCount(ctx context.Context, read *corev1.ResourceQuota) error
}

const (
	// attempts to charge while others do.
	attempts = 10
	// patience is how long a request waits for its turn and charges.
	patience = 10 * time.Second
	// maxQuotas of a namespace: each is charged by a write of its own for every creation that it limits.
	maxQuotas = 20
	// maxLimits of a ResourceQuota: what is counted and charged is compared with each, and each may be of a resource of its own,
	// whose objects are counted. Kubernetes has no bound, and not half as many resources.
	maxLimits = 500
	// maxWaiting is how many requests wait for their turn in one namespace. How many of a workspace do, server/fairness bounds.
	maxWaiting = 100
)

var errPatience = errors.New("not done in time")

// NewResourceQuota returns the plugin.
func NewResourceQuota(quotas Quotas) *ResourceQuota {
	return &ResourceQuota{
		Handler: admission.NewHandler(admission.Create, admission.Update), quotas: quotas,
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
	if cluster.Mirror {
		return nil
	}
	if resource == resourceQuotas {
		if err := fewLimits(a); err != nil {
			return err
		}
	}
	if !evaluator.Handles(a) {
		return nil
	}
	isNew := resource == resourceQuotas && a.GetOperation() == admission.Create && a.GetSubresource() == ""
	charge := func(ctx context.Context, cached bool) error {
		return q.all(ctx, cluster.Name, a, evaluator, isNew, cached)
	}
	if err := q.quotas.BeginCharges(ctx, resource, func(ctx context.Context) error { return charge(ctx, false) }); err != nil {
		return err
	}
	return charge(ctx, !isNew)
}

// fewLimits refuses a ResourceQuota with too many limits, unless it had as many before.
func fewLimits(a admission.Attributes) error {
	limits := func(object runtime.Object) int {
		q, ok := object.(*core.ResourceQuota)
		if !ok {
			return 0
		}
		return max(len(q.Spec.Hard), len(q.Status.Hard), len(q.Status.Used))
	}
	if has := limits(a.GetObject()); has > maxLimits && has > limits(a.GetOldObject()) {
		return admission.NewForbidden(a, fmt.Errorf("it has %d limits, and may have %d: make several of it", has, maxLimits))
	}
	return nil
}

// all charges all ResourceQuotas of a namespace, but for those charged already.
func (q *ResourceQuota) all(ctx context.Context, cluster lc.Name, a admission.Attributes, evaluator kubequota.Evaluator, isNew, cached bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errPatience)
	defer cancel()
	found, err := q.quotas.ListQuotas(ctx, a.GetNamespace(), cached)
	if err != nil || len(found) == 0 {
		return err
	}
	// Those that are made at the same moment do not see each other: it may become a few more.
	if isNew && len(found) >= maxQuotas {
		return admission.NewForbidden(a, fmt.Errorf("namespace %q has %d ResourceQuotas, and may have %d", a.GetNamespace(), len(found), maxQuotas))
	}
	end, err := q.turns.Take(ctx, cluster.String()+"/"+a.GetNamespace())
	switch { // nothing has been done
	case errors.Is(err, turns.ErrTooMany):
		return apierrors.NewTooManyRequests(fmt.Sprintf("%d requests wait for the ResourceQuotas of namespace %q already", maxWaiting, a.GetNamespace()), 1)
	case err != nil:
		return apierrors.NewTooManyRequests(fmt.Sprintf("the ResourceQuotas of namespace %q were busy with other requests: %v", a.GetNamespace(), err), 1)
	}
	defer end()
	for range attempts {
		if err = q.try(ctx, a, evaluator); !apierrors.IsConflict(err) {
			break
		}
	}
	return err
}

// try charges the ResourceQuotas as they are in etcd, but for those charged already. If it could charge
// some and not all, those are charged for nothing until they are counted again: refused too early, not let through too much.
func (q *ResourceQuota) try(ctx context.Context, a admission.Attributes, evaluator kubequota.Evaluator) error {
	found, err := q.quotas.ListQuotas(ctx, a.GetNamespace(), false)
	if err != nil {
		return err
	}
	var before []corev1.ResourceQuota
	for i := range found {
		charged, err := q.quotas.Charged(ctx, &found[i])
		if err != nil {
			return err
		}
		if !charged {
			before = append(before, found[i])
		}
	}
	after, err := resourcequota.CheckRequest(before, a, evaluator, nil)
	if err != nil || a.IsDryRun() {
		return err
	}
	var uses []int // those that what is written uses something of, or will when they are counted
	for i := range after {
		if isCharge(&before[i], &after[i]) || awaitsCount(&before[i], a, evaluator) {
			uses = append(uses, i)
		}
	}
	for _, i := range uses { // before any is charged
		if err := q.notHeld(ctx, &before[i]); err != nil {
			return err
		}
	}
	for _, i := range uses {
		if isCharge(&before[i], &after[i]) {
			err = q.quotas.Charge(ctx, &after[i])
		} else {
			err = q.quotas.AwaitCount(ctx, &before[i])
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// notHeld returns an error where a count of new limits would not come to an end beside creations.
func (q *ResourceQuota) notHeld(ctx context.Context, of *corev1.ResourceQuota) error {
	if quota.LimitsCounted(of) {
		return nil
	}
	held, err := q.quotas.CountHolds(ctx, of)
	if err != nil || !held {
		return err
	}
	return apierrors.NewTooManyRequests(fmt.Sprintf("ResourceQuota %q of namespace %q is being counted: what uses something of it has to wait for that", of.Name, of.Namespace), 1)
}

func isCharge(before, after *corev1.ResourceQuota) bool {
	return !kubequota.Equals(before.Status.Used, after.Status.Used)
}

// awaitsCount says whether what is written may use something of a ResourceQuota when that is counted, and does not yet.
func awaitsCount(q *corev1.ResourceQuota, a admission.Attributes, evaluator kubequota.Evaluator) bool {
	if quota.LimitsCounted(q) {
		return false
	}
	unused := *q
	unused.Status = corev1.ResourceQuotaStatus{Hard: q.Spec.Hard, Used: corev1.ResourceList{}}
	for name := range q.Spec.Hard {
		unused.Status.Used[name] = resource.Quantity{}
	}
	// What it will refuse it does not refuse yet.
	counted, err := resourcequota.CheckRequest([]corev1.ResourceQuota{unused}, a, evaluator, nil)
	return err != nil || isCharge(&unused, &counted[0])
}
