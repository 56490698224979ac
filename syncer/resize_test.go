package syncer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	webhookerrors "k8s.io/apiserver/pkg/admission/plugin/webhook/errors"
	clocktesting "k8s.io/utils/clock/testing"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// resized is a pod of which the workspace has changed the request for CPU of its container.
func resized(pod *unstructured.Unstructured, cpu string) *unstructured.Unstructured {
	annotations := pod.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[workloadv1alpha1.ResizedAnnotation] = `{"containers":[{"name":"c","resources":{"requests":{"cpu":"` + cpu + `"}}}]}`
	pod.SetAnnotations(annotations)
	return pod
}

// asking is a pod whose container asks for so much CPU.
func asking(pod *unstructured.Unstructured, cpu string) *unstructured.Unstructured {
	pod.Object["spec"].(map[string]any)["containers"] = []any{map[string]any{
		"name": "c", "image": "i", "resources": map[string]any{"requests": map[string]any{"cpu": cpu, "memory": "1Gi"}},
	}}
	return pod
}

func TestLacksSize(t *testing.T) {
	for name, tc := range map[string]struct {
		reason       string
		shown, below *unstructured.Unstructured
		want         bool
		deed         showing
	}{
		"never resized":  {"what others make of it below is theirs", asking(shownOf("a", "Running", "True"), "1"), asking(testPod("a", "Running", "True"), "2"), false, showNothing},
		"resized":        {"it is to be so below", resized(shownOf("a", "Running", "True"), "2"), asking(testPod("a", "Running", "True"), "1"), true, addTo},
		"as it is":       {"a second pass writes nothing", resized(shownOf("a", "Running", "True"), "2"), asking(testPod("a", "Running", "True"), "2000m"), false, showNothing},
		"status first":   {"one that is refused keeps no status from being told", resized(shownOf("a", "Pending", "False"), "2"), asking(testPod("a", "Running", "True"), "1"), true, tellStatus},
		"another pod":    {"of its name, since", resized(shownOf("a", "Running", "True"), "2"), asking(testPod("b", "Running", "True"), "1"), false, tellItEnded},
		"gone":           {"there is none below", resized(shownOf("a", "Running", "True"), "2"), nil, false, tellItEnded},
		"ends":           {"nothing changes of it", ending(resized(shownOf("a", "Running", "True"), "2")), ending(asking(testPod("a", "Running", "True"), "1")), false, showNothing},
		"has ended":      {"nothing of it runs", resized(shownOf("a", "Succeeded", "False"), "2"), asking(testPod("a", "Succeeded", "False"), "1"), false, showNothing},
		"bound":          {"one that was made in the workspace; its labels come first", resized(boundOf("a", "Running", "True"), "2"), asking(madeOf("above", "a", "Running", "True"), "1"), true, relabelIt},
		"bound, another": {"its name is somebody else's below", resized(boundOf("a", "Succeeded", "False"), "2"), asking(testPod("b", "Running", "True"), "1"), false, showNothing},
		"not run yet":    {"it is made as it is", resized(boundOf("", "Pending", "False"), "2"), nil, false, runIt},
		"thin":           {"nothing is known of it", resized(shownOf("a", "Running", "True"), "2"), thinPod(testPod("b", "Running", "True")), false, tellItEnded},
		"no JSON":        {"nobody asks for anything", withAnnotation(shownOf("a", "Running", "True"), workloadv1alpha1.ResizedAnnotation, "{"), asking(testPod("a", "Running", "True"), "1"), false, showNothing},
	} {
		if got := lacksSize(tc.shown, tc.below); got != tc.want {
			t.Errorf("%s: %v, want %v: %s", name, got, tc.want, tc.reason)
		}
		s := &Syncer{config: Config{UID: string(theTarget)}}
		if deed := s.deedFor(tc.shown, tc.below); deed != tc.deed {
			t.Errorf("%s: %q, want %q: %s", name, deed, tc.deed, tc.reason)
		}
	}
}

func withAnnotation(pod *unstructured.Unstructured, name, value string) *unstructured.Unstructured {
	annotations := pod.GetAnnotations()
	annotations[name] = value
	pod.SetAnnotations(annotations)
	return pod
}

// TestWhatIsResizedStaysAbove: the pod below is told nothing of the mark, and of one that is bound it is no change of its
// annotations.
func TestWhatIsResizedStaysAbove(t *testing.T) {
	s := &Syncer{config: Config{UID: string(theTarget)}}
	plain, sized := s.renderBound(boundOf("a", "Running", "True")), s.renderBound(resized(boundOf("a", "Running", "True"), "2"))
	if diff := cmp.Diff(plain.GetAnnotations(), sized.GetAnnotations()); diff != "" {
		t.Errorf("what is rendered of it (-plain +resized):\n%s", diff)
	}
}

