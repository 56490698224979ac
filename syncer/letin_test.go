package syncer

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	testingclock "k8s.io/utils/clock/testing"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

func TestLetInTo(t *testing.T) {
	duplicate := &problem{ReasonDuplicate, "x"}
	for reason, tc := range map[string]struct {
		stored, reports string // clusterUID of the SyncTarget and of its twin
		was             bool   // a duplicate, by its status
		is              *problem
		want            string
	}{
		"nobody knows which cluster it is":                           {},
		"nobody can have been compared with it":                      {"", "x", false, nil, ""},
		"it was compared":                                            {"x", "x", false, nil, "x"},
		"its twin was made anew":                                     {"x", "", false, nil, "x"},
		"it is another cluster now":                                  {"x", "y", false, nil, ""},
		"another SyncTarget is that cluster":                         {"x", "x", true, duplicate, ""},
		"it was one that another is, before":                         {"x", "x", false, duplicate, ""},
		"others are compared with it once it is no duplicate, too":   {"x", "x", true, nil, ""},
		"another is the cluster that it is now, and it is not known": {"", "x", false, duplicate, ""},
	} {
		target, twin := syncTarget("a", "root", 0), &workloadv1alpha1.SyncTarget{}
		target.Status.ClusterUID, twin.Status.ClusterUID = tc.stored, tc.reports
		if tc.was {
			target.Status.Conditions = []metav1.Condition{{Type: workloadv1alpha1.SyncTargetReady, Status: metav1.ConditionFalse, Reason: ReasonDuplicate}}
		}
		if got := letInTo(target, twin, tc.is); got != tc.want {
			t.Errorf("%s: let in to %q, want %q", reason, got, tc.want)
		}
	}
}

// letInWorld is an idle Syncer between two heartbeats.
type letInWorld struct {
	*testing.T
	s             *Syncer
	hub, physical *beats
	raised        bool
	leaf          *unstructured.Unstructured
}

func newLetInWorld(t *testing.T) *letInWorld {
	w := &letInWorld{T: t, hub: &beats{t: t, shown: record{"h", "100", 8}, written: "7"}, physical: &beats{t: t, shown: record{"p", "50", 7}}, leaf: configMap("3", "a")}
	w.s = newIdle(t, func(rw http.ResponseWriter, req *http.Request) {
		if strings.HasSuffix(req.URL.Path, "/configmaps") {
			answer(t, rw, http.StatusOK, map[string]any{"apiVersion": "v1", "kind": "ConfigMapList", "metadata": map[string]any{}, "items": []any{w.leaf.Object}})
			return
		}
		w.hub.ServeHTTP(rw, req)
	}, func(rw http.ResponseWriter, req *http.Request) {
		w.raised = w.raised || req.Method != http.MethodGet
		w.physical.ServeHTTP(rw, req)
	})
	return w
}

// see has the Syncer see a twin, nil for none.
func (w *letInWorld) see(twin *unstructured.Unstructured) {
	w.Helper()
	old := get(w.s.twin, key{resource: syncTargetsGVR, name: "east"})
	var objects []any
	if twin != nil {
		objects = append(objects, twin)
	}
	if err := w.s.twin.Replace(objects, ""); err != nil {
		w.Fatal(err)
	}
	w.s.twin.handle(old, twin)
}

// beat has it beat once, and says whether it raised its heartbeat there; what it then may write has to agree.
func (w *letInWorld) beat() bool {
	w.Helper()
	w.raised = false
	if err := w.s.beat(w.Context()); err != nil {
		w.Fatal(err)
	}
	w.goOn()
	if may, err := w.s.mayWrite(w.Context(), key{configMapsGVR, "shop-1", "settings"}, w.leaf); err != nil || may != w.raised {
		w.Errorf("it may write leaves: %v (%v), and its heartbeat is raised: %v", may, err, w.raised)
	}
	return w.raised
}

// goOn has both sides show what they stored.
func (w *letInWorld) goOn() {
	for _, side := range []*beats{w.hub, w.physical} {
		if side.stored == nil {
			continue
		}
		counter, err := count(side.stored, workloadv1alpha1.HeartbeatCounterAnnotation)
		if err != nil {
			w.Fatal(err)
		}
		side.shown.counter, side.shown.version, side.written = counter, side.stored.ResourceVersion, side.stored.Annotations[workloadv1alpha1.HeartbeatWrittenAnnotation]
	}
}

// TestOnlyWhoIsLetInWrites: a Syncer raises no heartbeat in a physical cluster to which its SyncTarget was not let in, nor
// writes anything else there.
func TestOnlyWhoIsLetInWrites(t *testing.T) {
	older := twinOf("")
	older.SetAnnotations(nil)
	confirmed := func(clusterUID string) *unstructured.Unstructured {
		twin := twinOf(clusterUID)
		twin.SetAnnotations(map[string]string{workloadv1alpha1.LetInAnnotation: clusterUID, workloadv1alpha1.ConfirmAnnotation: confirmRestored})
		twin.Object["status"] = map[string]any{"conditions": []any{
			map[string]any{"type": workloadv1alpha1.SyncTargetObserveOnly, "status": "True", "reason": ReasonPhysicalRestored},
		}}
		return twin
	}
	for reason, tc := range map[string]struct {
		twin    *unstructured.Unstructured
		written string // what the hub remembers of the physical cluster's heartbeat, which is 7
		want    bool
	}{
		"let in":                          {twinOf("cluster-uid"), "7", true},
		"not let in":                      {twinOf(""), "7", false},
		"let in to another":               {twinOf("another"), "7", false},
		"no twin":                         {nil, "7", false},
		"an older server":                 {older, "7", true},
		"confirmed, let in to another":    {confirmed("another"), "8", false},
		"confirmed, and let in":           {confirmed("cluster-uid"), "8", true},
		"restored, not confirmed, let in": {twinOf("cluster-uid"), "8", false},
	} {
		t.Run(reason, func(t *testing.T) {
			w := newLetInWorld(t)
			w.hub.written, w.hub.asked = tc.written, "7"
			w.see(tc.twin)
			for range 3 {
				if got := w.beat(); got != tc.want {
					t.Errorf("it writes: %v, want %v", got, tc.want)
				}
			}
		})
	}
}

