package syncer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"k8s.io/client-go/rest"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/test/framework"
)

// pair is a connection over loopback.
func pair(t *testing.T) (ours, theirs net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // a test's
	if ours, err = net.Dial("tcp", listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if theirs, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	return ours, theirs
}

// tunnelTo returns the server's end of a tunnel, at whose other end a syncer answers for a physical cluster until the test ends.
func tunnelTo(t *testing.T, below http.Handler) *tunnel {
	t.Helper()
	api := httptest.NewServer(below)
	t.Cleanup(api.Close)
	ours, theirs := pair(t)
	end := &tunnelEnd{cluster: "east", target: kubeletTarget, physical: &rest.Config{Host: api.URL, BearerToken: "syncer"}}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := end.serve(context.Background(), theirs); err != nil {
			t.Error(err)
		}
	})
	tunnel, err := newTunnel(ours)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(serving.Wait)
	t.Cleanup(tunnel.close)
	if err := tunnel.client.Ping(t.Context()); err != nil { // all that serves it runs when it answers
		t.Fatal(err)
	}
	return tunnel
}

func askThrough(tunnel *tunnel) *http.Client {
	return askOver(func() (net.Conn, error) {
		dial, err := tunnel.reach(context.Background(), "east", podOfShop)
		if err != nil {
			return nil, err
		}
		return dial(), nil
	})
}

// TestTunnelRefuses: what is refused at the other end is said as where the server reaches the cluster itself.
func TestTunnelRefuses(t *testing.T) {
	api := newAPIBelow(nothing)
	tunnel := tunnelTo(t, api)
	if _, err := tunnel.reach(t.Context(), "east", podOfShop); err != nil {
		t.Errorf("the pod: %v", err)
	}
	for name, tc := range map[string]struct {
		change func(*shownPod)
		code   int
	}{
		"another pod":                   {func(p *shownPod) { p.uid = "another" }, http.StatusNotFound},
		"another workspace's namespace": {func(p *shownPod) { p.workspace = "bank" }, http.StatusNotFound},
		"a name that leads elsewhere":   {func(p *shownPod) { p.below.Name = "../../../secrets/x" }, http.StatusBadRequest},
	} {
		pod := podOfShop
		tc.change(&pod)
		if _, err := tunnel.reach(t.Context(), "east", pod); codeOf(err) != tc.code || strings.Count(err.Error(), `"east"`) > 1 {
			t.Errorf("%s: %v, want %d", name, err, tc.code)
		}
	}
	if len(api.asked) > 0 {
		t.Errorf("%d streams went down", len(api.asked))
	}

	away := httptest.NewServer(api)
	away.Close()
	ours, theirs := pair(t)
	go (&tunnelEnd{cluster: "east", target: kubeletTarget, physical: &rest.Config{Host: away.URL}}).serve(t.Context(), theirs) //nolint:errcheck // its end is the test's
	tunnel, err := newTunnel(ours)
	if err != nil {
		t.Fatal(err)
	}
	defer tunnel.close()
	if _, err := tunnel.reach(t.Context(), "east", podOfShop); codeOf(err) != http.StatusServiceUnavailable || strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("a cluster that is away: %v, want 503 without its address", err)
	}
	tunnel.close()
	if _, err := tunnel.reach(t.Context(), "east", podOfShop); codeOf(err) != http.StatusServiceUnavailable {
		t.Errorf("a tunnel that has ended: %v, want 503", err)
	}
}

// TestTunnelStreamsDoNotWait: of one that nobody reads, in either direction, so much is taken as fits, and others go on.
func TestTunnelStreamsDoNotWait(t *testing.T) {
	var down, up counting // what the pod wrote, and what was written to it
	api := newAPIBelow(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case strings.HasSuffix(req.URL.Path, "/exec"): // reads nothing
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close() //nolint:errcheck // a test's
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
			<-t.Context().Done()
		case req.URL.Query().Get("previous") != "":
			down.fill(w)
		default:
			_, _ = io.WriteString(w, "a line\n")
		}
	})
	tunnel := tunnelTo(t, api)
	unread, err := askThrough(tunnel).Get("http://east/containerLogs/prod/web-1/app?previous=true")
	if err != nil {
		t.Fatal(err)
	}
	defer unread.Body.Close() //nolint:errcheck // nobody reads it
	upgraded := execIn(t, askThrough(tunnel), "sleep")
	stdin, ok := upgraded.Body.(io.ReadWriteCloser)
	if !ok {
		t.Fatalf("exec is answered with %s", upgraded.Status)
	}
	defer stdin.Close() //nolint:errcheck // a test's
	go up.fill(stdin)
	for name, c := range map[string]*counting{"a log": &down, "standard input": &up} {
		var was int64
		framework.Eventually(t, 30*time.Second, name+" that nobody reads is full", func() string {
			time.Sleep(300 * time.Millisecond)
			before := was
			if was = c.written.Load(); was < mostUnread || was != before {
				return fmt.Sprintf("%d bytes, %d before", was, before)
			}
			return ""
		})
		if most := int64(32 << 20); was > most { // what is in the buffers of a few connections besides
			t.Errorf("of %s that nobody reads %d bytes are taken", name, was)
		}
	}
	res, err := askThrough(tunnel).Get("http://east/containerLogs/prod/web-1/app")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // only read
	if text, err := io.ReadAll(res.Body); string(text) != "a line\n" || err != nil {
		t.Errorf("beside streams that nobody reads: %q %v", text, err)
	}
}

