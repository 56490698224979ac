package splitter

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/types"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	"atoll.dev/atoll/client"
)

// A fleet is a small simulation of physical clusters, each with a Deployment controller as Kubernetes' own behaves towards
// pods, and of the splitter that plans for them. Every act is a separate step, so that tests can interleave them at will:
// the splitter plans on leaves and reports that may be old, a cluster acts on a leaf that may be old.
type fleet struct {
	clusters map[string]*member
	// seen are the leaves as the splitter's cache has them, and unseen what came of them since, write by write.
	seen   map[string]simLeaf
	unseen []map[string]simLeaf
	// made are the clusters in which the splitter has made a leaf that it has not seen yet.
	made map[string]bool
	// What the user asks for.
	replicas           int32
	template           int
	unavailable, surge int32
	recreate           bool
	// sets says that it is a ReplicaSet: no pod is replaced for its template.
	sets    bool
	weights map[string]int64 // the Placement
	// plan is what the splitter last planned.
	plan goal
}

type member struct {
	name string
	lost bool
	sets bool // as of the fleet
	// room is how many of its pods can be ready; the others never are.
	room int
	// broken is a template whose pods never are ready.
	broken int
	leaf   *simLeaf // what the mirror holds
	deployment
}

type simLeaf struct {
	replicas           int32
	template           int
	unavailable, surge int32
	deleting, draining bool
	generation         int
	version            int // of every write, whose ever
	of                 rendition
	status             simStatus
}

type simStatus struct {
	generation               int
	pods, available, updated int32
}

// deployment is what the physical cluster runs.
type deployment struct {
	exists             bool
	generation         int
	replicas           int32
	template           int
	unavailable, surge int32
	pods               []pod
	// scale is what replicas was when its controllers last looked, and most with what an update might have on top.
	scale, most int32
}

type pod struct {
	template int
	ready    bool
}

func newFleet(names ...string) *fleet {
	f := &fleet{clusters: map[string]*member{}, unavailable: 1, surge: 1, weights: map[string]int64{}, made: map[string]bool{}, seen: map[string]simLeaf{}}
	for _, n := range names {
		f.clusters[n] = &member{name: n, room: math.MaxInt, broken: -1}
	}
	return f
}

func (f *fleet) names() []string { return slices.Sorted(maps.Keys(f.clusters)) }

// leaves are what the mirrors hold.
func (f *fleet) leaves() map[string]simLeaf {
	leaves := map[string]simLeaf{}
	for n, m := range f.clusters {
		if m.leaf != nil {
			leaves[n] = *m.leaf
		}
	}
	return leaves
}

// written is said after writes of leaves.
func (f *fleet) written() { f.unseen = append(f.unseen, f.leaves()) }

// look tells the splitter's cache of some writes.
func (f *fleet) look(writes int) {
	if writes > 0 {
		f.seen, f.unseen = f.unseen[writes-1], f.unseen[writes:]
	}
}

// lookAtAll brings the splitter's cache up to date.
func (f *fleet) lookAtAll() { f.seen, f.unseen = f.leaves(), nil }

// split is one reconcile of the splitter.
func (f *fleet) split() {
	seen := maps.Clone(f.seen)
	for n := range f.made { // as withUnseen
		_, shown := seen[n]
		l := f.clusters[n].leaf
		if shown || l == nil {
			delete(f.made, n)
		} else {
			seen[n] = *l
		}
	}
	steps, rolls, uncertain := f.decide(seen)
	if uncertain {
		for n := range seen { // reads them uncached
			delete(seen, n)
			if l := f.clusters[n].leaf; l != nil {
				seen[n] = *l
			}
		}
		steps, rolls, _ = f.decide(seen)
	}
	for _, n := range f.names() {
		f.carryOut(n, seen, steps[n], rolls[n])
		f.written()
	}
}

