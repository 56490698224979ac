package syncer

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
)

var errRefused = errors.New("refused")

// shownTo is a client of a mirror that shows pods. Of the last one it says that it is gone.
type shownTo struct {
	ctrlclient.WithWatch
	pods  []corev1.Pod
	lists int
	done  []string
}

func (s *shownTo) Status() ctrlclient.SubResourceWriter { return shownStatuses{to: s} }

// shownStatuses are the statuses of those.
type shownStatuses struct {
	ctrlclient.SubResourceWriter
	to *shownTo
}

func (s shownStatuses) Update(_ context.Context, pod ctrlclient.Object, _ ...ctrlclient.SubResourceUpdateOption) error {
	return s.to.answer("update", pod)
}

func (s *shownTo) List(_ context.Context, list ctrlclient.ObjectList, _ ...ctrlclient.ListOption) error {
	s.lists++
	list.(*corev1.PodList).Items = (&corev1.PodList{Items: s.pods}).DeepCopy().Items
	return nil
}

func (s *shownTo) answer(what string, pod ctrlclient.Object) error {
	if pod.GetName() == "refused" {
		return errRefused
	}
	if pod.GetName() == s.pods[len(s.pods)-1].Name {
		return apierrors.NewNotFound(corev1.Resource("pods"), pod.GetName())
	}
	s.done = append(s.done, what+" "+pod.GetName())
	return nil
}

func (s *shownTo) Delete(_ context.Context, pod ctrlclient.Object, opts ...ctrlclient.DeleteOption) error {
	o := ctrlclient.DeleteOptions{}
	o.ApplyOptions(opts)
	return s.answer("delete "+string(*o.Preconditions.UID), pod)
}

// TestPodsOfALostCluster: those that were Ready are not, and all go when the cluster is given up.
func TestPodsOfALostCluster(t *testing.T) {
	pod := func(name string, ready corev1.ConditionStatus) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u"},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
		}
	}
	s := &shownTo{pods: []corev1.Pod{pod("refused", corev1.ConditionTrue), pod("serves", corev1.ConditionTrue), pod("starts", corev1.ConditionFalse), pod("gone", corev1.ConditionTrue)}}
	m := &Manager{config: ManagerConfig{Clients: &client.Clients{Objects: s}, Clock: clock.RealClock{}},
		heard: map[logicalcluster.Name]time.Time{}, doubted: map[logicalcluster.Name]doubt{}}
	notReady := func(ctx context.Context, mirror logicalcluster.Name) error {
		return m.doubtPods(ctx, mirror, doubt{reason: workloadv1alpha1.PodUnheard})
	}
	for what, do := range map[string]func(context.Context, logicalcluster.Name) error{"not Ready": notReady, "gone": m.forgetPods} {
		s.done = nil
		if err := do(t.Context(), "mirror"); !errors.Is(err, errRefused) {
			t.Errorf("%s: %v, want what one pod was refused for", what, err)
		}
		want := map[string][]string{"not Ready": {"update serves"}, "gone": {"delete u serves", "delete u starts"}}[what]
		if diff := cmp.Diff(want, s.done); diff != "" {
			t.Errorf("%s: requests (-want +got):\n%s", what, diff)
		}
	}

	// The status of the SyncTarget is not held up by a pod; and what failed is tried again.
	target := &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: "east"}, Status: workloadv1alpha1.SyncTargetStatus{
		Mirror: "mirror", Conditions: []metav1.Condition{{Type: workloadv1alpha1.SyncTargetReady, Status: metav1.ConditionTrue}},
	}}
	twin := &workloadv1alpha1.SyncTarget{}
	s.done = nil
	for range 2 {
		if _, err := m.tell(t.Context(), target, twin, nil); !errors.Is(err, errRefused) {
			t.Errorf("%v, want what one pod was refused for", err)
		}
	}
	want := []string{"update east", "update serves", "update serves"}
	if diff := cmp.Diff(want, s.done); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}

	// What was said is not said again before there is another reason for it.
	s.pods = s.pods[1:]
	s.lists = 0
	for i, p := range []*problem{nil, nil, {reason: "A"}, {reason: "A", message: "in other words"}, {reason: "B"}} {
		if _, err := m.tell(t.Context(), target, twin, p); err != nil {
			t.Fatal(err)
		}
		if want := []int{1, 1, 2, 2, 3}[i]; s.lists != want {
			t.Errorf("%d: %d lists of the pods, want %d", i, s.lists, want)
		}
	}
	m.heard["mirror"] = m.config.Clock.Now()
	target.Status.ClusterUID, twin.Status.ClusterUID = "u", "u"
	for _, step := range []struct {
		reason string
		ready  metav1.ConditionStatus
		pods   bool
		want   int
	}{
		{"it is as its syncer says", metav1.ConditionTrue, true, 3},
		{"the cluster is not Ready again", metav1.ConditionFalse, true, 4},
		{"its syncer does not see pods", metav1.ConditionTrue, false, 5},
		{"nor before anything changes", metav1.ConditionTrue, false, 5},
		{"it sees them", metav1.ConditionTrue, true, 5},
	} {
		twin.Status.Conditions = []metav1.Condition{{Type: workloadv1alpha1.SyncTargetReady, Status: step.ready, Reason: "B"}}
		if twin.Status.CarriedResources = nil; step.pods {
			twin.Status.CarriedResources = []string{"pods"}
		}
		if _, err := m.tell(t.Context(), target, twin, nil); err != nil {
			t.Fatal(err)
		}
		if s.lists != step.want {
			t.Errorf("%s: %d lists of the pods, want %d", step.reason, s.lists, step.want)
		}
	}
}

