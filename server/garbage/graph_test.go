package garbage

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var things = schema.GroupResource{Resource: "things"}

// thing is the identity of a thing whose UID is its name.
func thing(name string) identity {
	return identity{cluster: "c", resource: things, namespace: "n", name: name, uid: types.UID(name)}
}

// thingOf is a thing with owners; those with a ! block, those with a ? are of a kind that is not served.
func thingOf(name string, revision uint64, owners ...string) object {
	o := object{identity: thing(name), revision: revision}
	for _, owner := range owners {
		ref := metav1.OwnerReference{Kind: "Thing", Name: owner, UID: types.UID(owner)}
		switch owner[0] {
		case '!':
			ref.Name, ref.UID, ref.BlockOwnerDeletion = owner[1:], types.UID(owner[1:]), new(true)
		case '?':
			ref.Kind = "Other"
		}
		o.owners = append(o.owners, ref)
	}
	return o
}

func goes(o object, foreground bool) object {
	o.going, o.foreground, o.orphan = true, foreground, !foreground
	return o
}

// names are what has to be looked at.
func names(look []identity) []string {
	all := []string{}
	for _, id := range look {
		all = append(all, id.name)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func TestGraph(t *testing.T) {
	type step struct {
		do    func(*graph) []identity
		look  []string
		nodes int
	}
	see := func(o object) func(*graph) []identity { return func(g *graph) []identity { return g.see(o) } }
	update := func(o object) func(*graph) []identity { return func(g *graph) []identity { return g.update(o) } }
	end := func(name string) func(*graph) []identity {
		return func(g *graph) []identity { return g.end(thing(name)) }
	}
	relist := func(all ...object) func(*graph) []identity {
		return func(g *graph) []identity { return g.relist(things, all) }
	}
	served := func(cluster logicalcluster.Name, kind string) func(*graph) []identity {
		return func(g *graph) []identity {
			look, _ := g.served(kindIn{cluster, schema.GroupVersionKind{Kind: kind}})
			return look
		}
	}
	for _, tc := range []struct {
		reason string
		steps  []step
	}{
		{"what owns nothing and is owned by nobody is not kept", []step{
			{see(thingOf("a", 1)), []string{}, 0},
			{end("a"), []string{}, 0},
			{relist(thingOf("a", 1)), []string{}, 0},
		}},
		{"an owner that nobody has seen is looked for", []step{
			{see(thingOf("d", 1, "o")), []string{"o"}, 2},
			{end("o"), []string{"d"}, 2},
			{end("d"), []string{}, 0},
		}},
		{"an owner that goes takes what it owns", []step{
			{see(thingOf("d", 1, "o")), []string{"o"}, 2},
			{update(thingOf("o", 2)), []string{}, 2},
			{end("o"), []string{"d"}, 2},
			{see(thingOf("e", 3, "o")), []string{"e"}, 3},
			{end("e"), []string{}, 2},
			{end("d"), []string{}, 0},
		}},
		{"a reference that is taken off is forgotten", []step{
			{see(thingOf("d", 1, "o", "p")), []string{"o", "p"}, 3},
			{see(thingOf("d", 2, "p")), []string{}, 2},
			{see(thingOf("d", 3)), []string{}, 0},
		}},
		{"what is older than what is known changes nothing", []step{
			{see(thingOf("d", 1, "o")), []string{"o"}, 2},
			{update(thingOf("d", 3, "p")), []string{"p"}, 2},
			{see(thingOf("d", 2, "o")), []string{}, 2},
			{end("p"), []string{"d"}, 2},
		}},
		{"a read that is overtaken by the end brings nothing back", []step{
			{see(thingOf("d", 1, "o")), []string{"o"}, 2},
			{end("d"), []string{}, 0},
			{update(thingOf("d", 1, "o")), []string{}, 0},
		}},
		{"nor an event of what was found gone", []step{
			{see(thingOf("d", 1, "o")), []string{"o"}, 2},
			{see(thingOf("o", 2, "x")), []string{"x"}, 3},
			{end("o"), []string{"d"}, 2},
			{see(thingOf("o", 3, "y")), []string{}, 2},
		}},
		{"an owner that waits has its dependents looked at, and is looked at when one is gone or lets it go", []step{
			{see(thingOf("d", 1, "!o")), []string{"o"}, 2},
			{see(thingOf("e", 2, "!o")), []string{}, 3},
			{see(thingOf("f", 3, "o")), []string{}, 4},
			{see(goes(thingOf("o", 4), true)), []string{"d", "e", "f", "o"}, 4},
			{see(goes(thingOf("o", 5), true)), []string{}, 4},
			{end("d"), []string{"o"}, 3},
			{see(thingOf("e", 6, "o")), []string{"e", "o"}, 3},
			{see(thingOf("g", 7, "o")), []string{"g"}, 4},
		}},
		{"who waits to be orphaned is looked at himself", []step{
			{see(thingOf("d", 1, "o")), []string{"o"}, 2},
			{see(goes(thingOf("o", 2), false)), []string{"o"}, 2},
		}},
		{"who waits and owns nothing that was seen is kept until it is gone", []step{
			{see(goes(thingOf("o", 2), true)), []string{"o"}, 1},
			{end("o"), []string{}, 0},
		}},
		{"what a list does not show has to be looked at", []step{
			{see(thingOf("d", 1, "o")), []string{"o"}, 2},
			{relist(thingOf("d", 1, "o")), []string{"o"}, 2},
			{relist(thingOf("d", 1, "o"), thingOf("o", 2)), []string{}, 2},
			{relist(thingOf("o", 2)), []string{"d"}, 2},
		}},
		{"what names a kind that is not served is looked at when it is", []step{
			{see(thingOf("d", 1, "?o")), []string{}, 1},
			{served("c", "Other"), []string{}, 1},
			{func(g *graph) []identity {
				g.resolve = func(of identity, ref metav1.OwnerReference) (identity, bool) { return thing(ref.Name), true }
				return append(served("c", "Another")(g), served("b", "Other")(g)...)
			}, []string{}, 1},
			{served("c", "Other"), []string{"?o", "d"}, 2},
			{served("c", "Other"), []string{}, 2},
		}},
		{"what does not name a kind any more that is not served is not looked at for it", []step{
			{see(thingOf("d", 1, "?o", "p")), []string{"p"}, 2},
			{see(thingOf("d", 2, "p")), []string{}, 2},
			{see(thingOf("e", 3, "?o", "?q")), []string{}, 3},
			{end("e"), []string{}, 2},
			{func(g *graph) []identity {
				g.resolve = func(of identity, ref metav1.OwnerReference) (identity, bool) { return thing(ref.Name), true }
				return served("c", "Other")(g)
			}, []string{}, 2},
		}},
		{"a kind that was defined anew means something else", []step{
			{see(thingOf("d", 1, "o")), []string{"o"}, 2},
			{func(g *graph) []identity {
				g.resolve = func(of identity, ref metav1.OwnerReference) (identity, bool) { return thing("new" + ref.Name), true }
				return g.relink(thing("d"))
			}, []string{"newo"}, 2},
			{end("newo"), []string{"d"}, 2},
		}},
		{"a circle is forgotten with its last object", []step{
			{see(thingOf("a", 1, "!b")), []string{"b"}, 2},
			{see(thingOf("b", 2, "!a")), []string{}, 2},
			{end("a"), []string{"b"}, 2},
			{end("b"), []string{}, 0},
		}},
		{"what owns itself", []step{
			{see(thingOf("a", 1, "a")), []string{}, 1},
			{end("a"), []string{"a"}, 0},
		}},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			g := newGraph(func(of identity, ref metav1.OwnerReference) (identity, bool) {
				return thing(ref.Name), ref.Kind == "Thing"
			})
			for i, s := range tc.steps {
				if diff := cmp.Diff(s.look, names(s.do(g))); diff != "" {
					t.Errorf("step %d: to be looked at (-want +got):\n%s", i, diff)
				}
				if g.size() != s.nodes || len(g.unserved) > g.size() { // none has several such kinds
					t.Errorf("step %d: %d nodes, want %d", i, g.size(), s.nodes)
				}
			}
		})
	}
}

