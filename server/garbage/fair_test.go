package garbage_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubestorage "k8s.io/apiserver/pkg/storage"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/garbage"
)

// slow are kinds of which the secrets of one logical cluster are listed only once they may be.
type slow struct {
	lists chan struct{} // closed when they may be
	// begun are the lists so far, now those at the moment, most what now was at most.
	begun, now, most *atomic.Int32
}

func newSlow() slow {
	return slow{lists: make(chan struct{}), begun: &atomic.Int32{}, now: &atomic.Int32{}, most: &atomic.Int32{}}
}

func (k slow) over(gr schema.GroupResource, inner kubestorage.Interface) kubestorage.Interface {
	if gr.Resource != "secrets" {
		return inner
	}
	return slowStore{inner, k}
}

type slowStore struct {
	kubestorage.Interface
	slow
}

func (s slowStore) GetList(ctx context.Context, key string, opts kubestorage.ListOptions, list runtime.Object) error {
	if c, _ := lcctx.ClusterFrom(ctx); c.Name == shop && !c.Wildcard {
		s.begun.Add(1)
		s.most.Store(max(s.most.Load(), s.now.Add(1)))
		defer s.now.Add(-1)
		select {
		case <-s.lists:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return s.Interface.GetList(ctx, key, opts, list)
}

// TestManyThatWaitHoldUpNobody: however much of a logical cluster waits for lists of it, what the others delete goes
// meanwhile, and what waits shares the lists.
func TestManyThatWaitHoldUpNobody(t *testing.T) {
	k := newSlow()
	h := startKnowing(t, t.TempDir(), true, over(k.over))
	p, other := h.at(t, shop, "ns"), h.at(t, bank, "ns")
	const n = 200
	var waits, dependents []*corev1.ConfigMap
	for i := range n {
		o := p.configMap(fmt.Sprintf("o%d", i))
		waits, dependents = append(waits, o), append(dependents, p.configMap(fmt.Sprintf("d%d", i), p.owner(o)))
	}
	p.delete(waits[0], orphan)
	p.until("a list has begun", func() (bool, string) { return k.begun.Load() > 0, "none" })
	for i, o := range waits[1:] {
		if i%2 == 0 {
			p.delete(o, foreground)
		} else {
			p.delete(o, orphan)
		}
	}
	p.until("all others wait", func() (bool, string) {
		now := p.collector.Waiting(shop)
		return now == n-1, fmt.Sprintf("%d of %d wait", now, n-1)
	})

	a, b, c := other.configMap("a"), other.configMap("b"), other.configMap("c")
	ofA, ofB, ofC := other.configMap("of-a", other.owner(a)), other.configMap("of-b", other.owner(b, blocking)), other.configMap("of-c", other.owner(c))
	other.delete(a, background)
	other.delete(b, foreground)
	other.delete(c, orphan)
	other.goes(a, ofA, b, ofB, c)
	other.becomes(ofC, false, "", "")
	loose := p.configMap("loose")
	ofLoose := p.configMap("of-loose", p.owner(loose))
	p.delete(loose, background) // nor does it hold up its own
	p.goes(loose, ofLoose)
	if begun := k.begun.Load(); begun != 1 {
		t.Errorf("%d lists have begun before the first has ended, want no other", begun)
	}

	close(k.lists)
	for i, o := range waits {
		p.goes(o)
		if i%2 == 0 {
			p.becomes(dependents[i], false, "", "")
		} else {
			p.goes(dependents[i])
		}
	}
	if most := k.most.Load(); most != 1 {
		t.Errorf("%d lists at a time, want 1", most)
	}
	if begun := k.begun.Load(); begun > 5 { // one, one for the others, and some for what was overtaken
		t.Errorf("%d lists for %d objects", begun, n)
	}
}

// TestManySuspectsShareAScan: what is deleted although its owner exists, elsewhere, does not wait for the search for that
// owner, and many such objects share one.
func TestManySuspectsShareAScan(t *testing.T) {
	k := newSlow()
	h := startKnowing(t, t.TempDir(), true, over(k.over))
	p, elsewhere := h.at(t, shop, "ns"), h.at(t, shop, "elsewhere")
	owner := newObject(elsewhere, &corev1.Secret{}, "owner")
	const n = 100
	var lost []*corev1.ConfigMap
	for i := range n {
		lost = append(lost, p.configMap(fmt.Sprintf("d%d", i), elsewhere.owner(owner)))
	}
	for _, d := range lost {
		p.goes(d)
	}
	close(k.lists)
	for _, d := range lost {
		p.told(d.Name, string(owner.UID))
	}
	if begun := k.begun.Load(); begun == 0 || begun > 3 { // one for the first, one for the others
		t.Errorf("%d scans for %d objects, want one or two", begun, n)
	}
}

// TestSearchesForSuspectsArePaced: who makes one object after the other that names an owner elsewhere does not have all of that
// kind listed for each.
func TestSearchesForSuspectsArePaced(t *testing.T) {
	k := newSlow()
	close(k.lists)
	h := startKnowing(t, t.TempDir(), true, over(k.over))
	p, elsewhere := h.at(t, shop, "ns"), h.at(t, shop, "elsewhere")
	owner := newObject(elsewhere, &corev1.Secret{}, "owner")
	began := time.Now()
	for i := range 30 {
		p.goes(p.configMap(fmt.Sprintf("d%d", i), elsewhere.owner(owner)))
	}
	p.told("d29", string(owner.UID))
	if begun, most := k.begun.Load(), int32(time.Since(began)/garbage.Gather)+1; begun > most {
		t.Errorf("%d searches in %s, want %d at most", begun, time.Since(began), most)
	}
}
