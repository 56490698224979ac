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
	"k8s.io/utils/ptr"

	"atoll.dev/atoll/server/storage"
)

// paged is a store of Jobs that says how many it was asked for at once.
type paged struct {
	kubestorage.Interface
	t     *testing.T
	jobs  []batch.Job
	pages []int64
}

func (p *paged) GetList(_ context.Context, key string, options kubestorage.ListOptions, list runtime.Object) error {
	if key != "/jobs/default" || options.ResourceVersion != "" || !options.Recursive {
		p.t.Errorf("%q is listed with %+v", key, options)
	}
	from, _ := strconv.Atoi(options.Predicate.Continue) // none is the first
	to := len(p.jobs)
	if limit := int(options.Predicate.Limit); limit > 0 {
		to = min(from+limit, to)
	}
	into := list.(*batch.JobList)
	into.Items = p.jobs[from:to]
	if to < len(p.jobs) {
		into.Continue = strconv.Itoa(to)
	}
	p.pages = append(p.pages, options.Predicate.Limit)
	return nil
}

// A look at the Jobs of a namespace is paged, and keeps of those that the CronJob controls no more than it needs.
func TestJobsAreReadInPages(t *testing.T) {
	cron := hourly()
	made := metav1.NewTime(time.Unix(1_000, 0))
	p := &paged{t: t}
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
	c := &Controller{store: &storage.Resource{Prefix: "/jobs", Namespaced: true, NewList: func() runtime.Object { return &batch.JobList{} }, Storage: p}}
	got, err := c.controlledBy(t.Context(), cron)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int64{jobsPage, jobsPage, jobsPage}, p.pages); diff != "" {
		t.Errorf("asked for (-want +got):\n%s", diff)
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
