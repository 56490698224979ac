package splitter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	"atoll.dev/atoll/internal/order"
)

// Single is what a plan has to know of a workload in one physical cluster, where it runs in one at a time.
type Single struct {
	// Name sorts and identifies the cluster.
	Name string
	// Assigned says that the Placement names the cluster, with that Weight.
	Assigned bool
	Weight   int64
	// Barred says that no leaf is made there: the cluster's syncer does not carry the kind.
	Barred bool
	// Unheard says that the cluster is not heard of, or that nothing is changed there: what it runs is not known.
	Unheard bool
	// Exists says that there is a leaf; Deleting that it is a tombstone, or has to become one because its root is no more.
	Exists, Deleting bool
	// Stays says that the leaf does not leave the cluster, wherever it is placed.
	Stays bool
}

// takes says that the workload can be started there.
func (s Single) takes() bool { return !s.Barred && !s.Unheard }

// SinglePlan is the next step of a workload that runs in one cluster at a time.
type SinglePlan struct {
	// Seat is the cluster that it is in, or that it is started in when it is gone everywhere else; empty if in none.
	Seat string
	// Next is where it is to go and cannot yet; empty if it is where it is to be.
	Next string
	// Steps are those of the clusters, by their name.
	Steps map[string]CopyStep
}

// PlanSingle returns the next step, so that repeating plan and report ends with a leaf in one assigned cluster, and none elsewhere.
//
// Break before make: a leaf is made only where there is no other, tombstones included, since a tombstone goes only after what it ran. A
// cluster that is not heard of keeps its leaf, and with it the workload, until it is heard of or its mirror is gone; and none is left for
// one that cannot start it. What is in an assigned cluster stays there; else the heaviest is chosen, the first by name of several.
func PlanSingle(singles []Single) SinglePlan {
	plan := SinglePlan{Steps: make(map[string]CopyStep, len(singles))}
	var here, there *Single // where it is, where it would be started
	exists := 0
	for i := range singles {
		s := &singles[i]
		if s.Exists {
			exists++
		}
		if s.Exists && !s.Deleting && (here == nil || compareHolders(*s, *here) < 0) {
			here = s
		}
		if s.Assigned && (there == nil || compareStarts(*s, *there) < 0) {
			there = s
		}
	}
	switch {
	case here != nil && (here.Assigned || here.Stays):
		plan.Seat = here.Name
	case here != nil && there != nil && (here.Unheard || !there.takes()):
		plan.Seat, plan.Next = here.Name, there.Name
	case there != nil:
		plan.Seat = there.Name
	}
	for _, s := range singles {
		switch {
		case s.Deleting: // gone first
		case s.Name == plan.Seat:
			plan.Steps[s.Name] = CopyStep{Write: s.Exists || exists == 0 && s.takes()}
		case s.Exists:
			plan.Steps[s.Name] = CopyStep{Delete: true}
		}
	}
	return plan
}

// compareHolders orders clusters with a leaf by which of them keeps it.
func compareHolders(a, b Single) int {
	return cmp.Or(order.First(a.Stays, b.Stays), order.First(a.Assigned, b.Assigned), cmp.Compare(a.Name, b.Name))
}

// compareStarts orders assigned clusters by where a workload is started.
func compareStarts(a, b Single) int {
	return cmp.Or(order.First(!a.Barred, !b.Barred), order.First(!a.Unheard, !b.Unheard), cmp.Compare(b.Weight, a.Weight), cmp.Compare(a.Name, b.Name))
}

