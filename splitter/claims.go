package splitter

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	"atoll.dev/atoll/internal/order"
)

// A claim is one volume, in one cluster. The first workload that mounts it takes it to a cluster (claim), and from then on the claim says where
// all that mount it run: their Placements are read as if they named that cluster alone (seated).

// Home is what a plan has to know of a claim that is nowhere yet, in one cluster where something that mounts it may run.
type Home struct {
	// Name identifies the cluster.
	Name string
	// Siblings counts the claims there that are mounted together with it.
	Siblings int
	// Runs says that something that mounts it runs there, Users how many may, and Weight what their Placements say.
	Runs   bool
	Users  int
	Weight int64
	// Barred and Unheard are as of a Single.
	Barred, Unheard bool
}

// ChooseHome returns where a claim goes, the zero value if nothing that mounts it is placed: where what is mounted with it is, or what mounts it runs.
// Else as a Single starts, with preference for what suits most of those that mount it.
func ChooseHome(homes []Home) Home {
	if len(homes) == 0 {
		return Home{}
	}
	return slices.MinFunc(homes, func(a, b Home) int {
		return cmp.Or(cmp.Compare(b.Siblings, a.Siblings), order.First(a.Runs, b.Runs), order.First(!a.Barred, !b.Barred), order.First(!a.Unheard, !b.Unheard),
			cmp.Compare(b.Users, a.Users), cmp.Compare(b.Weight, a.Weight), cmp.Compare(a.Name, b.Name))
	})
}

// Mount is what a plan has to know of a claim that a workload mounts.
type Mount struct {
	Claim string
	// Exists says that there is such a claim, At names the clusters that have it, or have had the one before it of its name.
	Exists bool
	At     []string
	// Unanswered says that it has to be there first, and that its cluster has not said yet whether it takes it.
	Unanswered bool
}

// Seat is the one cluster in which a workload that mounts claims is to run.
type Seat struct {
	// Name is that of the cluster, empty if there is none now.
	Name string
	// Awaits names a claim that has no cluster yet, or no answer of it, Apart those which are in others than what it is mounted with, or than where the workload may
	// start. At most one of them is set.
	Awaits string
	Apart  []string
}

// PlanSeat returns where a workload runs that mounts claims: where they are, if it may start there or runs there already. Where nobody knows yet, it stays
// where it is, and does not start; of claims that do not exist it is as if it mounted none, but it is in one cluster.
func PlanSeat(singles []Single, mounts []Mount) Seat {
	at := map[string]bool{}
	awaits, apart := "", []string(nil)
	for _, m := range mounts {
		for _, cluster := range m.At {
			at[cluster] = true
		}
		if len(m.At) > 0 {
			apart = append(apart, m.Claim)
		}
		if m.Exists && awaits == "" && (len(m.At) == 0 || m.Unanswered) {
			awaits = m.Claim
		}
	}
	var here, start *Single // where it is, where it would be started
	for i := range singles {
		s := &singles[i]
		if s.Exists && !s.Deleting && (here == nil || compareSeats(*s, *here, at) < 0) {
			here = s
		}
		if s.Assigned && (start == nil || compareStarts(*s, *start) < 0) {
			start = s
		}
	}
	seat := Seat{}
	if here != nil {
		seat.Name = here.Name
	}
	switch {
	case len(at) == 1:
		home := slices.Collect(maps.Keys(at))[0]
		is := slices.ContainsFunc(singles, func(s Single) bool { return s.Name == home && (s.Assigned || s.Exists && !s.Deleting) })
		switch {
		case !is:
			seat.Apart = apart
		case awaits == "" || here != nil:
			seat.Name = home
		default:
			seat.Awaits = awaits
		}
	case len(at) > 1:
		seat.Apart = apart
	case awaits != "":
		seat.Awaits = awaits
	case start != nil && (here == nil || !here.Assigned):
		seat.Name = start.Name
	}
	return seat
}

// compareSeats orders clusters with a leaf by which of them keeps it: the claims' own, then as a Single is started.
func compareSeats(a, b Single, at map[string]bool) int {
	return cmp.Or(order.First(at[a.Name], at[b.Name]), order.First(a.Assigned, b.Assigned), compareStarts(a, b))
}

