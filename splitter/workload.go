package splitter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// site is one physical cluster in the work on one workload that is divided.
type site struct {
	id       string // sorts and identifies: name, then mirror
	name     string
	mirror   logicalcluster.Name
	lost     bool
	observed bool // nothing is written there until an administrator confirms
	assigned bool
	// barred says that there is no leaf, and none is made, since the cluster's syncer does not carry the kind: the others have its share, if there
	// are any, and nothing is left for it.
	barred bool
	weight int64
	target int32
	// leaf is nil if there is none; old says that it is the leaf of an earlier root of that name, held that the brake
	// keeps it as it is.
	leaf      ctrlclient.Object
	old, held bool
	// refused is why the leaf, or what it needs, could not be written to the mirror; nil if it could.
	refused *workloadv1alpha1.Refusal
	// lacks is what is missing for the template to go down; nil if nothing is.
	lacks error
	// wrote says that the leaf was written in this pass.
	wrote bool

	// revision is the hash of the root's present template; empty for a kind without ReplicaSets.
	revision string
	// told says that pods of the root's present template are told there what their namespace is called in the workspace.
	told bool

	step    Step
	roll    Roll
	current bool // the leaf is the rendering of the root's present generation
}

// workload takes the next step of dividing a workload, and writes what its leaves say into its status.
func (c *Controller) workload(ctx context.Context, s *source, root ctrlclient.Object, p *placementv1alpha1.Placement, leaves []ctrlclient.Object, held []logicalcluster.Name) (time.Duration, error) {
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
	sites := c.sites(s, root, p, leaves)
	revision := ""
	if d, ok := authored.(*appsv1.Deployment); ok {
		revision = c.hashOf(d)
	}
	for _, st := range sites {
		st.held, st.lacks, st.revision = slices.Contains(held, st.mirror), lacks, revision
	}
	c.tellSites(s, authored, sites)
	if decide(root, p.Spec.Split, sites) {
		settled, err := c.refresh(ctx, s, rk, p, root, sites)
		if err != nil || !settled {
			return lookAgain, err
		}
		c.tellSites(s, authored, sites)
		decide(root, p.Spec.Split, sites)
	}
	if c.tallyPlan(s, root, p, sharesOf(sites)) {
		defer c.askPlacement(key{s.GVK.Kind, rk}) // told with what is written now, as far as that is seen by then
	}
	again, err := c.carryOut(ctx, s, root, sites)
	wrote := slices.ContainsFunc(sites, func(st *site) bool { return st.wrote })
	if wrote {
		c.pace.Wrote(key{s.GVK.Kind, rk}, "") // what comes of it follows
	}
	c.tellPlaced(ctx, s, root, p, sites, wrote)
	wait, problem := c.summarise(ctx, s, authored, root, p, sites)
	return sooner(again, wait), errors.Join(err, problem)
}

// sites gathers the clusters that a workload is in or goes to, sorted.
func (c *Controller) sites(s *source, root ctrlclient.Object, p *placementv1alpha1.Placement, leaves []ctrlclient.Object) []*site {
	byMirror := map[logicalcluster.Name]*site{}
	add := func(mirror logicalcluster.Name) *site {
		t := c.target(mirror)
		st, ok := byMirror[mirror]
		if !ok {
			st = &site{name: nameOf(t, mirror), mirror: mirror, lost: lost(t), observed: observed(t)}
			byMirror[mirror] = st
		}
		return st
	}
	for _, cluster := range p.Spec.Clusters {
		if cluster.Mirror == "" {
			continue
		}
		st := add(logicalcluster.Name(cluster.Mirror))
		st.name, st.assigned, st.weight = cluster.Name, true, cluster.Weight
	}
	for _, leaf := range leaves {
		st := add(client.KeyOf(leaf).Cluster)
		st.leaf, st.old = leaf, leafUID(leaf) != root.GetUID()
	}
	sites := make([]*site, 0, len(byMirror))
	for _, st := range byMirror {
		st.barred = st.leaf == nil && !c.carries(st.mirror, s)
		st.id = st.name + "|" + string(st.mirror)
		sites = append(sites, st)
	}
	slices.SortFunc(sites, func(a, b *site) int { return cmp.Compare(a.id, b.id) })
	return sites
}

// tellSites fills in of every site whether pods are told there what their namespace is called in the workspace, by the leaves as they are known now;
// root is the workload as somebody wrote it.
func (c *Controller) tellSites(s *source, root ctrlclient.Object, sites []*site) {
	template := s.Template(root)
	digest := kinds.TemplateDigest(template)
	for _, st := range sites {
		st.told = isTold(s.Kind, root, st.leaf, digest, c.dnsKnows(st.mirror, &template.Spec))
	}
}

