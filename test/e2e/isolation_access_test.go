package e2e

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// TestI1_NoBleed_Strangers: who is admin of one workspace is a stranger in every other, and a request that may not be
// made says nothing about what there is.
func TestI1_NoBleed_Strangers(t *testing.T) {
	t.Parallel()
	w := newIsoWorld(t)
	a, b := w.a.String(), w.b.String()
	const cm = "/api/v1/namespaces/iso/configmaps/iso"
	var (
		ok           = []int{http.StatusOK}
		forbidden    = []int{http.StatusForbidden}
		unauthorized = []int{http.StatusUnauthorized}
		notFound     = []int{http.StatusNotFound}
		bad          = []int{http.StatusBadRequest}
		nothing      = []int{http.StatusForbidden, http.StatusUnauthorized}
	)
	tests := []struct {
		path   string
		token  string
		want   []int
		reason string
	}{
		{"/clusters/" + a + cm, tokenA, ok, "alice is admin of a"},
		{"/clusters/root:a" + cm, tokenA, ok, "by path as well"},
		{"/clusters/" + b + cm, tokenA, forbidden, "and a stranger in b"},
		{"/clusters/root:b" + cm, tokenA, forbidden, "also by path"},
		{"/clusters/root" + "/apis/tenancy.kcp.io/v1alpha1/workspaces", tokenA, forbidden, "and in the parent"},
		{"/clusters/system:admin/api/v1/namespaces", tokenA, forbidden, "and in the installation's"},
		{"/clusters/" + a + cm, tokenB, forbidden, "bob is a stranger in a"},
		{"/clusters/root/api/v1/namespaces", tokenB, forbidden, "and in root"},
		{"/clusters/nothere123/api/v1/configmaps", tokenA, forbidden, "an unknown name is like one of another's"},
		{"/clusters/root:nothere/api/v1/configmaps", tokenA, forbidden, "an unknown path is, too, to who may not look for it"},
		{"/clusters/root:a:nothere/api/v1/configmaps", tokenA, notFound, "an unknown path below"},
		{"/clusters/Bad_Name/api/v1/configmaps", tokenA, bad, "no name"},
		{"/clusters/root:Bad_Name/api/v1/configmaps", tokenA, bad, "no path"},
		{"/clusters//api/v1/configmaps", tokenA, bad, "an empty name"},
		{"/clusters/" + strings.Repeat("a", 64) + "/api/v1/configmaps", tokenA, bad, "an over-long name"},
		{"/clusters/" + a + "%2F.." + "/api/v1/configmaps", tokenA, bad, "an escaped slash"},
		{"/api/v1/configmaps", tokenA, forbidden, "no workspace at all"},
		{"/clusters/" + a + cm, "wrong", unauthorized, "an unknown token"},
		{"/clusters/" + b + cm, "wrong", unauthorized, "an unknown token"},
		{"/clusters/root:nothere" + cm, "wrong", unauthorized, "an unknown token learns nothing about paths"},
		{"/clusters/" + a + cm, "", nothing, "nobody"},
		{"/clusters/root:a" + cm, "", nothing, "nobody"},
		{"/clusters/root:nothere" + cm, "", nothing, "nobody learns which paths exist"},
		{"/clusters/nothere123" + cm, "", nothing, "nor which names"},
		{"/clusters/*/api/v1/configmaps", "", nothing, "nobody"},
		{"/clusters/*/api/v1/configmaps", tokenA, forbidden, "tenants may not read all at once"},
	}
	for _, test := range tests {
		got := w.do(t, request{path: test.path, token: test.token})
		if !isOne(got.code, test.want) {
			t.Errorf("%s as %q: %d %s, want %v: %s", test.path, test.token, got.code, got.message(), test.want, test.reason)
		}
		if strings.Contains(got.body, canary) {
			t.Errorf("%s as %q shows b's canary", test.path, test.token)
		}
	}

	// What exists and what does not must be answered alike, but for what the stranger asked.
	alike := func(token, real, unreal string) {
		t.Helper()
		x, y := w.do(t, request{path: real, token: token}), w.do(t, request{path: unreal, token: token})
		if x.code != y.code || strings.ReplaceAll(x.body, real, "") != strings.ReplaceAll(y.body, unreal, "") {
			t.Errorf("as %q, %s and %s can be told apart:\n%d %s\n%d %s", token, real, unreal, x.code, x.body, y.code, y.body)
		}
	}
	alike("", "/clusters/root:a"+cm, "/clusters/root:nothere"+cm)
	alike("", "/clusters/"+a+cm, "/clusters/nothere123"+cm)
	alike("wrong", "/clusters/root:a"+cm, "/clusters/root:nothere"+cm)
	alike(tokenA, "/clusters/"+b+cm, "/clusters/nothere123"+cm)
	for _, path := range []string{cm, "/version", "/api", "/openapi/v3"} {
		alike(tokenA, "/clusters/root:b"+path, "/clusters/root:nothere"+path)
		alike(tokenA, "/clusters/"+b+path, "/clusters/nothere123"+path)
	}
}

