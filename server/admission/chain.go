package admission

import (
	lc "github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	certapproval "k8s.io/kubernetes/plugin/pkg/admission/certificates/approval"
	certsigning "k8s.io/kubernetes/plugin/pkg/admission/certificates/signing"
	certsubjectrestriction "k8s.io/kubernetes/plugin/pkg/admission/certificates/subjectrestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/defaulttolerationseconds"
	"k8s.io/kubernetes/plugin/pkg/admission/limitranger"
	"k8s.io/kubernetes/plugin/pkg/admission/network/defaultingressclass"
	"k8s.io/kubernetes/plugin/pkg/admission/priority"
	"k8s.io/kubernetes/plugin/pkg/admission/runtimeclass"
	"k8s.io/kubernetes/plugin/pkg/admission/serviceaccount"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/persistentvolume/resize"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/storageclass/setdefault"

	"atoll.dev/atoll/internal/budget"
	"atoll.dev/atoll/server/customresources"
	"atoll.dev/atoll/server/webhooks"
)

// Config is what the plugins need of the server. Everything is required.
type Config struct {
	Objects Objects
	// Authorizer says who may approve and sign certificates.
	Authorizer authorizer.Authorizer
	// Quotas are the ResourceQuotas.
	Quotas Quotas
	// Terminating says whether a logical cluster is being deleted.
	Terminating func(lc.Name) bool
	// IsSyncer says whether a user is a syncer, or asks for the certificate of one.
	IsSyncer func(user.Info) bool
	// Placed are of what Placements decide for by itself; WhyNowhere says why one would run nowhere, and
	// PlacedOn what runs in a physical cluster.
	Placed     []schema.GroupResource
	WhyNowhere WhyNowhere
	PlacedOn   PlacedOn
	// MissingClasses are those that an object names in vain.
	MissingClasses MissingClasses
	// RefusedPods says where the pods of an object are refused.
	RefusedPods RefusedPods
	// MayResize says why the resources of a pod are refused where it runs.
	MayResize MayResize
	// FindWorkspace and MayUseType are for the types of new workspaces.
	FindWorkspace FindWorkspace
	MayUseType    MayUseType
	// Definitions is how many CustomResourceDefinitions a logical cluster has and what they take, and MaxDefinitions how many it may
	// have and how many bytes of memory these may take.
	Definitions    func(lc.Name) (int, customresources.Weight)
	MaxDefinitions func(lc.Name) (int, int64)
	// Called is how people call a logical cluster.
	Called func(lc.Name) string
	// Configurations are the webhooks and policies of all logical clusters, and Webhooks calls the former.
	Configurations *Configurations
	Webhooks       *webhooks.Caller
	// Pods leads to webhooks that run in physical clusters.
	Pods Pods
	// Params and Schemas are what policies read besides.
	Params  Params
	Schemas Schemas

	paramBudget *budget.Budget // what parameters take; New makes it
}

// What plugins of Kubernetes look at.
var (
	pods                   = schema.GroupResource{Resource: "pods"}
	events                 = schema.GroupResource{Resource: "events"}
	accounts               = schema.GroupResource{Resource: "serviceaccounts"}
	bindings               = schema.GroupResource{Resource: "bindings"}
	persistentVolumeClaims = schema.GroupResource{Resource: "persistentvolumeclaims"}
	priorityClasses        = schema.GroupResource{Group: "scheduling.k8s.io", Resource: "priorityclasses"}
	signingRequests        = schema.GroupResource{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}
	ingresses              = schema.GroupResource{Group: "networking.k8s.io", Resource: "ingresses"}
)

// fromKubernetes is a plugin of Kubernetes and the resources that it looks at.
type fromKubernetes struct {
	name     string
	register func(*admission.Plugins)
	looksAt  []schema.GroupResource
}

// The plugins of Kubernetes in its order (AllOrderedPlugins of k8s.io/kubernetes/pkg/kubeapiserver/options).
var (
	beforePodSecurity = []fromKubernetes{
		{limitranger.PluginName, limitranger.Register, []schema.GroupResource{pods, persistentVolumeClaims}},
		{serviceaccount.PluginName, serviceaccount.Register, []schema.GroupResource{pods}},
	}
	afterPodSecurity = []fromKubernetes{
		{priority.PluginName, priority.Register, []schema.GroupResource{pods, priorityClasses}},
		{defaulttolerationseconds.PluginName, defaulttolerationseconds.Register, []schema.GroupResource{pods}},
		{setdefault.PluginName, setdefault.Register, []schema.GroupResource{persistentVolumeClaims}},
		{resize.PluginName, resize.Register, []schema.GroupResource{persistentVolumeClaims}},
		{runtimeclass.PluginName, runtimeclass.Register, []schema.GroupResource{pods}},
		{certapproval.PluginName, certapproval.Register, []schema.GroupResource{signingRequests}},
		{certsigning.PluginName, certsigning.Register, []schema.GroupResource{signingRequests}},
		{certsubjectrestriction.PluginName, certsubjectrestriction.Register, []schema.GroupResource{signingRequests}},
		{defaultingressclass.PluginName, defaultingressclass.Register, []schema.GroupResource{ingresses}},
	}
)

// New returns all plugins.
func New(c Config) (admission.Interface, error) {
	chain := []admission.Interface{NewLifecycle(c.Objects, c.Terminating), NewOwnName()}
	add := func(plugins []fromKubernetes) error {
		for _, p := range plugins {
			plugin, err := p.make(c)
			if err != nil {
				return err
			}
			chain = append(chain, plugin)
		}
		return nil
	}
	if err := add(beforePodSecurity); err != nil {
		return nil, err
	}
	podSecurity, err := NewPodSecurity(c.Objects)
	if err != nil {
		return nil, err
	}
	chain = append(chain, NewMirror(c.Objects, c.IsSyncer), podSecurity) // Mirror is where kube-apiserver has NodeRestriction
	if err := add(afterPodSecurity); err != nil {
		return nil, err
	}
	boundSeries()
	c.paramBudget = newParamBudget()
	own := newOwnCalls()
	types := NewWorkspaceTypes(c.Objects, c.FindWorkspace, c.MayUseType)
	chain = append(chain, NewDefinitions(c.Definitions, c.MaxDefinitions, c.Called)) // before policies and webhooks make copies of what is too large
	chain = append(chain, NewNowhere(c.Placed, c.WhyNowhere), NewInUse(c.PlacedOn), NewDecisions(), NewShown(c.RefusedPods), NewUnsupported(c.MissingClasses, c.RefusedPods), NewLimits(),
		types, NewTypeCircles(types),
		newMutatingPolicies(c), newMutatingWebhooks(c, own), NewOwnName(), NewKeySizes(), NewDefinitions(c.Definitions, c.MaxDefinitions, c.Called),
		newValidatingPolicies(c), newValidatingWebhooks(c, own), // what people configured sees what all others made
		NewResized(c.MayResize),    // somebody else's cluster is asked nothing that is refused here
		NewResourceQuota(c.Quotas)) // nothing is charged for what anybody refuses
	return reinvoking{admission.NewChainHandler(chain...)}, nil
}
