package customresources

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

const (
	firstLook = 100 * time.Millisecond
	lastLook  = 30 * time.Second
)

// finalize deletes the objects of a definition that is being deleted, and lets it go when there are none. Where some stay,
// because of finalizers of their own, it returns when to look again.
func (r *reconciler) finalize(ctx context.Context, def *Definition) (again time.Duration, err error) {
	if !slices.Contains(def.Finalizers, apiextensionsv1.CustomResourceCleanupFinalizer) {
		return 0, nil
	}
	found, err := r.deleteObjects(ctx, def)
	writeErr := r.write(ctx, keyOf(def), func(current *Definition) (*Definition, error) {
		if current.UID != def.UID {
			return nil, nil
		}
		status := *current.Status.DeepCopy()
		status.Conditions = withCondition(status.Conditions, found, r.now())
		gone := found.Status == apiextensionsv1.ConditionFalse
		if !gone && sameStatus(status, current.Status) {
			return nil, nil
		}
		next, err := current.withStatus(status)
		if err == nil && gone {
			next.Finalizers = slices.DeleteFunc(slices.Clone(next.Finalizers), func(f string) bool {
				return f == apiextensionsv1.CustomResourceCleanupFinalizer
			})
		}
		return next, err
	})
	if err = errors.Join(err, writeErr); err != nil {
		return 0, fmt.Errorf("delete the objects of CustomResourceDefinition %q of logical cluster %q: %w", def.Name, clusterOf(def), err)
	}
	if found.Status == apiextensionsv1.ConditionFalse {
		return 0, nil
	}
	return nextLook(r.now().Sub(def.DeletionTimestamp.Time)), nil
}

// nextLook is how long to wait before looking again whether objects are gone that have been awaited for so long: nobody
// tells of it, since objects of definitions have no cache.
func nextLook(awaited time.Duration) time.Duration {
	return min(max(awaited/4, firstLook), lastLook)
}

// deleteObjects asks for the deletion of all objects in the definition's logical cluster, and returns the condition
// Terminating: False once there are none.
func (r *reconciler) deleteObjects(ctx context.Context, def *Definition) (condition, error) {
	terminating := func(status apiextensionsv1.ConditionStatus, reason, message string) condition {
		return condition{Type: apiextensionsv1.Terminating, Status: status, Reason: reason, Message: message}
	}
	failed := func(err error, message string) (condition, error) {
		return terminating(apiextensionsv1.ConditionTrue, "InstanceDeletionFailed", fmt.Sprintf("%s: %v", message, err)), err
	}
	switch {
	case !isTrue(def.Status.Conditions, apiextensionsv1.Established):
		return terminating(apiextensionsv1.ConditionFalse, "NeverEstablished", "resource was never established"), nil
	case !r.definitions.isServed(def):
		return terminating(apiextensionsv1.ConditionFalse, "OverlappingBuiltInResource", "instances overlap with built-in resources in storage"), nil
	}
	objects, done, err := r.objectsOf(def)
	if err != nil {
		return failed(err, "could not list instances")
	}
	defer done()
	list := func() ([]unstructured.Unstructured, error) {
		listed, err := objects.List(ctx, nil)
		if err != nil {
			return nil, err
		}
		return listed.(*unstructured.UnstructuredList).Items, nil
	}
	items, err := list()
	if err != nil {
		return failed(err, "could not list instances")
	}
	namespaces := sets.New[string]()
	for _, item := range items {
		if item.GetDeletionTimestamp() == nil {
			namespaces.Insert(item.GetNamespace())
		}
	}
	var errs []error
	for _, namespace := range sets.List(namespaces) {
		_, err := objects.DeleteCollection(request.WithNamespace(ctx, namespace), rest.ValidateAllObjectFunc, nil, nil)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return failed(err, "could not issue all deletes")
	}
	if namespaces.Len() > 0 {
		if items, err = list(); err != nil {
			return failed(err, "could not list instances")
		}
	}
	if len(items) > 0 {
		return terminating(apiextensionsv1.ConditionTrue, "InstanceDeletionInProgress", "CustomResource deletion is in progress"), nil
	}
	return terminating(apiextensionsv1.ConditionFalse, "InstanceDeletionCompleted", "removed all instances"), nil
}
