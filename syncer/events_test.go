package syncer

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

// testEvent is one of a Deployment below.
func testEvent(change map[string]any) *unstructured.Unstructured {
	e := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Event",
		"metadata":       map[string]any{"namespace": "shop-1a", "name": "web.17a", "uid": "e-1", "resourceVersion": "9", "creationTimestamp": "2026-01-01T00:00:00Z"},
		"involvedObject": map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "shop-1a", "name": "web", "uid": "below"},
		"reason":         "ScalingReplicaSet", "message": "Scaled up replica set web-abc from 0 to 2", "type": "Normal", "count": int64(1),
		"lastTimestamp": "2026-01-01T00:00:00Z", "source": map[string]any{"component": "deployment-controller", "host": "node-7"},
	}}
	for k, v := range change {
		e.Object[k] = v
	}
	return e
}

func TestRenderEvent(t *testing.T) {
	below := testEvent(map[string]any{"related": map[string]any{"kind": "Node", "name": "node-7"}, "extra": "x"})
	below.SetLabels(map[string]string{"a": "b"})
	told, err := renderEvent(below, &subject{gvk: deploymentKind.GVK, name: "web", uid: "leaf", revision: "5d8c"}, func(set string) (string, error) {
		if set != "web-abc" {
			t.Errorf("asks for %q", set)
		}
		return "5d8c", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"apiVersion": "v1", "kind": "Event",
		"metadata":       map[string]any{"namespace": "shop-1a", "name": "e-1", "annotations": map[string]any{workloadv1alpha1.RevisionAnnotation: "5d8c"}},
		"involvedObject": map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "shop-1a", "name": "web", "uid": "leaf"},
		"reason":         "ScalingReplicaSet", "message": "Scaled up replica set " + kinds.RevisionName("web", "5d8c") + " from 0 to 2", "type": "Normal", "count": int64(1),
		"lastTimestamp": "2026-01-01T00:00:00Z", "source": map[string]any{"component": "deployment-controller"},
	}
	if diff := cmp.Diff(want, told.Object); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := renderEvent(below, &subject{gvk: deploymentKind.GVK, name: "web"}, func(string) (string, error) { return "", errors.New("away") }); err == nil {
		t.Error("a name that is not known for now is told all the same")
	}
}

func TestLastOfEvent(t *testing.T) {
	for reason, tc := range map[string]struct {
		change map[string]any
		want   string
	}{
		"recorded once":         {nil, "2026-01-01T00:00:00Z"},
		"again":                 {map[string]any{"lastTimestamp": "2026-01-01T01:00:00Z"}, "2026-01-01T01:00:00Z"},
		"as a series":           {map[string]any{"lastTimestamp": nil, "eventTime": "2026-01-01T00:00:00.5Z", "series": map[string]any{"lastObservedTime": "2026-01-01T02:00:00.000001Z"}}, "2026-01-01T02:00:00Z"},
		"who knows what it is":  {map[string]any{"lastTimestamp": int64(7), "series": "x"}, "2026-01-01T00:00:00Z"},
		"it was written before": {map[string]any{"lastTimestamp": "2025-01-01T00:00:00Z"}, "2026-01-01T00:00:00Z"},
	} {
		e := testEvent(tc.change)
		if got := thinEvent(e, true).Object["lastTimestamp"]; got != tc.want {
			t.Errorf("%s: %v, want %s", reason, got, tc.want)
		}
		if got := lastOf(thinEvent(e, false)).UTC().Format(time.RFC3339); got != tc.want {
			t.Errorf("%s: what is kept says %v, want %s", reason, got, tc.want)
		}
	}
}

