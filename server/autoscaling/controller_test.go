package autoscaling

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/client/clienttest"
	"atoll.dev/atoll/internal/kinds"
	"atoll.dev/atoll/internal/queue"
)

var web = client.Key{Cluster: "shop", Namespace: "team", Name: "web"}

const (
	scalePath   = "/apis/apps/v1/namespaces/team/deployments/web/scale"
	podsPath    = "/api/v1/namespaces/team/pods"
	metricsPath = "/apis/metrics.k8s.io/v1beta1/namespaces/team/pods"
	scalerPath  = "/apis/autoscaling/v2/namespaces/team/horizontalpodautoscalers/web"
	clusterPath = "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster"
)

// looking is a controller whose server is the test: it answers with what is served, and keeps what is written.
type looking struct {
	*Controller
	clk *clocktesting.FakePassiveClock
	// served has, by its path in the workspace, what is read there; what is not in it is not found.
	served map[string]string
	// asked, unless it is nil, is called before each answer.
	asked    func(method, path string)
	conflict bool // the next status is refused, since somebody has changed what it is of
	refused  int  // how many statuses somebody refuses
	statuses []*autoscalingv2.HorizontalPodAutoscaler
	events   []string // their reasons
}

func startLooking(t *testing.T, served map[string]string) *looking {
	t.Helper()
	l := &looking{clk: clocktesting.NewFakePassiveClock(noon), served: served}
	l.Controller = answering(t, func(w http.ResponseWriter, req *http.Request) {
		path := strings.TrimPrefix(req.URL.Path, "/clusters/shop")
		if l.asked != nil {
			l.asked(req.Method, path)
		}
		if req.URL.Query().Has("watch") { // nothing changes
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			<-req.Context().Done()
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Error(err)
		}
		text, found := l.served[path]
		switch {
		case path == scalerPath+"/status" && l.conflict:
			l.conflict = false
			problem(w, apierrors.NewConflict(autoscalingv2.Resource("horizontalpodautoscalers"), "web", errors.New("it was changed")))
		case path == scalerPath+"/status" && l.refused > 0:
			l.refused--
			problem(w, apierrors.NewForbidden(autoscalingv2.Resource("horizontalpodautoscalers"), "web", errors.New("nobody may")))
		case path == scalerPath+"/status":
			object, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), body)
			if err != nil {
				t.Error(err)
			}
			l.statuses = append(l.statuses, object.(*autoscalingv2.HorizontalPodAutoscaler))
			clienttest.Answer(w, http.StatusOK, `{"kind":"HorizontalPodAutoscaler","apiVersion":"autoscaling/v2","metadata":{"name":"web"}}`)
		case strings.Contains(path, "/events"):
			if object, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), body); err == nil {
				l.events = append(l.events, object.(*corev1.Event).Reason)
			} else { // it is told once more
				l.events = append(l.events, "again")
			}
			clienttest.Answer(w, http.StatusCreated, `{"kind":"Event","apiVersion":"v1","metadata":{"name":"web.1","namespace":"team"}}`)
		case found:
			clienttest.Answer(w, http.StatusOK, text)
		default:
			problem(w, apierrors.NewNotFound(autoscalingv2.Resource("somethings"), path))
		}
	})
	c := l.Controller
	clusters, err := client.NewInformer(c.clients, &corev1alpha1.LogicalCluster{}, client.InformerOptions[*corev1alpha1.LogicalCluster]{})
	if err != nil {
		t.Fatal(err)
	}
	placements, err := client.NewInformer(c.clients, &placementv1alpha1.Placement{}, client.InformerOptions[*placementv1alpha1.Placement]{})
	if err != nil {
		t.Fatal(err)
	}
	deployments, err := client.NewInformer[ctrlclient.Object](c.clients, &appsv1.Deployment{}, client.InformerOptions[ctrlclient.Object]{})
	if err != nil {
		t.Fatal(err)
	}
	targets, err := client.NewInformer(c.clients, &workloadv1alpha1.SyncTarget{}, client.InformerOptions[*workloadv1alpha1.SyncTarget]{})
	if err != nil {
		t.Fatal(err)
	}
	sets, err := client.NewInformer[ctrlclient.Object](c.clients, &appsv1.StatefulSet{}, client.InformerOptions[ctrlclient.Object]{})
	if err != nil {
		t.Fatal(err)
	}
	kind, _ := kinds.ByKind("Deployment")
	whole, _ := kinds.ByKind("StatefulSet")
	c.informers = &client.Informers{LogicalClusters: clusters, Placements: placements, SyncTargets: targets, Kinds: []client.KindInformer{{Kind: kind, Informer: deployments}, {Kind: whole, Informer: sets}}}
	if err := addIndexes(c.informers); err != nil {
		t.Fatal(err)
	}
	c.clock, c.events = l.clk, client.NewEvents(c.clients, "test", l.clk)
	c.known, c.lanes = client.ByNamespace[remembered]{}, newLanes(l.clk)
	c.metrics = newReadings(l.clk, c.usagesOf)
	c.queue = queue.NewWithClock("test", l.clk, c.reconcile)
	t.Cleanup(c.queue.Stop)
	return l
}

