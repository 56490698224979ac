package quota

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// changing are resources of which an object uses another amount after a change: pods end, Services change their type, and
// claims grow. Of all others an object is there or not.
var changing = map[schema.GroupResource]bool{{Resource: "pods"}: true, {Resource: "services"}: true, {Resource: "persistentvolumeclaims"}: true}

// watch asks for a count where objects of a resource are gone or use another amount, until ctx ends.
func (c *Controller) watch(ctx context.Context, resource schema.GroupResource) {
	for ctx.Err() == nil {
		if err := c.watchOnce(ctx, resource); err != nil {
			klog.FromContext(ctx).V(2).Info("A resource that is limited cannot be watched", "resource", resource, "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchAgain):
		}
	}
}

// watchOnce returns when the watch ends.
func (c *Controller) watchOnce(ctx context.Context, resource schema.GroupResource) error {
	events, err := c.stores.WatchEverywhere(ctx, resource)
	if err != nil {
		return err
	}
	defer events.Stop()
	// What happened before the watch began, or since the last one ended.
	c.recount(ctx, resource, c.informers.ResourceQuotas.All())
	for event := range events.ResultChan() {
		if event.Type == watch.Error {
			return apierrors.FromObject(event.Object)
		}
		if event.Type != watch.Deleted && (event.Type != watch.Modified || !changing[resource]) {
			continue
		}
		if object, err := meta.Accessor(event.Object); err == nil {
			c.recount(ctx, resource, c.informers.ResourceQuotas.List(lcctx.NameFrom(object), object.GetNamespace()))
		}
	}
	return nil
}

// recount asks for a count of those ResourceQuotas that limit a resource.
func (c *Controller) recount(ctx context.Context, resource schema.GroupResource, quotas []*corev1.ResourceQuota) {
	for _, q := range quotas {
		for _, e := range limited(q.Spec.Hard, c.evaluators(ctx, lcctx.NameFrom(q))) {
			if e.GroupResource() == resource {
				c.counts.Add(client.KeyOf(q))
			}
		}
	}
}
