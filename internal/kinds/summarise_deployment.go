package kinds

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// Conditions of ours on a workload. They are there only while there is something to say.
const (
	// ConditionPlaced is False while the Placement gives the workload no cluster, or not all that were asked for.
	ConditionPlaced = "Placed"
	// ConditionSynced is False while a cluster refuses the workload, is not heard of, or is only observed.
	ConditionSynced = "Synced"

	reasonComplete    = "NewReplicaSetAvailable"
	reasonProgressing = "ReplicaSetUpdated"
	reasonDeadline    = "ProgressDeadlineExceeded"
	reasonPaused      = "DeploymentPaused"
	reasonAvailable   = "MinimumReplicasAvailable"
	reasonUnavailable = "MinimumReplicasUnavailable"
	reasonUnreachable = "Unreachable"
	reasonObserveOnly = "ObserveOnly"
)

// summariseDeployment sums the leaves so that `kubectl rollout status` on the root ends when, and only when, a rollout,
// a move or a change of scale has ended: pods that will not stay (of a cluster that is being left, or above a
// cluster's share) count as replicas but not as updated ones.
func summariseDeployment(obj ctrlclient.Object, view View) {
	root := obj.(*appsv1.Deployment)
	s := &root.Status
	sum := appsv1.DeploymentStatus{ObservedGeneration: s.ObservedGeneration, CollisionCount: s.CollisionCount, Conditions: s.Conditions}

	assigned, complete := 0, true
	lost, observedOnly := view.lost(), view.observedOnly()
	var deadline, failures []string
	var known int32     // available where that is certain
	var unsettled int32 // updated by a report on an earlier rendering, which may have had another template
	paused := false
	for _, l := range view.Leaves {
		d, _ := l.Object.(*appsv1.Deployment)
		if l.Assigned {
			assigned++
			complete = complete && !l.Lost && l.finished(d)
		} else {
			complete = complete && d == nil
		}
		if d == nil {
			continue
		}
		sum.Replicas += d.Status.Replicas
		if l.Assigned && l.SameTemplate {
			if updated := min(d.Status.UpdatedReplicas, l.Target); l.Settled {
				sum.UpdatedReplicas += updated
			} else {
				unsettled += updated
			}
		}
		if l.Lost {
			sum.UnavailableReplicas += d.Status.Replicas
		} else {
			sum.ReadyReplicas += d.Status.ReadyReplicas
			sum.AvailableReplicas += d.Status.AvailableReplicas
			if !l.Observed {
				known += d.Status.AvailableReplicas
			}
			sum.UnavailableReplicas += d.Status.UnavailableReplicas
		}
		if t := d.Status.TerminatingReplicas; t != nil {
			if sum.TerminatingReplicas == nil {
				sum.TerminatingReplicas = new(int32)
			}
			*sum.TerminatingReplicas += *t
		}
		sum.CollisionCount = mostCollisions(sum.CollisionCount, d.Status.CollisionCount)
		if !l.Assigned {
			continue
		}
		if c := condition(d, appsv1.DeploymentProgressing); c != nil && !l.Lost {
			switch {
			case c.Status == corev1.ConditionFalse:
				deadline = append(deadline, fmt.Sprintf("cluster %q: %s", l.Cluster, c.Message))
			case c.Reason == reasonPaused:
				paused = true
			}
		}
		if c := condition(d, appsv1.DeploymentReplicaFailure); c != nil && c.Status == corev1.ConditionTrue {
			failures = append(failures, fmt.Sprintf("cluster %q: %s: %s", l.Cluster, c.Reason, c.Message))
		}
	}
	if root.Generation == s.ObservedGeneration {
		sum.UpdatedReplicas = holdsOn(s.UpdatedReplicas, sum.UpdatedReplicas, unsettled)
	}
	if view.observed() {
		sum.ObservedGeneration = max(sum.ObservedGeneration, root.Generation)
	}

	set := conditionSetter{now: metav1.NewTime(view.Now), conditions: slices.Clone(sum.Conditions)}
	if len(view.Leaves) == 0 {
		set.remove(appsv1.DeploymentProgressing)
		set.remove(appsv1.DeploymentAvailable)
	} else {
		switch enough := view.Desired - maxUnavailable(root, view.Desired); {
		case sum.AvailableReplicas >= enough && known < enough && len(observedOnly) > 0:
			set.set(appsv1.DeploymentAvailable, corev1.ConditionUnknown, reasonObserveOnly, onlyObserved(observedOnly))
		case sum.AvailableReplicas >= enough:
			set.set(appsv1.DeploymentAvailable, corev1.ConditionTrue, reasonAvailable, "Deployment has minimum availability.")
		default:
			set.set(appsv1.DeploymentAvailable, corev1.ConditionFalse, reasonUnavailable, "Deployment does not have minimum availability.")
		}
		switch {
		case len(deadline) > 0:
			set.set(appsv1.DeploymentProgressing, corev1.ConditionFalse, reasonDeadline, join(deadline))
		case paused:
			set.set(appsv1.DeploymentProgressing, corev1.ConditionUnknown, reasonPaused, "Deployment is paused")
		case assigned > 0 && complete:
			set.set(appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonComplete, fmt.Sprintf("Deployment %q has successfully progressed.", root.Name))
		case set.is(appsv1.DeploymentProgressing, reasonComplete) && root.Generation == sum.ObservedGeneration && len(lost) > 0:
			// What was complete does not become a rollout because a cluster is not heard of; as in one cluster.
		default:
			set.set(appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonProgressing, fmt.Sprintf("Deployment %q is progressing.", root.Name))
		}
	}
	if len(failures) > 0 {
		set.set(appsv1.DeploymentReplicaFailure, corev1.ConditionTrue, "FailedCreate", join(failures))
	} else {
		set.remove(appsv1.DeploymentReplicaFailure)
	}
	troubles := view.troubles()
	for _, ours := range []appsv1.DeploymentConditionType{ConditionPlaced, ConditionSynced} {
		if !slices.ContainsFunc(troubles, func(t trouble) bool { return t.condition == string(ours) }) {
			set.remove(ours)
		}
	}
	for _, t := range troubles {
		set.set(appsv1.DeploymentConditionType(t.condition), corev1.ConditionFalse, t.Reason.Reason, t.Message)
	}
	sum.Conditions = set.conditions
	*s = sum
}