// single takes the next step of bringing a workload to one cluster of its Placement, and writes what its leaves say into its status.
func (c *Controller) single(ctx context.Context, s *source, root ctrlclient.Object, p *placementv1alpha1.Placement, leaves []ctrlclient.Object, held []logicalcluster.Name) (time.Duration, error) {
	rk := client.KeyOf(root)
	p, err := c.decided(ctx, rk, p, leaves)
	if err != nil || p == nil {
		return 0, err
	}
	if withheld := s.WhyWithheld(root); withheld != "" || s.HasEnded(root) {
		return 0, c.rest(ctx, s, root, p, leaves, withheld)
	}
	authored := root
	down, awaited := c.withClaims(s, root, placed(p), leaves)
	root, lacks, err := c.withAccount(ctx, down, leaves)
	if err != nil {
		return 0, err
	}
	sites := c.copySites(s, root, p, placed(p), leaves, held)
	plan := planSites(p, sites)
	if startsOrStops(plan, sites) {
		// Two at once would be for good: not because of what was so a moment ago.
		now, settled, err := c.leavesNow(ctx, s, root, p, leaves)
		if err != nil || !settled {
			c.tellUnreadable(ctx, s, root, err)
			return lookAgain, err
		}
		sites = c.copySites(s, root, p, placed(p), now, held)
		plan = planSites(p, sites)
	}
	if err := c.tellCopySites(s, down, root, sites); err != nil {
		return 0, err
	}
	if lacks == nil && slices.ContainsFunc(sites, (*copySite).lives) && startsOrStops(plan, sites) {
		if _, lacks, err = c.accountOf(ctx, s.Kind, root); err != nil {
			return 0, err
		}
	}
	if lacks != nil && p.Name != "" {
		plan = stopsFirst(plan, sites) // what stops could not be started elsewhere
	}
	gone := ""
	switch {
	case !s.HasBegun(root):
	case startsAnew(plan, sites):
		gone = "it had begun in a physical cluster that was removed, and is not begun again"
		plan.Steps = nil
	case p.Name != "":
		plan = stopsFirst(plan, sites)
	}
	if p.Name != "" && begunWhereLeft(s, sites) {
		gone = "it was begun in a physical cluster while it was taken away there, and is not begun again"
		plan.Steps = nil
	}
	if c.tallyPlan(s, root, p, singleShares(s, authored, sites, plan)) {
		defer c.askPlacement(key{s.GVK.Kind, rk}) // told with what is written now, as far as that is seen by then
	}
	why := whyNotThere(s, sites, plan)
	c.tellMove(ctx, s, root, sites, plan, why)
	awaits := c.tellAwaited(ctx, s, root, awaited)
	for _, st := range sites { // as far as its status goes, the others are being left
		st.assigned = string(st.mirror) == plan.Seat && plan.Next == ""
	}
	again, err := c.carryOutCopies(ctx, s, root, sites, plan.Steps, lacks)
	wrote := slices.ContainsFunc(sites, func(st *copySite) bool { return st.wrote })
	c.tellCopies(ctx, s, root, p, sites, wrote)

	now := down.DeepCopyObject().(ctrlclient.Object)
	view := copyView(s, p, sites, c.clock.Now())
	if view.Gone = gone; why != nil {
		view.NotPlaced = why
	}
	s.Summarise(now, view)
	behind, unkept := c.keepRevisions(ctx, s, authored, now, view)
	wait, problem := c.writeStatus(ctx, s, down, now, 0)
	return sooner(sooner(sooner(again, behind), wait), awaits), errors.Join(err, settle([]error{unkept, problem}))
}

// rest leaves what has ended, or is withheld, as it is. A leaf of what is gone stands for nothing any more, and one of what has ended keeps
// nobody from letting its cluster go, nor, as planSites says, its workspace.
func (c *Controller) rest(ctx context.Context, s *source, root ctrlclient.Object, p *placementv1alpha1.Placement, leaves []ctrlclient.Object, withheld string) error {
	if c.tallyPlan(s, root, p, noShares(p)) {
		c.askPlacement(key{s.GVK.Kind, client.KeyOf(root)})
	}
	if withheld != "" {
		c.tellOnce(ctx, s, root, "withheld", corev1.EventTypeNormal, "NotSynced", s.GVK.Kind+" does not go to physical clusters: "+withheld+".")
	}
	var errs []error
	for _, leaf := range leaves {
		r, t := workloadv1alpha1.RefusalOf(leaf), c.target(client.KeyOf(leaf).Cluster)
		gone := r != nil && r.Reason == workloadv1alpha1.RefusedGone
		removed := s.HasEnded(root) && t != nil && t.DeletionTimestamp != nil
		if (gone || removed || p.Name == "") && leaf.GetDeletionTimestamp() == nil {
			errs = append(errs, c.tombstone(ctx, s, leaf))
		}
	}
	return errors.Join(errs...)
}

