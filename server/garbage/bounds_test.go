package garbage_test

import (
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kubestorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/discovery"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/garbage"
)

// TestKeepsToItsLogicalCluster: an owner of another logical cluster is none, whatever its name and UID.
func TestKeepsToItsLogicalCluster(t *testing.T) {
	h := start(t, t.TempDir(), true)
	inShop, inBank := h.at(t, shop, "same"), h.at(t, bank, "same")

	t.Run("equal names", func(t *testing.T) {
		a, b := inShop.configMap("o"), inBank.configMap("o")
		ofA, ofB := inShop.configMap("d", inShop.owner(a)), inBank.configMap("d", inBank.owner(b))
		inShop.delete(a, background)
		inShop.goes(a, ofA)
		inBank.stay(b, ofB)
	})
	t.Run("the UID of an owner elsewhere", func(t *testing.T) {
		a := inShop.configMap("a")
		kept := inShop.configMap("kept", inShop.owner(a))
		lost := inBank.configMap("lost", inShop.owner(a)) // nothing in bank has that name
		b := inBank.configMap("b")
		claims := inShop.owner(a)
		claims.Name = b.Name
		lostToo := inBank.configMap("lost-too", claims) // something has that name, and another UID
		inBank.goes(lost, lostToo)
		inShop.stay(a, kept)
		inBank.stay(b)
	})
	t.Run("one UID in both", func(t *testing.T) {
		a := inShop.configMap("twin")
		row, err := h.etcd.Get(t.Context(), "/registry/configmaps/"+string(shop)+"/same/twin")
		must(t, err)
		_, err = h.etcd.Put(t.Context(), "/registry/configmaps/"+string(bank)+"/same/twin", string(row.Kvs[0].Value))
		must(t, err)
		ofA, ofB := inShop.held("of-twin", inShop.owner(a, blocking)), inBank.held("of-twin", inBank.owner(a, blocking))
		inBank.stay(a, ofB)
		inShop.delete(a, foreground)
		inShop.becomes(ofA, true, "twin", hold)
		inBank.stay(a, ofB)
		inBank.delete(a, orphan)
		inBank.goes(a)
		inBank.becomes(ofB, false, "", hold)
		inShop.becomes(a, true, "", foregroundFinalizer)
		inShop.becomes(ofA, true, "twin", hold)
		inShop.release(ofA)
		inShop.goes(ofA, a)
	})
}

// TestLeavesMirrorsAlone: what is in a mirror is the splitter's and the syncer's.
func TestLeavesMirrorsAlone(t *testing.T) {
	dir := t.TempDir()
	h := start(t, dir, true)
	inEast, inShop := h.at(t, east, "ns"), h.at(t, shop, "ns")
	d := inEast.configMap("d", metav1.OwnerReference{APIVersion: "v1", Kind: "Secret", Name: "x", UID: "x"})
	o := inEast.configMap("o")
	ofO := inEast.configMap("of-o", inEast.owner(o))
	inEast.delete(o, background)
	waits := inEast.configMap("waits")
	inEast.delete(waits, foreground)
	leaves := inEast.configMap("leaves")
	ofLeaves := inEast.configMap("of-leaves", inEast.owner(leaves))
	inEast.delete(leaves, orphan)

	check := func(reason string) {
		inShop.stay()
		inEast.becomes(d, false, "x", "")
		inEast.becomes(ofO, false, "o", "")
		inEast.becomes(waits, true, "", foregroundFinalizer)
		inEast.becomes(leaves, true, "", metav1.FinalizerOrphanDependents)
		inEast.becomes(ofLeaves, false, "leaves", "")
		if t.Failed() {
			t.Fatal(reason)
		}
	}
	check("as it happens")
	h.stop()
	again := start(t, dir, true)
	inEast.hub, inShop.hub = again, again
	check("after a restart")
}

// TestGoesOnAfterARestart: nothing is kept but in memory, and nothing of what was begun is lost.
func TestGoesOnAfterARestart(t *testing.T) {
	dir := t.TempDir()
	h := start(t, dir, false) // nobody collects
	p := h.at(t, shop, "ns")
	gone, waits, leaves, alone := p.configMap("gone"), p.configMap("waits"), p.configMap("leaves"), p.configMap("alone")
	ofGone, ofLeaves := p.configMap("of-gone", p.owner(gone)), p.configMap("of-leaves", p.owner(leaves, blocking))
	ofWaits := newObject(p, &corev1.Secret{}, "of-waits", p.owner(waits, blocking))
	held := p.held("held", p.owner(ofWaits, blocking))
	many := p.configMap("many")
	const n = 300
	for i := range n {
		p.configMap(fmt.Sprintf("of-many-%d", i), p.owner(many))
	}
	p.delete(gone, background)
	p.delete(waits, foreground)
	p.delete(leaves, orphan)
	p.delete(many, background)
	p.delete(alone, foreground)
	h.stop()

	// It is stopped in the middle of it, and starts again.
	h = start(t, dir, true)
	p.hub = h
	p.until("some of many go", func() (bool, string) {
		left := p.count()
		return left < n, fmt.Sprintf("%d are left", left)
	})
	h.stop()
	p.hub = start(t, dir, true)
	p.goes(gone, ofGone, leaves, alone)
	p.becomes(ofLeaves, false, "", "")
	p.becomes(held, true, "of-waits", hold)
	p.becomes(ofWaits, true, "waits", foregroundFinalizer)
	p.becomes(waits, true, "", foregroundFinalizer)
	p.release(held)
	p.goes(held, ofWaits, waits)
	p.until("all of many go", func() (bool, string) {
		left := p.count()
		return left == 1, fmt.Sprintf("%d are left", left) // of-leaves
	})
	p.until("nothing is kept in memory", func() (bool, string) {
		n := p.collector.Nodes()
		return n == 0, fmt.Sprintf("%d objects", n)
	})
}

