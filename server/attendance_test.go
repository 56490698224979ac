package server

import (
	"context"
	"net/url"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/internal/attendance"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

func TestAttendantRequest(t *testing.T) {
	for _, tc := range []struct {
		url     string
		cluster string // "" where it is refused
		path    string
		reason  string
	}{
		{"/services/initializingworkspaces/root:team/clusters/*", "*", "/", "all that wait"},
		{"/services/initializingworkspaces/root:team/clusters/*/apis/core.kcp.io", "*", "/apis/core.kcp.io", "below"},
		{"/services/initializingworkspaces/root:team/clusters/shop/api/v1/pods", "shop", "/api/v1/pods", "one of them"},
		{"/services/initializingworkspaces/root:team/clusters/shop/api/v1/a%2Fb", "shop", "/api/v1/a/b", "escaped below, as everywhere"},
		{"/services/initializingworkspaces/root:team/clusters/root:shop/api", "", "", "by name, not by path: the tenant of a workspace above would choose what that is"},
		{"/services/initializingworkspaces/root:team/clusters/", "", "", "none"},
		{"/services/initializingworkspaces/root:team/clusters", "", "", "nor this"},
		{"/services/initializingworkspaces/root:team/api", "", "", "nor anything else"},
		{"/services/initializingworkspaces/team/clusters/*", "", "", "no logical cluster holds the type"},
		{"/services/initializingworkspaces/root:/clusters/*", "", "", "no type"},
		{"/services/initializingworkspaces/:team/clusters/*", "", "", "no holder"},
		{"/services/initializingworkspaces/root:org:team/clusters/*", "", "", "a path holds it, which may become another's"},
		{"/services/initializingworkspaces/root:team%2Fclusters/shop/clusters/*", "", "", "an escaped slash"},
		{"/services%2Finitializingworkspaces/root:team/clusters/shop", "", "", "before, too"},
	} {
		u, err := url.Parse(tc.url)
		must(t, err)
		asked, cluster, path, err := attendantRequest(attendance.Initialization, u)
		if tc.cluster == "" {
			if err == nil {
				t.Errorf("%s: %s is taken for %s of %s", tc.reason, tc.url, path, cluster)
			}
			continue
		}
		if err != nil || cluster.String() != tc.cluster || path != tc.path || asked.holder != "root" || asked.typeName != "team" || asked.Name != "root:team" {
			t.Errorf("%s: %s is %s of %s for %+v, %v; want %s of %s", tc.reason, tc.url, path, cluster, asked, err, tc.path, tc.cluster)
		}
	}
}

// Who works in a workspace as its owner is never the server itself, as whom admission and controllers would take him.
func TestAsWhomAttendantsWork(t *testing.T) {
	for _, tc := range []struct {
		owner string
		is    bool
	}{
		{"olga", true}, {"system:kcp:serviceaccount:shopname:default:robot", true}, {"", false}, {user.APIServerUser, false}, {reservedPrefix + "syncer", false},
	} {
		got := ownerOf(&corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{tenancyv1alpha1.OwnerAnnotation: tenancyv1alpha1.OwnerValue(tc.owner)}}})
		if (got != nil) != tc.is {
			t.Errorf("what %q owns is worked in as %v", tc.owner, got)
		} else if tc.is && (got.GetName() != tc.owner || len(got.GetGroups()) != 1 || got.GetGroups()[0] != user.AllAuthenticated) {
			t.Errorf("what %q owns is worked in as %+v", tc.owner, got)
		}
	}
}

// Roles say yes to everything here, access to the workspace among it.
func TestNobodyEntersWhatIsNotInitialized(t *testing.T) {
	a := over(&yes{})
	a.initialized = func(_ context.Context, name logicalcluster.Name) (bool, error) { return name != shop, nil }
	for _, tc := range []struct {
		cluster logicalcluster.Name
		who     user.Info
		allow   bool
		reason  string
	}{
		{shop, person("olga"), false, "its owner"},
		{shop, person(serviceAccountsPrefix + ":default:robot"), false, "its ServiceAccounts"},
		{shop, person("root", user.SystemPrivilegedGroup), true, "administrators of the server"},
		{shop, person(user.APIServerUser, user.SystemPrivilegedGroup), true, "the server itself"},
		{bank, person("olga"), true, "another workspace"},
	} {
		for _, attrs := range []authorizer.AttributesRecord{resource("list", "", "pods", ""), nonResource("/api"), nonResource("/healthz")} {
			attrs.User = tc.who
			got, why, err := a.Authorize(lcctx.WithCluster(t.Context(), lcctx.Cluster{Name: tc.cluster}), attrs)
			if err != nil || (got == authorizer.DecisionAllow) != tc.allow {
				t.Errorf("%s: %+v is answered %v, %q, %v", tc.reason, attrs, got, why, err)
			}
		}
	}
}

