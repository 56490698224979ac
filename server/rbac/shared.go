package rbac

import (
	"fmt"
	"maps"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/rbac"
)

// sharedPolicy is the bootstrap policy in the types that decisions are made with, converted once: merging it into the
// rows of a logical cluster for every decision would cost as much as the request itself.
type sharedPolicy struct {
	roles               map[string]*rbacv1.Role                        // by "namespace/name"
	roleBindings        map[string]sharedBindings[*rbacv1.RoleBinding] // by namespace
	clusterRoles        map[string]*rbacv1.ClusterRole
	clusterRoleBindings sharedBindings[*rbacv1.ClusterRoleBinding]
}

type named interface{ GetName() string }

// sharedBindings are bindings that a row of their name hides.
type sharedBindings[B named] struct {
	all   []B
	names map[string]bool
}

func (s sharedBindings[B]) with(binding B) sharedBindings[B] {
	if s.names == nil {
		s.names = map[string]bool{}
	}
	s.names[binding.GetName()] = true
	s.all = append(s.all, binding)
	return s
}

func newSharedPolicy(objects Objects) (*sharedPolicy, error) {
	p := &sharedPolicy{
		roles:        map[string]*rbacv1.Role{},
		roleBindings: map[string]sharedBindings[*rbacv1.RoleBinding]{},
		clusterRoles: map[string]*rbacv1.ClusterRole{},
	}
	for resource, byKey := range objects {
		for _, key := range slices.Sorted(maps.Keys(byKey)) {
			if err := p.add(resource.Resource, key, byKey[key]); err != nil {
				return nil, err
			}
		}
	}
	return p, nil
}

func (p *sharedPolicy) add(resource, key string, obj runtime.Object) error {
	versioned, err := legacyscheme.Scheme.ConvertToVersion(obj.DeepCopyObject(), rbacv1.SchemeGroupVersion)
	if err != nil {
		return fmt.Errorf("convert the shared %s %q: %w", resource, key, err)
	}
	switch o := versioned.(type) {
	case *rbacv1.Role:
		p.roles[key] = o
	case *rbacv1.RoleBinding:
		p.roleBindings[o.Namespace] = p.roleBindings[o.Namespace].with(o)
	case *rbacv1.ClusterRole:
		p.clusterRoles[key] = o
	case *rbacv1.ClusterRoleBinding:
		p.clusterRoleBindings = p.clusterRoleBindings.with(o)
	default:
		return fmt.Errorf("the shared %s %q is a %T, not of %s", resource, key, versioned, rbac.GroupName)
	}
	return nil
}
