package workspaces

import (
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
)

const byRootCluster = "workspaces.root-cluster"

// leafIndex counts the leaves of one kind that a logical cluster has in mirrors.
type leafIndex func(cluster logicalcluster.Name) int

// indexLeaves files the leaves in the shared informers by the logical cluster of their root, and calls gone with it when
// one is deleted.
func indexLeaves(i *client.Informers, gone func(logicalcluster.Name)) ([]leafIndex, error) {
	var indexes []leafIndex
	for _, add := range []func() (leafIndex, error){
		func() (leafIndex, error) { return indexLeavesOf(i.Namespaces, gone) },
		func() (leafIndex, error) { return indexLeavesOf(i.Deployments, gone) },
		func() (leafIndex, error) { return indexLeavesOf(i.Services, gone) },
		func() (leafIndex, error) { return indexLeavesOf(i.ConfigMaps, gone) },
		func() (leafIndex, error) { return indexLeavesOf(i.Secrets, gone) },
		func() (leafIndex, error) { return indexLeavesOf(i.ServiceAccounts, gone) },
	} {
		index, err := add()
		if err != nil {
			return nil, fmt.Errorf("index leaves by workspace: %w", err)
		}
		indexes = append(indexes, index)
	}
	return indexes, nil
}

func indexLeavesOf[T interface {
	ctrlclient.Object
	comparable
}](i *client.Informer[T], gone func(logicalcluster.Name)) (leafIndex, error) {
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
	return func(cluster logicalcluster.Name) int { return len(i.ByIndex(byRootCluster, string(cluster))) }, err
}