// onlyObserved is for the users of what is there: the SyncTarget tells who confirms.
func onlyObserved(clusters []string) string {
	return fmt.Sprintf("Nothing is known to be current, and nothing is changed, where a restore is not confirmed yet by an administrator: %s.", quoted(clusters))
}

// finished says more: that the leaf is also the last word on the root.
func (l Leaf) finished(d *appsv1.Deployment) bool {
	return d != nil && l.Current && l.Settled && rolledOut(d) && replicas(d) == l.Target
}

func rolledOut(d *appsv1.Deployment) bool {
	want, s := replicas(d), d.Status
	return s.UpdatedReplicas == want && s.Replicas == want && s.AvailableReplicas == want
}

func deploymentDivision(obj ctrlclient.Object) Division {
	d := obj.(*appsv1.Deployment)
	s := d.Status
	return Division{
		Replicas: &d.Spec.Replicas, Strategy: &d.Spec.Strategy,
		Pods: s.Replicas, Updated: s.UpdatedReplicas, Available: s.AvailableReplicas, Terminating: ptr.Deref(s.TerminatingReplicas, 0),
	}
}

func deploymentPods(leaf ctrlclient.Object) (wanted, ready int32) {
	d := leaf.(*appsv1.Deployment)
	return replicas(d), d.Status.ReadyReplicas
}

func deploymentObserved(leaf ctrlclient.Object) bool {
	d := leaf.(*appsv1.Deployment)
	return d.Status.ObservedGeneration >= d.Generation
}

func deploymentFailing(leaf ctrlclient.Object) (reason, message string) {
	if c := condition(leaf.(*appsv1.Deployment), appsv1.DeploymentReplicaFailure); c != nil && c.Status == corev1.ConditionTrue {
		return c.Reason, c.Message
	}
	return "", ""
}

