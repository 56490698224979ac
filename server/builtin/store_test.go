package builtin

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3/kubernetes"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	policyclient "k8s.io/client-go/kubernetes/typed/policy/v1"
	"k8s.io/client-go/tools/cache"

	kcp "github.com/kcp-dev/logicalcluster/v3"

	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/networking"
	// The groups whose objects the tests store.
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	"k8s.io/kubernetes/pkg/controlplane"

	embeddedetcd "atoll.dev/atoll/embedded-etcd"
	"atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/rbac"
)

// clusteredGetter makes stores whose keys carry the logical cluster of the context, as the server's do: the least that
// the registries need, without caches.
type clusteredGetter struct {
	t    testing.TB
	etcd *embeddedetcd.Etcd
}

func startEtcd(t testing.TB) clusteredGetter {
	t.Helper()
	etcd, err := embeddedetcd.Start(t.Context(), embeddedetcd.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := etcd.Stop(); err != nil {
			t.Error(err)
		}
	})
	return clusteredGetter{t: t, etcd: etcd}
}

func (g clusteredGetter) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	codec := legacyscheme.Codecs.LegacyCodec(legacyscheme.Scheme.PrioritizedVersionsAllGroups()...)
	prefix := "/" + path.Join(resource.Group, resource.Resource)
	decorate := func(_ *storagebackend.ConfigForResource, _ string, _ func(runtime.Object) (string, error), newFunc, newList func() runtime.Object, _ storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
		versioner := storage.APIObjectVersioner{}
		client := &kubernetes.Client{Client: g.etcd.Client}
		client.Kubernetes = client
		raw, err := etcd3.New(client, nil, codec, newFunc, newList, "/registry", prefix, resource,
			identity.NewEncryptCheckTransformer(), etcd3.NewDefaultLeaseManagerConfig(), etcd3.NewDefaultDecoder(codec, versioner), versioner)
		return clustered{Interface: raw, prefix: prefix}, func() {}, err
	}
	return generic.RESTOptions{
		StorageConfig:           &storagebackend.ConfigForResource{Config: storagebackend.Config{Codec: codec}, GroupResource: resource},
		Decorator:               decorate,
		DeleteCollectionWorkers: 1,
		ResourcePrefix:          prefix,
	}, nil
}

// clustered puts the context's logical cluster into keys and into the annotation of what it stores, and refuses a
// context without one.
type clustered struct {
	storage.Interface
	prefix string
}

func (s clustered) key(ctx context.Context, key string) (string, kcp.Name, error) {
	c, ok := logicalcluster.ClusterFrom(ctx)
	if !ok || c.Name == "" {
		return "", "", fmt.Errorf("%s: no logical cluster in the context", key)
	}
	rest, ok := strings.CutPrefix(key, s.prefix)
	if !ok {
		return "", "", fmt.Errorf("%s is not below %s", key, s.prefix)
	}
	return s.prefix + "/" + c.Name.String() + rest, c.Name, nil
}

func mark(obj runtime.Object, cluster kcp.Name) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	annotations := map[string]string{logicalcluster.Annotation: cluster.String()}
	for k, v := range m.GetAnnotations() {
		if k != logicalcluster.Annotation {
			annotations[k] = v
		}
	}
	m.SetAnnotations(annotations)
	return nil
}

func (s clustered) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	key, cluster, err := s.key(ctx, key)
	if err != nil {
		return err
	}
	if err := mark(obj, cluster); err != nil {
		return err
	}
	return s.Interface.Create(ctx, key, obj, out, ttl)
}

func (s clustered) Delete(ctx context.Context, key string, out runtime.Object, pre *storage.Preconditions, validate storage.ValidateObjectFunc, cached runtime.Object, opts storage.DeleteOptions) error {
	key, _, err := s.key(ctx, key)
	if err != nil {
		return err
	}
	return s.Interface.Delete(ctx, key, out, pre, validate, cached, opts)
}

func (s clustered) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	key, _, err := s.key(ctx, key)
	if err != nil {
		return nil, err
	}
	return s.Interface.Watch(ctx, key, opts)
}

func (s clustered) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	key, _, err := s.key(ctx, key)
	if err != nil {
		return err
	}
	return s.Interface.Get(ctx, key, opts, out)
}

