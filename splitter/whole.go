package splitter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	fleets "atoll.dev/atoll/internal/fleet"
	"atoll.dev/atoll/internal/kinds"
)

// whole puts a root that is not divided into every mirror that wants it, and takes it out of those that do not need it
// any more. A Service follows its Placement, and workloads that stay behind; what workloads refer to follows them.
func (c *Controller) whole(ctx context.Context, s *source, k client.Key, root ctrlclient.Object, p *placementv1alpha1.Placement, leaves []ctrlclient.Object, held []logicalcluster.Name) (time.Duration, error) {
	var mirrors []logicalcluster.Name
	var err error
	switch s.Goes {
	case kinds.WithPlacement:
		mirrors = c.carrying(ctx, s, root, c.goesTo(s, k, p, c.staying(k)), leaves)
		var shares []share
		if s.WhyWithheld(root) == "" {
			for _, mirror := range placed(p) {
				if slices.Contains(mirrors, mirror) {
					shares = append(shares, share{mirror: mirror})
				}
			}
		}
		if c.tallyPlan(s, root, p, shares) {
			defer c.askPlacement(key{s.GVK.Kind, k}) // told with what is written now, as far as that is seen by then
		}
		if p != nil && placementv1alpha1.HasWish(root.GetAnnotations()) { // without one it waits with its namespace, of which workloads tell
			c.tellUnplaced(ctx, s, root, p)
		}
	case kinds.WithNamespace:
		mirrors = c.carrying(ctx, s, root, c.goesTo(s, k, p, c.staying(k)), leaves)
	default:
		if mirrors, err = c.referencing(ctx, s, k); err != nil {
			return 0, err
		}
	}
	if len(mirrors) == 0 && len(leaves) == 0 {
		return 0, nil
	}

	var again time.Duration
	var errs []error
	var now []ctrlclient.Object
	if len(mirrors) > 0 {
		full, why, err := c.full(ctx, s, k, root)
		if err != nil || full == nil {
			return 0, err
		}
		if why != "" {
			c.tell(ctx, s, full, corev1.EventTypeNormal, "NotSynced", s.GVK.Kind+" is not copied to physical clusters: "+why+".", false)
			mirrors = nil
		}
		if account, ok := full.(*corev1.ServiceAccount); ok {
			for _, r := range kinds.PullSecrets(account) {
				c.queue.Add(key{r.Kind, client.Key{Cluster: k.Cluster, Namespace: k.Namespace, Name: r.Name}})
			}
		}
		for _, mirror := range mirrors {
			have := leafIn(mirror, leaves)
			if have == nil && s.Refers() {
				if err := c.ensureCompanions(ctx, full, mirror); err != nil {
					errs = append(errs, err)
					continue
				}
			}
			leaf, ready, err := c.putWhole(ctx, s, full, mirror, have, false)
			if r := refusedByHub(err); r != nil {
				c.tellHub(ctx, s, full, mirror, r)
			} else if err == nil {
				c.untellHub(full, mirror)
			}
			switch {
			case err != nil:
				errs = append(errs, err)
			case !ready:
				again = lookAgain
			default:
				now = append(now, leaf)
			}
		}
	}
	for _, leaf := range leaves {
		mirror := client.KeyOf(leaf).Cluster
		if slices.Contains(mirrors, mirror) {
			continue
		}
		now = append(now, leaf)
		if leaf.GetDeletionTimestamp() != nil || slices.Contains(held, mirror) {
			continue
		}
		needed, err := c.needed(ctx, s, k, p, leaf)
		if err == nil && !needed {
			err = c.tombstone(ctx, s, leaf)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	c.tellRefusals(ctx, s, root, now)
	if s.Summarise != nil {
		// A load balancer beside what stays may lead to no pod: its address is told only by a Placement that names its cluster.
		named := placed(p)
		answering := slices.DeleteFunc(mirrors, func(mirror logicalcluster.Name) bool { return !slices.Contains(named, mirror) })
		wait, err := c.summariseWhole(ctx, s, root, now, answering)
		again, errs = sooner(again, wait), append(errs, err)
	}
	return again, errors.Join(errs...)
}

// carrying returns those of the mirrors that have a leaf, or whose syncer carries the kind; of the others it tells.
func (c *Controller) carrying(ctx context.Context, s *source, root ctrlclient.Object, mirrors []logicalcluster.Name, leaves []ctrlclient.Object) []logicalcluster.Name {
	var barred []string
	mirrors = slices.DeleteFunc(mirrors, func(mirror logicalcluster.Name) bool {
		if leafIn(mirror, leaves) != nil || c.carries(mirror, s) {
			return false
		}
		barred = append(barred, nameOf(c.target(mirror), mirror))
		return true
	})
	slices.Sort(barred)
	c.tellNotCarried(ctx, s, root, notCarried(s, barred))
	return mirrors
}

// full returns a root with its content, and why it does not go down, if so; nil if it is not the same any more.
func (c *Controller) full(ctx context.Context, s *source, k client.Key, root ctrlclient.Object) (full ctrlclient.Object, why string, err error) {
	full = root
	if s.Goes == kinds.WhereReferenced { // informers have metadata only
		full = s.New()
		err := c.clients.Objects.Get(client.In(ctx, k.Cluster), types.NamespacedName{Namespace: k.Namespace, Name: k.Name}, full)
		if apierrors.IsNotFound(err) {
			return nil, "", nil
		}
		if err != nil {
			return nil, "", fmt.Errorf("read %s %s: %w", s.GVK.Kind, k, err)
		}
		if root != nil && full.GetUID() != root.GetUID() || full.GetDeletionTimestamp() != nil {
			return nil, "", nil // its event brings us back
		}
	}
	return full, s.WhyWithheld(full), nil
}

// putWhole writes a root's leaf into a mirror, if hold is set with the pod template that it has; ready is false while an earlier leaf or namespace
// has to go first.
func (c *Controller) putWhole(ctx context.Context, s *source, root ctrlclient.Object, mirror logicalcluster.Name, have ctrlclient.Object, hold bool) (leaf ctrlclient.Object, ready bool, err error) {
	if have != nil && (have.GetDeletionTimestamp() != nil || leafUID(have) != root.GetUID()) {
		return nil, false, nil
	}
	rk := client.KeyOf(root)
	if have != nil {
		content := s.Content(root)
		if hold || s.KeepsTemplate(have) {
			s.Template(have).DeepCopyInto(s.Template(content))
		}
		want, _, err := render(s.Kind, root, content, have.GetNamespace(), false)
		if err != nil {
			return nil, false, err
		}
		if hold { // it still is what an earlier generation rendered to
			copyGift(want, have)
			annotations := want.GetAnnotations()
			annotations[workloadv1alpha1.RootGenerationAnnotation] = have.GetAnnotations()[workloadv1alpha1.RootGenerationAnnotation]
			want.SetAnnotations(annotations)
		}
		leaf, err = c.put(ctx, mirror, have, want)
		return leaf, err == nil, err
	}
	return c.create(ctx, mirror, rk, func(namespace string) (ctrlclient.Object, error) {
		want, _, err := render(s.Kind, root, s.Content(root), namespace, false)
		return want, err
	})
}

// create makes the namespace of a new leaf, if need be, and then the leaf.
func (c *Controller) create(ctx context.Context, mirror logicalcluster.Name, root client.Key, render func(namespace string) (ctrlclient.Object, error)) (leaf ctrlclient.Object, ready bool, err error) {
	name := kinds.DownstreamNamespace(root.Cluster, root.Namespace, c.dedicated(root.Cluster, mirror))
	if n := c.mirrorNamespace(root.Cluster, root.Namespace, mirror); n != nil {
		name = n.Name
	}
	lock := c.space(mirror, name)
	lock.Lock()
	defer lock.Unlock()
	namespace, ready, err := c.ensureNamespace(ctx, root.Cluster, root.Namespace, mirror)
	if err != nil || !ready {
		return nil, false, err
	}
	want, err := render(namespace)
	if err != nil {
		return nil, false, err
	}
	leaf, err = c.put(ctx, mirror, nil, want)
	switch {
	case apierrors.IsAlreadyExists(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), apierrors.IsNotFound(err):
		return nil, false, nil // the informers are behind
	}
	return leaf, err == nil, err
}

// placed returns the mirrors that a Placement, nil if there is none, names.
func placed(p *placementv1alpha1.Placement) []logicalcluster.Name {
	if p == nil {
		return nil
	}
	var mirrors []logicalcluster.Name
	for _, cluster := range p.Spec.Clusters {
		if cluster.Mirror != "" {
			mirrors = append(mirrors, logicalcluster.Name(cluster.Mirror))
		}
	}
	return mirrors
}

// placedAny returns the mirrors that any of the Placements names, sorted.
func placedAny(placements []*placementv1alpha1.Placement) (mirrors []logicalcluster.Name) {
	for _, p := range placements {
		mirrors = append(mirrors, placed(p)...)
	}
	slices.Sort(mirrors)
	return slices.Compact(mirrors)
}

// goesTo returns the mirrors where a root goes by its Placement, nil if there is none. What is for the workloads of its namespace, or runs
// beside them, is kept also where one of those is staying. It is made there only if it has no Placement of its own, which says otherwise, and
// if its workspace may still use the cluster; what bounds those that stay, as a NetworkPolicy does, wherever they are.
func (c *Controller) goesTo(s *source, root client.Key, p *placementv1alpha1.Placement, staying []logicalcluster.Name) []logicalcluster.Name {
	mirrors := placed(p)
	if p == nil && c.awaitsItsOwn(s, root) {
		return nil // also beside what stays
	}
	switch s.Goes {
	case kinds.WithNamespace:
		mirrors = placedAny(c.informers.Placements.ByIndex(byPlacedNamespace, namespaceValue(root.Cluster, root.Namespace)))
	case kinds.WithPlacement, kinds.Copied:
	default:
		return mirrors
	}
	for _, mirror := range staying {
		if slices.Contains(mirrors, mirror) {
			continue
		}
		if leafIn(mirror, s.leaves(root)) != nil || s.Goes == kinds.WithNamespace || (p == nil || p.Spec.Object == nil) && c.mayUse(root.Cluster, mirror) {
			mirrors = append(mirrors, mirror)
		}
	}
	return mirrors
}

// staying returns the mirrors where something of an object's namespace stays behind, sorted.
func (c *Controller) staying(in client.Key) (mirrors []logicalcluster.Name) {
	for _, s := range c.sources {
		if !s.MayStay() {
			continue
		}
		if !s.HasLeaves() {
			mirrors = append(mirrors, c.podsStaying(s, in)...)
			continue
		}
		for _, leaf := range s.leavesOf(in.Cluster, in.Namespace) {
			if mirror := client.KeyOf(leaf).Cluster; c.isMirror(mirror) && c.staysBehind(leaf) {
				mirrors = append(mirrors, mirror)
			}
		}
	}
	slices.Sort(mirrors)
	return slices.Compact(mirrors)
}

// mayUse says whether a workspace may use the cluster of a mirror; it may not while nobody knows.
func (c *Controller) mayUse(workspace, mirror logicalcluster.Name) bool {
	get := func(cluster logicalcluster.Name) (*corev1alpha1.LogicalCluster, bool) {
		return c.informers.LogicalClusters.Get(client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName})
	}
	lc, ok := get(workspace)
	if !ok {
		return false
	}
	chain, complete := fleets.Lineage(lc, get)
	targets, policies := make([][]*workloadv1alpha1.SyncTarget, len(chain)), make([][]*placementv1alpha1.PlacementPolicy, len(chain))
	for i, cluster := range chain {
		targets[i], policies[i] = c.informers.SyncTargets.List(cluster, ""), c.informers.PlacementPolicies.List(cluster, "")
	}
	usable, err := fleets.Usable(lc, targets, policies)
	return complete && err == nil && slices.ContainsFunc(usable, func(t *workloadv1alpha1.SyncTarget) bool { return client.MirrorOf(t) == mirror })
}

// staysBehind says that a leaf, nil if there is none, runs on in a cluster that its Placement does not name.
func (c *Controller) staysBehind(leaf ctrlclient.Object) bool {
	if leaf == nil || leaf.GetDeletionTimestamp() != nil {
		return false
	}
	s := c.sourceOf(leaf)
	root, ok := rootOf(leaf)
	return ok && s.WhyStays(leaf) != nil && !s.HasEnded(leaf) && !slices.Contains(placed(c.placement(s, root)), client.KeyOf(leaf).Cluster)
}

// referencing returns the mirrors where something is, or will be, that refers to an object.
func (c *Controller) referencing(ctx context.Context, s *source, k client.Key) ([]logicalcluster.Name, error) {
	users := c.referring(s, k)
	if s.GVK.Kind == "Secret" {
		more, err := c.pullers(ctx, k)
		if err != nil {
			return nil, err
		}
		users = append(users, more...)
	}
	var mirrors []logicalcluster.Name
	staying := c.staying(k)
	for _, user := range users {
		uk := client.KeyOf(user)
		switch _, claims := rootOf(user); {
		case user.GetDeletionTimestamp() != nil:
		case claims && c.isMirror(uk.Cluster):
			mirrors = append(mirrors, uk.Cluster)
		case uk.Cluster == k.Cluster && uk.Namespace == k.Namespace:
			mirrors = append(mirrors, c.mirrorsOf(user, uk, staying)...)
		}
	}
	slices.Sort(mirrors)
	return slices.Compact(mirrors), nil
}

// sourceOf returns the source of a root or a leaf whose informer holds all of it.
func (c *Controller) sourceOf(o ctrlclient.Object) *source {
	k, _ := kinds.Of(o)
	return c.sources[k.GVK.Kind]
}

// pullers returns the workloads, roots and leaves, of a Secret's namespace whose ServiceAccounts pull with it.
func (c *Controller) pullers(ctx context.Context, secret client.Key) ([]ctrlclient.Object, error) {
	accounts := map[string]bool{}
	var workloads, pullers []ctrlclient.Object
	for _, s := range c.sources {
		if s.MakesPods() {
			workloads = slices.Concat(workloads, s.list(secret.Cluster, secret.Namespace), s.leavesOf(secret.Cluster, secret.Namespace))
		}
	}
	for _, o := range workloads {
		pods := &podsOf(o).Spec
		name := pods.ServiceAccountName
		switch {
		case usesDefault(pods):
			name = kinds.DefaultAccount
		case name == "":
			continue // it pulls with its own
		}
		if _, known := accounts[name]; !known {
			secrets, err := c.pullSecrets(ctx, client.Key{Cluster: secret.Cluster, Namespace: secret.Namespace, Name: name})
			if err != nil {
				return nil, err
			}
			accounts[name] = slices.Contains(secrets, kinds.Reference{Kind: "Secret", Name: secret.Name})
		}
		if accounts[name] {
			pullers = append(pullers, o)
		}
	}
	return pullers, nil
}

// ensureCompanions writes what a root and its pods need into a mirror, before its leaf.
func (c *Controller) ensureCompanions(ctx context.Context, root ctrlclient.Object, mirror logicalcluster.Name) error {
	rk := client.KeyOf(root)
	refs, staying := needsOf(root), c.staying(rk)
	for _, r := range slices.Clone(refs) {
		if r.Kind == "ServiceAccount" && r.Name != kinds.DefaultAccount {
			secrets, err := c.pullSecrets(ctx, client.Key{Cluster: rk.Cluster, Namespace: rk.Namespace, Name: r.Name})
			if err != nil {
				return err
			}
			refs = append(refs, secrets...)
		}
	}
	for _, r := range refs {
		s, k := c.sources[r.Kind], client.Key{Cluster: rk.Cluster, Namespace: rk.Namespace, Name: r.Name}
		if s.Goes == kinds.WhereMounted || leafIn(mirror, s.leaves(k)) != nil {
			continue // its own key keeps it up to date; where claims are, what mounts them is
		}
		var have ctrlclient.Object
		if s.Goes != kinds.WhereReferenced { // which has a Placement of its own, perhaps
			var ok bool
			if have, ok = s.get(k); !ok || have.GetDeletionTimestamp() != nil || !slices.Contains(c.goesTo(s, k, c.placement(s, k), staying), mirror) {
				continue
			}
		}
		full, why, err := c.full(ctx, s, k, have)
		if err != nil {
			return err
		}
		if full == nil || why != "" {
			continue // as in one cluster, the pods wait for it, if they do
		}
		if _, _, err := c.putWhole(ctx, s, full, mirror, nil, false); err != nil {
			return err
		}
	}
	if podsOf(root) == nil {
		return nil
	}
	return c.ensureBounds(ctx, rk, mirror)
}

// needed says whether a leaf has to stay although nothing asks for it any more. What may need it in its namespace of its mirror
// is read uncached: a Service stays until the last workload is gone or has ended, anything else until nothing refers to it and all
// have finished, since pods of an earlier template, or the object of an earlier rendering, may need it. So are the roots that refer to it: of one
// that was just made there may be no leaf yet.
func (c *Controller) needed(ctx context.Context, s *source, k client.Key, p *placementv1alpha1.Placement, leaf ctrlclient.Object) (bool, error) {
	lk := client.KeyOf(leaf)
	if s.Goes != kinds.WhereReferenced {
		left, err := false, error(nil)
		if s.Goes == kinds.WithNamespace {
			left, err = c.allHaveLeft(ctx, k, lk.Cluster)
		} else {
			left, err = c.hasLeft(ctx, s, k, p, lk.Cluster)
		}
		if err != nil || !left {
			return true, err
		}
		workloads, err := c.read(ctx, lk.Cluster, lk.Namespace, kinds.Kind.MakesPods)
		if err != nil {
			return true, fmt.Errorf("list what may need %s %s: %w", s.GVK.Kind, lk, err)
		}
		return slices.ContainsFunc(workloads, func(o ctrlclient.Object) bool { return !c.sourceOf(o).HasEnded(o) }), nil
	}
	leaves, err := c.read(ctx, lk.Cluster, lk.Namespace, kinds.Kind.Refers)
	if err != nil {
		return true, fmt.Errorf("list what may need %s %s: %w", s.GVK.Kind, lk, err)
	}
	wanted := kinds.Reference{Kind: s.GVK.Kind, Name: k.Name}
	if slices.ContainsFunc(leaves, func(o ctrlclient.Object) bool {
		if of := c.sourceOf(o); !of.HasLeaves() {
			return !of.HasEnded(o) && slices.Contains(needsOf(o), wanted)
		}
		v := leafView(o)
		return !v.Settled || podsOf(o) != nil && !v.Finished() || slices.Contains(needsOf(o), wanted)
	}) {
		return true, nil
	}
	roots, err := c.read(ctx, k.Cluster, k.Namespace, kinds.Kind.Refers)
	if err != nil {
		return true, fmt.Errorf("list what may refer to %s %s: %w", s.GVK.Kind, k, err)
	}
	staying := c.staying(k)
	return slices.ContainsFunc(roots, func(o ctrlclient.Object) bool {
		return o.GetDeletionTimestamp() == nil && slices.Contains(needsOf(o), wanted) &&
			slices.Contains(c.mirrorsOf(o, client.Key{Cluster: k.Cluster, Namespace: k.Namespace, Name: o.GetName()}, staying), lk.Cluster)
	}), nil
}

// allHaveLeft says, from an uncached read, that no Placement of a root's namespace names a mirror any more.
func (c *Controller) allHaveLeft(ctx context.Context, root client.Key, mirror logicalcluster.Name) (bool, error) {
	list := &placementv1alpha1.PlacementList{}
	if err := c.clients.Objects.List(client.In(ctx, root.Cluster), list); err != nil {
		return false, fmt.Errorf("list the placements of %s before a leaf is deleted: %w", root.Cluster, err)
	}
	return !slices.ContainsFunc(list.Items, func(p placementv1alpha1.Placement) bool {
		return p.Spec.Namespace == root.Namespace && slices.Contains(placed(&p), mirror)
	}), nil
}

// read reads, uncached, what a namespace has of some kinds.
func (c *Controller) read(ctx context.Context, cluster logicalcluster.Name, namespace string, of func(kinds.Kind) bool) (objects []ctrlclient.Object, err error) {
	for _, k := range kinds.All {
		if !of(k) {
			continue
		}
		list := k.NewList()
		if err := c.clients.Objects.List(client.In(ctx, cluster), list, ctrlclient.InNamespace(namespace)); err != nil {
			return nil, fmt.Errorf("%s: %w", k.GVR.Resource, err)
		}
		counts := func(o metav1.Object) bool { return k.Holds(o) }
		if !k.HasLeaves() && c.isMirror(cluster) {
			counts = kinds.IsBound
		}
		if err := meta.EachListItem(list, func(o runtime.Object) error {
			if object := o.(ctrlclient.Object); counts(object) {
				objects = append(objects, object)
			}
			return nil
		}); err != nil {
			return nil, fmt.Errorf("%s: %w", k.GVR.Resource, err)
		}
	}
	return objects, nil
}

func (c *Controller) summariseWhole(ctx context.Context, s *source, root ctrlclient.Object, leaves []ctrlclient.Object, answering []logicalcluster.Name) (wait time.Duration, err error) {
	view := kinds.View{Now: c.clock.Now()}
	for _, leaf := range leaves {
		mirror := client.KeyOf(leaf).Cluster
		t := c.target(mirror)
		view.Leaves = append(view.Leaves, kinds.Leaf{
			Cluster: nameOf(t, mirror), Assigned: slices.Contains(answering, mirror), Lost: lost(t), Settled: applied(leaf), Object: leaf,
		})
	}
	if len(view.Leaves) == 0 {
		return 0, nil
	}
	sortLeaves(view.Leaves)
	now := root.DeepCopyObject().(ctrlclient.Object)
	s.Summarise(now, view)
	return c.writeStatus(ctx, s, root, now, 0)
}

// writeStatus writes a root's status if it changed, or returns how long that waits: until patience has passed since the last
// write, or the informer shows that one.
func (c *Controller) writeStatus(ctx context.Context, s *source, before, now ctrlclient.Object, patience time.Duration) (wait time.Duration, err error) {
	if equality.Semantic.DeepEqual(before, now) {
		return 0, nil
	}
	k := key{s.GVK.Kind, client.KeyOf(now)}
	if wait := c.pace.Wait(k, before.GetResourceVersion(), patience); wait > 0 {
		return wait, nil
	}
	if err := c.clients.Objects.Status().Update(client.In(ctx, k.Cluster), now); err != nil {
		if apierrors.IsNotFound(err) {
			return 0, nil
		}
		return 0, fmt.Errorf("write the status of %s %s: %w", s.GVK.Kind, k.Key, err)
	}
	c.pace.Wrote(k, now.GetResourceVersion())
	return 0, nil
}
