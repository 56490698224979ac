package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	embeddedetcd "atoll.dev/atoll/embedded-etcd"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// makeAdmin binds user to cluster-admin in a logical cluster.
func (r *running) makeAdmin(t *testing.T, name logicalcluster.Name, user string) {
	t.Helper()
	_, err := r.in(t, name).RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	}, metav1.CreateOptions{})
	must(t, err)
	// Decisions are made from the watch cache, which sees the binding a moment later.
	for deadline := time.Now().Add(30 * time.Second); ; {
		review, err := r.in(t, name).AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Resource: "pods"}},
		}, metav1.CreateOptions{})
		must(t, err)
		if review.Status.Allowed {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is not yet admin of %s: %+v", user, name, review.Status)
		}
	}
}

// Who is told what: 401 without a valid credential, 403 where one may not, 404 for an unknown path, 400 for no path.
func TestWhoIsToldWhat(t *testing.T) {
	r := startServer(t, withTokens(t))
	r.makeAdmin(t, shop, "alice")
	const pods = "/api/v1/pods"
	tests := []struct {
		path, token string
		want        int
		reason      string
	}{
		{"/clusters/shopname" + pods, alice, 200, "her workspace"},
		{"/clusters/root:shop" + pods, alice, 200, "by path"},
		{"/clusters/shopname" + pods, bob, 403, "not his"},
		{"/clusters/bankname" + pods, alice, 403, "not hers"},
		{"/clusters/root:bank" + pods, alice, 403, "not hers"},
		{"/clusters/nothere" + pods, alice, 403, "a name that does not exist"},
		{"/clusters/nothere" + pods, root, 403, "also to administrators"},
		{"/clusters/root:nothere" + pods, alice, 403, "a path that does not exist, to who may not look for it"},
		{"/clusters/root:shop:nothere" + pods, alice, 404, "to who may"},
		{"/clusters/root:shop:nothere/version", alice, 404, "whatever is asked there"},
		{"/clusters/root:nothere" + pods, root, 404, "administrators may"},
		{"/clusters/Not_Here" + pods, "", 400, "no name"},
		{"/clusters/shopname" + pods, "wrong", 401, "no credential"},
		{"/clusters/root:nothere" + pods, "wrong", 401, "who says nothing about himself learns nothing about paths"},
		{"/clusters/eastname" + pods, alice, 403, "a mirror is the system's"},
		{"/clusters/eastname/api", alice, 403, "discovery of it as well"},
		{"/clusters/eastname" + pods, root, 200, "administrators look into it"},
		{"/clusters/*" + pods, alice, 403, "all at once is for administrators"},
		{"/clusters/*" + pods, root, 200, "all at once"},
		{"/clusters/*/api/v1/namespaces/default/pods/x", root, 405, "list and watch only"},
		{pods, alice, 403, "no workspace"},
		{pods, root, 404, "no workspace"},
		{"/healthz", "", 200, "balancers ask"},
		{"/version", "", 200, "public in Kubernetes"},
		{"/clusters/shopname/healthz", "", 403, "would tell that it exists"},
		{"/clusters/nothere/healthz", "", 403, "so it is not told"},
		{"/clusters/root:nothere/healthz", "", 403, "so it is not told"},
		{"/clusters/shopname/version", alice, 200, "her own"},
		{"/metrics", root, 200, "administrators"},
		{"/metrics", monitor, 200, "monitoring, by the bootstrap role"},
		{"/debug/pprof/heap", monitor, 403, "and no more"},
	}
	for _, path := range []string{"/metrics", "/metrics/slis", "/debug/pprof/", "/debug/pprof/heap", "/debug/flags/v", "/logs", "/flagz", "/statusz", "/configz"} {
		tests = append(tests, struct {
			path, token string
			want        int
			reason      string
		}{path, "", 403, "the process is for administrators"})
		for _, prefix := range []string{"", "/clusters/shopname", "/clusters/root:shop"} {
			tests = append(tests, struct {
				path, token string
				want        int
				reason      string
			}{prefix + path, alice, 403, "the process is for administrators"})
		}
	}
	for _, test := range tests {
		if got := r.ask(t, asked{path: test.path, token: test.token}); got.code != test.want {
			t.Errorf("%s as %q: %d %.200s, want %d: %s", test.path, test.token, got.code, got.body, test.want, test.reason)
		}
	}
	// Strangers cannot tell what exists from what does not.
	for _, path := range []string{pods, "/healthz", "/version", "/api", "/openapi/v3"} {
		names := [][2]string{{"shopname", "nothere"}, {"root:shop", "root:nothere"}, {"eastname", "nothere"}}
		for _, pair := range names {
			is, isNot := r.ask(t, asked{path: "/clusters/" + pair[0] + path}), r.ask(t, asked{path: "/clusters/" + pair[1] + path})
			if diff := cmp.Diff(is, isNot, cmp.AllowUnexported(answer{})); diff != "" {
				t.Errorf("%s: nobody can tell %s from %s (-is +is not):\n%s", path, pair[0], pair[1], diff)
			}
		}
	}
}

