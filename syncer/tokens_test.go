package syncer

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	clocktesting "k8s.io/utils/clock/testing"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

// TestAPIAt: a pod has no address that leads it somewhere else.
func TestAPIAt(t *testing.T) {
	for address, want := range map[string]*API{
		"https://atoll.example.com:6443":                    {Host: "atoll.example.com", Port: "6443"},
		"https://atoll.example.com/clusters/east":           {Host: "atoll.example.com", Port: "443"},
		"https://192.0.2.7:6443/":                           {Host: "192.0.2.7", Port: "6443"},
		"https://[2001:db8::7]:6443/clusters/1a2b":          {Host: "2001:db8::7", Port: "6443"},
		"https://127.0.0.1:6443/clusters/east":              nil,
		"https://[::1]:6443":                                nil,
		"https://0.0.0.0:6443":                              nil,
		"https://[::]:6443":                                 nil,
		"https://169.254.1.1:6443":                          nil,
		"https://localhost:6443":                            nil,
		"https://LocalHost.:6443":                           nil,
		"https://atoll.localhost:6443":                      nil,
		"https://proxy.example.com/atoll/clusters/east":     nil,
		"http://atoll.example.com:6443":                     nil,
		"atoll.example.com:6443":                            nil,
		"https://":                                          nil,
		"https://atoll.example.com:6443/clusters-elsewhere": nil,
	} {
		if diff := cmp.Diff(want, APIAt(address, nil)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", address, diff)
		}
	}
}

// tokenGood is a token that says it is good from so many minutes ago for an hour; nobody looks at who signed it.
func tokenGood(of string, minutesAgo int) string {
	return tokenAt(of, "bot-uid", time.Now().Add(-time.Duration(minutesAgo)*time.Minute))
}

func tokenAt(of, account string, at time.Time) string {
	part := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	claims := fmt.Sprintf(`{"sub":%q,"iat":%d,"exp":%d,"kubernetes.io":{"serviceaccount":{"uid":%q}}}`, of, at.Unix(), at.Add(time.Hour).Unix(), account)
	return part(`{"alg":"RS256"}`) + "." + part(claims) + "." + part("signature")
}

// leafWanting is one of a Deployment whose pods want the tokens of an account under those keys of its Secret.
func leafWanting(name, account string, keys ...string) *unstructured.Unstructured {
	var items []any
	for _, k := range keys {
		items = append(items, map[string]any{"key": k, "path": k})
	}
	leaf := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"namespace": "shop-1", "name": name},
		"spec": map[string]any{"template": map[string]any{"spec": map[string]any{
			"serviceAccountName": account,
			"volumes": []any{map[string]any{"name": "v", "projected": map[string]any{"sources": []any{
				map[string]any{"secret": map[string]any{"name": kinds.TokenSecret(account), "items": items}},
			}}}},
		}}},
	}}
	kinds.SetAPIAccess(leaf, kinds.ProjectedAPIAccess)
	return leaf
}

// tokenSides are a hub that issues tokens, and a physical cluster that has a Secret at most.
type tokenSides struct {
	t *testing.T
	*Syncer
	denied, broken map[string]bool // by audience
	refuses        bool            // the physical cluster takes no Secret

	mu     sync.Mutex // guards all below
	asked  []string   // audiences
	writes int        // of the Secret
	secret map[string]any
}

