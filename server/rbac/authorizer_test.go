package rbac

import (
	"context"
	"fmt"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	kcp "github.com/kcp-dev/logicalcluster/v3"

	"k8s.io/kubernetes/pkg/apis/rbac"
	rbacregistryvalidation "k8s.io/kubernetes/pkg/registry/rbac/validation"

	"atoll.dev/atoll/internal/logicalcluster"
)

// fakeGetters hold the objects of several logical clusters: cluster, then name.
type fakeGetters struct {
	clusterRoles        map[kcp.Name]map[string]*rbacv1.ClusterRole
	clusterRoleBindings map[kcp.Name][]*rbacv1.ClusterRoleBinding
	roles               map[kcp.Name]map[string]*rbacv1.Role
	roleBindings        map[kcp.Name][]*rbacv1.RoleBinding
}

func cluster(ctx context.Context) (kcp.Name, error) {
	c, ok := logicalcluster.ClusterFrom(ctx)
	if !ok {
		return "", fmt.Errorf("no logical cluster in the context")
	}
	return c.Name, nil
}

func (f *fakeGetters) GetRole(ctx context.Context, namespace, name string) (*rbacv1.Role, error) {
	c, err := cluster(ctx)
	if err != nil {
		return nil, err
	}
	if role := f.roles[c][namespace+"/"+name]; role != nil {
		return role, nil
	}
	return nil, apierrors.NewNotFound(rbac.Resource("roles"), name)
}

func (f *fakeGetters) GetClusterRole(ctx context.Context, name string) (*rbacv1.ClusterRole, error) {
	c, err := cluster(ctx)
	if err != nil {
		return nil, err
	}
	if role := f.clusterRoles[c][name]; role != nil {
		return role, nil
	}
	return nil, apierrors.NewNotFound(rbac.Resource("clusterroles"), name)
}

func (f *fakeGetters) RoleBindings(ctx context.Context, namespace string, _ func(*rbac.Subject) bool) ([]*rbacv1.RoleBinding, int, error) {
	c, err := cluster(ctx)
	if err != nil {
		return nil, 0, err
	}
	var out []*rbacv1.RoleBinding
	for _, b := range f.roleBindings[c] {
		if b.Namespace == namespace {
			out = append(out, b)
		}
	}
	return out, len(out), nil
}

func (f *fakeGetters) ClusterRoleBindings(ctx context.Context, _ func(*rbac.Subject) bool) ([]*rbacv1.ClusterRoleBinding, int, error) {
	c, err := cluster(ctx)
	return f.clusterRoleBindings[c], len(f.clusterRoleBindings[c]), err
}

func everything() *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster-admin"},
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
			{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}},
		},
	}
}

func bindTo(role, name string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-" + role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbac.GroupName, Name: name}},
	}
}

// twoClusters makes bob cluster-admin in aa, and nobody anything in bb, which has the role too.
func twoClusters() *fakeGetters {
	return &fakeGetters{
		clusterRoles: map[kcp.Name]map[string]*rbacv1.ClusterRole{
			"aa": {"cluster-admin": everything()},
			"bb": {"cluster-admin": everything()},
		},
		clusterRoleBindings: map[kcp.Name][]*rbacv1.ClusterRoleBinding{"aa": {bindTo("cluster-admin", "bob")}},
	}
}

func in(ctx context.Context, cluster string) context.Context {
	return logicalcluster.WithCluster(ctx, logicalcluster.Cluster{Name: kcp.Name(cluster)})
}

func TestAuthorizeInTheRequestsCluster(t *testing.T) {
	authz, _ := NewAuthorizer(twoClusters())
	tests := map[string]struct {
		ctx    context.Context
		user   user.DefaultInfo
		want   authorizer.Decision
		reason string
	}{
		"bob in aa":     {in(t.Context(), "aa"), user.DefaultInfo{Name: "bob"}, authorizer.DecisionAllow, "bound there"},
		"bob in bb":     {in(t.Context(), "bb"), user.DefaultInfo{Name: "bob"}, authorizer.DecisionNoOpinion, "a binding counts in its own cluster only"},
		"eve in aa":     {in(t.Context(), "aa"), user.DefaultInfo{Name: "eve"}, authorizer.DecisionNoOpinion, "not bound"},
		"masters in bb": {in(t.Context(), "bb"), user.DefaultInfo{Name: "x", Groups: []string{user.SystemPrivilegedGroup}}, authorizer.DecisionAllow, "privileged"},
		"bob nowhere":   {t.Context(), user.DefaultInfo{Name: "bob"}, authorizer.DecisionNoOpinion, "no logical cluster, no rights"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, why, err := authz.Authorize(tc.ctx, authorizer.AttributesRecord{
				User: &tc.user, Verb: "delete", APIGroup: "apps", Resource: "deployments", Namespace: "default", ResourceRequest: true,
			})
			if err != nil || got != tc.want {
				t.Errorf("%s: decision %v (%s), error %v, want %v", tc.reason, got, why, err, tc.want)
			}
		})
	}
}

func TestRulesInTheRequestsCluster(t *testing.T) {
	_, rules := NewAuthorizer(twoClusters())
	for name, want := range map[string]int{"aa": 1, "bb": 0} {
		resource, _, incomplete, err := rules.RulesFor(in(t.Context(), name), &user.DefaultInfo{Name: "bob"}, "default")
		if err != nil || incomplete || len(resource) != want {
			t.Errorf("rules of bob in %s: %v (incomplete %v, error %v), want %d", name, resource, incomplete, err, want)
		}
	}
}

// Who grants a role must hold its rules in the cluster where the grant is written.
func TestEscalationIsJudgedInTheRequestsCluster(t *testing.T) {
	g := twoClusters()
	_, rules := NewAuthorizer(g)
	for name, allowed := range map[string]bool{"aa": true, "bb": false} {
		ctx := genericapirequest.WithUser(in(t.Context(), name), &user.DefaultInfo{Name: "bob"})
		err := rbacregistryvalidation.ConfirmNoEscalation(ctx, resolver{rules}, everything().Rules)
		if (err == nil) != allowed {
			t.Errorf("bob grants cluster-admin in %s: %v, want allowed=%v", name, err, allowed)
		}
	}
}