// TestResizePod: the very pod is resized, by its subresource and its UID, and to no more than was asked for; nothing goes down
// that nobody asks for any more.
func TestResizePod(t *testing.T) {
	typed := func(pod *unstructured.Unstructured) *unstructured.Unstructured {
		pod.SetAPIVersion("v1")
		pod.SetKind("Pod")
		return pod
	}
	for name, tc := range map[string]struct {
		reason            string
		seen, asks, below *unstructured.Unstructured // what the watch showed, and what is read
		want              string                     // what goes down
	}{
		"as seen":       {"", resized(shownOf("a", "Running", "True"), "2"), nil, asking(testPod("a", "Running", "True"), "1"), `{"metadata":{"uid":"a"},"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"2"}}}]}}`},
		"resized again": {"what is read holds", resized(shownOf("a", "Running", "True"), "2"), resized(shownOf("a", "Running", "True"), "3"), asking(testPod("a", "Running", "True"), "1"), `{"metadata":{"uid":"a"},"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"3"}}}]}}`},
		"set back":      {"the pod below was not resized yet", resized(shownOf("a", "Running", "True"), "2"), resized(shownOf("a", "Running", "True"), "1"), asking(testPod("a", "Running", "True"), "1"), ""},
		"another pod":   {"its name is another's below", resized(shownOf("a", "Running", "True"), "2"), nil, asking(testPod("b", "Running", "True"), "1"), ""},
		"deleted":       {"it ends", resized(shownOf("a", "Running", "True"), "2"), ending(resized(shownOf("a", "Running", "True"), "2")), asking(testPod("a", "Running", "True"), "1"), ""},
		"shown of another": {"its name is another's here", resized(shownOf("a", "Running", "True"), "2"), func() *unstructured.Unstructured {
			pod := resized(shownOf("a", "Running", "True"), "2")
			pod.SetUID("another")
			return pod
		}(), asking(testPod("a", "Running", "True"), "1"), ""},
	} {
		asks := tc.asks
		if asks == nil {
			asks = tc.seen
		}
		var sent string
		s := newIdle(t, func(w http.ResponseWriter, _ *http.Request) { answer(t, w, http.StatusOK, typed(asks).Object) }, func(w http.ResponseWriter, req *http.Request) {
			if req.Method == http.MethodGet {
				answer(t, w, http.StatusOK, typed(tc.below).Object)
				return
			}
			body, err := io.ReadAll(req.Body)
			if err != nil || sent != "" || req.Method != http.MethodPatch || req.URL.Path != "/api/v1/namespaces/shop-1a/pods/web-abc-1/resize" ||
				req.Header.Get("Content-Type") != "application/strategic-merge-patch+json" || req.URL.Query().Get("fieldManager") != workloadv1alpha1.FieldManager || req.URL.Query().Has("dryRun") {
				t.Errorf("%s: %s %s %v: %v", name, req.Method, req.URL, req.Header, err)
			}
			sent = string(body)
			answer(t, w, http.StatusOK, typed(asking(testPod("a", "Running", "True"), strings.Split(sent, `"cpu":"`)[1][:1])).Object)
		})
		if err := s.addToPod(t.Context(), keyOfPod(tc.seen), tc.seen); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if taken := !s.triedOf("a").taken.IsZero(); taken != (tc.want != "") {
			t.Errorf("%s: it is remembered as taken %v: %s", name, taken, tc.reason)
		}
		if sent != tc.want {
			t.Errorf("%s: %s goes down, want %s: %s", name, sent, tc.want, tc.reason)
		}
	}
}

