package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// DefaultPrefix is the prefix of all rows, as upstream's.
const DefaultPrefix = "/registry"

const (
	// prefixesKey is where the resource prefixes of what is built in, and ever held rows, are remembered, one row each.
	prefixesKey = "/atoll/prefixes/"
	// builtIn is what such a row says; those of before say nothing.
	builtIn = "built-in"
)

// Config says what a Backend serves from.
type Config struct {
	// Client is the one etcd client of all resources. The Backend does not close it.
	Client *clientv3.Client
	// Prefix of all rows; empty means DefaultPrefix.
	Prefix string
	// StorageFactory knows the codecs, storage versions and resource prefixes of built-in types. Its transport settings
	// are not used; the store is compacted at upstream's interval of five minutes.
	StorageFactory serverstorage.StorageFactory
	// Transformers encrypts values; nil stores them in plain.
	Transformers value.ResourceTransformers
	// Uncached says which resources get no watch cache; nil means DefaultUncached.
	Uncached func(schema.GroupResource) bool
	// Shared is the objects of a resource that every logical cluster has without rows, mirrors excepted. They must be of
	// the registry's internal type, or carry apiVersion and kind. It is asked once for each registry; nil means none.
	Shared func(schema.GroupResource) []runtime.Object
	// Since is when a logical cluster came to be: the creationTimestamp of its shared objects. The zero time is that of one which is
	// not there yet; nil is that for all. It is asked for each request for shared objects, and must not read any.
	// Cached is as far as the watch cache has come.
	Since func(ctx context.Context, cluster logicalcluster.Name, cached bool) (metav1.Time, error)
	// Overlay may put a layer over a resource's store; it sees keys that include the logical cluster, and contexts that
	// name it. It may return nil. It lies above Shared.
	Overlay func(schema.GroupResource) func(inner storage.Interface) storage.Interface
	// FiledBy is a label of a resource by whose value its watch cache files objects, so that a list of all logical clusters by one value
	// looks at no others. It may return the empty string, for none; nil means none for all.
	FiledBy func(schema.GroupResource) (label string)
	// Listed, if not nil, is told how many objects a list had.
	Listed Listed
	// Deleted, if not nil, is told of deletions.
	Deleted Deleted
	// Limits on what a logical cluster may have; the zero value is none, and nil is none for all. It is asked for each write, and
	// must not block.
	Limits func(logicalcluster.Name) Limits
	// Called is how people call a logical cluster, for what they are told; nil means its name. As Limits, it must not block.
	Called func(logicalcluster.Name) string
	// Homes are what rows are created in; the zero value is that they may be created anywhere.
	Homes Homes
	// Clock of the watch caches; nil means the real one.
	Clock clock.WithTicker
}

// Listed is told how many objects of a resource there were in a logical cluster, or one namespace of it, when they were
// listed without selectors. It must not block.
type Listed func(cluster logicalcluster.Name, resource schema.GroupResource, namespace string, objects int64)

// Deleted is told what is deleted here, when etcd has it and before anybody hears that it is done. It must not block.
type Deleted interface {
	// Deleted is told of one object.
	Deleted(cluster logicalcluster.Name, resource schema.GroupResource)
	// AllDeleted is told of a logical cluster that has no rows any more, or fewer: some may have been kept, or the rest be
	// deleted later.
	AllDeleted(cluster logicalcluster.Name)
}

// DefaultUncached names the resources of the StorageFactory that are served from etcd directly: events, as upstream does,
// since they are written far more than read; and API schemas, which decoded are the largest objects there are and which the
// server keeps once for all logical clusters elsewhere. What the factory does not know says so by itself: see Uncached.
func DefaultUncached(gr schema.GroupResource) bool {
	switch gr {
	case schema.GroupResource{Resource: "events"},
		schema.GroupResource{Group: "events.k8s.io", Resource: "events"},
		schema.GroupResource{Group: "apis.kcp.io", Resource: "apiresourceschemas"}:
		return true
	}
	return false
}

// Resource is one open store.
type Resource struct {
	GroupResource schema.GroupResource
	// Prefix is the resource's part of the key, for instance "/configmaps" or "/services/specs".
	Prefix     string
	Namespaced bool
	// New and NewList make the types that Storage reads into.
	New, NewList func() runtime.Object
	// Storage is what the registry has: it wants a logical cluster in the context, and keys as Key makes them.
	Storage storage.Interface

	// Custom says that its objects are of a CustomResourceDefinition, of whichever logical clusters.
	Custom bool

	// What is written passes through both, whoever writes.
	codec       *clusterCodec
	transformer *clusterTransformer
	kv          clientv3.KV

	wait    func(context.Context) error // nil without a cache
	destroy func()
}

