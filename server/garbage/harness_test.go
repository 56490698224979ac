package garbage_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kubestorage "k8s.io/apiserver/pkg/storage"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	"atoll.dev/atoll/client"
	embeddedetcd "atoll.dev/atoll/embedded-etcd"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server"
	"atoll.dev/atoll/server/garbage"
	"atoll.dev/atoll/server/storage"
	"atoll.dev/atoll/test/framework"
)

// patience is how long anything may take on a busy machine.
const patience = time.Minute

// The logical clusters of the tests.
const (
	shop = logicalcluster.Name("shopname")
	bank = logicalcluster.Name("bankname")
	east = logicalcluster.Name("eastname") // a mirror
)

// anything is a directory that knows every name, and a placer that places everything.
type anything struct{ framework.NoPods }

func (anything) Annotation(logicalcluster.Name, string) string { return "" }

func (anything) KnownPath(logicalcluster.Path) (logicalcluster.Name, bool) { return "", false }
func (anything) Resolve(context.Context, logicalcluster.Path) (logicalcluster.Name, error) {
	return "", lcctx.ErrNotFound
}
func (anything) Known(name logicalcluster.Name) (lcctx.Cluster, bool) {
	return lcctx.Cluster{Name: name, Mirror: name == east}, true
}
func (anything) OnImported(func(logicalcluster.Name)) {}

func (anything) OnGone(func(logicalcluster.Name)) {}

func (anything) Terminating(logicalcluster.Name) bool { return false }
func (anything) Initialized(logicalcluster.Name) bool { return true }
func (anything) WhyNowhere(logicalcluster.Name, schema.GroupResource, string, string, map[string]string) string {
	return ""
}

func (anything) RefusedPods(logicalcluster.Name, schema.GroupResource, string, ctrlclient.Object) ([]string, error) {
	return nil, nil
}

func (anything) MissingClasses(logicalcluster.Name, schema.GroupResource, string, ctrlclient.Object) []string {
	return nil
}
func (anything) PlacedOn(types.UID) (placements, workspaces int) { return 0, 0 }
func (anything) Token(context.Context, logicalcluster.Name, string) (string, bool, error) {
	return "", false, nil
}
func (anything) Accepts(logicalcluster.Name, string) bool { return false }
func (anything) WaitSynced(context.Context) error         { return nil }

// hub is a server in this process and, if it collects, the collector.
type hub struct {
	t         *testing.T
	ctx       context.Context
	etcd      *clientv3.Client
	clients   *client.Clients
	kinds     garbage.Kinds
	collector *garbage.Collector
	// stop ends it all.
	stop func()
}

// start runs a hub on the data of a directory until the test ends, or stop.
func start(t *testing.T, dir string, collects bool) *hub {
	t.Helper()
	return startKnowing(t, dir, collects, func(k garbage.Kinds) garbage.Kinds { return k })
}

// startKnowing runs one whose collector knows other kinds than the server says.
func startKnowing(t *testing.T, dir string, collects bool, change func(garbage.Kinds) garbage.Kinds) *hub {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	etcd, err := embeddedetcd.Start(ctx, embeddedetcd.Options{Dir: filepath.Join(dir, "etcd")})
	must(t, err)
	o := server.NewOptions()
	o.RootDirectory, o.SecurePort = dir, 0
	s, err := server.New(ctx, o, etcd.Client)
	must(t, err)
	s.Join(anything{}, anything{}, anything{}, anything{})
	clients, err := client.New(s.LoopbackConfig())
	must(t, err)
	clients.Objects = s.Everywhere(clients.Objects)
	informers, err := client.NewInformers(clients)
	must(t, err)
	h := &hub{t: t, ctx: ctx, etcd: etcd.Client, clients: clients, kinds: s.Kinds()}
	h.collector, err = garbage.New(clients, informers, garbage.Options{Kinds: change(s.Kinds()), Read: s.Read})
	must(t, err)

	serving, stopServing := context.WithCancel(context.Background())
	var servers, controllers sync.WaitGroup
	servers.Go(func() {
		if err := s.Run(serving); err != nil {
			t.Errorf("server: %v", err)
		}
	})
	controllers.Go(func() { informers.Run(ctx) })
	if collects {
		controllers.Go(func() {
			if err := h.collector.Run(ctx); err != nil && ctx.Err() == nil {
				t.Errorf("collector: %v", err)
			}
		})
	}
	h.stop = sync.OnceFunc(func() {
		cancel()
		controllers.Wait()
		stopServing()
		servers.Wait()
		must(t, etcd.Stop())
	})
	t.Cleanup(h.stop)
	must(t, s.WaitReady(ctx))
	must(t, informers.WaitSynced(ctx))
	return h
}

