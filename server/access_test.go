package server

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/atoll/server/rbac"
)

// Who has nothing to do with a workspace cannot find out whether there is one, by whatever he asks for; who has, may use
// what Kubernetes gives everybody.
func TestP5_StrangersDoNotLearnWhichWorkspacesExist(t *testing.T) {
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

	// The verb access on / is enough, as in kcp.
	ctx := t.Context()
	r.bind(t, shop, "", "guest", rbac.WorkspaceAccess, "bob")
	for _, path := range []string{"/version", "/api", "/apis"} {
		waitForCode(t, r, asked{path: clustersPrefix + string(shop) + path, token: bob}, http.StatusOK)
	}
	if got := in(asked{path: "/api/v1/namespaces/default/configmaps"}, string(shop), bob); got.code != http.StatusForbidden || strings.Contains(got.body, noAccess) {
		t.Errorf("to look at what bob may not in shop: %v", got)
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

// Nobody uses anything of a workspace without the verb access on / there, whatever its roles allow him; its ServiceAccounts
// and administrators of the server do.
func TestAccess(t *testing.T) {
	r := startServer(t, withTokens(t))
	ctx := t.Context()
	for _, cluster := range []logicalcluster.Name{shop, bank} {
		ensureNamespace(t, r, cluster, "team")
	}
	get := func(cluster logicalcluster.Name, path, token string) asked {
		return asked{path: clustersPrefix + string(cluster) + path, token: token}
	}
	const pods = "/api/v1/namespaces/team/pods"
	refused := func(reason string, a asked) {
		t.Helper()
		want := r.ask(t, asked{method: a.method, path: strings.Replace(a.path, string(shop), "nothere", 1), token: a.token, body: a.body})
		if got := r.ask(t, a); got.code != http.StatusForbidden || got != want {
			t.Errorf("%s: %v, want as where there is no workspace: %v", reason, got, want)
		}
	}

	// All of these let alice do something. That they are known is seen by another who may enter.
	for _, who := range []string{"alice", "bob"} {
		r.bind(t, shop, "team", who+"-in-team", "view", who)
		r.bind(t, shop, "", who+"-looks", "pods-and-workspaces", who)
	}
	_, err := r.in(t, shop).RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "pods-and-workspaces"}, Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
		{Verbs: []string{"get"}, NonResourceURLs: []string{"*"}},
		{Verbs: []string{"access"}, NonResourceURLs: []string{"/api"}}, // not what it takes
	}}, metav1.CreateOptions{})
	must(t, err)
	r.bind(t, shop, "", "bob-enters", rbac.WorkspaceAccess, "bob")
	waitForCode(t, r, get(shop, pods, bob), http.StatusOK)
	waitForCode(t, r, get(shop, "/api/v1/pods", bob), http.StatusOK)
	for _, path := range []string{pods, "/api/v1/pods", "/version", "/apis", "/apis/rbac.authorization.k8s.io/v1/clusterroles"} {
		refused("a role without access", get(shop, path, alice))
	}
	refused("who may not enter is not told of workspaces below", asked{path: "/clusters/root:shop:not:here/api/v1/pods", token: alice})
	if got := r.ask(t, asked{path: "/clusters/root:shop:not:here/api/v1/pods", token: bob}); got.code != http.StatusNotFound {
		t.Errorf("who may is: %v", got)
	}
	if got := r.ask(t, get(shop, pods, root)); got.code != http.StatusOK {
		t.Errorf("an administrator of the server: %v", got)
	}
	review := func(name string) answer {
		return r.ask(t, asked{method: http.MethodPost, path: clustersPrefix + string(shop) + "/apis/authorization.k8s.io/v1/subjectaccessreviews", token: root,
			body: `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{"user":"` + name + `","resourceAttributes":{"verb":"list","resource":"pods","namespace":"team"}}}`})
	}
	if got := review("alice"); !strings.Contains(got.body, `"allowed":false`) {
		t.Errorf("a review says that alice may: %v", got)
	}
	if got := review("bob"); !strings.Contains(got.body, `"allowed":true`) {
		t.Errorf("a review says that bob may not: %v", got)
	}

	// A ServiceAccount of the workspace needs nothing.
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}
	_, err = r.in(t, shop).CoreV1().ServiceAccounts("team").Create(ctx, account, metav1.CreateOptions{})
	must(t, err)
	token, err := r.in(t, shop).CoreV1().ServiceAccounts("team").CreateToken(ctx, "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	waitForCode(t, r, get(shop, "/apis", token.Status.Token), http.StatusOK)
	if got := r.ask(t, get(shop, pods, token.Status.Token)); got.code != http.StatusForbidden || strings.Contains(got.body, noAccess) {
		t.Errorf("a ServiceAccount without a role: %v", got)
	}

	// view, edit and admin for the whole workspace let in by themselves; access alone, or as a group, does too; taking it away ends it.
	for i, role := range []string{"view", "edit", "admin", "cluster-admin"} {
		name := fmt.Sprint("alice-", i)
		r.bind(t, bank, "", name, role, "alice")
		waitForCode(t, r, get(bank, pods, alice), http.StatusOK)
		must(t, r.in(t, bank).RbacV1().ClusterRoleBindings().Delete(ctx, name, metav1.DeleteOptions{}))
		waitForCode(t, r, get(bank, pods, alice), http.StatusForbidden)
	}
	r.bind(t, bank, "team", "alice-in-team", "admin", "alice")
	r.bind(t, bank, "", "bob-enters", rbac.WorkspaceAccess, "bob")
	waitForCode(t, r, get(bank, "/version", bob), http.StatusOK)
	if got := r.ask(t, get(bank, pods, alice)); got.code != http.StatusForbidden || !strings.Contains(got.body, noAccess) {
		t.Errorf("a role in a namespace alone: %v", got)
	}
}

