// Package queue runs the workers of a controller: keys go in, a reconcile function is called for each, one call per
// key at a time, with back-off on errors. It is the only place where work is retried.
package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	firstBackoff = 20 * time.Millisecond
	lastBackoff  = 30 * time.Second

	// longest is how long a key waits at most, whatever was asked for: it cannot be taken out, and the object it names may be
	// gone. What is not due then says so, and waits again.
	longest = time.Hour
)

// Reconcile makes what a key names right. It is called again after the returned time, if that is > 0, and after a
// back-off of 20 ms to 30 s if it returns an error. A conflict is retried without being logged: somebody else wrote
// first, and the informer brings what. It may be called sooner than it asked for: after an hour at the latest. One that has not
// been able to begin returns Later.
type Reconcile[K comparable] func(ctx context.Context, key K) (again time.Duration, err error)

// Later is the error of a key whose turn has not come: it is called again then, and counts neither as a failure nor as a
// success, so that what fails again and again backs off all the same.
func Later(wait time.Duration) error { return later(wait) }

type later time.Duration

func (l later) Error() string { return fmt.Sprintf("its turn is in %s", time.Duration(l)) }

// Queue holds the keys that wait for one controller. A key added while it waits is handled once; added while it is
// handled, once more. Keys that are Tenanted are handled in turns.
type Queue[K comparable] struct {
	name      string
	reconcile Reconcile[K]
	keys      workqueue.TypedRateLimitingInterface[K]
}

// New returns a queue; name appears in logs and metrics.
func New[K comparable](name string, reconcile Reconcile[K]) *Queue[K] {
	return NewWithClock(name, clock.RealClock{}, reconcile)
}

// NewWithClock returns a queue whose delays and back-offs are those of clk. One without timers leaves them to real time.
func NewWithClock[K comparable](name string, clk clock.PassiveClock, reconcile Reconcile[K]) *Queue[K] {
	timers, ok := clk.(clock.WithTicker)
	if !ok {
		timers = clock.RealClock{}
	}
	return &Queue[K]{
		name:      name,
		reconcile: reconcile,
		keys: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[K](firstBackoff, lastBackoff),
			workqueue.TypedRateLimitingQueueConfig[K]{
				DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[K]{
					Name: name, Clock: timers,
					Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[K]{
						Name: name, Clock: timers, Queue: &tenants[K]{waiting: map[string][]K{}},
					}),
				}),
			}),
	}
}

// Add asks for key to be reconciled soon.
func (q *Queue[K]) Add(key K) { q.keys.Add(key) }

// AddAfter asks for key to be reconciled then, or after an hour. Of several such times the first counts.
func (q *Queue[K]) AddAfter(key K, then time.Duration) { q.keys.AddAfter(key, min(then, longest)) }

// Len is the number of keys that wait.
func (q *Queue[K]) Len() int { return q.keys.Len() }

// Run works on keys with that many workers until ctx ends, and returns when the last call has.
func (q *Queue[K]) Run(ctx context.Context, workers int) {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("controller", q.name))
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for q.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	q.keys.ShutDown()
	wg.Wait()
}

// Stop ends what a queue has running of its own even if it is never run, or does not get so far. Run ends it itself.
func (q *Queue[K]) Stop() { q.keys.ShutDown() }

func (q *Queue[K]) next(ctx context.Context) bool {
	key, stop := q.keys.Get()
	if stop {
		return false
	}
	defer q.keys.Done(key)
	again, err := q.reconcile(ctx, key)
	var wait later
	switch {
	case errors.As(err, &wait):
		q.AddAfter(key, time.Duration(wait))
	case err == nil:
		q.keys.Forget(key)
		if again > 0 {
			q.AddAfter(key, again)
		}
	case ctx.Err() != nil:
		// Stopping; whoever starts next lists everything again. What the error says is no sign of it: a request may have been
		// cancelled for reasons of its own.
	default:
		if !apierrors.IsConflict(err) {
			klog.FromContext(ctx).Error(err, "Reconcile failed, will try again", "key", key, "failures", q.keys.NumRequeues(key))
		}
		q.keys.AddRateLimited(key)
	}
	return true
}
