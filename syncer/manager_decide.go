package syncer

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/classes"
)

// Reasons of a SyncTarget's condition Ready that the Manager writes.
const (
	ReasonHeartbeatLost     = "HeartbeatLost"     // no heartbeat for 40 s
	ReasonNotConnected      = "NotConnected"      // no syncer has reported yet
	ReasonIdentified        = "Identified"        // it answers, and is not yet compared with the other SyncTargets
	ReasonKubeconfigInvalid = "KubeconfigInvalid" // push, with a kubeconfig that cannot be used
	ReasonMirrorTaken       = "MirrorTaken"       // status.mirror names a logical cluster of somebody else
	ReasonMirrorInvalid     = "MirrorInvalid"     // status.mirror is no name that a mirror can have
	ReasonTerminating       = "Terminating"       // deleted, and what it runs is not gone yet; the status is that of what it runs on
)

// ReasonDuplicate is the reason where another SyncTarget is the same physical cluster.
const ReasonDuplicate = workloadv1alpha1.ReasonDuplicate

// confirmAbandon is ConfirmAnnotation's value that lets a deleted SyncTarget go although its physical cluster still
// has what was put there, because nobody can reach it any more.
const confirmAbandon = "abandon"

// problem keeps a SyncTarget from being synced.
type problem struct {
	reason, message string
}

func (p *problem) Error() string { return p.reason + ": " + p.message }

// fromTwin are the condition types that the Syncer writes; all others on a SyncTarget are other components'.
var fromTwin = []string{workloadv1alpha1.SyncTargetReady, workloadv1alpha1.SyncTargetObserveOnly, ConditionOrphans}

// clusterUID returns which physical cluster a SyncTarget is. What it was once is not forgotten with a twin that was made
// anew: in that moment another could take the cluster for its own.
func clusterUID(target, twin *workloadv1alpha1.SyncTarget) string {
	if twin == nil || twin.Status.ClusterUID == "" {
		return target.Status.ClusterUID
	}
	return twin.Status.ClusterUID
}

// targetStatus returns what a SyncTarget's status should be. twin is nil where it does not exist yet, heard is zero
// where no heartbeat was ever seen. again is when time alone may change the answer; 0 is never.
//
// A duplicate's twin tells of another SyncTarget's cluster: nothing of that is copied but its UID. So SyncTargetObserveOnly
// is missing for as long as a SyncTarget has never been synced (see RunsNothing).
func targetStatus(target, twin *workloadv1alpha1.SyncTarget, heard time.Time, p *problem, now time.Time) (status workloadv1alpha1.SyncTargetStatus, again time.Duration) {
	status = *target.Status.DeepCopy()
	set := func(c metav1.Condition) {
		c.ObservedGeneration, c.LastTransitionTime = target.Generation, metav1.NewTime(now)
		meta.SetStatusCondition(&status.Conditions, c)
	}
	status.ClusterUID = clusterUID(target, twin)
	// Until it is stored which physical cluster it is, nobody could be compared with it.
	compared := status.ClusterUID != "" && status.ClusterUID == target.Status.ClusterUID
	if isDuplicate := p != nil && p.reason == ReasonDuplicate; twin != nil && compared && !isDuplicate {
		status.Version, status.Capacity, status.Nodes, status.LastHeartbeat = twin.Status.Version, twin.Status.Capacity, twin.Status.Nodes, twin.Status.LastHeartbeat
		status.CarriedResources = slices.Clone(twin.Status.CarriedResources)
		// A syncer outside this process writes the twin: only what keeps within bounds goes on.
		status.Classes = classes.Checked(twin.Status.Classes)
		status.Difference = twin.Status.Difference.DeepCopy()
		for _, kind := range fromTwin {
			if c := meta.FindStatusCondition(twin.Status.Conditions, kind); c != nil && kind != workloadv1alpha1.SyncTargetReady {
				set(*c)
			}
		}
	}

	ready := metav1.Condition{Type: workloadv1alpha1.SyncTargetReady, Status: metav1.ConditionUnknown,
		Reason: ReasonNotConnected, Message: "No syncer has reported yet."}
	silent := now.Sub(heard)
	ends := p != nil && p.reason == ReasonTerminating
	switch {
	case p != nil && !ends:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, p.reason, p.message
	case heard.IsZero():
	case silent > silence:
		ready.Reason, ready.Message = ReasonHeartbeatLost, fmt.Sprintf("The syncer has not been heard of for %s.", silence)
	default:
		again = silence - silent + time.Second
		if twin != nil {
			if c := meta.FindStatusCondition(twin.Status.Conditions, workloadv1alpha1.SyncTargetReady); c != nil {
				ready.Status, ready.Reason, ready.Message = c.Status, c.Reason, c.Message
			}
			if ready.Status == metav1.ConditionTrue && !compared {
				ready.Status, ready.Reason = metav1.ConditionUnknown, ReasonIdentified
				ready.Message = "The physical cluster answers. It is looked which one it is, and whether another SyncTarget is the same."
			}
		}
	}
	if ends {
		// It is synced as ever, and what it runs counts for as long as it is heard of.
		if ready.Reason != ReasonIdentified {
			ready.Reason = p.reason
		}
		if ready.Status == metav1.ConditionTrue {
			ready.Message = p.message
		} else {
			ready.Message = p.message + " " + ready.Message
		}
	}
	set(ready)
	return status, again
}

