package placement

import (
	"context"
	"fmt"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
)

// live is the world as the server shows it.
type live struct {
	clients   *client.Clients
	informers *client.Informers
	kinds     []kind
}

var _ world = &live{}

func (l *live) LogicalCluster(name logicalcluster.Name) (*corev1alpha1.LogicalCluster, bool) {
	return l.informers.LogicalClusters.Get(client.Key{Cluster: name, Name: corev1alpha1.LogicalClusterName})
}

func (l *live) Namespace(key client.Key) (*corev1.Namespace, bool) {
	return l.informers.Namespaces.Get(key)
}

func (l *live) Roots(namespace client.Key) (follows []string, own []root) {
	for _, k := range l.kinds {
		if k.follows(namespace) {
			follows = append(follows, k.Carried())
		}
		for _, o := range k.own(namespace) {
			own = append(own, root{
				object:      placementv1alpha1.PlacedObject{Group: k.GVR.Group, Resource: k.GVR.Resource, Name: o.GetName()},
				source:      k.source(o.GetName()),
				annotations: o.GetAnnotations(),
			})
		}
	}
	if len(follows) > 0 {
		follows = append(follows, l.along(namespace)...)
	}
	return follows, own
}

// along returns the resources of what goes along with what runs in a namespace.
func (l *live) along(namespace client.Key) (resources []string) {
	for _, k := range l.informers.Kinds {
		if k.Goes == kinds.WithNamespace && len(k.List(namespace.Cluster, namespace.Name)) > 0 {
			resources = append(resources, k.GVR.GroupResource().String())
		}
	}
	return resources
}

func (l *live) Runs(namespace client.Key, object placementv1alpha1.PlacedObject, mirrors []string) bool {
	return slices.ContainsFunc(l.kinds, func(k kind) bool {
		return k.GVR.Group == object.Group && k.GVR.Resource == object.Resource &&
			k.runs(client.Key{Cluster: namespace.Cluster, Namespace: namespace.Name, Name: object.Name}, mirrors)
	})
}

// concerns says whether a namespace holds something to run or something that was placed.
func (l *live) concerns(namespace client.Key) bool {
	if len(l.Placements(namespace)) > 0 {
		return true
	}
	for _, k := range l.kinds {
		if k.holds(namespace) {
			return true
		}
	}
	return false
}

func (l *live) Placements(namespace client.Key) []*placementv1alpha1.Placement {
	return l.informers.Placements.ByIndex(byNamespace, namespace.String())
}

func (l *live) Policies(cluster logicalcluster.Name) []*placementv1alpha1.PlacementPolicy {
	return l.informers.PlacementPolicies.List(cluster, "")
}

func (l *live) SyncTargets(cluster logicalcluster.Name) []*workloadv1alpha1.SyncTarget {
	return l.informers.SyncTargets.List(cluster, "")
}

func (l *live) ReadWishes(ctx context.Context, key client.Key) (*corev1.Namespace, *corev1alpha1.LogicalCluster, error) {
	ctx = client.In(ctx, key.Cluster)
	ns, lc := &corev1.Namespace{}, &corev1alpha1.LogicalCluster{}
	if err := l.clients.Objects.Get(ctx, ctrlclient.ObjectKey{Name: key.Name}, ns); err != nil {
		return nil, nil, fmt.Errorf("read namespace %s: %w", key, err)
	}
	if err := l.clients.Objects.Get(ctx, ctrlclient.ObjectKey{Name: corev1alpha1.LogicalClusterName}, lc); err != nil {
		return nil, nil, fmt.Errorf("read LogicalCluster of %s: %w", key.Cluster, err)
	}
	return ns, lc, nil
}

func (l *live) ReadHolds(ctx context.Context, key client.Key) (holds, follows bool, err error) {
	for _, k := range l.kinds {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(k.GVK.GroupVersion().WithKind(k.GVK.Kind + "List"))
		if err := l.clients.Objects.List(client.In(ctx, key.Cluster), list, ctrlclient.InNamespace(key.Name)); err != nil {
			return false, false, fmt.Errorf("list %s in namespace %s: %w", k.GVR.Resource, key, err)
		}
		for i := range list.Items {
			o := &list.Items[i]
			if k.IsGiven(o.Namespace, o.Name) || !k.Holds(o) {
				continue
			}
			if holds = true; !placementv1alpha1.HasWish(o.Annotations) {
				return true, true, nil
			}
		}
	}
	return holds, false, nil
}

func (l *live) ReadOwnWish(ctx context.Context, key client.Key, object placementv1alpha1.PlacedObject) (map[string]string, error) {
	for _, k := range l.kinds {
		if k.GVR.Group != object.Group || k.GVR.Resource != object.Resource {
			continue
		}
		o := &metav1.PartialObjectMetadata{}
		o.SetGroupVersionKind(k.GVK)
		err := l.clients.Objects.Get(client.In(ctx, key.Cluster), ctrlclient.ObjectKey{Namespace: key.Name, Name: object.Name}, o)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read %s %q in namespace %s: %w", k.GVR.Resource, object.Name, key, err)
		}
		return o.Annotations, nil
	}
	return nil, nil
}

func (l *live) ReadSyncTarget(ctx context.Context, key client.Key, uid types.UID) (bool, error) {
	t := &workloadv1alpha1.SyncTarget{}
	err := l.clients.Objects.Get(client.In(ctx, key.Cluster), ctrlclient.ObjectKey{Name: key.Name}, t)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read SyncTarget %s: %w", key, err)
	}
	return t.UID == uid, nil
}

func (l *live) Create(ctx context.Context, cluster logicalcluster.Name, p *placementv1alpha1.Placement) error {
	return l.clients.Objects.Create(client.In(ctx, cluster), p)
}

func (l *live) Update(ctx context.Context, cluster logicalcluster.Name, p *placementv1alpha1.Placement) error {
	return l.clients.Objects.Update(client.In(ctx, cluster), p)
}

func (l *live) Delete(ctx context.Context, cluster logicalcluster.Name, p *placementv1alpha1.Placement) error {
	return l.clients.Objects.Delete(client.In(ctx, cluster), p, ctrlclient.Preconditions{UID: &p.UID})
}
