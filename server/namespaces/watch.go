package namespaces

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/reflector"
)

// pageSize of the first list, in objects of some 500 bytes.
const pageSize = 2000

// watcher watches the metadata of the objects of one kind and name in all namespaces of all logical clusters, and keeps
// none of them: it is the store of a cache.Reflector, which lists and watches.
type watcher struct {
	objects ctrlclient.WithWatch
	kind    metav1.TypeMeta
	name    string
	// right says whether an object seen for the first time needs no closer look.
	right func(*metav1.PartialObjectMetadata) bool
	// changes says whether an object that was changed needs one.
	changes bool
	// all returns the keys of the namespaces that should have the object; check looks closer at one.
	all   func() []client.Key
	check func(client.Key)
}

func (c *Controller) watchers() []*watcher {
	all := func() []client.Key {
		namespaces := c.informers.Namespaces.All()
		keys := make([]client.Key, len(namespaces))
		for i, ns := range namespaces {
			keys[i] = client.KeyOf(ns)
		}
		return keys
	}
	return []*watcher{
		{
			objects: c.clients.Objects, kind: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, name: defaultServiceAccount,
			right: func(*metav1.PartialObjectMetadata) bool { return true },
			all:   all, check: c.defaults.Add,
		},
		{
			objects: c.clients.Objects, kind: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, name: rootCAConfigMap,
			right: func(m *metav1.PartialObjectMetadata) bool {
				return m.Annotations[rootCAHashAnnotation] == c.rootCA.hash
			},
			changes: true,
			all:     all, check: c.defaults.Add,
		},
	}
}

func (w *watcher) run(ctx context.Context) {
	r := cache.NewReflectorWithOptions(w, nil, w, cache.ReflectorOptions{
		Name: "namespaces", TypeDescription: w.kind.Kind + " " + w.name, Backoff: reflector.Backoff(),
	})
	r.WatchListPageSize = pageSize
	r.RunWithContext(ctx)
}

// Add takes an object that is new.
func (w *watcher) Add(obj any) error {
	if m, ok := obj.(*metav1.PartialObjectMetadata); ok && !w.right(m) {
		w.check(namespaceOf(m))
	}
	return nil
}

// Update takes an object that was changed.
func (w *watcher) Update(obj any) error {
	if m, ok := obj.(*metav1.PartialObjectMetadata); ok && w.changes {
		w.check(namespaceOf(m))
	}
	return nil
}

// Delete takes an object that is gone.
func (w *watcher) Delete(obj any) error {
	if m, ok := obj.(*metav1.PartialObjectMetadata); ok {
		w.check(namespaceOf(m))
	}
	return nil
}

// Replace takes all there are, and finds the namespaces that lack theirs.
func (w *watcher) Replace(objs []any, _ string) error {
	have := make(map[client.Key]struct{}, len(objs))
	for _, obj := range objs {
		if m, ok := obj.(*metav1.PartialObjectMetadata); ok && w.right(m) {
			have[namespaceOf(m)] = struct{}{}
		}
	}
	for _, key := range w.all() {
		if _, ok := have[key]; !ok {
			w.check(key)
		}
	}
	return nil
}

// Resync does nothing: there is nothing kept that could be told again.
func (w *watcher) Resync() error { return nil }

func namespaceOf(m *metav1.PartialObjectMetadata) client.Key {
	return client.Key{Cluster: lcctx.NameFrom(m), Name: m.Namespace}
}

// IsWatchListSemanticsUnSupported keeps the reflector from collecting the first list in a store of its own, which would
// keep one of all these objects of equal name and namespace (it is found by this method's name).
func (w *watcher) IsWatchListSemanticsUnSupported() bool { return true }

func (w *watcher) options(o metav1.ListOptions) *ctrlclient.ListOptions {
	o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, w.name).String()
	return &ctrlclient.ListOptions{Raw: &o, Limit: o.Limit, Continue: o.Continue}
}

func (w *watcher) newList() *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.APIVersion, list.Kind = w.kind.APIVersion, w.kind.Kind+"List"
	return list
}

// ListWithContext lists the objects everywhere.
func (w *watcher) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	list := w.newList()
	if err := w.objects.List(client.Everywhere(ctx), list, w.options(reflector.ListOptions(o))); err != nil {
		return nil, err
	}
	return list, nil
}

// WatchWithContext watches the objects everywhere.
func (w *watcher) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return w.objects.Watch(client.Everywhere(ctx), w.newList(), w.options(o))
}

// List is for the interface; the reflector prefers ListWithContext.
func (w *watcher) List(o metav1.ListOptions) (runtime.Object, error) {
	return w.ListWithContext(context.Background(), o)
}

// Watch is for the interface; the reflector prefers WatchWithContext.
func (w *watcher) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return w.WatchWithContext(context.Background(), o)
}
