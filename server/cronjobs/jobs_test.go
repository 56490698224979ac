package cronjobs

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubestorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/queue"
	"atoll.dev/atoll/server/storage"
)

// cached is a store of Jobs that says what it was asked for.
type cached struct {
	kubestorage.Interface
	t     *testing.T
	jobs  []batch.Job
	asked []kubestorage.ListOptions
}

func (p *cached) GetList(_ context.Context, key string, options kubestorage.ListOptions, list runtime.Object) error {
	if key != "/jobs/default" || !options.Recursive {
		p.t.Errorf("%q is listed with %+v", key, options)
	}
	from, _ := strconv.Atoi(options.Predicate.Continue) // none is the first
	to := len(p.jobs)
	if limit := int(options.Predicate.Limit); limit > 0 {
		to = min(from+limit, to)
	}
	into := list.(*batch.JobList)
	into.Items, into.ResourceVersion = p.jobs[from:to], "77"
	if to < len(p.jobs) {
		into.Continue = strconv.Itoa(to)
	}
	p.asked = append(p.asked, options)
	return nil
}

// Of many Jobs of a namespace, those beyond a page are read at once, from the watch cache alone, which is as new as etcd was.
func TestJobsAreReadAtOnce(t *testing.T) {
	everything := func(limit int64) kubestorage.ListOptions {
		options := kubestorage.ListOptions{Recursive: true, Predicate: kubestorage.Everything}
		options.Predicate.Limit = limit
		return options
	}
	page, all := everything(jobsPage), everything(0)
	all.ResourceVersion, all.ResourceVersionMatch = "77", metav1.ResourceVersionMatchNotOlderThan
	for n, want := range map[int][]kubestorage.ListOptions{0: {page}, jobsPage: {page}, jobsPage + 1: {page, all}, 5000: {page, all}} {
		p := &cached{t: t, jobs: make([]batch.Job, n)}
		if _, err := keptIn(p).controlledBy(t.Context(), hourly()); err != nil {
			t.Fatal(err)
		}
		if len(p.asked) != len(want) {
			t.Errorf("%d Jobs are read by %d lists, want %d", n, len(p.asked), len(want))
			continue
		}
		for i := range want {
			got := p.asked[i]
			if got.ResourceVersion != want[i].ResourceVersion || got.ResourceVersionMatch != want[i].ResourceVersionMatch || got.Predicate.Limit != want[i].Predicate.Limit || got.Predicate.Continue != "" {
				t.Errorf("of %d Jobs is asked %+v, want %+v", n, got, want[i])
			}
		}
	}
}

func keptIn(store kubestorage.Interface) *Controller {
	return &Controller{store: &storage.Resource{Prefix: "/jobs", Namespaced: true, NewList: func() runtime.Object { return &batch.JobList{} }, Storage: store}}
}

// A look at the Jobs of a namespace keeps of those that the CronJob controls no more than it needs.
func TestOfJobsLittleIsKept(t *testing.T) {
	cron := hourly()
	made := metav1.NewTime(time.Unix(1_000, 0))
	p := &cached{t: t}
	for i := range 2*jobsPage + 1 {
		j := batch.Job{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: cron.Namespace, Name: fmt.Sprintf("j%02d", i), UID: "u", ResourceVersion: "7", CreationTimestamp: made, DeletionTimestamp: &made,
				Annotations:   map[string]string{batchv1.CronJobScheduledTimestampAnnotation: "then", "more": "text"},
				Labels:        map[string]string{"a": "b"},
				ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
			},
			Spec: batch.JobSpec{Template: core.PodTemplateSpec{Spec: core.PodSpec{Containers: []core.Container{{Name: "c", Image: "i"}}}}},
			Status: batch.JobStatus{StartTime: &made, CompletionTime: &made, Conditions: []batch.JobCondition{
				{Type: batch.JobSuspended, Status: core.ConditionFalse}, {Type: batch.JobComplete, Status: core.ConditionTrue, Message: "text"},
			}},
		}
		if i%jobsPage == 0 {
			j.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "CronJob", Name: cron.Name, UID: cron.UID, Controller: ptr.To(true)}}
		}
		p.jobs = append(p.jobs, j)
	}
	got, err := keptIn(p).controlledBy(t.Context(), cron)
	if err != nil {
		t.Fatal(err)
	}
	var want []*batchv1.Job
	for _, name := range []string{"j00", fmt.Sprintf("j%02d", jobsPage), fmt.Sprintf("j%02d", 2*jobsPage)} {
		want = append(want, &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: cron.Namespace, Name: name, UID: "u", ResourceVersion: "7", CreationTimestamp: made, DeletionTimestamp: &made,
				Annotations: map[string]string{batchv1.CronJobScheduledTimestampAnnotation: "then"},
			},
			Status: batchv1.JobStatus{StartTime: &made, CompletionTime: &made, Conditions: []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}},
		})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
}

// TestToldOnce: what stays as it is is told once, also when the CronJob is written meanwhile, and again when it is another.
func TestToldOnce(t *testing.T) {
	c := &Controller{seen: map[client.Key]seen{}, clock: clock.RealClock{}}
	c.due = queue.New("test", func(context.Context, client.Key) (time.Duration, error) { return 0, nil })
	defer c.due.Stop()
	cron := hourly()
	key := client.KeyOf(cron)
	first, second := event{corev1.EventTypeWarning, missed, "at 9"}, event{corev1.EventTypeWarning, missed, "at 10"}
	c.see(cron, false)
	for i, tc := range []struct {
		e    event
		want bool
	}{{first, true}, {first, false}, {second, true}, {second, false}} {
		if got := c.isNews(key, tc.e); got != tc.want {
			t.Errorf("%d: %q is news: %v", i, tc.e.message, got)
		}
		c.see(cron, false)
	}
	c.see(cron, true)
	c.isNews(key, first)
	if len(c.seen) > 0 {
		t.Errorf("kept of what is gone: %v", c.seen)
	}
}