// TestServedWaitsForNothingElse: what names kinds that nobody serves, however much it is, costs a definition nothing but that
// of its own kind, and those who wait for the graph not for all of it.
func TestServedWaitsForNothingElse(t *testing.T) {
	const n = 3 * linkedAtOnce
	resolved, serves := 0, false
	g := newGraph(func(_ identity, ref metav1.OwnerReference) (identity, bool) {
		resolved++
		return thing(ref.Name), serves
	})
	for i := range n {
		g.see(thingOf(fmt.Sprint(i), 1, "?o"))
	}
	other := kindIn{"c", schema.GroupVersionKind{Kind: "Other"}}
	resolved = 0
	for _, kind := range []kindIn{{"b", other.GroupVersionKind}, {"c", schema.GroupVersionKind{Kind: "Another"}}, other} {
		if look, more := g.served(kind); len(look) > 0 || more {
			t.Errorf("%v is served: %d objects are to be looked at, want none", kind, len(look))
		}
	}
	if resolved > 1 {
		t.Errorf("%d references were resolved, want one", resolved)
	}
	serves = true
	looked := map[identity]bool{}
	for {
		resolved = 0
		look, more := g.served(other)
		for _, id := range look {
			looked[id] = true
		}
		if resolved > linkedAtOnce+1 {
			t.Fatalf("%d references were resolved at once, want %d at most", resolved, linkedAtOnce)
		}
		if !more {
			break
		}
	}
	if len(looked) != n+1 || len(g.unserved) > 0 {
		t.Errorf("%d are to be looked at, want %d and their owner; %d kinds are still waited for", len(looked), n, len(g.unserved))
	}
}