// look looks at a HorizontalPodAutoscaler once, and at what was written of it last.
func (l *looking) look(t *testing.T, hpa *autoscalingv2.HorizontalPodAutoscaler) error {
	t.Helper()
	if n := len(l.statuses); n > 0 {
		hpa.Status = *l.statuses[n-1].Status.DeepCopy()
	}
	var idle time.Duration
	return l.scale(client.In(t.Context(), web.Cluster), web, hpa, &idle)
}

func problem(w http.ResponseWriter, err *apierrors.StatusError) {
	text, _ := json.Marshal(err.Status())
	clienttest.Answer(w, int(err.Status().Code), string(text))
}

// scaleOfWeb is the scale of web with so many replicas.
func scaleOfWeb(replicas int32, selector string) string {
	return fmt.Sprintf(`{"metadata":{"name":"web"},"spec":{"replicas":%d},"status":{"replicas":%d,"selector":%q}}`, replicas, replicas, selector)
}

// podsOfWeb are pods of web in east that serve, and ask for 100m of CPU.
func podsOfWeb(names ...string) string {
	var items []string
	for _, name := range names {
		items = append(items, fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"app":"web",%q:"east"}},"spec":{"nodeName":"east","containers":[{"name":"c","resources":{"requests":{"cpu":"100m"}}}]},
			"status":{"phase":"Running","startTime":"2026-11-28T11:00:00Z","conditions":[{"type":"Ready","status":"True","lastTransitionTime":"2026-11-28T11:00:00Z"}]}}`, name, workloadv1alpha1.MirrorLabel))
	}
	return `{"kind":"PodList","apiVersion":"v1","items":[` + strings.Join(items, ",") + `]}`
}

// metricsOfWeb is what pods use, each.
func metricsOfWeb(cpu string, names ...string) string {
	var items []string
	for _, name := range names {
		items = append(items, fmt.Sprintf(`{"metadata":{"name":%q},"timestamp":"2026-11-28T11:59:00Z","window":"17s","containers":[{"name":"c","usage":{"cpu":%q}}]}`, name, cpu))
	}
	return `{"items":[` + strings.Join(items, ",") + `]}`
}

// hears has the informers know what is served.
func (l *looking) hears(t *testing.T) {
	t.Helper()
	i := l.informers
	all := []interface {
		Run(context.Context)
		WaitSynced(context.Context) error
	}{i.LogicalClusters, i.SyncTargets, i.Placements}
	for _, kind := range i.Kinds {
		all = append(all, kind.Informer)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	for _, informer := range all {
		running.Go(func() { informer.Run(ctx) })
	}
	for _, informer := range all {
		if err := informer.WaitSynced(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPhysicalClusters: what each physical cluster reports of a target, and whether it is away, is known by its SyncTarget, which its mirror names; what only says that it is a leaf, or of a mirror, is nobody's.
func TestPhysicalClusters(t *testing.T) {
	list := func(kind, apiVersion string, items ...string) string {
		return fmt.Sprintf(`{"kind":"%sList","apiVersion":%q,"metadata":{"resourceVersion":"1"},"items":[%s]}`, kind, apiVersion, strings.Join(items, ","))
	}
	lc := func(name, use, owner string) string {
		return fmt.Sprintf(`{"metadata":{"name":"cluster","annotations":{"kcp.io/cluster":%q}},"spec":{"use":%q%s}}`, name, use, owner)
	}
	owner := func(name, uid string) string {
		return fmt.Sprintf(`,"owner":{"apiVersion":"workload.kcp.io/v1alpha1","resource":"synctargets","name":%q,"cluster":"root","uid":%q}`, name, uid)
	}
	syncTarget := func(name, uid, ready string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q,"uid":%q,"annotations":{"kcp.io/cluster":"root"}},"status":{"carriedResources":["pods"],"conditions":[{"type":"Ready","status":%q}]}}`, name, uid, ready)
	}
	leaf := func(mirror, root string, replicas int) string {
		return fmt.Sprintf(`{"metadata":{"name":"web","namespace":"team-1","annotations":{"kcp.io/cluster":%q},"labels":{%q:%q}},"spec":{"replicas":20},"status":{"replicas":%d}}`, mirror, workloadv1alpha1.RootUIDLabel, root, replicas)
	}
	lost := fmt.Sprintf(`"status":"False","reason":%q`, workloadv1alpha1.PodUnheard)
	pods := strings.Replace(strings.Replace(podsOfWeb("a", "b", "c"), `"status":"True"`, lost, 1), `"name":"b","labels":{"app":"web","workload.atoll.dev/mirror":"east"}`, `"name":"b","labels":{"app":"web","workload.atoll.dev/mirror":"m-west"}`, 1)
	l := startLooking(t, map[string]string{
		"/clusters/*/apis/core.kcp.io/v1alpha1/logicalclusters": list("LogicalCluster", "core.kcp.io/v1alpha1",
			lc("east", "Mirror", owner("east", "e")), lc("m-west", "Mirror", owner("west", "w")), lc("m-old", "Mirror", owner("east", "old")), lc("m-none", "Mirror", ""), lc("shop", "", owner("west", "w"))),
		"/clusters/*/apis/workload.kcp.io/v1alpha1/synctargets":    list("SyncTarget", "workload.kcp.io/v1alpha1", syncTarget("east", "e", "True"), syncTarget("west", "w", "Unknown")),
		"/clusters/*/apis/placement.atoll.dev/v1alpha1/placements": list("Placement", "placement.atoll.dev/v1alpha1"),
		"/clusters/*/apis/apps/v1/deployments": list("Deployment", "apps/v1",
			leaf("east", "u", 3), leaf("m-west", "u", 2), leaf("m-old", "u", 5), leaf("m-none", "u", 7), leaf("shop", "u", 9), leaf("m-gone", "u", 10), strings.Replace(leaf("east", "another", 11), "web", "api", 1)),
		"/clusters/*/apis/apps/v1/statefulsets": list("StatefulSet", "apps/v1", leaf("east", "s", 4)),
		podsPath:                                pods,
	})
	l.hears(t)
	for resource, want := range map[string]map[string]report{
		"deployments": {"east": {3, false}, "west": {2, true}}, "statefulsets": {"east": {4, false}}, "widgets": nil,
	} {
		to := &target{resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: resource}}
		to.scale.Name, to.scale.UID = "web", map[string]types.UID{"deployments": "u", "statefulsets": "s"}[resource]
		if _, got := l.placementOf(web, to); !maps.Equal(got, want) {
			t.Errorf("of %s is reported %v, want %v", resource, got, want)
		}
	}
	is, _, err := l.podsOf(client.In(t.Context(), web.Cluster), web, everything, &asked{})
	if err != nil || len(is) != 3 || !is[0].lost || !is[1].lost || is[2].lost {
		t.Errorf("pods are %+v, %v, want that the first is lost, which says so, and the second, whose physical cluster is away", is, err)
	}
}