// TestCannotSee: a kind of which not all can be read keeps what may own such objects from going, for as long.
func TestCannotSee(t *testing.T) {
	h := start(t, t.TempDir(), true)
	p, other := h.at(t, shop, "ns"), h.at(t, bank, "ns")
	row := "/registry/secrets/" + string(shop) + "/ns/broken"
	_, err := h.etcd.Put(t.Context(), row, "k8s\x00nonsense")
	must(t, err)
	p.until("the row is known to be broken", func() (bool, string) {
		err := p.clients.Objects.List(p.ctx(), &corev1.SecretList{})
		return err != nil, "secrets are listed"
	})
	gone, waits, leaves := p.configMap("gone"), p.configMap("waits"), p.configMap("leaves")
	ofGone, ofLeaves := p.configMap("of-gone", p.owner(gone)), p.configMap("of-leaves", p.owner(leaves))
	lost := p.configMap("lost", metav1.OwnerReference{APIVersion: "v1", Kind: "Secret", Name: "broken", UID: "x"})
	p.delete(gone, background)
	p.goes(gone, ofGone)
	p.delete(waits, foreground)
	p.delete(leaves, orphan)
	p.stay(ofLeaves, lost)
	p.becomes(waits, true, "", foregroundFinalizer)
	p.becomes(leaves, true, "", metav1.FinalizerOrphanDependents)

	o := other.configMap("o")
	other.delete(o, foreground)
	other.goes(o) // it is nobody else's trouble

	_, err = h.etcd.Delete(t.Context(), row)
	must(t, err)
	p.goes(waits, leaves, lost)
	p.becomes(ofLeaves, false, "", "")
}

// blindTo are kinds of which the collector cannot follow one, until it sees again; what one logical cluster has of it can
// be read.
func blindTo(resource string, sees *atomic.Bool) func(garbage.Kinds) garbage.Kinds {
	return over(func(gr schema.GroupResource, inner kubestorage.Interface) kubestorage.Interface {
		if gr.Resource != resource {
			return inner
		}
		return noWildcard{inner, sees}
	})
}

// noWildcard is a store that is not read as a whole.
type noWildcard struct {
	kubestorage.Interface
	sees *atomic.Bool
}

func (s noWildcard) GetList(ctx context.Context, key string, opts kubestorage.ListOptions, list runtime.Object) error {
	if c, _ := lcctx.ClusterFrom(ctx); c.Wildcard && !s.sees.Load() {
		return errors.New("not now")
	}
	return s.Interface.GetList(ctx, key, opts, list)
}

// TestWatchIsBehind: what the watches have not told of yet is seen before something goes for good.
func TestWatchIsBehind(t *testing.T) {
	sees := &atomic.Bool{}
	h := startKnowing(t, t.TempDir(), true, blindTo("secrets", sees))
	p := h.at(t, shop, "ns")
	waits, leaves := p.configMap("waits"), p.configMap("leaves")
	held := newObject(p, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{hold}}}, "held", p.owner(waits, blocking))
	kept := newObject(p, &corev1.Secret{}, "kept", p.owner(leaves))
	p.delete(waits, foreground)
	p.terminates(held)
	p.delete(leaves, orphan)
	p.goes(leaves)
	p.becomes(kept, false, "", "")
	p.stay(kept)
	p.becomes(waits, true, "", foregroundFinalizer)
	p.release(held, hold, foregroundFinalizer) // it may have dependents that were not listed
	p.goes(held)
	p.stay()
	p.becomes(waits, true, "", foregroundFinalizer) // nobody has told that held is gone
	sees.Store(true)
	p.goes(waits)
}

// TestDependentsAreNotListedYet: what may own something that was not listed yet goes after it, as what is known to.
func TestDependentsAreNotListedYet(t *testing.T) {
	sees := &atomic.Bool{}
	h := startKnowing(t, t.TempDir(), true, blindTo("secrets", sees))
	p := h.at(t, shop, "ns")
	waits := p.configMap("waits")
	between := p.configMap("between", p.owner(waits, blocking))
	held := newObject(p, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{hold}}}, "held", p.owner(between, blocking))
	p.delete(waits, foreground)
	p.becomes(between, true, "waits", foregroundFinalizer)
	p.terminates(held)
	p.becomes(between, true, "waits", foregroundFinalizer)
	p.becomes(waits, true, "", foregroundFinalizer)
	sees.Store(true)
	p.becomes(held, true, "between", hold)
	p.release(held)
	p.goes(held, between, waits)
}