// A credential that nobody takes is no stranger, also where the server knows no static tokens.
func TestWrongCredentialIsNoStranger(t *testing.T) {
	r := startServer(t, nil)
	for _, path := range []string{"/healthz", "/clusters/shopname/api/v1/pods", "/clusters/root:nothere/api/v1/pods"} {
		if got := r.ask(t, asked{path: path, token: "wrong"}); got.code != http.StatusUnauthorized {
			t.Errorf("%s: %d %.200s, want 401", path, got.code, got.body)
		}
	}
	if got := r.ask(t, asked{path: "/healthz"}); got.code != http.StatusOK {
		t.Errorf("/healthz as nobody: %d %.200s, want 200", got.code, got.body)
	}
}

// Names of the server's own parts come from this process alone.
func TestReservedIdentities(t *testing.T) {
	authority := mustPKI(t, t.TempDir())
	tokens := withTokens(t)
	r := startServer(t, func(o *Options) { tokens(o); o.ClientCAFile = authority.file("ca.crt") })
	const configMaps = "/clusters/eastname/api/v1/configmaps"
	for _, token := range []string{"fakeserver", "fakesyncer", "fakegroup"} {
		if got := r.ask(t, asked{path: configMaps, token: token}); got.code != http.StatusUnauthorized {
			t.Errorf("token %q: %d %.200s, want 401", token, got.code, got.body)
		}
	}
	certificates := []struct {
		user, group string
		want        int
	}{
		{"carol", "", 403},
		{"carol", "system:masters", 200},
		{"system:apiserver", "system:masters", 401},
		{"system:atoll:syncer:eastname", "", 401},
		{"carol", "system:atoll:syncers", 401},
		{"system:atoll:syncer:eastname", "system:atoll:syncers", 401},
	}
	for i, c := range certificates {
		pair, err := authority.client(string(rune('a'+i)), c.user, c.group)
		must(t, err)
		certificate, err := tls.X509KeyPair(pair.certPEM, pair.keyPEM)
		must(t, err)
		if got := r.ask(t, asked{path: configMaps, certificate: &certificate}); got.code != c.want {
			t.Errorf("certificate of %q in %q: %d %.200s, want %d", c.user, c.group, got.code, got.body, c.want)
		}
	}
	// An administrator may take the name, and is nobody by it.
	as := map[string]string{"Impersonate-User": "system:atoll:syncer:eastname", "Impersonate-Group": "system:atoll:syncers"}
	if got := r.ask(t, asked{path: configMaps, token: root, header: as}); got.code != http.StatusForbidden {
		t.Errorf("as a syncer by name: %d %.200s, want 403", got.code, got.body)
	}
	// The admin of a workspace may not take it at all.
	r.makeAdmin(t, shop, "alice")
	for _, as := range []map[string]string{as, {"Impersonate-User": "system:apiserver"}, {"Impersonate-User": "x", "Impersonate-Group": "system:masters"}} {
		got := r.ask(t, asked{path: "/clusters/shopname/api/v1/configmaps", token: alice, header: as})
		if got.code != http.StatusForbidden || !strings.Contains(got.body, "cannot be impersonated") {
			t.Errorf("alice as %v: %d %.200s, want 403", as, got.code, got.body)
		}
	}
}

