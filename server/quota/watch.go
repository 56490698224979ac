package quota

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"atoll.dev/atoll/client"
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
	c.recount(c.limits.everywhere(resource, ""))
	for event := range events.ResultChan() {
		if event.Type == watch.Error {
			return apierrors.FromObject(event.Object)
		}
		if event.Type != watch.Deleted && (event.Type != watch.Modified || !changing[resource]) {
			continue
		}
		if object, err := meta.Accessor(event.Object); err == nil {
			c.recount(c.limits.in(client.KeyOf(object).Space(), resource))
		}
	}
	return nil
}

// recount asks for a count of ResourceQuotas.
func (c *Controller) recount(quotas []client.Key) {
	for _, q := range quotas {
		c.counts.Add(q)
	}
}

// watchLimited watches a resource if some ResourceQuota limits it, and else no longer.
func (c *Controller) watchLimited(ctx context.Context, resource schema.GroupResource) (time.Duration, error) {
	serves := func(name logicalcluster.Name) bool {
		if cluster, _ := c.stores.Known(name); cluster.Mirror {
			return false
		}
		served, _ := c.stores.Served(name, resource)
		return served
	}
	// Any of them will do, mostly: what is built in is served everywhere.
	wanted := slices.ContainsFunc(c.limits.clusters(resource, 1), serves) || slices.ContainsFunc(c.limits.clusters(resource, math.MaxInt), serves)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch stop := c.watched[resource]; {
	case wanted && stop == nil:
		ctx, c.watched[resource] = context.WithCancel(ctx)
		c.running.Go(func() { c.watch(ctx, resource) })
	case !wanted && stop != nil:
		stop()
		delete(c.watched, resource)
	}
	return 0, nil
}
