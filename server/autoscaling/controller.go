package autoscaling

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/queue"
	"atoll.dev/atoll/internal/turns"
)

// workers of the queue: a key is some reads, of which that of metrics may take as long as a physical cluster does to answer, and a write or two when something changes.
const workers = 16

const (
	// atOnce is how many looks of a workspace there are at once at most: others have the other workers, however long its physical clusters take to answer.
	atOnce = 4
	// pace is how far apart looks of a workspace begin at least, so that however many it has, they do not take all of the server. One with more than 300 has each of
	// them looked at less often.
	pace = 50 * time.Millisecond
	// pause is how many times as long as a look has worked those of its workspace that are to come wait for it: one with looks of up to a second has a fifth of a worker.
	pause = 4
	// mostWorked is how much of it counts: what takes longer waits, as for an etcd that is away, and after that those that waited for it are the ones to look at.
	mostWorked = time.Second
	// longest is how long a look takes at most. It begins anew then.
	longest = 30 * time.Second
)

// Controller scales what the HorizontalPodAutoscalers of all workspaces are for.
type Controller struct {
	clients   *client.Clients
	informers *client.Informers
	clock     clock.PassiveClock
	events    *client.Events
	scalers   *client.Feed[*autoscalingv2.HorizontalPodAutoscaler]
	queue     *queue.Queue[client.Key]
	metrics   *readings
	lanes     *turns.Lanes[logicalcluster.Name, client.Key] // of looks

	mu sync.Mutex // guards what follows
	// known has the HorizontalPodAutoscalers.
	known client.ByNamespace[remembered]
}

// remembered is what is known of a HorizontalPodAutoscaler from one look to the next.
type remembered struct {
	uid      types.UID
	past     history
	selector *selector          // of the target's pods; nil as long as it was not read
	warned   map[string]warning // by reasons
	said     time.Time          // when its status was written
	again    bool               // it is looked at again since somebody has scaled the target
}

// New returns the controller. Times are clk's, if it has timers.
func New(clients *client.Clients, informers *client.Informers, clk clock.PassiveClock) (*Controller, error) {
	c := &Controller{
		clients: clients, informers: informers, clock: clk,
		known: client.ByNamespace[remembered]{}, lanes: newLanes(clk),
		events: client.NewEvents(clients, "horizontal-pod-autoscaler", clk), // as Kubernetes' is called in them
	}
	c.queue = queue.NewWithClock("autoscaling", clk, c.reconcile)
	c.metrics = newReadings(clk, c.usagesOf)
	if err := addIndexes(informers); err != nil {
		return nil, fmt.Errorf("add indexes: %w", err)
	}
	var err error
	c.scalers, err = client.NewFeed(clients, &autoscalingv2.HorizontalPodAutoscaler{}, c.see)
	return c, err
}

func newLanes(clk clock.PassiveClock) *turns.Lanes[logicalcluster.Name, client.Key] {
	return turns.NewLanes[logicalcluster.Name, client.Key](clk, turns.LaneRules{AtOnce: atOnce, Apart: pace, Pause: pause, MostWorked: mostWorked})
}

// Run waits for the informers and works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	defer c.queue.Stop()
	if err := c.informers.WaitSynced(ctx); err != nil {
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() { c.scalers.Run(ctx) })
	wg.Go(func() { c.queue.Run(ctx, workers) })
	wg.Wait()
	return nil
}

// see takes a HorizontalPodAutoscaler that was written. One that is new is looked at at once, so that it says soon what it can do; any other in its turn, however often it
// is written.
func (c *Controller) see(hpa *autoscalingv2.HorizontalPodAutoscaler, gone bool) {
	key := client.KeyOf(hpa)
	if gone {
		c.forget(key)
		return
	}
	now := c.clock.Now()
	if len(hpa.Status.Conditions) == 0 && now.Sub(hpa.CreationTimestamp.Time) < every {
		c.queue.Add(key)
		return
	}
	c.queue.AddAfter(key, next(key, now))
}

