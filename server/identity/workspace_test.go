package identity

import (
	"context"
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
	tokens := NewTokens(issuers, open(t, &oneRow{}, testingclock.NewFakePassiveClock(time.Now())), twins{})
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
