package workspaces

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/attendance"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// worthALook says whether an event of a Workspace asks for something that no reconciliation under way or its retry does
// anyway. Our own writes come back as events and must not start a second round on the state before the last of them.
func worthALook(e client.Event[*tenancyv1alpha1.Workspace]) bool {
	const ready = corev1alpha1.LogicalClusterPhaseReady
	switch {
	case e.Deleted():
		return false
	case e.New.DeletionTimestamp != nil:
		return e.Old == nil || e.Old.DeletionTimestamp == nil || len(e.Old.Finalizers) != len(e.New.Finalizers)
	case e.Old == nil:
		return e.New.Status.Phase != ready
	case e.Old.Annotations[tenancyv1alpha1.ImportingAnnotation] != "" && e.New.Annotations[tenancyv1alpha1.ImportingAnnotation] == "":
		return true
	}
	return e.Old.Status.Phase == ready && e.New.Status.Phase != ready
}

// pathOf is the path of a Workspace whose parent is the given logical cluster. A parent outside the tree has no path;
// the name of its logical cluster leads to it as well.
func pathOf(parent *corev1alpha1.LogicalCluster, w *tenancyv1alpha1.Workspace) logicalcluster.Path {
	path := logicalcluster.NewPath(parent.Annotations[lcctx.PathAnnotation])
	if path.Empty() {
		path = lcctx.NameFrom(parent).Path()
	}
	return path.Join(w.Name)
}

// ownerSubject is the subject of the binding that gives the owner of a workspace all rights in it. A service account of
// the parent keeps apart from one of the same name in the workspace: it gets the name that kcp gives to service accounts
// of another logical cluster.
func ownerSubject(owner string, parent logicalcluster.Name) rbacv1.Subject {
	name := owner
	if ns, account, err := serviceaccount.SplitUsername(owner); err == nil {
		name = fmt.Sprintf("system:kcp:serviceaccount:%s:%s:%s", parent, ns, account)
	}
	return rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}
}

// remains is what a deletion waits for.
type remains struct {
	// terminators that are not done. While there are any nothing goes.
	terminators []attendance.Attendant
	// workspaces and syncTargets inside, by name.
	workspaces, syncTargets []string
	// clusters that placements still name, or whose mirrors still have leaves, by name, as often as there are such.
	clusters []string
	// held is what finalizers hold, refused why some of it could not be asked to go.
	held    lcctx.Held
	refused string
}

func (r remains) nothing() bool {
	return len(r.terminators)+len(r.workspaces)+len(r.syncTargets)+len(r.clusters) == 0 && r.held.Empty()
}

// condition tells a user what the deletion waits for. It changes only when that does.
func (r remains) condition(generation int64) metav1.Condition {
	c := metav1.Condition{
		Type:               tenancyv1alpha1.WorkspaceContentDeleted,
		Status:             metav1.ConditionFalse,
		Reason:             "ContentRemains",
		ObservedGeneration: generation,
	}
	var waits []string
	if len(r.terminators) > 0 {
		c.Reason = "TerminatorExists"
		waits = append(waits, "terminators "+enumerate(r.terminators))
	}
	if len(r.workspaces) > 0 {
		waits = append(waits, "workspaces "+enumerate(r.workspaces))
	}
	if len(r.syncTargets) > 0 {
		waits = append(waits, "SyncTargets "+enumerate(r.syncTargets))
	}
	if len(r.clusters) > 0 {
		// No count of leaves: the condition would be written again for each of them that goes.
		waits = append(waits, "physical clusters to remove what runs there: "+enumerate(r.clusters))
	}
	if !r.held.Empty() {
		c.Reason = "SomeFinalizersRemain"
		waits = append(waits, finalizersRemain(r.held))
	}
	c.Message = "Waiting for " + strings.Join(waits, ", ")
	if r.refused != "" {
		c.Message += ". " + r.refused
	}
	if r.nothing() {
		c.Reason, c.Message = "DeletingContent", "Deleting objects"
	}
	return c
}

// finalizersRemain names what finalizers hold and what these are, with the number of objects of each. The condition is
// written again when one goes, but not for each of many that go together.
func finalizersRemain(held lcctx.Held) string {
	resources := map[string]int{}
	for gr, n := range held.Objects {
		resources[gr.String()] = n
	}
	return fmt.Sprintf("finalizers of %s: %s", enumerate(counts(resources)), enumerate(counts(held.Finalizers)))
}

func counts(of map[string]int) []string {
	var all []string
	for what, n := range of {
		all = append(all, fmt.Sprintf("%s (%d)", what, n))
	}
	return all
}

// enumerate names the first few, in order and each once.
func enumerate[T ~string](names []T) string {
	const few = 5
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	var shown []string
	for _, name := range names[:min(few, len(names))] {
		shown = append(shown, string(name))
	}
	if len(names) > few {
		return fmt.Sprintf("%s and %d more", strings.Join(shown, ", "), len(names)-few)
	}
	return strings.Join(shown, ", ")
}