// decide plans on leaves, and says whether what it plans must not rest on old ones.
func (f *fleet) decide(seen map[string]simLeaf) (map[string]Step, map[string]Roll, bool) {
	previous := map[string]int32{}
	for n, l := range seen {
		previous[n] = l.replicas
	}
	targets := Assign(f.replicas, f.weights, previous)
	var clusters []Cluster
	for _, n := range f.names() {
		m := f.clusters[n]
		_, assigned := f.weights[n]
		c := Cluster{Name: n, Assigned: assigned, Target: targets[n], Lost: m.lost}
		l, exists := seen[n]
		if exists {
			c.Leaf = &LeafState{Replicas: l.replicas, Pods: l.status.pods, Available: l.status.available, Settled: l.status.generation == l.generation, Mixed: l.status.updated < l.status.pods || assigned && l.template != f.template, Deleting: l.deleting}
			if l.status.updated < l.status.pods {
				c.Leaf.Surge = l.surge
			}
			c.Leaf.Mixed = c.Leaf.Mixed && !f.sets
		}
		clusters = append(clusters, c)
	}
	steps := Plan(clusters, f.recreate)
	var rolling []RollingCluster
	for _, c := range clusters {
		r := RollingCluster{Name: c.Name, Replicas: c.Target, Lost: c.Lost, Leaving: !c.Assigned || c.Target == 0 && steps[c.Name].Replicas > 0, Lacks: c.Target}
		if l, exists := seen[c.Name]; exists && !l.deleting {
			s, mixed := l.status, l.status.updated < l.status.pods
			r.Exists, r.SameTemplate, r.MaxUnavailable, r.MaxSurge = true, l.template == f.template, l.unavailable, l.surge
			r.Rolling = s.generation != l.generation || mixed
			r.Unsure = r.Rolling && !mixed
			r.Awaited = r.Unsure
			r.Lacks = max(max(c.Target, l.replicas)-s.available, 0)
		}
		if c.Assigned || r.Exists {
			rolling = append(rolling, r)
		}
	}
	f.plan = goal{by: f.decision(), of: f.root()}
	for _, c := range clusters {
		if c.Assigned {
			f.plan.shares = append(f.plan.shares, share{logicalcluster.Name(c.Name), c.Target})
		}
	}
	rolls := map[string]Roll{}
	if f.sets {
		rolling = nil
		for _, c := range clusters {
			rolls[c.Name] = Roll{Verbatim: true}
		}
	} else {
		rolls = DivideRollout(f.unavailable, f.surge, rolling)
	}
	return steps, rolls, restsOnOthers(clusters, f.recreate, steps, rolling, rolls)
}

// carryOut takes the step of one cluster, unless its leaf is not what was seen.
func (f *fleet) carryOut(n string, seen map[string]simLeaf, step Step, roll Roll) {
	m := f.clusters[n]
	was, existed := seen[n]
	if existed != (m.leaf != nil) || existed && was.version != m.leaf.version {
		return // a conflict, after which it is tried again
	}
	switch {
	case step.Delete:
		m.leaf.deleting = true
		m.leaf.version++
	case step.Write:
		now := simLeaf{template: f.template, of: f.root()}
		if existed {
			now = was
		}
		now.replicas, now.draining = step.Replicas, step.Draining
		if !step.Draining && !roll.Hold {
			now.template, now.of = f.template, f.root()
			if !roll.KeepStrategy {
				now.unavailable, now.surge = roll.MaxUnavailable, roll.MaxSurge
			}
			if roll.Verbatim {
				now.unavailable, now.surge = f.unavailable, f.surge
			}
		}
		marked := was
		marked.draining, marked.of = now.draining, now.of // marks, no part of what goes down
		if !existed || now != marked {
			now.generation++
		}
		if !existed {
			f.made[n] = true
		}
		if !existed || now != was {
			now.version++
			m.leaf = &now
		}
	}
}

// decision and root are the Placement and the Deployment as they are.
func (f *fleet) decision() decision { return decision{placement: types.UID(fmt.Sprint(f.weights))} }

func (f *fleet) root() rendition {
	return rendition{"web", int64(f.template)<<32 + int64(f.replicas)}
}

// ready says whether the Placement's status lets it be READY, by what the splitter has planned and was told.
func (f *fleet) ready() bool {
	r := tallied{exists: true, of: f.root(), plan: &f.plan}
	for n, m := range f.clusters {
		if m.leaf == nil {
			continue
		}
		l, s := m.leaf, m.leaf.status
		leaf := counted{of: l.of, deleting: l.deleting, replicas: l.replicas, ready: s.available}
		switch {
		case l.deleting:
			leaf.phase = placementv1alpha1.PhasePending
		case s.generation != l.generation:
			leaf.phase = placementv1alpha1.PhaseApplying
		case s.pods != l.replicas || s.updated != l.replicas || s.available != l.replicas:
			leaf.phase = placementv1alpha1.PhaseSynced
		default:
			leaf.phase = placementv1alpha1.PhaseReady
		}
		r.set(client.Key{Cluster: logicalcluster.Name(n)}, &leaf)
	}
	p := &placementv1alpha1.Placement{}
	for n := range f.weights {
		p.Spec.Clusters = append(p.Spec.Clusters, placementv1alpha1.PlacedCluster{Name: n, Mirror: n})
	}
	sums := r.all()
	for mirror, sum := range sums {
		if f.clusters[string(mirror)].lost {
			sums[mirror] = sum.unheard()
		}
	}
	return r.by() == f.decision() && serve(phases(p, sums, func(m logicalcluster.Name) string { return string(m) }))
}

