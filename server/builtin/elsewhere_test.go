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
		mirror, bound, inMirror bool
		deleted                 *metav1.Time
		grace                   int64 // that it is given, in seconds
		awaits                  bool
	}{
		"it runs":                  {mirror: true, grace: 1},
		"it ends":                  {mirror: true, deleted: since(-20 * time.Second), grace: 1, awaits: true},
		"it ended just now":        {mirror: true, deleted: since(30 * time.Second), grace: 1, awaits: true},
		"nobody has ended it":      {mirror: true, deleted: since(31 * time.Second), grace: 1},
		"its cluster says so":      {mirror: true, inMirror: true},
		"its finalizer holds it":   {mirror: true, bound: true, deleted: since(0)},
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
		ctx := t.Context()
		if !tc.inMirror {
			ctx = ofWorkspace(ctx)
		}
		options := metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}
		if newPodDeletion().CheckGracefulDelete(ctx, pod, &options); *options.GracePeriodSeconds != tc.grace {
			t.Errorf("%s: %d s, want %d", name, *options.GracePeriodSeconds, tc.grace)
		}
		if got := awaitsItsEnd(pod, clocktesting.NewFakePassiveClock(now)); got != tc.awaits {
			t.Errorf("%s: awaits its end %t, want %t", name, got, tc.awaits)
		}
	}
}
