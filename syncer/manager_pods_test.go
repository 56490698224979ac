package syncer

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"atoll.dev/atoll/client"
)

// shownTo is a client of a mirror that shows pods. Of the last one it says that it is gone.
type shownTo struct {
	ctrlclient.WithWatch
	pods []corev1.Pod
	done []string
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
	list.(*corev1.PodList).Items = s.pods
	return nil
}

func (s *shownTo) answer(what string, pod ctrlclient.Object) error {
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
	s := &shownTo{pods: []corev1.Pod{pod("serves", corev1.ConditionTrue), pod("starts", corev1.ConditionFalse), pod("gone", corev1.ConditionTrue)}}
	m := &Manager{config: ManagerConfig{Clients: &client.Clients{Objects: s}, Clock: clock.RealClock{}}}
	if err := m.podsUnready(t.Context(), "mirror"); err != nil {
		t.Fatal(err)
	}
	if err := m.forgetPods(t.Context(), "mirror"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"update serves", "delete u serves", "delete u starts"}, s.done); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}