// sync is one round of a cluster's syncer downwards.
func (m *member) sync() {
	switch {
	case m.lost || m.leaf == nil:
	case m.leaf.deleting:
		m.deployment, m.leaf = deployment{}, nil
	default:
		l := m.leaf
		m.exists, m.generation, m.replicas, m.template, m.unavailable, m.surge = true, l.generation, l.replicas, l.template, l.unavailable, l.surge
	}
}

// report is one round of a cluster's syncer upwards.
func (m *member) report() {
	if m.lost || m.leaf == nil || !m.exists {
		return
	}
	s := simStatus{generation: m.generation, pods: int32(len(m.pods))}
	for _, p := range m.pods {
		if p.ready {
			s.available++
		}
		if p.template == m.template || m.sets {
			s.updated++
		}
	}
	if s != m.leaf.status {
		m.leaf.status = s
		m.leaf.version++
	}
}

// control is one round of the cluster's Deployment and ReplicaSet controllers, as in Kubernetes' pkg/controller/deployment, sync.go and
// rolling.go.
func (m *member) control() {
	if !m.exists {
		return
	}
	if m.sets {
		m.kill(int32(len(m.pods))-m.replicas, func(pod) bool { return true })
		for range m.replicas - int32(len(m.pods)) {
			m.pods = append(m.pods, pod{template: m.template})
		}
		return
	}
	old := func(p pod) bool { return p.template != m.template }
	unready := func(p pod) bool { return !p.ready }
	scaled := m.scale != m.replicas
	before := m.most
	if scaled {
		m.scale, m.most = m.replicas, m.replicas+m.surge
	}
	switch {
	case m.count(old) == 0:
		m.resize(m.template, m.replicas)
		return
	case scaled:
		m.rescale(before)
		return
	}
	// A rolling update: old pods that serve nobody go first, then as many as may be missing. Whoever is in surplus since maxSurge is less
	// stays until then.
	updated := m.count(func(p pod) bool { return !old(p) })
	if updated > m.replicas {
		m.resize(m.template, m.replicas)
		return
	}
	least := m.replicas - m.unavailable
	lacks := m.count(func(p pod) bool { return !old(p) && unready(p) })
	if spare := int32(len(m.pods)) - least - lacks; spare > 0 {
		m.kill(spare, func(p pod) bool { return old(p) && unready(p) })
	}
	if spare := m.count(func(p pod) bool { return p.ready }) - least; spare > 0 {
		m.kill(spare, func(p pod) bool { return old(p) && p.ready })
	}
	if room := min(m.replicas+m.surge-int32(len(m.pods)), m.replicas-updated); room > 0 {
		m.resize(m.template, updated+room)
	}
}

// rescale is what a change of scale does where there are old pods, before anything rolls: one template has all replicas; several grow
// and shrink in proportion, of replicas and surplus as they were before.
func (m *member) rescale(before int32) {
	sizes := map[int]int32{}
	for _, p := range m.pods {
		sizes[p.template]++
	}
	templates := slices.Sorted(maps.Keys(sizes)) // older first
	if len(templates) == 1 {
		m.resize(templates[0], m.replicas)
		return
	}
	var most int32
	if m.replicas > 0 {
		most = m.replicas + m.surge
	}
	add := most - int32(len(m.pods))
	if add > 0 {
		slices.Reverse(templates)
	}
	slices.SortStableFunc(templates, func(a, b int) int { return cmp.Compare(sizes[b], sizes[a]) })
	left := add
	for _, t := range templates {
		if left == 0 {
			break
		}
		n := int32(math.Round(float64(sizes[t]*most)/float64(before))) - sizes[t]
		if add > 0 {
			n = min(n, left)
		} else {
			n = max(n, left)
		}
		sizes[t] += n
		left -= n
	}
	sizes[templates[0]] = max(sizes[templates[0]]+left, 0)
	for _, t := range templates {
		m.resize(t, sizes[t])
	}
}

// resize is what a ReplicaSet does: it takes away those first that are not ready.
func (m *member) resize(template int, replicas int32) {
	of := func(p pod) bool { return p.template == template }
	n := m.count(of)
	m.kill(n-replicas, of)
	for range replicas - n {
		m.pods = append(m.pods, pod{template: template})
	}
}

func (m *member) kill(n int32, of func(pod) bool) {
	for _, ready := range []bool{false, true} {
		for i := len(m.pods) - 1; i >= 0 && n > 0; i-- {
			if of(m.pods[i]) && m.pods[i].ready == ready {
				m.pods = slices.Delete(m.pods, i, i+1)
				n--
			}
		}
	}
}

