package workspaces

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/klog/v2"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

const (
	// firstLook to lastLook is how long a workspace rests in which finalizers hold something: nobody tells of every object
	// that goes, and a finalizer may never.
	firstLook = 100 * time.Millisecond
	lastLook  = 30 * time.Second
	// lookPart of the time is for looks at one workspace: each reads all there is, and where finalizers come and go all the
	// time there is something new each time. But longestRest is enough, whatever made a look slow.
	lookPart    = 20
	longestRest = 5 * time.Minute

	// workloadGrace is how long what finalizers hold is waited for before what the workspace runs in physical clusters goes:
	// the controllers that remove them may run there.
	workloadGrace = 30 * time.Second

	// askParallel is how many objects of one workspace are asked to go at a time, and askTime how long: each takes what a
	// workspace's own webhooks take. The rest are asked next time.
	askParallel = 16
	askTime     = 5 * time.Second
	// asking is how many of the workers may ask at a time, so that others are left to make workspaces, and askAgain how long
	// one more rests at most.
	asking   = workers / 4
	askAgain = time.Second
)

// wait is what is known of a Workspace in which finalizers hold something.
type wait struct {
	since time.Time
	held  lcctx.Held
	rest  time.Duration
}

// next is how long to rest after what was found now: the longer, the longer nothing has happened.
func (w *wait) next(found lcctx.Held) time.Duration {
	// Some may never be asked: nothing serves them, or their webhook is dead.
	same := maps.Equal(w.held.Objects, found.Objects) && maps.Equal(w.held.Finalizers, found.Finalizers) && slices.Equal(w.held.Unasked, found.Unasked)
	if w.held = found; !same || w.rest == 0 {
		w.rest = firstLook
	} else {
		w.rest = min(2*w.rest, lastLook)
	}
	return w.rest
}

// pause is how long to rest at least after a look that took so long, whatever it found.
func pause(took time.Duration) time.Duration { return min(lookPart*took, longestRest) }

// patient says whether what runs in physical clusters is left alone for the sake of what finalizers hold.
func (c *Controller) patient(w *tenancyv1alpha1.Workspace) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	known, ok := c.waits[client.KeyOf(w)]
	return !ok || time.Since(known.since) < workloadGrace
}

// rest notes what finalizers hold, and returns when to look again.
func (c *Controller) rest(w *tenancyv1alpha1.Workspace, found lcctx.Held) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := client.KeyOf(w)
	if c.waits[key] == nil {
		c.waits[key] = &wait{since: time.Now()}
	}
	return c.waits[key].next(found)
}

// forget forgets what was known of a Workspace that goes.
func (c *Controller) forget(key client.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waits, key)
}

// ask deletes what finalizers hold, object by object, as anybody would: whoever put the finalizers there sees it. It returns
// what is left, the finalizers of the LogicalCluster among it, and when to look again after a look that took so long.
func (c *Controller) ask(ctx context.Context, w *tenancyv1alpha1.Workspace, lc *corev1alpha1.LogicalCluster, held lcctx.Held, took time.Duration) (left remains, again time.Duration) {
	cluster := logicalcluster.Name(w.Spec.Cluster)
	if lc != nil && lc.DeletionTimestamp != nil { // else it has no such finalizer, or drop is told of it
		if foreign := slices.DeleteFunc(slices.Clone(lc.Finalizers), func(f string) bool { return !isForeign(f) }); len(foreign) > 0 {
			held.Add(lcctx.HeldObject{Resource: corev1alpha1.GroupVersion.WithResource("logicalclusters"), Name: lc.Name}, foreign, true)
		}
	}
	left.held = held
	if held.Empty() {
		return left, 0
	}
	again = max(c.rest(w, held), pause(took))
	if len(held.Unasked) == 0 {
		return left, again
	}
	select {
	case c.asks <- struct{}{}:
		defer func() { <-c.asks }()
	default:
		return left, min(again, max(askAgain, pause(took)))
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	errs := make([]error, len(held.Unasked))
	turn := make(chan struct{}, askParallel)
	var wg sync.WaitGroup
	for i, o := range held.Unasked {
		turn <- struct{}{}
		wg.Go(func() {
			defer func() { <-turn }()
			errs[i] = c.askOne(client.In(ctx, cluster), o)
		})
	}
	wg.Wait()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		// One that may be put right is enough at a time.
		left.refused = fmt.Sprintf("Some %s cannot be deleted: %s", held.Unasked[i].Resource.GroupResource(), reasonOf(errs[i]))
		klog.FromContext(ctx).V(2).Info("Cannot delete what finalizers hold", "cluster", cluster, "err", errs[i])
	}
	return left, again
}