// counting counts what it writes.
type counting struct{ written atomic.Int64 }

// fill writes until that fails.
func (c *counting) fill(w io.Writer) {
	for piece := make([]byte, 1<<12); ; {
		n, err := w.Write(piece)
		c.written.Add(int64(n))
		if err != nil {
			return
		}
	}
}

// TestTunnelLeavesNoStream: one that was found and never used, as by who asks without an upgrade, ends with its request; and so does
// the question of one whose answer never ends.
func TestTunnelLeavesNoStream(t *testing.T) {
	streams := func(t *testing.T, tunnel *tunnel, want int) {
		t.Helper()
		framework.Eventually(t, 2*time.Second, "streams end", func() string {
			if got := tunnel.client.State().StreamsActive; got != want {
				return fmt.Sprintf("there are %d, want %d", got, want)
			}
			return ""
		})
	}
	tunnel := tunnelTo(t, newAPIBelow(nothing))
	ctx, leave := context.WithCancel(t.Context())
	if _, err := tunnel.reach(ctx, "east", podOfShop); err != nil {
		t.Fatal(err)
	}
	streams(t, tunnel, 1)
	leave()
	streams(t, tunnel, 0)

	ours, theirs := pair(t)
	release := make(chan struct{})
	var serving sync.WaitGroup
	serving.Go(func() {
		(&http2.Server{}).ServeConn(theirs, &http2.ServeConnOpts{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			w.(http.Flusher).Flush()
			<-release
		})})
	})
	hostile, err := newTunnel(ours)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(release); hostile.close(); serving.Wait() })
	ctx, leave = context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer leave()
	if _, err := hostile.reach(ctx, "east", podOfShop); codeOf(err) != http.StatusServiceUnavailable {
		t.Errorf("an answer without an end: %v, want 503", err)
	}
	streams(t, hostile, 0)
}

// TestTunnelEnds: with a tunnel end its streams, at both ends, and nothing is left of them.
func TestTunnelEnds(t *testing.T) {
	for name, cut := range map[string]func(tunnel *tunnel, theirs net.Conn, stop context.CancelFunc){
		"by the server":  func(tunnel *tunnel, _ net.Conn, _ context.CancelFunc) { tunnel.close() },
		"by the syncer":  func(_ *tunnel, _ net.Conn, stop context.CancelFunc) { stop() },
		"by the network": func(_ *tunnel, theirs net.Conn, _ context.CancelFunc) { _ = theirs.Close() },
		"by a reset": func(_ *tunnel, theirs net.Conn, _ context.CancelFunc) {
			_ = theirs.(*net.TCPConn).SetLinger(0)
			_ = theirs.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			gone := make(chan struct{})
			api := httptest.NewServer(newAPIBelow(func(w http.ResponseWriter, req *http.Request) {
				_, _ = io.WriteString(w, "first\n")
				w.(http.Flusher).Flush()
				<-req.Context().Done()
				close(gone)
			}))
			t.Cleanup(api.Close)
			before := runtime.NumGoroutine()
			ctx, stop := context.WithCancel(t.Context())
			ours, theirs := pair(t)
			served := make(chan error, 1)
			go func() {
				served <- (&tunnelEnd{cluster: "east", target: kubeletTarget, physical: &rest.Config{Host: api.URL}}).serve(ctx, theirs)
			}()
			tunnel, err := newTunnel(ours)
			if err != nil {
				t.Fatal(err)
			}
			res, err := askThrough(tunnel).Get("http://east/containerLogs/prod/web-1/app?follow=true")
			if err != nil {
				t.Fatal(err)
			}
			log := bufio.NewReader(res.Body)
			if line, err := log.ReadString('\n'); line != "first\n" || err != nil {
				t.Fatalf("the log begins with %q: %v", line, err)
			}
			cut(tunnel, theirs, stop)
			if rest, err := io.ReadAll(log); err == nil {
				t.Errorf("a log that was cut ends with %q as if it were whole", rest)
			}
			_ = res.Body.Close()
			<-gone
			<-tunnel.ended()
			if err := <-served; err != nil {
				t.Error(err)
			}
			stop()
			leavesNothing(t, before)
		})
	}
}

