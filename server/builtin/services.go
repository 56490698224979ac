package builtin

import (
	"context"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	api "k8s.io/kubernetes/pkg/apis/core"
	svcreg "k8s.io/kubernetes/pkg/registry/core/service"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"
	servicestore "k8s.io/kubernetes/pkg/registry/core/service/storage"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// services are the REST stores of the services resource.
type services struct {
	service *serviceREST
	status  *serviceStatusREST
	proxy   *svcreg.ProxyREST
}

// newServices builds upstream's registry of Services once, and replaces its hooks by those of an allocation that knows
// the logical cluster.
func newServices(getter generic.RESTOptionsGetter, cfg Config, endpoints servicestore.EndpointsStorage, pods servicestore.PodStorage, addressRegistry *atomic.Pointer[addressStore]) (*services, error) {
	// Its own allocators are never called: the hooks that would are replaced below. It needs them for their family.
	unused := &desk{allocation: &allocation{ips: &addresses{prefix: cfg.ServiceIPRange}}}
	shared, _, proxy, err := newServiceREST(getter, unused, endpoints, pods)
	if err != nil {
		return nil, err
	}
	options, err := getter.GetRESTOptions(api.Resource("services"), &api.Service{})
	if err != nil {
		return nil, err
	}
	again := sameStorage(options, shared.Store.Storage.Storage)

	alloc := &allocation{
		ips:   &addresses{prefix: cfg.ServiceIPRange, store: addressRegistry, services: shared.Store, now: time.Now},
		ports: &ports{portRange: cfg.NodePortRange, rows: cfg.NodePorts, services: shared.Store, now: time.Now},
		idle:  make(chan *desk, idleDesks),
	}
	alloc.newDesk = func() (*desk, error) {
		d := &desk{allocation: alloc}
		var err error
		d.hooks, _, _, err = newServiceREST(again, d, deskEndpoints{EndpointsStorage: endpoints, desk: d}, pods)
		return d, err
	}

	shared.Store.BeginCreate = alloc.beginCreate
	shared.Store.BeginUpdate = alloc.beginUpdate
	shared.Store.AfterDelete = alloc.afterDelete

	// Upstream's status store has its AfterDelete (a status update may remove the last finalizer) out of reach, so this
	// one is made as upstream makes it. It allocates nothing.
	status := *shared.Store
	status.UpdateStrategy = svcreg.StatusStrategy
	status.ResetFieldsStrategy = svcreg.StatusStrategy
	status.BeginCreate, status.BeginUpdate = nil, nil

	return &services{
		service: &serviceREST{REST: shared, alloc: alloc},
		status:  &serviceStatusREST{store: &status},
		proxy:   proxy,
	}, nil
}

func newServiceREST(getter generic.RESTOptionsGetter, d *desk, endpoints servicestore.EndpointsStorage, pods servicestore.PodStorage) (*servicestore.REST, *servicestore.StatusREST, *svcreg.ProxyREST, error) {
	byFamily := map[api.IPFamily]ipallocator.Interface{api.IPv4Protocol: deskIPs{desk: d}}
	return servicestore.NewREST(getter, api.IPv4Protocol, byFamily, deskPorts{d}, endpoints, pods, nil)
}

// sameStorage are options that make a store over storage as it is: no second cache, no metrics of its own.
func sameStorage(options generic.RESTOptions, shared storage.Interface) generic.RESTOptionsGetter {
	options.Decorator = func(*storagebackend.ConfigForResource, string, func(runtime.Object) (string, error), func() runtime.Object, func() runtime.Object, storage.AttrFunc, storage.IndexerFuncs, *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
		return shared, func() {}, nil
	}
	options.CountMetricPollPeriod = 0
	options.StorageObjectCountTracker = nil
	return fixedOptions{options}
}

type fixedOptions struct{ options generic.RESTOptions }

func (f fixedOptions) GetRESTOptions(schema.GroupResource, runtime.Object) (generic.RESTOptions, error) {
	return f.options, nil
}

// serviceREST is upstream's, with a transaction around each write.
type serviceREST struct {
	*servicestore.REST
	alloc *allocation
}

// Create stores a new Service.
func (r *serviceREST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	ctx, t, err := withTransaction(ctx)
	if err != nil {
		return nil, err
	}
	out, err := r.REST.Create(ctx, obj, validate, options)
	t.finish(err, r.alloc)
	return out, err
}

// Update changes a Service, or creates it if that is allowed.
func (r *serviceREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, forceAllowCreate bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	ctx, t, err := withTransaction(ctx)
	if err != nil {
		return nil, false, err
	}
	out, created, err := r.REST.Update(ctx, name, info, create, update, forceAllowCreate, options)
	t.finish(err, r.alloc)
	return out, created, err
}

// Destroy closes the store. Upstream's would destroy allocators too, which hold nothing here.
func (r *serviceREST) Destroy() { r.Store.Destroy() }

// serviceStatusREST serves services/status.
type serviceStatusREST struct {
	store *genericregistry.Store
}

func (r *serviceStatusREST) New() runtime.Object { return &api.Service{} }

// Destroy does nothing: the storage is that of services, which closes it.
func (r *serviceStatusREST) Destroy() {}

func (r *serviceStatusREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

// Update changes the status of a Service. It never creates one.
func (r *serviceStatusREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.store.Update(ctx, name, info, create, update, false, options)
}

func (r *serviceStatusREST) ConvertToTable(ctx context.Context, obj runtime.Object, options runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, obj, options)
}

func (r *serviceStatusREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}

var (
	_ rest.CreaterUpdater      = &serviceREST{}
	_ rest.ShortNamesProvider  = &serviceREST{}
	_ rest.CategoriesProvider  = &serviceREST{}
	_ rest.Patcher             = &serviceStatusREST{}
	_ rest.ResetFieldsStrategy = &serviceStatusREST{}
)
