package syncer

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

var configMapsGVR = corev1.SchemeGroupVersion.WithResource("configmaps")

// identified answers, as the physical cluster "cluster-uid", who it is, and has h answer everything else.
func identified(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch req.URL.Path {
		case "/version":
			_, _ = io.WriteString(w, `{"gitVersion":"v1.36.3"}`)
		case "/api/v1/namespaces/" + metav1.NamespaceSystem:
			_, _ = io.WriteString(w, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":"cluster-uid"}}`)
		default:
			h(w, req)
		}
	}
}

// twinOf returns the twin of target "east", let in to the physical cluster with that UID.
func twinOf(clusterUID string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{
		"name": "east", "annotations": map[string]any{workloadv1alpha1.LetInAnnotation: clusterUID},
	}}}
}

// newIdle returns a Syncer of target "east", which is let in, whose informers do not run; tests fill them.
func newIdle(t *testing.T, mirror, physical http.HandlerFunc) *Syncer {
	t.Helper()
	host := func(h http.HandlerFunc) string {
		server := httptest.NewServer(h)
		t.Cleanup(server.Close)
		return server.URL
	}
	s, err := New(Config{Name: "east", UID: "east-uid", Clock: clock.RealClock{},
		Mirror: &rest.Config{Host: host(mirror)}, Physical: &rest.Config{Host: host(identified(physical))}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.twin.Add(twinOf("cluster-uid")); err != nil {
		t.Fatal(err)
	}
	return s
}

func configMap(version, value string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{
			"namespace": "shop-1", "name": "settings", "uid": "down-uid", "resourceVersion": version,
			"labels": map[string]any{
				workloadv1alpha1.SyncTargetLabel: "east-uid", workloadv1alpha1.WorkspaceLabel: "shop", workloadv1alpha1.RootUIDLabel: "root1",
			},
		},
		"data": map[string]any{"k": value},
	}}
}

func answer(t *testing.T, w http.ResponseWriter, code int, obj any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(obj); err != nil {
		t.Error(err)
	}
}

func notFound(t *testing.T, w http.ResponseWriter) {
	answer(t, w, http.StatusNotFound, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound, Details: &metav1.StatusDetails{Name: "settings"}})
}

// TestLongVersions: nothing is remembered of what a physical cluster says for long.
func TestLongVersions(t *testing.T) {
	var w writes
	k := key{configMapsGVR, "shop-1", "settings"}
	for length, want := range map[int]int{20: 20, longestVersion: longestVersion, 1 << 20: 0} {
		w.add(k, strings.Repeat("1", length))
		if version, ok := w.get(k); !ok || len(version) != want {
			t.Errorf("%d of %d digits are remembered, want %d", len(version), length, want)
		}
	}
	if text := some([]string{strings.Repeat("x", 1<<20)}); len(text) > maxMessage+len("...") {
		t.Errorf("a name takes %d bytes of a message", len(text))
	}
}

func TestNotBefore(t *testing.T) {
	k := key{configMapsGVR, "shop-1", "settings"}
	foreign := configMap("12", "theirs")
	foreign.SetLabels(nil)
	for name, tc := range map[string]struct {
		wrote      string // "none" if nothing was written
		seen, live *unstructured.Unstructured
		want       string // resource version, "" for no object
		reads      int
		remembers  bool
		reason     string
	}{
		"NothingWritten": {wrote: "none", seen: configMap("10", "a"), want: "10", reason: "the informer is the truth"},
		"Behind":         {wrote: "11", seen: configMap("9", "a"), live: configMap("11", "b"), want: "11", reads: 1, remembers: true, reason: "what the informer shows was overwritten"},
		"NotShownYet":    {wrote: "11", live: configMap("11", "b"), want: "11", reads: 1, remembers: true, reason: "what was created is there"},
		"CaughtUp":       {wrote: "11", seen: configMap("11", "b"), want: "11", reason: "the informer shows our write"},
		"Ahead":          {wrote: "9", seen: configMap("11", "b"), want: "11", reason: "the informer shows what came after our write"},
		"NoAnswer":       {wrote: "", seen: configMap("9", "a"), live: configMap("11", "b"), want: "11", reads: 1, remembers: true, reason: "a write without an answer may have been done"},
		"NotDone":        {wrote: "", seen: configMap("9", "a"), live: configMap("9", "a"), want: "9", reads: 1, reason: "and if it was not, the informer is right"},
		"Restored":       {wrote: "11", seen: configMap("5", "a"), live: configMap("5", "a"), want: "5", reads: 1, reason: "a cluster that was restored is believed"},
		"GoneAgain":      {wrote: "11", reads: 1, reason: "somebody deleted it"},
		"TakenAway":      {wrote: "11", seen: configMap("11", "b"), want: "11", reason: "the informer shows our write"},
		"Foreign":        {wrote: "11", live: foreign, reads: 1, reason: "somebody took our label off"},
	} {
		t.Run(name, func(t *testing.T) {
			reads := 0
			s := newIdle(t, nil, func(w http.ResponseWriter, req *http.Request) {
				reads++
				if tc.live == nil {
					notFound(t, w)
					return
				}
				answer(t, w, http.StatusOK, tc.live.Object)
			})
			if tc.wrote != "none" {
				s.writes.add(k, tc.wrote)
			}
			got, err := s.notBefore(t.Context(), k, tc.seen)
			if err != nil {
				t.Fatal(err)
			}
			version := ""
			if got != nil {
				version = got.GetResourceVersion()
			}
			if _, remembers := s.writes.get(k); version != tc.want || reads != tc.reads || remembers != tc.remembers {
				t.Errorf("%s: version %q after %d reads, remembers %v; want %q, %d, %v", tc.reason, version, reads, remembers, tc.want, tc.reads, tc.remembers)
			}
		})
	}
}