// manyOf are names.
func manyOf(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprint(prefix, i)
	}
	return all
}

// counting is a graph that counts the references that it resolves.
func counting() (*graph, *int) {
	resolved := 0
	return newGraph(func(_ identity, ref metav1.OwnerReference) (identity, bool) {
		resolved++
		return thing(ref.Name), true
	}), &resolved
}

// TestTooManyOwners: an object with more owners than anybody means costs the graph itself alone, however often it changes, and
// is told once; and it is said of all that it may own something.
func TestTooManyOwners(t *testing.T) {
	g, resolved := counting()
	owners := manyOf("o", 50*mostOwners)
	for revision := range uint64(10) {
		owners[revision] = fmt.Sprint("changed", revision)
		look := names(g.see(thingOf("d", revision, owners...)))
		if want := []string{"d"}; revision == 0 && !slices.Equal(look, want) || revision > 0 && len(look) > 0 {
			t.Errorf("change %d: %q are to be looked at", revision, look)
		}
	}
	if *resolved > 0 || g.size() != 1 {
		t.Errorf("%d references were resolved, and %d nodes are kept, want none and 1", *resolved, g.size())
	}
	g.see(thingOf("e", 1, "p"))
	d, _ := g.look(thing("d"))
	if p, _ := g.look(thing("p")); d.leftOut != tooMany || len(d.owners) > 0 || !p.incomplete {
		t.Errorf("%+v of the object, %+v of another", d, p)
	}
	if diff := cmp.Diff([]string{"a", "b"}, names(g.see(thingOf("d", 20, "a", "b")))); diff != "" {
		t.Errorf("with few owners (-want +got):\n%s", diff)
	}
	if p, _ := g.look(thing("p")); p.incomplete || g.size() != 5 {
		t.Errorf("with few owners: %+v of another, %d nodes", p, g.size())
	}
	g.see(goes(thingOf("a", 21), true))
	g.see(thingOf("d", 22, "!a"))
	if diff := cmp.Diff([]string{"a", "d"}, names(g.see(thingOf("d", 23, owners...)))); diff != "" {
		t.Errorf("who waited for it has to be looked at (-want +got):\n%s", diff)
	}
	for _, name := range []string{"d", "e", "a", "p", "b"} {
		g.end(thing(name))
	}
	if g.size() > 0 || len(g.shares) > 0 {
		t.Errorf("%d nodes and %d shares are left", g.size(), len(g.shares))
	}
}

