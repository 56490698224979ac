package identity

import (
	"encoding/base64"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/apimachinery/pkg/runtime/schema"
	testingclock "k8s.io/utils/clock/testing"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/storage"
)

// nothing is a server without stores.
type nothing struct{}

func (nothing) Resource(schema.GroupResource) (*storage.Resource, bool) { return nil, false }

func TestNewIssuers(t *testing.T) {
	for base, valid := range map[string]bool{
		"https://atoll:6443": true, "https://atoll/": true, "https://[::1]:6443": true,
		"": false, "atoll": false, "http://atoll": false, "https://atoll/x": false, "https://": false,
		"https://atoll?x": false, "https://a@atoll": false, "https://atoll#x": false,
	} {
		if _, err := NewIssuers([]string{base}, nil); (err == nil) != valid {
			t.Errorf("%q: error %v, want valid %v", base, err, valid)
		}
	}
	if _, err := NewIssuers(nil, nil); err == nil {
		t.Error("no URL at all is accepted")
	}
}

func TestIssuers(t *testing.T) {
	i, err := NewIssuers([]string{"https://new/", "https://old:1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for issuer, want := range map[string]logicalcluster.Name{
		"https://new/clusters/shop":         "shop",
		"https://old:1/clusters/shop":       "shop",
		"https://new/clusters/system:admin": "system:admin",
		"https://new/clusters/":             "",
		"https://new/clusters/*":            "",
		"https://new/clusters/shop/":        "",
		"https://new/clusters/../x":         "",
		"https://new/clusters/root:shop":    "", // a path is not a name
		"https://new":                       "",
		"https://newer/clusters/shop":       "",
		"http://new/clusters/shop":          "",
		"https://other/clusters/shop":       "",
		"kubernetes/serviceaccount":         "",
	} {
		got, ok := i.cluster(issuer)
		if got != want || ok != (want != "") {
			t.Errorf("%q means %q (%v), want %q", issuer, got, ok, want)
		}
		if ok && i.of(got) != issuer && issuer != "https://old:1/clusters/shop" {
			t.Errorf("%q is not what is issued: %q", issuer, i.of(got))
		}
	}
	if diff := cmp.Diff([]string{"https://new/clusters/shop"}, []string(i.Default("shop"))); diff != "" {
		t.Errorf("default audience (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"https://new/clusters/shop", "https://old:1/clusters/shop"}, []string(i.Audiences("shop"))); diff != "" {
		t.Errorf("audiences (-want +got):\n%s", diff)
	}
	i.audiences = []string{"api"}
	if diff := cmp.Diff([]string{"api"}, []string(i.Default("shop"))); diff != "" {
		t.Errorf("default audience, one being given (-want +got):\n%s", diff)
	}
}

// Whatever is sent as a token, what it claims is read without a fault and leads to a valid name or nowhere.
func FuzzClaimed(f *testing.F) {
	issuers, err := NewIssuers([]string{"https://atoll"}, nil)
	if err != nil {
		f.Fatal(err)
	}
	for _, payload := range []string{`{"iss":"https://atoll/clusters/shop"}`, `{"iss":1}`, `{`, `[]`, `{"iss":"https://atoll/clusters/../x"}`, ""} {
		f.Add("e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".x")
	}
	f.Add("")
	f.Add("..")
	f.Add("{}")
	f.Fuzz(func(t *testing.T, token string) {
		name, ok := issuers.claimed(token)
		if ok != (name != "") || ok && lcctx.ValidateName(name.String()) != nil {
			t.Errorf("%q claims %q (%v)", token, name, ok)
		}
	})
}

// Home takes the word of nobody.
func TestHome(t *testing.T) {
	issuers, err := NewIssuers([]string{"https://atoll"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	made := func(rows *oneRow) *Tokens {
		return NewTokens(issuers, open(t, rows, testingclock.NewFakePassiveClock(now)), nothing{}, NewEnded())
	}
	ours, theirs := made(&oneRow{}), made(&oneRow{})
	issue := func(by *Tokens, cluster logicalcluster.Name, audience string, ends time.Duration) string {
		t.Helper()
		token, err := by.GenerateToken(lcctx.WithCluster(t.Context(), lcctx.Cluster{Name: cluster}), &jwt.Claims{
			Audience: jwt.Audience{audience}, Expiry: jwt.NewNumericDate(now.Add(ends)),
		}, struct{}{})
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	genuine := issue(ours, "shop", "https://atoll/clusters/shop", time.Hour)
	parts, bank := strings.Split(genuine, "."), strings.Split(issue(ours, "bank", "https://atoll/clusters/bank", time.Hour), ".")
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`))
	for what, test := range map[string]struct {
		token string
		want  logicalcluster.Name
	}{
		"genuine":                      {genuine, "shop"},
		"nothing":                      {"", ""},
		"a static token":               {"alicetoken", ""},
		"another installation's":       {issue(theirs, "shop", "https://atoll/clusters/shop", time.Hour), ""},
		"ended":                        {issue(ours, "shop", "https://atoll/clusters/shop", -time.Hour), ""},
		"for somebody else":            {issue(ours, "shop", "vault", time.Hour), ""},
		"for another workspace":        {issue(ours, "shop", "https://atoll/clusters/bank", time.Hour), ""},
		"another's claims":             {parts[0] + "." + bank[1] + "." + parts[2], ""},
		"no signature":                 {parts[0] + "." + parts[1] + ".", ""},
		"without an algorithm":         {none + "." + parts[1] + ".", ""},
		"without one, but a signature": {none + "." + parts[1] + "." + parts[2], ""},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://atoll/api", nil)
		if err != nil {
			t.Fatal(err)
		}
		if test.token != "" {
			req.Header.Set("Authorization", "Bearer "+test.token)
		}
		if got, ok := ours.Home(req); got != test.want || ok != (test.want != "") {
			t.Errorf("%s: home is %q (%v), want %q", what, got, ok, test.want)
		}
		if test.token != "" && req.Header.Get("Authorization") == "" {
			t.Errorf("%s: the token was taken off the request", what)
		}
	}
}

func TestGenerateTokenOutlivesNoKey(t *testing.T) {
	issuers, err := NewIssuers([]string{"https://atoll"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := testingclock.NewFakePassiveClock(start)
	tokens := NewTokens(issuers, open(t, &oneRow{}, c), nothing{}, NewEnded())
	ctx := lcctx.WithCluster(t.Context(), lcctx.Cluster{Name: "shop"})
	for what, claims := range map[string]*jwt.Claims{
		"too long": {Expiry: jwt.NewNumericDate(start.Add(signingPeriod + 2*day))},
		"endless":  {},
	} {
		if _, err := tokens.GenerateToken(ctx, claims, struct{}{}); err == nil {
			t.Errorf("%s: a token that its key does not outlive", what)
		}
	}
	if _, err := tokens.GenerateToken(t.Context(), &jwt.Claims{Expiry: jwt.NewNumericDate(start)}, struct{}{}); err == nil {
		t.Error("a token of no logical cluster")
	}
	if _, err := tokens.GenerateToken(lcctx.WithCluster(t.Context(), lcctx.Cluster{Wildcard: true}), &jwt.Claims{Expiry: jwt.NewNumericDate(start)}, struct{}{}); err == nil {
		t.Error("a token of all logical clusters")
	}
}
