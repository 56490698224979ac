package client

import (
	"context"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
)

// InWorkspace says whether a logical cluster is a workspace that is not being deleted. What is in a mirror is done by the
// physical cluster, and what is in a workspace that goes need not be done. One that the informer does not show is read: it
// may be new, or gone.
func InWorkspace(ctx context.Context, c *Clients, i *Informers, name logicalcluster.Name) (bool, error) {
	cluster, known := i.LogicalClusters.Get(Key{Cluster: name, Name: corev1alpha1.LogicalClusterName})
	if !known {
		cluster = &corev1alpha1.LogicalCluster{}
		err := c.Objects.Get(In(ctx, name), types.NamespacedName{Name: corev1alpha1.LogicalClusterName}, cluster)
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) { // 403 where there is no logical cluster of that name
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("read logical cluster %q: %w", name, err)
		}
	}
	return cluster.Spec.Use != corev1alpha1.LogicalClusterUseMirror && cluster.DeletionTimestamp == nil && !cluster.Status.Phase.Ends(), nil
}
