package splitter

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/classes"
	"atoll.dev/atoll/internal/kinds"
	"atoll.dev/atoll/internal/queue"
)

const (
	// workers mostly wait for the server, which is in the same process.
	workers = 8
	// lookAgain is when something that is waited for is looked at again, should its event have come before.
	lookAgain = time.Second
	// remembered is how many deletions of roots, and how many events about them, are remembered. What is forgotten
	// costs a minute's delay of a deletion, or a needless try to write an event again.
	remembered = 16384

	byMirror          = "splitter-mirror"
	byReference       = "splitter-reference"
	byPlacedNamespace = "splitter-placed-namespace"
)

// Kinds of keys beside those in kinds.All.
const (
	ofPlacement  = "Placement"  // the status of a Placement
	ofNamespace  = "Namespace"  // a namespace of a mirror
	ofSyncTarget = "SyncTarget" // the brake of its mirror
)

// key is one root (kinds.All), or one of the above.
type key struct {
	kind string
	client.Key
}

// Controller splits the roots of all workspaces into leaves, and sums the leaves' statuses up.
type Controller struct {
	clients   *client.Clients
	informers *client.Informers
	clock     clock.PassiveClock
	queue     *queue.Queue[key]
	sources   map[string]*source
	brake     *Brake
	// deleted has the UIDs of roots that were seen deleted; told what was last told of a root by an event.
	deleted, told *lru.Cache
	// pace is that of statuses, and of namespaces of mirrors, where the end of a leaf counts as a write.
	pace *client.Pace[key]
	// recorded knows the latest version of each workload's revisions that was written.
	recorded *client.Pace[key]
	tally    *tally
	unseen   *unseen
	// spaces serialise, for each namespace of a mirror, putting the first leaf there and removing it after the last.
	spaces [64]sync.Mutex
	// claims serialise, for each namespace of a workspace, the choice of their clusters.
	claims [64]sync.Mutex
}

// New returns a controller that is not running. It adds handlers and indexes to the informers, which do not run yet.
func New(clients *client.Clients, informers *client.Informers, clk clock.PassiveClock) (*Controller, error) {
	c := &Controller{
		clients: clients, informers: informers, clock: clk, sources: map[string]*source{},
		brake: NewBrake(clk), deleted: lru.New(remembered), told: lru.New(remembered),
		pace: client.NewPace[key](clk), recorded: client.NewPace[key](clk), tally: newTally(), unseen: newUnseen(),
	}
	c.queue = queue.NewWithClock("splitter", clk, c.reconcile)
	for _, i := range informers.Kinds {
		s, err := newSource(i, c.onObject)
		if err != nil {
			return nil, err
		}
		c.sources[i.GVK.Kind] = s
	}
	for _, err := range []error{
		informers.SyncTargets.AddIndex(byMirror, func(t *workloadv1alpha1.SyncTarget) []string {
			if mirror := client.MirrorOf(t); mirror != "" {
				return []string{string(mirror)}
			}
			return nil
		}),
		informers.Placements.AddIndex(byPlacedNamespace, func(p *placementv1alpha1.Placement) []string {
			return []string{namespaceValue(client.KeyOf(p).Cluster, p.Spec.Namespace)}
		}),
		informers.Namespaces.AddIndex(byRoot, func(n *corev1.Namespace) []string {
			if root, ok := rootOf(n); ok {
				return []string{namespaceValue(root.Cluster, root.Name)}
			}
			return nil
		}),
		c.watchHistories(),
	} {
		if err != nil {
			return nil, fmt.Errorf("add indexes: %w", err)
		}
	}
	informers.LogicalClusters.OnEvent(c.onLogicalCluster)
	informers.Placements.OnEvent(c.onPlacement)
	informers.PlacementPolicies.OnEvent(c.onPolicy)
	informers.SyncTargets.OnEvent(c.onSyncTarget)
	informers.Namespaces.OnEvent(c.onNamespace)
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	defer c.queue.Stop()
	if err := c.informers.WaitSynced(ctx); err != nil {
		return err
	}
	c.queue.Run(ctx, workers)
	return nil
}

// referencesOf files a root or a leaf under what it needs in the root's namespace.
func referencesOf(o ctrlclient.Object) []string {
	owner := client.KeyOf(o)
	if root, ok := rootOf(o); ok {
		owner = root
	}
	var values []string
	for _, r := range needsOf(o) {
		values = append(values, referenceValue(r.Kind, client.Key{Cluster: owner.Cluster, Namespace: owner.Namespace, Name: r.Name}))
	}
	return values
}