// A syncer does its work in its mirror, and nothing else there or anywhere.
func TestSyncerInItsMirror(t *testing.T) {
	r := startServer(t, nil)
	ctx := t.Context()
	above := r.in(t, east)
	for _, name := range []string{"default", workloadv1alpha1.HeartbeatNamespace} {
		_, err := above.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		must(t, err)
	}
	_, err := above.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "leaf", Labels: map[string]string{workloadv1alpha1.WorkspaceLabel: "shop"}, Finalizers: []string{"atoll.dev/other"}},
		Data:       map[string]string{"a": "b"},
	}, metav1.CreateOptions{})
	must(t, err)
	pod := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "a"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}},
	}
	deployment, err := above.AppsV1().Deployments("default").Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "leaf", Labels: map[string]string{workloadv1alpha1.WorkspaceLabel: "shop"}},
		Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}, Template: pod},
	}, metav1.CreateOptions{})
	must(t, err)

	first := r.as(t, r.MirrorConfig(east), "")
	syncer := r.as(t, r.MirrorConfig(east), "")
	if _, err := first.CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("with the earlier token: %v, want 401", err)
	}
	list, err := syncer.CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{})
	must(t, err)
	if len(list.Items) != 1 {
		t.Errorf("%d ConfigMaps, want 1", len(list.Items))
	}

	patches := []struct {
		patch  string
		ok     bool
		reason string
	}{
		{`{"metadata":{"finalizers":["atoll.dev/other","workload.atoll.dev/syncer"]}}`, true, "its finalizer"},
		{`{"metadata":{"annotations":{"workload.atoll.dev/applied":"x","workload.atoll.dev/refused":"y"}}}`, true, "its annotations"},
		{`{"metadata":{"annotations":{"workload.atoll.dev/refused":null}}}`, true, "without them"},
		{`{"data":{"a":"c"}}`, false, "what it is told"},
		{`{"metadata":{"labels":{"workload.atoll.dev/workspace":"bank"}}}`, false, "whose it is"},
		{`{"metadata":{"annotations":{"workload.atoll.dev/root":"x"}}}`, false, "what it comes from"},
		{`{"metadata":{"finalizers":["workload.atoll.dev/syncer"]}}`, false, "another's finalizer"},
		{`{"metadata":{"finalizers":["atoll.dev/other","workload.atoll.dev/syncer","x.dev/y"]}}`, false, "a finalizer that nobody ends"},
		{`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"x","uid":"x"}]}}`, false, "an owner"},
		{`{"metadata":{"finalizers":["atoll.dev/other"]}}`, true, "its own finalizer again"},
	}
	for _, p := range patches {
		_, err := syncer.CoreV1().ConfigMaps("default").Patch(ctx, "leaf", types.MergePatchType, []byte(p.patch), metav1.PatchOptions{})
		if (err == nil) != p.ok || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("patch %s: %v, want allowed %v: %s", p.patch, err, p.ok, p.reason)
		}
	}
	_, err = syncer.CoreV1().Namespaces().Patch(ctx, "default", types.MergePatchType, []byte(`{"metadata":{"finalizers":["workload.atoll.dev/syncer"]}}`), metav1.PatchOptions{})
	must(t, err)
	if _, err := syncer.CoreV1().Namespaces().Patch(ctx, "default", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("label of a namespace: %v, want 403", err)
	}

	deployment.Status.ObservedGeneration, deployment.Status.Replicas = 1, 1
	metav1.SetMetaDataAnnotation(&deployment.ObjectMeta, workloadv1alpha1.AppliedAnnotation, "x")
	deployment, err = syncer.AppsV1().Deployments("default").UpdateStatus(ctx, deployment, metav1.UpdateOptions{})
	must(t, err)
	if deployment.Status.Replicas != 1 || deployment.Annotations[workloadv1alpha1.AppliedAnnotation] != "x" {
		t.Errorf("status and annotation were not written: %+v", deployment)
	}
	metav1.SetMetaDataAnnotation(&deployment.ObjectMeta, workloadv1alpha1.RootAnnotation, "x")
	if _, err := syncer.AppsV1().Deployments("default").UpdateStatus(ctx, deployment, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another annotation by /status: %v, want 403", err)
	}
	scale := []byte(`{"spec":{"replicas":9}}`)
	if _, err := syncer.AppsV1().Deployments("default").Patch(ctx, "leaf", types.MergePatchType, scale, metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("replicas: %v, want 403", err)
	}
	created, err := syncer.CoordinationV1().Leases(workloadv1alpha1.HeartbeatNamespace).Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: workloadv1alpha1.HeartbeatName}}, metav1.CreateOptions{})
	must(t, err)
	_, err = syncer.CoordinationV1().Leases(created.Namespace).Update(ctx, created, metav1.UpdateOptions{})
	must(t, err)

	// Patches and updates that would create are creates.
	apply := []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"new"}}`)
	if _, err := syncer.CoreV1().ConfigMaps("default").Patch(ctx, "new", types.ApplyPatchType, apply, metav1.PatchOptions{FieldManager: "x"}); !apierrors.IsForbidden(err) {
		t.Errorf("create by apply: %v, want 403", err)
	}
	if err := syncer.CoreV1().ConfigMaps("default").Delete(ctx, "leaf", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("delete: %v, want 403", err)
	}
	// The same token elsewhere.
	config := r.MirrorConfig(east)
	for _, path := range []string{"westname", "shopname", "root:shop", "root:nothere", "nothere", "*", "system:admin"} {
		elsewhere := *config
		elsewhere.Host = r.LoopbackConfig().Host
		if _, err := r.as(t, &elsewhere, clustersPrefix+path).CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("the syncer of east in %s: %v, want 403", path, err)
		}
	}
	must(t, r.DeleteCluster(ctx, east))
	if n := len(r.syncers.mirrors); n != 0 {
		t.Errorf("%d tokens outlive their mirror", n)
	}
}

// Questions about access are about the workspace they are asked in.
func TestAccessReviews(t *testing.T) {
	r := startServer(t, withTokens(t))
	r.makeAdmin(t, shop, "alice")
	r.makeAdmin(t, bank, "bob")
	ctx := t.Context()
	config := r.MirrorConfig(east) // the way in; the token is replaced
	config.Host, config.BearerToken = r.LoopbackConfig().Host, alice
	inShop := r.as(t, config, "/clusters/root:shop").AuthorizationV1()
	pods := &authorizationv1.ResourceAttributes{Verb: "list", Resource: "pods"}

	self, err := inShop.SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: pods}}, metav1.CreateOptions{})
	must(t, err)
	if !self.Status.Allowed {
		t.Errorf("alice in her workspace: %+v", self.Status)
	}
	metrics := &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/metrics"}
	self, err = inShop.SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{NonResourceAttributes: metrics}}, metav1.CreateOptions{})
	must(t, err)
	if self.Status.Allowed {
		t.Error("alice may read metrics by her workspace's role")
	}
	// An operator in her workspace asks whether she may read its own ones.
	review, err := inShop.SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "alice", NonResourceAttributes: metrics}}, metav1.CreateOptions{})
	must(t, err)
	if !review.Status.Allowed {
		t.Errorf("alice at an operator of her workspace: %+v", review.Status)
	}
	review, err = inShop.SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "bob", NonResourceAttributes: metrics}}, metav1.CreateOptions{})
	must(t, err)
	if review.Status.Allowed {
		t.Errorf("bob at an operator of alice's workspace: %+v", review.Status)
	}
	rules, err := inShop.SelfSubjectRulesReviews().Create(ctx, &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"}}, metav1.CreateOptions{})
	must(t, err)
	all := false
	for _, rule := range rules.Status.ResourceRules {
		all = all || cmp.Equal(rule.Verbs, []string{"*"}) && cmp.Equal(rule.Resources, []string{"*"})
	}
	if !all || rules.Status.EvaluationError != "" {
		t.Errorf("can-i --list: %+v", rules.Status)
	}
	// bob is admin of another workspace, of which nothing is to be learned here.
	other, err := inShop.SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "bob", ResourceAttributes: pods}}, metav1.CreateOptions{})
	must(t, err)
	if other.Status.Allowed || strings.Contains(other.Status.Reason, "bob") && strings.Contains(other.Status.Reason, "bank") {
		t.Errorf("bob in shop: %+v", other.Status)
	}
	for user, want := range map[string]bool{"alice": true, "bob": false} {
		local, err := inShop.LocalSubjectAccessReviews("default").Create(ctx, &authorizationv1.LocalSubjectAccessReview{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default"},
			Spec:       authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "default", Verb: "list", Resource: "pods"}},
		}, metav1.CreateOptions{})
		must(t, err)
		if local.Status.Allowed != want {
			t.Errorf("%s in a namespace of shop: %+v, want %v", user, local.Status, want)
		}
	}
	for _, path := range []string{"/clusters/root:bank", "/clusters/nothere", "/clusters/*", "/clusters/eastname"} {
		_, err := r.as(t, config, path).AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "bob", ResourceAttributes: pods}}, metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) {
			t.Errorf("alice asks in %s: %v, want 403", path, err)
		}
	}
}

// The audit log says which logical cluster a request was for, allowed or not.
func TestAuditNamesTheLogicalCluster(t *testing.T) {
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	mustWrite(t, policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n")
	tokens := withTokens(t)
	r := startServer(t, func(o *Options) {
		tokens(o)
		o.Audit.PolicyFile, o.Audit.LogOptions.Path = policy, log
	})
	r.makeAdmin(t, shop, "alice")
	for _, ask := range []asked{
		{path: "/clusters/root:shop/api/v1/pods?limit=7", token: alice},
		{path: "/clusters/root:bank/api/v1/pods?limit=7", token: alice},
		{path: "/clusters/*/api/v1/pods?limit=7", token: root},
		{path: "/clusters/root:shop/api/v1/secrets?limit=7", token: "wrong"},
	} {
		r.ask(t, ask)
	}
	// What is secret is not in a log of this level: neither what Secrets hold, nor tokens that are asked for or shown.
	made := r.makeRobot(t, shop)
	_, err := r.in(t, shop).CoreV1().Secrets(team).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"password": "hunter2"}}, metav1.CreateOptions{})
	must(t, err)
	r.ask(t, asked{path: "/clusters/shopname/api/v1/secrets?limit=8", token: made})
	must(t, r.stop())
	written, err := os.ReadFile(log)
	must(t, err)
	for _, secret := range []string{"hunter2", base64.StdEncoding.EncodeToString([]byte("hunter2")), made, alice, root} {
		if secret == "" || bytes.Contains(written, []byte(secret)) {
			t.Errorf("the log shows %q", secret)
		}
	}
	file := bytes.NewReader(written)
	got := map[string]string{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var event auditv1.Event
		must(t, json.Unmarshal(lines.Bytes(), &event))
		if strings.Contains(event.RequestURI, "limit=7") {
			got[event.RequestURI] = event.Annotations["kcp.io/cluster"] + " " + event.Annotations["authorization.k8s.io/decision"]
		}
	}
	want := map[string]string{
		"/clusters/root:shop/api/v1/pods?limit=7":    "shopname allow",
		"/clusters/root:bank/api/v1/pods?limit=7":    "bankname forbid",
		"/clusters/*/api/v1/pods?limit=7":            "* allow",
		"/clusters/root:shop/api/v1/secrets?limit=7": " ", // nobody was authorised
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTLSAndBodies(t *testing.T) {
	r := startServer(t, withTokens(t))
	conn, err := tls.Dial("tcp", r.dialAddress(), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
	if err == nil {
		_ = conn.Close()
		t.Error("TLS 1.1 is spoken")
	}
	conn, err = tls.Dial("tcp", r.dialAddress(), &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, NextProtos: []string{"h2"}})
	must(t, err)
	if p := conn.ConnectionState().NegotiatedProtocol; p != "h2" {
		t.Errorf("protocol %q, want h2", p)
	}
	must(t, conn.Close())
	// Over HTTP/2, as every client of Kubernetes: over HTTP/1.1 Go's server gives up the connection half a second after an
	// answer to a body that it did not read to its end, and a client that has not come to read by then loses the answer.
	// The rest of the body is sent when there is an answer.
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.CACertificate())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	rest, send := io.Pipe()
	defer send.Close()
	body := io.MultiReader(strings.NewReader(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"big"},"data":{"a":"`+strings.Repeat("a", 4<<20)), rest)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL()+"/clusters/shopname/api/v1/namespaces/default/configmaps", body)
	must(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+root)
	got, err := transport.RoundTrip(req)
	must(t, err)
	defer got.Body.Close()
	said, err := io.ReadAll(got.Body)
	must(t, err)
	if got.StatusCode != http.StatusRequestEntityTooLarge || got.ProtoMajor != 2 {
		t.Errorf("a body of 4 MiB: %s %d %.200s, want 413 over HTTP/2", got.Proto, got.StatusCode, said)
	}
}

