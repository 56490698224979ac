package v1alpha1

import "k8s.io/apimachinery/pkg/api/meta"

// ReasonDuplicate is the reason of SyncTargetReady where another SyncTarget is the same physical cluster.
const ReasonDuplicate = "Duplicate"

// IsDuplicate says whether a SyncTarget was found to be a duplicate and was not let in since.
func (t *SyncTarget) IsDuplicate() bool {
	ready := meta.FindStatusCondition(t.Status.Conditions, SyncTargetReady)
	return ready != nil && ready.Reason == ReasonDuplicate
}

// WasSynced says whether a SyncTarget was synced once, with another kubeconfig for instance: what it ran then may run on.
func (t *SyncTarget) WasSynced() bool {
	return meta.FindStatusCondition(t.Status.Conditions, SyncTargetObserveOnly) != nil
}

// RunsNothing says whether a SyncTarget is a duplicate and never was anything else.
func (t *SyncTarget) RunsNothing() bool { return t.IsDuplicate() && !t.WasSynced() }