// planSites plans for sites, by the names of their mirrors: two clusters of one name can be here for a while. A workspace that is being
// deleted, without a Placement, is left by what would stay, too. A weight of 0 counts only where there is no other.
func planSites(p *placementv1alpha1.Placement, sites []*copySite) SinglePlan {
	return PlanSingle(singlesOf(p, sites))
}

// singlesOf is what a plan has to know of sites.
func singlesOf(p *placementv1alpha1.Placement, sites []*copySite) []Single {
	weighs := slices.ContainsFunc(sites, func(st *copySite) bool { return st.assigned && st.weight > 0 })
	singles := make([]Single, len(sites))
	for i, st := range sites {
		singles[i] = Single{
			Name: string(st.mirror), Assigned: st.assigned && (st.weight > 0 || !weighs), Weight: st.weight, Barred: st.barred, Unheard: st.lost || st.observed,
			Exists: st.leaf != nil, Deleting: st.leaf != nil && !st.lives(),
			Stays: st.stays != nil && p.Name != "",
		}
	}
	return singles
}

// stopsFirst keeps the last leaf of what has begun: that it has stopped there is told before it leaves, or it would count as lost with it.
func stopsFirst(plan SinglePlan, sites []*copySite) SinglePlan {
	var last *copySite
	for _, st := range sites {
		switch {
		case st.lives() && !plan.Steps[string(st.mirror)].Delete:
			return plan
		case st.lives():
			last = st
		}
	}
	if last == nil {
		return plan
	}
	return SinglePlan{Seat: string(last.mirror), Steps: map[string]CopyStep{string(last.mirror): {Write: true}}}
}

// begunWhereLeft says whether all that is left are tombstones, of which one has begun: its syncer had it in hand already.
func begunWhereLeft(s *source, sites []*copySite) bool {
	begun := func(st *copySite) bool { return st.leaf != nil && !st.old && s.HasBegun(st.leaf) }
	return slices.ContainsFunc(sites, begun) && !slices.ContainsFunc(sites, (*copySite).lives)
}

// lives says that there is a leaf of this root, and that it is no tombstone.
func (st *copySite) lives() bool {
	return st.leaf != nil && !st.old && st.leaf.GetDeletionTimestamp() == nil
}

// startsAnew says whether a plan makes a leaf.
func startsAnew(plan SinglePlan, sites []*copySite) bool {
	return slices.ContainsFunc(sites, func(st *copySite) bool { return st.leaf == nil && plan.Steps[string(st.mirror)].Write })
}

// startsOrStops says whether a plan makes a leaf or takes one away.
func startsOrStops(plan SinglePlan, sites []*copySite) bool {
	return startsAnew(plan, sites) || slices.ContainsFunc(sites, func(st *copySite) bool { return plan.Steps[string(st.mirror)].Delete })
}

// leavesNow reads the leaves of a root wherever they are, as of now: whoever is in their way may be in any cluster, also one that the Placement
// named only for a moment. It says no if the Placement is not what the informer shows, or if a leaf is of a later generation than the root that
// it shows. Where all are to leave, those seen do: nothing starts, and another leaves when it is seen.
func (c *Controller) leavesNow(ctx context.Context, s *source, root ctrlclient.Object, p *placementv1alpha1.Placement, seen []ctrlclient.Object) (leaves []ctrlclient.Object, settled bool, err error) {
	rk := client.KeyOf(root)
	if settled, err = c.isDecision(ctx, s, rk, p); err != nil || !settled {
		return nil, false, err
	}
	if p.Name == "" {
		return seen, true, nil
	}
	if leaves, err = c.everyLeaf(ctx, s, rk); err != nil {
		return nil, false, err
	}
	for _, leaf := range leaves {
		settled = settled && !isAhead(leaf, root)
	}
	return leaves, settled, nil
}

