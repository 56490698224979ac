package syncer

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

// passing are what a cluster's own controllers, or what runs in it, keep for a while: nobody misses them with their namespace.
var passing = sets.New(
	schema.GroupResource{Resource: "events"},
	schema.GroupResource{Group: "events.k8s.io", Resource: "events"},
	schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"},
	schema.GroupResource{Resource: "endpoints"}, // of Services, which go just before
)

// lookTimeout bounds one look into a namespace, which asks for all resources, one after the other.
const lookTimeout = 10 * time.Minute

// inside returns what a downstream namespace of which no leaf is left holds apart from what every namespace has: orphans of
// ours, and objects of others, as "<resource> <name>", sorted. It reads everything that can be deleted there, from the API
// server, and fails if it cannot see all.
func (s *Syncer) inside(ctx context.Context, namespace string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	c := &claim{room: s.room}
	defer c.free()
	resources, err := s.physical.kube.namespacedResources(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("ask for the resources: %w", err)
	}
	namespaced := sets.New[schema.GroupKind]()
	for _, r := range resources {
		namespaced.Insert(schema.GroupKind{Group: r.Group, Kind: r.kind})
	}
	var contents []string
	keep := func(resource, name string) error {
		contents = append(contents, resource+" "+name)
		return c.take(perObject + int64(len(resource)+len(name)))
	}
	for _, r := range resources {
		gvr := r.GroupVersionResource
		if !r.deletable || passing.Has(gvr.GroupResource()) {
			continue
		}
		others := sets.New[string]()
		err := s.listMetadata(ctx, c, gvr, namespace, func(o *unstructured.Unstructured) error {
			target, _, _ := unstructured.NestedString(o.Object, "metadata", "labels", workloadv1alpha1.SyncTargetLabel)
			switch name := o.GetName(); {
			case gvr.GroupResource() == networkPoliciesGVR.GroupResource() && isFloor(name):
			case gvr.GroupResource() == secretsGVR.GroupResource() && kinds.IsTokenSecret(name) && target == s.config.UID: // their tokens end by themselves
			case goesByItself(o, namespaced):
			case target == s.config.UID:
				return keep(gvr.Resource, name)
			default:
				others.Insert(name)
				return c.take(perObject + int64(len(name)))
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if len(others) == 0 {
			continue
		}
		// What the cluster puts into every namespace (a ServiceAccount, certificates) it has put into our own as well.
		err = s.listMetadata(ctx, c, gvr, workloadv1alpha1.HeartbeatNamespace, func(o *unstructured.Unstructured) error {
			others.Delete(o.GetName())
			return nil
		})
		if err != nil {
			return nil, err
		}
		for name := range others {
			if err := keep(gvr.Resource, name); err != nil {
				return nil, err
			}
		}
	}
	slices.Sort(contents)
	return contents, nil
}

// goesByItself says whether an object is being deleted, or belongs to another one in its namespace: that one is listed
// too, or its end takes this one along.
func goesByItself(o *unstructured.Unstructured, namespaced sets.Set[schema.GroupKind]) bool {
	field, _, _ := unstructured.NestedFieldNoCopy(o.Object, "metadata", "ownerReferences")
	owners, _ := field.([]any)
	return o.GetDeletionTimestamp() != nil || slices.ContainsFunc(owners, func(owner any) bool {
		reference, _ := owner.(map[string]any)
		apiVersion, _ := reference["apiVersion"].(string)
		kind, _ := reference["kind"].(string)
		return namespaced.Has(schema.FromAPIVersionAndKind(apiVersion, kind).GroupKind())
	})
}

// listMetadata lists, from the API server, what a downstream namespace has of a resource; nothing if it is not served any more.
func (s *Syncer) listMetadata(ctx context.Context, c *claim, gvr schema.GroupVersionResource, namespace string, use func(*unstructured.Unstructured) error) error {
	open := s.physical.opener(gvr, namespace, "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json")
	_, err := readList(ctx, metav1.ListOptions{}, open, "items", func(text []byte) error {
		var o unstructured.Unstructured
		return c.unpack(text, &o.Object, func() error { return use(&o) })
	})
	if err != nil && !gone(err) && !apierrors.IsMethodNotSupported(err) {
		return fmt.Errorf("list %s: %w", gvr.GroupResource(), err)
	}
	return nil
}

// namespacedResource is a resource in the version that a physical cluster prefers.
type namespacedResource struct {
	schema.GroupVersionResource
	kind string
	// deletable says whether its objects can be listed and deleted.
	deletable bool
}

// namespacedResources asks for all resources, one version of a group after the other, and takes what they need from c. The discovery
// client of client-go asks for all versions at once, as many as the cluster says that there are, and does not end with a context.
func (k kube) namespacedResources(ctx context.Context, c *claim) ([]namespacedResource, error) {
	versions := []schema.GroupVersion{corev1.SchemeGroupVersion}
	known := sets.New(versions...)
	err := k.each(ctx, "/apis", "groups", func(text []byte) error {
		type version struct {
			Version string `json:"version"`
		}
		var group struct {
			Name      string    `json:"name"`
			Preferred version   `json:"preferredVersion"`
			Versions  []version `json:"versions"`
		}
		return c.unpack(text, &group, func() error {
			for _, v := range append([]version{group.Preferred}, group.Versions...) {
				gv := schema.GroupVersion{Group: group.Name, Version: v.Version}
				if known.Has(gv) {
					continue
				}
				known.Insert(gv)
				if err := c.take(perObject + int64(len(gv.Group)+len(gv.Version))); err != nil {
					return err
				}
				versions = append(versions, gv)
			}
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	var resources []namespacedResource
	seen := sets.New[schema.GroupResource]()
	for _, gv := range versions {
		path := "/apis/" + gv.String()
		if gv.Group == "" {
			path = "/api/" + gv.Version
		}
		err := k.each(ctx, path, "resources", func(text []byte) error {
			var r struct {
				Name       string   `json:"name"`
				Kind       string   `json:"kind"`
				Namespaced bool     `json:"namespaced"`
				Verbs      []string `json:"verbs"`
			}
			return c.unpack(text, &r, func() error {
				gvr := gv.WithResource(r.Name)
				if !r.Namespaced || strings.Contains(r.Name, "/") || seen.Has(gvr.GroupResource()) {
					return nil
				}
				seen.Insert(gvr.GroupResource())
				resources = append(resources, namespacedResource{gvr, r.Kind, slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "delete")})
				return c.take(perObject + int64(len(r.Name)+len(r.Kind)))
			})
		})
		if err != nil {
			return nil, err
		}
	}
	return resources, nil
}

// each asks for a list that is no list of objects, and calls item with each in that field of it.
func (k kube) each(ctx context.Context, path, field string, item func(text []byte) error) error {
	_, err := readList(ctx, metav1.ListOptions{}, func(ctx context.Context, _ metav1.ListOptions) (io.ReadCloser, error) {
		return k.paths.Get().AbsPath(path).SetHeader("Accept", runtime.ContentTypeJSON).Stream(ctx)
	}, field, item)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}
