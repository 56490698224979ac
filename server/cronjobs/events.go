package cronjobs

import (
	"context"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// tell puts an Event about a CronJob into its workspace.
func (c *Controller) tell(ctx context.Context, cron *batchv1.CronJob, e event) {
	c.events.Tell(ctx, corev1.ObjectReference{
		APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "CronJob",
		Namespace: cron.Namespace, Name: cron.Name, UID: cron.UID, ResourceVersion: cron.ResourceVersion,
	}, e.kind, e.reason, e.message)
}
