package identity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/kcp-dev/logicalcluster/v3"
	kuberuntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	kubestorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"
	testingclock "k8s.io/utils/clock/testing"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/storage"
)

// accounts is a server with one ServiceAccount in each logical cluster, of which etcd and the watch cache know the UID; empty:
// they know none.
type accounts struct {
	kubestorage.Interface
	stored, cached types.UID
	away           error         // of etcd
	asked          int           // etcd
	hold           chan struct{} // nil, or what etcd waits for with its answer
}

func (s *accounts) Resource(schema.GroupResource) (*storage.Resource, bool) {
	return &storage.Resource{Prefix: "/serviceaccounts", Namespaced: true, New: func() kuberuntime.Object { return &core.ServiceAccount{} }, Storage: s}, true
}

func (s *accounts) Get(ctx context.Context, key string, options kubestorage.GetOptions, into kuberuntime.Object) error {
	uid := s.cached
	if options.ResourceVersion == "" {
		s.asked++
		if err := cmp.Or(s.away, ctx.Err()); err != nil {
			return err
		}
		uid = s.stored
		if s.hold != nil {
			<-s.hold
		}
	}
	if uid == "" {
		return kubestorage.NewKeyNotFoundError(key, 0)
	}
	into.(*core.ServiceAccount).UID = uid
	return nil
}

// remembering is a server with a token of its ServiceAccount in shop, for an hour.
type remembering struct {
	*Tokens
	accounts *accounts
	rows     *oneRow
	clock    *testingclock.FakePassiveClock
	token    string
}

func newRemembering(t *testing.T) *remembering {
	t.Helper()
	issuers, err := NewIssuers([]string{"https://atoll"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &remembering{accounts: &accounts{stored: "first", cached: "first"}, rows: &oneRow{}, clock: testingclock.NewFakePassiveClock(time.Now())}
	r.Tokens = NewTokens(issuers, open(t, r.rows, r.clock), r.accounts, NewEnded())
	account := core.ServiceAccount{}
	account.Namespace, account.Name, account.UID = "team", "robot", "first"
	claims, private, err := serviceaccount.Claims(account, nil, nil, nil, 3600, 0, r.Default("shop"))
	if err != nil {
		t.Fatal(err)
	}
	if r.token, err = r.GenerateToken(lcctx.WithCluster(t.Context(), lcctx.Cluster{Name: "shop"}), claims, private); err != nil {
		t.Fatal(err)
	}
	return r
}

// taken says whether the token is, in a logical cluster.
func (r *remembering) taken(t *testing.T, cluster lcctx.Cluster) (ok, undecided bool) {
	t.Helper()
	ctx := WithRoom(lcctx.WithCluster(t.Context(), cluster))
	_, ok, err := r.AuthenticateToken(ctx, r.token)
	if ok != (err == nil) {
		t.Errorf("taken: %v, but the error is %v", ok, err)
	}
	if _, ends := EndOf(ctx); ends != ok {
		t.Errorf("taken: %v, and its end is told: %v", ok, ends)
	}
	return ok, IsUndecided(ctx)
}

// TestRemembered: a flood by one token asks etcd once a second; what is remembered ends with the ServiceAccount, the key and the
// token, and is of one logical cluster.
func TestRemembered(t *testing.T) {
	inShop := lcctx.Cluster{Name: "shop"}
	for what, test := range map[string]struct {
		change func(*remembering)
		in     lcctx.Cluster
		want   bool
		asked  int // of etcd besides
	}{
		"nothing changed":          {func(*remembering) {}, inShop, true, 0},
		"another workspace":        {func(*remembering) {}, lcctx.Cluster{Name: "bank"}, false, 0},
		"a second later":           {func(r *remembering) { r.clock.SetTime(r.clock.Now().Add(rememberFor + 1)) }, inShop, true, 1},
		"almost a second later":    {func(r *remembering) { r.clock.SetTime(r.clock.Now().Add(time.Second - 1)) }, inShop, true, 0},
		"more than a second later": {func(r *remembering) { r.clock.SetTime(r.clock.Now().Add(time.Second + 1)) }, inShop, true, 1},
		"deleted here, before the watch cache hears of it": {func(r *remembering) {
			r.accounts.stored = ""
			r.ended.Deleted("shop", schema.GroupResource{Resource: "serviceaccounts"})
		}, inShop, false, 1},
		"so is what it is bound to":   {func(r *remembering) { r.ended.Deleted("shop", schema.GroupResource{Resource: "pods"}) }, inShop, true, 1},
		"or a Secret":                 {func(r *remembering) { r.ended.Deleted("shop", schema.GroupResource{Resource: "secrets"}) }, inShop, true, 1},
		"a ConfigMap was deleted":     {func(r *remembering) { r.ended.Deleted("shop", schema.GroupResource{Resource: "configmaps"}) }, inShop, true, 0},
		"a physical cluster, above":   {func(r *remembering) { r.ended.Deleted("root", syncTargets) }, inShop, true, 1},
		"the workspace was deleted":   {func(r *remembering) { r.accounts.stored = ""; r.ended.AllDeleted("shop") }, inShop, false, 1},
		"it is gone":                  {func(r *remembering) { r.accounts.stored, r.accounts.cached = "", "" }, inShop, false, 1},
		"another has its name":        {func(r *remembering) { r.accounts.stored, r.accounts.cached = "second", "second" }, inShop, false, 1},
		"the watch cache has no idea": {func(r *remembering) { r.accounts.cached = "" }, inShop, true, 1},
		"its key is taken away": {func(r *remembering) {
			r.rows.row = storage.InstallationRow{}
			if _, err := r.keys.read(t.Context(), true); err != nil {
				t.Error(err)
			}
		}, inShop, false, 0},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRemembering(t)
			for range 100 {
				if ok, _ := r.taken(t, inShop); !ok {
					t.Fatal("the token is not taken")
				}
			}
			if r.accounts.asked != 1 {
				t.Errorf("etcd was asked %d times, want once", r.accounts.asked)
			}
			test.change(r)
			if ok, undecided := r.taken(t, test.in); ok != test.want || undecided || r.accounts.asked != 1+test.asked {
				t.Errorf("then it is taken: %v (undecided: %v), and etcd was asked %d times; want %v, false and %d", ok, undecided, r.accounts.asked, test.want, 1+test.asked)
			}
		})
	}
}