// TestEventsAreTold: of what is ours, and shown, once; what cannot be told is given up after a while.
func TestEventsAreTold(t *testing.T) {
	about := func(apiVersion, kind, namespace, name, uid string) map[string]any {
		return map[string]any{"involvedObject": map[string]any{"apiVersion": apiVersion, "kind": kind, "namespace": namespace, "name": name, "uid": uid}}
	}
	with := func(change map[string]any, field, value string) map[string]any {
		change[field] = value
		return change
	}
	set := map[string]any{"metadata": map[string]any{
		"namespace": "shop-1a", "name": "web-abc", "uid": "set", "annotations": map[string]any{workloadv1alpha1.RevisionAnnotation: "5d8c"},
		"ownerReferences": []any{map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "below", "controller": true}},
	}}
	for name, tc := range map[string]struct {
		reason string
		event  *unstructured.Unstructured
		answer int    // of the hub
		tries  int    // until it is told or given up
		puts   int    // of those, how many reached the hub
		uid    string // of what it is told of
	}{
		"leaf":             {"", testEvent(nil), http.StatusOK, 1, 1, "leaf"},
		"pod":              {"by the UID that it has below", testEvent(about("v1", "Pod", "shop-1a", "web-abc-1", "pod")), http.StatusOK, 1, 1, "pod"},
		"replicaset":       {"its Deployment's, of a revision", testEvent(about("apps/v1", "ReplicaSet", "shop-1a", "web-abc", "set")), http.StatusOK, 1, 1, "leaf"},
		"its pods":         {"it is read once", testEvent(with(about("apps/v1", "ReplicaSet", "shop-1a", "web-abc", "set"), "message", "Created pod: web-abc-1")), http.StatusTooManyRequests, eventTries, eventTries, "leaf"},
		"earlier":          {"another one had its name", testEvent(about("apps/v1", "Deployment", "shop-1a", "web", "earlier")), http.StatusOK, eventTries, 0, ""},
		"earlier pod":      {"so had another pod", testEvent(about("v1", "Pod", "shop-1a", "web-abc-1", "earlier")), http.StatusOK, eventTries, 0, ""},
		"earlier set":      {"and another ReplicaSet", testEvent(about("apps/v1", "ReplicaSet", "shop-1a", "web-abc", "earlier")), http.StatusOK, 1, 0, ""},
		"elsewhere":        {"in another namespace", testEvent(about("apps/v1", "Deployment", "bank-1a", "web", "below")), http.StatusOK, 1, 0, ""},
		"nothing of ours":  {"no leaf is of that kind", testEvent(about("v1", "Node", "shop-1a", "web", "below")), http.StatusOK, 1, 0, ""},
		"other group":      {"nor of that", testEvent(about("example.dev/v1", "Deployment", "shop-1a", "web", "below")), http.StatusOK, 1, 0, ""},
		"earlier hub":      {"it forbids it", testEvent(nil), http.StatusForbidden, 1, 1, "leaf"},
		"not there yet":    {"the pod is not", testEvent(nil), http.StatusNotFound, eventTries, eventTries, "leaf"},
		"found to be ours": {"later: what it is about is not kept", testEvent(nil), http.StatusOK, 1, 1, "leaf"},
		"meanwhile":        {"while it was on its way", testEvent(nil), http.StatusOK, 1, 1, "leaf"},
		"too many":         {"they are told later", testEvent(nil), http.StatusTooManyRequests, eventTries, eventTries, "leaf"},
	} {
		t.Run(name, func(t *testing.T) {
			write := func(w http.ResponseWriter, code int, body any) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(code)
				if err := json.NewEncoder(w).Encode(body); err != nil {
					t.Error(err)
				}
			}
			reads, sets := 0, 0
			physical := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if req.URL.Path == "/api/v1/namespaces/shop-1a/events/web.17a" {
					reads++
					write(w, http.StatusOK, tc.event.Object)
				} else {
					sets++
					write(w, http.StatusOK, map[string]any{"apiVersion": "apps/v1", "kind": "ReplicaSetList", "metadata": map[string]any{}, "items": []any{set}})
				}
			}))
			defer physical.Close()
			puts := 0
			mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				puts++
				var told unstructured.Unstructured
				if err := json.NewDecoder(req.Body).Decode(&told.Object); err != nil {
					t.Error(err)
				}
				if uid, _, _ := unstructured.NestedString(told.Object, "involvedObject", "uid"); uid != tc.uid || req.Method != http.MethodPut || req.URL.Path != "/api/v1/namespaces/shop-1a/events/e-1" {
					t.Errorf("%s of %s about %q, want about %q", req.Method, req.URL.Path, uid, tc.uid)
				}
				if tc.answer == http.StatusOK {
					write(w, tc.answer, told.Object)
					return
				}
				write(w, tc.answer, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(tc.answer), Reason: map[int]metav1.StatusReason{
					http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusTooManyRequests: metav1.StatusReasonTooManyRequests,
				}[tc.answer]})
			}))
			defer mirror.Close()
			s, err := New(Config{Name: "east", UID: "u", Mirror: &rest.Config{Host: mirror.URL}, Physical: &rest.Config{Host: physical.URL}, Clock: clocktesting.NewFakeClock(time.Unix(1000, 0))})
			if err != nil {
				t.Fatal(err)
			}
			s.gate.open(s.gate.begin(), fine)
			object := func(uid string) *unstructured.Unstructured {
				o := &unstructured.Unstructured{Object: map[string]any{}}
				o.SetNamespace("shop-1a")
				o.SetName("web")
				o.SetUID(types.UID(uid))
				return o
			}
			shown, kept := shownOf("pod", "Running", "True"), thinEvent(tc.event, name != "found to be ours" && name != "meanwhile")
			if name == "meanwhile" {
				kept = thinEvent(kept, true)
			}
			if err := errors.Join(s.events.Add(kept), s.shownPods.Add(shown), s.mirror.informers[deploymentsGVR].Add(object("leaf")), s.physical.informers[deploymentsGVR].Add(object("below"))); err != nil {
				t.Fatal(err)
			}
			tries := 0
			for again := time.Duration(1); again > 0; tries++ {
				s.gate.open(s.gate.begin(), fine) // which a server that does not answer closes
				if again, err = s.reconcileEvent(t.Context(), key{eventsGVR, "shop-1a", "web.17a"}); err != nil {
					t.Fatal(err)
				}
			}
			if tries != tc.tries || puts != tc.puts {
				t.Errorf("%d tries and %d requests, want %d and %d: %s", tries, puts, tc.tries, tc.puts, tc.reason)
			}
			if reads != tc.puts { // of what is not known nothing is asked
				t.Errorf("it is read %d times, and put %d times: %s", reads, tc.puts, tc.reason)
			}
			if of, _, _ := unstructured.NestedString(tc.event.Object, "message"); of == "Created pod: web-abc-1" && sets != 1 {
				t.Errorf("its ReplicaSet is read %d times, want once: %s", sets, tc.reason)
			}
		})
	}
}

