package admission

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	kubequota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/kubernetes/pkg/quota/v1/install"

	"atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/quota"
)

// ResourceQuota refuses what would use more than the ResourceQuotas of its namespace allow, and charges them for what it
// lets through, as kube-apiserver's plugin does. That one works through goroutines and a queue that know namespaces and no
// logical clusters; here a request does its own work, one at a time for each namespace.
type ResourceQuota struct {
	*admission.Handler
	objects Objects
	charge  ChargeQuota
	turns   turns
}

// ChargeQuota writes the status of a ResourceQuota that is still as it was read; else it returns a conflict.
type ChargeQuota func(ctx context.Context, read *corev1.ResourceQuota) error

// attempts to charge while others do.
const attempts = 10

// NewResourceQuota returns the plugin.
func NewResourceQuota(objects Objects, charge ChargeQuota) *ResourceQuota {
	return &ResourceQuota{Handler: admission.NewHandler(admission.Create, admission.Update), objects: objects, charge: charge}
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
	all := lister[corev1.ResourceQuota, *corev1.ResourceQuota]{scope{ctx, q.objects}, corev1.Resource("resourcequotas"), a.GetNamespace()}
	found, err := all.list(labels.Everything(), true)
	if err != nil || len(found) == 0 {
		return err
	}
	defer q.turns.take(cluster.Name.String() + "/" + a.GetNamespace())()
	for range attempts {
		if err = q.try(ctx, a, evaluator, all); !apierrors.IsConflict(err) {
			break
		}
	}
	return err
}

// try charges the ResourceQuotas as they are in etcd. If it could charge some and not all, those are charged twice until they
// are counted again: refused too early, never let through too much.
func (q *ResourceQuota) try(ctx context.Context, a admission.Attributes, evaluator kubequota.Evaluator, all lister[corev1.ResourceQuota, *corev1.ResourceQuota]) error {
	found, err := all.List(labels.Everything())
	if err != nil {
		return err
	}
	before := make([]corev1.ResourceQuota, len(found))
	for i := range found {
		before[i] = *found[i]
	}
	after, err := resourcequota.CheckRequest(before, a, evaluator, nil)
	if err != nil || a.IsDryRun() {
		return err
	}
	for i := range after {
		if kubequota.Equals(before[i].Status.Used, after[i].Status.Used) {
			continue
		}
		if err := q.charge(ctx, &after[i]); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// turns are locks by namespace and logical cluster, which keep requests of one process from conflicting; other processes
// are kept out by the resourceVersion. There are those that somebody holds or waits for.
type turns struct {
	mu    sync.Mutex // guards the map and the counts in it
	taken map[string]*turn
}

type turn struct {
	sync.Mutex
	users int
}

// take waits for one's turn, and returns what ends it.
func (t *turns) take(key string) (end func()) {
	t.mu.Lock()
	if t.taken == nil {
		t.taken = map[string]*turn{}
	}
	mine := t.taken[key]
	if mine == nil {
		mine = &turn{}
		t.taken[key] = mine
	}
	mine.users++
	t.mu.Unlock()
	mine.Lock()
	return func() {
		mine.Unlock()
		t.mu.Lock()
		defer t.mu.Unlock()
		if mine.users--; mine.users == 0 {
			delete(t.taken, key)
		}
	}
}
