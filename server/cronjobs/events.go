package cronjobs

import (
	"context"

	batchv1 "k8s.io/api/batch/v1"
)

// tell puts an Event about a CronJob into its workspace.
func (c *Controller) tell(ctx context.Context, cron *batchv1.CronJob, e event) {
	c.events.Tell(ctx, cron, e.kind, e.reason, e.message)
}