// TestRefusedResizeIsToldOnce: each try is refused, and who looks at the pod is told when there is news; that it is gone, or
// another, is none. A container that is refused keeps no resize back.
func TestRefusedResizeIsToldOnce(t *testing.T) {
	shown, below := with(resized(shownOf("a", "Running", "True"), "2"), "debug"), asking(testPod("a", "Running", "True"), "1")
	for _, pod := range []*unstructured.Unstructured{shown, below} {
		pod.SetAPIVersion("v1")
		pod.SetKind("Pod")
	}
	taken := asking(testPod("a", "Running", "True"), "2")
	taken.SetAPIVersion("v1")
	taken.SetKind("Pod")
	clk := clocktesting.NewFakeClock(time.Now())
	var told []string
	var resize http.HandlerFunc
	s := newIdle(t, func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet {
			answer(t, w, http.StatusOK, shown.Object)
			return
		}
		var event unstructured.Unstructured
		if err := json.NewDecoder(req.Body).Decode(&event.Object); err != nil {
			t.Error(err)
		}
		if reason, _, _ := unstructured.NestedString(event.Object, "reason"); reason == reasonResizeRefused {
			message, _, _ := unstructured.NestedString(event.Object, "message")
			of, _, _ := unstructured.NestedString(event.Object, "involvedObject", "uid")
			told = append(told, event.GetName()+" of "+of+": "+message)
		}
		answer(t, w, http.StatusOK, event.Object)
	}, func(w http.ResponseWriter, req *http.Request) {
		switch {
		case req.Method == http.MethodGet:
			clk.Step(undoneSoon) // whatever was taken before, it was long ago
			answer(t, w, http.StatusOK, below.Object)
		case strings.HasSuffix(req.URL.Path, "/ephemeralcontainers"):
			answer(t, w, http.StatusForbidden, statusObject(apierrors.NewForbidden(podsGVR.GroupResource(), "web-abc-1", errors.New("no tools"))))
		default:
			resize(w, req)
		}
	})
	s.config.Clock = clk
	says := func(err *apierrors.StatusError) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { answer(t, w, int(err.Status().Code), statusObject(err)) }
	}
	noRoom := apierrors.NewForbidden(podsGVR.GroupResource(), "web-abc-1", errors.New("no room"))
	for _, step := range []struct {
		reason string
		resize http.HandlerFunc
		want   int    // Events that were written until then
		words  string // of the last
		again  bool   // it is tried again
	}{
		{"it is news", says(noRoom), 1, "no room", true},
		{"it is no news", says(noRoom), 1, "no room", true},
		{"it has other words", says(apierrors.NewForbidden(podsGVR.GroupResource(), "web-abc-1", errors.New(`cannot patch resource "pods/resize"`))), 2, "cannot patch", true},
		{"an API server of before does not know of it", func(w http.ResponseWriter, _ *http.Request) { http.NotFound(w, nil) }, 3, "from v1.33 on", true},
		{"the pod is gone", says(apierrors.NewNotFound(podsGVR.GroupResource(), "web-abc-1")), 3, "from v1.33 on", false},
		{"another one has its name", says(apierrors.NewConflict(podsGVR.GroupResource(), "web-abc-1", errors.New("uid"))), 3, "from v1.33 on", true},
		{"nothing is known where nobody answers", says(apierrors.NewInternalError(errors.New("down"))), 3, "from v1.33 on", true},
		{"it is taken", func(w http.ResponseWriter, _ *http.Request) { answer(t, w, http.StatusOK, taken.Object) }, 3, "from v1.33 on", false},
		{"it is refused anew after that", func(w http.ResponseWriter, _ *http.Request) { http.NotFound(w, nil) }, 4, "from v1.33 on", true},
	} {
		resize = step.resize
		err := s.addToPod(t.Context(), keyOfPod(shown), shown)
		if err == nil || !strings.Contains(err.Error(), "no tools") || strings.Contains(err.Error(), "resize pods") != step.again {
			t.Errorf("%s: %v, want that the container is refused, and the resize tried again %v", step.reason, err, step.again)
		}
		if len(told) != step.want || !strings.HasPrefix(told[len(told)-1], "resize-a of a: ") || !strings.Contains(told[len(told)-1], step.words) {
			t.Fatalf("%s: told %q, want %d, the last with %q", step.reason, told, step.want, step.words)
		}
	}
}

// TestTried: what is undone soon is set again ever less often, and what lasted is as if it was never undone.
func TestTried(t *testing.T) {
	now := time.Now()
	after := func(undone int) time.Duration {
		return tried{resized: "1", undone: undone - 1}.again(now).wait("1", now)
	}
	for undone, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 10: 512 * time.Second, 11: undoneSoon, 1000: undoneSoon} {
		if got := after(undone); got != want {
			t.Errorf("after %d times it waits %s, want %s", undone, got, want)
		}
	}
	for name, tc := range map[string]struct {
		reason string
		before tried
		undone int
		wait   time.Duration
	}{
		"the first":       {"nothing is known", tried{}, 0, 0},
		"refused before":  {"it was never taken", tried{resized: "1"}, 0, 0},
		"undone":          {"soon after it was taken", tried{resized: "1", taken: now.Add(-undoneSoon + 1)}, 1, time.Second},
		"undone again":    {"", tried{resized: "1", taken: now.Add(-time.Second), undone: 2}, 3, 4 * time.Second},
		"looked at again": {"it is known to be undone", tried{resized: "1", undone: 3, next: now.Add(time.Second)}, 3, time.Second},
		"it lasted":       {"whoever did that does it once", tried{resized: "1", taken: now.Add(-undoneSoon), undone: 7}, 0, 0},
		"resized anew":    {"who asks for something else waits for nothing", tried{resized: "2", undone: 7, next: now.Add(time.Minute)}, 0, 0},
		"turned back":     {"the clock was", tried{resized: "1", undone: 7, next: now.Add(time.Hour)}, 7, undoneSoon},
	} {
		if got := tc.before.lacking("1", now); got.undone != tc.undone || got.wait("1", now) != tc.wait || !got.taken.IsZero() {
			t.Errorf("%s: %+v waits %s, want %d times and %s: %s", name, got, got.wait("1", now), tc.undone, tc.wait, tc.reason)
		}
	}
}

// oneBelow is a physical cluster with one pod, for which a workspace asks, in the mirror.
type oneBelow struct {
	*Syncer
	clock   *clocktesting.FakeClock
	shown   *unstructured.Unstructured
	pod     *unstructured.Unstructured        // as it is below
	become  func(asked string) string         // which CPU the pod has when a resize asks for some
	refused map[string]*apierrors.StatusError // what is refused, by the subresource
	gets    int
	patches []string // subresources that were patched
	events  []string // reasons that were told
	updates int      // of its status
}

