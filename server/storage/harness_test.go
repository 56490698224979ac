package storage

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	serveroptions "k8s.io/apiserver/pkg/server/options"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	api "k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/events/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	"k8s.io/kubernetes/pkg/controlplane"
	"k8s.io/kubernetes/pkg/kubeapiserver"
	configmapstore "k8s.io/kubernetes/pkg/registry/core/configmap/storage"
	eventstore "k8s.io/kubernetes/pkg/registry/core/event/storage"
	namespacestore "k8s.io/kubernetes/pkg/registry/core/namespace/storage"
	claimstore "k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim/storage"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"
	secretstore "k8s.io/kubernetes/pkg/registry/core/secret/storage"
	clusterrolestore "k8s.io/kubernetes/pkg/registry/rbac/clusterrole/storage"
	rolestore "k8s.io/kubernetes/pkg/registry/rbac/role/storage"

	embeddedetcd "atoll.dev/atoll/embedded-etcd"
	lc "atoll.dev/atoll/internal/logicalcluster"
	"github.com/kcp-dev/logicalcluster/v3"
)

// etcd is shared by all tests of the package; each run of each test has its own prefix in it.
var etcd *embeddedetcd.Etcd

// runs counts the runs that have a prefix, prefixes has theirs.
var (
	runs     atomic.Int64
	prefixes sync.Map // from testing.TB to string
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "atoll-storage-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	etcd, err = embeddedetcd.Start(context.Background(), embeddedetcd.Options{Dir: dir})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer etcd.Stop()
	return m.Run()
}

// served is a Backend with a few of upstream's registries on it.
type served struct {
	*Backend
	configMaps, secrets, namespaces, pods, claims, events, clusterRoles, roles *genericregistry.Store
}

// serve opens a Backend and the registries, and waits for the caches. modify may be nil.
func serve(t testing.TB, prefix string, modify func(*Config)) *served {
	t.Helper()
	return serveOn(t, etcd.Client, prefix, modify)
}

func serveOn(t testing.TB, client *clientv3.Client, prefix string, modify func(*Config)) *served {
	t.Helper()
	config := Config{Client: client, Prefix: prefix, StorageFactory: storageFactory(t, prefix, runtime.ContentTypeProtobuf)}
	if modify != nil {
		modify(&config)
	}
	b, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Destroy)
	s := &served{Backend: b}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	cm, err := configmapstore.NewREST(b)
	must(err)
	secrets, err := secretstore.NewREST(b)
	must(err)
	namespaces, _, _, err := namespacestore.NewREST(b)
	must(err)
	pods, err := podstore.NewStorage(b, nil, nil, nil, nil)
	must(err)
	claims, _, err := claimstore.NewREST(b)
	must(err)
	events, err := eventstore.NewREST(b, 3600)
	must(err)
	clusterRoles, err := clusterrolestore.NewREST(b)
	must(err)
	roles, err := rolestore.NewREST(b)
	must(err)
	s.configMaps, s.secrets, s.pods, s.events = cm.Store, secrets.Store, pods.Pod.Store, events.Store
	s.claims, s.clusterRoles, s.roles = claims.Store, clusterRoles.Store, roles.Store
	// The namespace REST hides its store; the Backend knows it.
	r, _ := b.Resource(schema.GroupResource{Resource: "namespaces"})
	s.namespaces = &genericregistry.Store{NewFunc: r.New, NewListFunc: r.NewList}
	s.namespaces.Storage.Storage = r.Storage
	_ = namespaces
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	must(b.WaitReady(ctx))
	return s
}

// storageFactory is that of what is built in, encoded as mediaType says.
func storageFactory(t testing.TB, prefix, mediaType string) serverstorage.StorageFactory {
	t.Helper()
	etcdOptions := serveroptions.NewEtcdOptions(storagebackend.NewDefaultConfig(prefix, nil))
	etcdOptions.DefaultStorageMediaType = mediaType
	config := kubeapiserver.NewStorageFactoryConfig()
	config.APIResourceConfig = controlplane.DefaultAPIResourceConfigSource()
	factory, err := config.Complete(etcdOptions).New()
	if err != nil {
		t.Fatal(err)
	}
	return factory
}

// prefixOf returns the prefix of a run of a test: the same as often as it is asked for, and another one with -count.
func prefixOf(t testing.TB) string {
	prefix, known := prefixes.Load(t)
	if !known {
		prefix, _ = prefixes.LoadOrStore(t, fmt.Sprintf("/%s-%d", t.Name(), runs.Add(1)))
	}
	return prefix.(string)
}

