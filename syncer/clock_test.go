package syncer

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	testingclock "k8s.io/utils/clock/testing"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
)

// TestHeartbeatByOurClock: a syncer's clock may be an hour off, and step: what counts is when its heartbeats come. Only
// those found at the start of the server are as old as they say.
func TestHeartbeatByOurClock(t *testing.T) {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	tests := map[string]struct {
		// theirs is the syncer's clock less ours, by seconds since the start.
		theirs func(second int) time.Duration
		// silentFrom is the second of the last heartbeat but one; 0: they go on.
		silentFrom int
		// unready is how many seconds the SyncTarget may be not Ready, and how many it must be.
		atMost, atLeast int
		reason          string
	}{
		"same clock":       {theirs: func(int) time.Duration { return 0 }, reason: "never away"},
		"an hour ahead":    {theirs: func(int) time.Duration { return time.Hour }, reason: "what is found says that it is from the future, which is no reason for mistrust"},
		"an hour behind":   {theirs: func(int) time.Duration { return -time.Hour }, atMost: 10, reason: "what is found may be an hour old; the next heartbeat says that it is not"},
		"steps ahead":      {theirs: func(s int) time.Duration { return time.Duration(s/30) * time.Hour }, reason: "a step is no silence"},
		"steps behind":     {theirs: func(s int) time.Duration { return -time.Duration(s/30) * time.Hour }, reason: "a step is no silence"},
		"ahead and silent": {theirs: func(int) time.Duration { return time.Hour }, silentFrom: 60, atMost: 80, atLeast: 75, reason: "a clock that is ahead does not keep a dead syncer alive"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			clock := testingclock.NewFakeClock(began)
			m := idleManager(t, clock)
			target, twin := syncTarget("a", "root", 0), &workloadv1alpha1.SyncTarget{}
			target.Status.ClusterUID = "x"
			meta.SetStatusCondition(&twin.Status.Conditions, metav1.Condition{Type: workloadv1alpha1.SyncTargetReady, Status: metav1.ConditionTrue, Reason: ReasonConnected})
			unready := 0
			for second := range 180 {
				if second%10 == 0 && (tc.silentFrom == 0 || second <= tc.silentFrom) {
					renewed := metav1.NewMicroTime(clock.Now().Add(tc.theirs(second)))
					lease := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &renewed}}
					m.beat("mirror", lease, client.Event[*coordinationv1.Lease]{New: lease, Initial: second == 0})
				}
				status, _ := targetStatus(target, twin, m.heard["mirror"], nil, clock.Now())
				if !meta.IsStatusConditionTrue(status.Conditions, workloadv1alpha1.SyncTargetReady) {
					unready++
				}
				clock.Step(time.Second)
			}
			if unready > tc.atMost || unready < tc.atLeast {
				t.Errorf("%s: not Ready for %d of 180 s, want %d to %d", tc.reason, unready, tc.atLeast, tc.atMost)
			}
		})
	}
}

// idleClients are those of a server that nobody asks.
func idleClients(t *testing.T) (*client.Clients, *client.Informers) {
	t.Helper()
	clients, err := client.New(&rest.Config{Host: "https://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	informers, err := client.NewInformers(clients)
	if err != nil {
		t.Fatal(err)
	}
	return clients, informers
}

// idleManager is a Manager of a server that nobody asks.
func idleManager(t *testing.T, clock *testingclock.FakeClock) *Manager {
	t.Helper()
	clients, informers := idleClients(t)
	m, err := NewManager(ManagerConfig{
		Clients: clients, Informers: informers, Clock: clock,
		MirrorConfig: func(logicalcluster.Name, types.UID) (*rest.Config, error) { return nil, errors.New("not asked") },
		DeleteData:   func(context.Context, logicalcluster.Name) error { return errors.New("not asked") },
		MayWrite:     func() error { return errors.New("not asked") },
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}
