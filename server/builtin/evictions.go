package builtin

import (
	"context"
	"errors"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	policyclient "k8s.io/client-go/kubernetes/typed/policy/v1"
	"k8s.io/utils/ptr"

	api "k8s.io/kubernetes/pkg/apis/core"
	policyapi "k8s.io/kubernetes/pkg/apis/policy"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// Budgets reaches the PodDisruptionBudgets of one logical cluster, whatever the context of a request says.
type Budgets func(logicalcluster.Name) (policyclient.PodDisruptionBudgetsGetter, error)

// evictions are pods/eviction. What upstream's registry decides by, it asks for with a context of its own, which says of no logical cluster. So there
// is one of it for each eviction, over the same storage.
type evictions struct {
	*podstore.EvictionREST // its types alone
	pods                   podsElsewhere
	budgets                Budgets
	over                   func(policyclient.PodDisruptionBudgetsGetter) (*podstore.EvictionREST, error)
}

func newEvictions(getter generic.RESTOptionsGetter, pods podstore.PodStorage, visible podsElsewhere, cfg Config) (evictions, error) {
	options, err := getter.GetRESTOptions(api.Resource("pods"), &api.Pod{})
	if err != nil {
		return evictions{}, fmt.Errorf("evictions: %w", err)
	}
	same := sameStorage(options, shownStay{pods.Pod.Store.Storage.Storage})
	return evictions{EvictionREST: pods.Eviction, pods: visible, budgets: cfg.Budgets, over: func(budgets policyclient.PodDisruptionBudgetsGetter) (*podstore.EvictionREST, error) {
		again, err := podstore.NewStorage(same, nil, nil, budgets, cfg.Authorizer)
		return again.Eviction, err
	}}, nil
}

// Create evicts a pod of a workspace, if its budget lets it, and ends it as podsElsewhere.Delete does. What a physical cluster shows ends there first, whatever
// its spec and the request say: its row would be gone otherwise, and it be shown again.
func (e evictions) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	if inMirror(ctx) {
		return nil, errShown("evict")
	}
	cluster, err := oneCluster(ctx)
	if err != nil {
		return nil, err
	}
	found, err := e.pods.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	pod, isPod := found.(*api.Pod)
	eviction, isEviction := obj.(*policyapi.Eviction)
	known := isPod && isEviction && eviction.Name == name
	if known {
		eviction = eviction.DeepCopy()
		if eviction.DeleteOptions == nil {
			eviction.DeleteOptions = &metav1.DeleteOptions{}
		}
		eviction.DeleteOptions.GracePeriodSeconds = graceOf(pod, eviction.DeleteOptions.GracePeriodSeconds)
		if pod.Labels[workloadv1alpha1.MirrorLabel] != "" && hasEnded(pod) {
			return e.delete(ctx, eviction, validate, options)
		}
		obj = eviction.DeepCopy() // upstream changes its options
	}
	budgets, err := e.budgets(cluster.Name)
	if err != nil {
		return nil, fmt.Errorf("reach the PodDisruptionBudgets of %s: %w", cluster, err)
	}
	evict, err := e.over(budgets)
	if err != nil {
		return nil, fmt.Errorf("evict %s: %w", name, err)
	}
	done, err := evict.Create(ctx, name, obj, validate, options)
	if known && errors.Is(err, errEndsBelow) {
		return e.delete(ctx, eviction, validate, options)
	}
	return done, err
}

func hasEnded(pod *api.Pod) bool {
	return pod.Status.Phase == api.PodSucceeded || pod.Status.Phase == api.PodFailed
}

// graceOf is how many seconds a pod that is evicted gets, of which so many were asked for; nil for as many as its spec says, or are left to it. Nobody would end
// one that nobody runs. One that a physical cluster shows gets at least one, as its deletion goes down only then.
func graceOf(pod *api.Pod, asked *int64) *int64 {
	if pod.Labels[workloadv1alpha1.MirrorLabel] == "" {
		return ptr.To(int64(0))
	}
	if asked == nil && ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, 0) > 0 {
		return nil
	}
	return ptr.To(max(1, ptr.Deref(asked, 0)))
}

// errEndsBelow is that a pod ends where it is shown, and its row would not wait for that.
var errEndsBelow = errors.New("the pod ends in its physical cluster first")

// shownStay is the storage by which upstream evicts. Upstream looks at the pod again, and by its own rule has one go at once that has ended since it
// was found: then podsElsewhere deletes it.
type shownStay struct{ storage.Interface }

// GuaranteedUpdate returns errEndsBelow instead of a shown pod that would go at once.
func (s shownStay) GuaranteedUpdate(ctx context.Context, key string, into runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object) error {
	return s.Interface.GuaranteedUpdate(ctx, key, into, ignoreNotFound, preconditions, func(now runtime.Object, meta storage.ResponseMeta) (runtime.Object, *uint64, error) {
		before := goesAtOnce(now) // update may change it
		next, ttl, err := update(now, meta)
		if err == nil && goesAtOnce(next) && !before {
			return nil, nil, errEndsBelow
		}
		return next, ttl, err
	}, cached)
}

// goesAtOnce says that a pod is shown, and deleted without time.
func goesAtOnce(obj runtime.Object) bool {
	pod, ok := obj.(*api.Pod)
	return ok && pod.Labels[workloadv1alpha1.MirrorLabel] != "" && pod.DeletionTimestamp != nil && ptr.Deref(pod.DeletionGracePeriodSeconds, 1) == 0
}

// delete deletes a pod that has ended, which no budget holds. Upstream would change it before, so that it is not any more the one that was asked for.
func (e evictions) delete(ctx context.Context, eviction *policyapi.Eviction, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	if err := validate(ctx, eviction.DeepCopy()); err != nil {
		return nil, err
	}
	if len(eviction.DeleteOptions.DryRun) == 0 && options != nil {
		eviction.DeleteOptions.DryRun = options.DryRun
	}
	if _, _, err := e.pods.Delete(ctx, eviction.Name, rest.ValidateAllObjectFunc, eviction.DeleteOptions); err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}
