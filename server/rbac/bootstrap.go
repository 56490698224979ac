package rbac

import (
	"fmt"
	"maps"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/rbac"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// Objects are objects that every logical cluster shows without storing them, in internal types: by resource, then by
// "name" or "namespace/name". They are shared and must not be changed.
type Objects map[schema.GroupResource]map[string]runtime.Object

// Bootstrap returns upstream's bootstrap roles and bindings, with the rules of aggregated roles (admin, edit, view)
// filled in. A logical cluster whose own roles carry an aggregation label needs rows of its own for the roles that
// aggregate them.
func Bootstrap() (Objects, error) {
	clusterRoles := slices.Concat(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles())
	if err := aggregate(clusterRoles); err != nil {
		return nil, err
	}
	objects := Objects{}
	for i := range clusterRoles {
		if err := objects.Add(rbac.Resource("clusterroles"), &clusterRoles[i], &rbac.ClusterRole{}); err != nil {
			return nil, err
		}
	}
	for _, binding := range slices.Concat(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()) {
		if err := objects.Add(rbac.Resource("clusterrolebindings"), &binding, &rbac.ClusterRoleBinding{}); err != nil {
			return nil, err
		}
	}
	for namespace, roles := range bootstrappolicy.NamespaceRoles() {
		for _, role := range roles {
			role.Namespace = namespace
			if err := objects.Add(rbac.Resource("roles"), &role, &rbac.Role{}); err != nil {
				return nil, err
			}
		}
	}
	for namespace, bindings := range bootstrappolicy.NamespaceRoleBindings() {
		for _, binding := range bindings {
			binding.Namespace = namespace
			if err := objects.Add(rbac.Resource("rolebindings"), &binding, &rbac.RoleBinding{}); err != nil {
				return nil, err
			}
		}
	}
	return objects, nil
}

// Add puts a defaulted copy of versioned, converted into internal, among the objects of resource.
func (o Objects) Add(resource schema.GroupResource, versioned, internal runtime.Object) error {
	versioned = versioned.DeepCopyObject()
	legacyscheme.Scheme.Default(versioned)
	if err := legacyscheme.Scheme.Convert(versioned, internal, nil); err != nil {
		return fmt.Errorf("convert a shared object of %s: %w", resource, err)
	}
	m, err := meta.Accessor(internal)
	if err != nil {
		return fmt.Errorf("shared object of %s: %w", resource, err)
	}
	key := m.GetName()
	if ns := m.GetNamespace(); ns != "" {
		key = ns + "/" + key
	}
	if o[resource] == nil {
		o[resource] = map[string]runtime.Object{}
	}
	if o[resource][key] != nil {
		return fmt.Errorf("two shared objects of %s are named %q", resource, key)
	}
	o[resource][key] = internal
	return nil
}

// aggregate fills the rules of roles that have an aggregation rule, as upstream's controller does: the rules of the roles
// that match one of its selectors, in the order of their names, each rule once. admin takes from edit, which takes from
// view, so it goes on until nothing changes.
func aggregate(roles []rbacv1.ClusterRole) error {
	byName := map[string]*rbacv1.ClusterRole{}
	for i := range roles {
		byName[roles[i].Name] = &roles[i]
	}
	names := slices.Sorted(maps.Keys(byName))
	// Each pass carries rules at least one role further, so the number of roles bounds the passes.
	for range roles {
		changed := false
		for _, name := range names {
			role := byName[name]
			if role.AggregationRule == nil {
				continue
			}
			rules, err := aggregated(role, byName, names)
			if err != nil {
				return err
			}
			if !equality.Semantic.DeepEqual(rules, role.Rules) {
				role.Rules, changed = rules, true
			}
		}
		if !changed {
			return nil
		}
	}
	return fmt.Errorf("aggregated roles do not settle in %d passes", len(roles))
}

func aggregated(role *rbacv1.ClusterRole, byName map[string]*rbacv1.ClusterRole, names []string) ([]rbacv1.PolicyRule, error) {
	var rules []rbacv1.PolicyRule
	for _, s := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&s)
		if err != nil {
			return nil, fmt.Errorf("aggregation rule of %q: %w", role.Name, err)
		}
		for _, name := range names {
			from := byName[name]
			if name == role.Name || !selector.Matches(labels.Set(from.Labels)) {
				continue
			}
			for _, rule := range from.Rules {
				known := slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(r, rule) })
				if !known {
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules, nil
}
