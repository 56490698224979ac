package garbage

import (
	"slices"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// identity names one object for good: of two objects of one name, one after the other, it names one. It is also what a
// reference names. Upstream's graph knows objects by UID alone, and has to find out what to think of references that agree
// on a UID and not on a name; here these name different objects, of which at most one exists.
type identity struct {
	cluster         logicalcluster.Name
	resource        schema.GroupResource
	namespace, name string
	uid             types.UID
}

// Tenant is the logical cluster: one with much garbage holds up none of the others.
func (i identity) Tenant() string { return string(i.cluster) }

// object is the metadata of an object that says what it owns and by whom it is owned.
type object struct {
	identity
	// revision is its resourceVersion.
	revision uint64
	owners   []metav1.OwnerReference
	// finalizers are not kept in the graph.
	finalizers []string
	// going says that it is being deleted; foreground and orphan, that it then waits for its dependents.
	going, foreground, orphan bool
}

// waits says whether an object that is being deleted waits for the collector.
func (o object) waits() bool { return o.going && (o.foreground || o.orphan) }

const (
	// mostOwners is of how many owners of an object the graph knows: each of them is read when the object is looked at.
	mostOwners = 1000
	// mostReferences is how many owners all objects of a logical cluster may have together, or referencesOfEach for each object
	// that is in the graph, if that is more. One that nobody else names takes 25 bytes of etcd, and 600 here.
	mostReferences   = 100_000
	referencesOfEach = 4
)

// leftOut says why the graph does not know the owners of an object, if it does not.
type leftOut uint8

const (
	notLeftOut leftOut = iota
	// tooMany are more than mostOwners.
	tooMany
	// noRoom is where those of the logical cluster are too many.
	noRoom
)

// node is an object that has owners, or is named as one, or waits for its dependents.
type node struct {
	object
	// edges are the nodes of owners, by their place in owners; nil where the kind is not served.
	edges []*node
	// dependents are the nodes that have an edge to this one.
	dependents map[*node]struct{}
	// seen says that the object itself was seen, not only references to it; gone, that it does not exist any more.
	seen, gone bool
	// leftOut says that owners are not what the object has, but none: nothing follows from them.
	leftOut leftOut
	// wants is how many owners it has for which there was no room, and called that it is looked at since there is.
	wants  int
	called bool
	// waiters are those that wait for it, while it is left out, to be gone or to be another; each of them waits for one, waitsFor.
	// held says that it has waited so.
	waiters  map[*node]struct{}
	waitsFor *node
	held     bool
}

// share is what the graph has of a logical cluster.
type share struct {
	objects    int // that were seen and are not gone
	references int // owners of all nodes
	leftOut    int // nodes that are left out
	// again are those of them for which there was no room, to be looked at when there is.
	again map[*node]struct{}
	// called is how many owners those of them have that are looked at since there is.
	called int
}

// most is how many references it may have.
func (s *share) most() int { return max(mostReferences, referencesOfEach*s.objects) }

// kindIn is a kind in a logical cluster, of which each may serve others.
type kindIn struct {
	cluster logicalcluster.Name
	schema.GroupVersionKind
}

// Tenant is the logical cluster.
func (k kindIn) Tenant() string { return string(k.cluster) }

// resolver says what a reference of an object names, and false if its kind is not served.
type resolver func(of identity, ref metav1.OwnerReference) (identity, bool)

// graph is who owns whom, as far as it was seen. Objects without owners and dependents are not in it. Each method returns
// which objects have to be looked at because of what it changed. All are safe for concurrent use.
type graph struct {
	resolve resolver

	mu    sync.Mutex // guards what follows, nodes included
	nodes map[schema.GroupResource]map[identity]*node
	// unserved are the nodes with a reference to a kind that is not served, by that.
	unserved map[kindIn]map[*node]struct{}
	shares   map[logicalcluster.Name]*share // without those of which nothing is here
}

func newGraph(resolve resolver) *graph {
	return &graph{
		resolve: resolve, nodes: map[schema.GroupResource]map[identity]*node{},
		unserved: map[kindIn]map[*node]struct{}{}, shares: map[logicalcluster.Name]*share{},
	}
}

// see takes what a watch or list showed.
func (g *graph) see(o object) []identity {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.find(o.identity)
	if n == nil {
		if len(o.owners) == 0 && !o.waits() {
			return nil
		}
		n = g.add(o.identity)
	}
	return append(g.take(n, o), g.room(o.cluster)...)
}

// update takes what a read showed, of an object that is in the graph. A read that is overtaken by the object's end brings
// nothing back.
func (g *graph) update(o object) []identity {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.find(o.identity); n != nil {
		return append(g.take(n, o), g.room(o.cluster)...)
	}
	return nil
}

// end takes that an object does not exist any more.
func (g *graph) end(id identity) []identity {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.find(id)
	if n == nil {
		return nil
	}
	g.leaveOut(n, notLeftOut, 0)
	if n.seen && !n.gone {
		g.count(n.cluster, -1, 0, 0)
	}
	n.gone = true
	g.waitsNoMore(n)
	look := g.release(n)
	for dependent := range n.dependents {
		look = append(look, dependent.identity)
	}
	for _, owner := range g.unlink(n) {
		if owner.waits() {
			look = append(look, owner.identity)
		}
	}
	g.prune(n)
	return append(look, g.room(id.cluster)...)
}

// hold has an object that waits for its dependents looked at when one of them that is left out is gone, or is not as it was
// listed any more. It says whether it is: the graph may know it otherwise already.
func (g *graph) hold(owner identity, listed object) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, d := g.find(owner), g.find(listed.identity)
	if n == nil || d == nil || !n.waits() || d.gone || d.leftOut == notLeftOut || d.revision != listed.revision {
		return false
	}
	g.waitsNoMore(n)
	if d.waiters == nil {
		d.waiters = map[*node]struct{}{}
	}
	d.waiters[n] = struct{}{}
	n.waitsFor, n.held = d, true
	return true
}

