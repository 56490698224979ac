package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/utils/clock"

	"atoll.dev/atoll/server/identity"
)

// provider is an OIDC provider, and issues what it is asked for.
type provider struct {
	*httptest.Server
	key *ecdsa.PrivateKey
}

func startProvider(t *testing.T) *provider {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public, err := serviceaccount.StaticPublicKeysGetter([]any{key})
	if err != nil {
		t.Fatal(err)
	}
	p := &provider{key: key}
	p.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		metadata, err := serviceaccount.NewOpenIDMetadataProvider(p.URL, p.URL+serviceaccount.JWKSPath, "", public)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		identity.ServeMetadata(w, req, metadata)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *provider) issue(t *testing.T, subject string, ends time.Duration, groups ...string) string {
	t.Helper()
	generator, err := serviceaccount.JWTTokenGenerator(p.URL, p.key)
	if err != nil {
		t.Fatal(err)
	}
	token, err := generator.GenerateToken(t.Context(), &jwt.Claims{
		Subject: subject, Audience: jwt.Audience{"atoll"},
		IssuedAt: jwt.NewNumericDate(time.Now().Add(-time.Minute)), Expiry: jwt.NewNumericDate(time.Now().Add(ends)),
	}, map[string]any{"groups": groups})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func certificateOf(s *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

// People of an OIDC provider come in by --authentication-config, are the same in every workspace, and may do what its
// roles say. The file may change while the server runs.
func TestOIDC(t *testing.T) {
	p := startProvider(t)
	file := filepath.Join(t.TempDir(), "authentication.json")
	configure := func(prefix string) {
		t.Helper()
		config, err := json.Marshal(map[string]any{
			"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
			"jwt": []any{map[string]any{
				"issuer": map[string]any{"url": p.URL, "audiences": []string{"atoll"}, "certificateAuthority": string(certificateOf(p.Server))},
				"claimMappings": map[string]any{
					"username": map[string]any{"claim": "sub", "prefix": prefix},
					"groups":   map[string]any{"expression": "claims.groups"},
				},
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		mustWrite(t, file, string(config))
	}
	configure("oidc:")
	r := startServer(t, func(o *Options) {
		withTokens(t)(o)
		o.Authentication.AuthenticationConfigFile = file
	})
	r.makeRobot(t, shop)

	carol := p.issue(t, "carol", time.Hour, "staff")
	waitFor(t, time.Minute, "carol is known", func() (string, bool) { // once the provider's keys are fetched
		who := r.whoAmI(t, "/clusters/root", carol)
		return who, who == "oidc:carol"
	})
	for what, test := range map[string]struct{ token, want string }{
		"ended":                         {p.issue(t, "carol", -time.Hour), "401"},
		"another provider's":            {startProvider(t).issue(t, "carol", time.Hour), "401"},
		"in a group of the server's":    {p.issue(t, "carol", time.Hour, "system:atoll:syncers"), "401"},
		"in a group of ServiceAccounts": {p.issue(t, "carol", time.Hour, "system:serviceaccounts"), "401"},
	} {
		if got := r.whoAmI(t, "/clusters/shopname", test.token); got != test.want {
			t.Errorf("%s: %s, want %s", what, got, test.want)
		}
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "staff"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "staff"}},
	}
	if _, err := r.in(t, shop).RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, time.Minute, "staff may view shop", func() (string, bool) {
		got := r.ask(t, asked{path: "/clusters/shopname/api/v1/namespaces/team/configmaps", token: carol})
		return fmt.Sprint(got), got.code == http.StatusOK
	})
	if got := r.ask(t, asked{path: "/clusters/bankname/api/v1/namespaces/team/configmaps", token: carol}); got.code != http.StatusForbidden {
		t.Errorf("carol reads bank: %d", got.code)
	}
	review, err := r.in(t, bank).AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: carol}}, metav1.CreateOptions{})
	if err != nil || review.Status.User.Username != "oidc:carol" {
		t.Errorf("a TokenReview of carol: %+v, %v", review.Status, err)
	}

	// The file is read again when it changes, and what cannot be read changes nothing.
	mustWrite(t, file, "{")
	failed := regexp.MustCompile(`apiserver_authentication_config_controller_automatic_reloads_total{.*status="failure"} [1-9]`)
	waitFor(t, 2*time.Minute, "what cannot be read is told", func() (string, bool) {
		metrics := r.ask(t, asked{path: "/metrics", token: root})
		return fmt.Sprint(metrics.code), failed.MatchString(metrics.body)
	})
	if who := r.whoAmI(t, "/clusters/root", carol); who != "oidc:carol" {
		t.Errorf("with a file that cannot be read, carol is %s", who)
	}
	configure("people:")
	waitFor(t, 2*time.Minute, "the file is read again", func() (string, bool) {
		who := r.whoAmI(t, "/clusters/root", carol)
		return who, who == "people:carol"
	})
	if got := r.ask(t, asked{path: "/clusters/shopname/api/v1/namespaces/team/configmaps", token: carol}); got.code != http.StatusOK {
		t.Errorf("carol of the group staff reads shop: %d", got.code)
	}
}