// claim takes a claim to its cluster, keeps it there, and writes what that says of it.
func (c *Controller) claim(ctx context.Context, s *source, k client.Key, root ctrlclient.Object, leaves []ctrlclient.Object) (time.Duration, error) {
	if lc, ok := c.informers.LogicalClusters.Get(client.Key{Cluster: k.Cluster, Name: corev1alpha1.LogicalClusterName}); ok && ending(lc) {
		return 0, c.leaveWith(ctx, s, k.Cluster, leaves)
	}
	if len(leaves) == 0 {
		if why := s.WhyWithheld(root); why != "" {
			c.tellOnce(ctx, s, root, "withheld", corev1.EventTypeWarning, "NotSynced", s.GVK.Kind+" does not go to physical clusters: "+why+".")
			return 0, nil
		}
		return c.house(ctx, s, k, root)
	}
	view := kinds.View{Now: c.clock.Now()}
	var volume string
	var now []ctrlclient.Object
	var errs []error
	for _, leaf := range leaves {
		mirror := client.KeyOf(leaf).Cluster
		switch {
		case leafUID(leaf) != root.GetUID():
			c.tellOnce(ctx, s, root, "waits", corev1.EventTypeWarning, "StillThere", fmt.Sprintf(
				"The claim of this name before it is still on %q: it goes when no pod there mounts it any more.", nameOf(c.target(mirror), mirror)))
			continue
		case leaf.GetDeletionTimestamp() == nil:
			written, _, err := c.putWhole(ctx, s, root, mirror, leaf, false)
			if r := refusedByHub(err); r != nil {
				c.tellHub(ctx, s, root, mirror, r)
			} else if err == nil {
				c.untellHub(root, mirror)
				leaf = written
			}
			errs = append(errs, err)
		}
		c.untell(root, "waits")
		now, volume = append(now, leaf), leaf.GetAnnotations()[workloadv1alpha1.VolumeAnnotation]
		view.Leaves = append(view.Leaves, kinds.Leaf{Cluster: string(mirror), Object: leaf, Refused: workloadv1alpha1.RefusalOf(leaf), Settled: applied(leaf)})
	}
	c.tellRefusals(ctx, s, root, now)
	wait, err := c.summariseClaim(ctx, s, root, view, volume)
	return wait, errors.Join(append(errs, err)...)
}

// leaveWith makes tombstones of the leaves of a claim whose workspace is being deleted: that waits for them, and its objects are deleted after them.
func (c *Controller) leaveWith(ctx context.Context, s *source, workspace logicalcluster.Name, leaves []ctrlclient.Object) error {
	if left, err := c.terminating(ctx, workspace); err != nil || !left {
		return err
	}
	var errs []error
	for _, leaf := range leaves {
		if leaf.GetDeletionTimestamp() == nil {
			errs = append(errs, c.tombstone(ctx, s, leaf))
		}
	}
	return errors.Join(errs...)
}

// withPodClaims asks for what has claims for its pods in a workspace.
func (c *Controller) withPodClaims(workspace logicalcluster.Name) {
	for _, s := range c.sources {
		if s.PodClaims == nil {
			continue
		}
		for _, root := range s.list(workspace, "") {
			c.queue.Add(key{s.GVK.Kind, client.KeyOf(root)})
		}
	}
}

func isReady(lc *corev1alpha1.LogicalCluster) bool {
	return lc.Status.Phase == corev1alpha1.LogicalClusterPhaseReady && !ending(lc) && !client.IsImporting(lc)
}

// onLogicalCluster asks for what has claims for its pods in a workspace that is ready now. Of one that is being deleted it asks for the claims, since no Placement leads
// where they are, and for its namespaces in mirrors: those that are empty wait for what may come back.
func (c *Controller) onLogicalCluster(e client.Event[*corev1alpha1.LogicalCluster]) {
	if e.New != nil && isReady(e.New) && e.Old != nil && !isReady(e.Old) {
		c.withPodClaims(client.KeyOf(e.New).Cluster)
	}
	if e.New == nil || !ending(e.New) || e.Old != nil && ending(e.Old) {
		return
	}
	for _, claim := range c.sources[kinds.ClaimKind].list(client.KeyOf(e.New).Cluster, "") {
		c.queue.Add(key{kinds.ClaimKind, client.KeyOf(claim)})
	}
	for _, n := range c.informers.Namespaces.List(client.KeyOf(e.New).Cluster, "") {
		for _, mirrored := range c.informers.Namespaces.ByIndex(byRoot, namespaceValue(client.KeyOf(n).Cluster, n.Name)) {
			c.queue.Add(key{ofNamespace, client.KeyOf(mirrored)})
		}
	}
}

