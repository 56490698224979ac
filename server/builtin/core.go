package builtin

import (
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/utils/clock"

	api "k8s.io/kubernetes/pkg/apis/core"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	"k8s.io/kubernetes/pkg/registry/core/componentstatus"
	endpointsstore "k8s.io/kubernetes/pkg/registry/core/endpoint/storage"
	eventstore "k8s.io/kubernetes/pkg/registry/core/event/storage"
	limitrangestore "k8s.io/kubernetes/pkg/registry/core/limitrange/storage"
	nodestore "k8s.io/kubernetes/pkg/registry/core/node/storage"
	pvstore "k8s.io/kubernetes/pkg/registry/core/persistentvolume/storage"
	pvcstore "k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim/storage"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"
	podtemplatestore "k8s.io/kubernetes/pkg/registry/core/podtemplate/storage"
	controllerstore "k8s.io/kubernetes/pkg/registry/core/replicationcontroller/storage"
	corerest "k8s.io/kubernetes/pkg/registry/core/rest"
	serviceaccountstore "k8s.io/kubernetes/pkg/registry/core/serviceaccount/storage"
)

// coreProvider serves the core group. Upstream's own provider needs allocators that know one cluster, repair loops over
// a loopback client, and a way to kubelets.
type coreProvider struct {
	cfg Config

	// Set while the groups are installed, before the first request, and read by other groups' registries.
	namespaces atomic.Pointer[rest.Getter]
	addresses  atomic.Pointer[addressStore]
}

func newCoreProvider(cfg Config) *coreProvider { return &coreProvider{cfg: cfg} }

// GroupName is the empty name of the core group.
func (p *coreProvider) GroupName() string { return api.GroupName }

// NewRESTStorage builds the stores of the core group over getter.
func (p *coreProvider) NewRESTStorage(enabled serverstorage.APIResourceConfigSource, getter generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	shared := corerest.GenericConfig{EventTTL: p.cfg.EventTTL}
	info, err := shared.NewRESTStorage(enabled, getter)
	if err != nil {
		return genericapiserver.APIGroupInfo{}, err
	}
	storage := info.VersionedResourcesStorageMap["v1"]
	namespaces, ok := storage["namespaces"].(rest.Getter)
	if !ok {
		return genericapiserver.APIGroupInfo{}, fmt.Errorf("the core group has no store of namespaces")
	}
	p.namespaces.Store(&namespaces)

	for _, add := range []func(map[string]rest.Storage, generic.RESTOptionsGetter) error{
		p.addWorkloads, p.addConfiguration, p.addVolumes,
	} {
		if err := add(storage, getter); err != nil {
			return genericapiserver.APIGroupInfo{}, err
		}
	}
	for path := range storage {
		resource, _, _ := strings.Cut(path, "/")
		if !enabled.ResourceEnabled(corev1.SchemeGroupVersion.WithResource(resource)) {
			storage[path].Destroy()
			delete(storage, path)
		}
	}
	return info, nil
}

