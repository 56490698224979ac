package customresources

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

const (
	firstLook = 100 * time.Millisecond
	lastLook  = 30 * time.Second

	// lookTime is how long the objects of one definition are deleted before it is another one's turn.
	lookTime = 10 * time.Second
	// objectsPage is how many of them are in memory at once.
	objectsPage = 100
)

// end deletes the objects of a definition that is being deleted, and lets it go when there are none. Where some stay,
// because of finalizers of their own or because there are many, it returns when to look again. It has a queue of its own:
// how long it takes is up to the tenant, whose webhook may have to convert each object. Each server does it for every
// definition, at its own pace: one that is late finds another definition of the name, and leaves its objects alone.
func (r *reconciler) end(ctx context.Context, k key) (again time.Duration, err error) {
	def, ok := r.definitions.get(k.cluster, k.name)
	if !ok || def.DeletionTimestamp == nil || !slices.Contains(def.Finalizers, apiextensionsv1.CustomResourceCleanupFinalizer) {
		return 0, nil
	}
	if importing, err := r.importing(ctx, k.cluster); importing || err != nil {
		return 0, err // its objects may be on their way; endAll brings it back
	}
	if !r.beginEnd(k.cluster) {
		return firstLook, nil
	}
	defer r.endEnd(k.cluster)
	ctx = request.WithNamespace(lcctx.WithCluster(ctx, lcctx.Cluster{Name: k.cluster}), metav1.NamespaceNone)
	look, cancel := context.WithTimeout(ctx, r.lookTime)
	found, err := r.deleteObjects(look, def)
	late := ctx.Err() == nil && look.Err() != nil
	cancel()
	if errors.Is(err, errEnded) {
		return 0, nil
	}
	if late && err != nil { // the others' turn
		found, err = terminating(apiextensionsv1.ConditionTrue, "InstanceDeletionInProgress", "CustomResource deletion is in progress"), nil
	}
	if err == nil && found.Status == apiextensionsv1.ConditionFalse {
		// While the definition is there: another one of its name comes after it, and puts itself on record again.
		forgotten, err := r.forget(ctx, k.cluster, def)
		switch {
		case errors.Is(err, errEnded):
			return 0, nil
		case err != nil:
			return 0, fmt.Errorf("let CustomResourceDefinition %q of logical cluster %q go: %w", def.Name, k.cluster, err)
		case !forgotten:
			return firstLook, nil // it changed just then
		}
	}
	writeErr := r.write(ctx, def, func(current *Definition) (*Definition, error) {
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
	if late {
		return firstLook, nil
	}
	return nextLook(r.now().Sub(def.DeletionTimestamp.Time)), nil
}

// endAll ends the definitions of a logical cluster that are being deleted.
func (r *reconciler) endAll(cluster logicalcluster.Name) {
	for _, def := range r.definitions.of(cluster) {
		if def.DeletionTimestamp != nil {
			r.going.Add(keyOf(def))
		}
	}
}

// errEnded says that a definition is not being deleted any more: it is gone, and there may be another one of its name.
var errEnded = errors.New("the definition that is being deleted is gone")

// goingAt returns the revision of the last change of a definition that is being deleted, as etcd has it, or errEnded.
func (d *Definitions) goingAt(ctx context.Context, def *Definition) (int64, error) {
	revision, err := d.feed.rows.Revision(ctx, string(clusterOf(def)), "", def.Name)
	switch {
	case err != nil:
		return 0, err
	case revision == 0:
		return 0, errEnded
	case uint64(revision) == versionOf(def):
		return revision, nil // no need to decode it
	}
	current, err := d.feed.read(ctx, clusterOf(def), def.Name)
	if err != nil {
		return 0, err
	}
	if current == nil || current.UID != def.UID || current.DeletionTimestamp == nil {
		return 0, errEnded
	}
	return int64(versionOf(current)), nil
}

// forget takes the objects of a definition that is being deleted off the record, and says whether it did: not if the
// definition changed meanwhile.
func (r *reconciler) forget(ctx context.Context, cluster logicalcluster.Name, def *Definition) (bool, error) {
	revision, err := r.goingAt(ctx, def)
	if err != nil {
		return false, err
	}
	return r.rows.ForgetCustom(ctx, cluster, resourceOf(def), revision)
}

// beginEnd says whether one more definition of a logical cluster may be ended now, until endEnd.
func (r *reconciler) beginEnd(cluster logicalcluster.Name) bool {
	r.ending.Lock()
	defer r.ending.Unlock()
	if r.ending.of[cluster] >= endingAtOnce {
		return false
	}
	r.ending.of[cluster]++
	return true
}

func (r *reconciler) endEnd(cluster logicalcluster.Name) {
	r.ending.Lock()
	defer r.ending.Unlock()
	if r.ending.of[cluster]--; r.ending.of[cluster] == 0 {
		delete(r.ending.of, cluster)
	}
}

// nextLook is how long to wait before looking again whether objects are gone that have been awaited for so long: nobody
// tells of it, since objects of definitions have no cache.
func nextLook(awaited time.Duration) time.Duration {
	return min(max(awaited/4, firstLook), lastLook)
}

// terminating is the condition of that name.
func terminating(status apiextensionsv1.ConditionStatus, reason, message string) condition {
	return condition{Type: apiextensionsv1.Terminating, Status: status, Reason: reason, Message: message}
}

// deleteObjects asks for the deletion of all objects in the definition's logical cluster, and returns the condition
// Terminating: False once there are none. They are those under the name that is the definition's own, whatever the status
// says: objects may have been created by one that was not kept.
func (r *reconciler) deleteObjects(ctx context.Context, def *Definition) (condition, error) {
	failed := func(err error, message string) (condition, error) {
		return terminating(apiextensionsv1.ConditionTrue, "InstanceDeletionFailed", fmt.Sprintf("%s: %v", message, err)), err
	}
	if r.definitions.builtin.resource(def.Spec.Group, def.Spec.Names.Plural) {
		return terminating(apiextensionsv1.ConditionFalse, "OverlappingBuiltInResource", "instances overlap with built-in resources in storage"), nil
	}
	some, err := r.hasObjects(ctx, def)
	switch {
	case err != nil:
		return failed(err, "could not list instances")
	case !some && isTrue(def.Status.Conditions, apiextensionsv1.Established):
		return terminating(apiextensionsv1.ConditionFalse, "InstanceDeletionCompleted", "removed all instances"), nil
	case !some:
		return terminating(apiextensionsv1.ConditionFalse, "NeverEstablished", "resource was never established"), nil
	}
	status := def.Status
	status.AcceptedNames = def.Spec.Names
	named, err := def.withStatus(status)
	if err != nil {
		return failed(err, "could not list instances")
	}
	objects, done, err := r.objectsOf(named)
	if err != nil {
		return failed(err, "could not list instances")
	}
	defer done()
	err = deleteAll(ctx, objects, func() error {
		_, err := r.goingAt(ctx, def)
		return err
	})
	if err != nil {
		return failed(err, "could not issue all deletes")
	}
	if some, err = r.hasObjects(ctx, def); err != nil {
		return failed(err, "could not list instances")
	}
	if some {
		return terminating(apiextensionsv1.ConditionTrue, "InstanceDeletionInProgress", "CustomResource deletion is in progress"), nil
	}
	return terminating(apiextensionsv1.ConditionFalse, "InstanceDeletionCompleted", "removed all instances"), nil
}

// deletable are the objects of a definition.
type deletable interface {
	rest.Lister
	rest.GracefulDeleter
}

// deleteAll asks for the deletion of all objects in the logical cluster of ctx for which nobody has yet, page by page.
// going is asked after each page whether they are those of the definition that is being deleted, and its error ends it:
// what was listed before it was so is of no other definition, and only what was listed is deleted.
func deleteAll(ctx context.Context, objects deletable, going func() error) error {
	options := &metainternalversion.ListOptions{Limit: objectsPage}
	for {
		listed, err := objects.List(ctx, options)
		if err != nil {
			return err
		}
		page, ok := listed.(*unstructured.UnstructuredList)
		if !ok {
			return fmt.Errorf("list custom resources: got a %T", listed)
		}
		if err := going(); err != nil {
			return err
		}
		for _, item := range page.Items {
			if item.GetDeletionTimestamp() != nil {
				continue
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			_, _, err := objects.Delete(request.WithNamespace(ctx, item.GetNamespace()), item.GetName(), rest.ValidateAllObjectFunc,
				&metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(item.GetUID()))})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // gone, and maybe another came
				return err
			}
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}