func newOneBelow(t *testing.T, shown, pod *unstructured.Unstructured) *oneBelow {
	b := &oneBelow{clock: clocktesting.NewFakeClock(time.Now()), shown: shown, pod: pod, become: func(asked string) string { return asked }, refused: map[string]*apierrors.StatusError{}}
	for _, pod := range []*unstructured.Unstructured{b.shown, b.pod} {
		pod.SetAPIVersion("v1")
		pod.SetKind("Pod")
		pod.SetResourceVersion("7")
	}
	b.Syncer = newIdle(t, func(w http.ResponseWriter, req *http.Request) {
		switch {
		case strings.Contains(req.URL.Path, "/events/"):
			var event unstructured.Unstructured
			if err := json.NewDecoder(req.Body).Decode(&event.Object); err != nil {
				t.Error(err)
			}
			reason, _, _ := unstructured.NestedString(event.Object, "reason")
			b.events = append(b.events, reason)
			answer(t, w, http.StatusOK, event.Object)
			return
		case req.Method == http.MethodPut:
			b.updates++ // of which nothing is kept
			if no := b.refused["status"]; no != nil {
				answer(t, w, int(no.Status().Code), statusObject(no))
				return
			}
		default:
			b.gets++
		}
		answer(t, w, http.StatusOK, b.shown.Object)
	}, func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet {
			answer(t, w, http.StatusOK, b.pod.Object)
			return
		}
		_, subresource, _ := strings.Cut(req.URL.Path, "/pods/web-abc-1")
		b.patches = append(b.patches, subresource)
		if no := b.refused[subresource]; no != nil {
			answer(t, w, int(no.Status().Code), statusObject(no))
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Error(err)
		}
		if _, cpu, ok := strings.Cut(string(body), `"cpu":"`); ok && subresource == "/resize" {
			asking(b.pod, b.become(strings.Split(cpu, `"`)[0]))
		}
		answer(t, w, http.StatusOK, b.pod.Object)
	})
	b.config.Clock = b.clock
	return b
}

// pass reconciles the pod, and returns which subresources it has patched for that.
func (b *oneBelow) pass(t *testing.T) string {
	t.Helper()
	before := len(b.patches)
	if err := b.change(t.Context(), keyOfPod(b.shown), b.shown, b.pod); err != nil {
		t.Logf("a pass: %v", err)
	}
	return strings.Join(b.patches[before:], " ")
}

// TestUndoneResize: somebody in the physical cluster sizes the same pod. What the workspace says is set again ever less often, at
// last each ten minutes, and one Event tells of it; who then asks for something else waits for nothing.
func TestUndoneResize(t *testing.T) {
	b := newOneBelow(t, resized(shownOf("a", "Running", "True"), "1"), asking(testPod("a", "Running", "True"), "2"))
	began, patched := b.clock.Now(), 0
	for b.clock.Since(began) < time.Hour {
		if b.pass(t) == "/resize" {
			patched++
		}
		asking(b.pod, "2") // an autoscaler's
		b.clock.Step(100 * time.Millisecond)
	}
	if patched < 10 || patched > 20 {
		t.Errorf("within an hour it is set %d times, want some 15", patched)
	}
	if diff := cmp.Diff([]string{reasonResizeUndone}, b.events); diff != "" {
		t.Errorf("what is told (-want +got):\n%s", diff)
	}
	gets := b.gets
	for range 100 {
		b.pass(t)
	}
	if b.gets != gets {
		t.Errorf("while nothing is due, 100 events of the pod cost %d reads", b.gets-gets)
	}
	resized(b.shown, "3")
	if got := b.pass(t); got != "/resize" {
		t.Errorf("resized anew: %q is patched, want /resize at once", got)
	}
	b.clock.Step(undoneSoon)
	asking(b.pod, "2")
	if got := b.pass(t); got != "/resize" || len(b.events) != 1 {
		t.Errorf("undone after it has lasted: %q is patched, want /resize at once; told %q", got, b.events)
	}
	asking(b.pod, "2")
	if got := b.pass(t); got != "" || len(b.events) != 2 {
		t.Errorf("undone soon after that: %q is patched, want nothing yet; told %q, want it told anew", got, b.events)
	}
	with(b.shown, "debug")
	if got := b.pass(t); got != "/ephemeralcontainers" {
		t.Errorf("a container is added meanwhile: %q is patched, want it alone", got)
	}
}

// TestAlteredResize: what the physical cluster takes and makes something else of, as a webhook there may, is no success: an Event
// tells, and it is tried again ever less often, whatever else happens to the pod.
func TestAlteredResize(t *testing.T) {
	b := newOneBelow(t, resized(shownOf("a", "Running", "True"), "150m"), asking(testPod("a", "Running", "True"), "100m"))
	b.become = func(string) string { return "200m" }
	began, patched := b.clock.Now(), 0
	for b.clock.Since(began) < time.Hour {
		if b.pass(t) == "/resize" {
			patched++
		}
		b.clock.Step(100 * time.Millisecond)
	}
	if patched < 10 || patched > 20 {
		t.Errorf("within an hour it is tried %d times, want some 15", patched)
	}
	if diff := cmp.Diff([]string{reasonResizeRefused}, b.events); diff != "" {
		t.Errorf("what is told (-want +got):\n%s", diff)
	}
	b.become = func(asked string) string { return asked }
	b.clock.Step(undoneSoon)
	if got := b.pass(t); got != "/resize" || lacksSize(b.shown, b.pod) {
		t.Errorf("nobody alters it any more: %q is patched, and the pod is %v", got, b.pod.Object["spec"])
	}
}

