package splitter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
)

// Copy is what a plan has to know of a workload in one physical cluster, where it runs whole in each.
type Copy struct {
	// Name sorts and identifies the cluster.
	Name string
	// Assigned says that the Placement names the cluster, or that a workload of the namespace stays there. Beside says that it is only the
	// latter: no move awaits it.
	Assigned, Beside bool
	// Barred says that no leaf is made there: the cluster's syncer does not carry the kind.
	Barred bool
	// Exists says that there is a leaf; Deleting that it is a tombstone, or has to become one because its root is no more.
	Exists, Deleting bool
	// Serves says that the cluster is known to serve by what the root is now.
	Serves bool
	// Needed says that workloads which are leaving the cluster run there yet: their pods may need what each of their nodes runs.
	Needed bool
}

// CopyStep is what a plan wants of one cluster now. Where nothing is set, nothing can be done there now.
type CopyStep struct {
	// Write says that there shall be a leaf as the root is now, Delete that the leaf shall become a tombstone.
	Write, Delete bool
}

// PlanCopies returns the next step of every cluster, by its name, so that repeating plan and report ends with a leaf in every
// cluster that is assigned and not barred, and none elsewhere.
//
// A cluster is left only when all that the Placement names serve, make before break, and after whatever else leaves it. Until then its leaf
// stays as it is.
func PlanCopies(copies []Copy) map[string]CopyStep {
	awaited := slices.ContainsFunc(copies, func(c Copy) bool { return c.Assigned && !c.Beside && !c.Serves })
	steps := make(map[string]CopyStep, len(copies))
	for _, c := range copies {
		switch {
		case c.Deleting: // gone first
		case c.Assigned:
			steps[c.Name] = CopyStep{Write: c.Exists || !c.Barred}
		case c.Exists:
			steps[c.Name] = CopyStep{Delete: !awaited && !c.Needed}
		}
	}
	return steps
}

// copySite is one physical cluster in the work on a workload that is not divided.
type copySite struct {
	name     string
	mirror   logicalcluster.Name
	assigned bool
	beside   bool // as of a Copy
	lost     bool
	observed bool // nothing is written there until an administrator confirms
	barred   bool // its syncer does not carry the kind
	needed   bool // as of a Copy, once it was looked at
	weight   int64
	stays    *kinds.Reason // why the leaf does not leave the cluster; nil if it may
	// leaf is nil if there is none; old and held as in a site.
	leaf      ctrlclient.Object
	old, held bool
	refused   *workloadv1alpha1.Refusal
	wrote     bool // in this pass
	// told as of a site, and hash what the root renders to there.
	told bool
	hash string
}

// copies takes the next step of bringing a workload to every cluster of its Placement, and writes what its leaves say into its
// status.
func (c *Controller) copies(ctx context.Context, s *source, root ctrlclient.Object, p *placementv1alpha1.Placement, leaves []ctrlclient.Object, held []logicalcluster.Name) (time.Duration, error) {
	rk := client.KeyOf(root)
	p, err := c.decided(ctx, rk, p, leaves)
	if err != nil || p == nil {
		return 0, err
	}
	authored := root
	root, lacks, err := c.withAccount(ctx, root, leaves)
	if err != nil {
		return 0, err
	}
	assigned := placed(p)
	if len(kinds.ClaimsOf(root)) == 0 { // else it is where they are, whatever stays elsewhere
		assigned = c.goesTo(s, rk, p, c.staying(rk))
	}
	sites := c.copySites(s, root, p, assigned, leaves, held)
	if err := c.tellCopySites(s, authored, root, sites); err != nil {
		return 0, err
	}
	steps := planCopySites(sites)
	if slices.ContainsFunc(sites, func(st *copySite) bool { return steps[string(st.mirror)].Delete }) {
		// What is left is left for good: not because of what was so a moment ago.
		if settled, err := c.refreshCopies(ctx, s, root, p, sites); err != nil || !settled {
			return lookAgain, err
		}
		if err := c.tellCopySites(s, authored, root, sites); err != nil {
			return 0, err
		}
		steps = planCopySites(sites)
	}
	if c.tallyPlan(s, root, p, copyShares(sites, placed(p))) {
		defer c.askPlacement(key{s.GVK.Kind, rk}) // told with what is written now, as far as that is seen by then
	}
	again, err := c.carryOutCopies(ctx, s, root, sites, steps, lacks)
	wrote := slices.ContainsFunc(sites, func(st *copySite) bool { return st.wrote })
	if wrote {
		c.pace.Wrote(key{s.GVK.Kind, rk}, "") // what comes of it follows
	}
	c.tellCopies(ctx, s, root, p, sites, wrote)

	now := authored.DeepCopyObject().(ctrlclient.Object)
	view := copyView(s, p, sites, c.clock.Now())
	s.Summarise(now, view)
	behind, unkept := c.keepRevisions(ctx, s, authored, now, view)
	wait, problem := c.writeStatus(ctx, s, authored, now, copiesMayWait(authored.(*appsv1.DaemonSet), now.(*appsv1.DaemonSet)))
	return sooner(sooner(again, behind), wait), errors.Join(err, settle([]error{unkept, problem}))
}