// TestLetInAndOutAgain: what a Syncer may do changes with its twin, without a restart, and no write goes down between the news
// and the next heartbeat.
func TestLetInAndOutAgain(t *testing.T) {
	w := newLetInWorld(t)
	ended, end := context.WithCancel(t.Context())
	end()
	for _, uid := range []string{"", "cluster-uid", "another", "cluster-uid", ""} {
		w.see(twinOf(uid))
		if v, open := w.s.gate.pass(ended); open {
			t.Errorf("let in to %q, not compared yet: the gate is open: %v", uid, v)
		}
		if got, want := w.beat(), uid == "cluster-uid"; got != want {
			t.Errorf("let in to %q, it writes: %v, want %v", uid, got, want)
		}
	}
}

// TestNotLetInIsLogged: once, and not of the first heartbeat, which comes before the twin was read.
func TestNotLetInIsLogged(t *testing.T) {
	w := newLetInWorld(t)
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	for i, step := range []struct {
		twin   *unstructured.Unstructured
		logged int
	}{{nil, 0}, {nil, 0}, {twinOf(""), 1}, {twinOf(""), 1}, {nil, 1}, {twinOf("cluster-uid"), 1}, {twinOf("another"), 2}} {
		w.see(step.twin)
		if err := w.s.beat(klog.NewContext(t.Context(), logger)); err != nil {
			t.Fatal(err)
		}
		w.goOn()
		log := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
		if n := strings.Count(log, "Not let in"); n != step.logged || strings.Contains(log, "restored") {
			t.Errorf("step %d: logged %d times, want %d:\n%s", i, n, step.logged, log)
		}
	}
}

// TestAnotherEachTime: a physical cluster that says it is another one with each heartbeat is a failure, and what it was is kept, so
// that nothing new is compared or let in. One that is replaced is taken for what it is at once.
func TestAnotherEachTime(t *testing.T) {
	w := newLetInWorld(t)
	w.hub.written, w.physical.shown.counter = "0", 0 // nothing was seen there
	clock := testingclock.NewFakeClock(time.Now())
	w.s.config.Clock = clock
	uid := ""
	below := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/api/v1/namespaces/"+metav1.NamespaceSystem {
			rw.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(rw, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":"`+uid+`"}}`)
			return
		}
		identified(w.physical.ServeHTTP)(rw, req)
	}))
	t.Cleanup(below.Close)
	physical, err := newPhysical(&rest.Config{Host: below.URL}, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.s.physical.kube = physical.kube
	for _, step := range []struct {
		after time.Duration
		says  string
		is    string // what is told of it
		fails bool
	}{
		{0, "a", "a", false},
		{beatEvery, "b", "b", false},
		{leastBetween, "b", "b", false},
		{leastBetween, "c", "b", true},
		{time.Second, "d", "b", true},
		{beatEvery, "e", "e", false}, // once in a while
		{leastBetween, "f", "e", true},
		{beatEvery / 2, "f", "e", true},
		{beatEvery / 2, "f", "f", false}, // it stays so
		{leastBetween, "f", "f", false},
		{leastBetween, "g", "g", false},
		{leastBetween, "f", "g", true},
	} {
		clock.Step(step.after)
		uid = step.says
		err := w.s.beat(t.Context())
		if got := w.s.clusterUID(); got != step.is || (err != nil) != step.fails || step.fails && !strings.Contains(err.Error(), "each time; first it was "+step.is) {
			t.Errorf("it says %q: it is %q, want %q; fails: %v, want %v", step.says, got, step.is, err, step.fails)
		}
		w.goOn()
	}
}

// TestUnidentified: a Syncer writes to no physical cluster that does not say who it is, and tells that it does not. One that was
// known goes on for as long as its heartbeat does.
func TestUnidentified(t *testing.T) {
	w := newLetInWorld(t)
	clock := testingclock.NewFakeClock(time.Now())
	w.s.config.Clock = clock
	silent := true
	told := identified(w.physical.ServeHTTP)
	below := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		if silent && req.URL.Path == "/version" {
			http.Error(rw, "it is nobody's business", http.StatusForbidden)
			return
		}
		w.raised = w.raised || req.Method != http.MethodGet
		told(rw, req)
	}))
	t.Cleanup(below.Close)
	physical, err := newPhysical(&rest.Config{Host: below.URL}, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.s.physical.kube = physical.kube

	err = w.s.beat(t.Context())
	w.s.failed(err)
	if trouble := w.s.trouble(); w.physical.stored != nil || !strings.Contains(trouble, "nobody's business") {
		t.Errorf("it does not say who it is: raised %v, trouble %q", w.physical.stored != nil, trouble)
	}
	w.goOn()
	silent = false
	for range 2 {
		if !w.beat() {
			t.Error("it was known, and its heartbeat is not raised")
		}
		silent = true
		clock.Step(2 * identifyEvery)
	}
	if trouble := w.s.trouble(); trouble != "" {
		t.Errorf("it does not say who it is any more: trouble %q", trouble)
	}
}