// wants says whether a list of all objects of a resource has to have an object for relist.
func (g *graph) wants(o object) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(o.owners) > 0 || o.waits() || g.find(o.identity) != nil
}

// relist takes all objects of a resource, or those that it wants. Those that are missing were deleted unseen, or are newer
// than the list: that has to be looked at.
func (g *graph) relist(resource schema.GroupResource, all []object) []identity {
	var look []identity
	listed := make(map[identity]struct{}, len(all))
	for _, o := range all {
		listed[o.identity] = struct{}{}
		look = append(look, g.see(o)...)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, n := range g.nodes[resource] {
		if _, ok := listed[id]; !ok && !n.gone {
			look = append(look, id)
		}
	}
	return look
}

// linkedAtOnce is how many references are linked anew, about, while everybody else waits.
const linkedAtOnce = 10_000

// served returns objects with a reference to a kind that was not served, to be looked at if it is now, and whether there are
// more.
func (g *graph) served(kind kindIn) (look []identity, more bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	linked := 0
	for n := range g.unserved[kind] {
		if linked >= linkedAtOnce {
			return look, true
		}
		linked += len(n.owners)
		look = append(look, g.link(n, n.owners)...)
		if _, still := g.unserved[kind][n]; still {
			return look, false // nor is it now: for none of them
		}
		look = append(look, n.identity)
	}
	return look, false
}

// relink finds out anew what an object's references name.
func (g *graph) relink(id identity) []identity {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.find(id)
	if n == nil || n.gone {
		return nil
	}
	return g.link(n, n.owners)
}

// size is how many nodes there are.
func (g *graph) size() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, of := range g.nodes {
		n += len(of)
	}
	return n
}

// view is what the graph knows of an object, at one moment.
type view struct {
	seen, gone bool
	// leftOut says that its owners are not known; incomplete, that so it is with objects of its logical cluster, which may name it.
	leftOut    leftOut
	incomplete bool
	// held says that it has waited for one that is left out.
	held bool
	// owners are what its references name, by their place; false where the kind was never served.
	owners []owner
	// dependents are all that name it; blockers those of them that keep it from going, without those that wait themselves.
	dependents int
	blockers   []identity
	blocked    bool
	// foreground says that one of the dependents waits for its own.
	foreground bool
}

// owner is what a reference names.
type owner struct {
	metav1.OwnerReference
	identity
	known bool
	// seen says that it existed once.
	seen bool
}