func referenceValue(kind string, k client.Key) string { return kind + "/" + k.String() }

// referring returns the roots and leaves that need an object, in no order.
func (c *Controller) referring(s *source, k client.Key) (users []ctrlclient.Object) {
	for _, of := range c.sources {
		users = append(users, of.referring(referenceValue(s.GVK.Kind, k))...)
	}
	return users
}

// onObject handles roots and leaves of all kinds.
func (c *Controller) onObject(k kinds.Kind, e change) {
	if !k.HasLeaves() {
		c.onPod(k, e)
		return
	}
	o := e.object()
	root, isLeaf := rootOf(o)
	if k.IsPlaced() {
		c.tallyChange(k, e)
	}
	if k.Goes == kinds.WhereMounted && (e.old == nil || e.deleted || e.new != nil && replyTo(e.old) != replyTo(e.new)) { // says where others run, or no more
		for _, of := range []client.Key{root, client.KeyOf(o)} {
			c.mounting(c.sources[k.GVK.Kind], of)
		}
	}
	if !isLeaf {
		if e.deleted && !e.missed {
			c.deleted.Add(o.GetUID(), true)
		}
		if e.old == nil && k.GVK.Kind == "ServiceAccount" {
			c.awaitingAccount(client.KeyOf(o))
		}
		c.queue.Add(key{k.GVK.Kind, client.KeyOf(o)})
		c.referencesChanged(e)
		return
	}
	// Whoever claims to be a leaf in a workspace is a root as well; which it is, reconcile finds out.
	c.queue.Add(key{k.GVK.Kind, root})
	c.queue.Add(key{k.GVK.Kind, client.KeyOf(o)})
	here := client.KeyOf(o)
	if e.deleted {
		c.brake.Forget(string(here.Cluster), brakeID(c.sources[k.GVK.Kind], o))
		namespace := key{ofNamespace, client.Key{Cluster: here.Cluster, Name: here.Namespace}}
		c.pace.Wrote(namespace, "")
		c.queue.Add(namespace)
	}
	if k.MayStay() && c.staysBehind(e.old) != (!e.deleted && c.staysBehind(e.new)) {
		c.besideWorkloads(root)
	}
	switch {
	case k.MakesPods() && (e.deleted || ends(k, e.old, e.new)):
		c.companionsIn(here.Cluster, here.Namespace, true)
	case k.MakesPods() && finished(e.old) != finished(e.new):
		c.companionsIn(here.Cluster, here.Namespace, false)
	case !k.MakesPods() && k.Refers() && (e.deleted || lets(e.old, e.new)):
		c.companionsIn(here.Cluster, here.Namespace, false)
	}
}

// ends says that what is done once has ended, after which it needs nothing that goes with workloads.
func ends(k kinds.Kind, before, now ctrlclient.Object) bool {
	return now != nil && k.HasEnded(now) && (before == nil || !k.HasEnded(before))
}

// lets says that a leaf lets go of what it needed: its physical cluster has taken a rendering, perhaps one that needs less.
func lets(before, now ctrlclient.Object) bool {
	return before != nil && now != nil && !applied(before) && applied(now)
}

// tallyChange counts a root or a leaf, and asks for the status of a Placement whose sums that changes.
func (c *Controller) tallyChange(k kinds.Kind, e change) {
	o := e.object()
	here := client.KeyOf(o)
	root, isLeaf := rootOf(o)
	switch {
	case e.deleted || o.GetDeletionTimestamp() != nil:
		if c.tally.forget(key{k.GVK.Kind, here}) {
			c.askPlacement(key{k.GVK.Kind, here})
		}
	case !isLeaf: // what calls itself a leaf is expected once it is planned for, as no leaf is
		if c.tally.expect(key{k.GVK.Kind, here}, rendition{o.GetUID(), o.GetGeneration()}) {
			c.askPlacement(key{k.GVK.Kind, here})
		}
	}
	if e.old != nil {
		if was, ok := rootOf(e.old); ok && (e.deleted || !isLeaf || was != root) && c.tally.leaf(key{k.GVK.Kind, was}, here, nil) {
			c.askPlacement(key{k.GVK.Kind, was})
		}
	}
	if isLeaf && !e.deleted {
		if n := count(o); c.tally.leaf(key{k.GVK.Kind, root}, here, &n) {
			c.askPlacement(key{k.GVK.Kind, root})
		}
	}
}

