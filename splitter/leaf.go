package splitter

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// render returns the leaf of a root with that content, and its hash. Name, labels and annotations that go down are the root's.
func render(s kinds.Kind, root, content ctrlclient.Object, namespace string, draining bool) (ctrlclient.Object, string, error) {
	leaf := content
	labels, annotations := kinds.Metadata(root)
	if s.Unlabelled {
		clear(labels)
	}
	rk := client.KeyOf(root)
	leaf.SetName(rk.Name)
	leaf.SetNamespace(namespace)
	leaf.SetLabels(labels)
	leaf.SetAnnotations(annotations)
	hash, err := kinds.Hash(leaf)
	if err != nil {
		return nil, "", err
	}
	labels[workloadv1alpha1.WorkspaceLabel] = string(rk.Cluster)
	labels[workloadv1alpha1.RootUIDLabel] = string(root.GetUID())
	annotations[workloadv1alpha1.RootAnnotation] = rk.Namespace + "/" + rk.Name
	annotations[workloadv1alpha1.RootGenerationAnnotation] = strconv.FormatInt(root.GetGeneration(), 10)
	annotations[workloadv1alpha1.RenderedAnnotation] = hash
	if draining {
		annotations[workloadv1alpha1.DrainingAnnotation] = "true"
	}
	leaf.SetLabels(labels)
	leaf.SetAnnotations(annotations)
	if s.MakesPods() {
		copyGift(leaf, root)
	}
	leaf.SetFinalizers([]string{workloadv1alpha1.SyncerFinalizer})
	leaf.GetObjectKind().SetGroupVersionKind(s.GVK)
	return leaf, hash, nil
}

// ofSplitter are the annotations of a leaf that the splitter alone writes; the others under our prefix are the syncer's.
var ofSplitter = []string{
	workloadv1alpha1.RootAnnotation, workloadv1alpha1.RootGenerationAnnotation,
	workloadv1alpha1.RenderedAnnotation, workloadv1alpha1.DrainingAnnotation,
	workloadv1alpha1.APIAccessAnnotation, workloadv1alpha1.TemplateAnnotation, workloadv1alpha1.EarlierTemplateAnnotation,
}

// sameLeaf says that a leaf needs no write to become want.
func sameLeaf(have, want ctrlclient.Object) bool {
	for _, a := range ofSplitter {
		x, hasX := have.GetAnnotations()[a]
		y, hasY := want.GetAnnotations()[a]
		if hasX != hasY || x != y {
			return false
		}
	}
	return leafUID(have) == leafUID(want) && slices.Contains(have.GetFinalizers(), workloadv1alpha1.SyncerFinalizer)
}

// put makes a mirror have a leaf, and returns it as stored. have is the leaf as last seen, nil if there is none; it is
// overwritten only if it has not changed since.
func (c *Controller) put(ctx context.Context, mirror logicalcluster.Name, have, want ctrlclient.Object) (ctrlclient.Object, error) {
	kind := want.GetObjectKind().GroupVersionKind().Kind
	lk := client.Key{Cluster: mirror, Namespace: want.GetNamespace(), Name: want.GetName()}
	if have == nil {
		if err := c.clients.Objects.Create(client.In(ctx, mirror), want); err != nil {
			return nil, fmt.Errorf("create leaf %s %s: %w", kind, lk, err)
		}
		klog.FromContext(ctx).V(2).Info("Created a leaf", "kind", kind, "leaf", lk.String())
		return want, nil
	}
	if sameLeaf(have, want) {
		return have, nil
	}
	annotations := want.GetAnnotations()
	for _, a := range workloadv1alpha1.SyncerAnnotations {
		if v, ok := have.GetAnnotations()[a]; ok {
			annotations[a] = v
		}
	}
	want.SetAnnotations(annotations)
	finalizers := slices.Clone(have.GetFinalizers())
	if !slices.Contains(finalizers, workloadv1alpha1.SyncerFinalizer) {
		finalizers = append(finalizers, workloadv1alpha1.SyncerFinalizer)
	}
	want.SetFinalizers(finalizers)
	want.SetUID(have.GetUID())
	want.SetResourceVersion(have.GetResourceVersion())
	if err := c.clients.Objects.Update(client.In(ctx, mirror), want); err != nil {
		return nil, fmt.Errorf("update leaf %s %s: %w", kind, lk, err)
	}
	klog.FromContext(ctx).V(2).Info("Updated a leaf", "kind", kind, "leaf", lk.String())
	return want, nil
}

