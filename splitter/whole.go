package splitter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
)

// whole puts a root that is not divided into every mirror that wants it, and takes it out of those that do not need it
// any more. A Service follows its Placement; what workloads refer to follows them.
func (c *Controller) whole(ctx context.Context, s *source, k client.Key, root ctrlclient.Object, p *placementv1alpha1.Placement, leaves []ctrlclient.Object, held []logicalcluster.Name) (time.Duration, error) {
	var mirrors []logicalcluster.Name
	var err error
	if s.Goes == kinds.WithPlacement {
		mirrors = placed(p)
		var shares []share
		if s.Withheld == nil || s.Withheld(root) == "" {
			for _, mirror := range mirrors {
				shares = append(shares, share{mirror: mirror})
			}
		}
		if c.tallyPlan(s, root, p, shares) {
			defer c.askPlacement(key{s.GVK.Kind, k}) // told with what is written now, as far as that is seen by then
		}
	} else if mirrors, err = c.referencing(ctx, s, k); err != nil {
		return 0, err
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
			leaf, ready, err := c.putWhole(ctx, s, full, mirror, leafIn(mirror, leaves))
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
		wait, err := c.summariseWhole(ctx, s, root, now, mirrors)
		again, errs = sooner(again, wait), append(errs, err)
	}
	return again, errors.Join(errs...)
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
	if s.Withheld != nil {
		why = s.Withheld(full)
	}
	return full, why, nil
}