// tallyPlan tells the tally what the leaves of a root that is there are to come to by its Placement p. It returns whether that is
// news for the Placement's status.
func (c *Controller) tallyPlan(s *source, root ctrlclient.Object, p *placementv1alpha1.Placement, shares []share) bool {
	k := key{s.GVK.Kind, client.KeyOf(root)}
	news := c.tally.plan(k, goal{decisionOf(p), rendition{root.GetUID(), root.GetGeneration()}, c.lacking(s, root, p, shares)})
	if now, ok := s.get(k.Key); !ok || now.GetDeletionTimestamp() != nil { // its end was told before, and must not be undone
		news = c.tally.forget(k) || news
	}
	return news
}

// askPlacement asks for the status of the Placement of a root; if there is none, its own event will.
func (c *Controller) askPlacement(root key) {
	if p := c.placement(c.sources[root.kind], root.Key); p != nil {
		c.queue.Add(key{ofPlacement, client.KeyOf(p)})
	}
}

func finished(o ctrlclient.Object) bool { return o != nil && leafView(o).Finished() }

// referencesChanged asks for what a root needs, or needed, if that changed.
func (c *Controller) referencesChanged(e change) {
	before, now := map[string]kinds.Reference{}, map[string]kinds.Reference{}
	for _, r := range needsOf(e.old) {
		before[r.String()] = r
	}
	for _, r := range needsOf(e.new) {
		now[r.String()] = r
	}
	if maps.Equal(before, now) {
		return
	}
	k := client.KeyOf(e.object())
	for _, refs := range []map[string]kinds.Reference{before, now} {
		for _, r := range refs {
			c.queue.Add(key{r.Kind, client.Key{Cluster: k.Cluster, Namespace: k.Namespace, Name: r.Name}})
		}
	}
}

// companionsIn asks for the roots of what may go from a mirror's namespace now that what needs others there is through with an
// update, or is gone, or has ended: nothing that another leaf there refers to, and, before the workloads are gone, nothing that goes with them.
func (c *Controller) companionsIn(mirror logicalcluster.Name, namespace string, gone bool) {
	for _, s := range c.sources {
		if s.Goes == kinds.Divided || s.Goes == kinds.Single || s.Goes == kinds.WhereMounted || !gone && s.Goes != kinds.WhereReferenced {
			continue
		}
		for _, leaf := range s.list(mirror, namespace) {
			root, ok := rootOf(leaf)
			if !ok || slices.ContainsFunc(c.referring(s, root), func(o ctrlclient.Object) bool { return client.KeyOf(o).Cluster == mirror }) {
				continue
			}
			c.queue.Add(key{s.GVK.Kind, root})
		}
	}
}

// besideWorkloads asks for what goes where a workload of a root's namespace stays.
func (c *Controller) besideWorkloads(root client.Key) {
	for _, s := range c.sources {
		if s.Goes != kinds.WithPlacement && s.Goes != kinds.WithNamespace && s.Goes != kinds.Copied {
			continue
		}
		for _, o := range s.list(root.Cluster, root.Namespace) {
			c.queue.Add(key{s.GVK.Kind, client.KeyOf(o)})
		}
	}
}

// besideWhatStays asks for what goes, or now may go, where something stays in a mirror.
func (c *Controller) besideWhatStays(mirror logicalcluster.Name) {
	for _, s := range c.sources {
		if !s.MayStay() {
			continue
		}
		for _, leaf := range s.list(mirror, "") {
			if root, ok := rootOf(leaf); ok && c.staysBehind(leaf) {
				c.besideWorkloads(root)
			}
		}
		for _, pod := range s.bound(mirror, "") {
			if pk := client.KeyOf(pod); !s.HasEnded(pod) && !slices.Contains(placed(c.placement(s, pk)), mirror) {
				c.besideWorkloads(pk)
			}
		}
	}
}

// onPolicy asks for what goes beside what stays: nothing else here goes by policies, but by the Placements that follow them.
func (c *Controller) onPolicy(e client.Event[*placementv1alpha1.PlacementPolicy]) {
	if e.Initial || e.Old != nil && e.New != nil && equality.Semantic.DeepEqual(e.Old.Spec.Allow, e.New.Spec.Allow) {
		return
	}
	for _, t := range c.informers.SyncTargets.All() {
		if mirror := client.MirrorOf(t); mirror != "" && !c.isMirror(client.KeyOf(t).Cluster) {
			c.besideWhatStays(mirror)
		}
	}
}