// TestManyReferences: what all references of a logical cluster may take is bounded. What is left out for that comes in, once,
// when there is room, and others have theirs.
func TestManyReferences(t *testing.T) {
	g, _ := counting()
	const full = mostReferences / mostOwners
	for i := range full {
		g.see(thingOf(fmt.Sprint("d", i), 1, manyOf(fmt.Sprint(i, "-"), mostOwners)...))
	}
	most := g.size()
	late := []string{"late0", "late1"}
	for _, name := range late {
		if diff := cmp.Diff([]string{name}, names(g.see(thingOf(name, 1, "p")))); diff != "" {
			t.Errorf("left out (-want +got):\n%s", diff)
		}
	}
	if v, _ := g.look(thing("late0")); v.leftOut != noRoom || g.size() != most+2 {
		t.Errorf("%+v, %d nodes, want %d", v, g.size(), most+2)
	}
	other := thingOf("d", 1, "o")
	other.cluster = "other"
	if look := g.see(other); len(look) != 1 || look[0].name != "o" {
		t.Errorf("of another logical cluster %v is to be looked at", look)
	}
	if look := names(g.see(thingOf("d0", 2, manyOf("0-", mostOwners-1)...))); len(look) > 0 {
		t.Errorf("%q are to be looked at: who has fewer owners than before is not left out", look)
	}
	again := []string{}
	for i := range full {
		for _, id := range g.end(thing(fmt.Sprint("d", i))) {
			again = append(again, id.name)
		}
		if s := g.shares["c"]; (len(again) > 0) != (2*s.references <= s.most()) {
			t.Fatalf("%d references of %d, and %q are to be looked at again", s.references, s.most(), again)
		}
	}
	if diff := cmp.Diff(late, names(thingsOf(again))); diff != "" || len(again) != len(late) {
		t.Errorf("%q, each once (-want +got):\n%s", again, diff)
	}
	for _, name := range late {
		g.update(thingOf(name, 1, "p")) // as it was
	}
	if v, _ := g.look(thing("p")); v.dependents != len(late) || v.incomplete {
		t.Errorf("what was left out is not in: %+v", v)
	}
	// Each object makes room for some.
	for i := range mostReferences/referencesOfEach + 10 {
		g.see(thingOf(fmt.Sprint("e", i), 1, "p"))
	}
	if s := g.shares["c"]; s.most() <= mostReferences || s.leftOut > 0 {
		t.Errorf("with %d objects %d references may be, %d are left out", s.objects, s.most(), s.leftOut)
	}
}

// thingsOf are the identities of things.
func thingsOf(names []string) []identity {
	all := make([]identity, len(names))
	for i, name := range names {
		all[i] = thing(name)
	}
	return all
}

func TestGraphLook(t *testing.T) {
	g := newGraph(func(_ identity, ref metav1.OwnerReference) (identity, bool) {
		return thing(ref.Name), ref.Kind == "Thing"
	})
	for _, o := range []object{
		thingOf("o", 1, "p"), thingOf("d", 2, "!o", "?q"), thingOf("e", 3, "o"), goes(thingOf("f", 4, "!o"), true),
	} {
		g.see(o)
	}
	v, ok := g.look(thing("o"))
	if !ok || v.dependents != 3 || !v.blocked || !v.foreground || !v.seen || v.gone {
		t.Errorf("%+v", v)
	}
	if diff := cmp.Diff([]string{"d"}, names(v.blockers)); diff != "" {
		t.Errorf("blockers that do not wait themselves (-want +got):\n%s", diff)
	}
	v, _ = g.look(thing("d"))
	if len(v.owners) != 2 || v.owners[0].identity != thing("o") || !v.owners[0].known || !v.owners[0].seen || v.owners[1].known {
		t.Errorf("owners %+v", v.owners)
	}
	if _, ok := g.look(thing("x")); ok {
		t.Error("a thing that nobody names is known")
	}
}