func (m *member) count(of func(pod) bool) (n int32) {
	for _, p := range m.pods {
		if of(p) {
			n++
		}
	}
	return n
}

// start makes one pod ready, where there is room.
func (m *member) start() {
	room := m.room
	for i := range m.pods {
		if m.pods[i].ready {
			room--
		}
	}
	for i := range m.pods {
		if !m.pods[i].ready && room > 0 && m.pods[i].template != m.broken {
			m.pods[i].ready = true
			return
		}
	}
}

// crash is the end of an application: pods of the cluster's template serve no more, nor will those that replace them.
func (m *member) crash() {
	m.broken = m.template
	for i := range m.pods {
		m.pods[i].ready = m.pods[i].ready && m.pods[i].template != m.broken
	}
}

// truth is how many pods serve, whatever anybody reported.
func (f *fleet) truth() (n int32) {
	for _, m := range f.clusters {
		for _, p := range m.pods {
			if p.ready {
				n++
			}
		}
	}
	return n
}

func (f *fleet) pods() (n int32) {
	for _, m := range f.clusters {
		n += int32(len(m.pods))
	}
	return n
}

// rolledOut says that every cluster has rolled out the present template.
func (f *fleet) rolledOut() bool {
	for _, m := range f.clusters {
		l := m.leaf
		if l == nil && !m.exists {
			continue
		}
		if l == nil || l.generation != m.generation || m.template != f.template || int32(len(m.pods)) != m.replicas {
			return false
		}
		for _, p := range m.pods {
			if !p.ready || p.template != m.template {
				return false
			}
		}
	}
	return true
}

// reported is how many the splitter may rely on.
func (f *fleet) reported() (n int32) {
	for _, m := range f.clusters {
		if l := m.leaf; l != nil && !m.lost && !l.deleting && l.status.generation == l.generation {
			n += min(l.status.available, l.replicas)
		}
	}
	return n
}

// act does one random thing that the user has no part in.
func (f *fleet) act(r *rand.Rand) string {
	m := f.clusters[f.names()[r.IntN(len(f.clusters))]]
	switch r.IntN(8) {
	case 0, 1:
		f.split()
		return "split"
	case 6, 7:
		writes := r.IntN(len(f.unseen) + 1)
		f.look(writes)
		return fmt.Sprintf("look %d of %d", writes, writes+len(f.unseen))
	case 2:
		m.sync()
		f.written()
		return "sync " + m.name
	case 3:
		m.report()
		f.written()
		return "report " + m.name
	case 4:
		m.control()
		return "control " + m.name
	default:
		m.start()
		return "start " + m.name
	}
}

// round does everything once, everywhere.
func (f *fleet) round() {
	f.lookAtAll()
	f.split()
	for _, n := range f.names() {
		m := f.clusters[n]
		m.sync()
		m.control()
		for range m.pods {
			m.start()
		}
		m.report()
	}
}

// converge does everything until nothing changes, and says whether that happened.
func (f *fleet) converge() bool {
	for range 500 {
		before := f.everything()
		f.round()
		if f.everything() == before {
			return true
		}
	}
	return false
}

func (f *fleet) everything() string {
	var b strings.Builder
	for _, n := range f.names() {
		m := f.clusters[n]
		fmt.Fprintf(&b, "%+v %+v ", m.deployment, m.lost)
		if m.leaf != nil {
			fmt.Fprintf(&b, "%+v", *m.leaf)
		}
	}
	return b.String()
}

// String shows each cluster's leaf and pods in one line.
func (f *fleet) String() string {
	var b strings.Builder
	for _, n := range f.names() {
		m := f.clusters[n]
		fmt.Fprintf(&b, "%s:", n)
		if l := m.leaf; l == nil {
			b.WriteString(" -")
		} else {
			fmt.Fprintf(&b, " %d of t%d (-%d +%d)", l.replicas, l.template, l.unavailable, l.surge)
			if l.status.generation != l.generation {
				b.WriteString(" unsettled")
			}
			if l.draining {
				b.WriteString(" draining")
			}
			if l.deleting {
				b.WriteString(" deleting")
			}
			fmt.Fprintf(&b, ", says %d/%d", l.status.available, l.status.pods)
		}
		ready := 0
		for _, p := range m.pods {
			if p.ready {
				ready++
			}
		}
		fmt.Fprintf(&b, ", has %d/%d", ready, len(m.pods))
		old := 0
		for _, p := range m.pods {
			if p.template != m.template {
				old++
			}
		}
		if old > 0 {
			fmt.Fprintf(&b, ", %d old", old)
		}
		if m.lost {
			b.WriteString(", lost")
		}
		b.WriteString("\n")
	}
	return b.String()
}