// house chooses the cluster of a claim that has none, and makes its leaf there. Two claims of a namespace are not housed at once, and none while a
// leaf of it may be anywhere: so those that are mounted together come together, and none is in two clusters. A claim that has had a volume is lost with
// its cluster, and not made again: an empty one would pass for it.
func (c *Controller) house(ctx context.Context, s *source, k client.Key, root ctrlclient.Object) (again time.Duration, err error) {
	lock := &c.claims[stripe(k.Cluster, k.Namespace)]
	lock.Lock()
	defer lock.Unlock()
	switch leaves, err := c.everyLeaf(ctx, s, k); {
	case err != nil:
		c.tellUnreadable(ctx, s, root, err)
		return lookAgain, err
	case len(leaves) > 0: // the informer will show it
		return lookAgain, nil
	}
	if s.HasBegun(root) {
		c.tellOnce(ctx, s, root, "waits", corev1.EventTypeWarning, "ClaimLost",
			"Its volume is gone with the physical cluster that had it. It is not made again, empty: delete it, and apply it again, if that is wanted.")
		return c.summariseClaim(ctx, s, root, kinds.View{Now: c.clock.Now(), Gone: "its cluster was removed"}, "")
	}
	homes, settled, err := c.homes(ctx, s, k)
	if err != nil || !settled {
		c.tellUnreadable(ctx, s, root, err)
		return lookAgain, err
	}
	home := ChooseHome(homes)
	mirror := logicalcluster.Name(home.Name)
	switch name := nameOf(c.target(mirror), mirror); {
	case home.Name == "":
		c.tellOnce(ctx, s, root, "waits", corev1.EventTypeNormal, "WaitForFirstConsumer", "It goes to the physical cluster where the first workload that mounts it is placed.")
		return 0, nil
	case home.Barred:
		why := notCarried(s, []string{name})
		c.tellOnce(ctx, s, root, "waits", corev1.EventTypeWarning, why.Reason, why.Message)
		return 0, nil
	case home.Unheard:
		c.tellOnce(ctx, s, root, "waits", corev1.EventTypeWarning, unreachable, fmt.Sprintf("It goes to %q when that is heard of, and may be changed.", name))
		return 0, nil
	}
	_, ready, err := c.putWhole(ctx, s, root, mirror, nil, false)
	if r := refusedByHub(err); r != nil {
		c.tellHub(ctx, s, root, mirror, r)
	}
	if err != nil || !ready {
		return lookAgain, err
	}
	c.untellHub(root, mirror)
	c.untell(root, "waits")
	return 0, nil
}

// homes returns where a claim may go. It says no if a Placement is not what the informer shows: nothing moves a claim again.
func (c *Controller) homes(ctx context.Context, s *source, k client.Key) (homes []Home, settled bool, err error) {
	byMirror := map[logicalcluster.Name]*Home{}
	add := func(mirror logicalcluster.Name) *Home {
		if byMirror[mirror] == nil {
			t := c.target(mirror)
			byMirror[mirror] = &Home{Name: string(mirror), Barred: !c.carries(mirror, s), Unheard: lost(t) || observed(t)}
		}
		return byMirror[mirror]
	}
	siblings := map[string]bool{}
	runs := map[logicalcluster.Name]bool{}
	for _, user := range c.referring(s, k) {
		of, uk := c.sourceOf(user), client.KeyOf(user)
		if root, ok := rootOf(user); ok && c.isMirror(uk.Cluster) {
			runs[uk.Cluster] = runs[uk.Cluster] || root.Cluster == k.Cluster && user.GetDeletionTimestamp() == nil && !of.HasEnded(user)
			continue
		}
		if uk.Cluster != k.Cluster || user.GetDeletionTimestamp() != nil || of.WhyWithheld(user) != "" || of.HasEnded(user) {
			continue
		}
		p := c.placement(of, uk)
		if p == nil && c.awaitsItsOwn(of, uk) {
			return nil, false, nil // nothing moves the claim when that is there
		}
		if p == nil {
			continue
		}
		if live, err := c.livePlacement(ctx, of, uk); err != nil || live == nil || decisionOf(live) != decisionOf(p) {
			return nil, false, err
		}
		if mirror := mirrorOf(user); mirror != "" {
			runs[mirror] = true
		}
		for _, mirror := range c.staysIn(of, user) {
			add(mirror)
			runs[mirror] = true
		}
		for _, name := range kinds.ClaimsOf(user) {
			siblings[name] = siblings[name] || name != k.Name
		}
		weighs := slices.ContainsFunc(p.Spec.Clusters, func(on placementv1alpha1.PlacedCluster) bool { return on.Weight > 0 })
		for _, on := range p.Spec.Clusters {
			if on.Mirror != "" && (on.Weight > 0 || !weighs) {
				home := add(logicalcluster.Name(on.Mirror))
				home.Users++
				home.Weight += on.Weight
			}
		}
	}
	maps.DeleteFunc(siblings, func(_ string, is bool) bool { return !is })
	leaves, err := c.siblingsOf(ctx, s, k, siblings, func(leaf ctrlclient.Object) bool {
		// What stays with one claim in a cluster that it is not placed in any more gets the next one there, too.
		mirror := client.KeyOf(leaf).Cluster
		return byMirror[mirror] != nil || runs[mirror]
	})
	if err != nil {
		return nil, false, err
	}
	for _, leaf := range leaves {
		add(client.KeyOf(leaf).Cluster).Siblings++
	}
	for mirror, home := range byMirror {
		home.Runs = runs[mirror]
		homes = append(homes, *home)
	}
	return homes, true, nil
}