// TestRivals: who selects the first pod that anybody else selects is a rival, whoever selects others.
func TestRivals(t *testing.T) {
	l := startLooking(t, map[string]string{podsPath: strings.Replace(podsOfWeb("a", "b", "c"), `"app":"web"`, `"app":"web","part":"first"`, 1)})
	for name, text := range map[string]string{"of-one": "part=first", "of-none": "app=api"} {
		is, bad := readSelector(text)
		if bad != nil {
			t.Fatal(bad)
		}
		l.remember(client.Key{Cluster: web.Cluster, Namespace: web.Namespace, Name: name}, remembered{selector: is})
	}
	pods, rivals, err := l.podsOf(client.In(t.Context(), web.Cluster), web, everything, &asked{})
	if err != nil || len(pods) != 3 || !slices.Equal(rivals, []string{"of-one"}) {
		t.Errorf("of %d pods rivals are %v, %v, want of-one", len(pods), rivals, err)
	}
}

// TestRescaledAtEveryLook: what somebody scales while it is looked at is looked at once more at once, and not without end; then it is said.
func TestRescaledAtEveryLook(t *testing.T) {
	l := startLooking(t, map[string]string{})
	reads := int32(20) // more than there may be: no metric is asked
	l.asked = func(_, path string) {
		if path == scalePath {
			reads++
			l.served[scalePath] = scaleOfWeb(reads, "app=web")
		}
	}
	for look, want := range []error{errRescaled, nil, errRescaled, nil} {
		if err := l.look(t, scaler(onCPU)); !errors.Is(err, want) {
			t.Errorf("look %d: %v, want %v", look, err, want)
		}
	}
	if len(l.statuses) != 2 || !strings.Contains(fmt.Sprint(l.statuses[0].Status), errRescaled.Error()) {
		t.Errorf("it says %+v, want twice that %v", l.statuses, errRescaled)
	}
}