// addWorkloads adds what has to do with pods: nodes, pods, service accounts (whose tokens may be bound to both), and
// services with their endpoints.
func (p *coreProvider) addWorkloads(storage map[string]rest.Storage, getter generic.RESTOptionsGetter) error {
	nodes, err := nodestore.NewStorage(getter, kubeletclient.KubeletClientConfig{}, nil)
	if err != nil {
		return fmt.Errorf("store of nodes: %w", err)
	}
	storage["nodes"] = shownNodes{nodes.Node}
	storage["nodes/status"] = shownNodeStatus{nodes.Status}
	storage["nodes/proxy"] = proxyElsewhere{connecter: nodes.Proxy}

	pods, err := podstore.NewStorage(getter, nil, nil, nil, p.cfg.Authorizer)
	if err != nil {
		return fmt.Errorf("store of pods: %w", err)
	}
	pods.Pod.DeleteStrategy = newPodDeletion()
	shown := shownPods{
		objects: p.cfg.Objects, pods: pods.Pod, admitted: newAdmitted(pods.Pod), status: pods.Status,
		watches: &openWatches{of: map[logicalcluster.Name]int{}}, tallies: newTallies(clock.RealClock{}),
	}
	events, ok := storage["events"].(*eventstore.REST)
	if !ok {
		return fmt.Errorf("the core group has no store of events")
	}
	storage["events"] = eventsElsewhere{events, shownEvents{shown, events, newEventPace(clock.RealClock{})}}
	visible := podsElsewhere{pods.Pod, shown, clock.RealClock{}}
	storage["pods"] = visible
	storage["pods/status"] = podStatuses{pods.Status, shown}
	storage["pods/binding"] = bindings{pods.Binding, pods.Pod}
	storage["pods/ephemeralcontainers"] = pods.EphemeralContainers
	storage["pods/resize"] = newResizes(pods)
	conns := addStreams(storage, pods, visible, p.cfg.Ways)
	if storage["pods/eviction"], err = newEvictions(getter, pods, visible, p.cfg); err != nil {
		return err
	}
	storage["bindings"] = pods.LegacyBinding

	secrets, ok := storage["secrets"].(rest.Getter)
	if !ok {
		return fmt.Errorf("the core group has no store of secrets")
	}
	storage["serviceaccounts"].Destroy()
	accounts, err := serviceaccountstore.NewREST(getter, p.cfg.ServiceAccountIssuer, nil,
		p.cfg.ServiceAccountMaxExpiration, pods.Pod.Store, secrets, nodes.Node.Store, false, 0)
	if err != nil {
		return fmt.Errorf("store of serviceaccounts: %w", err)
	}
	storage["serviceaccounts"] = accounts
	storage["serviceaccounts/token"] = tokenRequests{
		TokenREST: accounts.Token, audiences: p.cfg.Audiences,
		shown: shown, pace: newTokenPace(clock.RealClock{}), clock: clock.RealClock{},
	}

	endpoints, err := endpointsstore.NewREST(getter)
	if err != nil {
		return fmt.Errorf("store of endpoints: %w", err)
	}
	storage["endpoints"] = endpoints

	services, err := newServices(getter, p.cfg, endpoints, pods.Pod, &p.addresses)
	if err != nil {
		return fmt.Errorf("store of services: %w", err)
	}
	storage["services"] = services.service
	storage["services/status"] = services.status
	storage["services/proxy"] = serviceProxy{services.proxy, services.service, conns}
	return nil
}

func (p *coreProvider) addConfiguration(storage map[string]rest.Storage, getter generic.RESTOptionsGetter) error {
	templates, err := podtemplatestore.NewREST(getter)
	if err != nil {
		return fmt.Errorf("store of podtemplates: %w", err)
	}
	storage["podtemplates"] = templates

	limits, err := limitrangestore.NewREST(getter)
	if err != nil {
		return fmt.Errorf("store of limitranges: %w", err)
	}
	storage["limitranges"] = limits

	controllers, err := controllerstore.NewStorage(getter)
	if err != nil {
		return fmt.Errorf("store of replicationcontrollers: %w", err)
	}
	controllers.Controller.DeleteStrategy = podsGo{controllers.Controller.DeleteStrategy}
	storage["replicationcontrollers"] = controllers.Controller
	storage["replicationcontrollers/status"] = controllers.Status
	storage["replicationcontrollers/scale"] = controllers.Scale

	// Upstream's list probes the scheduler and the controller manager of the machine: components of this server are not
	// a tenant's, so the list is empty.
	storage["componentstatuses"] = componentstatus.NewStorage(func() map[string]componentstatus.Server { return nil })
	return nil
}

func (p *coreProvider) addVolumes(storage map[string]rest.Storage, getter generic.RESTOptionsGetter) error {
	volumes, volumesStatus, err := pvstore.NewREST(getter)
	if err != nil {
		return fmt.Errorf("store of persistentvolumes: %w", err)
	}
	storage["persistentvolumes"] = volumes
	storage["persistentvolumes/status"] = volumesStatus

	claims, claimsStatus, err := pvcstore.NewREST(getter)
	if err != nil {
		return fmt.Errorf("store of persistentvolumeclaims: %w", err)
	}
	storage["persistentvolumeclaims"] = claims
	storage["persistentvolumeclaims/status"] = claimsStatus
	return nil
}