// tellCopySites fills in of every site whether pods are told there what their namespace is called in the workspace, by the leaves as they are known now,
// and what the root renders to there; authored is the workload as somebody wrote it.
func (c *Controller) tellCopySites(s *source, authored, root ctrlclient.Object, sites []*copySite) error {
	template, hashes := s.Template(authored), map[bool]string{}
	digest := kinds.TemplateDigest(template)
	for _, st := range sites {
		st.told = isTold(s.Kind, authored, st.leaf, digest, c.dnsKnows(st.mirror, &template.Spec))
		if hashes[st.told] == "" {
			down := toldAs(root, st.told)
			_, hash, err := render(s.Kind, down, s.Content(down), down.GetNamespace(), false)
			if err != nil {
				return err
			}
			hashes[st.told] = hash
		}
		st.hash = hashes[st.told]
	}
	return nil
}

// copySites gathers the clusters that a workload is in or goes to, sorted.
func (c *Controller) copySites(s *source, root ctrlclient.Object, p *placementv1alpha1.Placement, assigned []logicalcluster.Name, leaves []ctrlclient.Object, held []logicalcluster.Name) (sites []*copySite) {
	mirrors := slices.Clone(assigned)
	for _, leaf := range leaves {
		mirrors = append(mirrors, client.KeyOf(leaf).Cluster)
	}
	slices.Sort(mirrors)
	for _, mirror := range slices.Compact(mirrors) {
		t := c.target(mirror)
		st := &copySite{
			name: nameOf(t, mirror), mirror: mirror, assigned: slices.Contains(assigned, mirror),
			beside: slices.Contains(assigned, mirror) && !slices.Contains(placed(p), mirror),
			lost:   lost(t), observed: observed(t), barred: !c.carries(mirror, s), held: slices.Contains(held, mirror),
		}
		if leaf := leafIn(mirror, leaves); leaf != nil {
			st.leaf, st.old, st.stays = leaf, leafUID(leaf) != root.GetUID(), s.WhyStays(leaf)
		} else if st.beside && st.barred {
			st.assigned, st.beside = false, false // nobody asked for it there by name
		}
		if i := slices.IndexFunc(p.Spec.Clusters, func(on placementv1alpha1.PlacedCluster) bool { return on.Mirror == string(mirror) }); i >= 0 {
			st.weight = p.Spec.Clusters[i].Weight
		}
		sites = append(sites, st)
	}
	slices.SortStableFunc(sites, func(a, b *copySite) int { return cmp.Compare(a.name, b.name) })
	return sites
}

// isCurrent says that the leaf is what the root renders to there.
func (st *copySite) isCurrent() bool {
	return st.leaf != nil && !st.old && st.leaf.GetAnnotations()[workloadv1alpha1.RenderedAnnotation] == st.hash
}

// planCopySites plans for sites, by the names of their mirrors: two clusters of one name can be here for a while.
func planCopySites(sites []*copySite) map[string]CopyStep {
	copies := make([]Copy, len(sites))
	for i, st := range sites {
		copies[i] = Copy{
			Name: string(st.mirror), Assigned: st.assigned, Beside: st.beside, Barred: st.barred, Exists: st.leaf != nil,
			Deleting: st.leaf != nil && !st.lives(),
			Serves:   !st.lost && !st.observed && st.isCurrent() && leafView(st.leaf).Serves(),
			Needed:   st.needed,
		}
	}
	return PlanCopies(copies)
}

// copyShares is what the clusters of a Placement are to run in the end: as many pods as each has fit nodes for.
func copyShares(sites []*copySite, placed []logicalcluster.Name) (shares []share) {
	for _, st := range sites {
		if slices.Contains(placed, st.mirror) {
			shares = append(shares, share{st.mirror, asItSays})
		}
	}
	return shares
}

// refreshCopies reads the leaves and the Placement uncached. It says no if the Placement is not what the informer shows, or if a
// leaf is of a later generation than the root that it shows.
func (c *Controller) refreshCopies(ctx context.Context, s *source, root ctrlclient.Object, p *placementv1alpha1.Placement, sites []*copySite) (bool, error) {
	var leaving []logicalcluster.Name
	for _, st := range sites {
		if !st.assigned {
			leaving = append(leaving, st.mirror)
		}
		if st.leaf == nil {
			continue
		}
		live, ahead, err := c.live(ctx, s, root, st.leaf)
		if err != nil || ahead {
			return false, err
		}
		st.leaf, st.old = live, live != nil && leafUID(live) != root.GetUID()
		if st.leaf != nil && !st.assigned {
			if st.needed, err = c.othersLeave(ctx, st.leaf); err != nil {
				return false, err
			}
		}
	}
	return c.hasLeft(ctx, s, client.KeyOf(root), p, leaving...)
}

