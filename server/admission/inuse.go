package admission

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/logicalcluster"
)

// InUse warns who deletes a SyncTarget that runs something. It refuses nothing: the SyncTarget stays until all of it has left.
type InUse struct {
	*admission.Handler
	placed PlacedOn
}

// PlacedOn counts the Placements that name a SyncTarget, and the workspaces that they are in.
type PlacedOn func(target types.UID) (placements, workspaces int)

// NewInUse returns the plugin.
func NewInUse(placed PlacedOn) *InUse {
	return &InUse{Handler: admission.NewHandler(admission.Delete), placed: placed}
}

// Validate adds the warning.
func (u *InUse) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	cluster, ok := logicalcluster.ClusterFrom(ctx)
	resource := a.GetResource()
	if !ok || cluster.Mirror || a.GetSubresource() != "" || a.GetOldObject() == nil ||
		resource.Group != workloadv1alpha1.GroupVersion.Group || resource.Resource != "synctargets" {
		return nil
	}
	target, ok := a.GetOldObject().(*workloadv1alpha1.SyncTarget)
	if !ok {
		return nil
	}
	if placements, workspaces := u.placed(target.GetUID()); placements > 0 {
		warning.AddWarning(ctx, "", fmt.Sprintf("cluster %q is in use by %s of %s. It takes nothing new, what may run elsewhere moves now, "+
			"and it stays until the rest has been moved. \"atoll cluster remove %s\" shows what that is, and removes nothing that is in use",
			target.GetName(), number(placements, "placement"), number(workspaces, "workspace"), target.GetName()))
	} else if target.Status.Mirror != "" && !target.RunsNothing() && !meta.IsStatusConditionTrue(target.Status.Conditions, workloadv1alpha1.SyncTargetReady) {
		// What has been moved away, and is counted in the Placements by name alone, cannot leave it.
		warning.AddWarning(ctx, "", fmt.Sprintf("cluster %q is away. What it still runs, of which nothing there can tell, is gone only when it is back: the SyncTarget "+
			"waits for that. \"atoll cluster remove %s\" shows what is counted there. If it is lost for good, annotate the SyncTarget %s=abandon: what runs there then runs on",
			target.GetName(), target.GetName(), workloadv1alpha1.ConfirmAnnotation))
	}
	return nil
}

func number(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}
