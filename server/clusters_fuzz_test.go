package server

import (
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/identity"
)

// FuzzClustersPath: a request gets no further than to the logical cluster that its path names, in a form that cannot be
// another's, with the rest of the path as it was; and to all of them by the one segment that says so.
func FuzzClustersPath(f *testing.F) {
	for _, target := range []string{
		"/clusters/root:shop/api/v1/pods", "/clusters/shopname", "/clusters/shopname/", "/clusters/*/api/v1/pods", "/clusters/%2A/api", "/clusters/**/api", "/clusters/root:*/api",
		"/clusters//api", "/clusters", "/clusters/", "/clusters/root:shop%2F..%2Fbankname/api", "/clusters/../bankname/api", "/clusters/./api", "/clusters/system:admin/api",
		"/clusters/system:/api", "/clusters/system:a%2Fb", "/clusters/root:shop:/api", "/clusters/root::shop", "/%63lusters/root%2F../api", "/clusters%2Froot/api",
		"/clusters/shopname/clusters/bankname/api", "/clusters/shopname//clusters/*/api", "/clusters/shopname/..%2f..%2fbankname", "/clusters/root?a=/clusters/*", "/CLUSTERS/root", "//clusters/root", "/clusters/eastname/api", "/clusters/%00/api",
	} {
		f.Add(target)
	}
	s := &Server{directory: few{}, credentials: few{}, serializer: legacyscheme.Codecs, tokens: &identity.Tokens{}, lookups: make(chan struct{}, lookupsAtOnce)}
	f.Fuzz(func(t *testing.T, target string) {
		u, err := url.ParseRequestURI(target)
		if err != nil {
			return
		}
		var inner *http.Request
		handler := s.withLogicalCluster(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { inner = req }), someone(user.AllUnauthenticated))
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		req.URL = u
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, req)
		if inner == nil {
			if recorder.Code < 400 {
				t.Fatalf("%q is answered with %d by nobody", target, recorder.Code)
			}
			return
		}
		cluster, ok := lcctx.ClusterFrom(inner.Context())
		rest, below := strings.CutPrefix(u.Path, clustersPrefix)
		unresolved, isUnresolved := inner.Context().Value(unresolvedKey{}).(string)
		if !below {
			if ok || isUnresolved || inner.URL.Path != u.Path {
				t.Fatalf("%q is a request to %v %q, path %q", target, cluster, unresolved, inner.URL.Path)
			}
			return
		}
		segment, _, _ := strings.Cut(rest, "/")
		if path := inner.URL.Path; !strings.HasPrefix(path, "/") || clustersPrefix+segment+path != u.Path && (path != "/" || clustersPrefix+segment != u.Path) {
			t.Errorf("%q goes on as %q", target, path)
		}
		switch {
		case isUnresolved:
			if ok || unresolved != segment {
				t.Errorf("%q is a request to %v, and to nowhere (%q)", target, cluster, unresolved)
			}
		case !ok:
			t.Errorf("%q is a request to nothing", target)
		case cluster.Wildcard || segment == "*":
			if !cluster.Wildcard || segment != "*" || cluster.Name != "" {
				t.Errorf("%q is a request to %v %q", target, cluster, cluster.Name)
			}
		default:
			if err := lcctx.ValidateName(string(cluster.Name)); err != nil {
				t.Errorf("%q: %v", target, err)
			}
			if known, _ := (few{}).KnownPath(logicalcluster.NewPath(segment)); cluster.Name != known && cluster.Name.String() != segment {
				t.Errorf("%q is a request to %q", target, cluster.Name)
			}
		}
	})
}

// FuzzWorkspaceOf: a certificate names a workspace by the one URI that is written for it, and by no other.
func FuzzWorkspaceOf(f *testing.F) {
	for _, uri := range []string{
		"atoll:/clusters/shopname", "atoll:/clusters/", "atoll:/clusters/*", "atoll:/clusters/shopname/", "atoll:/clusters/shopname/../bankname", "atoll:/clusters/%73hopname", "atoll:/clusters/a%2Fb",
		"atoll:///clusters/shopname", "atoll://host/clusters/shopname", "ATOLL:/clusters/shopname", "https:/clusters/shopname", "atoll:/clusters/shopname?a=b", "atoll:/clusters/shopname#a",
		"atoll:/clusters/clusters/shopname", "atoll:clusters/shopname", "atoll:shopname", "/clusters/shopname", "shopname", "atoll:/clusters/system:admin", "",
	} {
		f.Add(uri)
	}
	f.Fuzz(func(t *testing.T, text string) {
		uri, err := url.Parse(text)
		if err != nil {
			return
		}
		name, err := workspaceOf(&x509.Certificate{URIs: []*url.URL{uri}})
		if err != nil {
			if name != "" {
				t.Errorf("%q names %q and %v", text, name, err)
			}
			return
		}
		if err := lcctx.ValidateName(string(name)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if uri.String() != "atoll:/clusters/"+string(name) {
			t.Errorf("%q (%s) names %q", text, uri, name)
		}
		if two, err := workspaceOf(&x509.Certificate{URIs: []*url.URL{uri, uri}}); err == nil {
			t.Errorf("two URIs name %q", two)
		}
	})
}
