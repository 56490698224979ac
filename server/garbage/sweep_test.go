package garbage_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kubestorage "k8s.io/apiserver/pkg/storage"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/garbage"
	"atoll.dev/atoll/server/storage"
)

// unheard are kinds one of which the collector does not follow until it hears of it, as one that was defined a moment ago, or of
// which another server knows first.
type unheard struct {
	garbage.Kinds
	of    string
	hears chan struct{} // closed when it does
}

func (k unheard) Stored() ([]*storage.Resource, <-chan struct{}) {
	stores, changed := k.Kinds.Stored()
	select {
	case <-k.hears:
		return stores, changed
	default:
	}
	return slices.DeleteFunc(slices.Clone(stores), func(r *storage.Resource) bool { return r.GroupResource.Resource == k.of }), k.hears
}

// letGo takes the finalizers off a custom resource.
func (p *place) letGo(u *unstructured.Unstructured) {
	p.t.Helper()
	_, err := p.resource(u).Patch(p.ctx(), u.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	must(p.t, err)
}

// startUnheard starts a hub whose collector hears of Widgets, which shop defines, only later.
func startUnheard(t *testing.T) (p *place, hears func()) {
	k := unheard{of: "widgets", hears: make(chan struct{})}
	h := startKnowing(t, t.TempDir(), true, func(kinds garbage.Kinds) garbage.Kinds {
		k.Kinds = kinds
		return k
	})
	p = h.at(t, shop, "ns")
	p.define("Widget", apiextensionsv1.NamespaceScoped)
	return p, func() { close(k.hears) }
}

// TestOrphansWhatNobodyFollowsYet: what is to be kept is, whether or not anybody has heard of its kind.
func TestOrphansWhatNobodyFollowsYet(t *testing.T) {
	p, hears := startUnheard(t)
	leaves := p.configMap("leaves")
	kept := p.custom("Widget", "kept", "ns", p.owner(leaves))
	p.delete(leaves, orphan)
	p.goes(leaves)
	hears()
	p.goes(p.custom("Widget", "after", "ns", metav1.OwnerReference{APIVersion: "v1", Kind: "Secret", Name: "x", UID: "x"})) // it is heard of
	p.stay(kept)
	p.becomes(kept, false, "", "")
}

// TestGoesAfterWhatNobodyFollowsYet: what a logical cluster may have is looked for in etcd, before what owns it goes for good.
func TestGoesAfterWhatNobodyFollowsYet(t *testing.T) {
	p, hears := startUnheard(t)
	waits := p.configMap("waits")
	held := p.heldCustom("Widget", "held", "ns", []string{hold}, p.owner(waits, blocking))
	p.delete(waits, foreground)
	p.terminates(held)

	root := p.configMap("root")
	between := p.configMap("between", p.owner(root, blocking))
	below := p.heldCustom("Widget", "below", "ns", []string{hold}, p.owner(between, blocking))
	p.delete(root, foreground)
	p.terminates(below)

	check := func() {
		p.stay()
		p.becomes(waits, true, "", foregroundFinalizer)
		p.becomes(between, true, "root", foregroundFinalizer)
		p.becomes(root, true, "", foregroundFinalizer)
	}
	check()
	hears()
	check()
	p.letGo(held)
	p.letGo(below)
	p.goes(held, waits, below, between, root)
}

// asked counts how often each resource of a logical cluster is listed.
type asked struct {
	kubestorage.Interface
	count *atomic.Int32
}

func (s asked) GetList(ctx context.Context, key string, opts kubestorage.ListOptions, list runtime.Object) error {
	if c, _ := lcctx.ClusterFrom(ctx); c.Name == bank && !c.Wildcard {
		s.count.Add(1)
	}
	return s.Interface.GetList(ctx, key, opts, list)
}

// TestLooksForWhatAWorkspaceHas: what others define costs a deletion nothing.
func TestLooksForWhatAWorkspaceHas(t *testing.T) {
	widgets, gadgets, secrets := &atomic.Int32{}, &atomic.Int32{}, &atomic.Int32{}
	h := startKnowing(t, t.TempDir(), true, over(func(gr schema.GroupResource, inner kubestorage.Interface) kubestorage.Interface {
		count := map[string]*atomic.Int32{"widgets": widgets, "gadgets": gadgets, "secrets": secrets}[gr.Resource]
		if count == nil {
			return inner
		}
		return asked{inner, count}
	}))
	p, other := h.at(t, bank, "ns"), h.at(t, shop, "ns")
	other.define("Widget", apiextensionsv1.NamespaceScoped)
	p.define("Gadget", apiextensionsv1.NamespaceScoped)
	widgets.Store(0)
	gadgets.Store(0)
	for i := range 3 {
		o := p.configMap(fmt.Sprintf("o%d", i))
		d := p.custom("Gadget", fmt.Sprintf("d%d", i), "ns", p.owner(o))
		p.delete(o, orphan)
		p.goes(o)
		p.becomes(d, false, "", "")
	}
	if widgets.Load() > 0 || gadgets.Load() < 3 || secrets.Load() < 3 {
		t.Errorf("listed what others define %d times, want 0; its own %d times and its Secrets %d, want 3 or more",
			widgets.Load(), gadgets.Load(), secrets.Load())
	}
}

// counted counts how often somebody asks what a logical cluster may have.
type counted struct {
	garbage.Kinds
	asked *atomic.Int32
}

func (k counted) Of(ctx context.Context, cluster logicalcluster.Name) ([]*storage.Resource, error) {
	k.asked.Add(1)
	return k.Kinds.Of(ctx, cluster)
}

// TestLeavesAskOnce: of a foreground deletion not each leaf asks etcd what its logical cluster may have.
func TestLeavesAskOnce(t *testing.T) {
	asked := &atomic.Int32{}
	p := startKnowing(t, t.TempDir(), true, func(k garbage.Kinds) garbage.Kinds { return counted{k, asked} }).at(t, shop, "ns")
	const n = 200
	o := p.configMap("o")
	var leaves []ctrlclient.Object
	for i := range n {
		leaves = append(leaves, p.configMap(fmt.Sprint("leaf", i), p.owner(o, blocking)))
	}
	p.stay()
	asked.Store(0)
	p.delete(o, foreground)
	p.goes(leaves...)
	p.goes(o)
	// Workers that ask at once ask each for itself, and each sweep does.
	if got := asked.Load(); got == 0 || got > n/4 {
		t.Errorf("asked %d times for %d leaves", got, n)
	}
}

// TestWhatIsNotOnRecord: definitions from before there were records are looked for, too, and the next start has them on record.
func TestWhatIsNotOnRecord(t *testing.T) {
	dir := t.TempDir()
	h := start(t, dir, true)
	p := h.at(t, shop, "ns")
	p.define("Widget", apiextensionsv1.NamespaceScoped)
	records := func() (keys []string) {
		got, err := h.etcd.Get(t.Context(), "/atoll/custom/"+string(shop)+"/", clientv3.WithPrefix())
		must(t, err)
		for _, kv := range got.Kvs {
			keys = append(keys, string(kv.Key))
		}
		return keys
	}
	before := records()
	if len(before) != 1 {
		t.Fatalf("on record: %v", before)
	}
	_, err := h.etcd.Delete(t.Context(), before[0])
	must(t, err)
	leaves := p.configMap("leaves")
	kept := p.custom("Widget", "kept", "ns", p.owner(leaves))
	stores, err := h.kinds.Of(t.Context(), shop)
	must(t, err)
	if !slices.ContainsFunc(stores, func(r *storage.Resource) bool { return r.GroupResource.Resource == "widgets" }) {
		t.Error("what is not on record is not looked for")
	}
	p.delete(leaves, orphan)
	p.goes(leaves)
	p.becomes(kept, false, "", "")
	h.stop()
	h = start(t, dir, true)
	p.hub = h
	p.until("it is on record", func() (bool, string) {
		now := records()
		return slices.Equal(now, before), fmt.Sprint(now)
	})
	p.stay(kept)
}
