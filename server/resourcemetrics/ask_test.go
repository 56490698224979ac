package resourcemetrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/warning"
	clocktesting "k8s.io/utils/clock/testing"

	api "k8s.io/kubernetes/pkg/apis/core"

	"atoll.dev/atoll/server/builtin"
)

// refusedBelow is how a physical cluster's refusal comes up.
func refusedBelow(code int) error {
	err := apierrors.NewGenericServerResponse(code, http.MethodGet, schema.GroupResource{Resource: "pods"}, "", "", 0, true)
	err.ErrStatus.Message = fmt.Sprintf("%d below", code)
	return err
}

// doubles are physical clusters, by name, that answer for their pods at the paths of a kubelet.
type doubles struct {
	clusters map[string]http.Handler

	mu      sync.Mutex
	open    []context.Context
	most    int
	asked   []string
	refused map[string]error // by cluster, or cluster/pod: why there is no way
}

func (d *doubles) To(ctx context.Context, pod *api.Pod) (*http.Transport, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, pod.Spec.NodeName+"/"+pod.Name)
	for _, key := range []string{pod.Spec.NodeName, pod.Spec.NodeName + "/" + pod.Name} {
		if err := d.refused[key]; err != nil {
			return nil, err
		}
	}
	d.open = append(slices.DeleteFunc(d.open, func(ctx context.Context) bool { return ctx.Err() != nil }), ctx)
	d.most = max(d.most, len(d.open))
	return &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		context.AfterFunc(ctx, func() { _ = ours.Close() })
		go serve(d.clusters[pod.Spec.NodeName], theirs)
		return ours, nil
	}}, nil
}

// serve answers on one connection.
func serve(handler http.Handler, conn net.Conn) {
	conns := make(chan net.Conn, 1)
	conns <- conn
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	server.SetKeepAlivesEnabled(false)
	closed := make(chan struct{})
	server.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			close(closed)
		}
	}
	_ = server.Serve(oneConn{conns, closed, conn})
}

type oneConn struct {
	conns  chan net.Conn
	closed chan struct{}
	net.Conn
}

func (l oneConn) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l oneConn) Addr() net.Addr { return l.LocalAddr() }