// sharesOf is what the clusters are to run in the end.
func sharesOf(sites []*site) (shares []share) {
	for _, st := range sites {
		if st.assigned {
			shares = append(shares, share{st.mirror, st.target})
		}
	}
	return shares
}

func nameOf(t *workloadv1alpha1.SyncTarget, mirror logicalcluster.Name) string {
	if t == nil {
		return string(mirror)
	}
	return t.Name
}

// isServed says that the cluster is to have the workload, and can.
func (st *site) isServed() bool { return st.assigned && !st.barred }

// decide fills in target, step and roll of every site, and says whether they must not rest on leaves that may be old.
func decide(root ctrlclient.Object, split placementv1alpha1.SplitPolicy, sites []*site) bool {
	of, wanted := divisionOf(root), replicasOf(root)
	weights, previous := map[string]int64{}, map[string]int32{}
	weighs := slices.ContainsFunc(sites, func(st *site) bool { return st.assigned && st.weight > 0 })
	// Where all that the user gave a weight to is barred, nobody else gets what is theirs.
	some := slices.ContainsFunc(sites, func(st *site) bool { return st.isServed() && (st.weight > 0 || !weighs) })
	shares := func(st *site) bool { return st.isServed() || st.assigned && !some }
	for _, st := range sites {
		if shares(st) {
			weights[st.id] = st.weight
		}
		if st.leaf != nil && !st.old {
			previous[st.id] = replicasOf(st.leaf)
		}
	}
	targets := Assign(wanted, weights, previous)
	if split == placementv1alpha1.SplitDuplicate {
		targets = Duplicate(wanted, weights)
	}
	recreate := of.Recreates()
	templates := templatesOf(root)
	var clusters []Cluster
	for _, st := range sites {
		st.target = targets[st.id]
		clusters = append(clusters, Cluster{Name: st.id, Assigned: shares(st), Target: st.target, Lost: st.unsure(), Leaf: st.state(templates(st))})
	}
	steps := Plan(clusters, recreate)
	var rolling []RollingCluster
	for _, st := range sites {
		if r, ok := st.rolling(templates(st), steps[st.id].Replicas); ok {
			rolling = append(rolling, r)
		}
	}
	rolls := map[string]Roll{}
	if recreate || of.Strategy == nil || split == placementv1alpha1.SplitDuplicate {
		rolling = nil // each for itself
	} else {
		unavailable, surge := of.Fenceposts(wanted)
		rolls = DivideRollout(unavailable, surge, rolling)
	}
	for _, st := range sites {
		if st.held || st.barred {
			steps[st.id] = Step{}
		}
		st.step, st.roll = steps[st.id], Roll{Verbatim: true}
		if r, ok := rolls[st.id]; ok {
			st.roll = r
		}
		if st.lacks != nil {
			st.roll = Roll{Hold: true} // what runs has what its own template was given
			if recreate && (st.step.Draining || st.step.Delete) {
				st.step = Step{} // what stops could not be started elsewhere
			}
		}
	}
	return restsOnOthers(clusters, recreate, steps, rolling, rolls)
}

// templatesOf returns what has, for each site, the pod template of a root as it goes down there. Those of sites where pods are told the same are one.
func templatesOf(root ctrlclient.Object) func(*site) *corev1.PodTemplateSpec {
	k, _ := kinds.Of(root)
	made := map[bool]*corev1.PodTemplateSpec{}
	return func(st *site) *corev1.PodTemplateSpec {
		if made[st.told] == nil {
			made[st.told] = k.Template(k.Content(toldAs(root, st.told)))
		}
		return made[st.told]
	}
}

// divisionOf is that of a root or a leaf of a kind that is divided.
func divisionOf(o ctrlclient.Object) kinds.Division {
	k, _ := kinds.Of(o)
	return k.Division(o)
}

// unsure says that nobody knows how the cluster is: it is not heard of, or what it says may be of before its restore, or of after that of
// the hub, and it does not do what it is told. For plans that is one.
func (st *site) unsure() bool { return st.lost || st.observed }

