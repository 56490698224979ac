package cronjobs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/queue"
	"atoll.dev/atoll/internal/turns"
	"atoll.dev/atoll/server/storage"
)

const (
	// workers of the queue: a key is two reads, and a write or two when it is due. Many are due in the same second.
	workers = 8
	// atOnce is how many looks of a workspace there are at once at most, so that slow webhooks of one do not hold all workers, and
	// apart how far apart they begin at least. Those that are to come wait pause times as long as one has taken until it was
	// decided, mostWorked of it at most: that grows with the Jobs of its namespace, and the rest is writes, which wait for others.
	atOnce     = 2
	apart      = 5 * time.Millisecond
	pause      = 4
	mostWorked = 2 * time.Second
	// late is how long after its time a run is looked for, so that a clock that is a little behind does not wake for nothing;
	// Kubernetes' number.
	late = 100 * time.Millisecond
	// refused is when to try again what the workspace did not let in.
	refused = time.Minute
)

// lane is how the looks of a workspace follow each other.
var lane = turns.LaneRules{AtOnce: atOnce, Apart: apart, Pause: pause, MostWorked: mostWorked}

// Controller makes the Jobs of the CronJobs of all workspaces.
type Controller struct {
	clients   *client.Clients
	informers *client.Informers
	store     *storage.Resource // of Jobs
	clock     clock.PassiveClock
	events    *client.Events
	crons     *client.Feed[*batchv1.CronJob]
	jobs      *client.Feed[*metav1.PartialObjectMetadata]
	due       *queue.Queue[client.Key] // CronJobs
	lanes     *turns.Lanes[logicalcluster.Name, client.Key]

	mu   sync.Mutex // guards seen
	seen map[client.Key]seen
}

// seen is what is known of the schedule of a CronJob beyond what it says itself.
type seen struct {
	schedule string
	changed  time.Time // to this one from another, zero if nobody saw that
	said     event     // what was told last of what stays as it is
}

// New returns the controller. It reads Jobs from their store. Times are clk's, if it has timers.
func New(clients *client.Clients, informers *client.Informers, jobs *storage.Resource, clk clock.PassiveClock) (*Controller, error) {
	c := &Controller{clients: clients, informers: informers, store: jobs, clock: clk, events: client.NewEvents(clients, "cronjob-controller", clk), lanes: turns.NewLanes[logicalcluster.Name, client.Key](clk, lane), seen: map[client.Key]seen{}}
	c.due = queue.NewWithClock("cronjobs", clk, c.handle)
	var err error
	if c.crons, err = client.NewFeed(clients, &batchv1.CronJob{}, c.see); err != nil {
		return nil, err
	}
	kind := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job"}}
	c.jobs, err = client.NewFeed(clients, kind, func(job *metav1.PartialObjectMetadata, _ bool) {
		if owner := metav1.GetControllerOf(job); owner != nil && owner.Kind == "CronJob" {
			key := client.KeyOf(job)
			key.Name = owner.Name
			c.due.Add(key)
		}
	})
	return c, err
}

// Run waits for the informers and works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	defer c.due.Stop()
	if err := c.informers.WaitSynced(ctx); err != nil {
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() { c.crons.Run(ctx) })
	wg.Go(func() { c.jobs.Run(ctx) })
	wg.Go(func() { c.due.Run(ctx, workers) })
	wg.Wait()
	return nil
}

// see takes a CronJob that was written. Whoever changes a schedule from 3 to 4 o'clock at noon does not mean the 4 o'clock of
// this morning, which only who saw the change knows.
func (c *Controller) see(cron *batchv1.CronJob, gone bool) {
	key := client.KeyOf(cron)
	c.mu.Lock()
	defer c.mu.Unlock()
	if gone {
		delete(c.seen, key)
		return
	}
	before, known := c.seen[key]
	now := seen{schedule: cron.Spec.Schedule + " " + ptr.Deref(cron.Spec.TimeZone, ""), said: before.said}
	if known && before.schedule != now.schedule {
		now.changed = c.clock.Now()
	} else {
		now.changed = before.changed
	}
	c.seen[key] = now
	c.due.Add(key)
}

// changed is when the schedule of a CronJob was changed.
func (c *Controller) changed(key client.Key) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[key].changed
}

// isNews says whether something is not what was told last. What stays as it is would be told at each look.
func (c *Controller) isNews(key client.Key, e event) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	is, known := c.seen[key]
	if is.said == e {
		return false
	}
	if is.said = e; known { // else it is gone
		c.seen[key] = is
	}
	return true
}

// forget drops a CronJob of which nobody was told that it is gone.
func (c *Controller) forget(key client.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.seen, key)
}

// handle does what is due for a CronJob, in its turn.
func (c *Controller) handle(ctx context.Context, key client.Key) (time.Duration, error) {
	if wait := c.lanes.Turn(key.Cluster, key); wait > 0 {
		return 0, queue.Later(wait)
	}
	worked := time.Duration(0)
	defer func() { c.lanes.Done(key.Cluster, worked) }()
	if is, err := client.InWorkspace(ctx, c.clients, c.informers, key.Cluster); err != nil {
		return 0, err
	} else if !is {
		c.forget(key)
		return 0, nil
	}
	ctx = client.In(ctx, key.Cluster)
	began := c.clock.Now()
	cron, jobs, err := c.read(ctx, key)
	if cron == nil || err != nil {
		worked = c.clock.Since(began)
		return 0, err
	}
	now := c.clock.Now()
	decided := decide(cron, jobs, c.changed(key), now)
	worked = c.clock.Since(began)
	again, err := c.carryOut(ctx, cron, decided, now)
	if err != nil {
		return 0, fmt.Errorf("CronJob %s: %w", key, err)
	}
	return again, nil
}

