package garbage

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubestorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/metadata"

	"atoll.dev/atoll/client"
)

// manager is who writes, in managedFields and Events.
const manager = "garbage-collector"

// requests returns the client for an object. All writes are requests like everybody's, so that admission and the audit log
// see them.
func (c *Collector) requests(id identity) (metadata.ResourceInterface, error) {
	kind, ok := c.kinds.Kind(id.cluster, id.resource)
	if !ok {
		return nil, fmt.Errorf("%s: the resource is not served now", id)
	}
	objects := c.clients.Metadata.Resource(id.resource.WithVersion(kind.Version))
	if id.namespace == "" {
		return objects, nil
	}
	return objects.Namespace(id.namespace), nil
}

// delete deletes an object as it was read: somebody may have given it another owner since. If it changes all the time and
// its owners do not, it is deleted all the same. Where finalizers say what it waits for, they hold.
func (c *Collector) delete(ctx context.Context, live object, foreground bool) error {
	objects, err := c.requests(live.identity)
	if err != nil {
		return err
	}
	version := fmt.Sprint(live.revision)
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &live.uid, ResourceVersion: &version}}
	if foreground {
		policy := metav1.DeletePropagationForeground
		options.PropagationPolicy = &policy
	} else if !slices.Contains(live.finalizers, metav1.FinalizerOrphanDependents) && !slices.Contains(live.finalizers, metav1.FinalizerDeleteDependents) {
		policy := metav1.DeletePropagationBackground
		options.PropagationPolicy = &policy
	}
	ctx = client.In(ctx, live.cluster)
	err = objects.Delete(ctx, live.name, options)
	if apierrors.IsConflict(err) {
		now, found, readErr := c.read(ctx, live.identity)
		if readErr != nil || !found || !equality.Semantic.DeepEqual(now.owners, live.owners) {
			return err
		}
		options.Preconditions.ResourceVersion = nil
		err = objects.Delete(ctx, live.name, options)
	}
	if err != nil {
		return fmt.Errorf("delete %s: %w", live, err)
	}
	return nil
}

// setOwners replaces the references of an object as it was read, and takes over its new resourceVersion.
func (c *Collector) setOwners(ctx context.Context, live *object, owners []metav1.OwnerReference) error {
	if err := c.patch(ctx, live, map[string]any{"ownerReferences": owners}); err != nil {
		return err
	}
	live.owners = owners
	return nil
}

// removeFinalizer takes a finalizer off an object.
func (c *Collector) removeFinalizer(ctx context.Context, live object, finalizer string) error {
	kept := slices.DeleteFunc(slices.Clone(live.finalizers), func(f string) bool { return f == finalizer })
	return c.patch(ctx, &live, map[string]any{"finalizers": kept})
}

// patch changes the metadata of an object if it is still as it was read. A merge patch, unlike a strategic one, works for
// custom resources, too.
func (c *Collector) patch(ctx context.Context, live *object, change map[string]any) error {
	objects, err := c.requests(live.identity)
	if err != nil {
		return err
	}
	change["resourceVersion"] = fmt.Sprint(live.revision)
	body, err := json.Marshal(map[string]any{"metadata": change})
	if err != nil {
		return fmt.Errorf("patch %s: %w", live, err)
	}
	patched, err := objects.Patch(client.In(ctx, live.cluster), live.name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: manager})
	if err != nil {
		return fmt.Errorf("patch %s: %w", live, err)
	}
	live.revision, err = kubestorage.APIObjectVersioner{}.ParseResourceVersion(patched.ResourceVersion)
	return err
}