// TestRoom: of what is left out as much is looked at again as there is room for, and the rest when there is again.
func TestRoom(t *testing.T) {
	g, _ := counting()
	const full = mostReferences / mostOwners
	for i := range full {
		g.see(thingOf(fmt.Sprint("d", i), 1, manyOf(fmt.Sprint(i, "-"), mostOwners)...))
	}
	const late = 2 * full
	owners := manyOf("late-", mostOwners)
	for i := range late {
		g.see(thingOf(fmt.Sprint("late", i), 1, owners...))
	}
	again := func(look []identity) (all []string) {
		for _, name := range names(look) {
			if strings.HasPrefix(name, "late") && !strings.HasPrefix(name, "late-") {
				all = append(all, name)
			}
		}
		return all
	}
	ended := 0
	end := func() []string {
		ended++
		return again(g.end(thing(fmt.Sprint("d", ended-1))))
	}
	called := []string{}
	for range full/2 + 5 { // none of which has been looked at yet
		called = append(called, end()...)
	}
	if n := len(called); n != full/2 || len(slices.Compact(slices.Sorted(slices.Values(called)))) != n {
		t.Fatalf("%d are looked at, of %d; there is room for %d", n, late, full/2)
	}
	for i, name := range called {
		if i == 0 {
			g.end(thing(name))
			continue
		}
		if more := again(g.update(thingOf(name, 1, owners...))); len(more) > 0 {
			t.Fatalf("%q are looked at, and there is no room", more)
		}
	}
	if s := g.shares["c"]; s.called != 0 || s.leftOut != late-full/2 || len(s.again) != s.leftOut {
		t.Errorf("%d are called, %d left out, %d to be looked at again", s.called, s.leftOut, len(s.again))
	}
	more := []string{}
	for ended < full {
		more = append(more, end()...)
	}
	if len(more) < full/2-5 || len(more) > full {
		t.Errorf("%d more are looked at", len(more))
	}
}

// TestHeldByWhatIsLeftOut: who waits for an object that is left out is looked at when that has changed or gone, not before, and
// nothing is kept of it.
func TestHeldByWhatIsLeftOut(t *testing.T) {
	g, _ := counting()
	owners := manyOf("o", mostOwners+1)
	d := func(revision uint64) object { return thingOf("d", revision, owners...) }
	hold := func(name string, listed object, want bool) {
		t.Helper()
		if got := g.hold(thing(name), listed); got != want {
			t.Errorf("%s is held: %t, want %t", name, got, want)
		}
	}
	want := func(why string, look []identity, want ...string) {
		t.Helper()
		if diff := cmp.Diff(append([]string{}, want...), names(look)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", why, diff)
		}
	}
	g.see(d(2))
	hold("p", d(2), false) // nobody knows of it
	g.see(goes(thingOf("p", 3), true))
	g.see(goes(thingOf("q", 3), true))
	g.see(goes(thingOf("r", 3), true))
	hold("p", d(1), false) // that list was older
	for _, name := range []string{"p", "q", "r", "p"} {
		hold(name, d(2), true)
	}
	if v, _ := g.look(thing("p")); !v.held {
		t.Errorf("%+v", v)
	}
	want("the same again", g.see(d(2)))
	g.end(thing("q"))
	g.see(thingOf("r", 4)) // it waits no more
	want("changed, and left out still", g.see(d(5)), "p")
	want("once more", g.see(d(6)))
	hold("p", d(6), true)
	want("gone", g.end(thing("d")), "p")
	hold("p", d(6), false)
	e := func(revision uint64, owners ...string) object { return thingOf("e", revision, owners...) }
	g.see(e(8, owners...))
	hold("p", e(8, owners...), true)
	want("with few owners", g.see(e(9, "q")), "p", "q")
	hold("p", e(9, "q"), false) // its reference says so
	for _, name := range []string{"e", "p", "q", "r", "d"} {
		g.end(thing(name))
	}
	if g.size() > 0 || len(g.shares) > 0 {
		t.Errorf("%d nodes and %d shares are left", g.size(), len(g.shares))
	}
}