// read returns a CronJob and the Jobs that it controls, nil if it is gone.
func (c *Controller) read(ctx context.Context, key client.Key) (*batchv1.CronJob, []*batchv1.Job, error) {
	// Before its Jobs: one that another makes meanwhile is then seen beside an old status, which cannot be written any more.
	cron, err := c.clients.Kube.BatchV1().CronJobs(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		c.forget(key)
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read CronJob %s: %w", key, err)
	}
	jobs, err := c.controlledBy(ctx, cron)
	if err != nil {
		return nil, nil, fmt.Errorf("list the Jobs of CronJob %s: %w", key, err)
	}
	return cron, jobs, nil
}

// carryOut does what was decided, and says when to look again.
func (c *Controller) carryOut(ctx context.Context, cron *batchv1.CronJob, decided decision, now time.Time) (again time.Duration, err error) {
	written, err := c.write(ctx, cron, decided.status)
	switch {
	case client.Theirs(err): // whom an Event has told
		return refused, nil
	case err != nil:
		return 0, err
	}
	cron = written
	for _, e := range decided.events {
		if e.reason != missed || c.isNews(client.KeyOf(cron), e) {
			c.tell(ctx, cron, e)
		}
	}
	if !decided.next.IsZero() {
		again = decided.next.Sub(now) + late
	}
	var failed error
	for _, job := range decided.remove {
		failed = errors.Join(failed, c.remove(ctx, cron, job))
	}
	if !decided.run.IsZero() {
		failed = errors.Join(failed, c.run(ctx, cron, decided))
	}
	if client.Theirs(failed) { // whom an Event has told
		return refused, nil
	}
	if wait, ok := client.Held(failed); ok {
		return wait, nil
	}
	return again, failed
}

// run makes the Job of a run, in the place of those that it replaces.
func (c *Controller) run(ctx context.Context, cron *batchv1.CronJob, decided decision) error {
	status := cron.Status.DeepCopy()
	for _, job := range decided.replace {
		if err := c.remove(ctx, cron, job); err != nil {
			return err
		}
		forget(status, job.UID)
	}
	job := &batchv1.Job{}
	err := c.clients.Kube.BatchV1().RESTClient().Post().Namespace(cron.Namespace).Resource("jobs").
		MaxRetries(0). // it would sleep here, in a worker that all workspaces share
		Body(jobOf(cron, decided.run)).Do(ctx).Into(job)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil // the CronJob goes as well
	}
	if apierrors.IsAlreadyExists(err) && !client.Denies(err) {
		return c.taken(ctx, cron, decided.run, err)
	}
	if err != nil {
		if _, ok := client.Held(err); !ok {
			c.tell(ctx, cron, event{corev1.EventTypeWarning, "FailedCreate", fmt.Sprintf("Error creating job: %v", err)})
		}
		return fmt.Errorf("create its Job %s: %w", jobName(cron, decided.run), err)
	}
	status.Active = append(status.Active, referTo(job))
	status.LastScheduleTime = &metav1.Time{Time: decided.run}
	c.tell(ctx, cron, event{corev1.EventTypeNormal, "SuccessfulCreate", "Created job " + job.Name})
	_, err = c.write(ctx, cron, *status)
	return err
}

// taken is what follows where the Job of a run cannot be made since there is one of its name. One that another made of the run
// meanwhile is seen at the next look. In the place of somebody else's there is no run, as in Kubernetes, which says nothing.
func (c *Controller) taken(ctx context.Context, cron *batchv1.CronJob, run time.Time, why error) error {
	name := jobName(cron, run)
	job, err := c.clients.Kube.BatchV1().Jobs(cron.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && metav1.IsControlledBy(job, cron):
		return apierrors.NewConflict(batchv1.Resource("jobs"), name, why)
	case err != nil:
		return fmt.Errorf("read the Job %s in the place of its own: %w", name, err)
	}
	if e := (event{corev1.EventTypeWarning, "FailedCreate", fmt.Sprintf("Error creating job: %v", why)}); c.isNews(client.KeyOf(cron), e) {
		c.tell(ctx, cron, e)
	}
	return nil
}

// write makes the status of a CronJob what it should be, if it is not. What its workspace does not let in is told to its people.
func (c *Controller) write(ctx context.Context, cron *batchv1.CronJob, status batchv1.CronJobStatus) (*batchv1.CronJob, error) {
	if equality.Semantic.DeepEqual(cron.Status, status) {
		return cron, nil
	}
	changed := cron.DeepCopy()
	changed.Status = status
	written, err := c.clients.Kube.BatchV1().CronJobs(cron.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if client.Theirs(err) {
		c.tell(ctx, cron, event{corev1.EventTypeWarning, "FailedUpdateStatus", fmt.Sprintf("Its status cannot be written: %v", err)})
	}
	if err != nil {
		return nil, fmt.Errorf("write its status: %w", err)
	}
	return written, nil
}

// remove deletes a Job with its pods.
func (c *Controller) remove(ctx context.Context, cron *batchv1.CronJob, job *batchv1.Job) error {
	background := metav1.DeletePropagationBackground
	err := c.clients.Kube.BatchV1().Jobs(job.Namespace).Delete(ctx, job.Name, metav1.DeleteOptions{
		PropagationPolicy: &background, Preconditions: &metav1.Preconditions{UID: &job.UID},
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		c.tell(ctx, cron, event{corev1.EventTypeWarning, "FailedDelete", fmt.Sprintf("Deleted job: %v", err)})
		return fmt.Errorf("delete its Job %s: %w", job.Name, err)
	}
	c.tell(ctx, cron, event{corev1.EventTypeNormal, "SuccessfulDelete", "Deleted job " + job.Name})
	return nil
}