func replicas(d *appsv1.Deployment) int32 {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

// maxUnavailable is what the root's strategy allows, of desired replicas.
func maxUnavailable(root *appsv1.Deployment, desired int32) int32 {
	if root.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		return 0
	}
	u, _ := Fenceposts(root.Spec.Strategy.RollingUpdate, desired)
	return min(u, desired)
}

// Fenceposts resolves a strategy against a number of replicas as Kubernetes does: maxUnavailable rounds down, maxSurge
// up, absent means 25 %, and where both come to 0 one may be unavailable. Values that validation would have refused
// count as absent.
func Fenceposts(r *appsv1.RollingUpdateDeployment, desired int32) (maxUnavailable, maxSurge int32) {
	quarter := intstr.FromString("25%")
	u, s := &quarter, &quarter
	if r != nil && r.MaxUnavailable != nil {
		u = r.MaxUnavailable
	}
	if r != nil && r.MaxSurge != nil {
		s = r.MaxSurge
	}
	scaled := func(v *intstr.IntOrString, up bool) int32 {
		n, err := intstr.GetScaledValueFromIntOrPercent(v, int(desired), up)
		if err != nil {
			n, _ = intstr.GetScaledValueFromIntOrPercent(&quarter, int(desired), up)
		}
		return int32(n)
	}
	maxUnavailable, maxSurge = scaled(u, false), scaled(s, true)
	if maxUnavailable == 0 && maxSurge == 0 {
		maxUnavailable = 1
	}
	return maxUnavailable, maxSurge
}

// refusalOf says why a leaf is not there. One that does not answer has refused nothing.
func refusalOf(l Leaf) string {
	if l.Refused.Reason == reasonUnreachable {
		return fmt.Sprintf("cluster %q does not have it yet: %s", l.Cluster, l.Refused.Message)
	}
	return fmt.Sprintf("cluster %q refused it (%s): %s", l.Cluster, l.Refused.Reason, l.Refused.Message)
}

func firstRefusal(leaves []Leaf) string {
	for _, l := range leaves {
		if l.Refused != nil && !l.Observed && l.Refused.Reason != "" {
			return l.Refused.Reason
		}
	}
	return "Refused"
}

func join(sentences []string) string {
	sorted := slices.Sorted(slices.Values(sentences))
	return strings.Join(sorted, "; ")
}

func quoted(names []string) string {
	var out []string
	for _, n := range slices.Sorted(slices.Values(names)) {
		out = append(out, fmt.Sprintf("cluster %q", n))
	}
	return strings.Join(out, ", ")
}

func condition(d *appsv1.Deployment, t appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range d.Status.Conditions {
		if d.Status.Conditions[i].Type == t {
			return &d.Status.Conditions[i]
		}
	}
	return nil
}

// conditionSetter changes conditions only where they say something else than before, so that times do not make an
// unchanged status look changed.
type conditionSetter struct {
	now        metav1.Time
	conditions []appsv1.DeploymentCondition
}

func (s *conditionSetter) set(t appsv1.DeploymentConditionType, status corev1.ConditionStatus, reason, message string) {
	for i := range s.conditions {
		c := &s.conditions[i]
		if c.Type != t {
			continue
		}
		if c.Status == status && c.Reason == reason && c.Message == message {
			return
		}
		if c.Status != status {
			c.LastTransitionTime = s.now
		}
		c.Status, c.Reason, c.Message, c.LastUpdateTime = status, reason, message, s.now
		return
	}
	s.conditions = append(s.conditions, appsv1.DeploymentCondition{
		Type: t, Status: status, Reason: reason, Message: message, LastUpdateTime: s.now, LastTransitionTime: s.now,
	})
}

func (s *conditionSetter) remove(t appsv1.DeploymentConditionType) {
	s.conditions = slices.DeleteFunc(s.conditions, func(c appsv1.DeploymentCondition) bool { return c.Type == t })
}

func (s *conditionSetter) is(t appsv1.DeploymentConditionType, reason string) bool {
	return slices.ContainsFunc(s.conditions, func(c appsv1.DeploymentCondition) bool { return c.Type == t && c.Reason == reason })
}