func (c *Controller) forget(key client.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known.Delete(key)
}

// recall is what is known of a HorizontalPodAutoscaler: of one that was made anew, nothing.
func (c *Controller) recall(key client.Key, uid types.UID) remembered {
	c.mu.Lock()
	defer c.mu.Unlock()
	if is := c.known.In(key)[key.Name]; is.uid == uid {
		return is
	}
	return remembered{uid: uid}
}

func (c *Controller) remember(key client.Key, is remembered) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known.Put(key, is)
}

// others are all others of the namespace whose pods are known.
func (c *Controller) others(key client.Key) (others []rival) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, is := range c.known.In(key) {
		if name != key.Name && is.selector != nil {
			others = append(others, rival{name, is.selector})
		}
	}
	return others
}

// selectorOf reads the selector of a scale, unless it is what was known, or another of the namespace has the same: it is long, read, and kept.
func (c *Controller) selectorOf(key client.Key, known *selector, text string) (*selector, *badSelector) {
	if known != nil && known.text == text {
		return known, nil
	}
	for _, other := range c.others(key) {
		if other.selector.text == text {
			return other.selector, nil
		}
	}
	return readSelector(text)
}

// reconcile looks at a HorizontalPodAutoscaler.
func (c *Controller) reconcile(ctx context.Context, key client.Key) (time.Duration, error) {
	c.metrics.sweep() // also for one that is gone: nothing is left of the last
	if wait := c.lanes.Turn(key.Cluster, key); wait > 0 {
		return 0, queue.Later(wait)
	}
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	began, idle := c.clock.Now(), time.Duration(0)
	defer func() { c.lanes.Done(key.Cluster, c.clock.Now().Sub(began)-idle) }()
	is, err := client.InWorkspace(ctx, c.clients, c.informers, key.Cluster)
	if err != nil {
		return 0, err
	}
	if !is {
		c.forget(key)
		return 0, nil
	}
	importing, err := client.Importing(ctx, c.clients, c.informers, key.Cluster)
	if err != nil {
		return 0, err
	}
	if !importing { // else its target may not be there yet
		ctx = client.In(ctx, key.Cluster)
		hpa, err := c.clients.Kube.AutoscalingV2().HorizontalPodAutoscalers(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			c.forget(key) // a feed does not tell of what was deleted while it did not watch
			return 0, nil
		}
		if err != nil {
			return 0, fmt.Errorf("read HorizontalPodAutoscaler %s: %w", key, err)
		}
		if err := c.scale(ctx, key, hpa, &idle); errors.Is(err, errRescaled) {
			return time.Millisecond, nil
		} else if err != nil {
			return 0, err
		}
	}
	return next(key, c.clock.Now()), nil
}

// scale has the target of a HorizontalPodAutoscaler have as many replicas as it is to, and says so in its status. For how long it has waited for physical clusters it adds to idle.
func (c *Controller) scale(ctx context.Context, key client.Key, hpa *autoscalingv2.HorizontalPodAutoscaler, idle *time.Duration) error {
	known := c.recall(key, hpa.UID)
	var f facts
	to, err := c.targetOf(ctx, hpa)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		f.err, known.selector = err, nil // it selects nothing that is known
	default:
		if f, err = c.look(ctx, key, hpa, to, &known, idle); err != nil {
			return err
		}
	}
	o := decide(hpa, f, known.past, c.clock.Now())
	if o.rescale {
		err := c.rescale(ctx, to, f.replicas, o.replicas)
		if ended := ctx.Err(); ended != nil {
			if err == nil { // what was written counts, though nobody can be told
				o.written(hpa, f.replicas, nil, c.clock.Now())
				known.past, known.again = o.past, false
				c.remember(key, known)
			}
			return ended
		}
		if errors.Is(err, errRescaled) && !known.again { // once: somebody may do so at every look
			known.again = true
			c.remember(key, known)
			return err
		}
		o.written(hpa, f.replicas, err, c.clock.Now())
		if err == nil {
			klog.FromContext(ctx).V(2).Info("Scaled", "horizontalPodAutoscaler", key, "from", f.replicas, "to", o.replicas, "reason", o.why)
		}
	}
	known.past, known.again = o.past, false
	now := c.clock.Now()
	var tell []event
	tell, known.warned = news(o.events, known.warned, now)
	write := worthWriting(&hpa.Status, &o.status, known.said, now)
	c.remember(key, known)
	c.tell(ctx, hpa, tell)
	if !write {
		return nil
	}
	switch err = c.say(ctx, hpa, &o.status); {
	case err == nil:
		known.said = now
		c.remember(key, known)
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	// The next look writes it anyway, and somebody may refuse each.
	tell, known.warned = news([]event{{corev1.EventTypeWarning, "FailedUpdateStatus", err.Error()}}, known.warned, now)
	c.remember(key, known)
	c.tell(ctx, hpa, tell)
	return nil
}