// staysIn returns the mirrors where what has claims for its pods runs and stays, wherever it is placed. Its leaf there asks for no pod that has no claim yet;
// and an earlier version left the claims to the cluster.
func (c *Controller) staysIn(s *source, root ctrlclient.Object) (mirrors []logicalcluster.Name) {
	if s.PodClaims == nil {
		return nil
	}
	for _, leaf := range s.leaves(client.KeyOf(root)) {
		if mirror := client.KeyOf(leaf).Cluster; c.isMirror(mirror) && leafUID(leaf) == root.GetUID() && leaf.GetDeletionTimestamp() == nil && s.WhyStays(leaf) != nil {
			mirrors = append(mirrors, mirror)
		}
	}
	return mirrors
}

// siblingsOf returns the leaves that count of claims of k's namespace, by their names, uncached: of one that has some, since the others are where that is, or cannot
// be mounted with it. Those are asked first that the informer shows in a mirror; if there are none, for all at once: there can be a thousand.
func (c *Controller) siblingsOf(ctx context.Context, s *source, k client.Key, names map[string]bool, counts func(leaf ctrlclient.Object) bool) (leaves []ctrlclient.Object, err error) {
	if len(names) == 0 {
		return nil, nil
	}
	sorted := slices.Sorted(maps.Keys(names))
	counting := func(sibling client.Key) ([]ctrlclient.Object, error) {
		found, err := c.everyLeaf(ctx, s, sibling)
		return slices.DeleteFunc(found, func(leaf ctrlclient.Object) bool {
			root, _ := rootOf(leaf)
			return !names[root.Name] || !counts(leaf)
		}), err
	}
	for _, name := range sorted {
		sibling := client.Key{Cluster: k.Cluster, Namespace: k.Namespace, Name: name}
		if !slices.ContainsFunc(s.leaves(sibling), func(leaf ctrlclient.Object) bool { return c.isInMirror(leaf) && counts(leaf) }) {
			continue
		}
		if leaves, err = counting(sibling); err != nil || len(leaves) > 0 {
			return leaves, err
		}
	}
	if leaves, err = counting(k.Space()); !isUnreadable(err) {
		return leaves, err
	}
	for _, name := range sorted { // a row of somebody's cannot be read, which concerns nobody who does not ask for its name
		if leaves, err = counting(client.Key{Cluster: k.Cluster, Namespace: k.Namespace, Name: name}); err != nil || len(leaves) > 0 {
			return leaves, err
		}
	}
	return nil, nil
}

