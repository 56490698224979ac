package syncer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// shown answers as a physical cluster that shows what there is at each path, what of which may be repeated without end.
type shown map[string]struct{ beginning, endless, end string }

func (s shown) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	text, ok := s[r.URL.Path]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
		return
	}
	_, _ = io.WriteString(w, text.beginning)
	for n := 0; text.endless != "" && r.Context().Err() == nil; n++ {
		if _, err := fmt.Fprintf(w, text.endless, n); err != nil {
			return
		}
	}
	_, _ = io.WriteString(w, text.end)
}

// aNamespace shows a namespace whose contents make up every case.
func aNamespace() shown {
	const verbs = `"verbs":["delete","list"]`
	return shown{
		"/apis": {beginning: `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"example.com","versions":[{"version":"v1"},{"version":"v2"}],"preferredVersion":{"version":"v2"}}`, end: `]}`},
		"/api/v1": {beginning: `{"kind":"APIResourceList","resources":[{"name":"configmaps","kind":"ConfigMap","namespaced":true,` + verbs + `},` +
			`{"name":"nodes","kind":"Node","namespaced":false,` + verbs + `},{"name":"bindings","kind":"Binding","namespaced":true,"verbs":["create"]},` +
			`{"name":"secrets","kind":"Secret","namespaced":true,` + verbs + `},{"name":"events","kind":"Event","namespaced":true,` + verbs + `},{"name":"configmaps/status","kind":"ConfigMap","namespaced":true,` + verbs + `}`, end: `]}`},
		"/apis/example.com/v1": {beginning: `{"kind":"APIResourceList","resources":[{"name":"things","kind":"Thing","namespaced":true,` + verbs + `},` +
			`{"name":"others","kind":"Other","namespaced":true,` + verbs + `}`, end: `]}`},
		"/apis/example.com/v2": {beginning: `{"kind":"APIResourceList","resources":[{"name":"things","kind":"Thing","namespaced":true,` + verbs + `}`, end: `]}`},
		"/api/v1/namespaces/shop-1/configmaps": {beginning: `{"items":[{"metadata":{"name":"furniture"}},{"metadata":{"name":"theirs"}},{"metadata":{"name":"going","deletionTimestamp":"2026-01-02T03:04:05Z"}},` +
			`{"metadata":{"name":"ours","labels":{"workload.atoll.dev/synctarget":"east-uid"}}},` +
			`{"metadata":{"name":"owned","ownerReferences":[{"apiVersion":"example.com/v1","kind":"Other"}]}}`, end: `]}`},
		"/api/v1/namespaces/atoll-system/configmaps": {beginning: `{"items":[{"metadata":{"name":"furniture"}}`, end: `]}`},
		"/api/v1/namespaces/shop-1/secrets": {beginning: `{"items":[{"metadata":{"name":"atoll-token-bot","labels":{"workload.atoll.dev/synctarget":"east-uid"}}},` +
			`{"metadata":{"name":"atoll-token-theirs"}}`, end: `]}`},
		"/api/v1/namespaces/atoll-system/secrets":             {beginning: `{"items":[`, end: `]}`},
		"/apis/example.com/v2/namespaces/shop-1/things":       {beginning: `{"items":[{"metadata":{"name":"one"}}`, end: `]}`},
		"/apis/example.com/v2/namespaces/atoll-system/things": {beginning: `{"items":[`, end: `]}`},
		"/apis/example.com/v1/namespaces/shop-1/others":       {beginning: `{"items":[{"metadata":{"name":"two"}}`, end: `]}`},
		"/apis/example.com/v1/namespaces/atoll-system/others": {beginning: `{"items":[`, end: `]}`},
	}
}