// overlaid are kinds that are read through something else.
type overlaid struct {
	garbage.Kinds
	layer func(schema.GroupResource, kubestorage.Interface) kubestorage.Interface

	mu     sync.Mutex
	stores map[*storage.Resource]*storage.Resource // each has one that is read instead
}

// over returns kinds whose stores have a layer over them.
func over(layer func(schema.GroupResource, kubestorage.Interface) kubestorage.Interface) func(garbage.Kinds) garbage.Kinds {
	return func(k garbage.Kinds) garbage.Kinds {
		return &overlaid{Kinds: k, layer: layer, stores: map[*storage.Resource]*storage.Resource{}}
	}
}

func (k *overlaid) all(stores []*storage.Resource) []*storage.Resource {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []*storage.Resource
	for _, store := range stores {
		if k.stores[store] == nil {
			layered := *store
			layered.Storage = k.layer(store.GroupResource, store.Storage)
			k.stores[store] = &layered
		}
		all = append(all, k.stores[store])
	}
	return all
}

func (k *overlaid) Stored() ([]*storage.Resource, <-chan struct{}) {
	stores, changed := k.Kinds.Stored()
	return k.all(stores), changed
}

func (k *overlaid) Of(ctx context.Context, cluster logicalcluster.Name) ([]*storage.Resource, error) {
	stores, err := k.Kinds.Of(ctx, cluster)
	return k.all(stores), err
}

func (k *overlaid) Store(gr schema.GroupResource) (*storage.Resource, error) {
	store, err := k.Kinds.Store(gr)
	if err != nil {
		return nil, err
	}
	return k.all([]*storage.Resource{store})[0], nil
}

// place is a namespace of a logical cluster.
type place struct {
	*hub
	t         *testing.T
	cluster   logicalcluster.Name
	namespace string
}

var placed atomic.Int32

// in returns a new namespace of a logical cluster, which is made if it is not there.
func (h *hub) in(t *testing.T, cluster logicalcluster.Name) *place {
	t.Helper()
	p := h.at(t, cluster, fmt.Sprintf("n%d", placed.Add(1)))
	newObject(p, &corev1.ServiceAccount{}, "default") // pods want it
	return p
}

func (h *hub) at(t *testing.T, cluster logicalcluster.Name, namespace string) *place {
	t.Helper()
	lc := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: corev1alpha1.LogicalClusterName}}
	if cluster == east {
		lc.Spec.Use = corev1alpha1.LogicalClusterUseMirror
	}
	for _, obj := range []ctrlclient.Object{lc, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}} {
		if err := h.clients.Objects.Create(client.In(t.Context(), cluster), obj); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	return &place{hub: h, t: t, cluster: cluster, namespace: namespace}
}

func (p *place) ctx() context.Context { return client.In(p.t.Context(), p.cluster) }

// newObject creates an object, in the namespace of the place if its kind has one.
func newObject[T ctrlclient.Object](p *place, obj T, name string, owners ...metav1.OwnerReference) T {
	p.t.Helper()
	obj.SetName(name)
	obj.SetNamespace(p.namespace)
	if namespaced, err := p.clients.Objects.IsObjectNamespaced(obj); err != nil {
		p.t.Fatal(err)
	} else if !namespaced {
		obj.SetNamespace("")
	}
	obj.SetOwnerReferences(owners)
	must(p.t, p.clients.Objects.Create(p.ctx(), obj))
	return obj
}

// configMap makes a ConfigMap, the plainest of things.
func (p *place) configMap(name string, owners ...metav1.OwnerReference) *corev1.ConfigMap {
	p.t.Helper()
	return newObject(p, &corev1.ConfigMap{}, name, owners...)
}

// held is a ConfigMap that goes only after release.
func (p *place) held(name string, owners ...metav1.OwnerReference) *corev1.ConfigMap {
	p.t.Helper()
	return newObject(p, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{hold}}}, name, owners...)
}

const hold = "test.example/hold"

// release takes finalizers off an object, hold if none is given.
func (p *place) release(obj ctrlclient.Object, finalizers ...string) {
	p.t.Helper()
	if len(finalizers) == 0 {
		finalizers = []string{hold}
	}
	patch := fmt.Sprintf(`{"metadata":{"$deleteFromPrimitiveList/finalizers":["%s"]}}`, strings.Join(finalizers, `","`))
	must(p.t, p.clients.Objects.Patch(p.ctx(), obj, ctrlclient.RawPatch(types.StrategicMergePatchType, []byte(patch))))
}

