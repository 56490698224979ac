package cronjobs

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// at is a time of the day on which everything happens, a Wednesday.
func at(clock string) time.Time {
	t, err := time.Parse(time.RFC3339, "2026-07-01T"+clock+"Z")
	if err != nil {
		panic(err)
	}
	return t
}

// hourly is a CronJob of 8:30 that has run at 9:00.
func hourly(change ...func(*batchv1.CronJob)) *batchv1.CronJob {
	c := &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "report", Namespace: "default", UID: "report", CreationTimestamp: metav1.NewTime(at("08:30:00"))},
		Spec:       batchv1.CronJobSpec{Schedule: "0 * * * *", ConcurrencyPolicy: batchv1.AllowConcurrent},
		Status:     batchv1.CronJobStatus{LastScheduleTime: ptr.To(metav1.NewTime(at("09:00:00")))},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func schedule(s string) func(*batchv1.CronJob) {
	return func(c *batchv1.CronJob) { c.Spec.Schedule = s }
}
func policy(p batchv1.ConcurrencyPolicy) func(*batchv1.CronJob) {
	return func(c *batchv1.CronJob) { c.Spec.ConcurrencyPolicy = p }
}
func deadline(seconds int64) func(*batchv1.CronJob) {
	return func(c *batchv1.CronJob) { c.Spec.StartingDeadlineSeconds = &seconds }
}
func zone(z string) func(*batchv1.CronJob) { return func(c *batchv1.CronJob) { c.Spec.TimeZone = &z } }
func active(clocks ...string) func(*batchv1.CronJob) {
	return func(c *batchv1.CronJob) {
		for _, clock := range clocks {
			c.Status.Active = append(c.Status.Active, referTo(job(clock)))
		}
	}
}

// never has not run yet.
func never(c *batchv1.CronJob)   { c.Status.LastScheduleTime = nil }
func suspend(c *batchv1.CronJob) { c.Spec.Suspend = ptr.To(true) }
func deleted(c *batchv1.CronJob) { c.DeletionTimestamp = ptr.To(metav1.NewTime(at("09:10:00"))) }
func keep(succeeded, failed int32) func(*batchv1.CronJob) {
	return func(c *batchv1.CronJob) {
		c.Spec.SuccessfulJobsHistoryLimit, c.Spec.FailedJobsHistoryLimit = &succeeded, &failed
	}
}

// job is that of the run of a time.
func job(clock string, change ...func(*batchv1.Job)) *batchv1.Job {
	j := jobOf(hourly(), at(clock))
	j.Namespace, j.UID = "default", types.UID(j.Name)
	for _, f := range change {
		f(j)
	}
	return j
}

// ends is how a Job has ended, half a minute after it began.
func ends(how batchv1.JobConditionType, began string) func(*batchv1.Job) {
	return func(j *batchv1.Job) {
		start, end := metav1.NewTime(at(began)), metav1.NewTime(at(began).Add(30*time.Second))
		j.Status.StartTime = &start
		if how == batchv1.JobComplete {
			j.Status.CompletionTime = &end
		}
		j.Status.Conditions = append(j.Status.Conditions, batchv1.JobCondition{Type: how, Status: corev1.ConditionTrue, LastTransitionTime: end})
	}
}
func named(name string) func(*batchv1.Job) {
	return func(j *batchv1.Job) { j.Name, j.UID = name, types.UID(name) }
}
func going(j *batchv1.Job) { j.DeletionTimestamp = ptr.To(metav1.NewTime(at("09:10:00"))) }

// String is what is decided, in one line; of Jobs the minutes of the day.
func (d decision) String() string {
	var parts []string
	add := func(what, is string) {
		if is != "" {
			parts = append(parts, what+" "+is)
		}
	}
	clock := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return strings.TrimPrefix(t.UTC().Format("2006-01-02 15:04:05"), "2026-07-01 ")
	}
	names := func(jobs []*batchv1.Job) string {
		var all []string
		for _, j := range jobs {
			all = append(all, j.Name)
		}
		return strings.Join(all, " ")
	}
	add("run", clock(d.run))
	add("next", clock(d.next))
	add("remove", names(d.remove))
	add("replace", names(d.replace))
	var refs, told []string
	for _, ref := range d.status.Active {
		refs = append(refs, ref.Name)
	}
	for _, e := range d.events {
		told = append(told, e.reason)
	}
	add("active", strings.Join(refs, " "))
	add("last", clock(ptr.Deref(d.status.LastScheduleTime, metav1.Time{}).Time))
	add("succeeded", clock(ptr.Deref(d.status.LastSuccessfulTime, metav1.Time{}).Time))
	add("tells", strings.Join(told, " "))
	return strings.Join(parts, "; ")
}

