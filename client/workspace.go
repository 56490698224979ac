package client

import (
	"context"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
)

// InWorkspace says whether a logical cluster is a workspace that is not being deleted. What is in a mirror is done by the
// physical cluster, and what is in a workspace that goes need not be done. One that the informer does not show is read: it
// may be new, or gone.
func InWorkspace(ctx context.Context, c *Clients, i *Informers, name logicalcluster.Name) (bool, error) {
	cluster, err := logicalCluster(ctx, c, i, name)
	if cluster == nil || err != nil {
		return false, err
	}
	return cluster.Spec.Use != corev1alpha1.LogicalClusterUseMirror && !ends(cluster), nil
}

// Importing says whether an import fills a logical cluster: what is being deleted there waits until it has, see IsImporting. One that the
// informer does not show is read.
func Importing(ctx context.Context, c *Clients, i *Informers, name logicalcluster.Name) (bool, error) {
	cluster, err := logicalCluster(ctx, c, i, name)
	return cluster != nil && IsImporting(cluster), err
}

// IsImporting says whether an import fills the logical cluster of a LogicalCluster. What an object that is being deleted waits for may not be
// there yet, so that nobody may find that there is nothing. It is so from the beginning or never. One that is deleted meanwhile goes as any other.
func IsImporting(cluster *corev1alpha1.LogicalCluster) bool {
	return cluster.Annotations[tenancyv1alpha1.ImportingAnnotation] != "" && !ends(cluster)
}

// OnImported calls tell for each logical cluster when it is first seen that no import fills it, or none any more. It must not block. Called
// before the informers run.
func (i *Informers) OnImported(tell func(logicalcluster.Name)) {
	i.LogicalClusters.OnEvent(func(e Event[*corev1alpha1.LogicalCluster]) {
		if !e.Deleted() && !IsImporting(e.New) && (e.Old == nil || IsImporting(e.Old)) {
			tell(KeyOf(e.New).Cluster)
		}
	})
}

// logicalCluster returns a LogicalCluster as the informer shows it, else as it is read, and nil if there is none.
func logicalCluster(ctx context.Context, c *Clients, i *Informers, name logicalcluster.Name) (*corev1alpha1.LogicalCluster, error) {
	if cluster, known := i.LogicalClusters.Get(Key{Cluster: name, Name: corev1alpha1.LogicalClusterName}); known {
		return cluster, nil
	}
	cluster := &corev1alpha1.LogicalCluster{}
	err := c.Objects.Get(In(ctx, name), types.NamespacedName{Name: corev1alpha1.LogicalClusterName}, cluster)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) { // 403 where there is no logical cluster of that name
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read logical cluster %q: %w", name, err)
	}
	return cluster, nil
}

func ends(cluster *corev1alpha1.LogicalCluster) bool {
	return cluster.DeletionTimestamp != nil || cluster.Status.Phase.Ends()
}
