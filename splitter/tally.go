package splitter

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
)

// tally counts, for each namespace of a workspace and each mirror, what the status of a Placement sums up, so that a change of
// one leaf does not cost a look at all the others. Leaves come from the informers. What they are to come to, from the last
// plan of their root: a leaf alone does not say that it asks for more, or less, than it will in the end.
type tally struct {
	mu sync.Mutex // guards both
	// roots are those that are there or have leaves, spaces their sums by namespaceValue, without zeroes.
	roots  map[key]*tallied
	spaces map[string]*space
}

// tallied is what is known of one root.
type tallied struct {
	// exists says that the root is there, and is not being deleted: it has a plan, or will have one.
	exists bool
	// of is the root as it is now; its plan may be of an earlier one.
	of   rendition
	plan *goal
	// leaves are sorted, so that those in one mirror, one as a rule, are found together.
	leaves []tallyLeaf
}

type tallyLeaf struct {
	client.Key
	counted
}

func (l tallyLeaf) compare(at client.Key) int {
	return cmp.Or(cmp.Compare(l.Cluster, at.Cluster), cmp.Compare(l.Namespace, at.Namespace), cmp.Compare(l.Name, at.Name))
}

// goal is what the leaves of a root are to come to in the end.
type goal struct {
	by     decision
	of     rendition
	shares []share // one for each cluster
}

// decision identifies the state of a Placement that a plan rests on.
type decision struct {
	placement  types.UID
	generation int64
}

// rendition identifies the state of a root that a leaf is rendered from.
type rendition struct {
	root       types.UID
	generation int64
}

// share is what one cluster is to run of a root.
type share struct {
	mirror   logicalcluster.Name
	replicas int32
}

const (
	// asItSays are the replicas of a share that its cluster decides on.
	asItSays = -1
	// noLeaf are the replicas of a share that is none: another cluster of the Placement has it all.
	noLeaf = -2
)

// counted is what one leaf says of itself.
type counted struct {
	of       rendition
	phase    placementv1alpha1.PlacedClusterPhase
	deleting bool
	stays    bool // does not leave its cluster, wherever it is placed
	ended    bool // runs nothing any more
	replicas int32
	ready    int32
}

// space is what the roots of one namespace come to.
type space struct {
	mirrors map[logicalcluster.Name]sumOf
	roots   int              // that exist
	resting map[decision]int // how many of them have a plan that rests on it; on none: that have no plan yet
}

// sumOf is what roots come to in one mirror.
type sumOf struct {
	leaves, deleting int
	staying, ended   int
	replicas, ready  int32
	phases           [5]int // by the index in phaseOrder, of leaves and of those that a plan lacks
}

func newTally() *tally {
	return &tally{roots: map[key]*tallied{}, spaces: map[string]*space{}}
}

// count is what a leaf adds.
func count(leaf ctrlclient.Object) counted {
	n := counted{of: rendition{root: leafUID(leaf)}, phase: phaseOf(leaf), deleting: leaf.GetDeletionTimestamp() != nil}
	n.of.generation, _ = strconv.ParseInt(leaf.GetAnnotations()[workloadv1alpha1.RootGenerationAnnotation], 10, 64)
	if k, ok := kinds.Of(leaf); ok && k.MakesPods() {
		n.replicas, n.ready = k.Pods(leaf)
		n.ended = k.HasEnded(leaf)
		n.stays = !n.deleting && !n.ended && k.WhyStays(leaf) != nil
	}
	return n
}

// under is the phase of a leaf in a mirror, given its root: Ready is only what is as it is to be in the end. What serves all that it
// was told, and has more or less to come, or a newer template, is on its way.
func (n counted) under(r *tallied, mirror logicalcluster.Name) placementv1alpha1.PlacedClusterPhase {
	if n.phase != placementv1alpha1.PhaseReady || n.ended {
		return n.phase
	}
	if replicas, ok := r.plan.share(mirror); !ok || replicas != asItSays && n.replicas != replicas || n.of != r.plan.of || n.of != r.of {
		return placementv1alpha1.PhaseSynced
	}
	return placementv1alpha1.PhaseReady
}