// silent is a connection that from some moment on loses what is written, and hears nothing.
type silent struct {
	net.Conn
	lost chan struct{}
}

func (s *silent) Write(p []byte) (int, error) {
	select {
	case <-s.lost:
		return len(p), nil
	default:
		return s.Conn.Write(p)
	}
}

// TestSilentTunnelEnds: where the network loses everything and says nothing, both ends notice, and in less time than it takes until the
// physical cluster is not Ready.
func TestSilentTunnelEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		lost := make(chan struct{})
		served := make(chan struct{})
		go func() {
			defer close(served)
			if err := (&tunnelEnd{cluster: "east"}).serve(t.Context(), &silent{theirs, lost}); err != nil {
				t.Error(err)
			}
		}()
		tunnel, err := newTunnel(&silent{ours, lost})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // idle
		select {
		case <-tunnel.ended():
			t.Fatal("an idle tunnel ends")
		case <-served:
			t.Fatal("an idle tunnel is ended by the syncer")
		default:
		}
		close(lost)
		began := time.Now()
		<-tunnel.ended()
		<-served
		if took := time.Since(began); took > 2*(tunnelPing+tunnelPingTimeout) {
			t.Errorf("both ends have noticed after %s", took)
		}
	})
}

// TestTunnelsHold: of each mirror there is the tunnel that came last.
func TestTunnelsHold(t *testing.T) {
	var all tunnels
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	before := runtime.NumGoroutine()
	hold := func(ctx context.Context) (ended chan error) {
		ours, theirs := pair(t)
		go (&tunnelEnd{cluster: "east"}).serve(ctx, theirs) //nolint:errcheck // it ends with the other end
		ended = make(chan error, 1)
		was := all.get("eastname")
		go func() { ended <- all.hold(ctx, "eastname", ours) }()
		framework.Eventually(t, 10*time.Second, "the tunnel is there", func() string {
			if all.get("eastname") == was {
				return "not yet"
			}
			return ""
		})
		return ended
	}
	first := hold(ctx)
	second := hold(ctx)
	if err := <-first; !errors.Is(err, errReplaced) {
		t.Errorf("the former ends with %v", err)
	}
	if all.get("eastname") == nil {
		t.Error("with the former the newer is forgotten, too")
	}
	if all.get("westname") != nil {
		t.Error("another mirror has it")
	}
	stop()
	if err := <-second; !errors.Is(err, context.Canceled) {
		t.Errorf("the newer ends with %v", err)
	}
	if all.get("eastname") != nil {
		t.Error("what has ended is kept")
	}
	leavesNothing(t, before)
}

// hub is an address with several servers, which take turns; each holds the tunnels that it is asked for.
type hub struct {
	*httptest.Server
	mu      sync.Mutex
	servers []string // ids; the first answers next
	refuse  int      // a code, where all are refused
	// protocol is what connections become, and cuts says whether that ends at once.
	protocol string
	cuts     bool
	greedy   bool // takes more than one tunnel
	holds    map[string][]net.Conn
	asked    []string // what the syncer said that it has, of each request
}

func newHub(t *testing.T, servers ...string) *hub {
	h := &hub{servers: servers, holds: map[string][]net.Conn{}, protocol: workloadv1alpha1.TunnelProtocol}
	h.Server = httptest.NewUnstartedServer(h)
	h.EnableHTTP2 = true // as the real one
	h.StartTLS()
	t.Cleanup(func() {
		h.Close()
		for id := range h.held() {
			h.cut(id)
		}
	})
	return h
}