// TestEventsOfAnAdoptedReplicaSet: its Deployment is not remembered when that is not there any more.
func TestEventsOfAnAdoptedReplicaSet(t *testing.T) {
	owner := "below"
	physical := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(map[string]any{"apiVersion": "apps/v1", "kind": "ReplicaSetList", "metadata": map[string]any{}, "items": []any{map[string]any{"metadata": map[string]any{
			"namespace": "shop-1a", "name": "web-abc", "uid": "set", "annotations": map[string]any{workloadv1alpha1.RevisionAnnotation: "5d8c"},
			"ownerReferences": []any{map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": owner, "controller": true}},
		}}}}); err != nil {
			t.Error(err)
		}
	}))
	defer physical.Close()
	s, err := New(Config{Name: "east", UID: "u", Mirror: &rest.Config{}, Physical: &rest.Config{Host: physical.URL}, Clock: clocktesting.NewFakeClock(time.Unix(1000, 0))})
	if err != nil {
		t.Fatal(err)
	}
	deployment := func(uid string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{}}
		o.SetNamespace("shop-1a")
		o.SetName("web")
		o.SetUID(types.UID(uid))
		return o
	}
	event := testEvent(map[string]any{"involvedObject": map[string]any{"apiVersion": "apps/v1", "kind": "ReplicaSet", "namespace": "shop-1a", "name": "web-abc", "uid": "set"}})
	about := func(made string) error {
		t.Helper()
		if err := errors.Join(s.mirror.informers[deploymentsGVR].Update(deployment("leaf")), s.physical.informers[deploymentsGVR].Update(deployment(made))); err != nil {
			t.Fatal(err)
		}
		_, err := s.about(t.Context(), "shop-1a", event)
		return err
	}
	if err := about("below"); err != nil {
		t.Error(err)
	}
	if err := about("again"); !errors.Is(err, errNotKnown) {
		t.Errorf("of a Deployment that has gone: %v", err)
	}
	owner = "again"
	if err := about("again"); err != nil {
		t.Errorf("of the Deployment that has adopted it: %v", err)
	}
}