// Key is the key that Storage wants for one object, or with name "" for a namespace's range, or with both empty for the
// whole resource. The logical cluster comes from the context, not from the key.
func (r *Resource) Key(namespace, name string) string {
	key := r.Prefix
	if r.Namespaced && namespace != "" {
		key += "/" + namespace
	}
	if name != "" {
		key += "/" + name
	}
	return key
}

// WaitReady returns when the cache of the store, if it has one, has been filled.
func (r *Resource) WaitReady(ctx context.Context) error {
	if r.wait == nil {
		return nil
	}
	return r.wait(ctx)
}

// Backend is the RESTOptionsGetter of all registries, and knows the stores they opened.
type Backend struct {
	client    *clientv3.Client
	watches   *clientv3.Client // client, with watches that keep their backlog
	prefix    string
	factory   serverstorage.StorageFactory
	transform value.ResourceTransformers
	compress  atomic.Bool // see Compress
	uncached  func(schema.GroupResource) bool
	filedBy   func(schema.GroupResource) string
	shared    func(schema.GroupResource) []runtime.Object
	since     func(ctx context.Context, cluster logicalcluster.Name, cached bool) (metav1.Time, error)
	overlay   func(schema.GroupResource) func(storage.Interface) storage.Interface
	listed    Listed
	deleted   Deleted
	homes     Homes
	clock     clock.WithTicker

	compactor interface {
		etcd3.Compactor
		Stop()
	}

	mu        sync.RWMutex                         // guards what follows
	resources map[schema.GroupResource][]*Resource // custom resources may be open more than once, one for each version
	prefixes  map[string]bool                      // every resource prefix that has or had rows

	backlogs backlogs
	usage    *usage // nil without Limits
	lost     lostRows
	looks    chan struct{} // holds one for each page that a pass looks at

	space     func(context.Context) (inUse, quota int64, err error)
	roomEvery time.Duration
}

var _ generic.RESTOptionsGetter = (*Backend)(nil)

// New opens a Backend. Callers destroy it before they stop the etcd it uses.
func New(c Config) (*Backend, error) {
	if c.Client == nil || c.StorageFactory == nil {
		return nil, errors.New("storage: an etcd client and a storage factory are needed")
	}
	b := &Backend{
		client:    c.Client,
		watches:   withBacklogs(c.Client),
		prefix:    c.Prefix,
		factory:   c.StorageFactory,
		uncached:  c.Uncached,
		filedBy:   c.FiledBy,
		shared:    c.Shared,
		since:     c.Since,
		overlay:   c.Overlay,
		listed:    c.Listed,
		deleted:   c.Deleted,
		homes:     c.Homes,
		clock:     c.Clock,
		resources: map[schema.GroupResource][]*Resource{},
		prefixes:  map[string]bool{},
		looks:     make(chan struct{}, maxLooks),
		roomEvery: lookForRoom,
	}
	if c.Transformers != nil {
		b.transform = namedTransformers{c.Transformers}
	}
	b.space = b.spaceOfEtcd
	if b.prefix == "" {
		b.prefix = DefaultPrefix
	}
	if b.since == nil {
		b.since = func(context.Context, logicalcluster.Name, bool) (metav1.Time, error) { return metav1.Time{}, nil }
	}
	if b.clock == nil {
		b.clock = clock.RealClock{}
	}
	if b.uncached == nil {
		b.uncached = DefaultUncached
	}
	b.usage = newUsage(c.Limits, c.Called, b.clock, b.countShare)
	if err := b.loadPrefixes(context.Background()); err != nil {
		return nil, err
	}
	announceFeatures(b.client)
	rooms() // before there is a cacher, which would tell nobody
	b.compactor = etcd3.NewCompactor(b.client, storagebackend.DefaultCompactInterval, clock.RealClock{}, nil)
	return b, nil
}

// GetRESTOptions implements generic.RESTOptionsGetter for built-in types.
func (b *Backend) GetRESTOptions(gr schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	config, err := b.factory.NewConfig(gr, example)
	if err != nil {
		return generic.RESTOptions{}, fmt.Errorf("storage of %s: %w", gr, err)
	}
	from := fromCache
	if b.uncached(gr) {
		from = fromEtcd
	}
	options := b.restOptions(config, b.factory.ResourcePrefix(gr), from)
	// A deletion that asks for it leaves finalizers to server/garbage, which follows these types.
	options.EnableGarbageCollection = true
	return options, nil
}

// serving is what a resource is served from.
type serving int

const (
	fromCache serving = iota
	fromEtcd
	fromFollowed    // etcd, and watches from one of all logical clusters, if somebody has it (Following)
	customResources // etcd: the objects of CustomResourceDefinitions
)

