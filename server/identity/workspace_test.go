package identity

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubestorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"
	testingclock "k8s.io/utils/clock/testing"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/storage"
)

// twins is a server whose every logical cluster holds the same ServiceAccount, of the same UID: as if a workspace had been
// copied, rows and all.
type twins struct{ kubestorage.Interface }

func (s twins) Resource(schema.GroupResource) (*storage.Resource, bool) {
	return &storage.Resource{Prefix: "/serviceaccounts", Namespaced: true, New: func() runtime.Object { return &core.ServiceAccount{} }, Storage: s}, true
}

func (twins) Get(_ context.Context, _ string, _ kubestorage.GetOptions, into runtime.Object) error {
	into.(*core.ServiceAccount).UID = "same"
	return nil
}

// That the workspaces' ServiceAccounts differ in their UIDs is not what keeps a token in its workspace; nor is its audience.
func TestTokenIsOfOneWorkspaceWhateverItSays(t *testing.T) {
	issuers, err := NewIssuers([]string{"https://atoll"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	tokens := NewTokens(issuers, open(t, &oneRow{}, testingclock.NewFakePassiveClock(time.Now())), twins{}, NewEnded())
	account := core.ServiceAccount{}
	account.Namespace, account.Name, account.UID = "team", "robot", "same"
	claims, private, err := serviceaccount.Claims(account, nil, nil, nil, 3600, 0, []string{"https://atoll/clusters/shop", "https://atoll/clusters/bank"})
	if err != nil {
		t.Fatal(err)
	}
	in := func(c lcctx.Cluster) context.Context { return lcctx.WithCluster(t.Context(), c) }
	token, err := tokens.GenerateToken(in(lcctx.Cluster{Name: "shop"}), claims, private)
	if err != nil {
		t.Fatal(err)
	}
	for what, test := range map[string]struct {
		ctx context.Context
		ok  bool
	}{
		"its own":  {in(lcctx.Cluster{Name: "shop"}), true},
		"another":  {in(lcctx.Cluster{Name: "bank"}), false},
		"a mirror": {in(lcctx.Cluster{Name: "east", Mirror: true}), false},
		"all":      {in(lcctx.Cluster{Wildcard: true}), false},
		"none":     {t.Context(), false},
	} {
		got, ok, err := tokens.AuthenticateToken(test.ctx, token)
		if ok != test.ok || (err == nil) != test.ok || ok && got.User.GetName() != "system:serviceaccount:team:robot" {
			t.Errorf("in %s: %v, %v, %v; want %v", what, got, ok, err, test.ok)
		}
		if err != nil && (strings.Contains(err.Error(), "shop") || strings.Contains(err.Error(), "bank")) {
			t.Errorf("in %s: the error names a workspace: %v", what, err)
		}
	}
}

// A token says the address that its server had. It is valid under every address that a server of the installation has or
// had; and whatever it says, what a key of ours signed is shown to nobody else.
func TestTokensOutliveTheAddress(t *testing.T) {
	rows, c := &oneRow{}, testingclock.NewFakePassiveClock(time.Now())
	server := func(base string, keys *Keys) *Tokens {
		issuers, err := NewIssuers([]string{base}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if keys == nil {
			keys = openAs(t, issuers, rows, c)
		}
		return NewTokens(issuers, keys, twins{}, NewEnded())
	}
	in := lcctx.WithCluster(t.Context(), lcctx.Cluster{Name: "shop"})
	issue := func(by *Tokens) string {
		t.Helper()
		account := core.ServiceAccount{}
		account.Namespace, account.Name, account.UID = "team", "robot", "same"
		claims, private, err := serviceaccount.Claims(account, nil, nil, nil, 3600, 0, by.Default("shop"))
		if err != nil {
			t.Fatal(err)
		}
		token, err := by.GenerateToken(in, claims, private)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	request := func(token string) *http.Request {
		req, err := http.NewRequestWithContext(in, http.MethodGet, "https://atoll/api", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		return req
	}
	before := server("https://127.0.0.1:6443", nil)
	old := issue(before)
	after := server("https://atoll", nil)
	renewed := issue(after)
	c.SetTime(c.Now().Add(readUnknown))
	for what, test := range map[string]struct {
		by    *Tokens
		token string
	}{
		"of before, after":             {after, old},
		"its own":                      {after, renewed},
		"of the other, not read since": {before, renewed},
	} {
		if _, ok, err := test.by.AuthenticateRequest(request(test.token)); !ok || err != nil {
			t.Errorf("%s: %v, %v", what, ok, err)
		}
		if home, ok := test.by.Home(request(test.token)); !ok || home != "shop" {
			t.Errorf("%s: its home is %q (%v)", what, home, ok)
		}
	}

	// A copy of the installation, which has its keys, under an address that this one never had.
	for what, token := range map[string]string{
		"a copy's":                     issue(server("https://copy", after.keys)),
		"a copy's by a prefix of ours": issue(server("https://atoll:1", after.keys)),
	} {
		if _, ok, err := after.AuthenticateRequest(request(token)); ok || err == nil {
			t.Errorf("%s: %v, %v; want it refused, not passed on", what, ok, err)
		}
		if _, ok := after.Home(request(token)); ok {
			t.Errorf("%s has a home", what)
		}
		parts := strings.Split(token, ".")
		if _, ok, err := after.AuthenticateRequest(request(parts[0] + "." + parts[1] + "." + strings.Repeat("A", len(parts[2])))); ok || err != nil {
			t.Errorf("%s without our signature: %v, %v; want it passed on", what, ok, err)
		}
	}
}