// in is the context of a request to a logical cluster, and to a namespace in it if given.
func in(cluster string, namespace ...string) context.Context {
	return within(lc.Cluster{Name: logicalcluster.Name(cluster)}, namespace...)
}

// everywhere is the context of a wildcard request.
func everywhere(namespace ...string) context.Context {
	return within(lc.Cluster{Wildcard: true}, namespace...)
}

func within(c lc.Cluster, namespace ...string) context.Context {
	ctx := genericapirequest.WithNamespace(lc.WithCluster(genericapirequest.NewContext(), c), metav1.NamespaceNone)
	info := &genericapirequest.RequestInfo{IsResourceRequest: true}
	for _, ns := range namespace {
		ctx = genericapirequest.WithNamespace(ctx, ns)
		info.Namespace = ns
	}
	return genericapirequest.WithRequestInfo(ctx, info)
}

func configMap(namespace, name string, data ...string) *api.ConfigMap {
	cm := &api.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	for _, v := range data {
		cm.Data = map[string]string{"v": v}
	}
	return cm
}

// put creates a config map in default with one value.
func put(t testing.TB, s *served, cluster, name, value string) *api.ConfigMap {
	t.Helper()
	return create(t, s.configMaps, in(cluster, "default"), configMap("default", name, value)).(*api.ConfigMap)
}

func create(t testing.TB, store *genericregistry.Store, ctx context.Context, obj runtime.Object) runtime.Object {
	t.Helper()
	out, err := store.Create(ctx, obj, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	return out
}

// changed is an update of what is stored.
func changed[T runtime.Object](change func(T)) rest.UpdatedObjectInfo {
	return rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		obj := old.DeepCopyObject().(T)
		change(obj)
		return obj, nil
	})
}

// names is what a list returns, as "cluster/namespace/name".
func names(t testing.TB, store *genericregistry.Store, ctx context.Context, opts *metainternalversion.ListOptions) []string {
	t.Helper()
	got, _ := page(t, store, ctx, opts)
	return got
}

// page is names, and the continue token.
func page(t testing.TB, store *genericregistry.Store, ctx context.Context, opts *metainternalversion.ListOptions) ([]string, string) {
	t.Helper()
	list, err := store.List(ctx, opts)
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	found := []string{}
	err = meta.EachListItem(list, func(obj runtime.Object) error {
		found = append(found, describe(obj))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		t.Fatal(err)
	}
	return found, accessor.GetContinue()
}

func describe(obj runtime.Object) string {
	object, err := meta.Accessor(obj)
	if err != nil {
		return err.Error()
	}
	id := lc.NameFrom(object).String() + "/"
	if object.GetNamespace() != "" {
		id += object.GetNamespace() + "/"
	}
	return id + object.GetName()
}

// next is the next event of a watch, as "ADDED cluster/namespace/name".
func next(t testing.TB, w watch.Interface) (string, watch.Event) {
	t.Helper()
	description, event := nextOrEnd(t, w)
	if description == ended {
		t.Fatal(ended)
	}
	return description, event
}

const ended = "the watch ended"

// nextOrEnd is next, or ended without an event.
func nextOrEnd(t testing.TB, w watch.Interface) (string, watch.Event) {
	t.Helper()
	select {
	case event, ok := <-w.ResultChan():
		if !ok {
			return ended, watch.Event{}
		}
		if event.Type == watch.Error {
			return fmt.Sprintf("ERROR %v", event.Object), event
		}
		return string(event.Type) + " " + describe(event.Object), event
	case <-time.After(20 * time.Second):
		t.Fatal("no event for 20 s")
	}
	return "", watch.Event{}
}

// wantEvents fails unless the next events are want.
func wantEvents(t testing.TB, w watch.Interface, want ...string) {
	t.Helper()
	for _, event := range want {
		if got, _ := next(t, w); got != event {
			t.Fatalf("event %q, want %q", got, event)
		}
	}
}

func startWatch(t testing.TB, store *genericregistry.Store, ctx context.Context, opts *metainternalversion.ListOptions) watch.Interface {
	t.Helper()
	w, err := store.Watch(ctx, opts)
	if err != nil {
		t.Fatalf("watch: %v", err)
	}
	t.Cleanup(w.Stop)
	return w
}

func logicalName(name string) logicalcluster.Name { return logicalcluster.Name(name) }
