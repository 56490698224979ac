package rbac

import (
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/rbac"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
)

// WorkspaceAccess is the ClusterRole of who may enter a workspace, and use there what other roles allow him. As in kcp.
const WorkspaceAccess = "system:kcp:workspace:access"

// Objects are objects that every logical cluster shows without storing them, in internal types: by resource, then by
// "name" or "namespace/name". They are shared and must not be changed.
type Objects map[schema.GroupResource]map[string]runtime.Object

// Bootstrap returns upstream's bootstrap roles and bindings and what Atoll's own kinds add to them, with the rules of
// aggregated roles (admin, edit, view) filled in. A logical cluster whose own roles carry an aggregation label gets rows of
// its own for the roles that aggregate them, from server/aggregation.
func Bootstrap() (Objects, error) {
	clusterRoles := slices.Concat(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles(), ownClusterRoles())
	if err := Aggregate(clusterRoles); err != nil {
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

// ownClusterRoles say what the users of a workspace may do with Atoll's own kinds there, and with those of metrics, by adding to admin, edit and view.
//
// Who reads what runs sees where it runs and why: Placements, the policies and the LogicalCluster whose annotations they
// come from, the workspaces below and the types of workspaces. Nobody writes Placements but the server. What is wished is written as annotations of
// objects, which edit allows. PlacementPolicies bind all namespaces of a workspace and those of its descendants, and the
// other kinds are about whole workspaces: these need more than admin, as ResourceQuotas and Namespaces do in Kubernetes.
// SyncTargets are infrastructure, as Nodes are, which view does not show either.
//
// Who reads pods reads what they use, as metrics-server has it; what they use on Nodes is for those who read these.
//
// Whom a ClusterRoleBinding gives view, edit or admin may enter, too. That is a role of its own for all others, kcp's.
func ownClusterRoles() []rbacv1.ClusterRole {
	read := []string{"get", "list", "watch"}
	enter := rbacv1.PolicyRule{Verbs: []string{"access"}, NonResourceURLs: []string{"/"}}
	return []rbacv1.ClusterRole{{
		ObjectMeta: metav1.ObjectMeta{Name: WorkspaceAccess, Labels: map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"}},
		Rules:      []rbacv1.PolicyRule{enter},
	}, {
		ObjectMeta: metav1.ObjectMeta{
			Name:   "system:atoll:aggregate-to-view",
			Labels: map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults", "rbac.authorization.k8s.io/aggregate-to-view": "true"},
		},
		Rules: []rbacv1.PolicyRule{
			{Verbs: read, APIGroups: []string{placementv1alpha1.GroupVersion.Group}, Resources: []string{"placements", "placementpolicies"}},
			{Verbs: read, APIGroups: []string{corev1alpha1.GroupVersion.Group}, Resources: []string{"logicalclusters"}},
			{Verbs: read, APIGroups: []string{tenancyv1alpha1.GroupVersion.Group}, Resources: []string{"workspaces", "workspacetypes"}},
			{Verbs: read, APIGroups: []string{"metrics.k8s.io"}, Resources: []string{"pods"}},
			enter,
		},
	}}
}