func (c *Controller) onPlacement(e client.Event[*placementv1alpha1.Placement]) {
	if e.Old != nil && e.New != nil && decisionOf(e.Old) == decisionOf(e.New) && equality.Semantic.DeepEqual(e.Old.Spec, e.New.Spec) &&
		equality.Semantic.DeepEqual(e.Old.Status.Conditions, e.New.Status.Conditions) {
		if !equality.Semantic.DeepEqual(e.Old.Status, e.New.Status) {
			// What was written may rest on leaves as they were before: when that was put right, this was not seen yet.
			c.queue.Add(key{ofPlacement, client.KeyOf(e.New)})
		}
		return
	}
	p := e.Object()
	cluster, namespace := client.KeyOf(p).Cluster, p.Spec.Namespace
	c.queue.Add(key{ofPlacement, client.KeyOf(p)})
	if p.Spec.Object != nil { // which the namespace's takes in, or lets go
		c.queue.Add(key{ofPlacement, client.Key{Cluster: cluster, Name: placementv1alpha1.NameFor(namespace, nil)}})
	}
	c.rootsOf(p)
}

// rootsOf asks for what a Placement decides for, and for what that refers to.
func (c *Controller) rootsOf(p *placementv1alpha1.Placement) {
	cluster, namespace := client.KeyOf(p).Cluster, p.Spec.Namespace
	for _, s := range c.sources {
		if s.Goes == kinds.WhereReferenced {
			continue
		}
		for _, o := range append(s.list(cluster, namespace), s.leavesOf(cluster, namespace)...) {
			root := client.KeyOf(o)
			if r, ok := rootOf(o); ok && root.Cluster != cluster {
				root = r
			}
			c.queue.Add(key{s.GVK.Kind, root})
			for _, r := range needsOf(o) {
				c.queue.Add(key{r.Kind, client.Key{Cluster: cluster, Namespace: namespace, Name: r.Name}})
			}
		}
	}
}

func (c *Controller) onSyncTarget(e client.Event[*workloadv1alpha1.SyncTarget]) {
	t := e.Object()
	mirror := client.MirrorOf(t)
	if mirror == "" || c.isMirror(client.KeyOf(t).Cluster) {
		return // the twin in a mirror follows
	}
	if e.Deleted() {
		for _, other := range c.informers.SyncTargets.All() {
			if mirror := client.MirrorOf(other); other.Name == t.Name && mirror != "" && !c.isMirror(client.KeyOf(other).Cluster) {
				c.besideWhatStays(mirror) // it is hidden no more by one of its name that was nearer
			}
		}
		return
	}
	if e.Old == nil && meta.IsStatusConditionTrue(t.Status.Conditions, workloadv1alpha1.SyncTargetFrozen) {
		c.brake.Freeze(string(mirror))
	}
	if t.Annotations[workloadv1alpha1.ConfirmAnnotation] != "" {
		c.queue.Add(key{ofSyncTarget, client.KeyOf(t)})
	}
	if e.Old != nil && !equality.Semantic.DeepEqual(e.Old.Status.Classes, t.Status.Classes) {
		c.namingClasses(mirror)
	}
	carriesOthers := e.Old != nil && !slices.Equal(e.Old.Status.CarriedResources, t.Status.CarriedResources)
	if carriesOthers {
		for _, p := range c.informers.Placements.All() {
			if slices.Contains(placed(p), mirror) {
				c.rootsOf(p)
			}
		}
	}
	if carriesOthers || e.Old != nil && (e.Old.Spec.DedicatedTo != t.Spec.DedicatedTo || !maps.Equal(e.Old.Labels, t.Labels)) {
		c.besideWhatStays(mirror)
	}
	if e.Old != nil && lost(e.Old) == lost(t) && observed(e.Old) == observed(t) && client.MirrorOf(e.Old) == mirror &&
		(e.Old.DeletionTimestamp == nil) == (t.DeletionTimestamp == nil) {
		return
	}
	c.everythingIn(mirror)
	c.singlesFor(mirror)
}

