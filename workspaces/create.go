package workspaces

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/attendance"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// ownerBinding is the name of the ClusterRoleBinding of a workspace's owner, as in kcp.
const ownerBinding = "workspace-admin"

// create makes the logical cluster of a Workspace and everything in it, and then the Workspace Ready. Each step may have
// been done before.
func (c *Controller) create(ctx context.Context, w *tenancyv1alpha1.Workspace) error {
	importing := w.Annotations[tenancyv1alpha1.ImportingAnnotation] != ""
	if w.Status.Phase == corev1alpha1.LogicalClusterPhaseReady {
		// A server of before this annotation of the LogicalCluster may have made it Ready.
		cluster := logicalcluster.Name(w.Spec.Cluster)
		if lc, ok := c.informers.LogicalClusters.Get(clusterKey(cluster)); ok && !importing && client.IsImporting(lc) {
			return c.imported(ctx, cluster, lc)
		}
		return nil
	}
	parent, err := c.parent(ctx, w)
	if err != nil {
		return err
	}
	path := pathOf(parent, w)
	if !importing {
		if done, err := c.seed(ctx, w, path); done || err != nil {
			return err
		}
	}
	w = w.DeepCopy()
	if w.Spec.Cluster == "" || w.Spec.URL == "" {
		if w.Spec.Cluster == "" {
			w.Spec.Cluster = string(lcctx.NewName())
		}
		w.Spec.URL = c.opts.URLBase + path.RequestPath()
		if err := c.clients.Objects.Update(in(ctx, w), w); err != nil {
			return fmt.Errorf("give workspace %q a logical cluster: %w", path, err)
		}
	}
	cluster := logicalcluster.Name(w.Spec.Cluster)

	if w.Status.Phase != corev1alpha1.LogicalClusterPhaseInitializing { // else it has all this, or its initializers took it away
		if err := ensureLogicalCluster(ctx, c.clients, cluster, c.logicalClusterOf(w, path)); err != nil {
			return err
		}
		if importing {
			return nil // with the annotation's end it comes here again
		}
		if err := c.fill(ctx, w, cluster); err != nil {
			return err
		}
	}
	var lc *corev1alpha1.LogicalCluster
	if err := c.see(ctx, cluster, func(seen *corev1alpha1.LogicalCluster) bool { lc = seen; return true }); err != nil {
		return err
	}
	if client.IsImporting(lc) {
		if err := c.imported(ctx, cluster, lc); err != nil {
			return err
		}
	}

	before := w.Status.DeepCopy()
	setPhase(w, lc)
	if equality.Semantic.DeepEqual(before, &w.Status) {
		return nil // it waits for initializers, and says so
	}
	if err := c.clients.Objects.Status().Update(in(ctx, w), w); err != nil {
		return fmt.Errorf("make workspace %q %s: %w", path, w.Status.Phase, err)
	}
	return nil
}

// imported says of a LogicalCluster that the import which filled it has ended.
func (c *Controller) imported(ctx context.Context, cluster logicalcluster.Name, lc *corev1alpha1.LogicalCluster) error {
	filled := lc.DeepCopy()
	delete(filled.Annotations, tenancyv1alpha1.ImportingAnnotation)
	if err := c.clients.Objects.Patch(client.In(ctx, cluster), filled, ctrlclient.MergeFrom(lc)); err != nil {
		return fmt.Errorf("say of logical cluster %q that it is imported: %w", cluster, err)
	}
	return nil
}

// logicalClusterOf returns the LogicalCluster of a Workspace.
func (c *Controller) logicalClusterOf(w *tenancyv1alpha1.Workspace, path logicalcluster.Path) *corev1alpha1.LogicalCluster {
	lc := newLogicalCluster(c.opts.URLBase, logicalcluster.Name(w.Spec.Cluster), path.String())
	if t := w.Spec.Type; t != nil && t.Path != "" {
		lc.Annotations[tenancyv1alpha1.TypeAnnotation] = t.Path + ":" + t.Name
	}
	lc.Spec.Owner = &corev1alpha1.LogicalClusterOwner{
		APIVersion: tenancyv1alpha1.GroupVersion.String(),
		Resource:   "workspaces",
		Name:       w.Name,
		Cluster:    string(lcctx.NameFrom(w)),
		UID:        w.UID,
	}
	if importing := w.Annotations[tenancyv1alpha1.ImportingAnnotation]; importing != "" {
		lc.Annotations[tenancyv1alpha1.ImportingAnnotation] = importing
	}
	for _, a := range attendance.All {
		names := w.Annotations[a.Annotation]
		if names == "" {
			continue
		}
		for name := range strings.SplitSeq(names, ",") {
			*a.Born(&lc.Spec) = append(*a.Born(&lc.Spec), attendance.Attendant(name))
		}
		*a.Left(&lc.Status) = slices.Clone(*a.Born(&lc.Spec))
		if owner := tenancyv1alpha1.OwnerOf(w); owner != "" { // as whom they work there
			lc.Annotations[tenancyv1alpha1.OwnerAnnotation] = tenancyv1alpha1.OwnerValue(ownerSubject(owner, lcctx.NameFrom(w)).Name)
		}
	}
	if !attendance.Initialized(lc) {
		lc.Status.Phase = corev1alpha1.LogicalClusterPhaseInitializing
	}
	return lc
}