func (p *place) delete(obj ctrlclient.Object, how metav1.DeletionPropagation) {
	p.t.Helper()
	if u, ok := obj.(*unstructured.Unstructured); ok {
		must(p.t, p.resource(u).Delete(p.ctx(), u.GetName(), metav1.DeleteOptions{PropagationPolicy: &how}))
		return
	}
	must(p.t, p.clients.Objects.Delete(p.ctx(), obj, ctrlclient.PropagationPolicy(how)))
}

// owner is a reference to an object.
func (p *place) owner(obj ctrlclient.Object, change ...func(*metav1.OwnerReference)) metav1.OwnerReference {
	p.t.Helper()
	gvk, err := p.clients.Objects.GroupVersionKindFor(obj)
	must(p.t, err)
	ref := metav1.OwnerReference{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind, Name: obj.GetName(), UID: obj.GetUID()}
	for _, c := range change {
		c(&ref)
	}
	return ref
}

func blocking(ref *metav1.OwnerReference) { ref.BlockOwnerDeletion = new(true) }

// get reads an object anew, and says whether it is there, with its UID.
func (p *place) get(obj ctrlclient.Object) (ctrlclient.Object, bool) {
	p.t.Helper()
	now := obj.DeepCopyObject().(ctrlclient.Object)
	var err error
	if u, ok := obj.(*unstructured.Unstructured); ok {
		now, err = p.resource(u).Get(p.ctx(), u.GetName(), metav1.GetOptions{})
	} else {
		err = p.clients.Objects.Get(p.ctx(), ctrlclient.ObjectKeyFromObject(obj), now)
	}
	if apierrors.IsNotFound(err) {
		return nil, false
	}
	must(p.t, err)
	return now, now.GetUID() == obj.GetUID()
}

// until waits until what is there is as wanted; say describes it for the failure.
func (p *place) until(what string, done func() (ok bool, seen string)) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, seen := done()
		if ok {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			p.t.Fatalf("%s: not so within %s, last seen: %s", what, patience, seen)
		}
	}
}

// goes waits until objects are gone.
func (p *place) goes(objs ...ctrlclient.Object) {
	p.t.Helper()
	for _, obj := range objs {
		p.until(fmt.Sprintf("%T %s goes", obj, obj.GetName()), func() (bool, string) {
			now, there := p.get(obj)
			if !there {
				return true, ""
			}
			return false, describe(now)
		})
	}
}

// becomes waits until an object is being deleted or not, and has these owners, by name, and these finalizers.
func (p *place) becomes(obj ctrlclient.Object, going bool, owners, finalizers string) {
	p.t.Helper()
	p.until(fmt.Sprintf("%T %s changes", obj, obj.GetName()), func() (bool, string) {
		now, there := p.get(obj)
		if !there {
			return false, "it is gone"
		}
		var names []string
		for _, ref := range now.GetOwnerReferences() {
			names = append(names, ref.Name)
		}
		return (now.GetDeletionTimestamp() != nil) == going && strings.Join(names, " ") == owners &&
			strings.Join(now.GetFinalizers(), " ") == finalizers, describe(now)
	})
}

// terminates waits until an object that stays is being deleted.
func (p *place) terminates(obj ctrlclient.Object) {
	p.t.Helper()
	p.until(fmt.Sprintf("%T %s is deleted", obj, obj.GetName()), func() (bool, string) {
		now, there := p.get(obj)
		if !there {
			return false, "it is gone"
		}
		return now.GetDeletionTimestamp() != nil, describe(now)
	})
}

// stay checks that objects are there, unharmed, after the collector has looked at everything so far: each worker is given
// something to collect, and then something else.
func (p *place) stay(objs ...ctrlclient.Object) {
	p.t.Helper()
	for range 2 {
		var canaries []ctrlclient.Object
		for range 20 {
			name := fmt.Sprintf("canary%d", placed.Add(1))
			canaries = append(canaries, p.configMap(name, metav1.OwnerReference{APIVersion: "v1", Kind: "Secret", Name: name, UID: "nobody"}))
		}
		p.goes(canaries...)
	}
	for _, obj := range objs {
		now, there := p.get(obj)
		if !there {
			p.t.Errorf("%T %s is gone", obj, obj.GetName())
		} else if now.GetDeletionTimestamp() != nil && obj.GetDeletionTimestamp() == nil {
			p.t.Errorf("%T %s is being deleted: %s", obj, obj.GetName(), describe(now))
		}
	}
}

func describe(obj ctrlclient.Object) string {
	var owners []string
	for _, ref := range obj.GetOwnerReferences() {
		owners = append(owners, ref.Kind+"/"+ref.Name)
	}
	return fmt.Sprintf("%s with UID %s, owners %v, finalizers %v, deleted %v", obj.GetName(), obj.GetUID(), owners, obj.GetFinalizers(), obj.GetDeletionTimestamp())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
