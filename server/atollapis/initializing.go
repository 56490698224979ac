package atollapis

import (
	"context"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// initializersPath is where an initializer removes itself.
var initializersPath = field.NewPath("status", "initializers")

// labelInitializing gives a LogicalCluster the labels by which its initializers find it while it waits for them, and takes all
// others of their kind: its tenant may label the object, and must not show it to initializers that have no part in it.
func labelInitializing(c *corev1alpha1.LogicalCluster) {
	ours := func(key, _ string) bool {
		return key == tenancyv1alpha1.PhaseLabel || strings.HasPrefix(key, tenancyv1alpha1.InitializerLabelPrefix)
	}
	waits := c.Status.Phase == corev1alpha1.LogicalClusterPhaseInitializing && len(c.Status.Initializers) > 0
	if len(c.Labels) == 0 && !waits {
		return
	}
	labels := map[string]string{} // what c has may be shared with the object before
	maps.Copy(labels, c.Labels)
	maps.DeleteFunc(labels, ours)
	if waits {
		labels[tenancyv1alpha1.PhaseLabel] = string(c.Status.Phase)
		for _, i := range c.Status.Initializers {
			key, value := tenancyv1alpha1.InitializerLabel(i)
			labels[key] = value
		}
	}
	if len(labels) == 0 {
		labels = nil
	}
	c.Labels = labels
}

// prepareLogicalClusterStatus ends the initialization with the last initializer. Who initializes changes nothing else.
func prepareLogicalClusterStatus(ctx context.Context, c, old *corev1alpha1.LogicalCluster) {
	if !isSystem(ctx) {
		left := c.Status.Initializers
		old.Status.DeepCopyInto(&c.Status)
		c.Status.Initializers = left
	}
	if c.Status.Phase == corev1alpha1.LogicalClusterPhaseInitializing && len(c.Status.Initializers) == 0 {
		c.Status.Phase = corev1alpha1.LogicalClusterPhaseReady
	}
	labelInitializing(c)
}

// validateLogicalClusterStatus lets nobody add an initializer, nor be done before the last is gone. Who is not the system removes
// the initializer by whose path he came, and no other.
func validateLogicalClusterStatus(ctx context.Context, c, old *corev1alpha1.LogicalCluster) field.ErrorList {
	var errs field.ErrorList
	for _, i := range c.Status.Initializers {
		if !slices.Contains(old.Status.Initializers, i) {
			errs = append(errs, field.Forbidden(initializersPath, "must not grow: "+string(i)+" is not waited for"))
		}
	}
	own := corev1alpha1.LogicalClusterInitializer(lcctx.InitializerFrom(ctx))
	for _, i := range old.Status.Initializers {
		if !isSystem(ctx) && i != own && !slices.Contains(c.Status.Initializers, i) {
			errs = append(errs, field.Forbidden(initializersPath, "only removing "+string(own)+" is possible here, "+string(i)+" removes itself"))
		}
	}
	before, now := old.Status.Phase, c.Status.Phase
	if before == corev1alpha1.LogicalClusterPhaseInitializing && len(c.Status.Initializers) > 0 &&
		now != before && now != corev1alpha1.LogicalClusterPhaseTerminating {
		errs = append(errs, field.Forbidden(field.NewPath("status", "phase"), "is Initializing while there are initializers"))
	}
	return errs
}

// showVirtualWorkspaces says where initializers of a type find the workspaces that wait for them. The address is the server's at
// the time; a later one shows with the next change of the type.
func showVirtualWorkspaces(ctx context.Context, t *tenancyv1alpha1.WorkspaceType, urlBase string) {
	t.Status = tenancyv1alpha1.WorkspaceTypeStatus{}
	if cluster, ok := lcctx.ClusterFrom(ctx); ok && t.Spec.Initializer {
		initializer := tenancyv1alpha1.InitializerOf(cluster.Name.String(), t.Name)
		t.Status.VirtualWorkspaces = []tenancyv1alpha1.VirtualWorkspace{{URL: urlBase + tenancyv1alpha1.InitializingPath + string(initializer)}}
	}
}
