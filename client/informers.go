package client

import (
	"context"
	"fmt"
	"slices"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
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
	ResourceQuotas    *Informer[*corev1.ResourceQuota]
	// ReplicaSets are those of Deployments (kinds.IsRevision). They and ControllerRevisions are held without their content (kinds.WithoutContent).
	ReplicaSets         *Informer[*appsv1.ReplicaSet]
	ControllerRevisions *Informer[*appsv1.ControllerRevision]
	// Kinds are those of kinds.All, in its order.
	Kinds []KindInformer

	all []runnable
}

// KindInformer is the informer of one kind that goes down. Of what goes where it is referenced it holds metadata only
// (*metav1.PartialObjectMetadata): the data is read when it is needed. What every namespace is given is not held, so that an
// idle workspace costs nothing here. Of pods and ReplicaSets it holds the roots and leaves: those that clusters show, and the revisions of Deployments,
// are many, and nobody here needs them.
type KindInformer struct {
	kinds.Kind
	*Informer[ctrlclient.Object]
}

type runnable interface {
	Run(context.Context)
	WaitSynced(context.Context) error
}

// NewInformers returns the shared informers, not running yet.
func NewInformers(c *Clients) (*Informers, error) {
	i := &Informers{}
	for _, err := range []error{
		share(c, i, &i.LogicalClusters, &corev1alpha1.LogicalCluster{}, InformerOptions[*corev1alpha1.LogicalCluster]{Unlisted: true}),
		share(c, i, &i.Workspaces, &tenancyv1alpha1.Workspace{}, InformerOptions[*tenancyv1alpha1.Workspace]{}),
		share(c, i, &i.SyncTargets, &workloadv1alpha1.SyncTarget{}, InformerOptions[*workloadv1alpha1.SyncTarget]{}),
		share(c, i, &i.Placements, &placementv1alpha1.Placement{}, InformerOptions[*placementv1alpha1.Placement]{}),
		share(c, i, &i.PlacementPolicies, &placementv1alpha1.PlacementPolicy{}, InformerOptions[*placementv1alpha1.PlacementPolicy]{}),
		share(c, i, &i.Namespaces, &corev1.Namespace{}, InformerOptions[*corev1.Namespace]{}),
		share(c, i, &i.ResourceQuotas, &corev1.ResourceQuota{}, InformerOptions[*corev1.ResourceQuota]{}),
		share(c, i, &i.ReplicaSets, &appsv1.ReplicaSet{}, InformerOptions[*appsv1.ReplicaSet]{
			Transform: func(r *appsv1.ReplicaSet) { kinds.WithoutContent(r) },
			Keep:      func(r *appsv1.ReplicaSet) bool { return kinds.IsRevision(r) },
		}),
		share(c, i, &i.ControllerRevisions, &appsv1.ControllerRevision{}, InformerOptions[*appsv1.ControllerRevision]{
			Transform: func(r *appsv1.ControllerRevision) { kinds.WithoutContent(r) },
		}),
	} {
		if err != nil {
			return nil, err
		}
	}
	for _, k := range kinds.All {
		example, fields := k.New(), ""
		if k.Goes == kinds.WhereReferenced {
			example = &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: k.GVK.GroupVersion().String(), Kind: k.GVK.Kind}}
		}
		if k.Given.Name != "" && k.Given.Namespace == "" {
			fields = "metadata.name!=" + k.Given.Name
		}
		var keep func(ctrlclient.Object) bool
		if k.MadeBelow {
			keep = func(o ctrlclient.Object) bool { return k.Holds(o) }
		}
		informer := KindInformer{Kind: k}
		if err := share(c, i, &informer.Informer, example, InformerOptions[ctrlclient.Object]{FieldSelector: fields, Keep: keep}); err != nil {
			return nil, err
		}
		i.Kinds = append(i.Kinds, informer)
	}
	return i, nil
}

// Of returns the informer of a kind by its name, e.g. "Secret". A name that is not in kinds.All is a mistake of the programmer and
// panics.
func (i *Informers) Of(kind string) *Informer[ctrlclient.Object] {
	return i.Kinds[slices.IndexFunc(i.Kinds, func(k KindInformer) bool { return k.GVK.Kind == kind })].Informer
}

func share[T object](c *Clients, all *Informers, field **Informer[T], example T, opts InformerOptions[T]) error {
	i, err := NewInformer(c, example, opts)
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