// share is what a mirror is to run in the end; false if nothing.
func (g *goal) share(mirror logicalcluster.Name) (replicas int32, ok bool) {
	if g == nil {
		return 0, false
	}
	i, ok := slices.BinarySearchFunc(g.shares, mirror, func(s share, mirror logicalcluster.Name) int { return cmp.Compare(s.mirror, mirror) })
	if !ok {
		return 0, false
	}
	return g.shares[i].replicas, true
}

// without is what a share comes to where there is no leaf.
func (s share) without() sumOf {
	if s.replicas == noLeaf {
		return sumOf{}.with(placementv1alpha1.PhaseReady)
	}
	return sumOf{}.with(placementv1alpha1.PhasePending)
}

// sum is what a leaf in a mirror comes to, given its root.
func (n counted) sum(r *tallied, mirror logicalcluster.Name) sumOf {
	s := sumOf{leaves: 1, replicas: n.replicas, ready: n.ready}
	if n.deleting {
		s.deleting = 1
	}
	if n.stays {
		s.staying = 1
	}
	if n.ended && !n.deleting {
		s.ended = 1
	}
	return s.with(n.under(r, mirror))
}

func (s sumOf) with(phase placementv1alpha1.PlacedClusterPhase) sumOf {
	s.phases[slices.Index(phaseOrder, phase)]++
	return s
}

// in is what a root comes to in one mirror, all what it comes to everywhere.
func (r *tallied) in(mirror logicalcluster.Name) map[logicalcluster.Name]sumOf {
	return map[logicalcluster.Name]sumOf{mirror: r.sum(mirror)}
}

func (r *tallied) all() map[logicalcluster.Name]sumOf {
	sums := make(map[logicalcluster.Name]sumOf, len(r.leaves))
	for _, leaf := range r.leaves {
		sums[leaf.Cluster] = sums[leaf.Cluster].plus(leaf.sum(r, leaf.Cluster), 1)
	}
	if r.plan == nil {
		return sums
	}
	for _, s := range r.plan.shares {
		if _, ok := sums[s.mirror]; !ok {
			sums[s.mirror] = s.without()
		}
	}
	return sums
}

// sum is what a root comes to in one mirror.
func (r *tallied) sum(mirror logicalcluster.Name) (sum sumOf) {
	first, _ := slices.BinarySearchFunc(r.leaves, client.Key{Cluster: mirror}, tallyLeaf.compare)
	for _, leaf := range r.leaves[first:] {
		if leaf.Cluster != mirror {
			break
		}
		sum = sum.plus(leaf.sum(r, mirror), 1)
	}
	if replicas, ok := r.plan.share(mirror); ok && sum.leaves == 0 {
		return share{mirror, replicas}.without()
	}
	return sum
}

// plus adds o times times, which is 1 or -1.
func (s sumOf) plus(o sumOf, times int) sumOf {
	s.leaves += o.leaves * times
	s.deleting += o.deleting * times
	s.staying += o.staying * times
	s.ended += o.ended * times
	s.replicas += o.replicas * int32(times)
	s.ready += o.ready * int32(times)
	for i, n := range o.phases {
		s.phases[i] += n * times
	}
	return s
}

// unheard is what roots come to in a mirror whose cluster is not heard of, or only observed: what it said last may be so no more.
func (s sumOf) unheard() sumOf {
	applying := slices.Index(phaseOrder, placementv1alpha1.PhaseApplying)
	for i := applying + 1; i < len(s.phases); i++ {
		s.phases[applying] += s.phases[i]
		s.phases[i] = 0
	}
	return s
}

// phase is that of what has come least far; Pending if there is nothing.
func (s sumOf) phase() placementv1alpha1.PlacedClusterPhase {
	for i, n := range s.phases {
		if n > 0 {
			return phaseOrder[i]
		}
	}
	return placementv1alpha1.PhasePending
}

// leaf replaces what is counted of a leaf, by nil if it is gone. It returns whether that changes what its root comes to.
func (t *tally) leaf(root key, at client.Key, now *counted) bool {
	in := func(r *tallied) map[logicalcluster.Name]sumOf { return r.in(at.Cluster) }
	return t.change(root, in, func(r *tallied) { r.set(at, now) })
}