// setPhase says of a Workspace that has all it is born with what its LogicalCluster says: that it is ready, or waits for
// initializers.
func setPhase(w *tenancyv1alpha1.Workspace, lc *corev1alpha1.LogicalCluster) {
	w.Status.Initializers, w.Status.Terminators = slices.Clone(lc.Status.Initializers), slices.Clone(lc.Status.Terminators)
	if lc.Status.Phase == corev1alpha1.LogicalClusterPhaseInitializing {
		w.Status.Phase = lc.Status.Phase
		meta.SetStatusCondition(&w.Status.Conditions, metav1.Condition{
			Type: tenancyv1alpha1.WorkspaceInitialized, Status: metav1.ConditionFalse, Reason: "InitializerExists", ObservedGeneration: w.Generation,
			Message: fmt.Sprintf("Initializers still exist: %v", lc.Status.Initializers),
		})
		return
	}
	if len(lc.Spec.Initializers) > 0 {
		meta.SetStatusCondition(&w.Status.Conditions, metav1.Condition{
			Type: tenancyv1alpha1.WorkspaceInitialized, Status: metav1.ConditionTrue, Reason: "Initialized", ObservedGeneration: w.Generation,
		})
	}
	w.Status.Phase = corev1alpha1.LogicalClusterPhaseReady
	meta.SetStatusCondition(&w.Status.Conditions, metav1.Condition{
		Type: tenancyv1alpha1.WorkspaceReady, Status: metav1.ConditionTrue, Reason: "Ready", ObservedGeneration: w.Generation,
	})
}

// parent returns the LogicalCluster of the logical cluster that holds a Workspace.
func (c *Controller) parent(ctx context.Context, w *tenancyv1alpha1.Workspace) (*corev1alpha1.LogicalCluster, error) {
	name := lcctx.NameFrom(w)
	if lc, ok := c.informers.LogicalClusters.Get(clusterKey(name)); ok {
		return lc, nil
	}
	lc := &corev1alpha1.LogicalCluster{}
	if err := c.clients.Objects.Get(in(ctx, w), types.NamespacedName{Name: corev1alpha1.LogicalClusterName}, lc); err != nil {
		return nil, fmt.Errorf("get logical cluster %q, which holds workspace %q: %w", name, w.Name, err)
	}
	return lc, nil
}

// fill makes what every workspace has from the start.
func (c *Controller) fill(ctx context.Context, w *tenancyv1alpha1.Workspace, cluster logicalcluster.Name) error {
	var namespaces, binding error
	var wg sync.WaitGroup
	wg.Go(func() { namespaces = ensureNamespaces(ctx, c.clients, cluster) })
	wg.Go(func() { binding = c.bindOwner(ctx, w, cluster) })
	wg.Wait()
	return errors.Join(namespaces, binding)
}

// bindingOfOwner gives who created a Workspace all rights in its logical cluster; it is nil if nobody is known to have.
func bindingOfOwner(w *tenancyv1alpha1.Workspace) *rbacv1.ClusterRoleBinding {
	owner := tenancyv1alpha1.OwnerOf(w)
	if owner == "" {
		return nil
	}
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: ownerBinding},
		Subjects:   []rbacv1.Subject{ownerSubject(owner, lcctx.NameFrom(w))},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}
}

// bindOwner gives who created the Workspace all rights in its logical cluster, and waits until the authoriser sees it.
func (c *Controller) bindOwner(ctx context.Context, w *tenancyv1alpha1.Workspace, cluster logicalcluster.Name) error {
	binding := bindingOfOwner(w)
	if binding == nil {
		return nil
	}
	ctx = client.In(ctx, cluster)
	bindings := c.clients.Kube.RbacV1().ClusterRoleBindings()
	binding, err := bindings.Create(ctx, binding, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		binding, err = bindings.Get(ctx, ownerBinding, metav1.GetOptions{})
	}
	if err != nil {
		return fmt.Errorf("bind the owner of logical cluster %q: %w", cluster, err)
	}
	// The authoriser reads from the watch cache. A read that names a resource version is answered from there, too, once
	// that has come so far; a plain one would wait for the whole store's progress, up to a tenth of a second.
	if _, err := bindings.Get(ctx, ownerBinding, metav1.GetOptions{ResourceVersion: binding.ResourceVersion}); err != nil {
		return fmt.Errorf("wait for the binding of the owner of logical cluster %q: %w", cluster, err)
	}
	return nil
}
