package syncer

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// passing are what a cluster's own controllers, or what runs in it, keep for a while: nobody misses them with their namespace.
var passing = sets.New(
	schema.GroupResource{Resource: "events"},
	schema.GroupResource{Group: "events.k8s.io", Resource: "events"},
	schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"},
	schema.GroupResource{Resource: "endpoints"}, // of Services, which go just before
)

// inside returns what a downstream namespace of which no leaf is left holds apart from what every namespace has: orphans of
// ours, and objects of others, as "<resource> <name>", sorted. It reads everything that can be deleted there, from the API
// server, and fails if it cannot see all.
func (s *Syncer) inside(ctx context.Context, namespace string) ([]string, error) {
	lists, err := s.physical.kube.Discovery().ServerPreferredNamespacedResources()
	if err != nil {
		return nil, fmt.Errorf("ask for the resources: %w", err)
	}
	var resources []schema.GroupVersionResource
	namespaced := sets.New[schema.GroupKind]()
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("read the resources: %w", err)
		}
		for _, r := range list.APIResources {
			namespaced.Insert(gv.WithKind(r.Kind).GroupKind())
			gvr := gv.WithResource(r.Name)
			if slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "delete") && !passing.Has(gvr.GroupResource()) {
				resources = append(resources, gvr)
			}
		}
	}
	var contents []string
	for _, gvr := range resources {
		objects, err := s.listMetadata(ctx, gvr, namespace)
		if err != nil {
			return nil, err
		}
		var others []string
		for i := range objects {
			o := &objects[i]
			switch {
			case gvr.GroupResource() == networkPoliciesGVR.GroupResource() && o.Name == isolationPolicy:
			case goesByItself(o, namespaced):
			case o.Labels[workloadv1alpha1.SyncTargetLabel] == s.config.UID:
				contents = append(contents, gvr.Resource+" "+o.Name)
			default:
				others = append(others, o.Name)
			}
		}
		if len(others) == 0 {
			continue
		}
		// What the cluster puts into every namespace (a ServiceAccount, certificates) it has put into our own as well.
		furniture, err := s.listMetadata(ctx, gvr, workloadv1alpha1.HeartbeatNamespace)
		if err != nil {
			return nil, err
		}
		for _, name := range others {
			if !slices.ContainsFunc(furniture, func(o metav1.PartialObjectMetadata) bool { return o.Name == name }) {
				contents = append(contents, gvr.Resource+" "+name)
			}
		}
	}
	slices.Sort(contents)
	return contents, nil
}

// goesByItself says whether an object is being deleted, or belongs to another one in its namespace: that one is listed
// too, or its end takes this one along.
func goesByItself(o *metav1.PartialObjectMetadata, namespaced sets.Set[schema.GroupKind]) bool {
	return o.DeletionTimestamp != nil || slices.ContainsFunc(o.OwnerReferences, func(r metav1.OwnerReference) bool {
		return namespaced.Has(schema.FromAPIVersionAndKind(r.APIVersion, r.Kind).GroupKind())
	})
}

// listMetadata lists, from the API server, what a downstream namespace has of a resource; nothing if it is not served any more.
func (s *Syncer) listMetadata(ctx context.Context, gvr schema.GroupVersionResource, namespace string) ([]metav1.PartialObjectMetadata, error) {
	h := newHolding(s.room, nil)
	defer h.end(nil, false)
	var objects []metav1.PartialObjectMetadata
	open := s.physical.opener(gvr, namespace, "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json")
	_, err := readList(ctx, metav1.ListOptions{}, open, func(text []byte) error {
		if err := h.read(text); err != nil {
			return err
		}
		objects = append(objects, metav1.PartialObjectMetadata{})
		return json.Unmarshal(text, &objects[len(objects)-1])
	})
	switch {
	case gone(err), apierrors.IsMethodNotSupported(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list %s: %w", gvr.GroupResource(), err)
	}
	return objects, nil
}
