package cronjobs

import (
	"context"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// tell puts an Event about a CronJob into its workspace. What was told before is counted, and who causes many is heard less: the
// correlator knows CronJobs by UID, a bounded number of them. An Event is news and no record: one that cannot be written is
// logged and not tried again.
func (c *Controller) tell(ctx context.Context, cron *batchv1.CronJob, e event) {
	now := metav1.NewTime(c.clock.Now())
	told, err := c.events.EventCorrelate(&corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: cron.Namespace, GenerateName: cron.Name + "."},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "CronJob",
			Namespace: cron.Namespace, Name: cron.Name, UID: cron.UID, ResourceVersion: cron.ResourceVersion,
		},
		Type: e.kind, Reason: e.reason, Message: e.message,
		Source: corev1.EventSource{Component: "cronjob-controller"}, ReportingController: "cronjob-controller",
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	})
	if err == nil && told.Skip {
		return
	}
	var written *corev1.Event
	if err == nil {
		written, err = c.put(ctx, told.Event, told.Patch)
	}
	if err != nil {
		klog.FromContext(ctx).Info("Could not tell of a CronJob", "cronJob", klog.KObj(cron), "reason", e.reason, "message", e.message, "err", err)
		return
	}
	c.events.UpdateState(written)
}

// put writes an Event that was told before by its patch, and else creates it.
func (c *Controller) put(ctx context.Context, e *corev1.Event, patch []byte) (*corev1.Event, error) {
	events := c.clients.Kube.CoreV1().Events(e.Namespace)
	if e.Count > 1 {
		written, err := events.Patch(ctx, e.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		if !apierrors.IsNotFound(err) {
			return written, err
		}
	}
	e.ResourceVersion = "" // of the one that has ended
	return events.Create(ctx, e, metav1.CreateOptions{})
}