// TestSelectsNothing: one whose target is gone, or has no selector that can be read, is nobody's rival any more.
func TestSelectsNothing(t *testing.T) {
	for name, served := range map[string]map[string]string{
		"its target is gone": {},
		"a bad selector":     {scalePath: scaleOfWeb(4, "app in")},
		"a long selector":    {scalePath: scaleOfWeb(4, "app in ("+strings.Repeat("a,", mostSelector)+"b)")},
	} {
		l := startLooking(t, served)
		hpa := scaler(onCPU)
		l.remember(web, remembered{uid: hpa.UID, selector: everything})
		if err := l.look(t, hpa); err != nil {
			t.Fatal(err)
		}
		if is := l.recall(web, hpa.UID); is.selector != nil || len(l.statuses) != 1 {
			t.Errorf("%s: it selects %v, and says %+v", name, is.selector, l.statuses)
		}
	}
}

// TestTooManyMetrics: with more metrics than there may be no pods are read.
func TestTooManyMetrics(t *testing.T) {
	l := startLooking(t, map[string]string{scalePath: scaleOfWeb(4, "app=web")})
	l.asked = func(_, path string) {
		if path == podsPath || path == metricsPath {
			t.Errorf("%s is asked for", path)
		}
	}
	if err := l.look(t, scaler(slices.Repeat([]autoscalingv2.MetricSpec{onCPU}, kinds.MostMetrics+1)...)); err != nil {
		t.Fatal(err)
	}
	if len(l.statuses) != 1 || !strings.Contains(fmt.Sprint(l.statuses[0].Status), "TooManyMetrics") {
		t.Errorf("it says %+v", l.statuses)
	}
}

// TestScales: what pods use is read, with the window in which it was measured, and the scale written.
func TestScales(t *testing.T) {
	l := startLooking(t, map[string]string{scalePath: scaleOfWeb(2, "app=web"), podsPath: podsOfWeb("a", "b"), metricsPath: metricsOfWeb("100m", "a", "b")})
	put := 0
	l.asked = func(method, path string) {
		if path == scalePath && method == http.MethodPut {
			put++
		}
		if is := l.recall(web, ""); path == podsPath && (is.selector == nil || is.selector.text != "app=web") {
			t.Errorf("while its pods are read, others know its selector as %v", is.selector)
		}
	}
	if err := l.look(t, scaler(onCPU)); err != nil {
		t.Fatal(err)
	}
	if put != 1 || len(l.statuses) != 1 || l.statuses[0].Status.DesiredReplicas != 4 || !slices.Equal(l.events, []string{"SuccessfulRescale"}) {
		t.Errorf("%d scales, %+v, and %v are written, want 4 replicas", put, l.statuses, l.events)
	}
	used, err := l.metrics.of(client.In(t.Context(), web.Cluster), web.Space(), new(time.Duration))
	if m := used["a"]; err != nil || m == nil || m.Window.Duration != 17*time.Second || m.Timestamp.IsZero() {
		t.Errorf("it uses %+v, %v, want what was measured in 17 s", m, err)
	}
}

