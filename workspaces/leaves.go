package workspaces

import (
	"errors"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

const byRootCluster = "workspaces.root-cluster"

// leafIndex returns the mirror of each leaf of one kind that a logical cluster has. What only calls itself a leaf, in a
// workspace where people label as they like, keeps nobody's workspace from going; what is in a logical cluster that is not
// known yet may be in a mirror, and counts.
type leafIndex func(cluster logicalcluster.Name) (mirrors []logicalcluster.Name)

// indexLeaves files the leaves in the shared informers by the logical cluster of their root, and calls gone with it when
// one is deleted.
func indexLeaves(i *client.Informers, gone func(logicalcluster.Name)) ([]leafIndex, error) {
	inWorkspace := func(o metav1.Object) bool {
		lc, ok := i.LogicalClusters.Get(clusterKey(lcctx.NameFrom(o)))
		return ok && lc.Spec.Use != corev1alpha1.LogicalClusterUseMirror
	}
	namespaces, err := indexLeavesOf(i.Namespaces, inWorkspace, gone)
	indexes := []leafIndex{namespaces}
	for _, kind := range i.Kinds {
		index, problem := indexLeavesOf(kind.Informer, inWorkspace, gone)
		indexes, err = append(indexes, index), errors.Join(err, problem)
	}
	if err != nil {
		return nil, fmt.Errorf("index leaves by workspace: %w", err)
	}
	return indexes, nil
}

func indexLeavesOf[T interface {
	ctrlclient.Object
	comparable
}](i *client.Informer[T], inWorkspace func(metav1.Object) bool, gone func(logicalcluster.Name)) (leafIndex, error) {
	root := func(leaf T) string { return leaf.GetLabels()[workloadv1alpha1.WorkspaceLabel] }
	i.OnEvent(func(e client.Event[T]) {
		if !e.Deleted() {
			return
		}
		if cluster := root(e.Old); cluster != "" {
			gone(logicalcluster.Name(cluster))
		}
	})
	err := i.AddIndex(byRootCluster, func(leaf T) []string {
		if cluster := root(leaf); cluster != "" {
			return []string{cluster}
		}
		return nil
	})
	return func(cluster logicalcluster.Name) (mirrors []logicalcluster.Name) {
		for _, leaf := range i.ByIndex(byRootCluster, string(cluster)) {
			if !inWorkspace(leaf) {
				mirrors = append(mirrors, lcctx.NameFrom(leaf))
			}
		}
		return mirrors
	}, err
}