// applied says that the physical cluster has applied a leaf as it is now.
func applied(leaf ctrlclient.Object) bool {
	a := leaf.GetAnnotations()
	return a[workloadv1alpha1.RenderedAnnotation] != "" && a[workloadv1alpha1.AppliedAnnotation] == a[workloadv1alpha1.RenderedAnnotation]
}

// leafView is what a leaf says by itself.
func leafView(leaf ctrlclient.Object) kinds.Leaf {
	k, ok := kinds.Of(leaf)
	return kinds.Leaf{
		Object:  leaf,
		Refused: workloadv1alpha1.RefusalOf(leaf),
		Settled: applied(leaf) && (!ok || !k.MakesPods() || k.Observed(leaf)),
	}
}

// inherited returns the labels that a mirror's namespace has from the workspace's: those that say what its pods may do, and those
// that NetworkPolicies select by.
func inherited(n *corev1.Namespace) map[string]string {
	labels := kinds.NamespaceLabels(n.Labels)
	for k, v := range n.Labels {
		if isPodSecurity(k) {
			labels[k] = v
		}
	}
	return labels
}

func isInherited(label string) bool { return isPodSecurity(label) || kinds.IsNamespaceLabel(label) }

func isPodSecurity(label string) bool {
	const prefix = "pod-security.kubernetes.io/"
	return len(label) > len(prefix) && label[:len(prefix)] == prefix
}

// ensureNamespace makes a mirror have the namespace for a workspace's namespace and returns its name. ready is false
// while an earlier one is still being deleted. The space's lock has to be held until something is in it.
func (c *Controller) ensureNamespace(ctx context.Context, workspace logicalcluster.Name, namespace string, mirror logicalcluster.Name) (name string, ready bool, err error) {
	if n := c.mirrorNamespace(workspace, namespace, mirror); n != nil {
		return n.Name, n.DeletionTimestamp == nil, nil
	}
	name = kinds.DownstreamNamespace(workspace, namespace, c.dedicated(workspace, mirror))
	want := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:        name,
		Labels:      map[string]string{workloadv1alpha1.WorkspaceLabel: string(workspace)},
		Annotations: map[string]string{workloadv1alpha1.RootAnnotation: "/" + namespace},
		Finalizers:  []string{workloadv1alpha1.SyncerFinalizer},
	}}
	if n, ok := c.informers.Namespaces.Get(client.Key{Cluster: workspace, Name: namespace}); ok {
		maps.Copy(want.Labels, inherited(n))
	}
	err = c.clients.Objects.Create(client.In(ctx, mirror), want)
	if apierrors.IsAlreadyExists(err) {
		live := &corev1.Namespace{}
		if err := c.clients.Objects.Get(client.In(ctx, mirror), types.NamespacedName{Name: name}, live); err != nil {
			return name, false, fmt.Errorf("read namespace %s of mirror %s: %w", name, mirror, err)
		}
		if live.Labels[workloadv1alpha1.WorkspaceLabel] != string(workspace) || live.Annotations[workloadv1alpha1.RootAnnotation] != "/"+namespace {
			return name, false, fmt.Errorf("namespace %s of mirror %s is not for namespace %s|%s: %w", name, mirror, workspace, namespace, errNotAdopted)
		}
		return name, live.DeletionTimestamp == nil, nil
	}
	if err != nil {
		return name, false, fmt.Errorf("create namespace %s of mirror %s: %w", name, mirror, err)
	}
	return name, true, nil
}

// mirrorNamespace returns the namespace that a mirror has for a workspace's; nil if none.
func (c *Controller) mirrorNamespace(workspace logicalcluster.Name, namespace string, mirror logicalcluster.Name) *corev1.Namespace {
	for _, n := range c.informers.Namespaces.ByIndex(byRoot, namespaceValue(workspace, namespace)) {
		if client.KeyOf(n).Cluster == mirror {
			return n
		}
	}
	return nil
}

// dedicated says that a mirror's physical cluster is for this workspace alone.
func (c *Controller) dedicated(workspace, mirror logicalcluster.Name) bool {
	t := c.target(mirror)
	if t == nil || t.Spec.DedicatedTo == "" {
		return false
	}
	if t.Spec.DedicatedTo == string(workspace) {
		return true
	}
	lc, ok := c.informers.LogicalClusters.Get(client.Key{Cluster: workspace, Name: corev1alpha1.LogicalClusterName})
	return ok && lc.Annotations[lcctx.PathAnnotation] == t.Spec.DedicatedTo
}