// namingClasses asks for the roots of those leaves of a mirror that name classes.
func (c *Controller) namingClasses(mirror logicalcluster.Name) {
	for _, s := range c.sources {
		if !classes.MayName(s.Kind) {
			continue
		}
		for _, leaf := range s.list(mirror, "") {
			if root, ok := rootOf(leaf); ok && len(classes.Named(leaf)) > 0 {
				c.queue.Add(key{s.GVK.Kind, root})
			}
		}
	}
}

// singlesFor asks for what waits, perhaps, to be started in a cluster.
func (c *Controller) singlesFor(mirror logicalcluster.Name) {
	for _, p := range c.informers.Placements.All() {
		if !slices.Contains(placed(p), mirror) {
			continue
		}
		for _, s := range c.sources {
			if s.Goes != kinds.Single && s.Goes != kinds.WhereMounted && s.Goes != kinds.Bound {
				continue
			}
			for _, root := range s.list(client.KeyOf(p).Cluster, p.Spec.Namespace) {
				c.queue.Add(key{s.GVK.Kind, client.KeyOf(root)})
			}
		}
	}
}

// everythingIn asks for the roots of all leaves of a mirror, for the status of their Placements, and for its namespaces.
func (c *Controller) everythingIn(mirror logicalcluster.Name) {
	for _, n := range c.informers.Namespaces.List(mirror, "") {
		if _, ok := rootOf(n); ok {
			c.queue.Add(key{ofNamespace, client.KeyOf(n)})
		}
	}
	for _, s := range c.sources {
		for _, pod := range s.bound(mirror, "") {
			c.queue.Add(key{s.GVK.Kind, client.KeyOf(pod)})
			c.askPlacement(key{s.GVK.Kind, client.KeyOf(pod)})
		}
		for _, leaf := range s.list(mirror, "") {
			if root, ok := rootOf(leaf); ok {
				c.queue.Add(key{s.GVK.Kind, root})
				if s.IsPlaced() {
					c.askPlacement(key{s.GVK.Kind, root})
				}
			}
		}
	}
}

func (c *Controller) onNamespace(e client.Event[*corev1.Namespace]) {
	n := e.Object()
	if _, ok := rootOf(n); ok {
		c.queue.Add(key{ofNamespace, client.KeyOf(n)})
		return
	}
	if e.Old != nil && e.New != nil && maps.Equal(inherited(e.Old), inherited(e.New)) {
		return
	}
	for _, mirrored := range c.informers.Namespaces.ByIndex(byRoot, namespaceValue(client.KeyOf(n).Cluster, n.Name)) {
		c.queue.Add(key{ofNamespace, client.KeyOf(mirrored)})
	}
}

func (c *Controller) reconcile(ctx context.Context, k key) (time.Duration, error) {
	switch k.kind {
	case ofPlacement:
		return c.placementStatus(ctx, k)
	case ofNamespace:
		return c.namespace(ctx, k.Key)
	case ofSyncTarget:
		return 0, c.syncTarget(ctx, k.Key)
	}
	s := c.sources[k.kind]
	if c.isMirror(k.Cluster) {
		return 0, nil
	}
	if !s.HasLeaves() {
		return c.pod(ctx, s, k.Key)
	}
	root, _ := s.get(k.Key)
	own, again, err := c.bury(ctx, s, k.Key, root)
	if s.MakesPods() && root == nil {
		c.unseen.forgetAll(k)
	}
	err = errors.Join(err, c.forget(ctx, s, k.Key, own))
	if err != nil || root == nil || root.GetDeletionTimestamp() != nil {
		return again, err
	}
	if s.MakesPods() {
		if own, err = c.withUnseen(ctx, s, k.Key, own); err != nil {
			return 0, err
		}
	}
	p := c.placement(s, k.Key)
	made, unmade := c.podClaims(ctx, s, root, p, own)
	if made && len(own) == 0 {
		return lookAgain, unmade // it starts after them: the informer shows them before
	}
	held, wait, err := c.hold(ctx, s, root, p, own)
	if err != nil {
		return 0, settle([]error{err, unmade})
	}
	if s.MakesPods() {
		var awaited time.Duration
		p, awaited = c.seated(ctx, s, root, p, own)
		wait = sooner(wait, awaited)
	}
	var next time.Duration
	switch s.Goes {
	case kinds.Divided:
		next, err = c.workload(ctx, s, root, p, own, held)
	case kinds.Copied:
		next, err = c.copies(ctx, s, root, p, own, held)
	case kinds.Single:
		next, err = c.single(ctx, s, root, p, own, held)
	case kinds.WhereMounted:
		next, err = c.claim(ctx, s, k.Key, root, own)
	default:
		next, err = c.whole(ctx, s, k.Key, root, p, own, held)
	}
	return sooner(sooner(again, wait), next), settle([]error{err, unmade})
}

