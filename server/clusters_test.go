package server

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// every form that a path can have, and what comes out: which logical cluster, and which path the chain sees.
func TestPaths(t *testing.T) {
	type seen struct {
		Cluster    string // "" for none
		Unresolved string // the segment that names no workspace
		Path, URI  string
	}
	long := strings.Repeat("a", 63)
	tests := map[string]struct {
		target string
		want   seen
		code   int // of a refusal
		reason string
	}{
		"name":              {target: "/clusters/shopname/api/v1/pods?limit=1", want: seen{Cluster: "shopname", Path: "/api/v1/pods", URI: "/clusters/shopname/api/v1/pods?limit=1"}},
		"path":              {target: "/clusters/root:shop/api/v1/pods", want: seen{Cluster: "shopname", Path: "/api/v1/pods", URI: "/clusters/root:shop/api/v1/pods"}},
		"root":              {target: "/clusters/root/api", want: seen{Cluster: "root", Path: "/api", URI: "/clusters/root/api"}},
		"system":            {target: "/clusters/system:admin/api", want: seen{Cluster: "system:admin", Path: "/api", URI: "/clusters/system:admin/api"}},
		"wildcard":          {target: "/clusters/*/api", want: seen{Cluster: "*", Path: "/api", URI: "/clusters/*/api"}},
		"escaped wildcard":  {target: "/clusters/%2A/api", want: seen{Cluster: "*", Path: "/api", URI: "/clusters/%2A/api"}},
		"escaped colon":     {target: "/clusters/root%3Ashop/api", want: seen{Cluster: "shopname", Path: "/api", URI: "/clusters/root%3Ashop/api"}},
		"escaped letter":    {target: "/clusters/%72oot/api", want: seen{Cluster: "root", Path: "/api", URI: "/clusters/%72oot/api"}},
		"escaped prefix":    {target: "/%63lusters/root/api", want: seen{Cluster: "root", Path: "/api", URI: "/%63lusters/root/api"}},
		"escape behind":     {target: "/clusters/root/api/v1/namespaces/a%2Fb", want: seen{Cluster: "root", Path: "/api/v1/namespaces/a/b", URI: "/clusters/root/api/v1/namespaces/a%2Fb"}},
		"no rest":           {target: "/clusters/root", want: seen{Cluster: "root", Path: "/", URI: "/clusters/root"}},
		"slash at the end":  {target: "/clusters/root/", want: seen{Cluster: "root", Path: "/", URI: "/clusters/root/"}},
		"double slash":      {target: "/clusters/root//api", want: seen{Cluster: "root", Path: "//api", URI: "/clusters/root//api"}},
		"dots behind":       {target: "/clusters/root/../bankname/api", want: seen{Cluster: "root", Path: "/../bankname/api", URI: "/clusters/root/../bankname/api"}, reason: "nothing resolves dots, so they lead nowhere"},
		"twice":             {target: "/clusters/root/clusters/bankname/api", want: seen{Cluster: "root", Path: "/clusters/bankname/api", URI: "/clusters/root/clusters/bankname/api"}, reason: "the second is an ordinary path that serves nothing"},
		"no cluster":        {target: "/api/v1/pods", want: seen{Path: "/api/v1/pods", URI: "/api/v1/pods"}},
		"prefix alone":      {target: "/clusters", want: seen{Path: "/clusters", URI: "/clusters"}},
		"slash before":      {target: "//clusters/root/api", want: seen{Path: "//clusters/root/api"}, reason: "not our prefix"},
		"other case":        {target: "/Clusters/root/api", want: seen{Path: "/Clusters/root/api", URI: "/Clusters/root/api"}, reason: "paths know case"},
		"unknown path":      {target: "/clusters/root:nowhere/api", want: seen{Unresolved: "root:nowhere", Path: "/api", URI: "/clusters/root:nowhere/api"}},
		"unknown, deep":     {target: "/clusters/root:nowhere:x/api", want: seen{Unresolved: "root:nowhere:x", Path: "/api", URI: "/clusters/root:nowhere:x/api"}},
		"empty name":        {target: "/clusters//api", code: 400},
		"nothing":           {target: "/clusters/", code: 400},
		"dots":              {target: "/clusters/../api/v1/secrets", code: 400},
		"one dot":           {target: "/clusters/./api", code: 400},
		"escaped dots":      {target: "/clusters/%2e%2e/api", code: 400},
		"upper case":        {target: "/clusters/Root/api", code: 400},
		"upper case path":   {target: "/clusters/root:Shop/api", code: 400},
		"underscore":        {target: "/clusters/ro_ot/api", code: 400},
		"space":             {target: "/clusters/ro%20ot/api", code: 400},
		"NUL":               {target: "/clusters/ro%00ot/api", code: 400},
		"line":              {target: "/clusters/root%0Aadmin/api", code: 400},
		"over-long":         {target: "/clusters/" + long + "a/api", code: 400},
		"over-long path":    {target: "/clusters/root" + strings.Repeat(":"+long, 17) + "/api", code: 400},
		"colon at the end":  {target: "/clusters/root:/api", code: 400},
		"colon first":       {target: "/clusters/:root/api", code: 400},
		"two colons":        {target: "/clusters/root::shop/api", code: 400},
		"wildcard in path":  {target: "/clusters/root:*/api", code: 400},
		"two wildcards":     {target: "/clusters/**/api", code: 400},
		"bare system":       {target: "/clusters/system:/api", code: 400},
		"system with slash": {target: "/clusters/system:a%2Fb/api", code: 400},
		"system dots":       {target: "/clusters/system:../api", code: 400},
		"escaped slash":     {target: "/clusters/root%2Fapi/v1/secrets", code: 400, reason: "a proxy before us saw another name"},
		"lower case escape": {target: "/clusters/root%2fapi", code: 400},
		"slash in prefix":   {target: "/clusters%2Froot/api", code: 400, reason: "a proxy before us saw no /clusters"},
		"hidden escape":     {target: "/%63lusters/root%2F../api", code: 400, reason: "an escaped prefix must not hide an escaped slash"},
	}
	s := &Server{directory: few{}, serializer: legacyscheme.Codecs}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var got *seen
			handler := s.withLogicalCluster(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
				got = &seen{Path: req.URL.Path, URI: req.URL.RequestURI()}
				if cluster, ok := lcctx.ClusterFrom(req.Context()); ok {
					got.Cluster = cluster.String()
				}
				got.Unresolved, _ = req.Context().Value(unresolvedKey{}).(string)
			}))
			target, err := url.ParseRequestURI(test.target)
			if err != nil {
				t.Fatal(err)
			}
			req := httptest.NewRequest(http.MethodGet, "/", nil)
			req.URL = target
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, req)
			if test.code != 0 {
				if got != nil || recorder.Code != test.code {
					t.Errorf("answered %d, passed on as %+v; want %d: %s", recorder.Code, got, test.code, test.reason)
				}
				return
			}
			if got == nil {
				t.Fatalf("refused with %d %s: %s", recorder.Code, recorder.Body, test.reason)
			}
			if test.want.URI == "" {
				got.URI = ""
			}
			if diff := cmp.Diff(test.want, *got); diff != "" {
				t.Errorf("(-want +got): %s\n%s", test.reason, diff)
			}
			if req.URL.Path != target.Path {
				t.Error("the client's request changed")
			}
		})
	}
}

// failing is a directory that cannot answer.
type failing struct{ few }

func (failing) Resolve(context.Context, logicalcluster.Path) (logicalcluster.Name, error) {
	return "", errors.New("secret detail of the inside")
}

// Who is not authenticated yet learns nothing of what is wrong inside.
func TestPathsWhenTheDirectoryFails(t *testing.T) {
	s := &Server{directory: failing{}, serializer: legacyscheme.Codecs}
	recorder := httptest.NewRecorder()
	s.withLogicalCluster(http.NotFoundHandler()).ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/clusters/root:shop/api", nil))
	if recorder.Code != http.StatusServiceUnavailable || strings.Contains(recorder.Body.String(), "secret") {
		t.Errorf("%d %s, want 503 without the cause", recorder.Code, recorder.Body)
	}
}
