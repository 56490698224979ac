package rbac

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"k8s.io/kubernetes/pkg/apis/rbac"
	rbacv1helpers "k8s.io/kubernetes/pkg/apis/rbac/v1"
	rbacregistryvalidation "k8s.io/kubernetes/pkg/registry/rbac/validation"
)

// Getters answer what a decision needs. The logical cluster is the one in the context of each call. The objects that they
// return are shared with caches and must not be changed.
type Getters interface {
	rbacregistryvalidation.RoleGetter
	rbacregistryvalidation.RoleBindingLister
	rbacregistryvalidation.ClusterRoleGetter
	rbacregistryvalidation.ClusterRoleBindingLister
}

// fromCache asks the store for what its watch cache holds: a decision does not wait for etcd, as with upstream's
// informers, and may be as stale as theirs.
const fromCache = "0"

type storeGetters struct{ stores *Stores }

// Getters reads from the stores' watch caches, the objects of the request's logical cluster and, as the stores
// overlay them, the shared bootstrap objects.
func (s *Stores) Getters() Getters { return storeGetters{s} }

func (g storeGetters) GetRole(ctx context.Context, namespace, name string) (*rbacv1.Role, error) {
	role, err := get[*rbac.Role](scope(ctx, aboutRoles, namespace), g.stores.Roles, name)
	if err != nil {
		return nil, err
	}
	out := &rbacv1.Role{}
	return out, rbacv1helpers.Convert_rbac_Role_To_v1_Role(role, out, nil)
}

func (g storeGetters) GetClusterRole(ctx context.Context, name string) (*rbacv1.ClusterRole, error) {
	role, err := get[*rbac.ClusterRole](scope(ctx, aboutClusterRoles, metav1.NamespaceNone), g.stores.ClusterRoles, name)
	if err != nil {
		return nil, err
	}
	out := &rbacv1.ClusterRole{}
	return out, rbacv1helpers.Convert_rbac_ClusterRole_To_v1_ClusterRole(role, out, nil)
}

func (g storeGetters) ListRoleBindings(ctx context.Context, namespace string) ([]*rbacv1.RoleBinding, error) {
	stored, err := list[*rbac.RoleBindingList](scope(ctx, aboutRoleBindings, namespace), g.stores.RoleBindings)
	if err != nil {
		return nil, err
	}
	out := make([]rbacv1.RoleBinding, len(stored.Items))
	refs := make([]*rbacv1.RoleBinding, len(stored.Items))
	for i := range stored.Items {
		if err := rbacv1helpers.Convert_rbac_RoleBinding_To_v1_RoleBinding(&stored.Items[i], &out[i], nil); err != nil {
			return nil, err
		}
		refs[i] = &out[i]
	}
	return refs, nil
}

func (g storeGetters) ListClusterRoleBindings(ctx context.Context) ([]*rbacv1.ClusterRoleBinding, error) {
	stored, err := list[*rbac.ClusterRoleBindingList](scope(ctx, aboutClusterRoleBindings, metav1.NamespaceNone), g.stores.ClusterRoleBindings)
	if err != nil {
		return nil, err
	}
	out := make([]rbacv1.ClusterRoleBinding, len(stored.Items))
	refs := make([]*rbacv1.ClusterRoleBinding, len(stored.Items))
	for i := range stored.Items {
		if err := rbacv1helpers.Convert_rbac_ClusterRoleBinding_To_v1_ClusterRoleBinding(&stored.Items[i], &out[i], nil); err != nil {
			return nil, err
		}
		refs[i] = &out[i]
	}
	return refs, nil
}

func get[T runtime.Object](ctx context.Context, store rest.Getter, name string) (T, error) {
	var none T
	obj, err := store.Get(ctx, name, &metav1.GetOptions{ResourceVersion: fromCache})
	if err != nil {
		return none, err
	}
	typed, ok := obj.(T)
	if !ok {
		return none, fmt.Errorf("store returned %T, want %T", obj, none)
	}
	return typed, nil
}

func list[T runtime.Object](ctx context.Context, store rest.Lister) (T, error) {
	var none T
	obj, err := store.List(ctx, &metainternalversion.ListOptions{ResourceVersion: fromCache})
	if err != nil {
		return none, err
	}
	typed, ok := obj.(T)
	if !ok {
		return none, fmt.Errorf("store returned %T, want %T", obj, none)
	}
	return typed, nil
}

// What a read through a store is about: the stores name it in their errors.
var (
	aboutRoles               = &genericapirequest.RequestInfo{APIGroup: rbac.GroupName, Resource: "roles"}
	aboutRoleBindings        = &genericapirequest.RequestInfo{APIGroup: rbac.GroupName, Resource: "rolebindings"}
	aboutClusterRoles        = &genericapirequest.RequestInfo{APIGroup: rbac.GroupName, Resource: "clusterroles"}
	aboutClusterRoleBindings = &genericapirequest.RequestInfo{APIGroup: rbac.GroupName, Resource: "clusterrolebindings"}
)

// scope makes ctx, that of the request to decide about, one for reading roles and bindings: its namespace becomes part
// of the key, its request info part of error messages, and its logical cluster stays.
func scope(ctx context.Context, about *genericapirequest.RequestInfo, namespace string) context.Context {
	return genericapirequest.WithRequestInfo(genericapirequest.WithNamespace(ctx, namespace), about)
}
