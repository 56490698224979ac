package garbage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"atoll.dev/atoll/client"
)

const (
	// together is how many objects of one logical cluster are let go at a time.
	together = 4
	// parallel is how many dependents of one of them are let go at a time.
	parallel = 16
)

// sweep lets objects of a logical cluster go that wait, as far as it can. They share one pass of lists: it costs as much for
// many as for one, and other logical clusters have their own turn.
func (c *Collector) sweep(ctx context.Context, cluster logicalcluster.Name, waiting []identity) (left []identity, again time.Duration, err error) {
	if lc, err := c.workspace(ctx, cluster); err != nil {
		return waiting, 0, err
	} else if lc == nil {
		return nil, 0, nil
	}
	// All of them were seen to be deleted before this, so that what they own is older than these lists.
	dependents, err := c.dependents(ctx, cluster, waiting)
	if err != nil {
		return waiting, 0, fmt.Errorf("look for what %d objects wait for: %w", len(waiting), err)
	}
	var mu sync.Mutex
	var failures []error
	var conflict error
	var group errgroup.Group
	group.SetLimit(together)
	for _, id := range waiting {
		group.Go(func() error {
			wait, err := c.letGo(ctx, id, dependents[id.uid])
			mu.Lock()
			defer mu.Unlock()
			switch {
			case apierrors.IsNotFound(err):
				again = soon // it is gone meanwhile, or what it owns is
			case apierrors.IsConflict(err):
				conflict = err
			case err != nil:
				failures = append(failures, err)
			case wait > 0 && again > 0:
				again = min(again, wait)
			case wait > 0:
				again = wait
			default:
				return nil
			}
			left = append(left, id)
			return nil
		})
	}
	_ = group.Wait() // the errors are in failures
	if len(failures) > 0 {
		return left, 0, errors.Join(failures...)
	}
	return left, again, conflict
}

// letGo lets an object go that waits, given what names it by its UID. It says when that has to be seen again, 0 if it has not.
func (c *Collector) letGo(ctx context.Context, id identity, dependents []*object) (wait time.Duration, err error) {
	store, err := c.store(id.resource)
	if err != nil {
		return 0, err
	}
	live, found, err := read(ctx, store, id, "")
	switch {
	case err != nil:
		return 0, err
	case !found:
		c.enqueue(c.graph.end(id))
		return 0, nil
	}
	c.enqueue(c.graph.update(live))
	switch {
	case live.going && live.orphan:
		return 0, c.orphan(ctx, live, dependents)
	case live.going && live.foreground:
		return c.waitForDependents(ctx, live, dependents)
	}
	return 0, nil
}

// blocked says whether the graph knows of objects that keep one from going. It then brings it back when they are gone.
func (c *Collector) blocked(id identity) bool {
	known, ok := c.graph.look(id)
	if !ok || !known.blocked {
		return false
	}
	c.enqueue(known.blockers)
	return true
}

// waitForDependents lets an object go that waits for its dependents once none is left that blocks it. The graph may be
// behind, so the stores have the last word.
func (c *Collector) waitForDependents(ctx context.Context, live object, dependents []*object) (wait time.Duration, err error) {
	held := false
	for _, d := range dependents {
		if d.identity == live.identity || !slices.ContainsFunc(d.owners, func(ref metav1.OwnerReference) bool { return c.names(d, ref, live.identity) && blocks(ref) }) {
			continue
		}
		c.enqueue(c.graph.see(*d))
		if known, ok := c.graph.look(d.identity); ok && known.leftOut != notLeftOut {
			switch {
			case held:
			case !c.follows(d.resource):
				wait = cmp.Or(wait, later) // nobody tells
			case c.graph.hold(live.identity, *d):
				held = true
				c.looks.Add(d.identity) // it may be gone since, and the watch past that
			default:
				wait = cmp.Or(wait, gather)
			}
			continue
		}
		wait = soon
		c.looks.Add(d.identity) // it may be gone since, and the watch past that
	}
	switch {
	case wait == 0 && !held:
		klog.FromContext(ctx).V(2).Info("Object goes, nothing that it owns is left", "object", live.String())
		return 0, c.removeFinalizer(ctx, live, metav1.FinalizerDeleteDependents)
	case c.blocked(live.identity), held:
		return 0, nil // the graph brings it back
	}
	return wait, nil
}

func (c *Collector) names(of *object, ref metav1.OwnerReference, id identity) bool {
	if ref.UID != id.uid {
		return false
	}
	named, ok := c.resolve(of.identity, ref)
	return ok && named == id
}

// orphan takes an object that is being deleted off the references of all that name it, and lets it go. What the stores did
// not show would be deleted with the object, against what its user wished.
func (c *Collector) orphan(ctx context.Context, live object, dependents []*object) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, dependent := range dependents {
		group.Go(func() error {
			d := *dependent // others may orphan it, too
			err := c.setOwners(groupCtx, &d, without(d.owners, []types.UID{live.uid}))
			if apierrors.IsConflict(err) {
				// It has changed since the list. That is no reason for another one.
				var found bool
				if d, found, err = c.read(groupCtx, d.identity); found && err == nil {
					err = c.setOwners(groupCtx, &d, without(d.owners, []types.UID{live.uid}))
				}
			}
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("Object goes without what it owned", "object", live.String(), "dependents", len(dependents))
	return c.removeFinalizer(ctx, live, metav1.FinalizerOrphanDependents)
}

// dependents reads from the stores all objects of a logical cluster that name one of the owners by its UID, whatever else
// they say of it, by that UID. Of which resources it may have objects etcd says: what is followed here is those that are known
// to be defined, by anybody. If one resource cannot be read there is no answer.
func (c *Collector) dependents(ctx context.Context, cluster logicalcluster.Name, owners []identity) (map[types.UID][]*object, error) {
	all := make(map[types.UID][]*object, len(owners))
	for _, owner := range owners {
		all[owner.uid] = nil
	}
	stores, err := c.kinds.Of(ctx, cluster)
	if err != nil {
		return nil, err
	}
	for _, store := range stores {
		_, err := each(client.In(ctx, cluster), store, "", func(m metav1.Object) {
			named := sets.Set[types.UID]{} // there may be many, and some of them more than once
			for _, ref := range m.GetOwnerReferences() {
				if _, ok := all[ref.UID]; ok {
					named.Insert(ref.UID)
				}
			}
			if len(named) == 0 {
				return
			}
			if o, ok := objectOf(store, m); ok {
				for uid := range named {
					all[uid] = append(all[uid], &o)
				}
			}
		})
		if err != nil {
			return nil, fmt.Errorf("list %s of logical cluster %q: %w", store.GroupResource, cluster, err)
		}
	}
	return all, nil
}
