package client

import (
	"context"
	"fmt"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// Informers are the ones that the server's controllers share: one of a type, for all logical clusters and all controllers.
// Roots and leaves are of the same types and in the same informers: a leaf's logical cluster is a mirror.
type Informers struct {
	LogicalClusters   *Informer[*corev1alpha1.LogicalCluster]
	Workspaces        *Informer[*tenancyv1alpha1.Workspace]
	SyncTargets       *Informer[*workloadv1alpha1.SyncTarget]
	Placements        *Informer[*placementv1alpha1.Placement]
	PlacementPolicies *Informer[*placementv1alpha1.PlacementPolicy]
	Namespaces        *Informer[*corev1.Namespace]
	Deployments       *Informer[*appsv1.Deployment]
	Services          *Informer[*corev1.Service]
	ResourceQuotas    *Informer[*corev1.ResourceQuota]
	// Metadata only: their data is read when it is needed. What every namespace has by default (ConfigMap
	// kube-root-ca.crt, ServiceAccount default) is not held, so that an idle workspace costs nothing here.
	ConfigMaps      *Informer[*metav1.PartialObjectMetadata]
	Secrets         *Informer[*metav1.PartialObjectMetadata]
	ServiceAccounts *Informer[*metav1.PartialObjectMetadata]

	all []runnable
}

type runnable interface {
	Run(context.Context)
	WaitSynced(context.Context) error
}

// NewInformers returns the shared informers, not running yet.
func NewInformers(c *Clients) (*Informers, error) {
	i := &Informers{}
	metadata := func(version, kind string) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: version, Kind: kind}}
	}
	type meta = *metav1.PartialObjectMetadata
	for _, err := range []error{
		share(c, i, &i.LogicalClusters, &corev1alpha1.LogicalCluster{}, ""),
		share(c, i, &i.Workspaces, &tenancyv1alpha1.Workspace{}, ""),
		share(c, i, &i.SyncTargets, &workloadv1alpha1.SyncTarget{}, ""),
		share(c, i, &i.Placements, &placementv1alpha1.Placement{}, ""),
		share(c, i, &i.PlacementPolicies, &placementv1alpha1.PlacementPolicy{}, ""),
		share(c, i, &i.Namespaces, &corev1.Namespace{}, ""),
		share(c, i, &i.Deployments, &appsv1.Deployment{}, ""),
		share(c, i, &i.Services, &corev1.Service{}, ""),
		share(c, i, &i.ResourceQuotas, &corev1.ResourceQuota{}, ""),
		share[meta](c, i, &i.ConfigMaps, metadata("v1", "ConfigMap"), "metadata.name!=kube-root-ca.crt"),
		share[meta](c, i, &i.Secrets, metadata("v1", "Secret"), ""),
		share[meta](c, i, &i.ServiceAccounts, metadata("v1", "ServiceAccount"), "metadata.name!=default"),
	} {
		if err != nil {
			return nil, err
		}
	}
	return i, nil
}

func share[T object](c *Clients, all *Informers, field **Informer[T], example T, fields string) error {
	i, err := NewInformer(c, example, InformerOptions[T]{FieldSelector: fields})
	if err != nil {
		return err
	}
	*field = i
	all.all = append(all.all, i)
	return nil
}

// Run lists and watches everything until ctx ends.
func (i *Informers) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, informer := range i.all {
		wg.Go(func() { informer.Run(ctx) })
	}
	wg.Wait()
}

// WaitSynced blocks until every informer has its first list, or ctx ends.
func (i *Informers) WaitSynced(ctx context.Context) error {
	for _, informer := range i.all {
		if err := informer.WaitSynced(ctx); err != nil {
			return fmt.Errorf("start informers: %w", err)
		}
	}
	return nil
}