// putWhole writes a root's leaf into a mirror; ready is false while an earlier leaf or namespace has to go first.
func (c *Controller) putWhole(ctx context.Context, s *source, root ctrlclient.Object, mirror logicalcluster.Name, have ctrlclient.Object) (leaf ctrlclient.Object, ready bool, err error) {
	if have != nil && (have.GetDeletionTimestamp() != nil || leafUID(have) != root.GetUID()) {
		return nil, false, nil
	}
	rk := client.KeyOf(root)
	if have != nil {
		want, _, err := render(s.Kind, root, s.Content(root), have.GetNamespace(), false)
		if err != nil {
			return nil, false, err
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

// referencing returns the mirrors where workloads are, or will be, that refer to an object.
func (c *Controller) referencing(ctx context.Context, s *source, k client.Key) ([]logicalcluster.Name, error) {
	users := c.informers.Deployments.ByIndex(byReference, referenceValue(s.GVK.Kind, k))
	if s.GVK.Kind == "Secret" {
		more, err := c.pullers(ctx, k)
		if err != nil {
			return nil, err
		}
		users = append(users, more...)
	}
	var mirrors []logicalcluster.Name
	for _, d := range users {
		dk := client.KeyOf(d)
		switch _, claims := rootOf(d); {
		case claims && c.isMirror(dk.Cluster):
			if d.DeletionTimestamp == nil {
				mirrors = append(mirrors, dk.Cluster)
			}
		case dk.Cluster == k.Cluster && dk.Namespace == k.Namespace && d.DeletionTimestamp == nil:
			mirrors = append(mirrors, placed(c.placement(c.sources["Deployment"], dk))...)
		}
	}
	slices.Sort(mirrors)
	return slices.Compact(mirrors), nil
}

// pullers returns the Deployments, roots and leaves, of a Secret's namespace whose ServiceAccounts pull with it.
func (c *Controller) pullers(ctx context.Context, secret client.Key) ([]*appsv1.Deployment, error) {
	accounts := map[string]bool{}
	var pullers []*appsv1.Deployment
	deployments := c.sources["Deployment"]
	for _, o := range append(deployments.list(secret.Cluster, secret.Namespace), deployments.leavesOf(secret.Cluster, secret.Namespace)...) {
		d := o.(*appsv1.Deployment)
		name := d.Spec.Template.Spec.ServiceAccountName
		if usesDefault(&d.Spec.Template.Spec) {
			name = defaultAccount
		}
		if _, known := accounts[name]; !known {
			secrets, err := c.pullSecrets(ctx, client.Key{Cluster: secret.Cluster, Namespace: secret.Namespace, Name: name})
			if err != nil {
				return nil, err
			}
			accounts[name] = slices.Contains(secrets, kinds.Reference{Kind: "Secret", Name: secret.Name})
		}
		if accounts[name] {
			pullers = append(pullers, d)
		}
	}
	return pullers, nil
}

func (c *Controller) pullSecrets(ctx context.Context, account client.Key) ([]kinds.Reference, error) {
	sa := &corev1.ServiceAccount{}
	err := c.clients.Objects.Get(client.In(ctx, account.Cluster), types.NamespacedName{Namespace: account.Namespace, Name: account.Name}, sa)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read ServiceAccount %s: %w", account, err)
	}
	return kinds.PullSecrets(sa), nil
}

// defaultAccount is whose pods name no ServiceAccount. Every namespace of a physical cluster has its own, which is not ours.
const defaultAccount = "default"

// usesDefault says that pods pull images with the Secrets of the ServiceAccount default: they name neither another one
// nor Secrets of their own.
func usesDefault(pods *corev1.PodSpec) bool {
	return len(pods.ImagePullSecrets) == 0 && (pods.ServiceAccountName == "" || pods.ServiceAccountName == defaultAccount)
}

// withPullSecrets returns a Deployment whose pods have the pull Secrets that admission in the workspace would give them, since
// the workspace's ServiceAccount default does not go down. They are read once for every generation of the root: a
// change of the account concerns pods that are made later, and must not roll out by itself.
func (c *Controller) withPullSecrets(ctx context.Context, root *appsv1.Deployment, leaves []ctrlclient.Object) (*appsv1.Deployment, error) {
	if !usesDefault(&root.Spec.Template.Spec) {
		return root, nil
	}
	var names []corev1.LocalObjectReference
	generation := strconv.FormatInt(root.Generation, 10)
	rendered := slices.IndexFunc(leaves, func(leaf ctrlclient.Object) bool {
		return leafUID(leaf) == root.UID && leaf.GetAnnotations()[workloadv1alpha1.RootGenerationAnnotation] == generation
	})
	if rendered >= 0 {
		names = leaves[rendered].(*appsv1.Deployment).Spec.Template.Spec.ImagePullSecrets
	} else {
		rk := client.KeyOf(root)
		secrets, err := c.pullSecrets(ctx, client.Key{Cluster: rk.Cluster, Namespace: rk.Namespace, Name: defaultAccount})
		if err != nil {
			return nil, err
		}
		for _, r := range secrets {
			names = append(names, corev1.LocalObjectReference{Name: r.Name})
		}
	}
	if len(names) == 0 {
		return root, nil
	}
	root = root.DeepCopy()
	root.Spec.Template.Spec.ImagePullSecrets = slices.Clone(names)
	return root, nil
}

// ensureCompanions writes what the pods of a template need into a mirror, before the pods.
func (c *Controller) ensureCompanions(ctx context.Context, root *appsv1.Deployment, mirror logicalcluster.Name) error {
	rk := client.KeyOf(root)
	refs := kinds.References(&root.Spec.Template)
	for _, r := range slices.Clone(refs) {
		if r.Kind == "ServiceAccount" && r.Name != defaultAccount {
			secrets, err := c.pullSecrets(ctx, client.Key{Cluster: rk.Cluster, Namespace: rk.Namespace, Name: r.Name})
			if err != nil {
				return err
			}
			refs = append(refs, secrets...)
		}
	}
	for _, r := range refs {
		s, k := c.sources[r.Kind], client.Key{Cluster: rk.Cluster, Namespace: rk.Namespace, Name: r.Name}
		if leafIn(mirror, s.leaves(k)) != nil {
			continue // its own key keeps it up to date
		}
		full, why, err := c.full(ctx, s, k, nil)
		if err != nil {
			return err
		}
		if full == nil || why != "" {
			continue // as in one cluster, the pods wait for it, if they do
		}
		if _, _, err := c.putWhole(ctx, s, full, mirror, nil); err != nil {
			return err
		}
	}
	return nil
}

// needed says whether a leaf has to stay although nothing asks for it any more. Workloads of its namespace in its mirror
// are read uncached: a Service stays until the last of them is gone, anything else until none of them refers to it and all of
// them have finished, since pods of an earlier template may need it. So are the roots that refer to it: of one that was just made
// there may be no leaf yet.
func (c *Controller) needed(ctx context.Context, s *source, k client.Key, p *placementv1alpha1.Placement, leaf ctrlclient.Object) (bool, error) {
	lk := client.KeyOf(leaf)
	if s.Goes == kinds.WithPlacement {
		if left, err := c.hasLeft(ctx, s, k, p, lk.Cluster); err != nil || !left {
			return true, err
		}
	}
	list := &appsv1.DeploymentList{}
	if err := c.clients.Objects.List(client.In(ctx, lk.Cluster), list, ctrlclient.InNamespace(lk.Namespace)); err != nil {
		return true, fmt.Errorf("list what may need %s %s: %w", s.GVK.Kind, lk, err)
	}
	for i := range list.Items {
		d := &list.Items[i]
		if s.Goes == kinds.WithPlacement || !leafView(d).Finished() ||
			slices.Contains(kinds.References(&d.Spec.Template), kinds.Reference{Kind: s.GVK.Kind, Name: k.Name}) {
			return true, nil
		}
	}
	if s.Goes == kinds.WithPlacement {
		return false, nil
	}
	roots := &appsv1.DeploymentList{}
	if err := c.clients.Objects.List(client.In(ctx, k.Cluster), roots, ctrlclient.InNamespace(k.Namespace)); err != nil {
		return true, fmt.Errorf("list what may refer to %s %s: %w", s.GVK.Kind, k, err)
	}
	return slices.ContainsFunc(roots.Items, func(d appsv1.Deployment) bool {
		return d.DeletionTimestamp == nil && slices.Contains(kinds.References(&d.Spec.Template), kinds.Reference{Kind: s.GVK.Kind, Name: k.Name}) &&
			slices.Contains(placed(c.placement(c.sources["Deployment"], client.Key{Cluster: k.Cluster, Namespace: k.Namespace, Name: d.Name})), lk.Cluster)
	}), nil
}

func (c *Controller) summariseWhole(ctx context.Context, s *source, root ctrlclient.Object, leaves []ctrlclient.Object, assigned []logicalcluster.Name) (wait time.Duration, err error) {
	view := kinds.View{Now: c.clock.Now()}
	for _, leaf := range leaves {
		mirror := client.KeyOf(leaf).Cluster
		t := c.target(mirror)
		view.Leaves = append(view.Leaves, kinds.Leaf{
			Cluster: nameOf(t, mirror), Assigned: slices.Contains(assigned, mirror), Lost: lost(t), Settled: applied(leaf), Object: leaf,
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