// TestRefusedLabelsKeepNothingBack: a policy below refuses other labels of a pod; its resize and its ephemeral containers go
// down, and an Event tells of the labels.
func TestRefusedLabelsKeepNothingBack(t *testing.T) {
	b := newOneBelow(t, with(resized(boundOf("a", "Running", "True"), "2"), "debug"), asking(madeOf("above", "a", "Running", "True"), "1"))
	b.config.UID = string(theTarget)
	if deed := b.deedFor(b.shown, b.pod); deed != relabelIt {
		t.Fatalf("%q, want %q", deed, relabelIt)
	}
	b.refused[""] = apierrors.NewForbidden(podsGVR.GroupResource(), "web-abc-1", errors.New("such labels"))
	if got := b.pass(t); got != " /ephemeralcontainers /resize" {
		t.Errorf("%q are patched, want the labels and, although they are refused, the rest", got)
	}
	if diff := cmp.Diff([]string{reasonChangeRefused}, b.events); diff != "" {
		t.Errorf("what is told (-want +got):\n%s", diff)
	}
}

// TestConflictIsTriedAgain: a conflict may be a webhook's or a quota's; the next try sees whether it is that another pod has the
// name.
func TestConflictIsTriedAgain(t *testing.T) {
	b := newOneBelow(t, with(resized(shownOf("a", "Running", "True"), "2"), "debug"), asking(testPod("a", "Running", "True"), "1"))
	b.refused["/resize"] = apierrors.NewConflict(podsGVR.GroupResource(), "web-abc-1", errors.New("try again"))
	b.refused["/ephemeralcontainers"] = b.refused["/resize"]
	if err := b.addToPod(t.Context(), keyOfPod(b.shown), b.shown); err == nil || !strings.Contains(err.Error(), "resize pods") || !strings.Contains(err.Error(), "add the ephemeral container") || len(b.events) > 0 {
		t.Errorf("%v, want both tried again; told %q", err, b.events)
	}
	b.pod.SetUID("b")
	if err := b.addToPod(t.Context(), keyOfPod(b.shown), b.shown); err != nil || len(b.patches) != 2 {
		t.Errorf("another pod has its name: %v, patched %q", err, b.patches)
	}
}

// TestResizeGoesDownWhateverIsTold: a status of which the server does not keep all, as of a later Kubernetes below, is never
// told to its end; what is asked for of the pod goes down all the same.
func TestResizeGoesDownWhateverIsTold(t *testing.T) {
	b := newOneBelow(t, resized(shownOf("a", "Running", "True"), "2"), asking(testPod("a", "Running", "True"), "1"))
	b.pod.Object["status"].(map[string]any)["ofALaterVersion"] = "x"
	deed := b.deedFor(b.shown, b.pod)
	if err := b.show(t.Context(), keyOfPod(b.shown), deed, b.shown, b.pod); err != nil || deed != tellStatus || b.updates != 1 {
		t.Errorf("%q: %v, and its status is told %d times", deed, err, b.updates)
	}
	if diff := cmp.Diff([]string{"/resize"}, b.patches); diff != "" {
		t.Errorf("what is patched (-want +got):\n%s", diff)
	}
}

// TestRefusedResizeIsNotUnshown: what the physical cluster says of a resize is no reason why the pod is not shown, and may name others; what
// the hub says of its status is one, and keeps no resize back.
func TestRefusedResizeIsNotUnshown(t *testing.T) {
	refuses := func(why string) *apierrors.StatusError {
		return apierrors.NewForbidden(podsGVR.GroupResource(), "web-abc-1", errors.New(why))
	}
	for name, tc := range map[string]struct {
		below, hub *apierrors.StatusError
		unshown    string
	}{
		"by the physical cluster": {below: refuses("acme-1f3c/web has it")},
		"by the hub":              {hub: refuses("no room"), unshown: "no room"},
		"by both":                 {below: refuses("acme-1f3c/web has it"), hub: refuses("no room"), unshown: "no room"},
	} {
		b := newOneBelow(t, resized(shownOf("a", "Running", "True"), "2"), asking(testPod("a", "Running", "True"), "1"))
		b.pod.Object["status"].(map[string]any)["ofALaterVersion"] = "x"
		if b.refused = map[string]*apierrors.StatusError{}; tc.below != nil {
			b.refused["/resize"] = tc.below
		}
		if tc.hub != nil {
			b.refused["status"] = tc.hub
		}
		err := b.show(t.Context(), keyOfPod(b.shown), tellStatus, b.shown, b.pod)
		if err == nil || len(b.patches) != 1 {
			t.Errorf("%s: error %v, and %q is patched, want the resize", name, err, b.patches)
		}
		switch why := whyUnshown(err); {
		case tc.unshown == "" && why != nil:
			t.Errorf("%s: the pod is not shown: %s", name, why.message)
		case tc.unshown != "" && (why == nil || !strings.Contains(why.message, tc.unshown) || strings.Contains(why.message, "acme")):
			t.Errorf("%s: it is told %+v, want %q alone", name, why, tc.unshown)
		}
	}
}