// TestI1_NoBleed_AdminOfAWorkspaceIsNoMore: what an admin may give himself inside his workspace leads nowhere else.
func TestI1_NoBleed_AdminOfAWorkspaceIsNoMore(t *testing.T) {
	t.Parallel()
	w := newIsoWorld(t)
	a, b := w.a.String(), w.b.String()
	masters := map[string]string{"Impersonate-User": "root", "Impersonate-Group": "system:masters"}
	bob := map[string]string{"Impersonate-User": "bob"}
	for _, header := range []map[string]string{masters, bob, {"Impersonate-User": "system:apiserver", "Impersonate-Group": "system:masters"}} {
		for _, path := range []string{
			"/clusters/" + b + "/api/v1/namespaces/iso/configmaps/iso", "/clusters/root:b/api/v1/configmaps",
			"/clusters/*/api/v1/configmaps", "/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces", "/clusters/system:admin/api/v1/namespaces",
		} {
			got := w.do(t, request{path: path, token: tokenA, header: header})
			if got.code != http.StatusForbidden || strings.Contains(got.body, canary) {
				t.Errorf("%s as alice impersonating %v: %d %s, want 403", path, header, got.code, got.message())
			}
		}
	}
	// The system alone writes decisions and the description of a logical cluster, whoever one says to be.
	placement := `{"apiVersion":"placement.atoll.dev/v1alpha1","kind":"Placement","metadata":{"name":"mine"},"spec":{"namespace":"iso"}}`
	for _, header := range []map[string]string{nil, masters, {"Impersonate-User": "system:apiserver", "Impersonate-Group": "system:masters"}} {
		for _, try := range []request{
			{method: http.MethodPost, path: "/clusters/" + a + "/apis/placement.atoll.dev/v1alpha1/placements", body: placement},
			{method: http.MethodPatch, path: "/clusters/" + a + "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster/status", body: `{"status":{"phase":"Ready"}}`},
		} {
			try.token, try.header = tokenA, map[string]string{}
			for k, v := range header {
				try.header[k] = v
			}
			if try.method == http.MethodPatch {
				try.header["Content-Type"] = "application/merge-patch+json"
			}
			if got := w.do(t, try); got.code != http.StatusForbidden {
				t.Errorf("%s %s as alice impersonating %v: %d %s, want 403", try.method, try.path, header, got.code, got.message())
			}
		}
	}
	// What concerns the whole process is not the workspace's, though its admin may use every URL of it.
	for _, path := range []string{"/metrics", "/metrics/slis", "/debug/pprof/", "/debug/pprof/goroutine?debug=2", "/debug/pprof/heap", "/debug/flags/v", "/statusz", "/flagz", "/configz", "/logs", "/logs/"} {
		got := w.do(t, request{path: "/clusters/" + a + path, token: tokenA})
		if !isOne(got.code, []int{http.StatusForbidden, http.StatusNotFound}) {
			t.Errorf("/clusters/a%s as alice: %d %.100s, want 403", path, got.code, got.body)
		}
	}
	for _, path := range []string{"/version", "/healthz", "/livez", "/readyz", "/api", "/apis", "/openapi/v2", "/openapi/v3"} {
		if got := w.do(t, request{path: "/clusters/" + a + path, token: tokenA}); got.code != http.StatusOK {
			t.Errorf("/clusters/a%s as alice: %d %.100s, want 200", path, got.code, got.body)
		}
	}
	// A proxy would be a way into the server's own network: the addresses in statuses are the tenant's.
	for path, want := range map[string]int{
		"/api/v1/nodes/iso/proxy/":                         http.StatusNotImplemented,
		"/api/v1/namespaces/iso/pods/iso/proxy/":           http.StatusNotImplemented, // no physical cluster shows it
		"/api/v1/namespaces/iso/services/iso:80/proxy/":    http.StatusServiceUnavailable,
		"/api/v1/namespaces/iso/services/http:iso:/proxy/": http.StatusServiceUnavailable,
	} {
		got := w.do(t, request{path: "/clusters/" + a + path, token: tokenA})
		if got.code != want {
			t.Errorf("/clusters/a%s: %d %s, want %d", path, got.code, got.message(), want)
		}
	}
}

func isOne(code int, of []int) bool { return slices.Contains(of, code) }
