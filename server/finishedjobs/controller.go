package finishedjobs

import (
	"context"
	"fmt"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/queue"
)

const (
	// workers of the queue: a key is a read and a deletion. They are more than may wait for webhooks at once (server/admission).
	workers = 8
	// refused is when to try again what the workspace did not let go.
	refused = 10 * time.Minute
)

// Controller deletes the finished Jobs of all workspaces.
type Controller struct {
	clients   *client.Clients
	informers *client.Informers
	clock     clock.PassiveClock
	events    *client.Events
	feed      *client.Feed[*batchv1.Job]
	jobs      *queue.Queue[client.Key] // Jobs that are to go, when they are
}

// New returns the controller. Times are clk's, if it has timers.
func New(clients *client.Clients, informers *client.Informers, clk clock.PassiveClock) (*Controller, error) {
	c := &Controller{clients: clients, informers: informers, clock: clk, events: client.NewEvents(clients, "ttl-after-finished-controller", clk)} // as Kubernetes' is called
	c.jobs = queue.NewWithClock("finished-jobs", clk, c.remove)
	var err error
	c.feed, err = client.NewFeed(clients, &batchv1.Job{}, func(job *batchv1.Job, gone bool) {
		if ends, ok := expires(job); ok && !gone {
			c.jobs.AddAfter(client.KeyOf(job), ends.Sub(c.clock.Now()))
		}
	})
	return c, err
}

// Run waits for the informers and works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	defer c.jobs.Stop()
	if err := c.informers.WaitSynced(ctx); err != nil {
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() { c.feed.Run(ctx) })
	wg.Go(func() { c.jobs.Run(ctx, workers) })
	wg.Wait()
	return nil
}

// remove deletes a Job whose time has come.
func (c *Controller) remove(ctx context.Context, key client.Key) (time.Duration, error) {
	if is, err := client.InWorkspace(ctx, c.clients, c.informers, key.Cluster); !is || err != nil {
		return 0, err
	}
	jobs := c.clients.Kube.BatchV1().Jobs(key.Namespace)
	ctx = client.In(ctx, key.Cluster)
	job, err := jobs.Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read Job %s: %w", key, err)
	}
	ends, ok := expires(job)
	if !ok {
		return 0, nil
	}
	if left := ends.Sub(c.clock.Now()); left > 0 {
		return left, nil
	}
	foreground := metav1.DeletePropagationForeground
	err = c.clients.Kube.BatchV1().RESTClient().Delete().Namespace(key.Namespace).Resource("jobs").Name(key.Name).
		MaxRetries(0). // it would sleep here, in a worker that all workspaces share
		Body(&metav1.DeleteOptions{
			PropagationPolicy: &foreground,
			// Who has just given it more time, or another its name, is not too late.
			Preconditions: &metav1.Preconditions{UID: &job.UID, ResourceVersion: &job.ResourceVersion},
		}).Do(ctx).Error()
	if wait, held := client.Held(err); held && !client.Refuses(err) {
		return wait, nil
	}
	switch {
	case client.Theirs(err):
		c.events.Tell(ctx, job, corev1.EventTypeWarning, "FailedDelete", fmt.Sprintf("Its ttlSecondsAfterFinished have passed, and it cannot be deleted: %v", err))
		return refused, nil
	case err != nil && !apierrors.IsNotFound(err):
		return 0, fmt.Errorf("delete the finished Job %s: %w", key, err)
	}
	return 0, nil
}

// expires says when a Job is to be deleted, and whether it is at all: it has ended, and has a TTL.
func expires(job *batchv1.Job) (time.Time, bool) {
	if job.DeletionTimestamp != nil || job.Spec.TTLSecondsAfterFinished == nil {
		return time.Time{}, false
	}
	for _, c := range job.Status.Conditions {
		ended := c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed
		if ended && c.Status == corev1.ConditionTrue && !c.LastTransitionTime.IsZero() {
			return c.LastTransitionTime.Add(time.Duration(*job.Spec.TTLSecondsAfterFinished) * time.Second), true
		}
	}
	return time.Time{}, false
}
