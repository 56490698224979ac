package atollapis

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"k8s.io/kubernetes/pkg/api/legacyscheme"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
)

// object is a pointer to one of our types.
type object interface {
	runtime.Object
	metav1.Object
}

// resource is what sets one resource apart from the others. The functions may be nil where there is nothing to do.
type resource[T object] struct {
	version                schema.GroupVersion
	plural, singular       string
	shortNames, categories []string

	new     func() T
	newList func() runtime.Object

	// validName returns what is wrong with an object's name.
	validName func(name string) []string

	// prepareCreate and prepareUpdate complete or correct what was sent; status is dealt with already.
	prepareCreate func(ctx context.Context, obj T)
	prepareUpdate func(ctx context.Context, obj, old T)
	// validate holds for every object, validateCreate and validateUpdate for what is new.
	validate       func(obj T) field.ErrorList
	validateCreate func(ctx context.Context, obj T) field.ErrorList
	validateUpdate func(ctx context.Context, obj, old T) field.ErrorList
	// validateDelete returns an API error where an object must stay.
	validateDelete func(ctx context.Context, obj T) error
	// warn tells who creates an object what he might not expect of it.
	warn func(ctx context.Context, obj T) []string

	// sameSpec says whether two objects want the same.
	sameSpec func(a, b T) bool
	// copySpec and copyStatus copy parts from one object to another; without copyStatus there is no status endpoint.
	copySpec, copyStatus func(to, from T)
	// prepareStatus corrects what was sent to the status endpoint, and validateStatus says what is wrong with it.
	prepareStatus  func(ctx context.Context, obj, old T)
	validateStatus func(ctx context.Context, obj, old T) field.ErrorList
	// statusAtBirth lets the system, and nobody else, create objects with a status.
	statusAtBirth bool
	// decided is set where the server's own controllers write the spec: they say in the same write what they think of it,
	// so that no reader meets a spec with the status of another. Their writes are not tracked by field either: nobody
	// else applies these objects, and it would cost a write an eighth of its time. Who applies one starts the tracking.
	decided bool

	columns []metav1.TableColumnDefinition
	cells   func(obj T) []any
}

// served is a resource of any type.
type served interface {
	groupResource() schema.GroupResource
	groupVersion() schema.GroupVersion
	storage(getter generic.RESTOptionsGetter) (map[string]rest.Storage, error)
}

func (r *resource[T]) groupVersion() schema.GroupVersion { return r.version }

func (r *resource[T]) groupResource() schema.GroupResource {
	return r.version.WithResource(r.plural).GroupResource()
}

// storage builds the registries of the resource, by path: the resource and, where it has one, its status.
func (r *resource[T]) storage(getter generic.RESTOptionsGetter) (map[string]rest.Storage, error) {
	strategy := strategy[T]{r: r, ObjectTyper: legacyscheme.Scheme}
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return r.new() },
		NewListFunc:               r.newList,
		DefaultQualifiedResource:  r.groupResource(),
		SingularQualifiedResource: r.version.WithResource(r.singular).GroupResource(),
		CreateStrategy:            strategy,
		UpdateStrategy:            strategy,
		DeleteStrategy:            strategy,
		ResetFieldsStrategy:       strategy,
		TableConvertor:            table[T]{r},
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: getter}); err != nil {
		return nil, fmt.Errorf("store of %s: %w", r.groupResource(), err)
	}
	out := map[string]rest.Storage{r.plural: &registry[T]{Store: store, r: r}}
	if r.copyStatus != nil {
		status := *store
		status.UpdateStrategy = statusStrategy[T]{strategy}
		status.ResetFieldsStrategy = statusStrategy[T]{strategy}
		out[r.plural+"/status"] = &statusRegistry{store: &status}
	}
	return out, nil
}

// registry is the REST storage of a resource.
type registry[T object] struct {
	*genericregistry.Store
	r *resource[T]
}