// summariseClaim writes a claim's status, and before it the volume that its cluster bound it to, as a cluster's binder does.
func (c *Controller) summariseClaim(ctx context.Context, s *source, root ctrlclient.Object, view kinds.View, text string) (time.Duration, error) {
	before := root.(*corev1.PersistentVolumeClaim)
	if volume := volumeIn(text); volume.Name != "" && before.Spec.VolumeName == "" {
		bound := before.DeepCopy()
		bound.Spec.VolumeName = volume.Name
		if _, named := before.Annotations[corev1.BetaStorageClassAnnotation]; before.Spec.StorageClassName == nil && !named && volume.StorageClassName != "" {
			bound.Spec.StorageClassName = ptr.To(volume.StorageClassName)
		}
		err := c.clients.Objects.Patch(client.In(ctx, client.KeyOf(root).Cluster), bound, ctrlclient.MergeFromWithOptions(before, ctrlclient.MergeFromWithOptimisticLock{}))
		if ctrlclient.IgnoreNotFound(err) != nil {
			return 0, fmt.Errorf("bind %s %s: %w", s.GVK.Kind, client.KeyOf(root), err)
		}
		before = bound
	}
	now := before.DeepCopy()
	s.Summarise(now, view)
	return c.writeStatus(ctx, s, before, now, 0)
}

// volumeIn reads what a syncer says of a claim's volume; the zero value of what is no name, so that a cluster which lies harms itself alone.
func volumeIn(text string) (volume workloadv1alpha1.Volume) {
	if text == "" || json.Unmarshal([]byte(text), &volume) != nil {
		return workloadv1alpha1.Volume{}
	}
	for _, name := range []string{volume.Name, cmp.Or(volume.StorageClassName, volume.Name)} {
		if len(validation.IsDNS1123Subdomain(name)) > 0 {
			return workloadv1alpha1.Volume{}
		}
	}
	return volume
}

// patienceWithClaims is how long a workload waits for its claims without a word.
const patienceWithClaims = 3 * time.Second

// seated returns the Placement, given the one that decides for a root, by which that is carried out. Of what mounts claims it is one that names the
// cluster which has them, and whose condition says what is not as the true one asks; of all else it is p.
func (c *Controller) seated(ctx context.Context, s *source, root ctrlclient.Object, p *placementv1alpha1.Placement, leaves []ctrlclient.Object) (_ *placementv1alpha1.Placement, again time.Duration) {
	names := kinds.ClaimsOf(root)
	if p == nil || len(names) == 0 || s.HasEnded(root) {
		c.untell(root, "seat")
		return p, 0
	}
	rk, of := client.KeyOf(root), c.sources[kinds.ClaimKind]
	ofPods := map[string]bool{}
	for _, pc := range s.PodClaimsOf(root) {
		ofPods[pc.Name] = true
	}
	mounts, youngest := make([]Mount, len(names)), root.GetCreationTimestamp().Time
	homes := map[string]logicalcluster.Name{}
	for i, name := range names {
		ck := client.Key{Cluster: rk.Cluster, Namespace: rk.Namespace, Name: name}
		mounts[i] = Mount{Claim: name}
		if claim, ok := of.get(ck); ok {
			mounts[i].Exists = true
			if made := claim.GetCreationTimestamp().Time; made.After(youngest) {
				youngest = made
			}
		}
		for _, leaf := range of.leaves(ck) {
			if mirror := client.KeyOf(leaf).Cluster; c.isMirror(mirror) {
				mounts[i].At, homes[name] = append(mounts[i].At, string(mirror)), mirror
				mounts[i].Unanswered = mounts[i].Unanswered || ofPods[name] && replyTo(leaf) == unanswered
			}
		}
	}
	sites := c.copySites(s, root, p, placed(p), leaves, nil)
	seat := PlanSeat(singlesOf(p, sites), mounts)

	at := p.DeepCopy()
	at.Spec.Clusters = nil
	name, assigned := nameOf(c.target(logicalcluster.Name(seat.Name)), logicalcluster.Name(seat.Name)), false
	if seat.Name != "" {
		on := placementv1alpha1.PlacedCluster{Name: name, Mirror: seat.Name, Weight: 1}
		if i := slices.IndexFunc(p.Spec.Clusters, func(on placementv1alpha1.PlacedCluster) bool { return on.Mirror == seat.Name }); i >= 0 {
			on, assigned = p.Spec.Clusters[i], true
			on.Weight = max(on.Weight, 1)
		}
		at.Spec.Clusters = []placementv1alpha1.PlacedCluster{on}
	}
	var why *kinds.Reason
	switch {
	case len(seat.Apart) > 0:
		var where []string
		for _, claim := range seat.Apart {
			where = append(where, fmt.Sprintf("%q on %q", claim, nameOf(c.target(homes[claim]), homes[claim])))
		}
		why = &kinds.Reason{Reason: "VolumesApart", Message: fmt.Sprintf(
			"Its claims have their volumes where it does not run: %s. It runs in one cluster, which has them all and which its placement names; volumes cannot be moved yet.", strings.Join(where, ", "))}
	case seat.Awaits != "":
		if again = patienceWithClaims - c.clock.Since(youngest); again <= 0 {
			again = 0
			why = &kinds.Reason{Reason: "VolumesAwaited", Message: fmt.Sprintf("It waits for the claim %q, which has no cluster, or no answer of it: see what is told of that.", seat.Awaits)}
		}
	case seat.Name != "" && !assigned:
		stays := "its claims are there"
		if i := slices.IndexFunc(sites, func(st *copySite) bool { return string(st.mirror) == seat.Name && st.stays != nil }); i >= 0 {
			stays = sites[i].stays.Message
		}
		why = &kinds.Reason{Reason: "VolumesStay", Message: fmt.Sprintf("It stays on %q: %s.", name, stays)}
	}
	if why != nil {
		meta.SetStatusCondition(&at.Status.Conditions, metav1.Condition{
			Type: placementv1alpha1.PlacementPlaced, Status: metav1.ConditionFalse, Reason: why.Reason, Message: why.Message, ObservedGeneration: p.Generation,
		})
	}
	if assigned && why == nil && len(p.Spec.Clusters) > 1 && s.Goes != kinds.Single && s.Goes != kinds.Bound {
		c.tellOnce(ctx, s, root, "seat", corev1.EventTypeNormal, "OneCluster", fmt.Sprintf("It runs on %q alone, whole: a claim is in one cluster, and what mounts it, too.", name))
	} else {
		c.untell(root, "seat")
	}
	return at, again
}

