package splitter

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
)

func TestMayWait(t *testing.T) {
	status := func(observed int64, ready, available int32, conditions ...string) *appsv1.Deployment {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Generation: 2}}
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: observed, Replicas: 3, ReadyReplicas: ready, AvailableReplicas: available}
		for i := 0; i+2 < len(conditions); i += 3 {
			d.Status.Conditions = append(d.Status.Conditions, appsv1.DeploymentCondition{
				Type: appsv1.DeploymentConditionType(conditions[i]), Status: corev1.ConditionStatus(conditions[i+1]), Reason: conditions[i+2]})
		}
		return d
	}
	complete := []string{"Progressing", "True", reasonComplete}
	rolling := []string{"Progressing", "True", "ReplicaSetUpdated"}
	for name, tc := range map[string]struct {
		before, now *appsv1.Deployment
		want        time.Duration
		reason      string
	}{
		"FirstWords":     {status(0, 0, 0), status(0, 0, 0, rolling...), client.WhileNothing, "the generation that is observed says so"},
		"Observed":       {status(1, 0, 0), status(2, 0, 0, rolling...), client.WhileSettling, "rollout status waits for it"},
		"Step":           {status(2, 1, 1, rolling...), status(2, 2, 2, rolling...), client.WhileProgressing, "another pod serves"},
		"Through":        {status(2, 2, 2, rolling...), status(2, 3, 3, complete...), 0, "rollout status waits for it"},
		"ThroughAtOnce":  {status(1, 0, 0), status(2, 3, 3, complete...), 0, "rollout status waits for it"},
		"NotAnyMore":     {status(2, 3, 3, complete...), status(2, 3, 3, rolling...), 0, "it was said"},
		"Changed":        {status(1, 3, 3, complete...), status(1, 3, 3, rolling...), client.WhileNothing, "the generation says so"},
		"FewerAvailable": {status(2, 3, 3, rolling...), status(2, 3, 2, rolling...), 0, "bad news"},
		"FewerReady":     {status(2, 3, 2, rolling...), status(2, 2, 2, rolling...), 0, "bad news"},
		"Available":      {status(2, 2, 2, "Available", "False", ""), status(2, 3, 3, "Available", "True", ""), 0, "somebody may wait for it"},
		"Unavailable":    {status(2, 3, 3, "Available", "True", ""), status(2, 3, 3, "Available", "False", ""), 0, "bad news"},
		"Deadline":       {status(2, 2, 2, rolling...), status(2, 2, 2, "Progressing", "False", "ProgressDeadlineExceeded"), 0, "bad news"},
		"Failure":        {status(2, 2, 2), status(2, 2, 2, "ReplicaFailure", "True", "FailedCreate"), 0, "bad news"},
		"Refused":        {status(1, 2, 2), status(1, 2, 2, string(kinds.ConditionSynced), "False", "QuotaExceeded"), 0, "bad news"},
		"TakenAfterAll":  {status(1, 2, 2, string(kinds.ConditionSynced), "False", "QuotaExceeded"), status(1, 2, 2), 0, "somebody may wait for it"},
		"NotPlaced":      {status(0, 0, 0), status(0, 0, 0, string(kinds.ConditionPlaced), "False", "NotPlaced"), 0, "bad news"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := mayWait(tc.before, tc.now); got != tc.want {
				t.Errorf("may wait %s, want %s: %s", got, tc.want, tc.reason)
			}
		})
	}
}