// Roles say yes to everything here: the verb on the type is there, and what the owner may is all.
func TestWhatAttendantsMay(t *testing.T) {
	as := attendance.As{Attendance: attendance.Termination, Name: "root:team"}
	who := &attendantUser{Info: person("pat"), asked: &attending{As: as, holder: "root", typeName: "team"}}
	a := over(&yes{})
	a.waiting = func(_ context.Context, name logicalcluster.Name, _ attendance.As) (*corev1alpha1.LogicalCluster, error) {
		if name != shop {
			return nil, nil
		}
		return &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{tenancyv1alpha1.OwnerAnnotation: tenancyv1alpha1.OwnerValue("olga")}}}, nil
	}
	all, one, other := lcctx.Cluster{Wildcard: true}, lcctx.Cluster{Name: shop}, lcctx.Cluster{Name: bank}
	const core = "core.kcp.io"
	impersonate := authorizer.AttributesRecord{Verb: "impersonate", Resource: "users", Name: "olga", ResourceRequest: true}
	for _, tc := range []struct {
		cluster lcctx.Cluster
		attrs   authorizer.AttributesRecord
		allow   bool
		reason  string
	}{
		{all, resource("list", core, "logicalclusters", ""), true, "that is what it is for"},
		{all, resource("watch", core, "logicalclusters", ""), true, "as is this"},
		{all, nonResource("/apis"), true, "clients look what there is"},
		{all, resource("get", core, "logicalclusters", ""), false, "of which"},
		{all, resource("list", core, "logicalclusters", "status"), false, "nothing is read there"},
		{all, resource("deletecollection", core, "logicalclusters", ""), false, "nor written"},
		{all, resource("list", "", "secrets", ""), false, "what they hold is asked of each"},
		{all, resource("list", "tenancy.kcp.io", "workspaces", ""), false, "these are not of what waits alone"},
		{all, nonResource("/metrics"), false, "of the process"},
		{all, nonResource(BackupPath), false, "of everything"},
		{all, nonResource(ExportPath), false, "of any workspace"},
		{all, impersonate, false, "nobody is anybody else"},
		{one, resource("get", core, "logicalclusters", ""), true, "who is left"},
		{one, resource("patch", core, "logicalclusters", "status"), true, "to leave"},
		{one, resource("update", core, "logicalclusters", ""), false, "by the status alone"},
		{one, resource("delete", core, "logicalclusters", ""), false, "its end is the system's"},
		{one, resource("delete", "", "secrets", ""), true, "as the owner"},
		{one, resource("create", "placement.atoll.dev", "placements", ""), false, "which the owner cannot"},
		{one, nonResource("/metrics"), false, "nor this"},
		{one, impersonate, false, "nobody is anybody else"},
		{other, resource("get", core, "logicalclusters", ""), false, "it does not wait"},
		{other, nonResource("/healthz"), false, "whether it is there is no answer"},
	} {
		tc.attrs.User = who
		got, why, err := a.Authorize(attendance.With(lcctx.WithCluster(t.Context(), tc.cluster), as), tc.attrs)
		if err != nil || (got == authorizer.DecisionAllow) != tc.allow {
			t.Errorf("%s: %s %s %s/%s in %s is answered %v, %q, %v", tc.reason, tc.attrs.Verb, tc.attrs.Path, tc.attrs.Resource, tc.attrs.Subresource, tc.cluster, got, why, err)
		}
	}
	for reason, who := range map[string]user.Info{"a syncer": &syncerUser{}, "nobody known": &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}} {
		attrs := resource("list", core, "logicalclusters", "")
		attrs.User = &attendantUser{Info: who, asked: &attending{As: as, holder: "root", typeName: "team"}}
		if got, _, err := a.Authorize(lcctx.WithCluster(t.Context(), all), attrs); err != nil || got == authorizer.DecisionAllow {
			t.Errorf("%s is an attendant: %v, %v", reason, got, err)
		}
	}
}
