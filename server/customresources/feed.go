package customresources

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"google.golang.org/grpc/metadata"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	kubestorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/reflector"
	"atoll.dev/atoll/server/storage"
)

// pageSize of lists, in definitions: decoded and not yet shared, each may be megabytes.
const pageSize = 20

// feed lists and watches the definitions of all logical clusters in the store itself. It shares their specs page by page:
// read through the API they would all be in memory, each by itself, before the first could be shared.
type feed struct {
	rows  *storage.Resource
	specs *specs
}

// IsWatchListSemanticsUnSupported keeps client-go's reflector from collecting the first list in a store of its own, which
// would keep one of all definitions of equal name (it is found by this method's name).
func (*feed) IsWatchListSemanticsUnSupported() bool { return true }

func everywhere(ctx context.Context) context.Context {
	// A stream of its own, lest its events queue up behind those of all watches of uncached resources.
	ctx = metadata.NewOutgoingContext(ctx, metadata.Pairs("source", "definitions"))
	return lcctx.WithCluster(ctx, lcctx.Cluster{Wildcard: true})
}

// ListWithContext lists all definitions. Options are not looked at: it is always all there is, as etcd has it.
func (f *feed) ListWithContext(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
	all := &metainternalversion.List{}
	opts := kubestorage.ListOptions{Recursive: true, Predicate: kubestorage.Everything}
	opts.Predicate.Limit = pageSize
	for {
		page := &apiextensions.CustomResourceDefinitionList{}
		if err := f.rows.Storage.GetList(everywhere(ctx), f.rows.Key("", ""), opts, page); err != nil {
			return nil, fmt.Errorf("list the CustomResourceDefinitions of all logical clusters: %w", err)
		}
		for i := range page.Items {
			def, err := f.specs.define(&page.Items[i])
			if err != nil {
				return nil, err
			}
			all.Items = append(all.Items, def)
		}
		all.ResourceVersion = page.ResourceVersion
		if page.Continue == "" {
			return all, nil
		}
		opts.Predicate.Continue = page.Continue
	}
}

// WatchWithContext watches all definitions, as the store has them. Watches of the definitions of one logical cluster are served from it.
func (f *feed) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w, err := f.rows.Storage.Watch(storage.Following(everywhere(ctx)), f.rows.Key("", ""), kubestorage.ListOptions{
		ResourceVersion: o.ResourceVersion, Recursive: true, Predicate: kubestorage.Everything,
	})
	if err != nil {
		return nil, fmt.Errorf("watch the CustomResourceDefinitions of all logical clusters: %w", err)
	}
	return w, nil
}

// List is for the interface; the reflector prefers ListWithContext.
func (f *feed) List(o metav1.ListOptions) (runtime.Object, error) {
	return f.ListWithContext(context.Background(), o)
}

// Watch is for the interface; the reflector prefers WatchWithContext.
func (f *feed) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return f.WatchWithContext(context.Background(), o)
}

// read returns the definition as etcd has it, and nil if there is none.
func (f *feed) read(ctx context.Context, cluster logicalcluster.Name, name string) (*Definition, error) {
	stored := &apiextensions.CustomResourceDefinition{}
	err := f.rows.Storage.Get(lcctx.WithCluster(ctx, lcctx.Cluster{Name: cluster}), f.rows.Key("", name), kubestorage.GetOptions{}, stored)
	switch {
	case kubestorage.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read CustomResourceDefinition %q of logical cluster %q: %w", name, cluster, err)
	}
	return f.specs.define(stored)
}

// newDefinitions returns those in rows; nothing is known before run.
func newDefinitions(rows *storage.Resource, builtin Names) *Definitions {
	d := &Definitions{
		builtin: builtin, synced: make(chan struct{}),
		clusters: map[logicalcluster.Name]*definitionsOfCluster{}, held: map[string]int{}, resources: map[schema.GroupResource]int{},
		listeners: map[*listener]struct{}{}, kindListeners: map[*kindListener]struct{}{},
	}
	d.feed = &feed{rows: rows, specs: &d.specs}
	return d
}

