package admission

import (
	"fmt"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	webhookinitializer "k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/admissionregistration"
	admissionregistrationinformers "k8s.io/client-go/informers/admissionregistration/v1"
	admissionregistrationlisters "k8s.io/client-go/listers/admissionregistration/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	storedregistration "k8s.io/kubernetes/pkg/apis/admissionregistration"

	"atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/customresources"
	"atoll.dev/atoll/server/webhooks"
)

var anyOperation = []admission.Operation{admission.Create, admission.Update, admission.Delete, admission.Connect}

// newMutatingWebhooks returns MutatingAdmissionWebhook for all logical clusters.
func newMutatingWebhooks(c Config, own *ownCalls) *dynamic {
	d := newDynamic(c, mutating.PluginName, anyOperation, mutatingWebhooks)
	d.exempt, d.own = configurationsOfAnyCluster, own
	d.make = func(cluster logicalcluster.Cluster, objects [][]runtime.Object, _ func(string) any) (made, error) {
		stored, number, conditions, err := fewWebhooks(objects[0])
		if err != nil {
			return made{}, err
		}
		configurations, err := versionedAll[admissionregistrationv1.MutatingWebhookConfiguration](stored)
		if err != nil {
			return made{}, err
		}
		plugin, err := mutating.NewMutatingWebhook(nil)
		if err != nil {
			return made{}, err
		}
		return webhookPlugin(plugin, number, conditions), c.initialize(plugin, webhooks.Mutating, cluster, webhookInformers{mutating: configurations})
	}
	return d
}

// newValidatingWebhooks returns ValidatingAdmissionWebhook for all logical clusters.
func newValidatingWebhooks(c Config, own *ownCalls) *dynamic {
	d := newDynamic(c, validating.PluginName, anyOperation, validatingWebhooks)
	d.exempt, d.own = configurationsOfAnyCluster, own
	d.make = func(cluster logicalcluster.Cluster, objects [][]runtime.Object, _ func(string) any) (made, error) {
		stored, number, conditions, err := fewWebhooks(objects[0])
		if err != nil {
			return made{}, err
		}
		configurations, err := versionedAll[admissionregistrationv1.ValidatingWebhookConfiguration](stored)
		if err != nil {
			return made{}, err
		}
		plugin, err := validating.NewValidatingAdmissionWebhook(nil)
		if err != nil {
			return made{}, err
		}
		return webhookPlugin(plugin, number, conditions), c.initialize(plugin, webhooks.Validating, cluster, webhookInformers{validating: configurations})
	}
	return d
}

// webhookPlugin is upstream's plugin for so many webhooks, and match conditions that take so many bytes. It shares nothing: its
// compiler cannot be told from its connections.
func webhookPlugin(plugin admission.Interface, webhooks int, conditions int64) made {
	return made{plugin: plugin, whole: true, bytes: instanceBytes + pluginBytes + webhooks*webhookBytes + int(conditions)}
}

// fewWebhooks returns those configurations that have webhooks, how many webhooks are in them, and what their match conditions
// take where they are compiled. Too many are an error. It copies nothing.
func fewWebhooks(stored []runtime.Object) (having []runtime.Object, count int, conditions int64, _ error) {
	expressions, text := 0, 0
	look := func(all []storedregistration.MatchCondition) {
		expressions += len(all)
		for i := range all {
			text += len(all[i].Expression)
		}
	}
	for _, obj := range stored {
		before := count
		switch c := obj.(type) {
		case *storedregistration.MutatingWebhookConfiguration:
			count += len(c.Webhooks)
			for i := range c.Webhooks {
				look(c.Webhooks[i].MatchConditions)
			}
		case *storedregistration.ValidatingWebhookConfiguration:
			count += len(c.Webhooks)
			for i := range c.Webhooks {
				look(c.Webhooks[i].MatchConditions)
			}
		default:
			return nil, 0, 0, fmt.Errorf("a %T has no webhooks", obj)
		}
		if count > before {
			having = append(having, obj)
		}
	}
	if count > maxWebhooks {
		return nil, 0, 0, tooMany(fmt.Sprintf("the workspace has %d webhooks of a kind, and at most %d may be: delete some", count, maxWebhooks))
	}
	if expressions > maxExpressions {
		return nil, 0, 0, tooMany(fmt.Sprintf("%d match conditions are in the workspace's webhooks of a kind, and at most %d may be: delete some", expressions, maxExpressions))
	}
	return having, count, customresources.Compiled(expressions, text), nil
}

