package kinds

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

func daemonSetContent(root ctrlclient.Object) ctrlclient.Object {
	out := &appsv1.DaemonSet{Spec: *root.(*appsv1.DaemonSet).Spec.DeepCopy()}
	templateContent(&out.Spec.Template, root)
	return out
}

// daemonSetPods: it asks for one on each node that is fit for it, which its cluster counts.
func daemonSetPods(leaf ctrlclient.Object) (wanted, ready int32) {
	s := leaf.(*appsv1.DaemonSet).Status
	return s.DesiredNumberScheduled, s.NumberReady
}

func daemonSetObserved(leaf ctrlclient.Object) bool {
	d := leaf.(*appsv1.DaemonSet)
	return d.Status.ObservedGeneration >= d.Generation
}

// daemonSetRolledOut is what `kubectl rollout status` asks for. Updated by hand (OnDelete), it is not until somebody has done so.
func daemonSetRolledOut(leaf ctrlclient.Object) bool {
	s := leaf.(*appsv1.DaemonSet).Status
	return s.UpdatedNumberScheduled == s.DesiredNumberScheduled && s.NumberAvailable == s.DesiredNumberScheduled
}

// daemonSetServes does not ask for pods of the present template where they are replaced by hand: nobody may ever do so.
func daemonSetServes(leaf ctrlclient.Object) bool {
	d := leaf.(*appsv1.DaemonSet)
	if d.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
		return d.Status.NumberAvailable == d.Status.DesiredNumberScheduled
	}
	return daemonSetRolledOut(d)
}

// summariseDaemonSet sums the counters. As with a Deployment, pods of a cluster that is being left are wanted and not updated, so
// that `kubectl rollout status` ends with the move; and those of a cluster that is not heard of are unavailable.
func summariseDaemonSet(obj ctrlclient.Object, view View) {
	root := obj.(*appsv1.DaemonSet)
	s := &root.Status
	sum := appsv1.DaemonSetStatus{ObservedGeneration: s.ObservedGeneration, CollisionCount: s.CollisionCount}
	var unsettled int32 // updated by a report on an earlier rendering, which may have had another template
	for _, l := range view.Leaves {
		d, _ := l.Object.(*appsv1.DaemonSet)
		if d == nil {
			continue
		}
		sum.CurrentNumberScheduled += d.Status.CurrentNumberScheduled
		sum.NumberMisscheduled += d.Status.NumberMisscheduled
		sum.DesiredNumberScheduled += d.Status.DesiredNumberScheduled
		switch updated := min(d.Status.UpdatedNumberScheduled, d.Status.DesiredNumberScheduled); {
		case !l.Assigned:
		case l.Current && l.Settled:
			sum.UpdatedNumberScheduled += updated
		default:
			unsettled += updated
		}
		if l.Lost {
			sum.NumberUnavailable += d.Status.DesiredNumberScheduled
		} else {
			sum.NumberReady += d.Status.NumberReady
			sum.NumberAvailable += d.Status.NumberAvailable
			sum.NumberUnavailable += d.Status.NumberUnavailable
		}
		sum.CollisionCount = mostCollisions(sum.CollisionCount, d.Status.CollisionCount)
	}
	if root.Generation == s.ObservedGeneration {
		sum.UpdatedNumberScheduled = holdsOn(s.UpdatedNumberScheduled, sum.UpdatedNumberScheduled, unsettled)
	}
	if view.observed() {
		sum.ObservedGeneration = max(sum.ObservedGeneration, root.Generation)
	}
	since := func(c appsv1.DaemonSetCondition) (string, corev1.ConditionStatus, metav1.Time) {
		return string(c.Type), c.Status, c.LastTransitionTime
	}
	for _, c := range view.troubles() {
		sum.Conditions = append(sum.Conditions, appsv1.DaemonSetCondition{
			Type: appsv1.DaemonSetConditionType(c.condition), Status: corev1.ConditionFalse, Reason: c.Reason.Reason, Message: c.Message,
			LastTransitionTime: falseSince(s.Conditions, c.condition, view.Now, since),
		})
	}
	*s = sum
}