// leavesNowIn reads what may be leaves of a root, or of all roots if that has no name, in the namespaces of one name. The server has leaves filed by
// their workspace, and looks at no others; but it refuses if a row of that namespace and name cannot be read, whosever it is. Then each mirror is
// asked for the name, if there is one.
func (c *Controller) leavesNowIn(ctx context.Context, s *source, root client.Key, namespace string) (leaves []ctrlclient.Object, err error) {
	list := s.NewList()
	of := []ctrlclient.ListOption{ctrlclient.InNamespace(namespace), ctrlclient.MatchingLabels{workloadv1alpha1.WorkspaceLabel: string(root.Cluster)}}
	if root.Name != "" {
		of = append(of, ctrlclient.MatchingFields{metav1.ObjectNameField: root.Name})
	}
	err = c.clients.Objects.List(client.Everywhere(ctx), list, of...)
	if isUnreadable(err) && root.Name != "" {
		return c.leavesByMirror(ctx, s, root, namespace)
	}
	if err != nil {
		return nil, err
	}
	err = meta.EachListItem(list, func(o runtime.Object) error {
		leaves = append(leaves, o.(ctrlclient.Object))
		return nil
	})
	return leaves, err
}

// leavesByMirror is leavesNowIn where a row cannot be read. That counts unless the mirror's namespace is known to be for another workspace: in
// clusters that are dedicated to them namespaces have the names that they have in workspaces, which are those of others, too.
func (c *Controller) leavesByMirror(ctx context.Context, s *source, root client.Key, namespace string) (leaves []ctrlclient.Object, _ error) {
	for _, lc := range c.informers.LogicalClusters.All() {
		mirror := client.KeyOf(lc).Cluster
		if !c.isMirror(mirror) {
			continue
		}
		leaf := s.New()
		err := c.clients.Objects.Get(client.In(ctx, mirror), types.NamespacedName{Namespace: namespace, Name: root.Name}, leaf)
		switch {
		case err == nil:
			leaves = append(leaves, leaf)
		case isUnreadable(err):
			if others, problem := c.isForOthers(ctx, root, mirror, namespace); problem != nil || !others {
				return nil, errors.Join(&unreadableError{mirror, err}, problem)
			}
		case !apierrors.IsNotFound(err):
			return nil, err
		}
	}
	return leaves, nil
}

// isForOthers says, from an uncached read, that a mirror's namespace is not for that of a root.
func (c *Controller) isForOthers(ctx context.Context, root client.Key, mirror logicalcluster.Name, namespace string) (bool, error) {
	n := &corev1.Namespace{}
	if err := c.clients.Objects.Get(client.In(ctx, mirror), types.NamespacedName{Name: namespace}, n); err != nil {
		return false, fmt.Errorf("read namespace %s of mirror %s: %w", namespace, mirror, err)
	}
	of, ok := rootOf(n)
	return ok && of != client.Key{Cluster: root.Cluster, Name: root.Namespace}, nil
}

// unreadableError says that a row of a mirror cannot be read, which may be the leaf of a root.
type unreadableError struct {
	mirror logicalcluster.Name
	cause  error
}

func (e *unreadableError) Error() string { return fmt.Sprintf("in mirror %s: %v", e.mirror, e.cause) }

func (e *unreadableError) Unwrap() error { return e.cause }

// isUnreadable says whether the server fails at what it has stored.
func isUnreadable(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code == http.StatusInternalServerError && !apierrors.IsServerTimeout(err)
}

// tellUnreadable tells what keeps a root from starting and stopping, in words for its owner, if it is that.
func (c *Controller) tellUnreadable(ctx context.Context, s *source, root ctrlclient.Object, err error) {
	var of *unreadableError
	if errors.As(err, &of) {
		c.tellOnce(ctx, s, root, "waits", corev1.EventTypeWarning, "Unreadable", fmt.Sprintf(
			"It is neither started nor stopped: what the server has of it for %q cannot be read, and it may run there. An administrator finds the row in the server's log.",
			nameOf(c.target(of.mirror), of.mirror)))
	}
}

