package garbage

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"atoll.dev/atoll/client"
)

const (
	// soon is when something is looked at again that another request has overtaken.
	soon = time.Second
	// later is when what waits is, if nobody tells what became of what it waits for.
	later = 10 * time.Second
)

// look makes right what became of an object: it is deleted if it has no owner left. What waits for its dependents, or to be
// orphaned, needs lists of its whole logical cluster, and is left to sweep.
func (c *Collector) look(ctx context.Context, id identity) (again time.Duration, err error) {
	known, ok := c.graph.look(id)
	if !ok || known.gone {
		return 0, nil
	}
	switch lc, err := c.workspace(ctx, id.cluster); {
	case err != nil:
		return 0, err
	case lc == nil:
		// Nothing is collected there. It may have gone untold, and nobody else says so once its logical cluster has.
		c.enqueue(c.graph.end(id))
		return 0, nil
	case client.IsImporting(lc):
		c.postpone(id)
		return 0, nil
	}
	store, err := c.store(id.resource)
	if err != nil {
		return 0, err
	}
	if !known.seen {
		// Owners are in the graph only once something names them. One that the watch cache shows is enough: should it go, the
		// watch says so after this.
		if o, found, err := read(ctx, store, id, "0"); found && err == nil {
			c.enqueue(c.graph.update(o))
			if len(o.owners) == 0 && !o.waits() {
				return 0, nil
			}
		}
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
	case live.going && !live.orphan && live.foreground && c.blocked(id):
		return 0, nil
	case live.waits() && known.held:
		// Whoever changes what it waits for again and again has its logical cluster swept no more often than that.
		c.waiting.addAfter(id.cluster, id, gather)
		return 0, nil
	case live.waits():
		c.waiting.add(id.cluster, id)
		return 0, nil
	case live.going, len(live.owners) == 0:
		return 0, nil
	}
	return c.judge(ctx, live)
}

// judge asks for each owner of an object what became of it, and does with the object what follows.
func (c *Collector) judge(ctx context.Context, live object) (time.Duration, error) {
	known, ok := c.graph.look(live.identity)
	if ok && known.leftOut != notLeftOut {
		c.leftOut.addAfter(live.cluster, live.identity, gather)
		return 0, nil
	}
	if !ok || !slices.EqualFunc(known.owners, live.owners, func(o owner, ref metav1.OwnerReference) bool { return o.UID == ref.UID && o.Name == ref.Name }) {
		return soon, nil // the graph has heard of a later state
	}
	logger := klog.FromContext(ctx)
	states, revision := make([]state, len(live.owners)), live.revision
	for i, o := range known.owners {
		_, namespaced, served := c.kinds.Resource(live.cluster, schema.FromAPIVersionAndKind(o.APIVersion, o.Kind))
		now, _ := c.resolve(live.identity, o.OwnerReference)
		switch {
		case served && o.known && now != o.identity:
			// Its kind was defined anew since, in another scope or under another name.
			c.enqueue(c.graph.relink(live.identity))
			return soon, nil
		case !o.known:
			// It may exist and not be served now: nobody can tell. The graph brings the object back when other kinds are served.
			logger.V(2).Info("Object is kept, one of its owners is of a kind that is not served", "object", live.String(), "owner", o.OwnerReference.String())
			return 0, nil
		case served && namespaced && live.namespace == "":
			// No object can be meant by this, so that nothing follows from it, ever.
			c.tellWrongNamespace(live, o)
			return 0, nil
		}
		var changed uint64
		var err error
		if states[i], changed, err = c.stateOf(ctx, o); err != nil {
			return 0, fmt.Errorf("is an owner of %s there: %w", live, err)
		}
		revision = max(revision, changed)
		if states[i] == dangling && !o.seen {
			c.tellWrongNamespace(live, o)
		}
	}
	mayHaveDependents := known.dependents > 0 || known.incomplete
	if !mayHaveDependents && slices.Contains(states, waiting) {
		var err error
		if mayHaveDependents, err = c.mayHaveDependents(ctx, live.identity, revision); err != nil {
			return 0, err
		}
	}
	p := decide(live.owners, states, mayHaveDependents, known.foreground)
	switch {
	case len(p.release) > 0:
		logger.V(2).Info("Owners that go are taken off an object", "object", live.String(), "owners", p.release)
		return c.settle(c.setOwners(ctx, &live, without(live.owners, p.release)))
	case p.unblock:
		if err := c.setOwners(ctx, &live, unblocked(live.owners)); err != nil {
			return c.settle(err)
		}
	}
	if p.remove {
		logger.V(2).Info("Object is deleted, it has no owner left", "object", live.String(), "foreground", p.foreground)
		return c.settle(c.delete(ctx, live, p.foreground))
	}
	return 0, nil
}

// mayHaveDependents says whether anything names an object that the graph has, or may have: it does not have all of some
// resource that its logical cluster may have, at a revision or later.
func (c *Collector) mayHaveDependents(ctx context.Context, id identity, revision uint64) (bool, error) {
	resources, err := c.resourcesOf(ctx, id.cluster, revision)
	if err != nil {
		return false, fmt.Errorf("look for what %s owns: %w", id, err)
	}
	if !c.allListed(resources) {
		return true, nil
	}
	known, ok := c.graph.look(id) // after that, so that it has what there is
	return ok && (known.dependents > 0 || known.incomplete), nil
}

// stateOf reads an owner from etcd, and returns the revision of its last change: nothing is deleted because a cache does not
// show it.
func (c *Collector) stateOf(ctx context.Context, o owner) (_ state, revision uint64, _ error) {
	store, err := c.store(o.resource)
	if err != nil {
		return solid, 0, err
	}
	live, found, err := read(ctx, store, o.identity, "")
	switch {
	case err != nil:
		return solid, 0, err
	case !found:
		return dangling, 0, nil
	case live.going && live.foreground:
		return waiting, live.revision, nil
	}
	return solid, live.revision, nil
}

// settle is the end of a look that wrote: what is gone or changed meanwhile is looked at again.
func (c *Collector) settle(err error) (time.Duration, error) {
	if apierrors.IsNotFound(err) {
		return soon, nil
	}
	return 0, err
}