// TestRefusalsAreRemembered: a flood by a token whose ServiceAccount is gone asks etcd once a second, too, and has no token
// forgotten that is good. What is not signed by a key of ours is not remembered.
func TestRefusalsAreRemembered(t *testing.T) {
	inShop := lcctx.Cluster{Name: "shop"}
	r := newRemembering(t)
	r.accounts.stored = "second" // another of its name
	for range 100 {
		if ok, undecided := r.taken(t, inShop); ok || undecided {
			t.Fatalf("taken: %v, undecided: %v; its ServiceAccount is gone", ok, undecided)
		}
	}
	if r.accounts.asked != 1 {
		t.Errorf("etcd was asked %d times, want once", r.accounts.asked)
	}
	r.ended.Deleted("shop", schema.GroupResource{Resource: "serviceaccounts"}) // brings nothing back
	r.clock.SetTime(r.clock.Now().Add(time.Second - 1))
	r.taken(t, inShop)
	if r.accounts.asked != 1 {
		t.Errorf("etcd was asked %d times, want once: within a second, and whatever is deleted", r.accounts.asked)
	}
	r.clock.SetTime(r.clock.Now().Add(2))
	r.taken(t, inShop)
	if r.accounts.asked != 2 {
		t.Errorf("a second later etcd was asked %d times, want twice", r.accounts.asked)
	}
	if n := len(r.valid.valid.Keys()); n != 0 {
		t.Errorf("%d refusals are among what is good", n)
	}

	r = newRemembering(t)
	genuine := r.token
	r.token = genuine[:len(genuine)-4] + "AAAA"
	r.taken(t, inShop)
	r.token = genuine
	r.taken(t, lcctx.Cluster{Name: "bank"})
	if n := len(r.valid.refused.Keys()); n != 0 {
		t.Errorf("%d are remembered that were forged, or shown in another workspace", n)
	}
}

// TestLooksAreShared: who asks about a token while etcd is asked about it waits for the same answer, and who asks after a
// deletion does not.
func TestLooksAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inShop := lcctx.Cluster{Name: "shop"}
		r := newRemembering(t)
		r.accounts.hold = make(chan struct{})
		var before sync.WaitGroup
		for range 100 {
			before.Go(func() {
				if ok, undecided := r.taken(t, inShop); !ok || undecided {
					t.Errorf("taken: %v, undecided: %v; it was good when it was shown", ok, undecided)
				}
			})
		}
		synctest.Wait()
		if r.accounts.asked != 1 {
			t.Errorf("etcd was asked %d times at once, want once", r.accounts.asked)
		}
		hold := r.accounts.hold
		r.accounts.hold, r.accounts.stored = nil, ""
		r.ended.Deleted("shop", schema.GroupResource{Resource: "serviceaccounts"})
		if ok, _ := r.taken(t, inShop); ok {
			t.Error("it is taken after the deletion, by a look that began before")
		}
		close(hold)
		before.Wait()
		if ok, _ := r.taken(t, inShop); ok {
			t.Error("it is taken after the deletion, by what a look remembered that began before")
		}
	})
}

// TestLooksOutliveWhoAsked: who goes away while etcd is asked spoils the answer for nobody.
func TestLooksOutliveWhoAsked(t *testing.T) {
	r := newRemembering(t)
	ctx, leave := context.WithCancel(lcctx.WithCluster(t.Context(), lcctx.Cluster{Name: "shop"}))
	leave()
	if _, ok, err := r.AuthenticateToken(ctx, r.token); !ok || err != nil {
		t.Errorf("taken: %v, %v", ok, err)
	}
	if _, ok := r.valid.valid.Get(keyOf("shop", r.token)); !ok {
		t.Error("what came of it is not remembered")
	}
}

