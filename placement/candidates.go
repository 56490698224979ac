package placement

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/attendance"
	"atoll.dev/atoll/internal/fleet"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

func isTerminating(lc *corev1alpha1.LogicalCluster) bool {
	return lc.DeletionTimestamp != nil || lc.Status.Phase.Ends()
}

// isAttended says whether a workspace waits for initializers or terminators: nothing of it is placed before the first are done,
// nor taken away before the others are.
func isAttended(lc *corev1alpha1.LogicalCluster) bool {
	return slices.ContainsFunc(attendance.All, func(a *attendance.Attendance) bool { return len(a.WaitsFor(lc)) > 0 })
}

// candidatesOf returns what a workspace can use of the SyncTargets that syncTargets returns for it and for every logical
// cluster above it, nearest first, policies aside.
func candidatesOf(lc *corev1alpha1.LogicalCluster, levels [][]*workloadv1alpha1.SyncTarget) []Candidate {
	total := 0
	for _, level := range levels {
		total += len(level)
	}
	candidates := make([]Candidate, 0, total)
	for t, shadowed := range fleet.Reachable(lc, levels) {
		candidates = append(candidates, Candidate{
			Name: t.Name, UID: t.UID, Workspace: string(lcctx.NameFrom(t)), Mirror: string(client.MirrorOf(t)),
			Labels: t.Labels, Shadowed: shadowed,
			Ready:       isReady(t),
			Cordoned:    t.Spec.Unschedulable,
			ObserveOnly: isObserved(t),
			Deleting:    t.DeletionTimestamp != nil,
			Duplicate:   t.IsDuplicate(),
			RunsNothing: t.RunsNothing(),
			Carries:     carries(t),
		})
	}
	return candidates
}

// carries returns what a SyncTarget's syncer carries; nil if it was never heard of. It gets then what it is to get by its name alone,
// and no leaf of what it does not carry.
func carries(t *workloadv1alpha1.SyncTarget) []string {
	if t.Status.Version == "" {
		return nil
	}
	return slices.Concat(workloadv1alpha1.CarriedByAll, t.Status.CarriedResources)
}

func isObserved(t *workloadv1alpha1.SyncTarget) bool {
	return meta.IsStatusConditionTrue(t.Status.Conditions, workloadv1alpha1.SyncTargetObserveOnly)
}

func isReady(t *workloadv1alpha1.SyncTarget) bool {
	return meta.IsStatusConditionTrue(t.Status.Conditions, workloadv1alpha1.SyncTargetReady)
}

// policiesOf returns allow from the root downward, and the default of the nearest level that has one, or nil. levels are
// the policies nearest first; within a level the first by name has the default.
func policiesOf(levels [][]*placementv1alpha1.PlacementPolicy) (allow []placementv1alpha1.ClusterSelection, def *placementv1alpha1.PlacementDefault) {
	for _, level := range slices.Backward(levels) {
		level = slices.SortedFunc(slices.Values(level), func(a, b *placementv1alpha1.PlacementPolicy) int {
			return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(string(a.UID), string(b.UID)))
		})
		var here *placementv1alpha1.PlacementDefault
		for _, p := range level {
			if p.Spec.Allow != nil {
				allow = append(allow, *p.Spec.Allow)
			}
			if here == nil {
				here = p.Spec.Default
			}
		}
		if here != nil {
			def = here
		}
	}
	return allow, def
}

func uidsOf(clusters []placementv1alpha1.PlacedCluster) []types.UID {
	uids := make([]types.UID, len(clusters))
	for i, c := range clusters {
		uids[i] = c.UID
	}
	return uids
}