// TestSaidOnce: what fails at each look, in other words each time, is told and written now and then.
func TestSaidOnce(t *testing.T) {
	l := startLooking(t, map[string]string{})
	hpa := scaler(onCPU)
	for look := range 9 {
		hpa.Spec.ScaleTargetRef.Name = fmt.Sprint("../", look) // which the words have
		if err := l.look(t, hpa); err != nil {
			t.Fatal(err)
		}
		l.clk.SetTime(l.clk.Now().Add(every))
	}
	if len(l.statuses) != 3 || len(l.events) != 3 {
		t.Fatalf("in two minutes %d statuses and %v are written, want one of each in a minute: %v", len(l.statuses), l.events, l.statuses)
	}
	for range 9 {
		if err := l.look(t, hpa); err != nil {
			t.Fatal(err)
		}
		l.clk.SetTime(l.clk.Now().Add(every))
	}
	if len(l.statuses) != 3 || len(l.events) != 3 {
		t.Errorf("in two minutes of the same words %d statuses and %v are written, want none more", len(l.statuses)-3, l.events[3:])
	}
}

// TestRefusedStatus: a status that somebody refuses is told now and then, written at each look once, and keeps nothing from being scaled.
func TestRefusedStatus(t *testing.T) {
	l := startLooking(t, map[string]string{scalePath: scaleOfWeb(4, "app in")})
	l.refused = 5
	for look := range 9 {
		if err := l.look(t, scaler(onCPU)); err != nil {
			t.Fatalf("look %d: %v", look, err)
		}
		l.clk.SetTime(l.clk.Now().Add(every))
	}
	if want := []string{"InvalidSelector", "FailedComputeMetricsReplicas", "FailedUpdateStatus"}; !slices.Equal(l.events, want) || l.refused != 0 || len(l.statuses) != 1 {
		t.Errorf("told are %v, %d looks have not written, and %d statuses are written, want %v, each look to write, and one status", l.events, l.refused, len(l.statuses), want)
	}
	if at := l.recall(web, "").warned["FailedUpdateStatus"].at; !at.Equal(noon) {
		t.Errorf("it was told at %s last, want at the first look alone", at)
	}
}

// ending is a context that has ended for who asks it, and stops nothing.
type ending struct {
	context.Context
	over atomic.Bool
}

func (e *ending) Err() error {
	if e.over.Load() {
		return context.Canceled
	}
	return e.Context.Err()
}

// TestScaledAsItEnds: what was written is remembered though the look ends with that: policies count it.
func TestScaledAsItEnds(t *testing.T) {
	l := startLooking(t, map[string]string{scalePath: scaleOfWeb(12, "app=web")})
	ctx := &ending{Context: client.In(t.Context(), web.Cluster)}
	l.asked = func(method, path string) {
		ctx.over.Store(ctx.over.Load() || path == scalePath && method == http.MethodPut)
	}
	hpa := scaler(onCPU)
	hpa.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{}
	if err := l.scale(ctx, web, hpa, new(time.Duration)); !errors.Is(err, context.Canceled) {
		t.Errorf("it has ended with %v", err)
	}
	if is := l.recall(web, hpa.UID); len(is.past.changes) != 1 || len(l.events) > 0 || len(is.warned) > 0 || !is.said.IsZero() {
		t.Errorf("told are %v, and kept is %+v, want that it was scaled, and that nobody was told", l.events, is)
	}
}

// TestEnds: a look that takes too long while it writes says so to nobody, and begins anew.
func TestEnds(t *testing.T) {
	for _, at := range []string{scalePath, scalerPath + "/status"} {
		l := startLooking(t, map[string]string{scalePath: scaleOfWeb(12, "app=web")})
		l.refused = 1
		ctx, cancel := context.WithCancel(client.In(t.Context(), web.Cluster))
		l.asked = func(method, path string) {
			if path == at && method == http.MethodPut {
				delete(l.served, path)
				cancel()
			}
		}
		hpa := scaler(onCPU)
		if err := l.scale(ctx, web, hpa, new(time.Duration)); !errors.Is(err, context.Canceled) {
			t.Errorf("it has ended at %s with %v", at, err)
		}
		if is := l.recall(web, hpa.UID); len(is.warned) > 0 || !is.said.IsZero() || len(l.statuses) > 0 || at == scalePath && is.past.recommended != nil {
			t.Errorf("it has ended at %s: kept is %+v, and written %v", at, is, l.statuses)
		}
	}
}

