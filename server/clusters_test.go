package server

import (
	stdcmp "cmp"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	kubestorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/utils/clock"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/identity"
	"atoll.dev/atoll/server/storage"
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
	s := &Server{directory: few{}, credentials: few{}, serializer: legacyscheme.Codecs, tokens: &identity.Tokens{}, lookups: make(chan struct{}, lookupsAtOnce)}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var got *seen
			handler := s.withLogicalCluster(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
				got = &seen{Path: req.URL.Path, URI: req.URL.RequestURI()}
				if cluster, ok := lcctx.ClusterFrom(req.Context()); ok {
					got.Cluster = cluster.String()
				}
				got.Unresolved, _ = req.Context().Value(unresolvedKey{}).(string)
			}), someone(user.AllAuthenticated))
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

// searching is a directory that knows nothing by itself, counts searches, and cannot answer them.
type searching struct {
	few
	searches int
	endless  bool // a search was asked for without a limit of time
}

func (*searching) Annotation(logicalcluster.Name, string) string { return "" }

func (*searching) KnownPath(logicalcluster.Path) (logicalcluster.Name, bool) { return "", false }

func (d *searching) Resolve(ctx context.Context, _ logicalcluster.Path) (logicalcluster.Name, error) {
	d.searches++
	if _, limited := ctx.Deadline(); !limited {
		d.endless = true
	}
	return "", errors.New("secret detail of the inside")
}

// someone authenticates everybody as a user of these groups, takes the credential off the request as authenticators do,
// and refuses everybody if there are none.
func someone(groups ...string) authenticator.Request {
	return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		if len(groups) == 0 {
			return nil, false, errors.New("a credential of nobody")
		}
		req.Header.Del("Authorization")
		return &authenticator.Response{User: &user.DefaultInfo{Groups: groups}}, true, nil
	})
}

// accounts is a server that has one ServiceAccount, in shop, and in memory a row of the installation.
type accounts struct {
	kubestorage.Interface
	row storage.InstallationRow
}

func (a *accounts) Resource(schema.GroupResource) (*storage.Resource, bool) {
	return &storage.Resource{Prefix: "/serviceaccounts", Namespaced: true, New: func() runtime.Object { return &core.ServiceAccount{} }, Storage: a}, true
}

func (*accounts) Get(ctx context.Context, key string, _ kubestorage.GetOptions, into runtime.Object) error {
	if cluster, ok := lcctx.ClusterFrom(ctx); !ok || cluster.Name != shop || !strings.HasSuffix(key, "/"+robot) {
		return kubestorage.NewKeyNotFoundError(key, 0)
	}
	into.(*core.ServiceAccount).UID = "lives"
	return nil
}

func (a *accounts) ReadInstallation(context.Context, string) (storage.InstallationRow, error) {
	return a.row, nil
}

func (a *accounts) WriteInstallation(_ context.Context, _ string, value []byte, revision int64) (bool, error) {
	a.row = storage.InstallationRow{Value: value, Revision: revision + 1}
	return true, nil
}

