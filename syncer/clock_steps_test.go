package syncer

import (
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
)

// TestClockSteps lets a syncer's clock step by an hour in both directions, between a server and a physical cluster: work
// goes on, tombstones are carried out, and nothing else is deleted or stopped. So it is when the server starts anew meanwhile.
func TestClockSteps(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server and a physical cluster")
	}
	w := newWorld(t)
	defer func() { w.stop() }()
	w.condition(workloadv1alpha1.SyncTargetReady, metav1.ConditionTrue, ReasonConnected)
	w.makeNamespace(ns)
	w.makeConfigMap(ns, "kept", "root-kept", "one")
	w.eventually("it is applied", w.configMapDown(ns, "kept", "one"))
	kept, err := w.east.CoreV1().ConfigMaps(ns).Get(t.Context(), "kept", metav1.GetOptions{})
	w.must(err)

	for i, step := range []time.Duration{time.Hour, -time.Hour, 0} {
		for _, restart := range []bool{false, true} {
			w.clock.ahead.Store(int64(step))
			if restart {
				w.hub.Kill()
				w.hub.Restart()
			}
			name := fmt.Sprintf("change-%d-%v", i, restart)
			counted := w.beats()
			w.makeConfigMap(ns, name, "root-"+name, "x")
			began := time.Now()
			w.eventually("a change goes down", w.configMapDown(ns, name, "x"))
			took := time.Since(began)
			w.must(w.mirror.CoreV1().ConfigMaps(ns).Delete(t.Context(), name, metav1.DeleteOptions{}))
			w.eventually("a tombstone is carried out", func() string {
				if _, err := w.east.CoreV1().ConfigMaps(ns).Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
					return fmt.Sprintf("below: %v", err)
				}
				return ""
			})
			w.eventually("heartbeats go on", func() string {
				if now := w.beats(); now <= counted {
					return fmt.Sprintf("%d, was %d", now, counted)
				}
				return ""
			})
			w.condition(workloadv1alpha1.SyncTargetReady, metav1.ConditionTrue, ReasonConnected)
			w.condition(workloadv1alpha1.SyncTargetObserveOnly, metav1.ConditionFalse, ReasonInStep)
			var target workloadv1alpha1.SyncTarget
			w.must(w.clients.Objects.Get(client.In(t.Context(), "root"), ctrlclient.ObjectKeyFromObject(w.target), &target))
			ready := meta.FindStatusCondition(target.Status.Conditions, workloadv1alpha1.SyncTargetReady)
			t.Logf("step %-5s server started anew %-5v: the change was down after %s, Ready since %s",
				step, restart, took.Round(time.Millisecond), ready.LastTransitionTime.Format(time.TimeOnly))
			now, err := w.east.CoreV1().ConfigMaps(ns).Get(t.Context(), "kept", metav1.GetOptions{})
			w.must(err)
			if now.UID != kept.UID || now.ResourceVersion != kept.ResourceVersion {
				t.Errorf("after a step to %s what nobody touched was written: version %s of %s, was %s of %s", step, now.ResourceVersion, now.UID, kept.ResourceVersion, kept.UID)
			}
		}
	}
}

// beats is the mirror's counter of heartbeats.
func (w *world) beats() int64 {
	w.Helper()
	l, err := w.mirror.CoordinationV1().Leases(workloadv1alpha1.HeartbeatNamespace).Get(w.Context(), workloadv1alpha1.HeartbeatName, metav1.GetOptions{})
	w.must(err)
	n, err := count(l, workloadv1alpha1.HeartbeatCounterAnnotation)
	w.must(err)
	return n
}