// TestReconcile: what is looked at, and when next; nothing is kept of what is not there, or in no workspace.
func TestReconcile(t *testing.T) {
	closed := make(chan struct{})
	close(closed)
	const workspace = `{"kind":"LogicalCluster","apiVersion":"core.kcp.io/v1alpha1","metadata":{"name":"cluster"%s},"spec":{%s}}`
	here := fmt.Sprintf(workspace, "", "")
	object := `{"kind":"HorizontalPodAutoscaler","apiVersion":"autoscaling/v2","metadata":{"name":"web","namespace":"team"},"spec":{"maxReplicas":9,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"web"}}}`
	for name, tc := range map[string]struct {
		served  map[string]string
		rescale bool
		again   time.Duration
		looks   bool // at the scale
		kept    bool
	}{
		"no workspace":       {map[string]string{scalerPath: object}, false, 0, false, false},
		"a mirror":           {map[string]string{clusterPath: fmt.Sprintf(workspace, "", `"use":"Mirror"`), scalerPath: object}, false, 0, false, false},
		"an import goes on":  {map[string]string{clusterPath: fmt.Sprintf(workspace, `,"annotations":{"`+tenancyv1alpha1.ImportingAnnotation+`":"x"}`, ""), scalerPath: object}, false, next(web, noon), false, true},
		"it is gone":         {map[string]string{clusterPath: here}, false, 0, false, false},
		"its target is gone": {map[string]string{clusterPath: here, scalerPath: object}, false, next(web, noon), true, true},
		"somebody scales":    {map[string]string{clusterPath: here, scalerPath: object, scalePath: scaleOfWeb(12, "app=web")}, true, time.Millisecond, true, true},
	} {
		l := startLooking(t, tc.served)
		l.remember(web, remembered{selector: everything})
		l.metrics.taken[client.Key{Cluster: "bank"}] = &reading{done: closed}
		looks := 0
		l.asked = func(_, path string) {
			if path == scalePath {
				if looks++; looks > 1 && tc.rescale {
					l.served[scalePath] = scaleOfWeb(13, "app=web")
				}
			}
		}
		again, err := l.reconcile(t.Context(), web)
		if _, kept := l.known[web.Space()]; err != nil || again != tc.again || looks > 0 != tc.looks || kept != tc.kept {
			t.Errorf("%s: again in %s, %v, %d looks, kept %v, want %+v", name, again, err, looks, kept, tc)
		}
		if len(l.metrics.taken) > 0 {
			t.Errorf("%s: kept are %v, want nothing of long ago", name, l.metrics.taken)
		}
		if n := l.lanes.Going("shop"); n != 0 {
			t.Errorf("%s: %d looks go on", name, n)
		}
	}
}

// passing is a clock by which some time passes once somebody has looked at it.
type passing struct {
	*clocktesting.FakePassiveClock
	after atomic.Int64
}

func (p *passing) Now() time.Time {
	now := p.FakePassiveClock.Now()
	p.SetTime(now.Add(time.Duration(p.after.Swap(0))))
	return now
}

// TestWorkedFor: looks of a workspace wait for as long as one has worked, whatever it was that took so long, and not for as long as it has waited for physical clusters.
func TestWorkedFor(t *testing.T) {
	second := time.Second
	for name, tc := range map[string]struct {
		slow string // what takes a second to answer
		read bool   // it does not: to read the answer does
		want time.Duration
	}{
		"pods":             {podsPath, false, pause*second - pace},
		"a scale":          {scalePath, false, pause*second - pace},
		"metrics":          {metricsPath, false, 0},
		"metrics, to read": {metricsPath, true, pause*second - pace},
	} {
		l := startLooking(t, map[string]string{
			clusterPath: `{"kind":"LogicalCluster","apiVersion":"core.kcp.io/v1alpha1","metadata":{"name":"cluster"}}`,
			scalerPath:  `{"kind":"HorizontalPodAutoscaler","apiVersion":"autoscaling/v2","metadata":{"name":"web","namespace":"team"},"spec":{"maxReplicas":9,"metrics":[{"type":"Resource","resource":{"name":"cpu","target":{"averageUtilization":50}}}],"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"web"}}}`,
			scalePath:   scaleOfWeb(2, "app=web"), podsPath: podsOfWeb("a", "b"), metricsPath: metricsOfWeb("50m", "a", "b"),
		})
		passes := &passing{FakePassiveClock: l.clk}
		l.clock, l.metrics.clock = passes, passes
		l.metrics.read = func(ctx context.Context, of client.Key, idle *time.Duration) (usages, error) {
			if end, ends := ctx.Deadline(); !ends || time.Until(end) > longest {
				t.Errorf("it looks until %s, want no longer than %s", end, longest)
			}
			return l.usagesOf(ctx, of, idle)
		}
		l.asked = func(_, path string) {
			switch {
			case path == tc.slow && tc.read:
				passes.after.Store(second.Nanoseconds())
			case path == tc.slow:
				l.clk.SetTime(l.clk.Now().Add(second))
			}
		}
		if _, err := l.reconcile(t.Context(), web); err != nil || len(l.statuses) != 1 {
			t.Fatalf("%s: %v, %+v", name, err, l.statuses)
		}
		if got := l.lanes.Turn("shop", client.Key{Cluster: "shop", Name: "other"}); got != tc.want {
			t.Errorf("%s take a second: others wait %s, want %s", name, got, tc.want)
		}
	}
}