// precedes says which of two SyncTargets of one physical cluster in one workspace is the one that is synced: one that is
// deleted and not gone yet, since nobody else can take away what it runs there; then the one that works, and has worked for
// longer; then one that is about to work; then the older. By age alone, a registration that never worked would take the cluster
// from the one that runs everything as soon as it is mended. Last comes one that is deleted and runs nothing there.
func precedes(a, b *workloadv1alpha1.SyncTarget) bool {
	rank := func(t *workloadv1alpha1.SyncTarget) (rank int, since time.Time) {
		ready := meta.FindStatusCondition(t.Status.Conditions, workloadv1alpha1.SyncTargetReady)
		if ready == nil {
			ready = &metav1.Condition{}
		}
		isNew := ready.Reason == ReasonIdentified // what it was synced to before was another cluster
		switch {
		case t.DeletionTimestamp != nil && t.WasSynced() && !isNew:
			return 0, since
		case t.DeletionTimestamp != nil:
			return 4, since
		case ready.Status == metav1.ConditionTrue:
			return 1, ready.LastTransitionTime.Time
		case isNew:
			return 2, since
		}
		return 3, since
	}
	rankA, sinceA := rank(a)
	rankB, sinceB := rank(b)
	if rankA != rankB {
		return rankA < rankB
	}
	if !sinceA.Equal(sinceB) {
		return sinceA.Before(sinceB)
	}
	return older(a, b)
}

func older(a, b *workloadv1alpha1.SyncTarget) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.UID < b.UID
}

// original returns which of the SyncTargets that say they are one physical cluster is the one that is synced, nil for
// none of none. Who is a duplicate already comes last, so that two never change places. Readiness counts within a workspace
// alone: which cluster it is, and that it is well, is the word of whoever answers at the address that a workspace's owner
// wrote, and must not take a cluster from another workspace.
func original(claims []*workloadv1alpha1.SyncTarget, cluster func(*workloadv1alpha1.SyncTarget) string) *workloadv1alpha1.SyncTarget {
	if holders := without(claims, (*workloadv1alpha1.SyncTarget).IsDuplicate); len(holders) > 0 {
		claims = holders
	}
	if len(claims) == 0 {
		return nil
	}
	oldest := claims[0]
	for _, t := range claims {
		if older(t, oldest) {
			oldest = t
		}
	}
	first := oldest
	for _, t := range claims {
		if cluster(t) == cluster(oldest) && precedes(t, first) {
			first = t
		}
	}
	return first
}

func without(targets []*workloadv1alpha1.SyncTarget, drop func(*workloadv1alpha1.SyncTarget) bool) []*workloadv1alpha1.SyncTarget {
	return slices.DeleteFunc(slices.Clone(targets), drop)
}

// duplicateOf returns the problem that another SyncTarget is the original of the physical cluster whose UID target's syncer
// reports. same are those whose status names that UID. Where target's does not yet, and another workspace holds the
// cluster, target is a duplicate from its first word, however old it is. The original is named only if it is in the same
// logical cluster: a tenant is not told what others have.
func duplicateOf(target *workloadv1alpha1.SyncTarget, uid string, same []*workloadv1alpha1.SyncTarget, cluster func(*workloadv1alpha1.SyncTarget) string) *problem {
	isTarget := func(t *workloadv1alpha1.SyncTarget) bool { return t.UID == target.UID }
	home := func(t *workloadv1alpha1.SyncTarget) bool { return cluster(t) == cluster(target) }
	claims := append(without(same, isTarget), target)
	if target.Status.ClusterUID != uid {
		if target.IsDuplicate() {
			// As another cluster it is judged once its status says so, still as a duplicate: it comes after whoever holds that.
			return &problem{ReasonDuplicate, "It is another physical cluster now, which is looked at."}
		}
		claims = without(without(without(same, isTarget), (*workloadv1alpha1.SyncTarget).IsDuplicate), home)
	}
	switch first := original(claims, cluster); {
	case first == nil || isTarget(first):
		return nil
	case home(first) && first.DeletionTimestamp != nil:
		return &problem{ReasonDuplicate, fmt.Sprintf("SyncTarget %q is the same physical cluster. It is being removed, and its condition Ready says what that waits for: "+
			"this one is synced when it is gone.", first.Name)}
	case home(first):
		return &problem{ReasonDuplicate, fmt.Sprintf("SyncTarget %q is the same physical cluster.", first.Name)}
	}
	return &problem{ReasonDuplicate, "A SyncTarget of another workspace is the same physical cluster."}
}

// letInTo returns the LetInAnnotation's value of a SyncTarget's twin, nil if there is none, given whether another one is the same
// physical cluster. It is let in once it is stored that it claims the cluster: whoever comes later is compared with that.
func letInTo(target, twin *workloadv1alpha1.SyncTarget, duplicate *problem) string {
	uid := clusterUID(target, twin)
	if duplicate != nil || target.IsDuplicate() || target.Status.ClusterUID != uid {
		return ""
	}
	return uid
}

// waitingFor returns why a deleted SyncTarget cannot go yet; nil if it can. placements are those that name it, held
// what its mirror still has.
func waitingFor(placements, held []string, abandoned bool) *problem {
	switch {
	case len(placements) > 0:
		return &problem{ReasonTerminating, fmt.Sprintf("Waits until %d placements have left it: %s. What names it, or has no other cluster to go to, stays until you place it elsewhere or nowhere.",
			len(placements), some(slices.Sorted(slices.Values(placements))))}
	case len(held) > 0 && !abandoned:
		return &problem{ReasonTerminating, fmt.Sprintf("Waits until what it runs is gone there: %s. If the physical cluster is lost for good, or its syncer is, annotate %s=%s: what runs there then runs on.",
			some(slices.Sorted(slices.Values(held))), workloadv1alpha1.ConfirmAnnotation, confirmAbandon)}
	}
	return nil
}