func answers(items ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"items":[%s]}`, strings.Join(items, ","))
	}
}

func refuses(code int, words string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, words, code) }
}

// hangs answers nothing.
func hangs(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }

// warned collects warnings.
type warned []string

func (w *warned) AddWarning(_, text string) { *w = append(*w, text) }

func TestAsk(t *testing.T) {
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "x")
	for _, tc := range []struct {
		reason   string
		clusters map[string]http.Handler
		refused  map[string]error
		rows     []*api.Pod
		one      bool
		want     []string // pods
		warns    []string
		err      string
		asked    []string
	}{
		{reason: "nothing runs, so nobody is asked"},
		{
			reason:   "both clusters answer",
			clusters: map[string]http.Handler{"east": answers(said("a", "1m", "1Ki"), said("theirs", "1m", "1Ki")), "west": answers(said("b", "1m", "1Ki"))},
			rows:     []*api.Pod{row("east", "a"), row("west", "b")}, want: []string{"a", "b"}, asked: []string{"east/a", "west/b"},
		},
		{
			reason:   "what is of another pod of that cluster is not shown",
			clusters: map[string]http.Handler{"east": answers(said("b", "1m", "1Ki")), "west": answers()},
			rows:     []*api.Pod{row("east", "a"), row("west", "b")}, asked: []string{"east/a", "west/b"},
		},
		{
			reason:   "one is away",
			clusters: map[string]http.Handler{"east": answers(said("a", "1m", "1Ki"))}, refused: map[string]error{"west": apierrors.NewServiceUnavailable(`physical cluster "west" is not Ready (HeartbeatLost)`)},
			rows: []*api.Pod{row("east", "a"), row("west", "b")}, want: []string{"a"}, asked: []string{"east/a", "west/b"},
			warns: []string{`what some pods use is not shown: physical cluster "west" is not Ready (HeartbeatLost)`},
		},
		{
			reason:  "all are away",
			refused: map[string]error{"east": errors.New("east is away"), "west": errors.New("west is away")},
			rows:    []*api.Pod{row("east", "a"), row("west", "b")}, asked: []string{"east/a", "west/b"},
			err: "it is not known what pods use: east is away; west is away",
		},
		{
			reason:   "one has no Metrics API",
			clusters: map[string]http.Handler{"east": refuses(501, `physical cluster "east": it has no Metrics API`)},
			rows:     []*api.Pod{row("east", "a")}, asked: []string{"east/a"}, err: `it is not known what pods use: physical cluster "east": it has no Metrics API`,
		},
		{
			reason:   "one answers nonsense",
			clusters: map[string]http.Handler{"east": refuses(200, "<html>"), "west": answers(said("b", "1m", "1Ki"))},
			rows:     []*api.Pod{row("east", "a"), row("west", "b")}, want: []string{"b"}, asked: []string{"east/a", "west/b"},
			warns: []string{`what some pods use is not shown: physical cluster "east" says nothing of use about its pods: it is no list`},
		},
		{
			reason:   "one answers nothing",
			clusters: map[string]http.Handler{"east": http.HandlerFunc(hangs), "west": answers(said("b", "1m", "1Ki"))},
			rows:     []*api.Pod{row("east", "a"), row("west", "b")}, want: []string{"b"}, asked: []string{"east/a", "west/b"},
			warns: []string{`what some pods use is not shown: physical cluster "east" does not answer`},
		},
		{
			reason:   "a pod that was replaced leads nowhere, and another one does",
			clusters: map[string]http.Handler{"east": answers(said("a", "1m", "1Ki"), said("b", "1m", "1Ki"))}, refused: map[string]error{"east/a": gone},
			rows: []*api.Pod{row("east", "a"), row("east", "b")}, want: []string{"a", "b"}, asked: []string{"east/a", "east/b"},
		},
		{
			reason:  "all were replaced",
			refused: map[string]error{"east": gone}, rows: []*api.Pod{row("east", "a")}, asked: []string{"east/a"},
		},
		{
			reason:  "one refuses in whatever words: they are no other's",
			refused: map[string]error{"east": refusedBelow(429), "north": refusedBelow(500), "south": refusedBelow(502)}, clusters: map[string]http.Handler{"west": answers(said("b", "1m", "1Ki"))},
			rows: []*api.Pod{row("east", "a"), row("north", "a"), row("south", "a"), row("west", "b")}, want: []string{"b"}, asked: []string{"east/a", "north/a", "south/a", "west/b"},
			warns: []string{"what some pods use is not shown: 429 below", "what some pods use is not shown: 500 below", "what some pods use is not shown: 502 below"},
		},
		{
			reason:  "those that were looked for were replaced, and others not looked for",
			refused: map[string]error{"east": gone}, rows: []*api.Pod{row("east", "a"), row("east", "b"), row("east", "c"), row("east", "d")}, asked: []string{"east/a", "east/b", "east/c"},
			err: `it is not known what pods use: physical cluster "east": 3 pods of namespace "team" have just gone, ask again`,
		},
		{
			reason: "too many streams are open", refused: map[string]error{"east": builtin.TooManyOfWorkspace{StatusError: apierrors.NewTooManyRequests("100 streams are open", 1)}},
			rows: []*api.Pod{row("east", "a"), row("west", "b")}, clusters: map[string]http.Handler{"west": http.HandlerFunc(hangs)}, asked: []string{"east/a", "west/b"}, err: "100 streams are open",
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &doubles{clusters: tc.clusters, refused: tc.refused}
			s := &source{ways: d, clock: clocktesting.NewFakePassiveClock(now)}
			warns := warned{}
			began := time.Now()
			known, err := s.ask(t.Context(), tc.rows, tc.one)
			if err == nil {
				err = known.tell(warning.WithWarningRecorder(t.Context(), &warns), len(known.pods))
			}
			if (err == nil) != (tc.err == "") || err != nil && err.Error() != tc.err {
				t.Errorf("%s: %v, want %q", tc.reason, err, tc.err)
			}
			var got []string
			for name := range known.pods {
				got = append(got, name.Name)
			}
			slices.Sort(got)
			if diff := cmp.Diff(tc.want, got); diff != "" && tc.err == "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.warns, []string(warns)); diff != "" && len(tc.warns)+len(warns) > 0 {
				t.Errorf("%s: warnings (-want +got):\n%s", tc.reason, diff)
			}
			slices.Sort(d.asked)
			if diff := cmp.Diff(tc.asked, d.asked); diff != "" {
				t.Errorf("%s: asked (-want +got):\n%s", tc.reason, diff)
			}
			if took := time.Since(began); took > askTakes {
				t.Errorf("%s: took %s", tc.reason, took)
			}
			synctest.Wait()
			if slices.ContainsFunc(d.open, func(ctx context.Context) bool { return ctx.Err() == nil }) {
				t.Errorf("%s: ways are open", tc.reason)
			}
		})
	}
}

// TestPodsThatHaveGone: a namespace whose pods have gone leaves the others of its physical cluster to be asked for.
func TestPodsThatHaveGone(t *testing.T) {
	rows := []*api.Pod{row("east", "a", in("0")), row("east", "b", in("0")), row("east", "c", in("0")), row("east", "d", in("0"))}
	const others = 3 * asksAtOnce
	for i := range others {
		rows = append(rows, row("east", "e", in(fmt.Sprintf("1-%02d", i))))
	}
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "x")
	synctest.Test(t, func(t *testing.T) {
		slow := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			time.Sleep(time.Second)
			answers(said("e", "1m", "1Ki"))(w, req)
		})
		s := &source{ways: &doubles{
			clusters: map[string]http.Handler{"east": slow},
			refused:  map[string]error{"east/a": gone, "east/b": gone, "east/c": gone},
		}, clock: clocktesting.NewFakePassiveClock(now)}
		known, err := s.ask(t.Context(), rows, false)
		if troubles := known.troubles(); err != nil || len(known.pods) != others || len(troubles) != 1 || !strings.Contains(troubles[0].words, "have just gone") {
			t.Errorf("%v: %d pods, %v, want %d and who has gone", err, len(known.pods), troubles, others)
		}
		synctest.Wait()
	})
}

// TestAskIsBounded: few are asked at once, one that does not answer is asked a few times only and holds up no other, and all of it ends.
func TestAskIsBounded(t *testing.T) {
	var rows []*api.Pod
	for i := range 50 {
		rows = append(rows, row("east", "a", in(fmt.Sprintf("east-%d", i))), row("west", "a", in(fmt.Sprintf("west-%d", i))))
	}
	synctest.Test(t, func(t *testing.T) {
		d := &doubles{clusters: map[string]http.Handler{"east": http.HandlerFunc(hangs), "west": answers(said("a", "1m", "1Ki"))}}
		s := &source{ways: d, clock: clocktesting.NewFakePassiveClock(now)}
		began := time.Now()
		known, err := s.ask(t.Context(), rows, false)
		if err != nil || len(known.pods) != 50 || len(known.away) != 1 || known.asked != 2 {
			t.Errorf("%v: %d pods, of %d clusters %d are away", err, len(known.pods), known.asked, len(known.away))
		}
		if took := time.Since(began); took > askTakes || d.most > asksAtOnce {
			t.Errorf("it takes %s, with %d at once", took, d.most)
		}
		synctest.Wait()
	})
	// One that is slow, and answers.
	synctest.Test(t, func(t *testing.T) {
		slow := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			time.Sleep(5 * time.Second)
			answers(said("a", "1m", "1Ki"))(w, req)
		})
		s := &source{ways: &doubles{clusters: map[string]http.Handler{"east": slow, "west": slow}}, clock: clocktesting.NewFakePassiveClock(now)}
		began := time.Now()
		known, err := s.ask(t.Context(), rows, false)
		if err != nil || len(known.pods) < 2*asksAtOnce || len(known.away) != 2 || !strings.Contains(known.troubles()[0].words, "not all that there was to ask") {
			t.Errorf("%v: %d pods, %v", err, len(known.pods), known.troubles())
		}
		if took := time.Since(began); took > allTake {
			t.Errorf("it takes %s", took)
		}
		time.Sleep(10 * time.Second) // what is slow ends
		synctest.Wait()
	})
}
