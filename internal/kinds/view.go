package kinds

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// View is what is known of a root's leaves when its status is summarised.
type View struct {
	// Leaves sorted by name of their cluster.
	Leaves []Leaf
	// Desired is the sum of replicas over all assigned clusters; 0 for kinds without replicas.
	Desired int32
	// NotPlaced is set while the Placement gives no cluster, or not all that were asked for.
	NotPlaced *Reason
	// Gone says how what has begun, and is not begun again, went without a leaf; empty if it did not.
	Gone string
	// Now is the time for conditions that change.
	Now time.Time
}

// Reason is why something is not as wanted.
type Reason struct {
	// Reason is CamelCase, Message one sentence.
	Reason, Message string
}

// Leaf is one leaf, or the lack of one, in one cluster.
type Leaf struct {
	// Cluster is the name of the SyncTarget.
	Cluster string
	// Assigned says that the Placement names the cluster, or that a DaemonSet belongs there beside a workload that stays. Otherwise it is
	// being left.
	Assigned bool
	// Lost says that the cluster is not heard of: what it last reported may not be so any more.
	Lost bool
	// Observed says that nothing is written to the cluster until an administrator confirms, since it or the hub was restored:
	// what the leaf says it has may be of another time than what it has.
	Observed bool
	// Target is the share of replicas the cluster gets in the end.
	Target int32
	// Current says that the leaf is what the root's present generation renders to.
	Current bool
	// SameTemplate says that the leaf's pod template is the root's present one.
	SameTemplate bool
	// Settled says that the physical cluster has taken the leaf as it is now, and its controller has observed it.
	Settled bool
	// Refused is what the cluster answered to the leaf as it is now, if it would not take it.
	Refused *workloadv1alpha1.Refusal
	// Object is the leaf; nil if there is none yet.
	Object ctrlclient.Object
}

// Finished says that a cluster has rolled out its leaf as it is: every pod it should have is as it should be, and there is no
// other. What makes no pods is never finished.
func (l Leaf) Finished() bool {
	k, ok := l.settledKind()
	return ok && k.RolledOut(l.Object)
}

// Serves is Finished, but for pods that nobody replaces by himself.
func (l Leaf) Serves() bool {
	k, ok := l.settledKind()
	if ok && k.Serves != nil {
		return k.Serves(l.Object)
	}
	return l.Finished()
}

// settledKind is the kind of a leaf that makes pods, if its cluster has taken it as it is.
func (l Leaf) settledKind() (Kind, bool) {
	if l.Object == nil || !l.Settled {
		return Kind{}, false
	}
	k, ok := Of(l.Object)
	return k, ok && k.MakesPods()
}

// observed says that every assigned cluster has taken what the root renders to, apart from those that are not heard of, and that
// there is one.
func (v View) observed() bool {
	heard := false
	for _, l := range v.Leaves {
		if !l.Assigned || l.Lost {
			continue
		}
		if heard = true; l.Object == nil || !l.Current || !l.Settled {
			return false
		}
	}
	return heard
}

// lost are the assigned clusters that are not heard of.
func (v View) lost() []string {
	return v.clusters(func(l Leaf) bool { return l.Lost && l.Assigned })
}

// observedOnly are the clusters that are only observed, also of those that are being left: what runs there still counts.
func (v View) observedOnly() []string {
	return v.clusters(func(l Leaf) bool { return l.Observed && !l.Lost && (l.Assigned || l.Object != nil) })
}

// clusters are those whose leaves are so.
func (v View) clusters(is func(Leaf) bool) (names []string) {
	for _, l := range v.Leaves {
		if is(l) {
			names = append(names, l.Cluster)
		}
	}
	return names
}

// trouble is a condition of ours that is False.
type trouble struct {
	// condition is ConditionPlaced or ConditionSynced.
	condition string
	Reason
}

// troubles are the conditions of ours that are False, by their type.
func (v View) troubles() (troubles []trouble) {
	var refusals []string
	for _, l := range v.Leaves {
		// Where nothing is changed, a refusal is of before, such as of a cluster that did not answer then.
		if l.Refused != nil && !l.Observed {
			refusals = append(refusals, refusalOf(l))
		}
	}
	if v.NotPlaced != nil {
		troubles = append(troubles, trouble{ConditionPlaced, *v.NotPlaced})
	}
	switch lost, observedOnly := v.lost(), v.observedOnly(); {
	case len(refusals) > 0:
		troubles = append(troubles, trouble{ConditionSynced, Reason{firstRefusal(v.Leaves), join(refusals)}})
	case len(lost) > 0:
		troubles = append(troubles, trouble{ConditionSynced, Reason{reasonUnreachable,
			fmt.Sprintf("Not heard of, their replicas count as not ready: %s.", quoted(lost))}})
	case len(observedOnly) > 0:
		troubles = append(troubles, trouble{ConditionSynced, Reason{reasonObserveOnly, onlyObserved(observedOnly)}})
	}
	return troubles
}

// falseSince is since when a condition is False that is False now, given those of before, of which tells what each says.
func falseSince[C any](before []C, condition string, now time.Time, of func(C) (condition string, status corev1.ConditionStatus, since metav1.Time)) metav1.Time {
	for _, c := range before {
		if is, status, since := of(c); is == condition && status == corev1.ConditionFalse {
			return since
		}
	}
	return metav1.NewTime(now)
}

// holdsOn is how many pods are updated: told were of this generation, settled are by reports on what the leaves are now, and unsettled by those on
// what they were. What was told holds on while metadata, another share or another part of the strategy goes down.
func holdsOn(told, settled, unsettled int32) int32 {
	return settled + min(unsettled, max(0, told-settled))
}

// mostCollisions is the greater of two counts, either of which may be missing. It is a copy: what is decoded into a status overwrites what that
// points to.
func mostCollisions(a, b *int32) *int32 {
	if a == nil && b == nil {
		return nil
	}
	return ptr.To(max(ptr.Deref(a, 0), ptr.Deref(b, 0)))
}