// look returns what is known of an object, and false if nothing is.
func (g *graph) look(id identity) (view, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.find(id)
	if n == nil {
		return view{}, false
	}
	v := view{seen: n.seen, gone: n.gone, leftOut: n.leftOut, held: n.held, dependents: len(n.dependents)}
	if s := g.shares[id.cluster]; s != nil {
		v.incomplete = s.leftOut > 0
	}
	for i, ref := range n.owners {
		o := owner{OwnerReference: ref}
		if edge := n.edges[i]; edge != nil {
			o.identity, o.known, o.seen = edge.identity, true, edge.seen
		}
		v.owners = append(v.owners, o)
	}
	for dependent := range n.dependents {
		waits := dependent.going && dependent.foreground
		v.foreground = v.foreground || waits
		for i, edge := range dependent.edges {
			if edge == n && dependent != n && blocks(dependent.owners[i]) {
				v.blocked = true
				if !waits {
					v.blockers = append(v.blockers, dependent.identity)
				}
				break
			}
		}
	}
	return v, true
}

// The rest is called with the lock held.

// find returns nil if an object is not in the graph.
func (g *graph) find(id identity) *node { return g.nodes[id.resource][id] }

func (g *graph) add(id identity) *node {
	n := &node{object: object{identity: id}}
	if g.nodes[id.resource] == nil {
		g.nodes[id.resource] = map[identity]*node{}
	}
	g.nodes[id.resource][id] = n
	return n
}

// count adds to what the graph has of a logical cluster.
func (g *graph) count(cluster logicalcluster.Name, objects, references, leftOut int) {
	s := g.shares[cluster]
	if s == nil {
		s = &share{}
		g.shares[cluster] = s
	}
	s.objects, s.references, s.leftOut = s.objects+objects, s.references+references, s.leftOut+leftOut
	if s.objects == 0 && s.references == 0 && s.leftOut == 0 {
		delete(g.shares, cluster)
	}
}

// fits says why a node cannot have so many owners, if it cannot. It may always have fewer than it has.
func (g *graph) fits(n *node, owners int) leftOut {
	s := g.shares[n.cluster]
	switch {
	case owners > mostOwners:
		return tooMany
	case owners > len(n.owners) && s != nil && s.references-len(n.owners)+owners > s.most():
		return noRoom
	}
	return notLeftOut
}

// leaveOut takes whether a node is left out, and of how many owners.
func (g *graph) leaveOut(n *node, why leftOut, owners int) {
	if was := n.leftOut; was != notLeftOut {
		s := g.shares[n.cluster]
		if was == noRoom {
			delete(s.again, n)
		}
		if n.called {
			s.called, n.called = s.called-n.wants, false
		}
		g.count(n.cluster, 0, 0, -1)
	}
	if n.leftOut, n.wants = why, owners; why == notLeftOut {
		return
	}
	g.count(n.cluster, 0, 0, 1)
	if s := g.shares[n.cluster]; why == noRoom {
		if s.again == nil {
			s.again = map[*node]struct{}{}
		}
		s.again[n] = struct{}{}
	}
}

// room returns objects of a logical cluster for which there was no room, to be looked at again, once half of it is free: as
// many as there is room for now. Each time that this is so many owners have gone, so that it costs no more than they did.
func (g *graph) room(cluster logicalcluster.Name) []identity {
	s := g.shares[cluster]
	if s == nil || len(s.again) == 0 || 2*(s.references+s.called) > s.most() {
		return nil
	}
	var look []identity
	for n := range s.again {
		if s.references+s.called+n.wants > s.most() {
			break // they are in no order
		}
		delete(s.again, n)
		s.called, n.called = s.called+n.wants, true
		look = append(look, n.identity)
	}
	return look
}

// waitsNoMore has a node wait for none that is left out.
func (g *graph) waitsNoMore(n *node) {
	if n.waitsFor != nil {
		delete(n.waitsFor.waiters, n)
		n.waitsFor = nil
	}
}

// release returns those that wait for a node that is left out, and they do not any more.
func (g *graph) release(n *node) []identity {
	var look []identity
	for waiter := range n.waiters {
		waiter.waitsFor = nil
		look = append(look, waiter.identity)
	}
	n.waiters = nil
	return look
}