// set replaces what is counted of a leaf, by nil if it is gone.
func (r *tallied) set(at client.Key, now *counted) {
	i, there := slices.BinarySearchFunc(r.leaves, at, tallyLeaf.compare)
	switch {
	case now != nil && there:
		r.leaves[i].counted = *now
	case now != nil:
		r.leaves = slices.Insert(r.leaves, i, tallyLeaf{at, *now})
	case there:
		r.leaves = slices.Delete(r.leaves, i, i+1)
	}
}

// expect says that a root is there as it is now, and that its plan is to come if it has none for that. It returns whether that is
// news: what served by its last plan is on its way again.
func (t *tally) expect(root key, now rendition) bool {
	return t.change(root, (*tallied).all, func(r *tallied) { r.exists, r.of = true, now })
}

// plan is the last word on a root that is there. It returns whether that is news.
func (t *tally) plan(root key, g goal) bool {
	slices.SortFunc(g.shares, func(a, b share) int { return cmp.Compare(a.mirror, b.mirror) })
	return t.change(root, (*tallied).all, func(r *tallied) {
		if r.exists, r.plan = true, &g; r.of == (rendition{}) {
			r.of = g.of
		}
	})
}

// forget says that a root is no more, or will not be. It returns whether that is news: its leaves may stay, where they are held.
func (t *tally) forget(root key) bool {
	return t.change(root, (*tallied).all, func(r *tallied) { r.exists, r.of, r.plan = false, rendition{}, nil })
}

// change changes one root and with it the sums of its namespace, as far as they are in scope. It returns whether they changed.
func (t *tally) change(root key, scope func(*tallied) map[logicalcluster.Name]sumOf, change func(*tallied)) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.roots[root]
	if r == nil {
		r = &tallied{}
	}
	existed, before, was := r.exists, r.by(), scope(r)
	change(r)
	now := scope(r)
	if r.exists || len(r.leaves) > 0 {
		t.roots[root] = r
	} else {
		delete(t.roots, root)
	}
	if existed == r.exists && before == r.by() && maps.Equal(was, now) {
		return false
	}
	namespace := namespaceValue(root.Cluster, root.Namespace)
	s := t.spaces[namespace]
	if s == nil {
		s = &space{map[logicalcluster.Name]sumOf{}, 0, map[decision]int{}}
		t.spaces[namespace] = s
	}
	s.add(existed, before, was, -1)
	s.add(r.exists, r.by(), now, 1)
	if s.roots == 0 && len(s.mirrors) == 0 {
		delete(t.spaces, namespace)
	}
	return true
}

// by is the decision that a root's plan rests on; none if it has no plan.
func (r *tallied) by() decision {
	if r.plan == nil {
		return decision{}
	}
	return r.plan.by
}

// add adds one root times times, which is 1 or -1.
func (s *space) add(exists bool, by decision, sums map[logicalcluster.Name]sumOf, times int) {
	if exists {
		s.roots += times
		if s.resting[by] += times; s.resting[by] == 0 {
			delete(s.resting, by)
		}
	}
	for mirror, sum := range sums {
		if s.mirrors[mirror] = s.mirrors[mirror].plus(sum, times); s.mirrors[mirror] == (sumOf{}) {
			delete(s.mirrors, mirror)
		}
	}
}

// of returns what a root comes to, by mirror; planned is false while its plan does not rest on that decision.
func (t *tally) of(root key, by decision) (sums map[logicalcluster.Name]sumOf, planned bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.roots[root]
	if r == nil {
		return map[logicalcluster.Name]sumOf{}, true
	}
	return r.all(), !r.exists || r.by() == by
}

// ofAll returns what the roots of a namespace without those in less come to, by mirror; planned is false while not all of their
// plans rest on that decision.
func (t *tally) ofAll(namespace string, by decision, less []key) (sums map[logicalcluster.Name]sumOf, planned bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	rest := space{map[logicalcluster.Name]sumOf{}, 0, map[decision]int{}}
	if s := t.spaces[namespace]; s != nil {
		rest = space{maps.Clone(s.mirrors), s.roots, maps.Clone(s.resting)}
	}
	for _, root := range less {
		if r := t.roots[root]; r != nil {
			rest.add(r.exists, r.by(), r.all(), -1)
		}
	}
	return rest.mirrors, rest.roots == rest.resting[by]
}