func TestDecide(t *testing.T) {
	nine, ten := job("09:00:00").Name, job("10:00:00").Name
	for _, tc := range []struct {
		reason  string
		cron    *batchv1.CronJob
		jobs    []*batchv1.Job
		changed string // when its schedule was
		now     string
		want    string
	}{
		{"nothing is due before its time", hourly(), nil, "", "09:59:59", "next 10:00:00; last 09:00:00"},
		{"a run is due at its time", hourly(), nil, "", "10:00:00", "run 10:00:00; next 11:00:00; last 09:00:00"},
		{"the first run follows the creation", hourly(never), nil, "", "08:59:59", "next 09:00:00"},
		{"and comes", hourly(never), nil, "", "09:00:00", "run 09:00:00; next 10:00:00"},
		{"of several that were missed the last", hourly(), nil, "", "15:20:00", "run 15:00:00; next 16:00:00; last 09:00:00"},
		{"though they were a hundred", hourly(schedule("* * * * *")), nil, "", "10:40:30",
			"run 10:40:00; next 10:41:00; last 09:00:00"},
		{"of more it tells", hourly(schedule("* * * * *")), nil, "", "10:41:00",
			"run 10:41:00; next 10:42:00; last 09:00:00; tells TooManyMissedTimes"},
		{"within the deadline they are not many", hourly(schedule("* * * * *"), deadline(200)), nil, "", "20:00:00",
			"run 20:00:00; next 20:01:00; last 09:00:00"},
		{"a run may be late", hourly(deadline(60)), nil, "", "10:01:00", "run 10:00:00; next 11:00:00; last 09:00:00"},
		{"but not later than its deadline", hourly(deadline(60)), nil, "", "10:01:01", "next 11:00:00; last 09:00:00; tells MissSchedule"},
		{"a schedule that was changed makes nothing up", hourly(schedule("30 * * * *")), nil, "09:40:00", "09:45:00", "next 10:30:00; last 09:00:00"},
		{"and runs from then on", hourly(schedule("30 * * * *")), nil, "09:40:00", "10:30:00", "run 10:30:00; next 11:30:00; last 09:00:00"},
		{"a clock that was set back", hourly(), nil, "", "07:30:00", "next 10:00:00; last 09:00:00"},

		{"times are UTC", hourly(schedule("0 12 * * *")), nil, "", "12:00:00", "run 12:00:00; next 2026-07-02 12:00:00; last 09:00:00"},
		{"or of its zone", hourly(schedule("0 12 * * *"), zone("Europe/Berlin")), nil, "", "10:00:00",
			"run 10:00:00; next 2026-07-02 10:00:00; last 09:00:00"},
		{"or of the schedule's", hourly(schedule("TZ=Europe/Berlin 0 12 * * *")), nil, "", "10:00:00",
			"run 10:00:00; next 2026-07-02 10:00:00; last 09:00:00; tells UnsupportedSchedule"},
		{"a zone that nobody knows", hourly(zone("Moon/Sea")), nil, "", "10:00:00", "last 09:00:00; tells UnknownTimeZone"},
		{"what is no schedule", hourly(schedule("at noon")), nil, "", "10:00:00", "last 09:00:00; tells UnparseableSchedule"},
		{"a day that never comes", hourly(schedule("59 23 31 2 *")), nil, "", "10:00:00", "last 09:00:00; tells InvalidSchedule"},
		{"periods follow the last run", hourly(schedule("@every 25m")), nil, "", "09:55:00", "run 09:50:00; next 10:15:00; last 09:00:00"},
		{"also with a deadline, which is no period", hourly(schedule("@every 25m"), deadline(10)), nil, "", "09:25:00",
			"run 09:25:00; next 09:50:00; last 09:00:00"},
		{"a minute has one Job", hourly(schedule("@every 30s")), []*batchv1.Job{job("09:00:00", ends(batchv1.JobComplete, "09:00:00"))}, "", "09:00:30",
			"next 09:01:00; last 09:00:00; succeeded 09:00:30"},
		{"also when that has gone already", hourly(schedule("@every 10s")), nil, "", "09:00:10", "next 09:01:00; last 09:00:00"},
		{"nothing is looked at again before the next minute", hourly(schedule("@every 1s")), nil, "", "09:20:07",
			"run 09:20:07; next 09:21:00; last 09:00:00; tells TooManyMissedTimes"},
		{"nor while nothing may run", hourly(schedule("@every 1s"), policy(batchv1.ForbidConcurrent), active("09:00:00")), []*batchv1.Job{job("09:00:00")}, "", "09:20:07",
			"next 09:21:00; active " + nine + "; last 09:00:00; tells JobAlreadyActive"},
		{"but as often as its deadline lets it run", hourly(schedule("@every 7s"), deadline(1)), nil, "", "09:20:06", "next 09:20:11; last 09:00:00; tells MissSchedule"},

		{"suspended", hourly(suspend), nil, "", "15:20:00", "last 09:00:00"},
		{"deleted", hourly(deleted), nil, "", "15:20:00", "last 09:00:00"},
		{"what is suspended still has a status", hourly(suspend, active("09:00:00")), []*batchv1.Job{job("09:00:00", ends(batchv1.JobComplete, "09:00:00"))}, "", "10:00:00",
			"last 09:00:00; succeeded 09:00:30; tells SawCompletedJob"},
		{"and is looked at again while something runs", hourly(suspend, active("09:00:00")), []*batchv1.Job{job("09:00:00")}, "", "10:00:00",
			"next 11:00:00; active " + nine + "; last 09:00:00"},

		{"Allow", hourly(active("09:00:00")), []*batchv1.Job{job("09:00:00")}, "", "10:00:00",
			"run 10:00:00; next 11:00:00; active " + nine + "; last 09:00:00"},
		{"Forbid", hourly(policy(batchv1.ForbidConcurrent), active("09:00:00")), []*batchv1.Job{job("09:00:00")}, "", "10:00:00",
			"next 11:00:00; active " + nine + "; last 09:00:00; tells JobAlreadyActive"},
		{"Forbid waits also for what goes", hourly(policy(batchv1.ForbidConcurrent), active("09:00:00")), []*batchv1.Job{job("09:00:00", going)}, "", "10:00:00",
			"next 11:00:00; active " + nine + "; last 09:00:00; tells JobAlreadyActive"},
		{"Forbid, once the other has ended", hourly(policy(batchv1.ForbidConcurrent), active("09:00:00")),
			[]*batchv1.Job{job("09:00:00", ends(batchv1.JobFailed, "09:00:00"))}, "", "10:20:00",
			"run 10:00:00; next 11:00:00; last 09:00:00; tells SawCompletedJob"},
		{"Forbid, once the other has ended and it is too late", hourly(policy(batchv1.ForbidConcurrent), active("09:00:00"), deadline(60)),
			[]*batchv1.Job{job("09:00:00", ends(batchv1.JobFailed, "09:00:00"))}, "", "10:20:00",
			"next 11:00:00; last 09:00:00; tells SawCompletedJob MissSchedule"},
		{"Forbid counts what a crash kept from the status", hourly(policy(batchv1.ForbidConcurrent)), []*batchv1.Job{job("10:00:00")}, "", "11:00:00",
			"next 12:00:00; active " + ten + "; last 10:00:00; tells SuccessfulCreate JobAlreadyActive"},
		{"Replace", hourly(policy(batchv1.ReplaceConcurrent), active("09:00:00")), []*batchv1.Job{job("09:00:00"), job("09:00:00", named("by-hand"))}, "", "10:00:00",
			"run 10:00:00; next 11:00:00; replace " + nine + "; active " + nine + "; last 09:00:00; tells UnexpectedJob"},

		{"a run that a crash kept from the status is not made again", hourly(), []*batchv1.Job{job("10:00:00")}, "", "10:00:00",
			"next 11:00:00; active " + ten + "; last 10:00:00; tells SuccessfulCreate"},
		{"nor once it has ended, and goes", hourly(keep(0, 0)), []*batchv1.Job{job("10:00:00", ends(batchv1.JobComplete, "10:00:00"))}, "", "10:05:00",
			"next 11:00:00; remove " + ten + "; last 10:00:00; succeeded 10:00:30; tells SuccessfulCreate"},
		{"a Job that was replaced, and is not gone yet, does not come back", hourly(), []*batchv1.Job{job("09:00:00", going)}, "", "09:30:00",
			"next 10:00:00; last 09:00:00"},
		{"a Job that went otherwise", hourly(active("09:00:00")), nil, "", "09:30:00", "next 10:00:00; last 09:00:00; tells MissingJob"},
		{"one made by hand from it is not counted", hourly(policy(batchv1.ForbidConcurrent)), []*batchv1.Job{job("10:00:00", named("by-hand"))}, "", "10:00:00",
			"run 10:00:00; next 11:00:00; last 09:00:00; tells UnexpectedJob"},

		{"the history keeps the youngest of each end", hourly(keep(1, 1)), []*batchv1.Job{
			job("05:00:00", named("late"), ends(batchv1.JobComplete, "08:00:00")),
			job("06:00:00", named("first"), ends(batchv1.JobComplete, "06:00:00")),
			job("07:00:00", named("second"), ends(batchv1.JobComplete, "07:00:00")),
			job("06:00:00", named("bad"), ends(batchv1.JobFailed, "06:00:00")),
			job("07:00:00", named("runs")),
			job("04:00:00", named("goes"), ends(batchv1.JobComplete, "04:00:00"), going),
		}, "", "09:30:00", "next 10:00:00; remove first second; last 09:00:00; succeeded 08:00:30; tells UnexpectedJob"},
		{"without limits all are kept", hourly(), []*batchv1.Job{job("06:00:00", named("first"), ends(batchv1.JobComplete, "06:00:00"))}, "", "09:30:00",
			"next 10:00:00; last 09:00:00; succeeded 06:00:30"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			before := tc.cron.DeepCopy()
			var changed time.Time
			if tc.changed != "" {
				changed = at(tc.changed)
			}
			got := decide(tc.cron, tc.jobs, changed, at(tc.now))
			if got.String() != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			if diff := cmp.Diff(before, tc.cron); diff != "" {
				t.Errorf("it changed the CronJob: %s", diff)
			}
			// What the controller leaves behind is at rest: nothing is told or run twice for the same moment.
			if got.run.IsZero() {
				return
			}
			left, jobs := tc.cron.DeepCopy(), slices.DeleteFunc(slices.Clone(tc.jobs), func(j *batchv1.Job) bool { return slices.Contains(got.replace, j) })
			jobs = append(jobs, job(got.run.Format(time.TimeOnly)))
			left.Status = got.status
			for range 2 { // with the status of before the crash, and of after it
				again := decide(left, jobs, changed, at(tc.now))
				if !again.run.IsZero() {
					t.Errorf("made twice: %s", again)
				}
				left.Status = again.status
			}
		})
	}
}