// TestInside: what is in a namespace is seen whole, each resource in the version that the cluster prefers, if it has that one.
func TestInside(t *testing.T) {
	below := aNamespace()
	s := newIdle(t, nil, below.ServeHTTP)
	contents, err := s.inside(t.Context(), "shop-1")
	if want := []string{"configmaps ours", "configmaps theirs", "others two", "secrets atoll-token-theirs", "things one"}; err != nil || !slices.Equal(contents, want) {
		t.Errorf("got %v and %v, want %v", contents, err, want)
	}
	if s.room.taken != 0 {
		t.Errorf("%d bytes are taken in the end", s.room.taken)
	}
	delete(below, "/apis/example.com/v1")
	if contents, err := s.inside(t.Context(), "shop-1"); err == nil {
		t.Errorf("one version says nothing, and %v is all there is", contents)
	}
}

// TestInsideHasRoom: however much a physical cluster says that there is, no more of it is held than there is room for.
func TestInsideHasRoom(t *testing.T) {
	for name, tc := range map[string]struct{ path, endless string }{
		"Groups":    {"/apis", `,{"name":"group-%d","versions":[{"version":"v1"}]}`},
		"Versions":  {"/apis", `,{"name":"group-%d","versions":[` + strings.Repeat(`{"version":""},`, 100_000) + `{}]}`},
		"Resources": {"/api/v1", `,{"name":"resource-%d","kind":"","namespaced":true,"verbs":[]}`},
		"Verbs":     {"/api/v1", `,{"name":"resource-%d","kind":"","namespaced":true,"verbs":[` + strings.Repeat(`"",`, 100_000) + `""]}`},
		"Ours":      {"/api/v1/namespaces/shop-1/configmaps", `,{"metadata":{"name":"o-%d","labels":{"workload.atoll.dev/synctarget":"east-uid"}}}`},
		"Others":    {"/api/v1/namespaces/shop-1/configmaps", `,{"metadata":{"name":"o-%d"}}`},
		"Owners":    {"/api/v1/namespaces/shop-1/configmaps", `,{"metadata":{"name":"o-%d","ownerReferences":[` + strings.Repeat(`{},`, 100_000) + `{}]}}`},
	} {
		t.Run(name, func(t *testing.T) {
			below := aNamespace()
			answer := below[tc.path]
			answer.endless = tc.endless
			below[tc.path] = answer
			s := newIdle(t, nil, below.ServeHTTP)
			s.room.most = 4 << 20
			var err error
			peak := peakOf(func() { _, err = s.inside(t.Context(), "shop-1") })
			var much tooMuch
			if !errors.As(err, &much) {
				t.Errorf("the error is %v", err)
			}
			if peak > 2*uint64(s.room.most) { // what comes in on the way, too
				t.Errorf("takes %d bytes, there is room for %d", peak, s.room.most)
			}
			if s.room.taken != 0 {
				t.Errorf("%d bytes are taken in the end", s.room.taken)
			}
		})
	}
}

// TestInsideAsksOneByOne: a physical cluster with versions without number is asked for one at a time, for a bounded time, and no more
// when the syncer ends.
func TestInsideAsksOneByOne(t *testing.T) {
	var versions strings.Builder
	for n := range 3_000 {
		fmt.Fprintf(&versions, `,{"version":"v1alpha%d"}`, n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var asked, atOnce, most atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/apis" {
			_, _ = io.WriteString(w, `{"groups":[{"name":"example.com","versions":[{"version":"v1"}`+versions.String()+`]}]}`)
			return
		}
		most.Store(max(most.Load(), atOnce.Add(1)))
		defer atOnce.Add(-1)
		if asked.Add(1) == 100 {
			cancel()
			<-r.Context().Done()
		}
		_, _ = io.WriteString(w, `{"resources":[]}`)
	}))
	defer server.Close()
	s := newIdle(t, nil, nil)
	var bounded atomic.Bool
	physical, err := newPhysical(&rest.Config{Host: server.URL, WrapTransport: func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if deadline, ok := req.Context().Deadline(); ok && time.Until(deadline) <= lookTimeout {
				bounded.Store(true)
			}
			return next.RoundTrip(req)
		})
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.physical.kube = physical.kube
	if _, err := s.inside(ctx, "shop-1"); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	if asked.Load() != 100 || most.Load() != 1 || !bounded.Load() {
		t.Errorf("asked %d times, %d at once, for a bounded time: %v; want 100 times, one by one", asked.Load(), most.Load(), bounded.Load())
	}
}