// issue returns a genuine token of a ServiceAccount, which may not be there.
func issue(t *testing.T, tokens *identity.Tokens, cluster logicalcluster.Name, name string) string {
	t.Helper()
	account := core.ServiceAccount{}
	account.Namespace, account.Name, account.UID = team, name, "lives"
	claims, private, err := serviceaccount.Claims(account, nil, nil, nil, 3600, 0, tokens.Default(cluster))
	if err != nil {
		t.Fatal(err)
	}
	token, err := tokens.GenerateToken(lcctx.WithCluster(t.Context(), lcctx.Cluster{Name: cluster}), claims, private)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// Whom nobody knows makes the server search for nothing, by path or by name, and is passed on as if there were nothing;
// the chain refuses him either way. For others it searches, and a failure tells nothing of what is wrong inside.
func TestStrangersCauseNoSearch(t *testing.T) {
	type seen struct{ absent, unresolved, credential bool }
	rows := &accounts{}
	issuers, err := identity.NewIssuers([]string{"https://atoll"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := identity.OpenKeys(t.Context(), rows, issuers, time.Hour, clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	tokens := identity.NewTokens(issuers, keys, rows, identity.NewEnded())
	for _, target := range []string{"/clusters/root:anything/api", "/clusters/anything/api"} {
		byPath := strings.Contains(target, "root:")
		for name, tc := range map[string]struct {
			who      authenticator.Request
			token    string // "x" if it is empty
			stranger bool
		}{
			"nobody":                          {who: someone(user.AllUnauthenticated), stranger: true},
			"a wrong credential":              {who: someone(), stranger: true},
			"somebody":                        {who: someone(user.AllAuthenticated)},
			"a ServiceAccount":                {who: tokens, token: issue(t, tokens, shop, robot)},
			"a deleted ServiceAccount":        {who: tokens, token: issue(t, tokens, shop, "deleted"), stranger: true},
			"one of a workspace that is gone": {who: tokens, token: issue(t, tokens, "nowhere", robot), stranger: true},
		} {
			d := &searching{}
			// A backend without LogicalClusters cannot look up names.
			s := &Server{directory: d, credentials: few{}, serializer: legacyscheme.Codecs, backend: &storage.Backend{}, tokens: tokens, lookups: make(chan struct{}, lookupsAtOnce)}
			who := authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
				if _, limited := req.Context().Deadline(); !limited {
					t.Errorf("%s by %s: who it is was asked without a limit of time", target, name)
				}
				return tc.who.AuthenticateRequest(req)
			})
			var got *seen
			handler := s.withLogicalCluster(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
				_, unresolved := req.Context().Value(unresolvedKey{}).(string)
				got = &seen{absent: req.Context().Value(absentKey{}) != nil, unresolved: unresolved, credential: req.Header.Get("Authorization") != ""}
			}), who)
			req := httptest.NewRequest(http.MethodGet, target, nil)
			req.Header.Set("Authorization", "Bearer "+stdcmp.Or(tc.token, "x"))
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, req)
			if d.endless {
				t.Errorf("%s by %s: searched without a limit of time", target, name)
			}
			if !tc.stranger {
				if got != nil || recorder.Code != http.StatusServiceUnavailable || strings.Contains(recorder.Body.String(), "secret") || byPath != (d.searches == 1) {
					t.Errorf("%s by %s: %d %s, %d searches; want 503 without the cause", target, name, recorder.Code, recorder.Body, d.searches)
				}
				continue
			}
			want := seen{absent: !byPath, unresolved: byPath, credential: true}
			if got == nil || *got != want || d.searches != 0 {
				t.Errorf("%s by %s: passed on as %+v after %d searches, answered %d; want %+v after none", target, name, got, d.searches, recorder.Code, want)
			}
		}
	}
}

// heldSearch is a directory whose searches last until their time is over.
type heldSearch struct {
	few
	searching *atomic.Int32
}

func (heldSearch) KnownPath(logicalcluster.Path) (logicalcluster.Name, bool) { return "", false }

func (d heldSearch) Resolve(ctx context.Context, _ logicalcluster.Path) (logicalcluster.Name, error) {
	d.searching.Add(1)
	<-ctx.Done()
	return "", ctx.Err()
}

// However many ask for names that are made up, etcd is asked for few at once, and each waits no longer than a lookup may take.
func TestFewSearchAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := heldSearch{searching: &atomic.Int32{}}
		s := &Server{directory: d, credentials: few{}, serializer: legacyscheme.Codecs, tokens: &identity.Tokens{}, lookups: make(chan struct{}, lookupsAtOnce)}
		handler := s.withLogicalCluster(http.NotFoundHandler(), someone(user.AllAuthenticated))
		const all = 5 * lookupsAtOnce
		answers := make(chan int, all+1)
		ask := func(ctx context.Context) {
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, httptest.NewRequestWithContext(ctx, http.MethodGet, "/clusters/root:anything/api", nil))
			answers <- recorder.Code
		}
		for range all {
			go ask(t.Context())
		}
		synctest.Wait()
		if n := d.searching.Load(); n != lookupsAtOnce {
			t.Errorf("%d search at once, want %d", n, lookupsAtOnce)
		}
		go ask(context.WithValue(t.Context(), insideKey{}, true))
		synctest.Wait()
		if n := d.searching.Load(); n != lookupsAtOnce+1 {
			t.Errorf("with one of the server's own %d search, want that it does not wait", n)
		}
		time.Sleep(lookupTimeout) // of the test's own time
		synctest.Wait()
		if len(answers) != all+1 {
			t.Errorf("%d of %d are answered after %s", len(answers), all+1, lookupTimeout)
		}
		for range len(answers) {
			if code := <-answers; code != http.StatusServiceUnavailable {
				t.Errorf("answered %d, want 503", code)
			}
		}
		if len(s.lookups) != 0 {
			t.Errorf("%d lookups are counted with nobody there", len(s.lookups))
		}
	})
}