// TestLastingAnswerIsTold: a fault of an API server there passes, or does not, as that of a webhook that is down.
func TestLastingAnswerIsTold(t *testing.T) {
	b := newOneBelow(t, resized(shownOf("a", "Running", "True"), "2"), asking(testPod("a", "Running", "True"), "1"))
	for name, answer := range map[string]*apierrors.StatusError{
		"its webhook is down": apierrors.NewInternalError(errors.New("failed calling webhook")),
		"a webhook conflicts": apierrors.NewConflict(podsGVR.GroupResource(), "web-abc-1", errors.New("quota")),
	} {
		b.refused["/resize"], b.events = answer, nil
		b.backoff.Forget(keyOfPod(b.shown))
		for i := range answerTries + 1 {
			b.pass(t)
			if told := len(b.events) > 0; told != (i+1 >= answerTries) || len(b.events) > 1 {
				t.Errorf("%s: after try %d there are the Events %q", name, i+1, b.events)
			}
			b.backoff.When(keyOfPod(b.shown))
		}
	}
}

func statusObject(err *apierrors.StatusError) metav1.Status {
	s := err.Status()
	s.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	return s
}

// TestStatusOf: what is told of a pod is its status below, and that it was observed, of the row, when all that was changed of
// that is below.
func TestStatusOf(t *testing.T) {
	at := func(pod *unstructured.Unstructured, generation, observed, ofReady int64) *unstructured.Unstructured {
		pod.SetGeneration(generation)
		status := pod.Object["status"].(map[string]any)
		if observed > 0 {
			status["observedGeneration"] = observed
		}
		if ofReady > 0 {
			status["conditions"].([]any)[0].(map[string]any)["observedGeneration"] = ofReady
		}
		return pod
	}
	shown := func() *unstructured.Unstructured { return shownOf("a", "Running", "True") }
	below := func() *unstructured.Unstructured { return asking(testPod("a", "Running", "True"), "1") }
	for name, tc := range map[string]struct {
		reason            string
		shown, below      *unstructured.Unstructured
		observed, ofReady int64
		tellsIt           bool // is more than the row has
	}{
		"as always":         {"both were never changed", at(shown(), 1, 0, 0), at(below(), 1, 1, 1), 1, 1, true},
		"of before":         {"an API server below that does not count", at(shown(), 1, 0, 0), at(below(), 0, 0, 0), 0, 0, false},
		"changed below":     {"by somebody there: it is nothing of the row", at(shown(), 1, 1, 1), at(below(), 3, 3, 2), 1, 1, false},
		"just shown":        {"and was changed below before", at(shown(), 1, 0, 0), at(below(), 3, 3, 3), 1, 1, true},
		"not observed":      {"its kubelet is behind", at(shown(), 1, 1, 1), at(below(), 3, 2, 2), 1, 1, false},
		"resized":           {"and not below yet", at(resized(shown(), "2"), 2, 1, 1), at(below(), 1, 1, 1), 1, 1, false},
		"resized, first":    {"nothing was ever told", at(resized(shown(), "2"), 2, 0, 0), at(below(), 7, 7, 7), 0, 0, false},
		"resized below":     {"its kubelet does not know yet", at(resized(shown(), "1"), 2, 1, 1), at(below(), 2, 1, 1), 1, 1, false},
		"resized, observed": {"", at(resized(shown(), "1"), 2, 1, 1), at(below(), 2, 2, 2), 2, 2, true},
		"twice in one":      {"two changes went down as one", at(resized(shown(), "1"), 3, 1, 1), at(below(), 2, 2, 2), 3, 3, true},
		"observed earlier":  {"somebody there changed it since, and its kubelet is behind", at(resized(shown(), "1"), 3, 3, 3), at(below(), 3, 2, 2), 3, 3, false},
		"a condition":       {"is of before", at(resized(shown(), "1"), 3, 1, 1), at(below(), 2, 2, 1), 3, 1, true},
		"added":             {"and refused below", at(with(shown(), "d"), 2, 1, 1), at(below(), 1, 1, 1), 1, 1, false},
	} {
		before := tc.below.DeepCopy()
		told := &unstructured.Unstructured{Object: map[string]any{"status": statusOf(tc.shown, tc.below)}}
		observed, _, _ := unstructured.NestedInt64(told.Object, "status", "observedGeneration")
		conditions, _, _ := unstructured.NestedSlice(told.Object, "status", "conditions")
		ofReady, _, _ := unstructured.NestedInt64(conditions[0].(map[string]any), "observedGeneration")
		if observed != tc.observed || ofReady != tc.ofReady {
			t.Errorf("%s: %d, and %d of its condition, are observed, want %d and %d: %s", name, observed, ofReady, tc.observed, tc.ofReady, tc.reason)
		}
		if phase, _, _ := unstructured.NestedString(told.Object, "status", "phase"); phase != "Running" || !isReady(told) {
			t.Errorf("%s: it is %s, and Ready %v", name, phase, isReady(told))
		}
		if diff := cmp.Diff(before, tc.below); diff != "" {
			t.Errorf("%s: what is below is changed:\n%s", name, diff)
		}
		if deed := toShow(tc.shown, tc.below); (deed == tellStatus) != tc.tellsIt {
			t.Errorf("%s: %q, want that it is told %v: %s", name, deed, tc.tellsIt, tc.reason)
		}
	}
}

