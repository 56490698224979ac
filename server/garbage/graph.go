package garbage

import (
	"slices"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/equality"
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

// node is an object that has owners, or is named as one, or waits for its dependents.
type node struct {
	object
	// edges are the nodes of owners, by their place in owners; nil where the kind is not served.
	edges []*node
	// dependents are the nodes that have an edge to this one.
	dependents map[*node]struct{}
	// seen says that the object itself was seen, not only references to it; gone, that it does not exist any more.
	seen, gone bool
}

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
	nodes map[identity]*node
	// unserved are the nodes with a reference to a kind that is not served, by that.
	unserved map[kindIn]map[*node]struct{}
}

func newGraph(resolve resolver) *graph {
	return &graph{resolve: resolve, nodes: map[identity]*node{}, unserved: map[kindIn]map[*node]struct{}{}}
}

// see takes what a watch or list showed.
func (g *graph) see(o object) []identity {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[o.identity]
	if n == nil {
		if len(o.owners) == 0 && !o.waits() {
			return nil
		}
		n = g.add(o.identity)
	}
	return g.take(n, o)
}

// update takes what a read showed, of an object that is in the graph. A read that is overtaken by the object's end brings
// nothing back.
func (g *graph) update(o object) []identity {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.nodes[o.identity]; n != nil {
		return g.take(n, o)
	}
	return nil
}

// end takes that an object does not exist any more.
func (g *graph) end(id identity) []identity {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[id]
	if n == nil {
		return nil
	}
	n.gone = true
	var look []identity
	for dependent := range n.dependents {
		look = append(look, dependent.identity)
	}
	for _, owner := range g.unlink(n) {
		if owner.waits() {
			look = append(look, owner.identity)
		}
	}
	g.prune(n)
	return look
}

// wants says whether a list of all objects of a resource has to have an object for relist.
func (g *graph) wants(o object) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(o.owners) > 0 || o.waits() || g.nodes[o.identity] != nil
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
	for id, n := range g.nodes {
		if _, ok := listed[id]; !ok && id.resource == resource && !n.gone {
			look = append(look, id)
		}
	}
	return look
}

// linkedAtOnce is how many references are linked anew, about, while everybody else waits.
const linkedAtOnce = 10_000

// served returns objects with a reference to a kind that was not served, to be looked at if it is now, and whether there are more.
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
	n := g.nodes[id]
	if n == nil || n.gone {
		return nil
	}
	return g.link(n, n.owners)
}

// size is how many nodes there are.
func (g *graph) size() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.nodes)
}

// view is what the graph knows of an object, at one moment.
type view struct {
	seen, gone bool
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
	n := g.nodes[id]
	if n == nil {
		return view{}, false
	}
	v := view{seen: n.seen, gone: n.gone, dependents: len(n.dependents)}
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

func (g *graph) add(id identity) *node {
	n := &node{object: object{identity: id}}
	g.nodes[id] = n
	return n
}

// take makes a node what its object is, unless it knows better already: reads and watches overtake each other.
func (g *graph) take(n *node, o object) []identity {
	if n.gone || n.seen && o.revision <= n.revision {
		return nil
	}
	var look []identity
	waited := n.waits()
	n.seen, n.revision, n.going, n.foreground, n.orphan = true, o.revision, o.going, o.foreground, o.orphan
	if !equality.Semantic.DeepEqual(n.owners, o.owners) {
		for i, edge := range n.edges {
			// It may have kept its owner from going, and not do so any more.
			if edge != nil && edge.waits() && blocks(n.owners[i]) {
				look = append(look, edge.identity)
			}
		}
		look = append(look, g.link(n, o.owners)...)
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
		o := g.nodes[id]
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
		if o != nil && !slices.Contains(n.edges, o) {
			delete(o.dependents, n)
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
	n.owners, n.edges = nil, nil
	return owners
}

// prune forgets a node that says nothing.
func (g *graph) prune(n *node) {
	if len(n.dependents) == 0 && (n.gone || len(n.owners) == 0 && !n.waits()) {
		delete(g.nodes, n.identity)
	}
}

func blocks(ref metav1.OwnerReference) bool {
	return ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion
}