// namespace deletes a mirror's namespace some time after its last leaf, or brings its labels up to date.
func (c *Controller) namespace(ctx context.Context, k client.Key) (again time.Duration, err error) {
	n, ok := c.informers.Namespaces.Get(k)
	if !ok || n.DeletionTimestamp != nil || !c.isMirror(k.Cluster) {
		return 0, nil
	}
	root, ok := rootOf(n)
	if !ok {
		return 0, nil
	}
	lock := c.space(k.Cluster, k.Name)
	lock.Lock()
	defer lock.Unlock()
	for _, s := range c.sources {
		if s.HasLeaves() && len(s.list(k.Cluster, k.Name)) > 0 || len(s.bound(k.Cluster, k.Name)) > 0 {
			return 0, c.copyLabels(ctx, n, root)
		}
	}
	if wait := c.pace.Wait(key{ofNamespace, k}, "", keepEmpty); wait > 0 && c.mayComeBack(root, k.Cluster) {
		return wait, nil
	}
	ctx = client.In(ctx, k.Cluster)
	resource, err := c.inside(ctx, k.Name)
	if err != nil {
		return 0, fmt.Errorf("look into namespace %s before it is deleted: %w", k, err)
	}
	if !resource.Empty() {
		kind, ours := kinds.ByResource(resource)
		switch {
		case ours && kind.HasLeaves():
			return 0, nil // its end brings us back
		case resource == corev1.Resource("pods"):
			return lookAgain, nil // they are shown until their syncer knows that they are gone, of which nobody tells us
		}
		return lookInside, nil
	}
	if frozen, _ := c.brake.Frozen(string(k.Cluster)); frozen {
		return 0, nil
	}
	err = c.clients.Objects.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: k.Name}}, ctrlclient.Preconditions{UID: ptr.To(n.UID)})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("delete namespace %s: %w", k, err)
	}
	return 0, nil
}

// inside returns a resource of which a namespace of the context's mirror holds something, the zero value if it holds nothing. It asks for
// every resource, uncached: a server of a later version may have put there what this one has no rules for.
func (c *Controller) inside(ctx context.Context, namespace string) (schema.GroupResource, error) {
	resources, err := c.clients.Deletables(ctx)
	if err != nil {
		return schema.GroupResource{}, err
	}
	for _, r := range resources {
		if r.Resource == "events" { // they tell of the others
			continue
		}
		list, err := c.clients.Metadata.Resource(r.GroupVersionResource).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil && !apierrors.IsNotFound(err) { // not served any more
			return schema.GroupResource{}, fmt.Errorf("list %s: %w", r.GroupResource(), err)
		}
		if err == nil && len(list.Items) > 0 {
			return r.GroupResource(), nil
		}
	}
	return schema.GroupResource{}, nil
}

// mayComeBack says that something of a workspace's namespace may be in a mirror again soon: it was not moved elsewhere.
func (c *Controller) mayComeBack(root client.Key, mirror logicalcluster.Name) bool {
	n, ok := c.informers.Namespaces.Get(client.Key{Cluster: root.Cluster, Name: root.Name})
	if !ok || n.DeletionTimestamp != nil {
		return false
	}
	if lc, ok := c.informers.LogicalClusters.Get(client.Key{Cluster: root.Cluster, Name: corev1alpha1.LogicalClusterName}); ok && ending(lc) {
		return false
	}
	placements := c.informers.Placements.ByIndex(byPlacedNamespace, namespaceValue(root.Cluster, root.Name))
	return len(placements) == 0 || slices.ContainsFunc(placements, func(p *placementv1alpha1.Placement) bool {
		return slices.Contains(placed(p), mirror)
	})
}

func (c *Controller) copyLabels(ctx context.Context, n *corev1.Namespace, root client.Key) error {
	up, ok := c.informers.Namespaces.Get(client.Key{Cluster: root.Cluster, Name: root.Name})
	if !ok {
		return nil
	}
	want := n.DeepCopy()
	maps.DeleteFunc(want.Labels, func(k, _ string) bool { return isInherited(k) })
	maps.Copy(want.Labels, inherited(up))
	if maps.Equal(want.Labels, n.Labels) {
		return nil
	}
	if err := c.clients.Objects.Update(client.In(ctx, client.KeyOf(n).Cluster), want); err != nil {
		return fmt.Errorf("label namespace %s: %w", client.KeyOf(n), err)
	}
	return nil
}
