package server

import (
	"context"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

func TestWhoHasAHome(t *testing.T) {
	everybody := []string{user.AllAuthenticated}
	for _, tc := range []struct {
		reason       string
		who          user.Info
		impersonated bool
		groups       []string
		want         string // a part of why not
	}{
		{"who is in the group", person("ann", "staff"), false, []string{"other", "staff"}, ""},
		{"everybody who is authenticated", person("oidc:ann@shop.example"), false, everybody, ""},
		{"nobody by default", person("ann", "staff"), false, nil, "makes no home workspaces"},
		{"who is not in the group", person("bob"), false, []string{"staff"}, "no home workspace is made for you"},
		{"by another's word", person("ann", "staff"), true, everybody, "impersonated"},
		{"a ServiceAccount", person("system:serviceaccount:team:robot"), false, everybody, "a ServiceAccount"},
		{"a user of one workspace", &user.DefaultInfo{Name: "ann", Groups: everybody, Extra: map[string][]string{lcctx.UserExtra: {"shop"}}}, false, everybody, "by its certificate"},
		{"an administrator", person("root", user.SystemPrivilegedGroup), false, everybody, "may enter all"},
		{"the server", person(user.APIServerUser, user.SystemPrivilegedGroup), false, everybody, "administrator"},
		{"a part of the system", person("system:kube-scheduler"), false, everybody, "parts of the system"},
		{"nobody", &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}, false, []string{user.AllUnauthenticated}, "parts of the system"},
		{"without a name", person(""), false, everybody, "parts of the system"},
	} {
		got := whyNoHome(tc.who, tc.impersonated, tc.groups)
		if tc.want == "" && got != "" || tc.want != "" && !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.reason, got, tc.want)
		}
	}
}

// To ask for one's home takes no role, and none gives another.
func TestAuthorizeHome(t *testing.T) {
	inRoot := lcctx.WithCluster(context.Background(), lcctx.Cluster{Name: rootCluster})
	inShop := lcctx.WithCluster(context.Background(), lcctx.Cluster{Name: shop})
	get := named(resource("get", "tenancy.kcp.io", "workspaces", ""), "", "~")
	create := named(resource("create", "tenancy.kcp.io", "workspaces", ""), "", "~")
	status := named(resource("get", "tenancy.kcp.io", "workspaces", "status"), "", "~")
	for _, tc := range []struct {
		reason string
		ctx    context.Context
		who    user.Info
		attrs  authorizer.AttributesRecord
		roles  authorizer.Authorizer
		want   authorizer.Decision
	}{
		{"his own", inRoot, person("ann", "staff"), get, may(""), authorizer.DecisionAllow},
		{"not for whom there is none", inRoot, person("bob"), get, &yes{}, authorizer.DecisionDeny},
		{"not by another's word", context.WithValue(inRoot, impersonatingKey{}, true), person("ann", "staff"), get, &yes{}, authorizer.DecisionDeny},
		{"it is in root", inShop, person("ann", "staff"), get, may(""), authorizer.DecisionDeny},
		{"and only read", inRoot, person("ann", "staff"), create, may(""), authorizer.DecisionNoOpinion},
		{"the whole of it", inRoot, person("ann", "staff"), status, may(""), authorizer.DecisionNoOpinion},
	} {
		a := over(tc.roles)
		a.homes = []string{"staff"}
		tc.attrs.User = tc.who
		if got, why, err := a.Authorize(tc.ctx, tc.attrs); err != nil || got != tc.want {
			t.Errorf("%s: %v (%q), %v; want %v", tc.reason, got, why, err, tc.want)
		}
	}
}

// Homes have names of their own, of which each can be a part of a path.
func TestNamesOfHomes(t *testing.T) {
	seen := map[string]string{}
	for _, who := range []string{"ann", "Ann", "ann ", "oidc:ann", "oidc:ann@shop.example", "ann@shop.example", "..", "/", "~", strings.Repeat("a", 300), "\u00e5nn"} {
		name := nameOfHome(who)
		if problems := content.IsDNS1123Label(name); len(problems) > 0 || name != nameOfHome(who) {
			t.Errorf("the home of %q is %q, and then %q: %v", who, name, nameOfHome(who), problems)
		}
		if other, ok := seen[name]; ok {
			t.Errorf("%q and %q share the home %q", who, other, name)
		}
		seen[name] = who
	}
}

func TestReadyHomes(t *testing.T) {
	home := func(owner string, phase corev1alpha1.LogicalClusterPhase, deleting bool) *tenancyv1alpha1.Workspace {
		w := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{tenancyv1alpha1.OwnerAnnotation: tenancyv1alpha1.OwnerValue(owner)}}}
		w.Status.Phase = phase
		if deleting {
			w.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		}
		return w
	}
	const ready, scheduling = corev1alpha1.LogicalClusterPhaseReady, corev1alpha1.LogicalClusterPhaseScheduling
	ok := func(err error) bool { return err == nil }
	for _, tc := range []struct {
		reason string
		w      *tenancyv1alpha1.Workspace
		want   func(error) bool
	}{
		{"it is there", home("ann", ready, false), ok},
		{"it is being made", nil, apierrors.IsTooManyRequests},
		{"it is not ready", home("ann", scheduling, false), apierrors.IsTooManyRequests},
		{"it waits for its initializers", home("ann", corev1alpha1.LogicalClusterPhaseInitializing, false), apierrors.IsTooManyRequests},
		{"it goes", home("ann", ready, true), apierrors.IsConflict},
		{"it is another's", home("bob", ready, false), apierrors.IsConflict},
		{"another's, and not ready", home("bob", scheduling, false), apierrors.IsConflict},
		{"nobody's", home("", ready, false), apierrors.IsConflict},
	} {
		if err := notReady(tc.w, "h", "ann"); !tc.want(err) {
			t.Errorf("%s: %v", tc.reason, err)
		}
	}
}