// TestReleaseWantsProof: a tombstone is let go only where an API server that was not restored says that nothing of it is left.
func TestReleaseWantsProof(t *testing.T) {
	k := key{configMapsGVR, "shop-1", "settings"}
	now := metav1.Now()
	leaf := configMap("3", "a")
	leaf.SetUID("leaf-uid")
	leaf.SetDeletionTimestamp(&now)
	leaf.SetFinalizers([]string{workloadv1alpha1.SyncerFinalizer})
	proxy := func(w http.ResponseWriter) { http.Error(w, "404 page not found", http.StatusNotFound) }
	for name, tc := range map[string]struct {
		physical func(http.ResponseWriter)
		verdict  verdict
		released bool
		reason   string
	}{
		"Gone":        {func(w http.ResponseWriter) { notFound(t, w) }, fine, true, "it is gone"},
		"Proxy":       {proxy, fine, false, "a proxy's 404 says nothing about the object"},
		"AnotherOne":  {func(w http.ResponseWriter) { notFound(t, w) }, physicalRestored, false, "a cluster that is not the one it was does not know what it should have"},
		"HubRestored": {func(w http.ResponseWriter) { notFound(t, w) }, hubRestored, false, "an older hub changes nothing"},
		"AnotherRoots": {func(w http.ResponseWriter) {
			other := configMap("7", "b")
			other.SetLabels(nil)
			answer(t, w, 200, other.Object)
		}, fine, true, "it is gone, and somebody else's has the name"},
	} {
		t.Run(name, func(t *testing.T) {
			released := false
			s := newIdle(t, func(w http.ResponseWriter, req *http.Request) {
				released = released || req.Method == http.MethodPatch && strings.HasSuffix(req.URL.Path, "/settings")
				if req.Method == http.MethodGet {
					answer(t, w, http.StatusOK, map[string]any{"apiVersion": "v1", "kind": "ConfigMapList", "metadata": map[string]any{}, "items": []any{leaf.Object}})
					return
				}
				answer(t, w, http.StatusOK, leaf.Object)
			}, func(w http.ResponseWriter, _ *http.Request) { tc.physical(w) })
			if err := s.mirror.informers[configMapsGVR].Add(leaf); err != nil {
				t.Fatal(err)
			}
			s.gate.open(s.gate.begin(), tc.verdict)
			o, err := s.bury(context.Background(), k, leaf)
			if released != tc.released {
				t.Errorf("%s: released = %v (%+v, %v)", tc.reason, released, o, err)
			}
		})
	}
}