func newTokenSides(t *testing.T) *tokenSides {
	s := &tokenSides{t: t}
	status := func(w http.ResponseWriter, err *apierrors.StatusError) {
		answer(t, w, int(err.ErrStatus.Code), err.ErrStatus)
	}
	s.Syncer = newIdle(t, func(w http.ResponseWriter, req *http.Request) {
		var request authenticationv1.TokenRequest
		if req.Method != http.MethodPost || req.URL.Path != "/api/v1/namespaces/shop-1/serviceaccounts/bot/token" || json.NewDecoder(req.Body).Decode(&request) != nil {
			t.Errorf("the hub is asked to %s %s", req.Method, req.URL)
		}
		audience := strings.Join(request.Spec.Audiences, ",")
		s.mu.Lock()
		s.asked = append(s.asked, audience)
		s.mu.Unlock()
		if *request.Spec.ExpirationSeconds != 3600 || request.Name != "bot" || request.Spec.BoundObjectRef != nil {
			t.Errorf("the hub is asked for %+v", request)
		}
		switch {
		case s.denied[audience]:
			status(w, apierrors.NewForbidden(schema.GroupResource{Resource: "serviceaccounts"}, "bot", errors.New("nothing names it")))
		case s.broken[audience]:
			status(w, apierrors.NewTooManyRequests("too many tokens", 0))
		default:
			request.Status.Token = tokenGood("new for "+audience, 0)
			answer(t, w, http.StatusCreated, request)
		}
	}, func(w http.ResponseWriter, req *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch req.Method {
		case http.MethodGet:
			if s.secret == nil {
				notFound(t, w)
				return
			}
		case http.MethodPost, http.MethodPatch:
			var written map[string]any
			if err := json.NewDecoder(req.Body).Decode(&written); err != nil {
				t.Error(err)
			}
			s.writes++
			if s.refuses {
				status(w, apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "atoll-token-bot", errors.New("exceeded quota: count/secrets")))
				return
			}
			if s.secret != nil && req.Method == http.MethodPost {
				status(w, apierrors.NewAlreadyExists(schema.GroupResource{Resource: "secrets"}, "atoll-token-bot"))
				return
			}
			s.secret = written
			s.secret["metadata"].(map[string]any)["resourceVersion"] = "2"
		}
		answer(t, w, http.StatusOK, s.secret)
	})
	s.config.API = &API{Host: "atoll.example.com", Port: "6443", CA: []byte("certificate")}
	s.gate.open(s.gate.begin(), fine)
	namespace := func(of string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{
			"name": "shop-1", "labels": map[string]any{workloadv1alpha1.WorkspaceLabel: of}, "annotations": map[string]any{workloadv1alpha1.RootAnnotation: "/front"},
		}}}
	}
	policy := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"namespace": "shop-1", "name": isolationPolicy}}}
	if err := errors.Join(
		s.mirror.informers[namespacesGVR].Add(namespace("shop")), s.physical.informers[namespacesGVR].Add(namespace("shop")),
		s.physical.informers[networkPoliciesGVR].Add(policy), s.physical.informers[secretsGVR].queue.Replace(nil, "1"),
	); err != nil {
		t.Fatal(err)
	}
	// One token was issued, which says what the hub's time is.
	s.tokens.issued(tokenGood("", 0), s.config.Clock.Now())
	return s
}

// has is what the Secret below has, decoded, and of a token whose it is.
func (s *tokenSides) has() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.secret == nil {
		return nil
	}
	has := map[string]string{}
	for name, value := range s.secret["data"].(map[string]any) {
		raw, err := base64.StdEncoding.DecodeString(value.(string))
		if err != nil {
			s.t.Error(err)
		}
		has[name] = string(raw)
		if parts := strings.Split(string(raw), "."); len(parts) == 3 && kinds.IsTokenKey(name) {
			claims, _ := base64.RawURLEncoding.DecodeString(parts[1])
			var of struct{ Sub string }
			if err := json.Unmarshal(claims, &of); err != nil {
				s.t.Error(err)
			}
			has[name] = of.Sub
		}
	}
	return has
}

// secretBelow is one with tokens, by their keys.
func secretBelow(owner string, tokens map[string]string) *unstructured.Unstructured {
	data := map[string]any{}
	for name, token := range tokens {
		data[name] = base64.StdEncoding.EncodeToString([]byte(token))
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": data, "metadata": map[string]any{
			"namespace": "shop-1", "name": "atoll-token-bot", "uid": "secret-uid", "resourceVersion": "1",
			"labels":      map[string]any{workloadv1alpha1.SyncTargetLabel: owner, workloadv1alpha1.WorkspaceLabel: "shop"},
			"annotations": map[string]any{workloadv1alpha1.ServiceAccountAnnotation: "bot"},
		},
	}}
}

