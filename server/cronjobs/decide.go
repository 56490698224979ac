package cronjobs

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/util/parsers"
	"k8s.io/utils/ptr"
)

// tooMany missed runs are told of: a clock or a deadline is wrong, rather than a server away. The number is Kubernetes'.
const tooMany = 100

// missed is the reason of the Event that says that a run was not made in time.
const missed = "MissSchedule"

// decision is what follows for a CronJob from its Jobs and the time.
type decision struct {
	// status counts the Jobs that are there. It is written before anything else is done.
	status batchv1.CronJobStatus
	events []event
	// remove are Jobs that are more than the history holds, replace those that go before the run.
	remove, replace []*batchv1.Job
	// run is the time of the run to make a Job of, zero if there is none.
	run time.Time
	// next is when to look again, zero if time alone changes nothing.
	next time.Time
}

// event is what is told about a CronJob. Reasons and messages are those of Kubernetes.
type event struct{ kind, reason, message string }

func (d *decision) tell(reason, format string, args ...any) {
	d.events = append(d.events, event{corev1.EventTypeNormal, reason, fmt.Sprintf(format, args...)})
}

func (d *decision) warn(reason, format string, args ...any) {
	d.events = append(d.events, event{corev1.EventTypeWarning, reason, fmt.Sprintf(format, args...)})
}

// decide says what to do for a CronJob at a time. jobs are those that it controls, in the order of their names. No run is made
// up for that was due before changed, when the schedule was another.
func decide(c *batchv1.CronJob, jobs []*batchv1.Job, changed, now time.Time) decision {
	var d decision
	d.observe(c, jobs)
	d.shorten(jobs, batchv1.JobComplete, c.Spec.SuccessfulJobsHistoryLimit)
	d.shorten(jobs, batchv1.JobFailed, c.Spec.FailedJobsHistoryLimit)
	if c.DeletionTimestamp == nil && !ptr.Deref(c.Spec.Suspend, false) {
		d.schedule(c, jobs, changed, now)
	}
	if d.next.IsZero() && len(d.status.Active) > 0 {
		d.next = now.Add(time.Hour) // that one went may have been missed
	}
	return d
}

// observe makes the status of the one that is there and of the Jobs.
func (d *decision) observe(c *batchv1.CronJob, jobs []*batchv1.Job) {
	c.Status.DeepCopyInto(&d.status)
	there := map[types.UID]bool{}
	for _, job := range jobs {
		there[job.UID] = true
		at, made := scheduledFor(c, job)
		known := isActive(c.Status.Active, job.UID)
		if made && !known && (d.status.LastScheduleTime == nil || at.After(d.status.LastScheduleTime.Time)) {
			// Who made it stopped before he wrote so.
			d.status.LastScheduleTime = &metav1.Time{Time: at}
			d.tell("SuccessfulCreate", "Created job %v", job.Name)
		}
		ended := endOf(job)
		switch {
		case ended != "" && known:
			d.tell("SawCompletedJob", "Saw completed job: %s, condition: %v", job.Name, ended)
			forget(&d.status, job.UID)
		case ended == "" && !known && job.DeletionTimestamp == nil && made:
			d.status.Active = append(d.status.Active, referTo(job))
		case ended == "" && !known && job.DeletionTimestamp == nil:
			d.warn("UnexpectedJob", "Saw a job that the controller did not create or forgot: %s", job.Name)
		}
		if done := job.Status.CompletionTime; ended == batchv1.JobComplete && done != nil &&
			(d.status.LastSuccessfulTime == nil || done.After(d.status.LastSuccessfulTime.Time)) {
			d.status.LastSuccessfulTime = done
		}
	}
	for _, ref := range c.Status.Active {
		if !there[ref.UID] {
			d.tell("MissingJob", "Active job went missing: %v", ref.Name)
			forget(&d.status, ref.UID)
		}
	}
}

// shorten removes the oldest Jobs that ended in one way and are more than limit.
func (d *decision) shorten(jobs []*batchv1.Job, ended batchv1.JobConditionType, limit *int32) {
	if limit == nil {
		return
	}
	var all []*batchv1.Job
	for _, job := range jobs {
		if endOf(job) == ended && job.DeletionTimestamp == nil {
			all = append(all, job)
		}
	}
	slices.SortStableFunc(all, func(a, b *batchv1.Job) int { return began(a).Compare(began(b)) })
	if more := len(all) - int(*limit); more > 0 {
		d.remove = append(d.remove, all[:more]...)
	}
}

func began(job *batchv1.Job) time.Time {
	return ptr.Deref(job.Status.StartTime, job.CreationTimestamp).Time
}