// TestAwayOverARestart: a start of the syncer does not make a physical cluster be heard of that is away.
func TestAwayOverARestart(t *testing.T) {
	now := time.Now()
	ready := []metav1.Condition{{Type: workloadv1alpha1.SyncTargetReady, Status: metav1.ConditionTrue, Reason: ReasonConnected}}
	tests := map[string]struct {
		answered string // what the Lease says; "" if nothing
		at       string // the address that the Lease names; "" if none, "ours" if ours
		later    time.Duration
		want     string
		reason   string
	}{
		"long ago":  {now.Add(-time.Hour).Format(time.RFC3339), "", 0, "False/Unreachable", "it was away before we started"},
		"just now":  {now.Add(-5 * time.Second).Format(time.RFC3339), "", 0, "True/Connected", "a restart alone is no reason"},
		"the rest":  {now.Add(-30 * time.Second).Format(time.RFC3339), "", 15 * time.Second, "False/Unreachable", "30 of the 40 s were before we started"},
		"ahead":     {now.Add(time.Hour).Format(time.RFC3339), "", 0, "True/Connected", "a clock was turned back: as if it were now"},
		"ahead, on": {now.Add(time.Hour).Format(time.RFC3339), "", silence + 5*time.Second, "False/Unreachable", "and not for an hour"},
		"never":     {"", "", 0, "True/Connected", "nothing is known: from our start on"},
		"no time":   {"yesterday", "", 0, "True/Connected", "the same; it is overwritten with the next answer"},
		"here":      {now.Add(-5 * time.Second).Format(time.RFC3339), "ours", 0, "True/Connected", "it is the address that answered"},
		"elsewhere": {now.Add(-5 * time.Second).Format(time.RFC3339), "https://other.example:6443", 0, "False/Unreachable", "another address answered; this one never did"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			annotations := map[string]string{workloadv1alpha1.HeartbeatCounterAnnotation: "8", workloadv1alpha1.HeartbeatWrittenAnnotation: "7"}
			if tc.answered != "" {
				annotations[workloadv1alpha1.HeartbeatAnsweredAnnotation] = tc.answered
			}
			stored := &coordinationv1.Lease{
				TypeMeta:   metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
				ObjectMeta: metav1.ObjectMeta{Name: "heartbeat", Namespace: "atoll-system", UID: "u", Annotations: annotations},
			}
			if tc.at != "" && tc.at != "ours" {
				annotations[workloadv1alpha1.HeartbeatAddressAnnotation] = tc.at
			}
			var mu sync.Mutex // guards stored and away
			away := true
			s := newIdle(t, func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				if r.Method == http.MethodPut {
					body, err := io.ReadAll(r.Body)
					if err == nil {
						_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, stored)
					}
					if err != nil {
						t.Error(err)
					}
				}
				answer(t, w, http.StatusOK, stored)
			}, func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				if away {
					http.Error(w, "no upstream", http.StatusServiceUnavailable)
					return
				}
				answer(t, w, http.StatusOK, map[string]any{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": map[string]any{
					"name": "heartbeat-east-uid", "namespace": "atoll-system", "uid": "d", "annotations": map[string]any{workloadv1alpha1.HeartbeatCounterAnnotation: "7"},
				}})
			})
			if tc.at == "ours" {
				mu.Lock()
				annotations[workloadv1alpha1.HeartbeatAddressAnnotation] = s.config.Physical.Host
				mu.Unlock()
			}
			writer := func() string {
				mu.Lock()
				defer mu.Unlock()
				return stored.Annotations[workloadv1alpha1.HeartbeatAnsweredAnnotation]
			}
			err := s.beat(t.Context())
			if err == nil {
				t.Fatal("the beat did not fail")
			}
			s.failed(err)
			if got := writer(); got != tc.answered {
				t.Errorf("the Lease says %q after a beat without an answer, want %q", got, tc.answered)
			}
			s.state.mu.Lock()
			f := facts{lastAnswer: s.state.lastAnswer, everAnswered: s.state.everAnswered, trouble: s.state.trouble}
			s.state.mu.Unlock()
			status := twinStatus(workloadv1alpha1.SyncTargetStatus{Conditions: ready}, 1, f, s.config.Clock.Now().Add(tc.later))
			if got := condition(status.Conditions, workloadv1alpha1.SyncTargetReady); got != tc.want {
				t.Errorf("%s: Ready %q, want %q", tc.reason, got, tc.want)
			}

			mu.Lock()
			away = false
			mu.Unlock()
			for range 2 { // the second one tells of the first
				if err := s.beat(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			at, err := time.Parse(time.RFC3339, writer())
			if err != nil || time.Since(at) > time.Minute || time.Until(at) > 0 {
				t.Errorf("after an answer the Lease says %q (%v)", writer(), err)
			}
		})
	}
}

// TestBeatBehindAProxy: a proxy that does not find the API server must not look like a cluster that forgot its heartbeats.
func TestBeatBehindAProxy(t *testing.T) {
	s := newIdle(t, func(w http.ResponseWriter, _ *http.Request) {
		answer(t, w, http.StatusOK, map[string]any{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": map[string]any{
			"name": "heartbeat", "namespace": "atoll-system", "uid": "u",
			"annotations": map[string]any{workloadv1alpha1.HeartbeatCounterAnnotation: "8", workloadv1alpha1.HeartbeatWrittenAnnotation: "7"},
		}})
	}, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "404 page not found", http.StatusNotFound) })
	if err := s.beat(t.Context()); err == nil {
		t.Error("the beat did not fail")
	}
	if v := s.gate.verdict; v != 0 {
		t.Errorf("the verdict is %v, want none", v)
	}
}

// TestNameConflictNamesTheOwner: what a registration that was removed has left is Atoll's all the same.
func TestNameConflictNamesTheOwner(t *testing.T) {
	k := key{configMapsGVR, "shop-1", "settings"}
	for name, tc := range map[string]struct {
		labels map[string]string
		want   string
	}{
		"nobody's":                       {want: "configmaps shop-1/settings exists and is not Atoll's"},
		"of a registration that is gone": {map[string]string{workloadv1alpha1.SyncTargetLabel: "east-before"}, "the SyncTarget with UID east-before. Is this one a duplicate of that, remove this one"},
	} {
		t.Run(name, func(t *testing.T) {
			live := configMap("7", "a")
			live.SetLabels(tc.labels)
			s := newIdle(t, nil, func(w http.ResponseWriter, _ *http.Request) { answer(t, w, http.StatusOK, live.Object) })
			_, err := s.apply(t.Context(), k, live, render(configMap("3", "a"), "east-uid"))
			if r := refusalOf(err); r == nil || r.reason != refusedNameConflict || !strings.Contains(r.message, tc.want) {
				t.Errorf("apply: %v, want a %s with %q", err, refusedNameConflict, tc.want)
			}
		})
	}
}