// TestRememberedUntilItsEnd: what is remembered of a token is forgotten when that ends.
func TestRememberedUntilItsEnd(t *testing.T) {
	r := newRemembering(t)
	end := endOfToken(r.token)
	r.clock.SetTime(end.Add(-rememberFor / 2))
	for range 2 {
		r.taken(t, lcctx.Cluster{Name: "shop"})
	}
	if r.accounts.asked != 1 {
		t.Errorf("etcd was asked %d times before the token ended, want once", r.accounts.asked)
	}
	r.clock.SetTime(end.Add(1))
	r.taken(t, lcctx.Cluster{Name: "shop"})
	if r.accounts.asked != 2 {
		t.Errorf("etcd was asked %d times after it ended, want twice: what was remembered did not end", r.accounts.asked)
	}
}

// TestHomeIsRemembered: a request without /clusters/ with a token that is remembered does not have its signature verified.
func TestHomeIsRemembered(t *testing.T) {
	r := newRemembering(t)
	r.taken(t, lcctx.Cluster{Name: "shop"})
	ask := func(token string) (string, bool) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://atoll/api", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		home, ok := r.Home(req)
		return home.String(), ok
	}
	if home, ok := ask(r.token); !ok || home != "shop" {
		t.Errorf("its home is %q (%v), want shop", home, ok)
	}
	forged := r.token[:len(r.token)-4] + "AAAA"
	if home, ok := ask(forged); ok {
		t.Errorf("with another signature its home is %q", home)
	}
	r.valid.add("shop", forged, validity{keys: r.keys.held.Load()})
	if home, ok := ask(forged); !ok || home != "shop" {
		t.Errorf("remembered, its home is %q (%v): the signature was looked at", home, ok)
	}
}

// TestUndecided: while etcd does not answer, a token is good by what the watch cache has. What that does not have is not refused
// for good.
func TestUndecided(t *testing.T) {
	away := errors.New("etcdserver: too many requests")
	for what, test := range map[string]struct {
		away           error
		stored, cached types.UID
		ok, undecided  bool
		asked          int
	}{
		"the watch cache has it":                  {away, "first", "first", true, false, 2},
		"the watch cache has none":                {away, "first", "", false, true, 2},
		"the watch cache has another of its name": {away, "first", "second", false, true, 2},
		"the request's time is over":              {context.DeadlineExceeded, "first", "", false, true, 2},
		"it is gone, as etcd says":                {nil, "", "first", false, false, 1},
		"another has its name, as etcd says":      {nil, "second", "first", false, false, 1},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRemembering(t)
			r.accounts.away, r.accounts.stored, r.accounts.cached = test.away, test.stored, test.cached
			for range 2 { // by the word of a watch cache nothing is remembered
				if ok, undecided := r.taken(t, lcctx.Cluster{Name: "shop"}); ok != test.ok || undecided != test.undecided {
					t.Errorf("taken: %v, undecided: %v; want %v, %v", ok, undecided, test.ok, test.undecided)
				}
			}
			if r.accounts.asked != test.asked {
				t.Errorf("etcd was asked %d times, want %d", r.accounts.asked, test.asked)
			}
		})
	}
}

// TestNothingIsLeftOfTokens: what was remembered of tokens is let go when it is over, though nobody shows them again; tokens of
// workspaces that are gone would fill the memory that is for all.
func TestNothingIsLeftOfTokens(t *testing.T) {
	for what, refused := range map[string]error{"valid": nil, "refused": errInvalid} {
		t.Run(what, func(t *testing.T) {
			r := newRemembering(t)
			held := make([]weak.Pointer[authenticator.Response], 50)
			for i := range held {
				response := &authenticator.Response{Audiences: authenticator.Audiences{"shop"}}
				held[i] = weak.Make(response)
				r.valid.add(logicalcluster.Name(fmt.Sprintf("gone-%d", i)), r.token, validity{response: response, refused: refused})
			}
			left := func() (n int) {
				runtime.GC()
				for _, p := range held {
					if p.Value() != nil {
						n++
					}
				}
				return n
			}
			if n := left(); n != len(held) {
				t.Fatalf("%d of %d are remembered", n, len(held))
			}
			r.clock.SetTime(r.clock.Now().Add(rememberFor + 1))
			if ok, _ := r.taken(t, lcctx.Cluster{Name: "shop"}); !ok {
				t.Fatal("the token is not taken")
			}
			if n := left(); n != 0 {
				t.Errorf("%d of %d are held, although it is over and another token was looked at since", n, len(held))
			}
			runtime.KeepAlive(r)
		})
	}
}
