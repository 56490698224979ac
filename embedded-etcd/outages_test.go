package embeddedetcd_test

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	embeddedetcd "atoll.dev/atoll/embedded-etcd"
	"atoll.dev/atoll/embedded-etcd/etcdtest"
)

// gate passes connections on to an etcd while it is open, and breaks them while it is not.
type gate struct {
	listener net.Listener

	mu      sync.Mutex // guards what follows
	to      string     // "" while it is shut
	passing []net.Conn
}

// newGate returns a gate that is shut.
func newGate(t *testing.T) *gate {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{listener: listener}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			if out := g.through(in); out != nil {
				serving.Go(func() { pass(in, out) })
				serving.Go(func() { pass(out, in) })
			}
		}
	})
	t.Cleanup(func() {
		listener.Close()
		g.shut()
		serving.Wait()
	})
	return g
}

// pass copies until one of them is closed, and closes both.
func pass(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	_, _ = io.Copy(to, from) // any end will do
}

// through returns the other end for a connection, or nil if it may not pass.
func (g *gate) through(in net.Conn) net.Conn {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.to != "" {
		if out, err := net.Dial("tcp", g.to); err == nil {
			g.passing = append(g.passing, in, out)
			return out
		}
	}
	in.Close()
	return nil
}

func (g *gate) url() string { return "https://" + g.listener.Addr().String() }

func (g *gate) open(url string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.to = strings.TrimPrefix(url, "https://")
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.to = ""
	for _, conn := range g.passing {
		conn.Close()
	}
	g.passing = nil
}

// onLine is a log that does something about each line.
type onLine func(string)

func (f onLine) Write(line []byte) (int, error) {
	f(string(line))
	return len(line), nil
}

func logged(ctx context.Context, do onLine) context.Context {
	return klog.NewContext(ctx, textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(do))))
}

// TestConnectWaitsAndSaysSo: who starts a server beside an etcd that is starting, too, waits and is told once; the log says when
// that etcd goes away later, and when it is back.
func TestConnectWaitsAndSaysSo(t *testing.T) {
	_, options := etcdtest.StartTLS(t)
	behind, g := options.Endpoints[0], newGate(t)
	options.Endpoints = []string{g.url()}
	lines := make(chan string, 100)
	ctx := logged(t.Context(), func(line string) {
		if strings.Contains(line, "Waiting for etcd") {
			g.open(behind)
		}
		lines <- line
	})
	etcd, err := embeddedetcd.Connect(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := etcd.Stop(); err != nil {
			t.Error(err)
		}
		if len(lines) > 0 {
			t.Errorf("besides it is said: %s", <-lines)
		}
	}()
	says := func(words ...string) {
		t.Helper()
		select {
		case line := <-lines:
			for _, want := range words {
				if !strings.Contains(line, want) {
					t.Errorf("the log says %q, not %q", line, want)
				}
			}
		case <-time.After(time.Minute):
			t.Fatalf("the log does not say %q", words)
		}
	}
	says("Waiting for etcd", g.url(), "20s")
	g.shut()
	says("No member of etcd answers", g.url())
	g.open(behind)
	says("answers again", g.url())
}

// TestConnectNamesWhatDoesNotAnswer: the reason comes with the first words, not after all the time that is waited.
func TestConnectNamesWhatDoesNotAnswer(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // what connects stays unanswered
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for endpoint, want := range map[string]string{
		"http://127.0.0.1:1":               "connection refused: is it running there?",
		"http://" + silent.Addr().String(): "no answer: is the address right",
	} {
		ctx, cancel := context.WithCancel(t.Context())
		said := ""
		_, err := embeddedetcd.Connect(logged(ctx, func(line string) {
			said += line
			cancel()
		}), embeddedetcd.ExternalOptions{Endpoints: []string{endpoint}})
		cancel()
		if err == nil || !strings.Contains(err.Error(), endpoint) {
			t.Errorf("%s: %v", endpoint, err)
		}
		if !strings.Contains(said, endpoint) || !strings.Contains(said, want) || strings.Contains(said, "desc =") {
			t.Errorf("%s: the log says %q, want one line with %q", endpoint, said, want)
		}
	}
}