// TestKeepTokens: an account's Secret has what its pods talk to the API with, for as long as something wants it.
func TestKeepTokens(t *testing.T) {
	const vault = "token-dmF1bHQ"
	address := map[string]string{"host": "atoll.example.com", "port": "6443", "ca.crt": "certificate", "namespace": "front"}
	with := func(tokens map[string]string) map[string]string {
		all := maps.Clone(address)
		maps.Copy(all, tokens)
		return all
	}
	made := func(minutesAgo int) []*unstructured.Unstructured {
		return []*unstructured.Unstructured{leafMade(minutesAgo)}
	}
	account := func(uid string) func(*tokenSides) { return func(s *tokenSides) { s.accountIs(uid) } }
	foreign := func(s *tokenSides) {
		namespace := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{
			"name": "shop-1", "labels": map[string]any{workloadv1alpha1.WorkspaceLabel: "theirs"},
		}}}
		if err := s.physical.informers[namespacesGVR].Update(namespace); err != nil {
			t.Fatal(err)
		}
	}
	notYet := func(s *tokenSides) {
		if err := s.physical.informers[networkPoliciesGVR].Replace(nil, ""); err != nil {
			t.Fatal(err)
		}
	}
	refusedNamespace := func(s *tokenSides) {
		parent := get(s.mirror.informers[namespacesGVR], key{resource: namespacesGVR, name: "shop-1"}).DeepCopy()
		annotations := parent.GetAnnotations()
		annotations[workloadv1alpha1.RefusedAnnotation] = `{"reason":"Forbidden","message":"labels"}`
		parent.SetAnnotations(annotations)
		if err := s.mirror.informers[namespacesGVR].Update(parent); err != nil {
			t.Fatal(err)
		}
	}
	wanting := []*unstructured.Unstructured{leafWanting("web", "bot", "token"), leafWanting("job", "bot", "token", vault), leafWanting("other", "pilot", "token")}
	half, tenth := 30*time.Minute, 6*time.Minute
	for name, tc := range map[string]struct {
		reason         string
		leaves         []*unstructured.Unstructured
		below          map[string]string // nil: there is no Secret
		owner          string            // of the Secret; empty: ours
		denied, broken string
		change         func(*tokenSides)
		asked          []string
		has            map[string]string
		again          time.Duration // about, or sooner by a tenth of a token's life
		fails          bool
	}{
		"new":                   {"each audience is asked for once, whatever wants it", wanting, nil, "", "-", "-", nil, []string{"", "vault"}, with(map[string]string{"token": "new for ", vault: "new for vault"}), half, false},
		"fresh":                 {"nothing is asked for, and nothing written", wanting, map[string]string{"token": tokenGood("old", 5), vault: tokenGood("old", 10)}, "", "-", "-", func(s *tokenSides) { maps.Copy(s.secret["data"].(map[string]any), encoded(address)) }, nil, with(map[string]string{"token": "old", vault: "old"}), half - 10*time.Minute, false},
		"half":                  {"what is past half of its life is asked for anew", wanting, map[string]string{"token": tokenGood("old", 31), vault: tokenGood("old", 0)}, "", "-", "-", nil, []string{""}, with(map[string]string{"token": "new for ", vault: "old"}), half, false},
		"moved":                 {"the address changes, and tokens stay", wanting, map[string]string{"token": tokenGood("old", 0), vault: tokenGood("old", 0), "host": "before.example.com"}, "", "-", "-", nil, nil, with(map[string]string{"token": "old", vault: "old"}), half, false},
		"unwanted":              {"who does not see what wants a token takes nothing away", wanting[:1], map[string]string{"token": tokenGood("old", 0), vault: tokenGood("old", 40)}, "", "-", "-", nil, nil, with(map[string]string{"token": "old", vault: "old"}), half, false},
		"ended":                 {"a token that nobody takes any more goes", wanting[:1], map[string]string{"token": tokenGood("old", 0), vault: tokenGood("old", 60)}, "", "-", "-", nil, nil, with(map[string]string{"token": "old"}), half, false},
		"garbage":               {"what is no token is none", wanting[:1], map[string]string{"token": "garbage"}, "", "-", "-", nil, []string{""}, with(map[string]string{"token": "new for "}), half, false},
		"nothing":               {"nothing wants any: it ends by itself", nil, map[string]string{"token": tokenGood("old", 40)}, "", "-", "-", nil, nil, map[string]string{"token": "old"}, 0, false},
		"denied":                {"the others are there", wanting, nil, "", "vault", "-", nil, []string{"", "vault"}, with(map[string]string{"token": "new for "}), deniedAgain, false},
		"all denied":            {"an address without a token is worth nothing", wanting[:1], nil, "", "", "-", nil, []string{""}, nil, deniedAgain, false},
		"denied anew":           {"what it has is good for some time", wanting[:1], map[string]string{"token": tokenGood("old", 40)}, "", "", "-", func(s *tokenSides) { maps.Copy(s.secret["data"].(map[string]any), encoded(address)) }, []string{""}, with(map[string]string{"token": "old"}), deniedAgain, false},
		"busy":                  {"what passes by itself is waited for", wanting[:1], nil, "", "-", "", nil, []string{""}, nil, 0, true},
		"foreign":               {"what is somebody else's is not touched", wanting[:1], map[string]string{"token": tokenGood("theirs", 0)}, "west-uid", "-", "-", nil, nil, map[string]string{"token": "theirs"}, 0, true},
		"some busy":             {"what was issued is kept", wanting, nil, "", "-", "vault", nil, []string{"", "vault"}, with(map[string]string{"token": "new for "}), 0, true},
		"account anew":          {"nobody takes the tokens of an account that was deleted", made(40), map[string]string{"token": tokenAt("old", "earlier", time.Now())}, "", "-", "-", account("bot-uid"), []string{""}, with(map[string]string{"token": "new for "}), half, false},
		"workload anew":         {"its namespace may be another, and with it the account", made(1), map[string]string{"token": tokenGood("old", 2)}, "", "-", "-", nil, []string{""}, with(map[string]string{"token": "new for "}), half, false},
		"workload goes on":      {"another one that is new takes what there is", append(made(10), made(0)...), map[string]string{"token": tokenGood("old", 2)}, "", "-", "-", account("bot-uid"), nil, with(map[string]string{"token": "old"}), half, false},
		"foreign namespace":     {"a credential of the workspace is nothing for others", wanting, nil, "", "-", "-", foreign, nil, nil, 0, true},
		"refused namespace":     {"what runs there has its tokens", wanting[:1], map[string]string{"token": tokenGood("old", 40)}, "", "-", "-", refusedNamespace, []string{""}, with(map[string]string{"token": "new for "}), half, false},
		"no namespace, renewed": {"what runs there has its tokens", wanting[:1], map[string]string{"token": tokenGood("old", 40)}, "", "-", "-", notYet, []string{""}, with(map[string]string{"token": "new for "}), half, false},
		"no namespace":          {"nor is it written where others may be let in", wanting, nil, "", "-", "-", notYet, nil, nil, 0, true},
		"not listed":            {"who does not see what there is takes it for nothing, and would take it away", wanting, map[string]string{"token": tokenGood("old", 0), vault: tokenGood("old", 0)}, "", "-", "-", unlisted, nil, map[string]string{"token": "old", vault: "old"}, 0, true},
		"clock ahead":           {"one is asked for to know the hub's time", wanting, map[string]string{"token": tokenGood("old", 5), vault: tokenGood("old", 5)}, "", "-", "-", clockOff(time.Hour), []string{""}, with(map[string]string{"token": "new for ", vault: "old"}), half - 5*time.Minute, false},
		"clock behind":          {"what is past half of its life by the hub's is asked for anew", wanting, map[string]string{"token": tokenGood("old", 5), vault: tokenGood("old", 31)}, "", "-", "-", clockOff(-time.Hour), []string{"", "vault"}, with(map[string]string{"token": "new for ", vault: "new for vault"}), half, false},
		"no address":            {"pods could not reach it", wanting, nil, "", "-", "-", func(s *tokenSides) { s.config.API = nil }, nil, nil, 0, false},
		"unchecked":             {"not before the heartbeats are compared", wanting, nil, "", "-", "-", func(s *tokenSides) { s.gate.close(); s.failed(fmt.Errorf("%w: no route", errPhysical)) }, nil, nil, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTokenSides(t)
			s.denied, s.broken = map[string]bool{tc.denied: true}, map[string]bool{tc.broken: true}
			for _, leaf := range tc.leaves {
				if err := s.mirror.informers[deploymentsGVR].Add(leaf.DeepCopy()); err != nil {
					t.Fatal(err)
				}
			}
			if tc.below != nil {
				ours := tc.owner == ""
				if ours {
					tc.owner = "east-uid"
				}
				secret := secretBelow(tc.owner, tc.below)
				s.secret = secret.Object
				if tc.change != nil {
					tc.change(s)
				}
				if ours { // the informer has no others
					if err := s.physical.informers[secretsGVR].Add(secret.DeepCopy()); err != nil {
						t.Fatal(err)
					}
				}
			} else if tc.change != nil {
				tc.change(s)
			}
			again, err := s.keepTokens(t.Context(), "shop-1", "bot")
			if (err != nil) != tc.fails {
				t.Errorf("%v, want that it fails: %v", err, tc.fails)
			}
			slices.Sort(s.asked)
			if diff := cmp.Diff(tc.asked, s.asked); diff != "" {
				t.Errorf("%s: asked for (-want +got):\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.has, s.has()); diff != "" {
				t.Errorf("%s: the Secret has (-want +got):\n%s", tc.reason, diff)
			}
			if again > tc.again || again < tc.again-tenth-2*time.Second || tc.again == deniedAgain && again != deniedAgain || tc.again > 0 && again == 0 {
				t.Errorf("it is looked at again after %s, want %s at most", again, tc.again)
			}
			if quiet := name == "fresh" || name == "denied anew"; quiet && s.writes > 0 {
				t.Errorf("the Secret is written %d times for nothing", s.writes)
			}
			if s.secret != nil && !tc.fails && len(tc.asked) > 0 && s.secret["metadata"].(map[string]any)["annotations"].(map[string]any)[workloadv1alpha1.ServiceAccountAnnotation] != "bot" {
				t.Errorf("the Secret does not say whose it is: %v", s.secret["metadata"])
			}
		})
	}
}