var (
	_ rest.StandardStorage     = &registry[object]{}
	_ rest.ShortNamesProvider  = &registry[object]{}
	_ rest.CategoriesProvider  = &registry[object]{}
	_ rest.ResetFieldsStrategy = &registry[object]{}
)

func (g *registry[T]) ShortNames() []string { return g.r.shortNames }
func (g *registry[T]) Categories() []string { return g.r.categories }

func (g *registry[T]) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return g.Store.ResetFieldsStrategy.GetResetFields()
}

// Delete asks the resource whether the object may go.
func (g *registry[T]) Delete(ctx context.Context, name string, admit rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	return g.Store.Delete(ctx, name, g.mayGo(admit), options)
}

// DeleteCollection asks the resource whether each of the objects may go.
func (g *registry[T]) DeleteCollection(ctx context.Context, admit rest.ValidateObjectFunc, options *metav1.DeleteOptions, which *listOptions) (runtime.Object, error) {
	return g.Store.DeleteCollection(ctx, g.mayGo(admit), options, which)
}

func (g *registry[T]) mayGo(admit rest.ValidateObjectFunc) rest.ValidateObjectFunc {
	if g.r.validateDelete == nil {
		return admit
	}
	return func(ctx context.Context, obj runtime.Object) error {
		if err := g.r.validateDelete(ctx, obj.(T)); err != nil {
			return err
		}
		if admit == nil {
			return nil
		}
		return admit(ctx, obj)
	}
}

// statusRegistry is the REST storage of a status endpoint: it reads the object and updates its status.
type statusRegistry struct{ store *genericregistry.Store }

var (
	_ rest.Patcher             = &statusRegistry{}
	_ rest.ResetFieldsStrategy = &statusRegistry{}
	_ rest.TableConvertor      = &statusRegistry{}
)

func (s *statusRegistry) New() runtime.Object { return s.store.New() }

// Destroy does nothing: the store is the resource's.
func (s *statusRegistry) Destroy() {}

func (s *statusRegistry) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return s.store.Get(ctx, name, options)
}

// Update changes the status of an object that exists; it never creates one.
func (s *statusRegistry) Update(ctx context.Context, name string, obj rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return s.store.Update(ctx, name, obj, create, update, false, options)
}

func (s *statusRegistry) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return s.store.ResetFieldsStrategy.GetResetFields()
}

func (s *statusRegistry) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return s.store.ConvertToTable(ctx, obj, options)
}

// provider serves the resources of one group.
type provider struct {
	version   schema.GroupVersion
	resources []served
}

// Providers serve our groups, in the order in which discovery lists them. They are served whatever the resource
// configuration enables. urlBase is the server's address without a path, for what the system says of objects.
func Providers(urlBase string) []controlplaneapiserver.RESTStorageProvider {
	var providers []controlplaneapiserver.RESTStorageProvider
	for _, gv := range GroupVersions() {
		p := provider{version: gv}
		for _, r := range resources(urlBase) {
			if r.groupVersion() == gv {
				p.resources = append(p.resources, r)
			}
		}
		providers = append(providers, p)
	}
	return providers
}

// GroupName is the API group.
func (p provider) GroupName() string { return p.version.Group }

// NewRESTStorage builds the registries of the group over getter.
func (p provider) NewRESTStorage(_ serverstorage.APIResourceConfigSource, getter generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info := genericapiserver.NewDefaultAPIGroupInfo(p.version.Group, legacyscheme.Scheme, legacyscheme.ParameterCodec, legacyscheme.Codecs)
	paths := map[string]rest.Storage{}
	for _, r := range p.resources {
		storage, err := r.storage(getter)
		if err != nil {
			return genericapiserver.APIGroupInfo{}, err
		}
		for path, s := range storage {
			paths[path] = s
		}
	}
	info.VersionedResourcesStorageMap[p.version.Version] = paths
	return info, nil
}
