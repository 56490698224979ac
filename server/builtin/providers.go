package builtin

import (
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"

	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	admissionregistrationrest "k8s.io/kubernetes/pkg/registry/admissionregistration/rest"
	apiserverinternalrest "k8s.io/kubernetes/pkg/registry/apiserverinternal/rest"
	appsrest "k8s.io/kubernetes/pkg/registry/apps/rest"
	authorizationrest "k8s.io/kubernetes/pkg/registry/authorization/rest"
	autoscalingrest "k8s.io/kubernetes/pkg/registry/autoscaling/rest"
	certificatesrest "k8s.io/kubernetes/pkg/registry/certificates/rest"
	coordinationrest "k8s.io/kubernetes/pkg/registry/coordination/rest"
	discoveryrest "k8s.io/kubernetes/pkg/registry/discovery/rest"
	eventsrest "k8s.io/kubernetes/pkg/registry/events/rest"
	flowcontrolrest "k8s.io/kubernetes/pkg/registry/flowcontrol/rest"
	networkingrest "k8s.io/kubernetes/pkg/registry/networking/rest"
	noderest "k8s.io/kubernetes/pkg/registry/node/rest"
	policyrest "k8s.io/kubernetes/pkg/registry/policy/rest"
	resourcerest "k8s.io/kubernetes/pkg/registry/resource/rest"
	schedulingrest "k8s.io/kubernetes/pkg/registry/scheduling/rest"
	storagerest "k8s.io/kubernetes/pkg/registry/storage/rest"
	svmrest "k8s.io/kubernetes/pkg/registry/storagemigration/rest"
)

// Providers returns the providers of all built-in API groups, for InstallAPIs of
// k8s.io/kubernetes/pkg/controlplane/apiserver.Server, once for a server. Their order is
// kube-apiserver's: it decides which group an unqualified resource name means.
func Providers(cfg Config) ([]controlplaneapiserver.RESTStorageProvider, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	core := newCoreProvider(cfg)
	providers := []controlplaneapiserver.RESTStorageProvider{
		core,
		apiserverinternalrest.StorageProvider{},
		authenticationProvider{cfg: cfg},
		authorizationrest.RESTStorageProvider{Authorizer: cfg.Authorizer, RuleResolver: cfg.RuleResolver},
		autoscalingrest.RESTStorageProvider{},
		batchProvider{},
		certificatesrest.RESTStorageProvider{Authorizer: cfg.Authorizer},
		coordinationrest.RESTStorageProvider{},
		discoveryrest.StorageProvider{},
		networkingProvider{core: core},
		noderest.RESTStorageProvider{},
		policyrest.RESTStorageProvider{},
		cfg.RBAC,
		schedulingrest.RESTStorageProvider{},
		storagerest.RESTStorageProvider{},
		svmrest.RESTStorageProvider{},
		flowcontrolrest.RESTStorageProvider{},
		appsrest.StorageProvider{},
		admissionregistrationrest.RESTStorageProvider{Authorizer: cfg.Authorizer, DiscoveryClient: builtinKinds{}},
		eventsrest.RESTStorageProvider{TTL: cfg.EventTTL},
		resourcerest.RESTStorageProvider{NamespaceClient: namespaceReader{core: core}, Authorizer: cfg.Authorizer},
	}
	for i := range providers {
		providers[i] = hookless{providers[i]}
	}
	return providers, nil
}

// hookless shows no PostStartHook of the provider: hooks write through the loopback client, into one cluster. The
// interface has GroupName and NewRESTStorage only, so embedding it hides every other method.
type hookless struct {
	controlplaneapiserver.RESTStorageProvider
}

// networkingProvider is upstream's, and hands its store of IPAddresses to the allocation of cluster IPs.
type networkingProvider struct {
	networkingrest.RESTStorageProvider
	core *coreProvider
}

func (p networkingProvider) NewRESTStorage(enabled serverstorage.APIResourceConfigSource, getter generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info, err := p.RESTStorageProvider.NewRESTStorage(enabled, getter)
	if err != nil {
		return genericapiserver.APIGroupInfo{}, err
	}
	addresses, ok := info.VersionedResourcesStorageMap[networkingv1.SchemeGroupVersion.Version]["ipaddresses"].(addressStore)
	if !ok {
		return genericapiserver.APIGroupInfo{}, fmt.Errorf("networking.k8s.io/v1 has no store of ipaddresses: cluster IPs could not be allocated")
	}
	p.core.addresses.Store(&addresses)
	return info, nil
}