// state is what Plan has to know of the leaf.
func (st *site) state(template *corev1.PodTemplateSpec) *LeafState {
	if st.leaf == nil {
		return nil
	}
	d := divisionOf(st.leaf)
	var surge int32
	if d.Mixed() {
		_, surge = d.Fenceposts(d.Asked())
	}
	return &LeafState{
		Replicas: d.Asked(), Pods: d.Pods + d.Terminating, Available: d.Available, Surge: surge, Settled: leafView(st.leaf).Settled,
		Mixed:    d.Mixed() || d.Strategy != nil && st.assigned && !hasTemplate(st.leaf, template),
		Deleting: st.old || st.leaf.GetDeletionTimestamp() != nil,
	}
}

func hasTemplate(leaf ctrlclient.Object, template *corev1.PodTemplateSpec) bool {
	return equality.Semantic.DeepEqual(podsOf(leaf), template)
}

// rolling is what DivideRollout has to know of a site that is to ask for replicas; false if nothing.
func (st *site) rolling(template *corev1.PodTemplateSpec, replicas int32) (RollingCluster, bool) {
	r := RollingCluster{Name: st.id, Replicas: st.target, Lost: st.unsure(), Leaving: !st.assigned || st.target == 0 && replicas > 0, Lacks: st.target}
	if st.leaf == nil || st.old || st.leaf.GetDeletionTimestamp() != nil {
		return r, st.isServed()
	}
	d := divisionOf(st.leaf)
	r.Exists = true
	r.SameTemplate = hasTemplate(st.leaf, template)
	v, mixed := leafView(st.leaf), d.Mixed()
	r.Rolling = !v.Settled || mixed
	r.Unsure = r.Rolling && !mixed
	r.Awaited = r.Unsure && v.Refused == nil
	r.Lacks = max(max(st.target, d.Asked())-d.Available, 0)
	r.MaxUnavailable, r.MaxSurge = d.Fenceposts(d.Asked())
	return r, true
}

// replicasOf is how many pods a root or a leaf asks for.
func replicasOf(o ctrlclient.Object) int32 { return divisionOf(o).Asked() }

// refresh reads the leaves, and the Placement if a cluster is being left, uncached. It says no if the Placement is not what the
// informer shows, or if a leaf is of a later generation than the root that it shows.
func (c *Controller) refresh(ctx context.Context, s *source, rk client.Key, p *placementv1alpha1.Placement, root ctrlclient.Object, sites []*site) (bool, error) {
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
		st.barred = live == nil && !c.carries(st.mirror, s)
	}
	return c.hasLeft(ctx, s, rk, p, leaving...)
}

// decided returns the decision that a workload is carried out by; nil if nothing is to be done. Without one nothing moves, except out of a
// workspace that goes, by one that names no cluster; and what has no leaf its Placement brings back.
func (c *Controller) decided(ctx context.Context, root client.Key, p *placementv1alpha1.Placement, leaves []ctrlclient.Object) (*placementv1alpha1.Placement, error) {
	if p != nil || len(leaves) == 0 {
		return p, nil
	}
	if left, err := c.terminating(ctx, root.Cluster); err != nil || !left {
		return nil, err
	}
	return &placementv1alpha1.Placement{}, nil
}

// live reads a leaf uncached; nil if it is gone. It is ahead if it is of a later generation than the root that the informer shows.
func (c *Controller) live(ctx context.Context, s *source, root, leaf ctrlclient.Object) (live ctrlclient.Object, ahead bool, _ error) {
	live = s.New()
	err := c.clients.Objects.Get(client.In(ctx, client.KeyOf(leaf).Cluster), ctrlclient.ObjectKeyFromObject(leaf), live)
	switch {
	case apierrors.IsNotFound(err):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("read leaf %s %s: %w", s.GVK.Kind, client.KeyOf(leaf), err)
	}
	return live, isAhead(live, root), nil
}

// isAhead says that a leaf was rendered from a later generation of its root.
func isAhead(leaf, root ctrlclient.Object) bool {
	generation, err := strconv.ParseInt(leaf.GetAnnotations()[workloadv1alpha1.RootGenerationAnnotation], 10, 64)
	return err == nil && leafUID(leaf) == root.GetUID() && generation > root.GetGeneration()
}

