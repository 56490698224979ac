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
	target, err := meta.Accessor(a.GetOldObject())
	if err != nil {
		return err
	}
	if placements, workspaces := u.placed(target.GetUID()); placements > 0 {
		warning.AddWarning(ctx, "", fmt.Sprintf("cluster %q is in use by %s of %s. It takes nothing new, what may run elsewhere moves now, "+
			"and it stays until the rest has been moved. \"atoll cluster remove %s\" shows what that is, and removes nothing that is in use",
			target.GetName(), number(placements, "placement"), number(workspaces, "workspace"), target.GetName()))
	}
	return nil
}

func number(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}