// TestTooManyOwnerReferences: of an object that names more owners than are looked at nothing is lost, and it says so. Who waits
// for it waits, who is orphaned lets it go, and with fewer owners it is as all others.
func TestTooManyOwnerReferences(t *testing.T) {
	p := start(t, t.TempDir(), true).at(t, shop, "ns")
	with := func(owners ...metav1.OwnerReference) []metav1.OwnerReference {
		for i := len(owners); i < 1001; i++ {
			owners = append(owners, metav1.OwnerReference{APIVersion: "v1", Kind: "Secret", Name: fmt.Sprint("x", i), UID: types.UID(fmt.Sprint("x", i))})
		}
		return owners
	}
	solid, gone, leaves, waits := p.configMap("solid"), p.configMap("gone"), p.configMap("leaves"), p.configMap("waits")
	kept := p.configMap("kept", with(p.owner(gone))...)
	left := p.configMap("left", with(p.owner(solid), p.owner(leaves))...)
	blocks := p.configMap("blocks", with(p.owner(waits, blocking))...)
	p.warned("kept", "TooManyOwnerReferences", "more than 1000 owner references: it is not deleted with its owners")

	p.delete(gone, background)
	p.goes(gone)
	p.delete(waits, foreground)
	p.delete(leaves, orphan)
	p.goes(leaves)
	p.becomes(left, false, "solid", "") // it had one too many
	p.stay(kept, left, blocks)
	p.becomes(waits, true, "", foregroundFinalizer)
	idle := 0
	p.until("nobody looks for what is left of it again and again", func() (bool, string) {
		if n := p.collector.Waiting(shop); n > 0 {
			idle = 0
			return false, fmt.Sprint(n, " are swept")
		}
		idle++
		return idle == 50, fmt.Sprint(idle)
	})

	p.delete(blocks, background)
	p.goes(blocks, waits)
	now, _ := p.get(kept)
	few := now.DeepCopyObject().(*corev1.ConfigMap)
	few.OwnerReferences = few.OwnerReferences[:2]
	must(t, p.clients.Objects.Update(p.ctx(), few))
	p.goes(kept)
}

// TestIdleWorkspacesCostNothing: what has no owners is not kept, and nobody waits for it.
func TestIdleWorkspacesCostNothing(t *testing.T) {
	h := start(t, t.TempDir(), true)
	h.at(t, shop, "ns").stay()
	before := goruntime.NumGoroutine()
	const n = 1000
	for i := range n {
		p := h.at(t, logicalcluster.Name(fmt.Sprintf("w%d", i)), "default")
		newObject(p, &corev1.ServiceAccount{}, "default")
		p.configMap("kube-root-ca.crt")
	}
	h.at(t, shop, "ns").stay()                    // all events have been taken
	if nodes := h.collector.Nodes(); nodes > 40 { // canaries that are just going
		t.Errorf("%d objects of %d idle workspaces are kept", nodes, n)
	}
	h.at(t, shop, "ns").until("goroutines are as many as before", func() (bool, string) {
		now := goruntime.NumGoroutine()
		return now < before+100, fmt.Sprintf("%d goroutines, before the %d workspaces %d", now, n, before)
	})
}

// TestKindsAreWhatIsServed: everything that discovery shows and that can be listed and deleted is known by its kind.
func TestKindsAreWhatIsServed(t *testing.T) {
	h := start(t, t.TempDir(), false)
	h.at(t, shop, "ns")
	served, err := discovery.NewDiscoveryClientForConfig(h.clients.ConfigFor(shop))
	must(t, err)
	_, lists, err := served.ServerGroupsAndResources()
	must(t, err)
	known := 0
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		must(t, err)
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "delete") || r.Name == "events" {
				continue
			}
			gr, namespaced, ok := h.kinds.Resource(shop, gv.WithKind(r.Kind))
			if want := gv.WithResource(r.Name).GroupResource(); !ok || gr != want || namespaced != r.Namespaced {
				t.Errorf("%s means %s (namespaced: %v, known: %v), want %s (%v)", gv.WithKind(r.Kind), gr, namespaced, ok, want, r.Namespaced)
			}
			if kind, ok := h.kinds.Kind(shop, gr); !ok || kind.Kind != r.Kind {
				t.Errorf("%s is of kind %s, want %s", gr, kind, r.Kind)
			}
			known++
		}
	}
	stores, _ := h.kinds.Stored()
	if known < 40 || known < len(stores) {
		t.Errorf("%d kinds were compared, and %d are followed", known, len(stores))
	}
	if _, _, ok := h.kinds.Resource(shop, schema.GroupVersionKind{Version: "v1", Kind: "Event"}); ok {
		t.Error("events are followed")
	}
}
