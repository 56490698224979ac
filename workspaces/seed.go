package workspaces

import (
	"context"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// seed makes a new workspace in two transactions instead of a request for each object, and says whether it did its part:
//
//   - the LogicalCluster, the namespace default with what it holds, and the owner's binding; the event of the LogicalCluster
//     then brings the Workspace here again,
//   - the namespace kube-system with what it holds, and the Workspace's URL and phase: Ready, or Initializing.
//
// There are two because no two objects of a kind can be written together, and because of what Ready says: that the
// Directory and the authoriser have seen the first. Each is written only if the Workspace is as it was read and nothing of
// it exists. Whatever else is found (a LogicalCluster from an earlier version, somebody's change to the Workspace, a
// binding that is gone) is left to the requests of create, which take nothing for granted.
func (c *Controller) seed(ctx context.Context, w *tenancyv1alpha1.Workspace, path logicalcluster.Path) (done bool, err error) {
	if c.opts.WriteTogether == nil || w.Spec.Cluster == "" {
		return false, nil
	}
	cluster := logicalcluster.Name(w.Spec.Cluster)
	if lc, ok := c.informers.LogicalClusters.Get(clusterKey(cluster)); !ok {
		done, err = c.seedLogicalCluster(ctx, w, path)
	} else if owns(w, lc) && w.Status.Phase != corev1alpha1.LogicalClusterPhaseInitializing && !client.IsImporting(lc) {
		done, err = c.seedReady(ctx, w, path, lc)
	}
	if err != nil {
		return false, fmt.Errorf("make workspace %q: %w", path, err)
	}
	return done, nil
}

func (c *Controller) seedLogicalCluster(ctx context.Context, w *tenancyv1alpha1.Workspace, path logicalcluster.Path) (bool, error) {
	objects := append(c.namespace(metav1.NamespaceDefault), c.logicalClusterOf(w, path))
	if binding := bindingOfOwner(w); binding != nil {
		objects = append(objects, binding)
	}
	return c.opts.WriteTogether(ctx, w, into(logicalcluster.Name(w.Spec.Cluster), objects)...)
}

func (c *Controller) seedReady(ctx context.Context, w *tenancyv1alpha1.Workspace, path logicalcluster.Path, lc *corev1alpha1.LogicalCluster) (bool, error) {
	cluster := logicalcluster.Name(w.Spec.Cluster)
	if bindingOfOwner(w) != nil {
		// The authoriser sees the binding at the version at which it was written, which is the LogicalCluster's unless somebody
		// has changed that.
		seen, err := c.opts.Read(ctx, cluster, "", ownerBinding, lc.ResourceVersion, &rbacv1.ClusterRoleBinding{})
		if !seen || err != nil {
			return false, ignoreTooNew(err)
		}
	}
	// The informer leaves out a part of what it reads, which must not be lost.
	stored := &tenancyv1alpha1.Workspace{}
	if found, err := c.opts.Read(ctx, lcctx.NameFrom(w), "", w.Name, "0", stored); !found || err != nil {
		return false, err
	}
	if stored.UID != w.UID || stored.ResourceVersion != w.ResourceVersion {
		return false, nil
	}
	stored = stored.DeepCopy()
	if stored.Spec.URL == "" {
		stored.Spec.URL = c.opts.URLBase + path.RequestPath()
		stored.Generation++
	}
	setPhase(stored, lc)
	return c.opts.WriteTogether(ctx, nil, append(into(cluster, c.namespace(metav1.NamespaceSystem)), stored)...)
}

// ignoreTooNew is nil for the error that a cache has not come as far as asked within some seconds.
func ignoreTooNew(err error) error {
	if storage.IsTooLargeResourceVersion(err) {
		return nil
	}
	return err
}

// namespace returns a new namespace with what it holds.
func (c *Controller) namespace(name string) []ctrlclient.Object {
	return append(c.opts.NamespaceContent(name), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

// into says of new objects to which logical cluster they go.
func into(cluster logicalcluster.Name, objects []ctrlclient.Object) []ctrlclient.Object {
	for _, o := range objects {
		annotations := map[string]string{lcctx.Annotation: string(cluster)}
		for k, v := range o.GetAnnotations() {
			annotations[k] = v
		}
		o.SetAnnotations(annotations)
	}
	return objects
}