// A webhook is asked about tokens that nobody else knows, and never sees one of a ServiceAccount, good or not, nor a syncer's. It
// is told for whom the token has to be, and a token for somebody else is none.
func TestWebhookAuthentication(t *testing.T) {
	var mu sync.Mutex
	var seen, audiences []string
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		mu.Lock()
		seen, audiences = append(seen, review.Spec.Token), append(audiences, review.Spec.Audiences...)
		mu.Unlock()
		review.Status = authenticationv1.TokenReviewStatus{}
		if review.Spec.Token == "hooktoken" {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "hugo"}}
		}
		if review.Spec.Token == "elsewheretoken" {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "hugo"}, Audiences: []string{"elsewhere"}}
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	defer hook.Close()
	config := clientcmdapi.NewConfig()
	config.Clusters["hook"] = &clientcmdapi.Cluster{Server: hook.URL, CertificateAuthorityData: certificateOf(hook)}
	config.Contexts["hook"] = &clientcmdapi.Context{Cluster: "hook"}
	config.CurrentContext = "hook"
	file := filepath.Join(t.TempDir(), "webhook.kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	r := startServer(t, func(o *Options) {
		withTokens(t)(o)
		o.Authentication.WebHook.ConfigFile, o.Authentication.WebHook.Version = file, "v1"
	})
	inShop := r.makeRobot(t, shop)
	r.makeRobot(t, bank)
	var elsewhere [2]identity.Issuers // of the server, and of one that it knows nothing of
	for i, base := range []string{r.URL(), "https://elsewhere.example.com"} {
		var err error
		if elsewhere[i], err = identity.NewIssuers([]string{base}, nil); err != nil {
			t.Fatal(err)
		}
	}
	keys, err := identity.OpenKeys(t.Context(), r.backend, elsewhere[0], time.Hour, clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	ofUnknownAddress := issue(t, identity.NewTokens(elsewhere[1], keys, r.backend, identity.NewEnded()), shop, robot)
	for _, test := range []struct{ place, token, want string }{
		{"/clusters/root", "hooktoken", "hugo"},
		{"/clusters/system:admin", "hooktoken", "hugo"},
		{"/clusters/shopname", "hooktoken", "403"},
		{"/clusters/shopname", "unknown", "401"},
		{"/clusters/root", "elsewheretoken", "401"},
		{"/clusters/root", alice, "alice"},
		{"/clusters/shopname", inShop, robotUser},
		{"/clusters/bankname", inShop, "401"},
		{"/clusters/root:absent", inShop, "401"},
		{"/clusters/shopname", r.ended(t), "401"},
		{"/clusters/shopname", ofUnknownAddress, "401"},
		{"", ofUnknownAddress, "401"},
		{"/clusters/shopname", forge(t, inShop, "sub", "x"), "401"},
		{"/clusters/eastname", "abcdef.0123456789abcdef", "401"}, // of a syncer, spent
	} {
		if got := r.whoAmI(t, test.place, test.token); got != test.want {
			t.Errorf("%.20s in %s is %s, want %s", test.token, test.place, got, test.want)
		}
	}
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: inShop}}
	if _, err := r.in(t, bank).AuthenticationV1().TokenReviews().Create(t.Context(), review, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(seen)
	if seen = slices.Compact(seen); !slices.Equal(seen, []string{"elsewheretoken", "hooktoken", "unknown"}) {
		t.Errorf("the webhook saw %q", strings.Join(seen, " "))
	}
	slices.Sort(audiences)
	if audiences = slices.Compact(audiences); !slices.Equal(audiences, []string{r.URL()}) {
		t.Errorf("the webhook was asked for the audiences %q, want the server's", audiences)
	}
}

// Whether who shows nothing is a stranger, or refused, is configured as in kube-apiserver.
func TestAnonymousIsConfigured(t *testing.T) {
	for config, want := range map[string]map[string]int{
		`"anonymous":{"enabled":false}`:                                   {"/healthz": 401, "/version": 401, "/clusters/shopname/api": 401},
		`"anonymous":{"enabled":true,"conditions":[{"path":"/healthz"}]}`: {"/healthz": 200, "/version": 401, "/clusters/shopname/api": 401},
		`"jwt":[]`: {"/healthz": 200, "/version": 200, "/clusters/shopname/api": 403},
	} {
		file := filepath.Join(t.TempDir(), "authentication.json")
		mustWrite(t, file, `{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthenticationConfiguration",`+config+`}`)
		r := startServer(t, func(o *Options) { o.Authentication.AuthenticationConfigFile = file })
		for path, code := range want {
			if got := r.ask(t, asked{path: path}); got.code != code {
				t.Errorf("%s: %s answers %d, want %d", config, path, got.code, code)
			}
		}
	}
}