// TestMayResize: the API server is asked for the pod that was found, whatever the path says of it, to change nothing; nothing of
// the pod comes back.
func TestMayResize(t *testing.T) {
	const patch = `{"metadata":{"uid":"uid-of-web-1"},"spec":{}}`
	for name, over := range ways {
		t.Run(name, func(t *testing.T) {
			var got string
			below := newAPIBelow(func(w http.ResponseWriter, req *http.Request) {
				body, _ := io.ReadAll(req.Body)
				got = string(body)
				_, _ = io.WriteString(w, `{"kind":"Pod","spec":"a secret"}`)
			})
			client := over(t, below)
			for _, path := range []string{"/resize/prod/web-1", "/resize/other/..%2F..%2Fsecrets?dryRun=&fieldManager=me"} {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, "http://east"+path, strings.NewReader(patch))
				if err != nil {
					t.Fatal(err)
				}
				for _, header := range []string{"Authorization", "Impersonate-User", "Cookie", "Content-Type"} {
					req.Header.Set(header, "system:masters")
				}
				res, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(res.Body)
				if _ = res.Body.Close(); err != nil || res.StatusCode != http.StatusOK || len(text) > 0 {
					t.Errorf("%s: %s %q (%v)", path, res.Status, text, err)
				}
				if len(below.asked) != 1 {
					t.Fatalf("%s: %d went down", path, len(below.asked))
				}
				asked := <-below.asked
				if asked.Method != http.MethodPatch || asked.URL.RequestURI() != "/api/v1/namespaces/prod-x/pods/web-1/resize?dryRun=All&fieldManager="+workloadv1alpha1.FieldManager || got != patch {
					t.Errorf("%s: asks %s %s %s", path, asked.Method, asked.URL.RequestURI(), got)
				}
				if asked.Header.Get("Authorization") != "Bearer syncer" || asked.Header.Get("Content-Type") != "application/strategic-merge-patch+json" || asked.Header.Get("Impersonate-User")+asked.Header.Get("Cookie") != "" {
					t.Errorf("%s: goes down with %v", path, asked.Header)
				}
			}
			res, err := client.Post("http://east/resize/prod/web-1", "", strings.NewReader(patch))
			if err != nil {
				t.Fatal(err)
			}
			if _ = res.Body.Close(); res.StatusCode != http.StatusMethodNotAllowed || len(below.asked) > 0 {
				t.Errorf("POST: %s, and %d went down", res.Status, len(below.asked))
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, "http://east/resize/prod/web-1", strings.NewReader(strings.Repeat("a", mostOfResize+1)))
			if err != nil {
				t.Fatal(err)
			}
			if res, err = client.Do(req); err != nil {
				t.Fatal(err)
			}
			if _ = res.Body.Close(); res.StatusCode != http.StatusRequestEntityTooLarge || len(below.asked) > 0 {
				t.Errorf("one that is too long: %s, and %d went down", res.Status, len(below.asked))
			}
		})
	}
}

// TestOfNobodyElse: what Kubernetes itself says to a resize is of the pod, its Node and its namespace, and is passed on; what
// somebody else says may be of others.
func TestOfNobodyElse(t *testing.T) {
	for _, said := range []string{
		"node didn't have enough allocatable resources: cpu, requested: 40000, allocatable: 32000; memory, requested: 9, allocatable: 8",
		`pod resize is only supported on linux nodes, node "n-1" is "windows"`,
		"exceeded quota: compute, requested: requests.cpu=1,requests.memory=1Gi, used: requests.cpu=500m,requests.memory=0, limited: requests.cpu=1,requests.memory=1Gi",
		"maximum cpu usage per Container is 2, but limit is 3",
		"minimum memory usage per Pod is 1Gi.  No request is specified",
		"[maximum cpu usage per Container is 2, but limit is 3, minimum memory usage per Pod is 1Gi, but request is 1Mi]",
		"cpu max limit to request ratio per Container is 2, but provided ratio is 4.000000",
	} {
		words := fmt.Sprintf("pods %q is forbidden: %s", "web-1", said)
		if got := ofNobodyElse("web-1", words); got != words {
			t.Errorf("%s: %q is passed on", said, got)
		}
		for _, not := range []string{"pods \"other\" is forbidden: " + said, words + ": acme has it", "x" + words, "pods \"web-1\" is forbidden: acme: " + said} {
			if got := ofNobodyElse("web-1", not); strings.Contains(got, said) || strings.Contains(got, "acme") {
				t.Errorf("%s: %q is passed on", not, got)
			}
		}
	}
	for _, said := range []string{"", "x", `Pod "other" is invalid: x`, `pods "web-1" is forbidden: User "u" cannot get resource "pods"`, `admission webhook "A B" denied the request: x`} {
		if got := ofNobodyElse("web-1", said); got != "" && !strings.HasPrefix(got, "it refuses it. ") {
			t.Errorf("%s: %q is passed on", said, got)
		}
	}
}