// tell tells of a HorizontalPodAutoscaler.
func (c *Controller) tell(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler, events []event) {
	for _, e := range events {
		c.events.Tell(ctx, hpa, e.kind, e.reason, e.message)
	}
}

// look reads what a decision is made by, and remembers the selector. What cannot be read of pods and of what they use is a fact.
func (c *Controller) look(ctx context.Context, key client.Key, hpa *autoscalingv2.HorizontalPodAutoscaler, to *target, known *remembered, idle *time.Duration) (facts, error) {
	f := facts{replicas: to.scale.Spec.Replicas, selector: to.scale.Status.Selector}
	known.selector, f.bad = c.selectorOf(key, known.selector, f.selector)
	if f.bad != nil || !measured(hpa, f.replicas) {
		return f, nil
	}
	c.remember(key, *known) // for the others of the namespace, which look at the same time
	f.asked = askedBy(hpa.Spec.Metrics)
	f.pods, f.rivals, f.podsErr = c.podsOf(ctx, key, known.selector, &f.asked)
	f.used, f.usedErr = c.metrics.of(ctx, key.Space(), idle)
	f.each, f.reports = c.placementOf(key, to)
	return f, ctx.Err()
}

// errRescaled is that somebody else has scaled a target meanwhile: all is to be looked at again.
var errRescaled = errors.New("the target was scaled meanwhile")

// rescale writes the scale of a target that had so many replicas. Its status changes all the time, which is no matter here. One that was made anew is another.
func (c *Controller) rescale(ctx context.Context, to *target, from, replicas int32) error {
	uid := to.scale.UID
	return onConflict(func() error {
		if err := c.read(ctx, to); err != nil {
			return err
		}
		if to.scale.Spec.Replicas != from || to.scale.UID != uid {
			return errRescaled
		}
		return c.write(ctx, to, replicas)
	})
}

// say writes a status.
func (c *Controller) say(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler, status *autoscalingv2.HorizontalPodAutoscalerStatus) error {
	all := c.clients.Kube.AutoscalingV2().HorizontalPodAutoscalers(hpa.Namespace)
	uid := hpa.UID
	err := onConflict(func() error {
		hpa.Status = *status
		_, err := all.UpdateStatus(ctx, hpa, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) { // somebody has changed what it is for; what was done is said all the same
			now, problem := all.Get(ctx, hpa.Name, metav1.GetOptions{})
			if problem != nil {
				return problem
			}
			if now.UID != uid {
				return nil
			}
			hpa = now
		}
		return err
	})
	return ctrlclient.IgnoreNotFound(err)
}

// onConflict does something again if what it writes was changed meanwhile, as retry.RetryOnConflict does, which hides that a context has ended.
func onConflict(do func() error) (last error) {
	_ = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		last = do()
		return last
	})
	return last
}
