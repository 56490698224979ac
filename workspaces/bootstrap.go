package workspaces

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

const (
	// Root is the logical cluster of the workspace that holds all others, and its path.
	Root logicalcluster.Name = "root"
	// SystemAdmin is the logical cluster for what concerns the server as a whole. It is not in the tree of workspaces.
	SystemAdmin logicalcluster.Name = "system:admin"
)

// defaultNamespaces are in every logical cluster of a workspace.
var defaultNamespaces = []string{metav1.NamespaceDefault, metav1.NamespaceSystem}

// Bootstrap makes the logical clusters root and system:admin where they are missing. urlBase is the external address
// of the server without a path, as https://host:6443. It is called at each start, before anything else needs them.
func Bootstrap(ctx context.Context, clients *client.Clients, urlBase string) error {
	for _, b := range []struct {
		name logicalcluster.Name
		path string
	}{
		{Root, Root.String()},
		{SystemAdmin, ""},
	} {
		c := newLogicalCluster(urlBase, b.name, b.path)
		if err := ensureLogicalCluster(ctx, clients, b.name, c); err != nil {
			return err
		}
		if err := ensureNamespaces(ctx, clients, b.name); err != nil {
			return err
		}
	}
	return nil
}

// newLogicalCluster returns the object of a workspace's logical cluster. It is born Ready: it can be used as soon as it
// exists. What a new workspace still lacks is told by the phase of the Workspace.
func newLogicalCluster(urlBase string, name logicalcluster.Name, path string) *corev1alpha1.LogicalCluster {
	c := &corev1alpha1.LogicalCluster{
		ObjectMeta: metav1.ObjectMeta{Name: corev1alpha1.LogicalClusterName},
		Spec:       corev1alpha1.LogicalClusterSpec{Use: corev1alpha1.LogicalClusterUseWorkspace},
		Status: corev1alpha1.LogicalClusterStatus{
			Phase: corev1alpha1.LogicalClusterPhaseReady,
			URL:   urlBase + name.Path().RequestPath(),
		},
	}
	if path != "" {
		c.Annotations = map[string]string{lcctx.PathAnnotation: path}
	}
	return c
}

func ensureLogicalCluster(ctx context.Context, clients *client.Clients, name logicalcluster.Name, c *corev1alpha1.LogicalCluster) error {
	if err := clients.Objects.Create(client.In(ctx, name), c); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create logical cluster %q: %w", name, err)
	}
	return nil
}

func ensureNamespaces(ctx context.Context, clients *client.Clients, cluster logicalcluster.Name) error {
	errs := make([]error, len(defaultNamespaces))
	var wg sync.WaitGroup
	for i, name := range defaultNamespaces {
		wg.Go(func() {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
			_, err := clients.Kube.CoreV1().Namespaces().Create(client.In(ctx, cluster), ns, metav1.CreateOptions{})
			if err != nil && !apierrors.IsAlreadyExists(err) {
				errs[i] = fmt.Errorf("create namespace %q in logical cluster %q: %w", name, cluster, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