// leafMade is one that was made so many minutes ago.
func leafMade(minutesAgo int) *unstructured.Unstructured {
	leaf := leafWanting(fmt.Sprintf("made-%d", minutesAgo), "bot", "token")
	leaf.SetCreationTimestamp(metav1.NewTime(time.Now().Add(-time.Duration(minutesAgo) * time.Minute)))
	return leaf
}

// accountIs has the workspace's account be of that UID.
func (s *tokenSides) accountIs(uid string) {
	leaf := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{
		"namespace": "shop-1", "name": "bot", "labels": map[string]any{workloadv1alpha1.RootUIDLabel: uid},
	}}}
	if err := s.mirror.informers[serviceAccountsGVR].Add(leaf); err != nil {
		s.t.Fatal(err)
	}
}

// TestRefusedTokens: what the physical cluster does not take is not asked for again at once, and is once it may.
func TestRefusedTokens(t *testing.T) {
	s := newTokenSides(t)
	leaf := leafWanting("web", "bot", "token")
	if err := s.mirror.informers[deploymentsGVR].Add(leaf.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	clk := clocktesting.NewFakeClock(time.Now())
	s.tokens.refused = utilcache.NewLRUExpireCacheWithClock(mostRefused, clk)
	s.refuses = true
	for range 3 {
		if err := s.ensureTokens(t.Context(), deploymentsGVR, leaf); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.asked) != 1 || s.writes != 1 {
		t.Errorf("%d tokens are asked for, the Secret is written %d times, want once each", len(s.asked), s.writes)
	}
	s.refuses = false
	clk.Step(refusedAgain + time.Second)
	if err := s.ensureTokens(t.Context(), deploymentsGVR, leaf); err != nil || s.has()["token"] == "" {
		t.Errorf("%v, the Secret has %v", err, s.has())
	}
}

// unlisted has the Secrets of the physical cluster not listed yet.
func unlisted(s *tokenSides) {
	s.physical.informers[secretsGVR] = newIdle(s.t, nil, nil).physical.informers[secretsGVR]
}

// clockOff has the syncer's clock be off, and nothing known of the hub's.
func clockOff(by time.Duration) func(*tokenSides) {
	return func(s *tokenSides) {
		s.config.Clock, s.tokens.hubs = clocktesting.NewFakeClock(time.Now().Add(by)), time.Time{}
	}
}

func encoded(content map[string]string) map[string]any {
	data := map[string]any{}
	for name, value := range content {
		data[name] = base64.StdEncoding.EncodeToString([]byte(value))
	}
	return data
}

// TestEnsureTokens: a leaf waits for tokens that are missing, and for nothing else.
func TestEnsureTokens(t *testing.T) {
	before := leafWanting("web", "bot", "token")
	kinds.SetAPIAccess(before, kinds.NoAPIAccess)
	for name, tc := range map[string]struct {
		reason string
		leaf   *unstructured.Unstructured
		below  map[string]string
		broken string
		asked  []string
		fails  bool
	}{
		"missing":      {"they are there before its pods", leafWanting("web", "bot", "token"), nil, "-", []string{""}, false},
		"there":        {"it is told of 30 minutes later, by another look", leafWanting("web", "bot", "token"), map[string]string{"token": tokenGood("old", 40)}, "-", nil, false},
		"ending":       {"pods would start with one that nobody takes", leafWanting("web", "bot", "token"), map[string]string{"token": tokenGood("old", 60)}, "-", []string{""}, false},
		"another":      {"of each audience", leafWanting("web", "bot", "token", "token-dmF1bHQ"), map[string]string{"token": tokenGood("old", 0)}, "-", []string{"vault"}, false},
		"busy":         {"variables are fixed when a container starts", leafWanting("web", "bot", "token"), nil, "", []string{""}, true},
		"before":       {"it was rendered without", before, nil, "-", nil, false},
		"wanting none": {"nothing is asked for", leafWanting("web", "bot", "ca.crt"), nil, "-", nil, false},
		"refused":      {"all of it is optional", leafWanting("web", "bot", "token"), nil, "-", []string{""}, false},
		"not listed":   {"it may be there", leafWanting("web", "bot", "token"), nil, "-", nil, true},
		"no right":     {"nobody lists Secrets there, and all of it is optional", leafWanting("web", "bot", "token"), nil, "-", nil, false},
		"account anew": {"pods would start as nobody", leafWanting("web", "bot", "token"), map[string]string{"token": tokenAt("old", "earlier", time.Now())}, "-", []string{""}, false},
		"leaf anew":    {"pods may start as nobody", leafMade(1), map[string]string{"token": tokenGood("old", 2)}, "-", []string{""}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTokenSides(t)
			if s.refuses = name == "refused"; name == "not listed" || name == "no right" {
				unlisted(s)
			}
			if name == "no right" {
				s.state.unwatched[secretsGVR] = unwatched{err: apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "", errors.New("no right"))}
			}
			if name == "account anew" {
				s.accountIs("bot-uid")
			}
			s.broken = map[string]bool{tc.broken: true}
			if err := s.mirror.informers[deploymentsGVR].Add(tc.leaf.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			if tc.below != nil {
				secret := secretBelow("east-uid", tc.below)
				s.secret = secret.Object
				if err := s.physical.informers[secretsGVR].Add(secret.DeepCopy()); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.ensureTokens(t.Context(), deploymentsGVR, tc.leaf); (err != nil) != tc.fails {
				t.Errorf("%v, want that it fails: %v", err, tc.fails)
			}
			if diff := cmp.Diff(tc.asked, s.asked); diff != "" {
				t.Errorf("%s: asked for (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestTokensSoon: what changes which tokens there are to be, or takes away some that there are, is looked at; nothing else is.
func TestTokensSoon(t *testing.T) {
	leaf := leafWanting("web", "bot", "token")
	anew := leaf.DeepCopy()
	anew.SetAnnotations(map[string]string{workloadv1alpha1.APIAccessAnnotation: "Projected", workloadv1alpha1.RenderedAnnotation: "2"})
	plain := leaf.DeepCopy()
	kinds.SetAPIAccess(plain, kinds.NoAPIAccess)
	pod := &unstructured.Unstructured{Object: map[string]any{"kind": "Pod", "metadata": map[string]any{"name": "op"}, "spec": map[string]any{}}}
	kinds.SetAPIAccess(pod, kinds.ProjectedAPIAccess)
	secret := func(tokens map[string]string) *unstructured.Unstructured { return secretBelow("east-uid", tokens) }
	both := secret(map[string]string{"token": tokenGood("old", 40), "host": "atoll.example.com"})
	other := secret(nil)
	other.SetAnnotations(nil)
	account := func(uid string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "bot", "labels": map[string]any{workloadv1alpha1.RootUIDLabel: uid}}}}
	}
	for name, tc := range map[string]struct {
		gvr      schema.GroupVersionResource
		old, now *unstructured.Unstructured
		want     string
	}{
		"new":                 {deploymentsGVR, nil, leaf, "bot"},
		"rendered anew":       {deploymentsGVR, leaf, anew, "bot"},
		"its status":          {deploymentsGVR, leaf, leaf, ""},
		"gone":                {deploymentsGVR, leaf, nil, ""},
		"without":             {deploymentsGVR, nil, plain, ""},
		"bound pod":           {podsGVR, nil, pod, "default"},
		"account":             {serviceAccountsGVR, nil, account("1"), "bot"},
		"account anew":        {serviceAccountsGVR, account("1"), account("2"), "bot"},
		"account changed":     {serviceAccountsGVR, account("1"), account("1"), ""},
		"account gone":        {serviceAccountsGVR, account("1"), nil, ""},
		"Secret seen":         {secretsGVR, nil, both, ""},
		"Secret deleted":      {secretsGVR, both, nil, "bot"},
		"Secret renewed":      {secretsGVR, both, secret(map[string]string{"token": tokenGood("new", 0), "host": "atoll.example.com", "token-dmF1bHQ": "1"}), ""},
		"Secret lost a token": {secretsGVR, both, secret(map[string]string{"host": "atoll.example.com"}), "bot"},
		"Secret has garbage":  {secretsGVR, both, secret(map[string]string{"token": "garbage", "host": "atoll.example.com"}), "bot"},
		"Secret leads astray": {secretsGVR, both, secret(map[string]string{"token": tokenGood("old", 40), "host": "elsewhere.example.com"}), "bot"},
		"another's Secret":    {secretsGVR, other, nil, ""},
		"what makes no pod":   {configMapsGVR, nil, configMap("1", "v"), ""},
	} {
		if got := concerned(tc.gvr, tc.old, tc.now); got != tc.want {
			t.Errorf("%s: the tokens of %q are looked at, want %q", name, got, tc.want)
		}
	}
}

// TestTokenSecretIsNobodysLeaf: what has the name of a Secret with tokens is no leaf's, no orphan, and holds no namespace.
func TestTokenSecretIsNobodysLeaf(t *testing.T) {
	s := newIdle(t, nil, nil)
	k := key{secretsGVR, "shop-1", "atoll-token-bot"}
	if !s.isReserved(k) || s.isOrphan(k, nil, secretBelow("east-uid", nil)) {
		t.Error("it is an orphan, or its name may be a leaf's")
	}
	if s.isReserved(key{secretsGVR, "shop-1", "bot"}) || s.isReserved(key{configMapsGVR, "shop-1", "atoll-token-bot"}) {
		t.Error("others are kept from leaves, too")
	}
}