// Open watches, over TLS and in memory, end with the server, soon and without an error.
func TestStopEndsWatches(t *testing.T) {
	r := startServer(t, withTokens(t))
	ctx := context.Background()
	inMemory, err := r.in(t, shop).CoreV1().ConfigMaps("").Watch(ctx, metav1.ListOptions{})
	must(t, err)
	config := r.LoopbackConfig()
	outside := *config
	outside.Dial, outside.Host, outside.BearerToken = nil, r.URL(), root
	outside.CAData = r.CACertificate()
	overTLS, err := r.as(t, &outside, "/clusters/shopname").CoreV1().ConfigMaps("").Watch(ctx, metav1.ListOptions{})
	must(t, err)
	began := time.Now()
	must(t, r.stop())
	took := time.Since(began)
	t.Logf("stopped after %s", took)
	// Ordinary requests have 60 s, and watches had them too.
	if took > 50*time.Second {
		t.Errorf("two open watches delayed the end by %s", took)
	}
	for range inMemory.ResultChan() {
	}
	for range overTLS.ResultChan() {
	}
	if _, err := net.Dial("tcp", r.dialAddress()); err == nil {
		t.Error("the port is still open")
	}
}

func TestPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer taken.Close()
	o := NewOptions()
	o.RootDirectory, o.SecurePort = t.TempDir(), taken.Addr().(*net.TCPAddr).Port
	_, err = New(t.Context(), o, nil)
	if err == nil || !strings.Contains(err.Error(), taken.Addr().String()) || !strings.Contains(err.Error(), "--secure-port") {
		t.Errorf("error %v, want one that names the address and the flag", err)
	}
	if _, err := os.Stat(o.AdminKubeconfig()); !os.IsNotExist(err) {
		t.Errorf("a kubeconfig was written for a server that does not run: %v", err)
	}
}