// bind gives a user a ClusterRole in a namespace of a logical cluster, or without one in all of it.
func (r *running) bind(t *testing.T, cluster logicalcluster.Name, namespace, name, role, who string) {
	t.Helper()
	rights := r.in(t, cluster).RbacV1()
	meta, ref, subjects := metav1.ObjectMeta{Name: name}, rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}, []rbacv1.Subject{userSubject(who)}
	var err error
	if namespace == "" {
		_, err = rights.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects}, metav1.CreateOptions{})
	} else {
		_, err = rights.RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects}, metav1.CreateOptions{})
	}
	must(t, err)
}

// docs/operations/access.md says what admin does not hold, and by which role somebody gets it.
func TestWhatAdminDoesNotHold(t *testing.T) {
	r := startServer(t, withTokens(t))
	r.describe(t, rootCluster, "root", "")
	r.describe(t, shop, "root:shop", "")
	ensureNamespace(t, r, shop, "web")
	r.bind(t, shop, "", "alice", "admin", "alice")
	in := func(method string, cluster logicalcluster.Name, path, body string) asked {
		a := asked{method: method, path: clustersPrefix + string(cluster) + path, token: alice, body: body}
		if method == http.MethodPatch {
			a.header = map[string]string{"Content-Type": "application/merge-patch+json"}
		}
		return a
	}
	// On objects admin is enough.
	waitForCode(t, r, in(http.MethodPost, shop, "/api/v1/namespaces/web/configmaps",
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","annotations":{"placement.atoll.dev/clusters":"*"}}}`), http.StatusCreated)
	const place = `{"metadata":{"annotations":{"placement.atoll.dev/clusters":"*"}}}`
	more := map[string]asked{
		"a namespace": in(http.MethodPatch, shop, "/api/v1/namespaces/web", place),
		"a workspace": in(http.MethodPatch, shop, "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster", place),
		"clusters":    in(http.MethodGet, rootCluster, "/apis/workload.kcp.io/v1alpha1/synctargets", ""),
		"workspaces below": in(http.MethodPost, shop, "/apis/tenancy.kcp.io/v1alpha1/workspaces",
			`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"below"}}`),
	}
	for what, a := range more {
		if got := r.ask(t, a); got.code != http.StatusForbidden {
			t.Errorf("%s: admin gets %v; the document says that it takes more", what, got)
		}
	}
	for cluster, rules := range map[logicalcluster.Name][]rbacv1.PolicyRule{
		shop: {
			{Verbs: []string{"get", "patch"}, APIGroups: []string{""}, Resources: []string{"namespaces"}},
			{Verbs: []string{"get", "patch"}, APIGroups: []string{"core.kcp.io"}, Resources: []string{"logicalclusters"}},
			{Verbs: []string{"create", "delete"}, APIGroups: []string{"tenancy.kcp.io"}, Resources: []string{"workspaces"}},
		},
		rootCluster: {{Verbs: []string{"get", "list"}, APIGroups: []string{"workload.kcp.io"}, Resources: []string{"synctargets"}}},
	} {
		_, err := r.in(t, cluster).RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Rules: rules}, metav1.CreateOptions{})
		must(t, err)
		r.bind(t, cluster, "", "more", "more", "alice")
	}
	for what, a := range more {
		want := http.StatusOK
		if a.method == http.MethodPost {
			want = http.StatusCreated
		}
		t.Log(what)
		waitForCode(t, r, a, want)
	}
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
