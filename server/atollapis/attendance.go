package atollapis

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/internal/attendance"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// labelWaiting gives a LogicalCluster the labels by which its attendants find it while it waits for them, and takes all others of
// their kind: its tenant may label the object, and must not show it to attendants that have no part in it.
func labelWaiting(c *corev1alpha1.LogicalCluster) {
	wanted := map[string]string{}
	for _, a := range attendance.All {
		for _, name := range a.WaitsFor(c) {
			key, value := a.Label(name)
			wanted[key], wanted[tenancyv1alpha1.PhaseLabel] = value, string(a.Phase)
		}
	}
	if len(c.Labels) == 0 && len(wanted) == 0 {
		return
	}
	labels := map[string]string{} // what c has may be shared with the object before
	maps.Copy(labels, c.Labels)
	maps.DeleteFunc(labels, func(key, _ string) bool {
		return key == tenancyv1alpha1.PhaseLabel ||
			slices.ContainsFunc(attendance.All, func(a *attendance.Attendance) bool { return strings.HasPrefix(key, a.LabelPrefix) })
	})
	maps.Copy(labels, wanted)
	if len(labels) == 0 {
		labels = nil
	}
	c.Labels = labels
}

// prepareLogicalClusterStatus ends the initialization with the last initializer. An attendant changes nothing but who is left.
func prepareLogicalClusterStatus(ctx context.Context, c, old *corev1alpha1.LogicalCluster) {
	if !isSystem(ctx) {
		sent := c.Status
		old.Status.DeepCopyInto(&c.Status)
		for _, a := range attendance.All {
			*a.Left(&c.Status) = *a.Left(&sent)
		}
	}
	if c.Status.Phase == corev1alpha1.LogicalClusterPhaseInitializing && attendance.Initialized(c) {
		c.Status.Phase = corev1alpha1.LogicalClusterPhaseReady
	}
	labelWaiting(c)
}

// validateLogicalClusterStatus lets nobody add an attendant, nor make ready what has initializers left. Who is not the system
// removes the attendant by whose path he came, and no other.
func validateLogicalClusterStatus(ctx context.Context, c, old *corev1alpha1.LogicalCluster) field.ErrorList {
	var errs field.ErrorList
	as, _ := attendance.From(ctx)
	for _, a := range attendance.All {
		path, left, before := field.NewPath("status", a.Field), *a.Left(&c.Status), *a.Left(&old.Status)
		for i, name := range left {
			if !slices.Contains(before, name) {
				errs = append(errs, field.Forbidden(path, fmt.Sprintf("must not grow: %s is not waited for", name)))
			} else if slices.Contains(left[:i], name) { // else who is done is not missed: attendance.Changed
				errs = append(errs, field.Duplicate(path.Index(i), name))
			}
		}
		for _, name := range before {
			if !isSystem(ctx) && !slices.Contains(left, name) && (as.Attendance != a || as.Name != name) {
				errs = append(errs, field.Forbidden(path, fmt.Sprintf("%s removes itself, by its own path", name)))
			}
		}
	}
	if !attendance.Initialized(c) && c.Status.Phase != old.Status.Phase && !c.Status.Phase.Ends() {
		errs = append(errs, field.Forbidden(field.NewPath("status", "phase"), "is Initializing, Terminating or Deleting while there are initializers"))
	}
	return errs
}

// showVirtualWorkspaces says where attendants of a type find the workspaces that wait for them. The address is the server's at the
// time; a later one shows with the next change of the type.
func showVirtualWorkspaces(ctx context.Context, t *tenancyv1alpha1.WorkspaceType, urlBase string) {
	t.Status = tenancyv1alpha1.WorkspaceTypeStatus{}
	cluster, ok := lcctx.ClusterFrom(ctx)
	if !ok {
		return
	}
	for _, a := range attendance.All {
		if a.Of(&t.Spec) {
			url := urlBase + a.Path + string(attendance.Name(cluster.Name.String(), t.Name))
			t.Status.VirtualWorkspaces = append(t.Status.VirtualWorkspaces, tenancyv1alpha1.VirtualWorkspace{URL: url, Type: a.Kind})
		}
	}
}
