package cronjobs

import (
	"context"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubestorage "k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/kubernetes/pkg/apis/batch"
)

// jobsPage is how many Jobs of a namespace are read at first. Where the watch cache does not have them they come from etcd, and
// each may be as large as an object can be.
const jobsPage = 20

// controlledBy returns the Jobs that a CronJob controls, as etcd has them, in the order of their names. They are read from the
// store: a request would encode and decode all that the namespace has of them, for each of the CronJobs that share it. Where
// there are more than a page, all are read at once from the watch cache, which is as new by then and has them in memory, and
// from nowhere else: further pages would come from etcd, and be decoded.
func (c *Controller) controlledBy(ctx context.Context, cron *batchv1.CronJob) ([]*batchv1.Job, error) {
	options := kubestorage.ListOptions{Recursive: true, Predicate: kubestorage.Everything}
	options.Predicate.Limit = jobsPage
	all, err := c.list(ctx, cron.Namespace, options)
	if err == nil && all.Continue != "" {
		all, err = c.list(ctx, cron.Namespace, kubestorage.ListOptions{
			ResourceVersion: all.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, Recursive: true, Predicate: kubestorage.Everything,
		})
	}
	if err != nil {
		return nil, err
	}
	var jobs []*batchv1.Job
	for i := range all.Items {
		if metav1.IsControlledBy(&all.Items[i], cron) {
			jobs = append(jobs, without(&all.Items[i]))
		}
	}
	return jobs, nil
}

// list lists Jobs of a namespace. What they refer to is shared with the watch cache.
func (c *Controller) list(ctx context.Context, namespace string, options kubestorage.ListOptions) (*batch.JobList, error) {
	all := &batch.JobList{}
	return all, storeerr.InterpretListError(c.store.Storage.GetList(ctx, c.store.Key(namespace, ""), options, all), c.store.GroupResource)
}

// without returns what decisions need of a Job, and refers to nothing else of it: what is read is shared, and large.
func without(job *batch.Job) *batchv1.Job {
	kept := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: job.Namespace, Name: job.Name, UID: job.UID, ResourceVersion: job.ResourceVersion,
			CreationTimestamp: job.CreationTimestamp, DeletionTimestamp: job.DeletionTimestamp.DeepCopy(),
		},
		Status: batchv1.JobStatus{StartTime: job.Status.StartTime.DeepCopy(), CompletionTime: job.Status.CompletionTime.DeepCopy()},
	}
	if at, ok := job.Annotations[batchv1.CronJobScheduledTimestampAnnotation]; ok {
		kept.Annotations = map[string]string{batchv1.CronJobScheduledTimestampAnnotation: at}
	}
	for _, condition := range job.Status.Conditions {
		kind := batchv1.JobConditionType(condition.Type)
		if slices.Contains(endings, kind) {
			kept.Status.Conditions = append(kept.Status.Conditions, batchv1.JobCondition{Type: kind, Status: corev1.ConditionStatus(condition.Status)})
		}
	}
	return kept
}