// What cannot be listened on, and where nothing can be kept, is said before anything is made.
func TestWhereNoServerCanBe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	for root, want := range map[string]string{
		file: "want a directory", filepath.Join(file, "below"): "want a directory", filepath.Join(filepath.Dir(file), "new"): "",
	} {
		o := NewOptions()
		o.RootDirectory = root
		if err := errors.Join(o.Validate()...); (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("--root-directory %s: error %v, want one with %q", root, err, want)
		}
	}
	o := NewOptions()
	o.BindAddress, o.SecurePort = net.ParseIP("192.0.2.1"), 0 // of documentation, so nobody's
	if err := CanListen(o); err == nil || !strings.Contains(err.Error(), "this machine has no such address") {
		t.Errorf("error %v, want one that names the address as none of this machine", err)
	}
	o.BindAddress = net.IPv4(127, 0, 0, 1)
	must(t, CanListen(o))
}

// What New took is given back by Close where Run is never called, and by Run itself.
func TestCloseGivesBackEverything(t *testing.T) {
	ctx := t.Context()
	etcd, err := embeddedetcd.Start(ctx, embeddedetcd.Options{Dir: t.TempDir()})
	must(t, err)
	defer func() { must(t, etcd.Stop()) }()
	before := runtime.NumGoroutine()
	newServer := func(ctx context.Context, port int) *Server {
		o := NewOptions()
		o.RootDirectory, o.SecurePort = t.TempDir(), port
		s, err := New(ctx, o, etcd.Client)
		must(t, err)
		s.Join(few{}, few{}, few{}, few{})
		return s
	}
	// New's context ends what authentication started; Close ends the rest.
	within, cancel := context.WithCancel(ctx)
	s := newServer(within, 0)
	if n := len(s.backend.Resources()); n == 0 {
		t.Fatal("the server opened no store")
	}
	port := s.listener.Addr().(*net.TCPAddr).Port
	must(t, s.Close())
	must(t, s.Close())
	cancel()
	if left := s.backend.Resources(); len(left) > 0 {
		t.Errorf("%d stores are still open", len(left))
	}
	const spare = 20 // of the runtime, of etcd, and of upstream's that last as long as the process
	for deadline := time.Now().Add(30 * time.Second); runtime.NumGoroutine() > before+spare; {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
		time.Sleep(10 * time.Millisecond)
	}
	// The port is free for another, which serves on the same etcd.
	within, cancel = context.WithCancel(ctx)
	s = newServer(within, port)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(within) }()
	must(t, s.WaitReady(ctx))
	cancel()
	must(t, <-ended)
	must(t, s.Close())
}

// A part that fails ends Run with its error.
func TestRunReturnsErrors(t *testing.T) {
	if err := (&Server{}).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "Join") {
		t.Errorf("without Join: %v", err)
	}
	ctx := t.Context()
	etcd, err := embeddedetcd.Start(ctx, embeddedetcd.Options{Dir: t.TempDir()})
	must(t, err)
	defer func() { must(t, etcd.Stop()) }()
	o := NewOptions()
	o.RootDirectory, o.SecurePort = t.TempDir(), 0
	s, err := New(ctx, o, etcd.Client)
	must(t, err)
	s.Join(few{}, few{}, few{}, few{})
	must(t, s.loopback.listener.Close())
	if err := s.Run(ctx); err == nil || !strings.Contains(err.Error(), "connections in memory") {
		t.Errorf("without connections in memory: %v", err)
	}
}