func (s clustered) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	key, _, err := s.key(ctx, key)
	if err != nil {
		return err
	}
	return s.Interface.GetList(ctx, key, opts, list)
}

func (s clustered) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool, pre *storage.Preconditions, try storage.UpdateFunc, cached runtime.Object) error {
	key, cluster, err := s.key(ctx, key)
	if err != nil {
		return err
	}
	return s.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, pre, func(in runtime.Object, res storage.ResponseMeta) (runtime.Object, *uint64, error) {
		obj, ttl, err := try(in, res)
		if err != nil {
			return nil, nil, err
		}
		return obj, ttl, mark(obj, cluster)
	}, cached)
}

// memoryPorts are rows in memory: what the server keeps in etcd.
type memoryPorts struct {
	mu   sync.Mutex
	rows map[string]string
}

func (m *memoryPorts) key(ctx context.Context, port int) (string, error) {
	c, ok := logicalcluster.ClusterFrom(ctx)
	if !ok {
		return "", fmt.Errorf("node port %d: no logical cluster in the context", port)
	}
	return fmt.Sprintf("%s/%d", c.Name, port), nil
}

func (m *memoryPorts) Claim(ctx context.Context, port int, holder string) (bool, error) {
	key, err := m.key(ctx, port)
	if err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, taken := m.rows[key]; taken {
		return false, nil
	}
	if m.rows == nil {
		m.rows = map[string]string{}
	}
	m.rows[key] = holder
	return true, nil
}

func (m *memoryPorts) Holder(ctx context.Context, port int) (string, bool, error) {
	key, err := m.key(ctx, port)
	if err != nil {
		return "", false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	holder, held := m.rows[key]
	return holder, held, nil
}

func (m *memoryPorts) Release(ctx context.Context, port int, holder string) error {
	key, err := m.key(ctx, port)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rows[key] == holder {
		delete(m.rows, key)
	}
	return nil
}

func (m *memoryPorts) taken(cluster kcp.Name) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for key := range m.rows {
		if port, ok := strings.CutPrefix(key, cluster.String()+"/"); ok {
			out = append(out, port)
		}
	}
	return out
}

// testServer is one server's core and networking registries.
type testServer struct {
	services  *serviceREST
	status    *serviceStatusREST
	endpoints rest.StandardStorage
	addresses rest.StandardStorage
}

func testConfig(t testing.TB, getter generic.RESTOptionsGetter, nodePorts NodePorts) Config {
	t.Helper()
	stores, err := rbac.NewStores(getter)
	if err != nil {
		t.Fatal(err)
	}
	authorizer, resolver := rbac.NewAuthorizer(stores.Getters())
	return Config{
		Objects: noObjects{}, Ways: NewWays(noKubelets{}),
		Authorizer: authorizer, RuleResolver: resolver, RBAC: rbac.NewProvider(stores, authorizerfactory.NewAlwaysAllowAuthorizer(), resolver),
		NodePorts: nodePorts, Audiences: noTokens{}, ServiceAccountIssuer: noTokens{},
		Budgets: func(kcp.Name) (policyclient.PodDisruptionBudgetsGetter, error) {
			return nil, errors.New("no budgets are held here")
		},
	}
}

// noTokens issues none.
type noTokens struct{}

func (noTokens) GenerateToken(context.Context, *jwt.Claims, any) (string, error) {
	return "", errors.New("no tokens are issued here")
}
func (noTokens) Default(kcp.Name) authenticator.Audiences   { return nil }
func (noTokens) Audiences(kcp.Name) authenticator.Audiences { return nil }

// newServer builds the registries over getter's etcd. Two of them share nothing else, as two processes would.
func newServer(t testing.TB, getter generic.RESTOptionsGetter, nodePorts NodePorts, change ...func(*Config)) *testServer {
	t.Helper()
	cfg := testConfig(t, getter, nodePorts)
	for _, f := range change {
		f(&cfg)
	}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	core := newCoreProvider(cfg)
	coreInfo, err := core.NewRESTStorage(controlplane.DefaultAPIResourceConfigSource(), getter)
	if err != nil {
		t.Fatal(err)
	}
	networkInfo, err := networkingProvider{core: core}.NewRESTStorage(controlplane.DefaultAPIResourceConfigSource(), getter)
	if err != nil {
		t.Fatal(err)
	}
	v1 := coreInfo.VersionedResourcesStorageMap["v1"]
	return &testServer{
		services:  v1["services"].(*serviceREST),
		status:    v1["services/status"].(*serviceStatusREST),
		endpoints: v1["endpoints"].(rest.StandardStorage),
		addresses: networkInfo.VersionedResourcesStorageMap["v1"]["ipaddresses"].(rest.StandardStorage),
	}
}