// Uncached returns the RESTOptionsGetter of registries of which the StorageFactory does not know, and that are served from
// etcd directly: CustomResourceDefinitions. Rows are at <prefix>/<group>/<resource>/, encoded by codec.
func (b *Backend) Uncached(codec runtime.Codec) generic.RESTOptionsGetter {
	return uncachedGetter{b, codec, fromFollowed}
}

// Custom is Uncached for the objects of CustomResourceDefinitions: a watch cache spans all logical clusters, and would decode
// them by the schema of one. Of which logical clusters there may be some is recorded by RecordCustom.
func (b *Backend) Custom(codec runtime.Codec) generic.RESTOptionsGetter {
	return uncachedGetter{b, codec, customResources}
}

type uncachedGetter struct {
	backend *Backend
	codec   runtime.Codec
	from    serving
}

func (g uncachedGetter) GetRESTOptions(gr schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	config := storagebackend.NewDefaultConfig(g.backend.prefix, g.codec).ForResource(gr)
	options := g.backend.restOptions(config, uncachedPrefix(gr), g.from)
	options.EnableGarbageCollection = true // server/garbage reads them by Metadata
	return options, nil
}

// HasRows says whether a logical cluster has objects of a resource that is stored as Uncached says, as etcd has it now. No
// store need be open.
func (b *Backend) HasRows(ctx context.Context, cluster logicalcluster.Name, gr schema.GroupResource) (bool, error) {
	key := join(b.prefix, ClusterKey(uncachedPrefix(gr), cluster, "")) + "/"
	got, err := b.client.Get(ctx, key, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(1))
	if err != nil {
		return false, fmt.Errorf("look for %s in logical cluster %q: %w", gr, cluster, err)
	}
	return len(got.Kvs) > 0, nil
}

// CountRows is how many objects of such a resource a logical cluster has in a namespace, as etcd has it now: nothing is read but
// the number.
func (b *Backend) CountRows(ctx context.Context, cluster logicalcluster.Name, gr schema.GroupResource, namespace string) (int64, error) {
	key := join(b.prefix, ClusterKey(uncachedPrefix(gr), cluster, namespace)) + "/"
	got, err := b.client.Get(ctx, key, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, fmt.Errorf("count %s in namespace %q of logical cluster %q: %w", gr, namespace, cluster, err)
	}
	return got.Count, nil
}

func uncachedPrefix(gr schema.GroupResource) string { return "/" + gr.Group + "/" + gr.Resource }

func (b *Backend) restOptions(config *storagebackend.ConfigForResource, prefix string, from serving) generic.RESTOptions {
	config.Transformer = b.transformerOf(config.GroupResource)
	return generic.RESTOptions{
		StorageConfig: config,
		Decorator: func(config *storagebackend.ConfigForResource, resourcePrefix string, keyFunc func(obj runtime.Object) (string, error),
			newFunc, newListFunc func() runtime.Object, attrs storage.AttrFunc, trigger storage.IndexerFuncs, indexers *cache.Indexers,
		) (storage.Interface, factory.DestroyFunc, error) {
			return b.decorate(config, resourcePrefix, keyFunc, newFunc, newListFunc, attrs, trigger, indexers, from)
		},
		ResourcePrefix:          prefix,
		DeleteCollectionWorkers: 1,
	}
}

// Resource returns the newest open store of a resource.
func (b *Backend) Resource(gr schema.GroupResource) (*Resource, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	open := b.resources[gr]
	if len(open) == 0 {
		return nil, false
	}
	return open[len(open)-1], true
}

// Resources returns all open stores, sorted by resource.
func (b *Backend) Resources() []*Resource {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var all []*Resource
	for _, open := range b.resources {
		all = append(all, open...)
	}
	slices.SortStableFunc(all, func(x, y *Resource) int {
		return strings.Compare(x.GroupResource.String(), y.GroupResource.String())
	})
	return all
}

// WaitReady returns when the caches of all stores that are open now have been filled.
func (b *Backend) WaitReady(ctx context.Context) error {
	for _, r := range b.Resources() {
		if err := r.WaitReady(ctx); err != nil {
			return fmt.Errorf("fill the cache of %s: %w", r.GroupResource, err)
		}
	}
	return nil
}

// Destroy closes all stores and stops compaction. The client stays open.
func (b *Backend) Destroy() {
	for _, r := range b.Resources() {
		r.destroy()
	}
	b.compactor.Stop()
}

func (b *Backend) register(r *Resource) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.resources[r.GroupResource] = append(b.resources[r.GroupResource], r)
}

func (b *Backend) forget(r *Resource) {
	b.mu.Lock()
	defer b.mu.Unlock()
	rest := slices.DeleteFunc(slices.Clone(b.resources[r.GroupResource]), func(other *Resource) bool { return other == r })
	if len(rest) == 0 {
		delete(b.resources, r.GroupResource)
		return
	}
	b.resources[r.GroupResource] = rest
}
