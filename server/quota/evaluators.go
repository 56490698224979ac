package quota

import (
	"errors"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubequota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	"k8s.io/utils/clock"
)

// List lists the objects of a resource in a namespace.
type List func(resource schema.GroupResource, namespace string) ([]runtime.Object, error)

// aliases are the names that objects of some resources are counted by beside count/RESOURCE.
var aliases = map[schema.GroupResource]corev1.ResourceName{
	{Resource: "configmaps"}:             corev1.ResourceConfigMaps,
	{Resource: "resourcequotas"}:         corev1.ResourceQuotas,
	{Resource: "replicationcontrollers"}: corev1.ResourceReplicationControllers,
	{Resource: "secrets"}:                corev1.ResourceSecrets,
}

// countPrefix starts the names under which objects of any resource are counted: count/deployments.apps.
const countPrefix = "count/"

// Evaluator measures the objects of a resource as Kubernetes does. Without list it measures single objects only.
func Evaluator(resource schema.GroupResource, list List) kubequota.Evaluator {
	listers := func(gvr schema.GroupVersionResource) (cache.GenericLister, error) {
		return lister{list: list, resource: gvr.GroupResource()}, nil
	}
	switch resource {
	case schema.GroupResource{Resource: "pods"}:
		return core.NewPodEvaluator(listers, clock.RealClock{})
	case schema.GroupResource{Resource: "services"}:
		return core.NewServiceEvaluator(listers)
	case schema.GroupResource{Resource: "persistentvolumeclaims"}:
		return core.NewPersistentVolumeClaimEvaluator(listers)
	}
	return generic.NewObjectCountEvaluator(resource, generic.ListResourceUsingListerFunc(listers, resource.WithVersion("")), aliases[resource])
}

// counted is the evaluator of a resource of which nothing but the number is known. ResourceQuotas with scopes, which are of pods and
// claims, cannot limit numbers of objects.
type counted struct {
	kubequota.Evaluator
	count func(namespace string) (int64, error)
}

// UsageStats implements kubequota.Evaluator.
func (c counted) UsageStats(o kubequota.UsageStatsOptions) (kubequota.UsageStats, error) {
	number, err := c.count(o.Namespace)
	if err != nil {
		return kubequota.UsageStats{}, err
	}
	used := corev1.ResourceList{}
	for _, name := range o.Resources {
		used[name] = *resource.NewQuantity(number, resource.DecimalSI)
	}
	return kubequota.UsageStats{Used: used}, nil
}

// byNames are evaluators of the resources that have names of their own in ResourceQuotas, beside count/RESOURCE. They list
// nothing.
var byNames = func() []kubequota.Evaluator {
	all := []kubequota.Evaluator{
		Evaluator(schema.GroupResource{Resource: "pods"}, nil), Evaluator(schema.GroupResource{Resource: "services"}, nil),
		Evaluator(schema.GroupResource{Resource: "persistentvolumeclaims"}, nil),
	}
	for resource := range aliases {
		all = append(all, Evaluator(resource, nil))
	}
	return all
}()

// limitedBy returns the resources that the limits of a ResourceQuota are of, each once, whether they are served or not.
func limitedBy(hard corev1.ResourceList) []schema.GroupResource {
	names := kubequota.ResourceNames(hard)
	limited := map[schema.GroupResource]bool{}
	for _, e := range byNames {
		if len(e.MatchingResources(names)) > 0 {
			limited[e.GroupResource()] = true
		}
	}
	for _, name := range names {
		if counted, ok := strings.CutPrefix(string(name), countPrefix); ok {
			if resource := schema.ParseGroupResource(counted); generic.ObjectCountQuotaResourceNameFor(resource) == name { // or it is of none
				limited[resource] = true
			}
		}
	}
	return slices.Collect(maps.Keys(limited))
}

// limited returns evaluators of the resources that a ResourceQuota limits, of those that there are evaluators of.
func limited(hard corev1.ResourceList, evaluator func(schema.GroupResource) kubequota.Evaluator) []kubequota.Evaluator {
	var all []kubequota.Evaluator
	for _, resource := range limitedBy(hard) {
		if e := evaluator(resource); e != nil {
			all = append(all, e)
		}
	}
	return all
}

// lister is what evaluators list with.
type lister struct {
	list      List
	resource  schema.GroupResource
	namespace string
}

var errNotAsked = errors.New("evaluators list the objects of a namespace")

func (l lister) List(labels.Selector) ([]runtime.Object, error) {
	if l.list == nil || l.namespace == "" {
		return nil, errNotAsked
	}
	return l.list(l.resource, l.namespace)
}

func (lister) Get(string) (runtime.Object, error) { return nil, errNotAsked }

func (l lister) ByNamespace(namespace string) cache.GenericNamespaceLister {
	return lister{list: l.list, resource: l.resource, namespace: namespace}
}