// run keeps the definitions up to date until ctx ends.
func (d *Definitions) run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	r := cache.NewReflectorWithOptions(d.feed, nil, &store{Definitions: d}, cache.ReflectorOptions{
		Logger: &logger, Name: "definitions", TypeDescription: "CustomResourceDefinitions of all logical clusters", Backoff: reflector.Backoff(),
	})
	r.RunWithContext(ctx)
}

// current returns the definition that a request needs, which is served in that version if there is such a one at all. What
// is known may be a moment older than what another server, or this one, has just written; what is missing is read, and what
// is being deleted is looked for: whoever was told that it is gone is not answered as if it were there.
func (d *Definitions) current(ctx context.Context, cluster logicalcluster.Name, name, version string) (*Definition, error) {
	def, anticipated, ok := d.look(cluster, name)
	answers := ok && d.isServed(def) && serves(def, version)
	if answers && !isGoing(def) {
		return def, nil
	}
	if ok && !anticipated {
		// Anybody may ask again and again for what is not served: only what is newer is worth decoding.
		revision, err := d.feed.rows.Revision(ctx, string(cluster), "", name)
		switch {
		case err != nil || revision == 0:
			return nil, err
		case uint64(revision) > versionOf(def): // read
		case answers:
			return def, nil
		default:
			return nil, nil
		}
	}
	def, err := d.feed.read(ctx, cluster, name)
	if err != nil || def == nil {
		return nil, err
	}
	d.put(def, read)
	// If it is not known now, the watch has told that it is gone.
	def, ok = d.get(cluster, name)
	if !ok || !d.isServed(def) || !serves(def, version) {
		return nil, nil
	}
	return def, nil
}

func serves(def *Definition, version string) bool {
	for _, v := range def.Spec.Versions {
		if v.Name == version {
			return v.Served
		}
	}
	return false
}

// store is what a reflector tells of the definitions.
type store struct {
	*Definitions
	synced sync.Once
}

// Add takes over a definition that is new or has changed.
func (s *store) Add(obj any) error {
	stored, ok := obj.(*apiextensions.CustomResourceDefinition)
	if !ok {
		return fmt.Errorf("take over a CustomResourceDefinition: got a %T", obj)
	}
	def, err := s.specs.define(stored)
	if err != nil {
		return err
	}
	s.put(def, told)
	return nil
}

// Update is Add.
func (s *store) Update(obj any) error { return s.Add(obj) }

// Delete takes over that a definition is gone.
func (s *store) Delete(obj any) error {
	stored, ok := obj.(*apiextensions.CustomResourceDefinition)
	if !ok {
		return fmt.Errorf("take over that a CustomResourceDefinition is gone: got a %T", obj)
	}
	s.drop(lcctx.NameFrom(stored), stored.Name, versionOf(stored))
	return nil
}

// Replace takes over all there are at a resourceVersion.
func (s *store) Replace(objs []any, resourceVersion string) error {
	version, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return fmt.Errorf("take over the CustomResourceDefinitions of all logical clusters at %q: %w", resourceVersion, err)
	}
	there := make(map[key]bool, len(objs))
	for _, obj := range objs {
		def, ok := obj.(*Definition)
		if !ok {
			return fmt.Errorf("take over a list of CustomResourceDefinitions: got a %T", obj)
		}
		there[key{clusterOf(def), def.Name}] = true
		s.put(def, told)
	}
	s.mu.Lock()
	var gone []key
	for cluster, of := range s.clusters {
		for name := range of.byName {
			if !there[key{cluster, name}] {
				gone = append(gone, key{cluster, name})
			}
		}
	}
	s.mu.Unlock()
	for _, k := range gone {
		s.drop(k.cluster, k.name, version)
	}
	s.mu.Lock()
	s.position = max(s.position, version)
	s.mu.Unlock()
	s.synced.Do(func() { close(s.Definitions.synced) })
	return nil
}

// Resync does nothing: whoever wants to look again does so by itself.
func (s *store) Resync() error { return nil }