// TestSee: one that is new is looked at at once, any other in its turn.
func TestSee(t *testing.T) {
	for name, tc := range map[string]struct {
		age        time.Duration
		conditions int
		want       int
	}{
		"new":                   {time.Second, 0, 1},
		"it has said something": {time.Second, 1, 0},
		"of before a start":     {time.Hour, 0, 0},
	} {
		l := startLooking(t, nil)
		hpa := scaler(onCPU)
		hpa.Annotations = map[string]string{logicalcluster.AnnotationKey: "shop"}
		hpa.CreationTimestamp = metav1.NewTime(noon.Add(-tc.age))
		hpa.Status.Conditions = make([]autoscalingv2.HorizontalPodAutoscalerCondition, tc.conditions)
		l.see(hpa, false)
		if n := l.queue.Len(); n != tc.want {
			t.Errorf("%s: %d are looked at at once, want %d", name, n, tc.want)
		}
	}
}

// TestSay: what was done is said though somebody has changed what it is for meanwhile, but not of one that was made anew.
func TestSay(t *testing.T) {
	for uid, want := range map[types.UID]int{"first": 1, "another": 0, "": 0} {
		l := startLooking(t, map[string]string{scalerPath: fmt.Sprintf(`{"kind":"HorizontalPodAutoscaler","apiVersion":"autoscaling/v2","metadata":{"name":"web","namespace":"team","uid":%q,"resourceVersion":"7"}}`, uid)})
		if uid == "" { // it is gone
			delete(l.served, scalerPath)
		}
		l.conflict = true
		hpa := scaler(onCPU)
		hpa.UID, hpa.ResourceVersion = "first", "6"
		if err := l.say(client.In(t.Context(), web.Cluster), hpa, &autoscalingv2.HorizontalPodAutoscalerStatus{DesiredReplicas: 5}); err != nil {
			t.Fatal(err)
		}
		if len(l.statuses) != want || want > 0 && (l.statuses[0].ResourceVersion != "7" || l.statuses[0].Status.DesiredReplicas != 5) {
			t.Errorf("of %s is written %+v, want %d, of version 7", uid, l.statuses, want)
		}
	}
}

// TestLost: pods of a physical cluster that is away are known by why they are not Ready.
func TestLost(t *testing.T) {
	for name, tc := range map[string]struct {
		condition corev1.PodCondition
		want      bool
	}{
		"away":          {corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: workloadv1alpha1.PodUnheard}, true},
		"not seen":      {corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: workloadv1alpha1.PodUnseen}, true},
		"begins":        {corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "ContainersNotReady"}, false},
		"serves":        {corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}, false},
		"another thing": {corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: workloadv1alpha1.PodUnheard}, false},
	} {
		p := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{tc.condition}}}
		if is := podOf(p, &asked{}); is.lost != tc.want {
			t.Errorf("%s: lost: %v, want %v", name, is.lost, tc.want)
		}
	}
}

// TestClusterOf: the physical cluster of a pod is the Node of one that the server says a mirror shows, and no Node that somebody has written.
func TestClusterOf(t *testing.T) {
	p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "east"}}
	if is := podOf(p, &asked{}); is.cluster != "" {
		t.Errorf("one that nobody shows is in %q", is.cluster)
	}
	p.Labels = map[string]string{workloadv1alpha1.MirrorLabel: "m"}
	if is := podOf(p, &asked{}); is.cluster != "east" {
		t.Errorf("one that east shows is in %q", is.cluster)
	}
}