// The Job of a run is what the template says, of the CronJob, at its time in its zone.
func TestJobOf(t *testing.T) {
	c := hourly(zone("Europe/Berlin"))
	c.Spec.JobTemplate = batchv1.JobTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}, Name: "not this"},
		Spec:       batchv1.JobSpec{Parallelism: ptr.To[int32](3)},
	}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	run := at("10:00:00")
	want := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("report-%d", run.Unix()/60), Labels: map[string]string{"a": "b"},
			Annotations: map[string]string{"c": "d", "batch.kubernetes.io/cronjob-scheduled-timestamp": "2026-07-01T12:00:00+02:00"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "batch/v1", Kind: "CronJob", Name: "report", UID: "report", Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
			}},
		},
		Spec: batchv1.JobSpec{Parallelism: ptr.To[int32](3)},
	}
	if diff := cmp.Diff(want, jobOf(c, run.In(berlin))); diff != "" {
		t.Error(diff)
	}
	if len(c.Spec.JobTemplate.Annotations) != 1 {
		t.Errorf("the template was changed: %v", c.Spec.JobTemplate.Annotations)
	}
	if got, made := scheduledFor(c, jobOf(c, run.In(berlin))); !made || !got.Equal(run) {
		t.Errorf("scheduled for %s %t, want %s", got, made, run)
	}
}
