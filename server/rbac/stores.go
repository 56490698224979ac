package rbac

import (
	"fmt"

	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"

	clusterrolestore "k8s.io/kubernetes/pkg/registry/rbac/clusterrole/storage"
	clusterrolebindingstore "k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding/storage"
	rolestore "k8s.io/kubernetes/pkg/registry/rbac/role/storage"
	rolebindingstore "k8s.io/kubernetes/pkg/registry/rbac/rolebinding/storage"
)

// Stores are the registries of the four resources, each over all logical clusters. The authoriser reads them and the
// provider serves them, so that each resource has one watch cache.
type Stores struct {
	Roles               rest.StandardStorage
	RoleBindings        rest.StandardStorage
	ClusterRoles        rest.StandardStorage
	ClusterRoleBindings rest.StandardStorage

	shared *sharedPolicy
}

// NewStores builds the registries over getter, whose storage shares the objects of Bootstrap. Call it once for a server.
func NewStores(getter generic.RESTOptionsGetter) (*Stores, error) {
	roles, err := rolestore.NewREST(getter)
	if err != nil {
		return nil, fmt.Errorf("store of roles: %w", err)
	}
	roleBindings, err := rolebindingstore.NewREST(getter)
	if err != nil {
		return nil, fmt.Errorf("store of rolebindings: %w", err)
	}
	clusterRoles, err := clusterrolestore.NewREST(getter)
	if err != nil {
		return nil, fmt.Errorf("store of clusterroles: %w", err)
	}
	clusterRoleBindings, err := clusterrolebindingstore.NewREST(getter)
	if err != nil {
		return nil, fmt.Errorf("store of clusterrolebindings: %w", err)
	}
	bootstrap, err := Bootstrap()
	if err != nil {
		return nil, err
	}
	shared, err := newSharedPolicy(bootstrap)
	if err != nil {
		return nil, err
	}
	return &Stores{Roles: roles, RoleBindings: roleBindings, ClusterRoles: clusterRoles, ClusterRoleBindings: clusterRoleBindings, shared: shared}, nil
}
