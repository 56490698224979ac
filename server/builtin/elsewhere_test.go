package builtin

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	api "k8s.io/kubernetes/pkg/apis/core"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

// TestForcedDeletionOfShownPods: it goes down first, and takes the row away where nobody has carried it out.
func TestForcedDeletionOfShownPods(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	since := func(ago time.Duration) *metav1.Time { return ptr.To(metav1.NewTime(now.Add(-ago))) }
	for name, tc := range map[string]struct {
		mirror, bound bool
		deleted       *metav1.Time
		awaits        bool
	}{
		"it runs":                  {mirror: true, awaits: true},
		"it ends":                  {mirror: true, deleted: since(-20 * time.Second), awaits: true},
		"it ended just now":        {mirror: true, deleted: since(30 * time.Second), awaits: true},
		"nobody has ended it":      {mirror: true, deleted: since(31 * time.Second)},
		"its finalizer holds it":   {mirror: true, bound: true},
		"the same, and it ends":    {mirror: true, bound: true, deleted: since(0)},
		"nobody's in any cluster":  {},
		"nobody's, and just now":   {deleted: since(0)},
		"nobody's, and long since": {deleted: since(time.Hour)},
	} {
		pod := &api.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: tc.deleted}, Spec: api.PodSpec{NodeName: "east"}}
		if tc.mirror {
			pod.Labels = map[string]string{workloadv1alpha1.MirrorLabel: "eastname"}
		}
		if tc.bound {
			pod.Finalizers = []string{workloadv1alpha1.SyncerFinalizer}
			if !kinds.IsBound(pod) {
				t.Fatal("it is not bound")
			}
		}
		if got := awaitsItsEnd(pod, clocktesting.NewFakePassiveClock(now)); got != tc.awaits {
			t.Errorf("%s: awaits its end %t, want %t", name, got, tc.awaits)
		}
		// Where it does not, as where its cluster says so, it goes as who deletes it asks.
		options := metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}
		if newPodDeletion().CheckGracefulDelete(t.Context(), pod, &options); *options.GracePeriodSeconds != 0 {
			t.Errorf("%s: %d s, want none", name, *options.GracePeriodSeconds)
		}
	}
}
