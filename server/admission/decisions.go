package admission

import (
	"context"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
)

// Decisions refuses Placements from everybody but the server. Authorization refuses them from the users of workspaces already; what
// administrators of the server wrote would be carried out past wishes and policies. They may delete one: without a decision nothing
// moves, and the server makes another.
type Decisions struct {
	*admission.Handler
}

var placements = schema.GroupResource{Group: placementv1alpha1.GroupVersion.Group, Resource: "placements"}

var errDecision = errors.New("the server alone writes Placements. To have it decide otherwise, annotate the object, its namespace, or for the whole " +
	`workspace the LogicalCluster "cluster": placement.atoll.dev/clusters=NAME,NAME (docs/placement.md)`)

// NewDecisions returns the plugin.
func NewDecisions() *Decisions {
	return &Decisions{Handler: admission.NewHandler(admission.Create, admission.Update)}
}

// Validate refuses whatever subresource is written.
func (*Decisions) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	who := a.GetUserInfo()
	isServer := who.GetName() == user.APIServerUser && slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup)
	if a.GetResource().GroupResource() != placements || isServer {
		return nil
	}
	return admission.NewForbidden(a, errDecision)
}
