package syncer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
)

// doubt is why it is not known how the pods are that a physical cluster shows; the zero value is that it is.
type doubt struct {
	reason, message string
	// because is the reason why the SyncTarget is not Ready.
	because string
}

// doubtOf returns that of a SyncTarget.
func doubtOf(status workloadv1alpha1.SyncTargetStatus) doubt {
	switch {
	case !status.IsHeard():
		ready := ptr.Deref(meta.FindStatusCondition(status.Conditions, workloadv1alpha1.SyncTargetReady), metav1.Condition{})
		return doubt{workloadv1alpha1.PodUnheard, "The physical cluster is not Ready: how the pod is, is not known.", ready.Reason}
	case !slices.Contains(status.CarriedResources, podsGVR.GroupResource().String()):
		return doubt{workloadv1alpha1.PodUnseen, "The syncer of the physical cluster sees no pods: it is not allowed to, or fails, or has no room for them, or is of an earlier version. How the pod is, is not known.", ""}
	}
	return doubt{}
}

// doubtIn returns that of a SyncTarget, given what its status follows from. That it is on its way out, which its status says then, is no reason.
func doubtIn(target, twin *workloadv1alpha1.SyncTarget, heard time.Time, p *problem, now time.Time) doubt {
	if p != nil && p.reason == ReasonTerminating {
		p = nil
	}
	status, _ := targetStatus(target, twin, heard, p, now)
	return doubtOf(status)
}

// doubtPods says of the pods that a physical cluster shows that they are not Ready, as those of a lost Node. Its syncer tells what
// they are when it can. For one reason it is said once, and once more after a restart, since a crash may have left some out.
func (m *Manager) doubtPods(ctx context.Context, mirror logicalcluster.Name, why doubt) error {
	m.mu.Lock()
	said := m.doubted[mirror] == why
	if why == (doubt{}) {
		delete(m.doubted, mirror)
	}
	m.mu.Unlock()
	if why == (doubt{}) || said {
		return nil
	}
	err := m.eachPod(ctx, mirror, func(in context.Context, pod *corev1.Pod) error {
		if !unheard(&pod.Status, why, metav1.NewTime(m.config.Clock.Now())) {
			return nil
		}
		return m.config.Clients.Objects.Status().Update(in, pod)
	})
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.doubted[mirror] = why
	return nil
}

// unheard makes a pod not Ready, and says whether it was Ready.
func unheard(status *corev1.PodStatus, why doubt, now metav1.Time) (changed bool) {
	for i := range status.Conditions {
		if c := &status.Conditions[i]; c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			c.Status, c.Reason, c.Message, c.LastTransitionTime = corev1.ConditionFalse, why.reason, why.message, now
			changed = true
		}
	}
	return changed
}

// forgetPods has nothing shown any more of a physical cluster that goes, or is given up.
func (m *Manager) forgetPods(ctx context.Context, mirror logicalcluster.Name) error {
	m.mu.Lock()
	delete(m.doubted, mirror)
	m.mu.Unlock()
	return m.eachPod(ctx, mirror, func(in context.Context, pod *corev1.Pod) error {
		return m.config.Clients.Objects.Delete(in, pod, ctrlclient.Preconditions{UID: &pod.UID})
	})
}

// eachPod does something to each pod that a mirror shows and that is not gone meanwhile. One that fails keeps no other from it.
func (m *Manager) eachPod(ctx context.Context, mirror logicalcluster.Name, do func(context.Context, *corev1.Pod) error) error {
	in := client.In(ctx, mirror)
	var shown corev1.PodList
	if err := m.config.Clients.Objects.List(in, &shown); err != nil {
		return fmt.Errorf("list the pods of mirror %s: %w", mirror, err)
	}
	var errs []error
	for i := range shown.Items {
		pod := &shown.Items[i]
		if err := do(in, pod); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("pod %s/%s of mirror %s: %w", pod.Namespace, pod.Name, mirror, err))
		}
	}
	return errors.Join(errs...)
}