// in is the context of a request to namespace "default" of a logical cluster.
func in(ctx context.Context, cluster string) context.Context {
	ctx = logicalcluster.WithCluster(ctx, logicalcluster.Cluster{Name: kcp.Name(cluster)})
	ctx = genericapirequest.WithUser(ctx, &user.DefaultInfo{Name: "tester"})
	ctx = genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{APIVersion: "v1", Resource: "services", Namespace: metav1.NamespaceDefault})
	return genericapirequest.WithNamespace(ctx, metav1.NamespaceDefault)
}

// newService returns a defaulted Service as the handler would hand it to the registry.
func newService(name string, change ...func(*api.Service)) *api.Service {
	svc := &api.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault},
		Spec: api.ServiceSpec{
			Selector:        map[string]string{"app": name},
			Type:            api.ServiceTypeClusterIP,
			SessionAffinity: api.ServiceAffinityNone,
			Ports:           []api.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(80), Protocol: api.ProtocolTCP}},
		},
	}
	cluster := api.ServiceInternalTrafficPolicyCluster
	svc.Spec.InternalTrafficPolicy = &cluster
	for _, f := range change {
		f(svc)
	}
	switch svc.Spec.Type {
	case api.ServiceTypeExternalName:
		svc.Spec.InternalTrafficPolicy = nil
	case api.ServiceTypeNodePort, api.ServiceTypeLoadBalancer:
		if svc.Spec.ExternalTrafficPolicy == "" {
			svc.Spec.ExternalTrafficPolicy = api.ServiceExternalTrafficPolicyCluster
		}
	}
	if svc.Spec.Type == api.ServiceTypeLoadBalancer && svc.Spec.AllocateLoadBalancerNodePorts == nil {
		yes := true
		svc.Spec.AllocateLoadBalancerNodePorts = &yes
	}
	return svc
}

func (s *testServer) create(ctx context.Context, svc *api.Service) (*api.Service, error) {
	obj, err := s.services.Create(ctx, svc, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*api.Service), nil
}

func (s *testServer) mustCreate(t testing.TB, ctx context.Context, svc *api.Service) *api.Service {
	t.Helper()
	out, err := s.create(ctx, svc)
	if err != nil {
		t.Fatalf("create Service %q: %v", svc.Name, err)
	}
	return out
}

// change updates the stored Service as a PUT of the changed object would.
func (s *testServer) change(ctx context.Context, name string, f func(*api.Service)) (*api.Service, error) {
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		svc := old.DeepCopyObject().(*api.Service)
		f(svc)
		return svc, nil
	})
	obj, _, err := s.services.Update(ctx, name, info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*api.Service), nil
}

func (s *testServer) remove(t testing.TB, ctx context.Context, name string) {
	t.Helper()
	if _, _, err := s.services.Delete(ctx, name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
		t.Fatalf("delete Service %q: %v", name, err)
	}
}

// locked returns the addresses that have an IPAddress in the logical cluster.
func (s *testServer) locked(t testing.TB, ctx context.Context) []string {
	t.Helper()
	obj, err := s.addresses.List(aboutAddresses(ctx), &metainternalversion.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out := []string{}
	for _, address := range obj.(*networking.IPAddressList).Items {
		out = append(out, address.Name)
	}
	return out
}

// setClock makes the server believe that it is later than it is.
func (s *testServer) setClock(later time.Duration) {
	now := func() time.Time { return time.Now().Add(later) }
	s.services.alloc.ips.now = now
	s.services.alloc.ports.now = now
}

// noKubelets is for tests without physical clusters, whose pods alone have one.
type noKubelets struct{ Kubelets }

// noObjects is for tests without mirrors, which alone read objects.
type noObjects struct{ Objects }
