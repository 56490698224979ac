package server

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Who has nothing to do with a workspace cannot find out whether there is one, by whatever he asks for; who has, may use
// what Kubernetes gives everybody.
func TestStrangersDoNotLearnWhichWorkspacesExist(t *testing.T) {
	r := startServer(t, withTokens(t))
	rootOnly := "/apis/rbac.authorization.k8s.io/v1/clusterroles"
	requests := []asked{
		{path: "/api/v1/namespaces/default/configmaps"},
		{path: "/apis/tenancy.kcp.io/v1alpha1/workspaces"},
		{path: "/apis/shop.example/v1/widgets"},
		{path: "/version"}, {path: "/api"}, {path: "/apis"}, {path: "/openapi/v3"}, {path: "/healthz"}, {path: "/metrics"}, {path: "/nothing"},
		{path: "/openid/v1/jwks"},
		{path: rootOnly, header: map[string]string{"Impersonate-User": "alice"}},
		{path: rootOnly, header: map[string]string{"Impersonate-User": "x", "Impersonate-Group": "system:masters"}},
		{path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", method: http.MethodPost,
			body: `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"verb":"list","resource":"pods"}}}`},
		{path: "/apis/authentication.k8s.io/v1/selfsubjectreviews", method: http.MethodPost, body: `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`},
		{path: "/apis/placement.atoll.dev/v1alpha1/placements", method: http.MethodPost, body: `{"apiVersion":"placement.atoll.dev/v1alpha1","kind":"Placement","metadata":{"name":"p"}}`},
	}
	in := func(a asked, where, token string) answer {
		a.path, a.token = clustersPrefix+where+a.path, token
		return r.ask(t, a)
	}
	for _, request := range requests {
		for _, token := range []string{bob, ""} {
			want := in(request, "root:shop", token)
			if want.code == http.StatusOK || want.code == http.StatusCreated {
				t.Errorf("%s %s as %q: %d", request.method, request.path, token, want.code)
			}
			for _, where := range []string{"root:nothere", "root:shop:nothere", "root:nothere:at:all", "nothere:at", string(shop), "nothere"} {
				if got := in(request, where, token); got != want {
					t.Errorf("%s %s as %q in %q: %v, want as in a workspace that is there: %v", request.method, request.path, token, where, got, want)
				}
			}
		}
	}
	if got := in(requests[0], "root:nothere", bob); !strings.Contains(got.body, noAccess) {
		t.Errorf("a stranger is told %q, want a hint: %s", got.body, noAccess)
	}

	// The verb access on /, as in kcp, or any other right is enough.
	ctx := t.Context()
	for cluster, rules := range map[logicalcluster.Name][]rbacv1.PolicyRule{
		shop: {{Verbs: []string{"access"}, NonResourceURLs: []string{"/"}}},
		bank: {{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}},
	} {
		rights := r.in(t, cluster).RbacV1()
		if _, err := rights.ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "guest"}, Rules: rules}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "guest"}
		subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "bob"}}
		var err error
		if cluster == shop {
			_, err = rights.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "guest"}, RoleRef: ref, Subjects: subjects}, metav1.CreateOptions{})
		} else {
			ns := ensureNamespace(t, r, cluster, "team")
			_, err = rights.RoleBindings(ns).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "guest"}, RoleRef: ref, Subjects: subjects}, metav1.CreateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"/version", "/api", "/apis"} {
			waitForCode(t, r, asked{path: clustersPrefix + string(cluster) + path, token: bob}, http.StatusOK)
		}
		if got := in(asked{path: "/api/v1/namespaces/default/configmaps"}, string(cluster), bob); got.code != http.StatusForbidden || strings.Contains(got.body, noAccess) {
			t.Errorf("to look at what bob may not in %s: %v", cluster, got)
		}
	}
	// Who may look for workspaces is told that there is none.
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "looker"}, Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"get"}, APIGroups: []string{"tenancy.kcp.io"}, Resources: []string{"workspaces"}}}}
	if _, err := r.in(t, shop).RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.in(t, shop).RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "looker"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "looker"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "bob"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitForCode(t, r, asked{path: "/clusters/root:shop:nothere/api/v1/pods", token: bob}, http.StatusNotFound)
	waitForCode(t, r, asked{path: "/clusters/root:shop:not:here/api/v1/pods", token: bob}, http.StatusNotFound)
	waitForCode(t, r, asked{path: "/clusters/root:bank:nothere/api/v1/pods", token: bob}, http.StatusForbidden)
	waitForCode(t, r, asked{path: "/clusters/root:nothere/api/v1/pods", token: root}, http.StatusNotFound)
}

func ensureNamespace(t *testing.T, r *running, cluster logicalcluster.Name, name string) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := r.in(t, cluster).CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return name
}

// waitForCode waits for an answer: what somebody may do is known a moment after it is written.
func waitForCode(t *testing.T, r *running, a asked, code int) {
	t.Helper()
	waitFor(t, 20*time.Second, fmt.Sprintf("%s is answered %d", a.path, code), func() (string, bool) {
		got := r.ask(t, a)
		return fmt.Sprint(got), got.code == code
	})
}