// reasonOf is why something could not be asked to go, as those may know who see the Workspace, but not what is in it: no name
// and no text that is from inside.
func reasonOf(err error) string {
	switch reason := apierrors.ReasonForError(err); {
	case errors.Is(err, errUnserved):
		return errUnserved.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	case reason != metav1.StatusReasonUnknown:
		return string(reason)
	}
	return "no answer, or one that is none"
}

// errUnserved says that no request reaches an object.
var errUnserved = errors.New("the resource is defined but not served")

func (c *Controller) askOne(ctx context.Context, o lcctx.HeldObject) error {
	name := o.Name
	if o.Namespace != "" {
		name = o.Namespace + "/" + name
	}
	if o.Resource.Version == "" {
		return fmt.Errorf("%s %q: %w", o.Resource.GroupResource(), name, errUnserved)
	}
	var objects metadata.ResourceInterface = c.clients.Metadata.Resource(o.Resource)
	if o.Namespace != "" {
		objects = c.clients.Metadata.Resource(o.Resource).Namespace(o.Namespace)
	}
	background := metav1.DeletePropagationBackground
	options := metav1.DeleteOptions{PropagationPolicy: &background, Preconditions: &metav1.Preconditions{UID: &o.UID}}
	err := objects.Delete(ctx, o.Name, options)
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // or another has its name, and is seen next time
		return nil
	}
	return fmt.Errorf("%s %q cannot be deleted: %w", o.Resource.GroupResource(), name, err)
}

// isForeign says whether somebody else puts this finalizer on LogicalClusters.
func isForeign(finalizer string) bool { return finalizer != corev1alpha1.LogicalClusterFinalizer }

// announce deletes a LogicalCluster that others have finalizers on, so that they see it, and keeps it with one of our own
// until everything else is gone.
func (c *Controller) announce(ctx context.Context, cluster logicalcluster.Name, lc *corev1alpha1.LogicalCluster) error {
	ctx = client.In(ctx, cluster)
	if !slices.Contains(lc.Finalizers, corev1alpha1.LogicalClusterFinalizer) {
		lc.Finalizers = append(lc.Finalizers, corev1alpha1.LogicalClusterFinalizer)
		if err := c.clients.Objects.Update(ctx, lc); err != nil {
			return fmt.Errorf("keep logical cluster %q until it is empty: %w", cluster, err)
		}
	}
	if err := c.clients.Objects.Delete(ctx, lc, ctrlclient.Preconditions{UID: &lc.UID}); err != nil {
		return fmt.Errorf("announce the end of logical cluster %q: %w", cluster, err)
	}
	return c.see(ctx, cluster, func(lc *corev1alpha1.LogicalCluster) bool { return lc.DeletionTimestamp != nil })
}

// errHeld says that a LogicalCluster has got a finalizer that nobody has been told of.
var errHeld = errors.New("a finalizer came late")

// drop deletes an empty logical cluster's object, as it was seen: it may have got a finalizer since.
func (c *Controller) drop(ctx context.Context, cluster logicalcluster.Name, lc *corev1alpha1.LogicalCluster) error {
	ctx = client.In(ctx, cluster)
	var err error
	switch {
	case slices.ContainsFunc(lc.Finalizers, isForeign):
		err = errHeld
	case slices.Contains(lc.Finalizers, corev1alpha1.LogicalClusterFinalizer):
		lc.Finalizers = nil
		if err = c.clients.Objects.Update(ctx, lc); err == nil && lc.DeletionTimestamp == nil {
			err = c.clients.Objects.Delete(ctx, lc, ctrlclient.Preconditions{ResourceVersion: &lc.ResourceVersion})
		}
	default:
		err = c.clients.Objects.Delete(ctx, lc, ctrlclient.Preconditions{ResourceVersion: &lc.ResourceVersion})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete logical cluster %q: %w", cluster, err)
	}
	return nil
}
