package rbac

import (
	"errors"
	"fmt"
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
	if got, want := len(roles), len(bootstrappolicy.ClusterRoles())+len(bootstrappolicy.ControllerRoles())+len(ownClusterRoles()); got != want {
		t.Errorf("%d cluster roles, want %d, upstream's and ours", got, want)
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
		{"view", "watch", "placement.atoll.dev", "placements", true},
		{"admin", "list", "placement.atoll.dev", "placements", true}, // through edit and view
		{"admin", "list", "tenancy.kcp.io", "workspaces", true},
		{"admin", "get", "core.kcp.io", "logicalclusters", true},
		{"view", "list", "workload.kcp.io", "synctargets", false},
		{"view", "list", "metrics.k8s.io", "pods", true},
		{"admin", "get", "metrics.k8s.io", "pods", true}, // through edit and view
		{"admin", "list", "metrics.k8s.io", "nodes", false},
		{"admin", "create", "placement.atoll.dev", "placementpolicies", false}, // they bind descendants too
		{"admin", "update", "placement.atoll.dev", "placements", false},
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
	if err := Aggregate(roles); err != nil {
		t.Fatal(err)
	}
	want := []rbacv1.PolicyRule{rule("pods"), rule("services")}
	for i, name := range []string{"a-top", "b-middle"} {
		if diff := cmp.Diff(want, roles[i].Rules); diff != "" {
			t.Errorf("rules of %s (-want +got):\n%s", name, diff)
		}
	}
}

func TestAggregateEnds(t *testing.T) {
	take := func(name, from string, labels ...string) rbacv1.ClusterRole {
		role := rbacv1.ClusterRole{
			ObjectMeta:      metav1.ObjectMeta{Name: name, Labels: map[string]string{}},
			AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{from: "true"}}}},
		}
		for _, label := range labels {
			role.Labels[label] = "true"
		}
		return role
	}
	source := func(label string) rbacv1.ClusterRole {
		return rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: "source", Labels: map[string]string{label: "true"}},
			Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}},
		}
	}
	chain := func(n int) []rbacv1.ClusterRole {
		roles := []rbacv1.ClusterRole{source("l000")}
		for i := range n { // the last in the order of names is the first to have the rule
			roles = append(roles, take(fmt.Sprintf("r%03d", n-i), fmt.Sprintf("l%03d", i), fmt.Sprintf("l%03d", i+1)))
		}
		return roles
	}
	many := func(takers, sources, rules int) (roles []rbacv1.ClusterRole) {
		for i := range sources {
			from := source("x")
			from.Name += fmt.Sprint(i)
			for j := range rules { // of the first alone each is a new one
				from.Rules = append(from.Rules, rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{fmt.Sprint("r", i*j)}})
			}
			roles = append(roles, from)
		}
		for i := range takers {
			roles = append(roles, take(fmt.Sprint("t", i), "x"))
		}
		return roles
	}
	for reason, tc := range map[string]struct {
		roles []rbacv1.ClusterRole
		rules int // of each role; 0 if it fails
	}{
		"two that take from each other":     {[]rbacv1.ClusterRole{take("a", "x", "y"), take("b", "y", "x"), source("x")}, 1},
		"one that takes from itself":        {[]rbacv1.ClusterRole{take("a", "x", "x"), source("x")}, 1},
		"a chain of as many as are allowed": {chain(deepest), 1},
		"a chain of more than that":         {chain(deepest + 1), 0},
		"many that select many":             {many(mostSteps/1000, 1000, 0), 0},
		"many that take many rules":         {many(100, 10, mostSteps/1000/ruleSteps), 0},
		"a few that do":                     {many(5, 10, 1), 2},
	} {
		err := Aggregate(tc.roles)
		if errors.Is(err, ErrUnsettled) != (tc.rules == 0) || err != nil && tc.rules > 0 {
			t.Errorf("%s: error %v", reason, err)
		}
		for _, role := range tc.roles {
			if err == nil && len(role.Rules) != tc.rules {
				t.Errorf("%s: %s has %d rules, want %d", reason, role.Name, len(role.Rules), tc.rules)
			}
		}
	}
}