// initialize gives upstream's plugin what it needs, all of one logical cluster.
func (c Config) initialize(plugin admission.InitializationValidator, purpose webhooks.Purpose, cluster logicalcluster.Cluster, configurations webhookInformers) error {
	in, ok := plugin.(admission.Interface)
	if !ok {
		return fmt.Errorf("%T is no admission plugin", plugin)
	}
	s := scopeOf(cluster, c.Objects)
	admission.PluginInitializers{
		initializer.New(clientset{scope: s}, nil, webhookFactory{factory{scope: s}, configurations}, boundTo{cluster, c.Authorizer}, utilfeature.DefaultFeatureGate, nil, nil, nil),
		webhookinitializer.NewPluginInitializer(c.Webhooks.Resolver(purpose, cluster.Name, Services(c.Objects, c.Pods)(cluster)), webhooks.Services()),
	}.Initialize(in)
	return plugin.ValidateInitialization()
}

func (s scope) cluster() logicalcluster.Cluster {
	cluster, _ := logicalcluster.ClusterFrom(s.ctx) // whoever made the scope put it there
	return cluster
}

// versioned converts a stored object, copied.
func versioned[V any, P object[V]](stored runtime.Object) (*V, error) {
	out := new(V)
	if err := legacyscheme.Scheme.Convert(stored.DeepCopyObject(), out, nil); err != nil {
		return nil, fmt.Errorf("convert a %T for admission: %w", stored, err)
	}
	return out, nil
}

// versionedAll converts stored objects, copied.
func versionedAll[V any, P object[V]](stored []runtime.Object) ([]*V, error) {
	all := make([]*V, 0, len(stored))
	for _, obj := range stored {
		out, err := versioned[V, P](obj)
		if err != nil {
			return nil, err
		}
		all = append(all, out)
	}
	return all, nil
}

// webhookFactory is a factory that has configurations of webhooks, too.
type webhookFactory struct {
	factory
	configurations webhookInformers
}

func (f webhookFactory) Admissionregistration() admissionregistration.Interface {
	return registrationInformers{configurations: f.configurations}
}

var _ informers.SharedInformerFactory = webhookFactory{}

type registrationInformers struct {
	admissionregistration.Interface
	configurations webhookInformers
}

func (i registrationInformers) V1() admissionregistrationinformers.Interface { return i.configurations }

// webhookInformers show what there was when an instance was made.
type webhookInformers struct {
	admissionregistrationinformers.Interface
	mutating   fixed[admissionregistrationv1.MutatingWebhookConfiguration, *admissionregistrationv1.MutatingWebhookConfiguration]
	validating fixed[admissionregistrationv1.ValidatingWebhookConfiguration, *admissionregistrationv1.ValidatingWebhookConfiguration]
}

func (i webhookInformers) MutatingWebhookConfigurations() admissionregistrationinformers.MutatingWebhookConfigurationInformer {
	return informer[admissionregistrationlisters.MutatingWebhookConfigurationLister]{i.mutating}
}

func (i webhookInformers) ValidatingWebhookConfigurations() admissionregistrationinformers.ValidatingWebhookConfigurationInformer {
	return informer[admissionregistrationlisters.ValidatingWebhookConfigurationLister]{i.validating}
}

// fixed is the generated lister of a kind without namespaces, of objects that never change.
type fixed[V any, P interface {
	object[V]
	metav1.Object
}] []*V

// List returns those that a selector chooses, in a slice of the caller's.
func (f fixed[V, P]) List(selector labels.Selector) ([]*V, error) {
	return slices.DeleteFunc(slices.Clone(f), func(o *V) bool { return !selector.Matches(labels.Set(P(o).GetLabels())) }), nil
}

// Get returns one.
func (f fixed[V, P]) Get(name string) (*V, error) {
	for _, o := range f {
		if P(o).GetName() == name {
			return o, nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: admissionregistrationv1.GroupName}, name)
}

// AddEventHandler tells nothing: there is nothing new.
func (synced) AddEventHandler(cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return registered{}, nil
}

type registered struct {
	cache.ResourceEventHandlerRegistration
}

func (registered) HasSynced() bool { return true }
