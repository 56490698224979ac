package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/cli"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// heartbeat is what the Lease in a mirror says. The zero value is that of a cluster without one, or whose mirror the person
// may not look into.
type heartbeat struct {
	// at is when the syncer last reported, by its clock.
	at time.Time
	// unanswered says that the physical cluster left the one before it without an answer. The condition Ready tolerates
	// that for 40 s.
	unanswered bool
}

// heartbeats returns the heartbeats of all clusters by their mirrors; none to who may not look into all mirrors.
func heartbeats(ctx context.Context, hub *cli.Hub) (map[string]heartbeat, error) {
	list := &coordinationv1.LeaseList{}
	err := hub.Objects.List(client.Everywhere(ctx), list, ctrlclient.InNamespace(workloadv1alpha1.HeartbeatNamespace))
	if refused(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the heartbeats of the clusters: %w", err)
	}
	byMirror := map[string]heartbeat{}
	for i := range list.Items {
		if l := &list.Items[i]; l.Name == workloadv1alpha1.HeartbeatName && l.Spec.RenewTime != nil {
			byMirror[string(lcctx.NameFrom(l))] = heartbeatOf(l)
		}
	}
	return byMirror, nil
}

func heartbeatOf(l *coordinationv1.Lease) heartbeat {
	count := func(annotation string) int64 {
		n, _ := strconv.ParseInt(l.Annotations[annotation], 10, 64) // none, or none of the syncer's: 0
		return n
	}
	counter, written := count(workloadv1alpha1.HeartbeatCounterAnnotation), count(workloadv1alpha1.HeartbeatWrittenAnnotation)
	// Nothing is known to be written at the beginning, and after a restore was confirmed.
	return heartbeat{at: l.Spec.RenewTime.Time,
		unanswered: l.Annotations[workloadv1alpha1.HeartbeatUnansweredAnnotation] != "" || written > 0 && counter > written+1}
}

// String is the age, or what is worse.
func (h heartbeat) String() string {
	switch {
	case h.at.IsZero():
		return "-"
	case h.unanswered:
		return "unanswered"
	}
	return age(metav1.NewTime(h.at))
}