// othersLeave says whether a workload that is no copy is leaving the cluster of a leaf, and the leaf's namespace, and has not left yet. It
// is read uncached; when it is gone, companionsIn asks again.
func (c *Controller) othersLeave(ctx context.Context, leaf ctrlclient.Object) (bool, error) {
	at := client.KeyOf(leaf)
	workloads, err := c.read(ctx, at.Cluster, at.Namespace, kinds.Kind.MakesPods)
	if err != nil {
		return false, fmt.Errorf("list what may need %s: %w", at, err)
	}
	return slices.ContainsFunc(workloads, func(o ctrlclient.Object) bool {
		s := c.sourceOf(o)
		root, ok := rootOf(o)
		return ok && s.Goes != kinds.Copied && !s.HasEnded(o) && !slices.Contains(placed(c.placement(s, root)), at.Cluster)
	}), nil
}

// carryOutCopies writes what the steps say, of a workload that may lack something to be made.
func (c *Controller) carryOutCopies(ctx context.Context, s *source, root ctrlclient.Object, sites []*copySite, steps map[string]CopyStep, lacks error) (again time.Duration, err error) {
	var errs []error
	for _, st := range sites {
		ready, err := c.carryOutCopy(ctx, s, root, st, steps[string(st.mirror)], lacks)
		if st.refused = refusedByHub(err); st.refused != nil {
			c.tellHub(ctx, s, root, st.mirror, st.refused)
		} else if err == nil {
			c.untellHub(root, st.mirror)
		}
		switch {
		case awaitsAccount(err): // whose event brings us back
		case err != nil:
			errs = append(errs, fmt.Errorf("cluster %q: %w", st.name, err))
		case !ready:
			again = lookAgain
		}
	}
	return again, settle(errs)
}

// carryOutCopy takes the step of one cluster; ready is false if something has to go first.
func (c *Controller) carryOutCopy(ctx context.Context, s *source, root ctrlclient.Object, st *copySite, step CopyStep, lacks error) (ready bool, err error) {
	root = toldAs(root, st.told)
	switch {
	case st.held:
		return true, nil
	case step.Delete:
		return true, c.leave(ctx, s, st.leaf)
	case !step.Write:
		return true, nil
	case st.leaf == nil && lacks != nil:
		return false, lacks
	case lacks != nil:
	case st.leaf == nil || !equality.Semantic.DeepEqual(podsOf(st.leaf), s.Template(s.Content(root))):
		if err := c.ensureCompanions(ctx, root, st.mirror); err != nil {
			return false, err
		}
	}
	before := st.leaf
	leaf, ready, err := c.putWhole(ctx, s, root, st.mirror, before, lacks != nil)
	if err != nil || !ready {
		return false, err
	}
	if before == nil {
		c.unseen.made(key{s.GVK.Kind, client.KeyOf(root)},
			client.Key{Cluster: st.mirror, Namespace: leaf.GetNamespace(), Name: leaf.GetName()}, leaf.GetUID())
	}
	st.wrote = before == nil || before.GetResourceVersion() != leaf.GetResourceVersion()
	st.leaf = leaf
	return true, lacks // its template goes down when that is there
}

// tellCopies tells where a workload is, and what keeps it from being elsewhere.
func (c *Controller) tellCopies(ctx context.Context, s *source, root ctrlclient.Object, p *placementv1alpha1.Placement, sites []*copySite, wrote bool) {
	var shares []string
	var leaves []ctrlclient.Object
	for _, st := range sites {
		if st.leaf != nil {
			leaves = append(leaves, st.leaf)
		}
		if st.assigned && st.leaf != nil && !st.old {
			shares = append(shares, fmt.Sprintf("%q", st.name))
		}
	}
	c.tellShares(ctx, s, root, p, shares, wrote)
	c.tellNotCarried(ctx, s, root, notCarriedTo(s, sites))
	c.tellRefusals(ctx, s, root, leaves)
}

// notCarriedTo says which assigned clusters get nothing since their syncers do not carry the kind; nil if none.
func notCarriedTo(s *source, sites []*copySite) *kinds.Reason {
	var names []string
	for _, st := range sites {
		if st.assigned && st.barred && st.leaf == nil {
			names = append(names, st.name)
		}
	}
	return notCarried(s, names)
}

// copyView is what the sites say.
func copyView(s *source, p *placementv1alpha1.Placement, sites []*copySite, now time.Time) kinds.View {
	view := kinds.View{Now: now, NotPlaced: notCarriedTo(s, sites)}
	for _, st := range sites {
		l := kinds.Leaf{}
		if st.leaf != nil && !st.old { // what the root before it runs is nothing of this one
			l = leafView(st.leaf)
		}
		if st.refused != nil {
			l.Refused = st.refused
		}
		l.Cluster, l.Assigned, l.Lost, l.Observed, l.Current = st.name, st.assigned, st.lost, st.observed, st.isCurrent()
		view.Leaves = append(view.Leaves, l)
	}
	if placed := meta.FindStatusCondition(p.Status.Conditions, placementv1alpha1.PlacementPlaced); placed != nil && placed.Status == metav1.ConditionFalse {
		view.NotPlaced = &kinds.Reason{Reason: placed.Reason, Message: placed.Message}
	}
	return view
}