func (h *hub) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	id := h.servers[0]
	h.servers = append(h.servers[1:], id)
	held := req.Header.Get(workloadv1alpha1.TunnelHeldHeader)
	h.asked = append(h.asked, held)
	switch {
	case req.Method != http.MethodPost || req.URL.Path != "/clusters/eastname/apis/workload.kcp.io/v1alpha1/synctargets/east/tunnel" || req.Header.Get("Authorization") != "Bearer cred":
		w.WriteHeader(http.StatusNotFound)
		return
	case h.refuse != 0:
		w.WriteHeader(h.refuse)
		_, _ = io.WriteString(w, `{"kind":"Status","message":"no, thanks"}`)
		return
	case !h.greedy && len(h.holds[id]) > 0 && slices.Contains(strings.Split(held, ","), id):
		w.WriteHeader(http.StatusConflict)
		return
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	head := "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + h.protocol + "\r\n"
	if id != "" {
		head += workloadv1alpha1.TunnelServerHeader + ": " + id + "\r\n"
	}
	if _, err := io.WriteString(conn, head+"\r\n"); err != nil {
		panic(err)
	}
	if h.cuts {
		_ = conn.Close()
		return
	}
	h.holds[id] = append(h.holds[id], conn)
}

// held returns how many tunnels each server has.
func (h *hub) held() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := map[string]int{}
	for id, conns := range h.holds {
		all[id] = len(conns)
	}
	return all
}

// cut ends the tunnels of a server.
func (h *hub) cut(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, conn := range h.holds[id] {
		_ = conn.Close()
	}
	delete(h.holds, id)
}

func (h *hub) runTunnels(t *testing.T) (stop func()) {
	t.Helper()
	tunnels, err := NewTunnels(TunnelsConfig{
		Name: "east", UID: kubeletTarget, Physical: &rest.Config{Host: "https://127.0.0.1:1"},
		Mirror: &rest.Config{Host: h.URL + "/clusters/eastname", BearerToken: "cred", Transport: h.Client().Transport}, // of HTTP/2, as a Credential's
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { tunnels.Run(ctx) })
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(stop)
	return stop
}

// TestTunnelsToNoAvail: where something in between lets a tunnel be opened and cuts it, answers with another protocol, or takes one after
// the other under one name, it is asked for ever more rarely.
func TestTunnelsToNoAvail(t *testing.T) {
	t.Parallel()
	for name, is := range map[string]func(*hub){
		"cut":              func(h *hub) { h.cuts = true },
		"another protocol": func(h *hub) { h.protocol = "websocket" },
		"greedy":           func(h *hub) { h.greedy = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHub(t, "a")
			is(h)
			stop := h.runTunnels(t)
			time.Sleep(10 * time.Second)
			h.mu.Lock()
			if n := len(h.asked); n < 2 || n > 6 {
				t.Errorf("asked %d times in 10 s", n)
			}
			h.mu.Unlock()
			stop()
		})
	}
}

// TestTunnelsFindEveryServer: one tunnel to each server that is at an address, again where one is lost, and none when the syncer stops.
func TestTunnelsFindEveryServer(t *testing.T) {
	t.Parallel()
	h := newHub(t, "a", "b", "c")
	stop := h.runTunnels(t)
	each := func(what string, want map[string]int) {
		t.Helper()
		framework.Eventually(t, 30*time.Second, what, func() string {
			if got := h.held(); fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Sprint(got)
			}
			return ""
		})
	}
	each("a tunnel to each", map[string]int{"a": 1, "b": 1, "c": 1})
	h.cut("b")
	each("the one that was lost is there again", map[string]int{"a": 1, "b": 1, "c": 1})
	stop()
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, conns := range h.holds {
		_ = conns[0].SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.Copy(io.Discard, conns[0]); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the tunnel to %s goes on", id)
		}
	}
}

// TestTunnelsOfOneServer: a server that is alone is asked once, and again when the tunnel has ended or was refused.
func TestTunnelsOfOneServer(t *testing.T) {
	t.Parallel()
	h := newHub(t, "")
	h.refuse = http.StatusForbidden
	h.runTunnels(t)
	framework.Eventually(t, 30*time.Second, "it is asked again after a refusal", func() string {
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(h.asked) < 2 {
			return fmt.Sprint(h.asked)
		}
		h.refuse = 0
		return ""
	})
	there := func(what string) {
		t.Helper()
		framework.Eventually(t, 30*time.Second, what, func() string {
			if got := h.held(); got[""] != 1 {
				return fmt.Sprint(got)
			}
			return ""
		})
	}
	there("the tunnel is there")
	h.mu.Lock()
	asked := len(h.asked)
	h.mu.Unlock()
	time.Sleep(4 * time.Second)
	h.mu.Lock()
	if len(h.asked) != asked {
		t.Errorf("a server that is alone was asked %d times more", len(h.asked)-asked)
	}
	h.mu.Unlock()
	h.cut("")
	there("it is there again")
}