// schedule decides whether a run is due.
func (d *decision) schedule(c *batchv1.CronJob, jobs []*batchv1.Job, changed, now time.Time) {
	zone, err := time.LoadLocation(ptr.Deref(c.Spec.TimeZone, "")) // UTC, if it is empty
	if err != nil {
		d.warn("UnknownTimeZone", "invalid timeZone: %q: %s", *c.Spec.TimeZone, err)
		return
	}
	if strings.Contains(c.Spec.Schedule, "TZ") { // of before it was refused
		d.warn("UnsupportedSchedule", "CRON_TZ or TZ used in schedule %q is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details", c.Spec.Schedule)
	}
	schedule, err := parsers.ParseCronScheduleWithPanicRecovery(c.Spec.Schedule)
	if err != nil {
		d.warn("UnparseableSchedule", "unparseable schedule: %q : %s", c.Spec.Schedule, err)
		return
	}
	since := c.CreationTimestamp.Time
	if last := d.status.LastScheduleTime; last != nil {
		since = last.Time
	}
	if changed.After(since) {
		since = changed
	}
	since, now = since.In(zone), now.In(zone)
	var last time.Time
	if last, d.next = around(schedule, since, now); last.IsZero() {
		if d.next.IsZero() {
			d.warn("InvalidSchedule", "invalid schedule: %s : no time fits it", c.Spec.Schedule)
		}
		return
	}
	earliest := since
	if deadline := c.Spec.StartingDeadlineSeconds; deadline != nil {
		if begin := now.Add(-time.Duration(*deadline) * time.Second); begin.After(since) {
			earliest = begin
		}
	}
	switch name := jobName(c, last); {
	case last.Before(earliest):
		d.warn(missed, "Missed scheduled time to start a job: %s", last.UTC().Format(time.RFC1123Z))
		return
	case slices.ContainsFunc(jobs, func(job *batchv1.Job) bool { return job.Name == name }),
		d.status.LastScheduleTime != nil && jobName(c, d.status.LastScheduleTime.Time) == name:
		d.waitForMinuteAfter(last) // schedules may be finer
		return
	case c.Spec.ConcurrencyPolicy == batchv1.ForbidConcurrent && len(d.status.Active) > 0:
		d.tell("JobAlreadyActive", "Not starting job because prior execution is running and concurrency policy is Forbid")
		d.waitForMinuteAfter(last) // or for the end of that one, which is heard of
		return
	case c.Spec.ConcurrencyPolicy == batchv1.ReplaceConcurrent:
		for _, job := range jobs {
			if isActive(d.status.Active, job.UID) {
				d.replace = append(d.replace, job)
			}
		}
	}
	if isMore(schedule, earliest, now, tooMany) {
		d.warn("TooManyMissedTimes", "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew")
	}
	d.run = last
	d.waitForMinuteAfter(last)
}

// waitForMinuteAfter puts off the next look to the first minute that may have a Job again: one every second for each CronJob
// that has such a schedule would keep the workers from others.
func (d *decision) waitForMinuteAfter(run time.Time) {
	if minute := run.Truncate(time.Minute).Add(time.Minute); !d.next.IsZero() && d.next.Before(minute) {
		d.next = minute
	}
}

// around returns the last time of a schedule after since that is not after now, and the first after both; each zero if there is
// none.
func around(schedule cron.Schedule, since, now time.Time) (last, next time.Time) {
	if since.After(now) { // a clock that was set back
		return time.Time{}, schedule.Next(since)
	}
	if every, ok := schedule.(cron.ConstantDelaySchedule); ok { // whose times follow each other, not the clock
		n := now.Sub(since) / every.Delay
		if n > 0 {
			last = since.Add(n * every.Delay)
		}
		return last, since.Add((n + 1) * every.Delay)
	}
	// The times of any other are whole minutes that do not depend on where one begins: the last one is what follows the last
	// second that now does not come before.
	over := sort.Search(int(now.Sub(since)/time.Second)+1, func(n int) bool {
		next := schedule.Next(since.Add(time.Duration(n) * time.Second))
		return next.IsZero() || next.After(now)
	})
	if over > 0 {
		last = schedule.Next(since.Add(time.Duration(over-1) * time.Second))
	}
	return last, schedule.Next(now)
}

// isMore says whether a schedule has more than n times after since that are not after now.
func isMore(schedule cron.Schedule, since, now time.Time, n int) bool {
	at := since
	for range n + 1 {
		if at = schedule.Next(at); at.IsZero() || at.After(now) {
			return false
		}
	}
	return true
}

// jobName is the name of the Job of a run: one for each minute.
func jobName(c *batchv1.CronJob, run time.Time) string {
	return fmt.Sprintf("%s-%d", c.Name, run.Unix()/60)
}

// jobOf is the Job of a run.
func jobOf(c *batchv1.CronJob, run time.Time) *batchv1.Job {
	template := c.Spec.JobTemplate.DeepCopy()
	metav1.SetMetaDataAnnotation(&template.ObjectMeta, batchv1.CronJobScheduledTimestampAnnotation, run.Format(time.RFC3339))
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name: jobName(c, run), Labels: template.Labels, Annotations: template.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(c, batchv1.SchemeGroupVersion.WithKind("CronJob"))},
		},
		Spec: template.Spec,
	}
}

// scheduledFor says of which run a Job is, and whether of any: one that jobOf made.
func scheduledFor(c *batchv1.CronJob, job *batchv1.Job) (time.Time, bool) {
	at, err := time.Parse(time.RFC3339, job.Annotations[batchv1.CronJobScheduledTimestampAnnotation])
	return at, err == nil && job.Name == jobName(c, at)
}

// endings are how a Job may end.
var endings = []batchv1.JobConditionType{batchv1.JobComplete, batchv1.JobFailed}

// endOf is how a Job has ended, empty if it has not.
func endOf(job *batchv1.Job) batchv1.JobConditionType {
	for _, c := range job.Status.Conditions {
		if slices.Contains(endings, c.Type) && c.Status == corev1.ConditionTrue {
			return c.Type
		}
	}
	return ""
}

func isActive(active []corev1.ObjectReference, uid types.UID) bool {
	return slices.ContainsFunc(active, func(ref corev1.ObjectReference) bool { return ref.UID == uid })
}

func forget(status *batchv1.CronJobStatus, uid types.UID) {
	status.Active = slices.DeleteFunc(status.Active, func(ref corev1.ObjectReference) bool { return ref.UID == uid })
}

func referTo(job *batchv1.Job) corev1.ObjectReference {
	return corev1.ObjectReference{
		APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job",
		Namespace: job.Namespace, Name: job.Name, UID: job.UID, ResourceVersion: job.ResourceVersion,
	}
}