// isDecision says, from an uncached read, that a root is still placed by the decision that was seen.
func (c *Controller) isDecision(ctx context.Context, s *source, root client.Key, seen *placementv1alpha1.Placement) (bool, error) {
	if seen.Name == "" {
		return c.terminating(ctx, root.Cluster)
	}
	live, err := c.livePlacement(ctx, s, root)
	return live != nil && decisionOf(live) == decisionOf(seen), err
}

// singleShares is what the clusters are to run in the end: one of them all of it. What stays elsewhere all of them lack.
func singleShares(s *source, root ctrlclient.Object, sites []*copySite, plan SinglePlan) (shares []share) {
	end := cmp.Or(plan.Next, plan.Seat)
	isAssigned := slices.ContainsFunc(sites, func(st *copySite) bool { return st.assigned && string(st.mirror) == end })
	wanted, _ := s.Pods(root)
	if s.AsItSays {
		wanted = asItSays
	}
	for _, st := range sites {
		switch {
		case !st.assigned:
		case !isAssigned || string(st.mirror) == end:
			shares = append(shares, share{st.mirror, wanted})
		default:
			shares = append(shares, share{st.mirror, noLeaf})
		}
	}
	return shares
}

// noShares is what the clusters of a Placement are to run of what goes nowhere, or has ended.
func noShares(p *placementv1alpha1.Placement) (shares []share) {
	for _, mirror := range placed(p) {
		shares = append(shares, share{mirror, noLeaf})
	}
	return shares
}

// whyNotThere says why a workload is not where it is to be, and what ends that; nil if nothing keeps it.
func whyNotThere(s *source, sites []*copySite, plan SinglePlan) *kinds.Reason {
	at := func(mirror string) *copySite {
		if i := slices.IndexFunc(sites, func(st *copySite) bool { return string(st.mirror) == mirror }); i >= 0 {
			return sites[i]
		}
		return nil
	}
	seat, next := at(plan.Seat), at(plan.Next)
	i := slices.IndexFunc(sites, func(st *copySite) bool { return st.leaf != nil && st != seat && (st.lost || st.observed) })
	switch {
	case seat == nil:
		return nil
	case next == nil && seat.leaf != nil && !seat.assigned && seat.stays != nil:
		return &kinds.Reason{Reason: seat.stays.Reason, Message: fmt.Sprintf("It stays on %q: %s.", seat.name, seat.stays.Message)}
	case next != nil && next.barred:
		return notCarriedTo(s, []*copySite{next})
	case next != nil && (seat.lost || seat.observed):
		return mayRun(seat, next)
	case next != nil:
		return &kinds.Reason{Reason: unreachable, Message: fmt.Sprintf("It stays on %q until %q is heard of, and may be changed: it runs in one cluster at a time.", seat.name, next.name)}
	case i >= 0:
		return mayRun(sites[i], seat)
	case seat.leaf == nil && (seat.lost || seat.observed):
		return &kinds.Reason{Reason: unreachable, Message: fmt.Sprintf("It starts when %q is heard of, and may be changed.", seat.name)}
	}
	return nil
}

// mayRun: nobody knows that it does not run there any more.
func mayRun(there, next *copySite) *kinds.Reason {
	return &kinds.Reason{Reason: unreachable, Message: fmt.Sprintf(
		"It may run on %q, which is not heard of, or only observed: it starts on %q when it is known to have stopped there. If the cluster is lost for good, an administrator removes it.",
		there.name, next.name)}
}

// tellMove tells that a workload stops before it starts elsewhere, or what keeps it from that.
func (c *Controller) tellMove(ctx context.Context, s *source, root ctrlclient.Object, sites []*copySite, plan SinglePlan, why *kinds.Reason) {
	if why == nil {
		c.untell(root, "waits")
	} else {
		c.tellOnce(ctx, s, root, "waits", corev1.EventTypeWarning, why.Reason, why.Message)
	}
	for _, st := range sites {
		if plan.Steps[string(st.mirror)].Delete && !st.held && plan.Seat != "" {
			c.tellOnce(ctx, s, root, "single", corev1.EventTypeNormal, "BreakBeforeMake",
				fmt.Sprintf("Stops on %q before it starts elsewhere: a %s runs in one cluster at a time", st.name, s.GVK.Kind))
		}
	}
}
