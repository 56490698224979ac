package rbac

import (
	"context"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"k8s.io/kubernetes/pkg/apis/rbac"
	rbacv1helpers "k8s.io/kubernetes/pkg/apis/rbac/v1"
	rbacregistryvalidation "k8s.io/kubernetes/pkg/registry/rbac/validation"

	"atoll.dev/atoll/internal/logicalcluster"
)

// Getters answer what a decision needs. The logical cluster is the one in the context of each call. The objects that they
// return are shared with caches and must not be changed.
type Getters interface {
	rbacregistryvalidation.RoleGetter
	rbacregistryvalidation.ClusterRoleGetter
	// RoleBindings are those of a namespace that have a subject of which concerns says yes, and maybe others. Looked is how many steps
	// it took to find them, which decisions are charged for.
	RoleBindings(ctx context.Context, namespace string, concerns func(*rbac.Subject) bool) (found []*rbacv1.RoleBinding, looked int, err error)
	// ClusterRoleBindings is the same of a whole logical cluster.
	ClusterRoleBindings(ctx context.Context, concerns func(*rbac.Subject) bool) (found []*rbacv1.ClusterRoleBinding, looked int, err error)
}

// fromCache asks the store for what its watch cache holds: a decision does not wait for etcd, as with upstream's
// informers, and may be as stale as theirs.
const fromCache = "0"

type storeGetters struct{ stores *Stores }

// Getters reads the rows of the request's logical cluster from the stores' watch caches, and puts the shared bootstrap
// objects below them as the storage does: a row hides the shared object of its name, and mirrors have rows only.
func (s *Stores) Getters() Getters { return storeGetters{s} }

func (g storeGetters) GetRole(ctx context.Context, namespace, name string) (*rbacv1.Role, error) {
	ctx, shared, err := g.scope(ctx, aboutRoles, namespace)
	if err != nil {
		return nil, err
	}
	role, err := get[*rbac.Role](ctx, g.stores.Roles, name)
	if apierrors.IsNotFound(err) && shared.roles[namespace+"/"+name] != nil {
		return shared.roles[namespace+"/"+name], nil
	}
	if err != nil {
		return nil, err
	}
	out := &rbacv1.Role{}
	return out, rbacv1helpers.Convert_rbac_Role_To_v1_Role(role, out, nil)
}

func (g storeGetters) GetClusterRole(ctx context.Context, name string) (*rbacv1.ClusterRole, error) {
	ctx, shared, err := g.scope(ctx, aboutClusterRoles, metav1.NamespaceNone)
	if err != nil {
		return nil, err
	}
	role, err := get[*rbac.ClusterRole](ctx, g.stores.ClusterRoles, name)
	if apierrors.IsNotFound(err) && shared.clusterRoles[name] != nil {
		return shared.clusterRoles[name], nil
	}
	if err != nil {
		return nil, err
	}
	out := &rbacv1.ClusterRole{}
	return out, rbacv1helpers.Convert_rbac_ClusterRole_To_v1_ClusterRole(role, out, nil)
}

func (g storeGetters) RoleBindings(ctx context.Context, namespace string, concerns func(*rbac.Subject) bool) ([]*rbacv1.RoleBinding, int, error) {
	ctx, shared, err := g.scope(ctx, aboutRoleBindings, namespace)
	if err != nil {
		return nil, 0, err
	}
	rows, err := list[*rbac.RoleBindingList](ctx, g.stores.RoleBindings)
	if err != nil {
		return nil, 0, err
	}
	c := concerning[*rbacv1.RoleBinding]{concerns: concerns, shared: shared.roleBindings[namespace]}
	for i := range rows.Items {
		row := &rows.Items[i]
		if !c.look(row.Name, row.Subjects) {
			continue
		}
		out := &rbacv1.RoleBinding{}
		if err := rbacv1helpers.Convert_rbac_RoleBinding_To_v1_RoleBinding(row, out, nil); err != nil {
			return nil, c.looked, err
		}
		c.found = append(c.found, out)
	}
	return c.withShared(), c.looked, nil
}

func (g storeGetters) ClusterRoleBindings(ctx context.Context, concerns func(*rbac.Subject) bool) ([]*rbacv1.ClusterRoleBinding, int, error) {
	ctx, shared, err := g.scope(ctx, aboutClusterRoleBindings, metav1.NamespaceNone)
	if err != nil {
		return nil, 0, err
	}
	rows, err := list[*rbac.ClusterRoleBindingList](ctx, g.stores.ClusterRoleBindings)
	if err != nil {
		return nil, 0, err
	}
	c := concerning[*rbacv1.ClusterRoleBinding]{concerns: concerns, shared: shared.clusterRoleBindings}
	for i := range rows.Items {
		row := &rows.Items[i]
		if !c.look(row.Name, row.Subjects) {
			continue
		}
		out := &rbacv1.ClusterRoleBinding{}
		if err := rbacv1helpers.Convert_rbac_ClusterRoleBinding_To_v1_ClusterRoleBinding(row, out, nil); err != nil {
			return nil, c.looked, err
		}
		c.found = append(c.found, out)
	}
	return c.withShared(), c.looked, nil
}

// concerning collects the bindings that may concern somebody. Others are not converted, which copies them: of many bindings few do.
type concerning[B named] struct {
	concerns func(*rbac.Subject) bool
	shared   sharedBindings[B]

	found  []B
	hidden map[string]bool // shared ones whose names rows have
	looked int
}

// look says whether a row may concern somebody.
func (c *concerning[B]) look(name string, subjects []rbac.Subject) bool {
	c.looked += 1 + len(subjects)
	if c.shared.names[name] {
		if c.hidden == nil {
			c.hidden = map[string]bool{}
		}
		c.hidden[name] = true
	}
	for i := range subjects {
		if c.concerns(&subjects[i]) {
			return true
		}
	}
	return false
}

// withShared is what was found, and the shared bindings that no row hides.
func (c *concerning[B]) withShared() []B {
	if len(c.found)+len(c.hidden) == 0 {
		return slices.Clip(c.shared.all)
	}
	out := slices.Grow(c.found, len(c.shared.all))
	for _, b := range c.shared.all {
		if !c.hidden[b.GetName()] {
			out = append(out, b)
		}
	}
	return out
}

var nothingShared = &sharedPolicy{}

// scope makes ctx, that of the request to decide about, one for reading the rows of roles and bindings: its namespace
// becomes part of the key, its request info part of error messages, and its logical cluster stays, as one whose storage
// shows no shared objects. It returns those too. A wildcard is refused: what somebody may do in one logical cluster says
// nothing about all of them.
func (g storeGetters) scope(ctx context.Context, about *genericapirequest.RequestInfo, namespace string) (context.Context, *sharedPolicy, error) {
	c, ok := logicalcluster.ClusterFrom(ctx)
	if !ok || c.Wildcard {
		return nil, nil, fmt.Errorf("read %s: the request is not for one logical cluster", about.Resource)
	}
	shared := g.stores.shared
	if c.Mirror {
		shared = nothingShared
	}
	c.Mirror = true
	ctx = logicalcluster.WithCluster(ctx, c)
	return genericapirequest.WithRequestInfo(genericapirequest.WithNamespace(ctx, namespace), about), shared, nil
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