// carryOut writes what the steps say: clusters that grow first, then those that shrink.
func (c *Controller) carryOut(ctx context.Context, s *source, root ctrlclient.Object, sites []*site) (time.Duration, error) {
	var again time.Duration
	var errs []error
	order := slices.Clone(sites)
	slices.SortStableFunc(order, func(a, b *site) int { return cmp.Compare(a.delta(), b.delta()) })
	slices.Reverse(order)
	for _, st := range order {
		ready, err := c.carryOutAt(ctx, s, root, st)
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

// settle leaves one conflict of several errors, so that it is retried quietly, unless another error is worth a word.
func settle(errs []error) error {
	var loud []error
	var conflict error
	for _, err := range errs {
		if apierrors.IsConflict(err) {
			conflict = err
		} else if err != nil {
			loud = append(loud, err)
		}
	}
	if len(loud) > 0 {
		return errors.Join(loud...)
	}
	return conflict
}

func (st *site) delta() int32 {
	if st.leaf == nil {
		return st.step.Replicas
	}
	return st.step.Replicas - replicasOf(st.leaf)
}

// carryOutAt takes the step of one cluster; ready is false if something has to go first.
func (c *Controller) carryOutAt(ctx context.Context, s *source, root ctrlclient.Object, st *site) (ready bool, err error) {
	root = toldAs(root, st.told)
	switch {
	case st.step.Delete:
		if st.leaf.GetDeletionTimestamp() != nil {
			return true, nil
		}
		return true, c.tombstone(ctx, s, st.leaf)
	case !st.step.Write:
		return true, nil
	case st.leaf != nil:
		want, err := st.render(s.Kind, root, st.leaf.GetNamespace())
		if err != nil {
			return false, err
		}
		if !st.step.Draining && !sameLeaf(st.leaf, want) && !hasTemplate(st.leaf, podsOf(want)) {
			if err := c.ensureCompanions(ctx, root, st.mirror); err != nil {
				return false, err
			}
		}
		leaf, err := c.put(ctx, st.mirror, st.leaf, want)
		if err != nil {
			return false, err
		}
		st.wrote = leaf.GetResourceVersion() != st.leaf.GetResourceVersion()
		st.leaf, st.current = leaf, !st.step.Draining && !st.roll.Hold
		if st.step.Draining {
			return true, nil
		}
		return true, st.lacks // it is rolled out when that is there
	case st.lacks != nil:
		return false, st.lacks
	}
	if err := c.ensureCompanions(ctx, root, st.mirror); err != nil {
		return false, err
	}
	leaf, ready, err := c.create(ctx, st.mirror, client.KeyOf(root), func(namespace string) (ctrlclient.Object, error) {
		return st.render(s.Kind, root, namespace)
	})
	if err != nil || !ready {
		return false, err
	}
	c.unseen.made(key{s.GVK.Kind, client.KeyOf(root)}, client.Key{Cluster: st.mirror, Namespace: leaf.GetNamespace(), Name: leaf.GetName()}, leaf.GetUID())
	st.leaf, st.current, st.wrote = leaf, true, true
	return true, nil
}

// render is the leaf that the site's step wants.
func (st *site) render(k kinds.Kind, root ctrlclient.Object, namespace string) (ctrlclient.Object, error) {
	from, content := root, k.Content(root)
	switch {
	case st.step.Draining:
		// What is being left stays as it is; only its size changes.
		from = root.DeepCopyObject().(ctrlclient.Object)
		from.SetLabels(st.leaf.GetLabels())
		from.SetAnnotations(withCluster(st.leaf.GetAnnotations(), root))
		content = st.leaf.DeepCopyObject().(ctrlclient.Object)
		content.SetManagedFields(nil) // the server knows them
	case st.roll.Hold:
		*k.Template(content) = *k.Template(st.leaf).DeepCopy()
	}
	part := k.Division(content)
	switch {
	case part.Strategy == nil || st.step.Draining:
	case st.roll.Hold, st.roll.KeepStrategy:
		*part.Strategy = *divisionOf(st.leaf).Strategy.DeepCopy()
	case !st.roll.Verbatim:
		u, s := intstr.FromInt32(st.roll.MaxUnavailable), intstr.FromInt32(st.roll.MaxSurge)
		*part.Strategy = appsv1.DeploymentStrategy{
			Type:          appsv1.RollingUpdateDeploymentStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: &u, MaxSurge: &s},
		}
	}
	replicas := st.step.Replicas
	*part.Replicas = &replicas
	leaf, _, err := render(k, from, content, namespace, st.step.Draining)
	if err != nil {
		return nil, err
	}
	// No change of it alone is written: a template brings its own along.
	kinds.SetAnnotation(leaf, workloadv1alpha1.RevisionAnnotation, st.revision)
	if part.Strategy == nil && st.leaf != nil && mayHaveEarlier(st.leaf, leaf) {
		kinds.SetAnnotation(leaf, workloadv1alpha1.EarlierTemplateAnnotation, "true")
	}
	if (st.step.Draining || st.roll.Hold) && st.leaf != nil {
		// It still is what an earlier generation rendered to.
		for _, a := range []string{workloadv1alpha1.RootGenerationAnnotation, workloadv1alpha1.RevisionAnnotation} {
			kinds.SetAnnotation(leaf, a, st.leaf.GetAnnotations()[a])
		}
		copyGift(leaf, st.leaf)
	}
	return leaf, nil
}

// mayHaveEarlier says that pods of what a leaf is, whose pods nobody replaces, may be of an earlier template than what it is to become has. It is so
// from when the template changes until its cluster has told of a time without pods.
func mayHaveEarlier(have, want ctrlclient.Object) bool {
	d := divisionOf(have)
	if leafView(have).Settled && d.Pods+d.Terminating == 0 {
		return false
	}
	_, already := have.GetAnnotations()[workloadv1alpha1.EarlierTemplateAnnotation]
	return already || !hasTemplate(have, podsOf(want))
}

// withCluster returns a leaf's annotations as if they were the root's.
func withCluster(leaf map[string]string, root ctrlclient.Object) map[string]string {
	out := maps.Clone(leaf)
	if out == nil {
		out = map[string]string{}
	}
	out[lcctx.Annotation] = root.GetAnnotations()[lcctx.Annotation]
	return out
}

// summarise writes the workload's status if what the leaves say changed it, at its pace, and with that of a Deployment what its ReplicaSets are: authored is
// the workload as its user has it.
func (c *Controller) summarise(ctx context.Context, s *source, authored, root ctrlclient.Object, p *placementv1alpha1.Placement, sites []*site) (wait time.Duration, err error) {
	now := authored.DeepCopyObject().(ctrlclient.Object) // what its pods were given is not its user's, and would be written with the status
	view := viewOf(s, root, p, sites, c.clock.Now())
	s.Summarise(now, view)
	deployment, isDeployment := authored.(*appsv1.Deployment)
	var h history
	var again time.Duration
	var problem error
	if isDeployment {
		h, again, problem = c.replicaSets(ctx, s, deployment, now.(*appsv1.Deployment), keptOf(c.informers.ReplicaSets, root), view)
	}
	leaves := make([]ctrlclient.Object, 0, len(sites))
	for _, st := range sites {
		if st.leaf != nil {
			leaves = append(leaves, st.leaf)
		}
	}
	c.tellRefusals(ctx, s, root, leaves)
	wait, err = c.writeStatus(ctx, s, authored, now, dividedMayWait(authored, now))
	if isDeployment && wait == 0 && err == nil {
		err = c.countReplicaSets(ctx, s, deployment, h, view)
	}
	return sooner(again, wait), settle([]error{problem, err})
}

func viewOf(s *source, root ctrlclient.Object, p *placementv1alpha1.Placement, sites []*site, now time.Time) kinds.View {
	view := kinds.View{Now: now, Desired: replicasOf(root), NotPlaced: notCarried(s, barredOf(sites))}
	templates := templatesOf(root)
	var desired int32
	for _, st := range sites {
		desired += st.target
		l := kinds.Leaf{Cluster: st.name}
		if st.leaf != nil && !st.old { // what the root before it runs is nothing of this one
			l = leafView(st.leaf)
			l.SameTemplate = hasTemplate(st.leaf, templates(st))
		}
		if st.refused != nil {
			l.Refused = st.refused
		}
		l.Cluster, l.Assigned, l.Lost, l.Observed, l.Target, l.Current = st.name, st.isServed(), st.lost, st.observed, st.target, st.current
		view.Leaves = append(view.Leaves, l)
	}
	if desired > 0 {
		view.Desired = desired
	}
	if placed := meta.FindStatusCondition(p.Status.Conditions, placementv1alpha1.PlacementPlaced); placed != nil && placed.Status == metav1.ConditionFalse {
		view.NotPlaced = &kinds.Reason{Reason: placed.Reason, Message: placed.Message}
	}
	return view
}

// barredOf are the names of the clusters that are to have the workload, and cannot.
func barredOf(sites []*site) (names []string) {
	for _, st := range sites {
		if st.assigned && st.barred {
			names = append(names, st.name)
		}
	}
	return names
}

func sortLeaves(leaves []kinds.Leaf) {
	slices.SortStableFunc(leaves, func(a, b kinds.Leaf) int { return cmp.Compare(a.Cluster, b.Cluster) })
}