// TestDoubtInOneThatGoes: that a SyncTarget is on its way out says nothing of its pods.
func TestDoubtInOneThatGoes(t *testing.T) {
	now := time.Unix(1000, 0)
	target := &workloadv1alpha1.SyncTarget{Status: workloadv1alpha1.SyncTargetStatus{ClusterUID: "u"}}
	goes := &problem{reason: ReasonTerminating, message: "It is being deleted."}
	for reason, want := range map[string]string{ReasonConnected: "", ReasonCannotWatch: "", ReasonUnreachable: workloadv1alpha1.PodUnheard} {
		twin := &workloadv1alpha1.SyncTarget{Status: workloadv1alpha1.SyncTargetStatus{ClusterUID: "u", CarriedResources: []string{"pods"}}}
		ready := metav1.Condition{Type: workloadv1alpha1.SyncTargetReady, Status: metav1.ConditionFalse, Reason: reason}
		if reason == ReasonConnected {
			ready.Status = metav1.ConditionTrue
		}
		twin.Status.Conditions = []metav1.Condition{ready}
		if got := doubtIn(target, twin, now, goes, now); got.reason != want {
			t.Errorf("%s: %q, want %q", reason, got.reason, want)
		}
	}
}

// TestDoubtOf: it is in doubt how pods are while nobody hears of them, and not for what else of their cluster cannot be watched.
func TestDoubtOf(t *testing.T) {
	for reason, tc := range map[string]struct {
		ready   metav1.ConditionStatus
		because string
		carried []string
		want    string
	}{
		"all is well":                 {metav1.ConditionTrue, ReasonConnected, []string{"pods"}, ""},
		"it does not answer":          {metav1.ConditionFalse, ReasonUnreachable, []string{"pods"}, workloadv1alpha1.PodUnheard},
		"its Secrets are not seen":    {metav1.ConditionFalse, ReasonCannotWatch, []string{"pods"}, ""},
		"nor are its pods":            {metav1.ConditionFalse, ReasonCannotWatch, nil, workloadv1alpha1.PodUnseen},
		"its pods alone are not seen": {metav1.ConditionTrue, ReasonConnected, nil, workloadv1alpha1.PodUnseen},
		"nothing is known":            {"", "", nil, workloadv1alpha1.PodUnheard},
	} {
		status := workloadv1alpha1.SyncTargetStatus{CarriedResources: tc.carried}
		if tc.ready != "" {
			status.Conditions = []metav1.Condition{{Type: workloadv1alpha1.SyncTargetReady, Status: tc.ready, Reason: tc.because}}
		}
		if got := doubtOf(status); got.reason != tc.want {
			t.Errorf("%s: %q, want %q", reason, got.reason, tc.want)
		}
	}
}