// TestWhichEventsAreNews: those in namespaces of ours, but what a list brings that was told long ago.
func TestWhichEventsAreNews(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	s, err := New(Config{Name: "east", UID: "u", Mirror: &rest.Config{}, Physical: &rest.Config{}, Clock: clocktesting.NewFakeClock(now)})
	if err != nil {
		t.Fatal(err)
	}
	ours := &unstructured.Unstructured{Object: map[string]any{}}
	ours.SetName("shop-1a")
	if err := s.physical.informers[namespacesGVR].Add(ours); err != nil {
		t.Fatal(err)
	}
	event := func(namespace, name string, ago time.Duration) *unstructured.Unstructured {
		e := testEvent(map[string]any{"lastTimestamp": now.Add(-ago).Format(time.RFC3339)})
		e.SetNamespace(namespace)
		e.SetName(name)
		return thinEvent(e, true)
	}
	take := func(change cache.DeltaType, e *unstructured.Unstructured) {
		t.Helper()
		if err := s.events.take(cache.Delta{Type: change, Object: e}); err != nil {
			t.Fatal(err)
		}
	}
	take(cache.Replaced, event("shop-1a", "young", time.Minute))
	take(cache.Replaced, event("shop-1a", "old", time.Hour))
	take(cache.Added, event("kube-system", "others", 0))
	if got := s.eventQueue.Len(); got != 1 {
		t.Errorf("%d are to be told, want the young one", got)
	}
	take(cache.Added, event("shop-1a", "late", time.Hour)) // a clock of the cluster that is behind hides nothing
	if got := s.eventQueue.Len(); got != 2 {
		t.Errorf("%d are to be told, want what is seen as it happens, too", got)
	}
	// What is found to be ours has waited for that.
	others := &unstructured.Unstructured{Object: map[string]any{}}
	others.SetName("kube-system")
	if err := s.physical.informers[namespacesGVR].Add(others); err != nil {
		t.Fatal(err)
	}
	take(cache.Replaced, event("kube-system", "old", time.Hour))
	s.physical.informers[namespacesGVR].handle(nil, others)
	if got := s.eventQueue.Len(); got != 3 {
		t.Errorf("%d are to be told, want those of a new namespace, too", got)
	}
}

// TestWithoutOthers: nobody learns from an event what another workspace has.
func TestWithoutOthers(t *testing.T) {
	others := func(name string) bool { return name == "back-1a2b" }
	for message, want := range map[string]string{
		`can't change sharing key for "front-9z/web", address also in use by back-1a2b/db`: `can't change sharing key for "front-9z/web", address also in use by another namespace`,
		"Preempted by back-1a2b/db-0 on node n":                                            "Preempted by another namespace on node n",
		"in back-1a2b.":                                                                    "in another namespace.",
		"of back-1a2b-c, and more":                                                         "of back-1a2b-c, and more",
		"":                                                                                 "",
	} {
		if got := withoutOthers(message, others); got != want {
			t.Errorf("%q: %q, want %q", message, got, want)
		}
	}
}
