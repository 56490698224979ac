package server

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kubeadmission "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/value"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/admission"
	"atoll.dev/atoll/server/atollapis"
	"atoll.dev/atoll/server/builtin"
	"atoll.dev/atoll/server/customresources"
	"atoll.dev/atoll/server/nodes"
	"atoll.dev/atoll/server/rbac"
	"atoll.dev/atoll/server/resourcemetrics"
	"atoll.dev/atoll/server/storage"
)

// newBackend returns the storage of all resources, with the objects laid over it that every logical cluster shares, and the nodes.
func newBackend(etcd *clientv3.Client, factory serverstorage.StorageFactory, encrypt value.ResourceTransformers, limits func(logicalcluster.Name) storage.Limits, called func(logicalcluster.Name) string, listed storage.Listed, deleted storage.Deleted) (*storage.Backend, *nodes.Nodes, error) {
	shared, err := builtin.SharedObjects(builtin.DefaultServiceIPRange)
	if err != nil {
		return nil, nil, fmt.Errorf("make the objects that all logical clusters share: %w", err)
	}
	var backend *storage.Backend
	shown := nodes.New(func(resource schema.GroupResource) (*storage.Resource, bool) { return backend.Resource(resource) })
	backend, err = storage.New(storage.Config{
		Client: etcd, Prefix: storage.DefaultPrefix, StorageFactory: factory, Transformers: encrypt,
		Shared: func(gr schema.GroupResource) []runtime.Object { return slices.Collect(maps.Values(shared[gr])) },
		Since: func(ctx context.Context, cluster logicalcluster.Name, cached bool) (metav1.Time, error) {
			return since(lcctx.WithCluster(ctx, lcctx.Cluster{Name: cluster}), storedObjects{backend}, cached)
		},
		FiledBy: filedBy,
		Overlay: shown.Overlay,
		Listed:  listed, Deleted: deleted, Limits: limits, Called: called,
		Homes: storage.Homes{LogicalClusters: logicalClusters, Namespaces: schema.GroupResource{Resource: "namespaces"}, Name: corev1alpha1.LogicalClusterName},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("open the storage: %w", err)
	}
	return backend, shown, nil
}

// filedBy: before the splitter starts or stops what is in one cluster at a time, it looks for the leaves of that wherever they are.
func filedBy(gr schema.GroupResource) string {
	if k, ok := kinds.ByResource(gr); ok && (k.Goes == kinds.Single || k.Goes == kinds.WhereMounted) {
		return workloadv1alpha1.WorkspaceLabel
	}
	return ""
}

// since is when the logical cluster in ctx came to be; the zero time if there is none.
func since(ctx context.Context, objects storedObjects, cached bool) (metav1.Time, error) {
	found, err := objects.Get(ctx, logicalClusters, "", corev1alpha1.LogicalClusterName, cached)
	if apierrors.IsNotFound(err) {
		return metav1.Time{}, nil
	}
	if err != nil {
		return metav1.Time{}, fmt.Errorf("find out since when there is the logical cluster: %w", err)
	}
	object, err := meta.Accessor(found)
	if err != nil {
		return metav1.Time{}, fmt.Errorf("find out since when there is the logical cluster: %w", err)
	}
	return object.GetCreationTimestamp(), nil
}

// nodePorts locks node ports with rows of the storage.
type nodePorts struct{ rows *storage.Backend }

func (nodePorts) key(port int) string { return "nodeports/" + strconv.Itoa(port) }

func (n nodePorts) Claim(ctx context.Context, port int, holder string) (bool, error) {
	won, _, err := n.rows.Exclusive(ctx, n.key(port), holder)
	return won, err
}

func (n nodePorts) Holder(ctx context.Context, port int) (string, bool, error) {
	return n.rows.Holder(ctx, n.key(port))
}

func (n nodePorts) Release(ctx context.Context, port int, holder string) error {
	_, err := n.rows.Release(ctx, n.key(port), holder)
	return err
}

// authorize builds the authorizer into config, and returns the providers of all APIs, which ask it too.
func (s *Server) authorize(config *genericapiserver.Config) ([]controlplaneapiserver.RESTStorageProvider, error) {
	roleStores, err := rbac.NewStores(s.backend)
	if err != nil {
		return nil, fmt.Errorf("store roles: %w", err)
	}
	byRoles, rules := rbac.NewAuthorizer(roleStores.Getters())
	s.authorizer = &clusterAuthorizer{
		roles: byRoles, homes: s.options.HomeWorkspaces,
		knownPath:   func(path logicalcluster.Path) (logicalcluster.Name, bool) { return s.directory.KnownPath(path) },
		initialized: s.initialized, waiting: s.waiting,
	}
	config.Authorization.Authorizer = s.authorizer
	config.RuleResolver = rules

	s.ways = builtin.NewWays(joined{s})
	builtins, err := builtin.Providers(builtin.Config{
		Authorizer:   config.Authorization.Authorizer,
		RuleResolver: rules,
		RBAC:         rbac.NewProvider(roleStores, config.Authorization.Authorizer, rules),
		NodePorts:    nodePorts{s.backend},
		Objects:      storedObjects{s.backend},
		EventTTL:     s.options.EventTTL,
		Ways:         s.ways,
		Budgets:      s.loopback.budgets,

		Reviewer: s.reviewer, Audiences: s.tokens,
		ServiceAccountIssuer: s.tokens, ServiceAccountMaxExpiration: s.options.ServiceAccountMaxTokenExpiration,
	})
	if err != nil {
		return nil, err
	}
	// Last, as on other clusters: so `pods` and `nodes` without a group are those of the core group.
	return append(append(builtins, atollapis.Providers(s.url)...), resourcemetrics.NewProvider(storedObjects{s.backend}, s.ways)), nil
}

// withNames are the providers; what they serve is added to names.
func withNames(providers []controlplaneapiserver.RESTStorageProvider, names customresources.Names) []controlplaneapiserver.RESTStorageProvider {
	all := make([]controlplaneapiserver.RESTStorageProvider, len(providers))
	for i, p := range providers {
		all[i] = naming{p, names}
	}
	return all
}

type naming struct {
	controlplaneapiserver.RESTStorageProvider
	names customresources.Names
}

func (n naming) NewRESTStorage(enabled serverstorage.APIResourceConfigSource, getter generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info, err := n.RESTStorageProvider.NewRESTStorage(enabled, getter)
	if err != nil {
		return genericapiserver.APIGroupInfo{}, err
	}
	return info, n.names.Add(&info)
}

// admit sets up admission, which reads what it needs from the stores.
func (s *Server) admit(authorizer authorizer.Authorizer) (kubeadmission.Interface, error) {
	var placed []schema.GroupResource
	for _, kind := range kinds.All {
		if kind.IsPlaced() {
			placed = append(placed, kind.GVR.GroupResource())
		}
	}
	var err error
	if s.requests, err = newRequester(s.loopback.config); err != nil {
		return nil, err
	}
	plugins, err := admission.New(admission.Config{
		Objects:     storedObjects{s.backend},
		Authorizer:  authorizer,
		Quotas:      s.quotaStores(),
		Terminating: func(name logicalcluster.Name) bool { return s.directory.Terminating(name) },
		IsSyncer:    isSyncer,
		Placed:      placed,
		WhyNowhere: func(cluster logicalcluster.Name, resource schema.GroupResource, namespace, name string, annotations map[string]string) string {
			return s.placer.WhyNowhere(cluster, resource, namespace, name, annotations)
		},
		MissingClasses: func(cluster logicalcluster.Name, resource schema.GroupResource, namespace string, object ctrlclient.Object) []string {
			return s.placer.MissingClasses(cluster, resource, namespace, object)
		},
		RefusedPods: func(cluster logicalcluster.Name, resource schema.GroupResource, namespace string, object ctrlclient.Object) ([]string, error) {
			return s.placer.RefusedPods(cluster, resource, namespace, object)
		},
		MayResize: s.ways.MayResize,
		Definitions: func(name logicalcluster.Name) (int, customresources.Weight) {
			return s.custom.Definitions().Count(name), s.custom.Definitions().Weight(name)
		},
		MaxDefinitions: s.definitionsLimit, Called: s.called,
		FindWorkspace:  s.findWorkspace,
		MayUseType:     s.authorizer.mayUseType,
		PlacedOn:       func(target types.UID) (placements, workspaces int) { return s.placer.PlacedOn(target) },
		Configurations: s.configurations,
		Webhooks:       s.webhooks,
		Pods:           s.ways,
		Params:         s.requests,
		Schemas:        s.requests,
	})
	if err != nil {
		return nil, fmt.Errorf("set up admission: %w", err)
	}
	return plugins, nil
}

// findWorkspace returns the logical cluster of a name or at the end of a path, for admission. Of a name it does not say whether
// there is one.
func (s *Server) findWorkspace(ctx context.Context, path logicalcluster.Path) (logicalcluster.Name, error) {
	if name, is := path.Name(); is {
		return name, nil
	}
	if name, known := s.directory.KnownPath(path); known {
		return name, nil
	}
	return s.directory.Resolve(ctx, path)
}