// TestMayResizeRefusals: what the physical cluster refuses is said with its name, and in its words as far as these name nobody
// else.
func TestMayResizeRefusals(t *testing.T) {
	status := func(err *apierrors.StatusError) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(int(err.Status().Code))
			_ = json.NewEncoder(w).Encode(statusObject(err))
		}
	}
	pods := schema.GroupResource{Resource: "pods"}
	for reason, tc := range map[string]struct {
		answer http.HandlerFunc
		code   int
		want   string
	}{
		"it is refused":                     {status(apierrors.NewForbidden(pods, "web-1", errors.New("node didn't have enough allocatable resources: cpu, requested: 40000, allocatable: 32000"))), http.StatusForbidden, `physical cluster "east": pods "web-1" is forbidden: node didn't have enough allocatable resources: cpu, requested: 40000`},
		"it is invalid":                     {status(apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "web-1", field.ErrorList{field.Forbidden(field.NewPath("spec"), "no change")})), http.StatusUnprocessableEntity, `physical cluster "east": Pod "web-1" is invalid: spec: Forbidden: no change`},
		"by words of nobody known":          {status(apierrors.NewForbidden(pods, "web-1", errors.New("no room, acme-prod-1f3c/secret-0 has it"))), http.StatusForbidden, `physical cluster "east": it refuses it. The words are for administrators there`},
		"by a webhook":                      {status(webhookerrors.ToStatusErr("size.example.com", &metav1.Status{Code: http.StatusForbidden, Message: "no room, acme-prod-1f3c/secret-0 has it"})), http.StatusForbidden, `its admission webhook "size.example.com" refuses it`},
		"by a webhook as if invalid":        {status(webhookerrors.ToStatusErr("size.example.com", &metav1.Status{Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: `Pod "web-1" is invalid: acme-secret`})), http.StatusUnprocessableEntity, `its admission webhook "size.example.com" refuses it`},
		"by a policy":                       {status(apierrors.NewForbidden(pods, "web-1", errors.New("ValidatingAdmissionPolicy 'size' with binding 'size' denied request: acme-secret has it"))), http.StatusForbidden, `its ValidatingAdmissionPolicy "size" refuses it`},
		"a webhook is asked for nothing":    {status(webhookerrors.NewDryRunUnsupportedErr("size.example.com")), http.StatusBadRequest, `admission webhook "size.example.com" does not support dry run`},
		"a right is missing":                {status(apierrors.NewForbidden(pods, "web-1", errors.New(`User "u" cannot patch resource "pods/resize" in API group "" in the namespace "prod-x": a secret`))), http.StatusForbidden, "its syncer needs the right to patch pods/resize there"},
		"it does not know of resizes":       {http.NotFound, http.StatusNotImplemented, `physical cluster "east": it resizes no pods that run: Kubernetes does from v1.33 on`},
		"the pod is gone":                   {status(apierrors.NewNotFound(pods, "web-1")), http.StatusNotFound, "answers 404"},
		"another has its name":              {status(apierrors.NewConflict(pods, "web-1", errors.New("uid"))), http.StatusConflict, "answers 409"},
		"the credential is not taken":       {status(apierrors.NewUnauthorized("who are you")), http.StatusServiceUnavailable, "answers 401"},
		"no API server":                     {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "a secret", http.StatusForbidden) }, http.StatusForbidden, "answers 403"},
		"a redirect":                        {func(w http.ResponseWriter, req *http.Request) { http.Redirect(w, req, "/secret", http.StatusFound) }, http.StatusServiceUnavailable, "answers 302"},
		"it hangs up":                       {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, http.StatusServiceUnavailable, "does not answer"},
		"it answers with something of pods": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }, http.StatusServiceUnavailable, "answers 201"},
	} {
		for name, over := range ways {
			t.Run(reason+", "+name, func(t *testing.T) {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, "http://east/resize/prod/web-1", strings.NewReader("{}"))
				if err != nil {
					t.Fatal(err)
				}
				res, err := over(t, newAPIBelow(tc.answer)).Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close() //nolint:errcheck // only read
				text, err := io.ReadAll(res.Body)
				said := string(text)
				if err != nil || res.StatusCode != tc.code || !strings.Contains(said, tc.want) || strings.Count(said, `"east"`) != 1 || strings.Contains(said, "secret") || strings.Contains(said, "acme") || strings.Contains(said, "127.0.0.1") {
					t.Errorf("answered %s: %s (%v), want %d and %q", res.Status, said, err, tc.code, tc.want)
				}
			})
		}
	}
}

// TestMayResizeOfAnEarlierSyncer: one that does not know the path is told from a physical cluster that resizes no pods.
func TestMayResizeOfAnEarlierSyncer(t *testing.T) {
	earlier := httptest.NewServer(http.NewServeMux())
	t.Cleanup(earlier.Close)
	at, err := url.Parse(earlier.URL)
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{cluster: "east", patience: time.Minute, noResize: earlierSyncerNoResize, transport: http.DefaultTransport, at: func(pod shownPod, subresource, container string, asked url.Values) *url.URL {
		path := *atKubelet(pod, subresource, container, asked)
		path.Host = at.Host
		return &path
	}}
	answer := httptest.NewRecorder()
	r.handler(podOfShop).ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPatch, "/resize/prod/web-1", strings.NewReader("{}")))
	if said := answer.Body.String(); answer.Code != http.StatusNotImplemented || !strings.Contains(said, `physical cluster "east": its syncer is of an earlier version`) {
		t.Errorf("%d %s", answer.Code, said)
	}
}