// lacking adds to the shares of what runs in one cluster by a Placement that is seated those of the other clusters which the true one names: they lack
// nothing where it runs in one of them, and all of it where it does not.
func (c *Controller) lacking(s *source, root ctrlclient.Object, p *placementv1alpha1.Placement, shares []share) []share {
	named := c.placement(s, client.KeyOf(root))
	if named == p || decisionOf(named) != decisionOf(p) {
		return shares
	}
	wanted := int32(noLeaf)
	if !slices.ContainsFunc(placed(p), func(mirror logicalcluster.Name) bool { return slices.Contains(placed(named), mirror) }) {
		if wanted = asItSays; !s.AsItSays && s.MakesPods() {
			wanted, _ = s.Pods(root)
		}
	}
	for _, mirror := range placed(named) {
		if !slices.ContainsFunc(shares, func(sh share) bool { return sh.mirror == mirror }) {
			shares = append(shares, share{mirror, wanted})
		}
	}
	return shares
}

// mounting asks for what mounts a claim.
func (c *Controller) mounting(s *source, claim client.Key) {
	for _, user := range c.referring(s, claim) {
		if uk := client.KeyOf(user); uk.Cluster == claim.Cluster {
			c.queue.Add(key{c.sourceOf(user).GVK.Kind, uk})
		}
	}
}

// everyLeaf reads what a root has as leaves in any mirror, uncached; of a key without a name, what all of its namespace have.
func (c *Controller) everyLeaf(ctx context.Context, s *source, root client.Key) (leaves []ctrlclient.Object, err error) {
	shared, dedicated := kinds.DownstreamNamespace(root.Cluster, root.Namespace, false), kinds.DownstreamNamespace(root.Cluster, root.Namespace, true)
	for _, namespace := range slices.Compact([]string{shared, dedicated}) { // a cluster may have been dedicated only for a moment, too
		found, err := c.leavesNowIn(ctx, s, root, namespace)
		if err != nil {
			return nil, fmt.Errorf("list the leaves of %s %s: %w", s.GVK.Kind, root, err)
		}
		for _, leaf := range found {
			if of, ok := rootOf(leaf); ok && (of == root || root.Name == "" && of.Cluster == root.Cluster && of.Namespace == root.Namespace) && c.isMirror(client.KeyOf(leaf).Cluster) {
				leaves = append(leaves, leaf)
			}
		}
	}
	return leaves, nil
}
