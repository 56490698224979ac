package splitter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
)

// What is done once may begin in a cluster just as it is taken away there: its syncer has it in hand already. Then the tombstone alone knows of that,
// and what comes after it would begin again, if nobody had looked. So it is kept until its root tells.

// leave makes a tombstone of a leaf that is to be elsewhere. One of what is done once is kept from then on, and has to be as it was seen until it is
// one: it has not begun.
func (c *Controller) leave(ctx context.Context, s *source, leaf ctrlclient.Object) error {
	if s.Begun == nil {
		return c.tombstone(ctx, s, leaf)
	}
	if !slices.Contains(leaf.GetFinalizers(), workloadv1alpha1.SplitterFinalizer) {
		var err error
		if leaf, err = c.setFinalizers(ctx, s, leaf, append(slices.Clone(leaf.GetFinalizers()), workloadv1alpha1.SplitterFinalizer)); err != nil {
			return err
		}
	}
	return c.tombstoneIf(ctx, s, leaf, ctrlclient.Preconditions{UID: ptr.To(leaf.GetUID()), ResourceVersion: ptr.To(leaf.GetResourceVersion())})
}

// forget lets those tombstones of a root go that nobody else keeps, of which there is nothing to tell any more. The root is read uncached.
func (c *Controller) forget(ctx context.Context, s *source, root client.Key, leaves []ctrlclient.Object) error {
	if s.Begun == nil {
		return nil
	}
	var errs []error
	for _, leaf := range leaves {
		if leaf.GetDeletionTimestamp() == nil || !slices.Equal(leaf.GetFinalizers(), []string{workloadv1alpha1.SplitterFinalizer}) {
			continue
		}
		told, err := c.isTold(ctx, s, root, leaf)
		if err == nil && told {
			_, err = c.setFinalizers(ctx, s, leaf, nil)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// isTold says that a tombstone has not begun, or that its root has ended, or that there is no root any more which could be begun again.
func (c *Controller) isTold(ctx context.Context, s *source, k client.Key, tombstone ctrlclient.Object) (bool, error) {
	if !s.HasBegun(tombstone) {
		return true, nil
	}
	root := s.New()
	err := c.clients.Objects.Get(client.In(ctx, k.Cluster), types.NamespacedName{Namespace: k.Namespace, Name: k.Name}, root)
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read %s %s before a tombstone of it goes: %w", s.GVK.Kind, k, err)
	case root.GetUID() != leafUID(tombstone) || root.GetDeletionTimestamp() != nil || s.HasEnded(root):
		return true, nil
	}
	return c.terminating(ctx, k.Cluster)
}

// setFinalizers writes those of a leaf that has not changed since it was seen, and returns it as it is then.
func (c *Controller) setFinalizers(ctx context.Context, s *source, leaf ctrlclient.Object, finalizers []string) (ctrlclient.Object, error) {
	want, lk := leaf.DeepCopyObject().(ctrlclient.Object), client.KeyOf(leaf)
	want.SetFinalizers(finalizers)
	err := c.clients.Objects.Patch(client.In(ctx, lk.Cluster), want, ctrlclient.MergeFromWithOptions(leaf, ctrlclient.MergeFromWithOptimisticLock{}))
	if ctrlclient.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("set the finalizers of leaf %s %s: %w", s.GVK.Kind, lk, err)
	}
	klog.FromContext(ctx).V(2).Info("Set the finalizers of a leaf", "kind", s.GVK.Kind, "leaf", lk.String(), "finalizers", finalizers)
	return want, nil
}