// take makes a node what its object is, unless it knows better already: reads and watches overtake each other.
func (g *graph) take(n *node, o object) []identity {
	if n.gone || n.seen && (o.revision < n.revision || o.revision == n.revision && n.leftOut == notLeftOut) {
		return nil
	}
	var look []identity
	waited, was, newer := n.waits(), n.leftOut, !n.seen || o.revision > n.revision
	if !n.seen {
		g.count(n.cluster, 1, 0, 0)
	}
	n.seen, n.revision, n.going, n.foreground, n.orphan = true, o.revision, o.going, o.foreground, o.orphan
	owners, why := o.owners, g.fits(n, len(o.owners))
	if why != notLeftOut {
		owners = nil
		if was == notLeftOut {
			look = append(look, n.identity) // to be told
		}
	}
	g.leaveOut(n, why, len(o.owners))
	if newer || why == notLeftOut {
		look = append(look, g.release(n)...)
	}
	if !n.waits() {
		g.waitsNoMore(n)
	}
	if !slices.EqualFunc(n.owners, owners, sameReference) {
		for i, edge := range n.edges {
			// It may have kept its owner from going, and not do so any more.
			if edge != nil && edge.waits() && blocks(n.owners[i]) {
				look = append(look, edge.identity)
			}
		}
		look = append(look, g.link(n, owners)...)
	}
	if n.waits() && !waited {
		look = append(look, n.identity)
		if n.foreground {
			for dependent := range n.dependents {
				look = append(look, dependent.identity)
			}
		}
	}
	g.prune(n)
	return look
}

// link makes owners those of a node. It has to be looked at itself if what it names may be gone or wait for it to go; an
// owner of which nothing is known, whether it exists.
func (g *graph) link(n *node, owners []metav1.OwnerReference) []identity {
	before := n.edges
	g.setServed(n)
	g.count(n.cluster, 0, len(owners)-len(n.owners), 0)
	for _, o := range before {
		if o != nil {
			delete(o.dependents, n)
		}
	}
	n.owners, n.edges = slices.Clone(owners), make([]*node, len(owners))
	var look []identity
	for i, ref := range n.owners {
		id, ok := g.resolve(n.identity, ref)
		if !ok {
			kind := kindOfOwner(n.cluster, ref)
			if g.unserved[kind] == nil {
				g.unserved[kind] = map[*node]struct{}{}
			}
			g.unserved[kind][n] = struct{}{}
			continue
		}
		o := g.find(id)
		if o == nil {
			o = g.add(id)
			look = append(look, id)
		} else if o.gone || o.waits() {
			look = append(look, n.identity)
		}
		if o.dependents == nil {
			o.dependents = map[*node]struct{}{}
		}
		o.dependents[n] = struct{}{}
		n.edges[i] = o
	}
	for _, o := range before {
		if o != nil {
			g.prune(o)
		}
	}
	return look
}

// setServed takes a node from those with a reference to a kind that is not served.
func (g *graph) setServed(n *node) {
	for i, edge := range n.edges {
		if edge != nil {
			continue
		}
		kind := kindOfOwner(n.cluster, n.owners[i])
		delete(g.unserved[kind], n)
		if len(g.unserved[kind]) == 0 {
			delete(g.unserved, kind)
		}
	}
}

func kindOfOwner(cluster logicalcluster.Name, ref metav1.OwnerReference) kindIn {
	return kindIn{cluster, schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)}
}

// unlink takes a node from those that it names, and returns them.
func (g *graph) unlink(n *node) []*node {
	var owners []*node
	g.setServed(n)
	for _, o := range n.edges {
		if o == nil {
			continue
		}
		owners = append(owners, o)
		delete(o.dependents, n)
		g.prune(o)
	}
	g.count(n.cluster, 0, -len(n.owners), 0)
	n.owners, n.edges = nil, nil
	return owners
}

// prune forgets a node that says nothing.
func (g *graph) prune(n *node) {
	if len(n.dependents) > 0 || !n.gone && (len(n.owners) > 0 || n.waits() || n.leftOut != notLeftOut) || g.find(n.identity) != n {
		return
	}
	if n.seen && !n.gone {
		g.count(n.cluster, -1, 0, 0)
	}
	of := g.nodes[n.resource]
	if delete(of, n.identity); len(of) == 0 {
		delete(g.nodes, n.resource)
	}
}

// sameReference says whether two references mean the same here.
func sameReference(a, b metav1.OwnerReference) bool {
	return a.UID == b.UID && a.Name == b.Name && a.Kind == b.Kind && a.APIVersion == b.APIVersion && blocks(a) == blocks(b)
}

func blocks(ref metav1.OwnerReference) bool {
	return ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion
}
