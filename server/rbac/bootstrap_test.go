package rbac

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"

	"k8s.io/kubernetes/pkg/apis/rbac"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

func TestBootstrap(t *testing.T) {
	objects, err := Bootstrap()
	if err != nil {
		t.Fatal(err)
	}
	roles := objects[rbac.Resource("clusterroles")]
	if got, want := len(roles), len(bootstrappolicy.ClusterRoles())+len(bootstrappolicy.ControllerRoles()); got != want {
		t.Errorf("%d cluster roles, want upstream's %d", got, want)
	}
	allows := func(role, verb, group, resource string) bool {
		return slices.ContainsFunc(roles[role].(*rbac.ClusterRole).Rules, func(r rbac.PolicyRule) bool {
			return slices.Contains(r.Verbs, verb) && slices.Contains(r.APIGroups, group) && slices.Contains(r.Resources, resource)
		})
	}
	tests := []struct {
		role, verb, group, resource string
		want                        bool
	}{
		{"view", "list", "", "pods", true},
		{"view", "list", "", "secrets", false},
		{"edit", "list", "", "secrets", true},
		{"edit", "create", "apps", "deployments", true},
		{"edit", "create", rbac.GroupName, "rolebindings", false},
		{"admin", "create", rbac.GroupName, "rolebindings", true},
		{"admin", "create", "apps", "deployments", true}, // through edit
		{"admin", "list", "", "pods", true},              // through edit and view
	}
	for _, tc := range tests {
		if got := allows(tc.role, tc.verb, tc.group, tc.resource); got != tc.want {
			t.Errorf("%s may %s %s/%s: %v, want %v", tc.role, tc.verb, tc.group, tc.resource, got, tc.want)
		}
	}
	admins, ok := objects[rbac.Resource("clusterrolebindings")]["cluster-admin"].(*rbac.ClusterRoleBinding)
	if !ok || admins.RoleRef.APIGroup != rbac.GroupName {
		t.Errorf("binding cluster-admin: %v, want a defaulted one", admins)
	}
	for key, obj := range objects[rbac.Resource("rolebindings")] {
		b := obj.(*rbac.RoleBinding)
		if key != b.Namespace+"/"+b.Name || b.Namespace == "" {
			t.Errorf("role binding %s/%s has the key %q", b.Namespace, b.Name, key)
		}
	}
}

func TestAggregate(t *testing.T) {
	rule := func(resource string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{resource}}
	}
	from := func(label string) *rbacv1.AggregationRule {
		return &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{label: "true"}}}}
	}
	role := func(name, label string, aggregation *rbacv1.AggregationRule, rules ...rbacv1.PolicyRule) rbacv1.ClusterRole {
		return rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: "true"}}, AggregationRule: aggregation, Rules: rules}
	}
	roles := []rbacv1.ClusterRole{
		role("a-top", "", from("to-top")),
		role("b-middle", "to-top", from("to-middle")),
		role("z-one", "to-middle", nil, rule("pods"), rule("services")),
		role("y-two", "to-middle", nil, rule("pods")),
		role("other", "elsewhere", nil, rule("secrets")),
	}
	if err := aggregate(roles); err != nil {
		t.Fatal(err)
	}
	want := []rbacv1.PolicyRule{rule("pods"), rule("services")}
	for i, name := range []string{"a-top", "b-middle"} {
		if diff := cmp.Diff(want, roles[i].Rules); diff != "" {
			t.Errorf("rules of %s (-want +got):\n%s", name, diff)
		}
	}
}
