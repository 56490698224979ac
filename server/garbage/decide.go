package garbage

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// state is what became of an owner.
type state int

const (
	// solid owners exist; they may be being deleted, but not before what they own.
	solid state = iota
	// dangling references name what does not exist.
	dangling
	// waiting owners are being deleted and wait for what they own.
	waiting
)

// plan is what is to be done with an object that has owners.
type plan struct {
	// release are owners that are to be taken off the object's references.
	release []types.UID
	// unblock says that none of the references may keep its owner from going any more.
	unblock bool
	// remove says that the object is to be deleted, foreground that it then waits for its own dependents.
	remove, foreground bool
}

// decide says what is to be done with an object whose references, in the same order as states, name such owners. It is as in
// Kubernetes: what has an owner that stays, stays and lets the others go; what has none left goes, before its owners if
// they wait for it and it has, or may have, dependents itself. dependentWaits says that one of these waits for its own in
// turn, which may be a circle of objects that would wait for each other.
func decide(refs []metav1.OwnerReference, states []state, mayHaveDependents, dependentWaits bool) plan {
	if len(refs) == 0 {
		return plan{}
	}
	stays, waits := slices.Contains(states, solid), slices.Contains(states, waiting)
	switch {
	case stays:
		var p plan
		for i, ref := range refs {
			if states[i] != solid {
				p.release = append(p.release, ref.UID)
			}
		}
		return p
	case waits && mayHaveDependents:
		return plan{remove: true, foreground: true, unblock: dependentWaits && slices.ContainsFunc(refs, blocks)}
	}
	return plan{remove: true}
}

// without returns the references that name none of the owners.
func without(refs []metav1.OwnerReference, owners []types.UID) []metav1.OwnerReference {
	kept := []metav1.OwnerReference{}
	for _, ref := range refs {
		if !slices.Contains(owners, ref.UID) {
			kept = append(kept, ref)
		}
	}
	return kept
}

// unblocked returns the references, of which none keeps its owner from going.
func unblocked(refs []metav1.OwnerReference) []metav1.OwnerReference {
	free := slices.Clone(refs)
	for i := range free {
		if blocks(free[i]) {
			free[i].BlockOwnerDeletion = new(bool)
		}
	}
	return free
}