// sooner is the smaller of two times, where 0 means never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

func (c *Controller) isMirror(cluster logicalcluster.Name) bool {
	lc, ok := c.informers.LogicalClusters.Get(client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName})
	return ok && lc.Spec.Use == corev1alpha1.LogicalClusterUseMirror
}

// target returns the SyncTarget of a mirror; nil if there is none any more.
func (c *Controller) target(mirror logicalcluster.Name) *workloadv1alpha1.SyncTarget {
	for _, t := range c.informers.SyncTargets.ByIndex(byMirror, string(mirror)) {
		if !c.isMirror(client.KeyOf(t).Cluster) { // not the twin
			return t
		}
	}
	return nil
}

// dnsKnows says whether the DNS of a mirror's cluster answers such pods by the names of their workspace, as its administrator says: those in the network of
// their node it takes for that.
func (c *Controller) dnsKnows(mirror logicalcluster.Name, pods *corev1.PodSpec) bool {
	t := c.target(mirror)
	return t != nil && t.Spec.DNSKnowsWorkspaces && !pods.HostNetwork
}

// carries says whether the syncer of a mirror's cluster carries a kind. A leaf of another kind is not made there.
func (c *Controller) carries(mirror logicalcluster.Name, s *source) bool {
	return c.target(mirror).Carries(s.Carried())
}

// lost says that a cluster is not heard of: see the SyncTarget's condition, which tolerates 40 s.
func lost(t *workloadv1alpha1.SyncTarget) bool {
	return t == nil || !meta.IsStatusConditionTrue(t.Status.Conditions, workloadv1alpha1.SyncTargetReady)
}

// observed says that one of the two sides was restored, and that nobody has confirmed it.
func observed(t *workloadv1alpha1.SyncTarget) bool {
	return t != nil && meta.IsStatusConditionTrue(t.Status.Conditions, workloadv1alpha1.SyncTargetObserveOnly)
}

// placement returns what decides where an object of a namespace goes: its own Placement or its namespace's; nil if
// there is none, or it is to come.
func (c *Controller) placement(s *source, k client.Key) *placementv1alpha1.Placement {
	for i, name := range placementNames(s, k) {
		if p, ok := c.informers.Placements.Get(client.Key{Cluster: k.Cluster, Name: name}); ok && (i == 0 || !c.awaitsItsOwn(s, k)) {
			return p
		}
	}
	return nil
}

// awaitsItsOwn says that an object with a wish of its own is nowhere yet. Its Placement is on its way: by its namespace's it would begin where it must not
// be, and what is done once, or has data, would stay there. What is somewhere stands as its namespace's says until then.
func (c *Controller) awaitsItsOwn(s *source, k client.Key) bool {
	root, ok := s.get(k)
	return ok && s.IsPlaced() && !s.IsGiven(k.Namespace, k.Name) && placementv1alpha1.HasWish(root.GetAnnotations()) && mirrorOf(root) == "" &&
		!slices.ContainsFunc(s.leaves(k), func(leaf ctrlclient.Object) bool { return leafUID(leaf) == root.GetUID() && c.isInMirror(leaf) })
}

// placementNames are those of the Placements that may decide for an object: the first of them that there is does.
func placementNames(s *source, k client.Key) []string {
	own := &placementv1alpha1.PlacedObject{Group: s.GVR.Group, Resource: s.GVR.Resource, Name: k.Name}
	return []string{placementv1alpha1.NameFor(k.Namespace, own), placementv1alpha1.NameFor(k.Namespace, nil)}
}

// leafIn returns the leaf of those that is in a mirror, nil if none is.
func leafIn(mirror logicalcluster.Name, leaves []ctrlclient.Object) ctrlclient.Object {
	for _, l := range leaves {
		if client.KeyOf(l).Cluster == mirror {
			return l
		}
	}
	return nil
}

func (c *Controller) space(mirror logicalcluster.Name, namespace string) *sync.Mutex {
	return &c.spaces[stripe(mirror, namespace)]
}

// stripe is the index of the lock of a namespace.
func stripe(cluster logicalcluster.Name, namespace string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(namespaceValue(cluster, namespace)))
	return h.Sum32() % 64
}
