package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	policyclient "k8s.io/client-go/kubernetes/typed/policy/v1"
	"k8s.io/client-go/rest"
)

// pipes is a listener of connections in memory. net.Pipe keeps its deadlines exactly, which net/http relies on: it ends
// its background read between requests with a deadline in the past and then takes the deadline back. A connection that
// times out a moment after that would cancel the next request.
type pipes struct {
	accepted chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

func newPipes() *pipes { return &pipes{accepted: make(chan net.Conn), closed: make(chan struct{})} }

// DialContext returns the client's end of a new connection.
func (p *pipes) DialContext(ctx context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.accepted <- theirs:
		return ours, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accepted:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return memory{} }

type memory struct{}

func (memory) Network() string { return "memory" }
func (memory) String() string  { return "memory" }

// insideKey marks a request that came over a connection in memory.
type insideKey struct{}

// FieldManager is of what this process writes by requests to itself, where no part of it has a name of its own.
const FieldManager = "atoll-server"

// loopback serves the whole handler chain, authentication included, over connections in memory: the server's own
// controllers cost neither TLS nor system calls, and no rule is different for them. Only whom they impersonate is somebody
// in every workspace, see atCluster.
type loopback struct {
	listener *pipes
	config   *rest.Config
	// client returns one over connections that are kept.
	client func() (*http.Client, error)
}

func newLoopback() *loopback {
	listener := newPipes()
	token := make([]byte, 32)
	_, _ = rand.Read(token) // never fails
	config := &rest.Config{
		Host:        "http://atoll",
		BearerToken: hex.EncodeToString(token),
		Dial:        func(ctx context.Context, _, _ string) (net.Conn, error) { return listener.DialContext(ctx) },
		QPS:         -1,
		UserAgent:   FieldManager,
		// Nothing is saved by compressing what never leaves memory.
		DisableCompression: true,
	}
	return &loopback{
		listener: listener, config: config,
		client: sync.OnceValues(func() (*http.Client, error) { return rest.HTTPClientFor(config) }),
	}
}

// budgets reaches the PodDisruptionBudgets of one logical cluster.
func (l *loopback) budgets(cluster logicalcluster.Name) (policyclient.PodDisruptionBudgetsGetter, error) {
	httpClient, err := l.client()
	if err != nil {
		return nil, err
	}
	config := rest.CopyConfig(l.config)
	config.Host += clustersPrefix + string(cluster)
	return policyclient.NewForConfigAndClient(config, httpClient)
}

// serve blocks until ctx ends.
func (l *loopback) serve(ctx context.Context, handler http.Handler) error {
	server := &http.Server{
		Handler: handler,
		// The whole chain takes requests only from this process, but idle connections still hold memory.
		IdleTimeout: idleTimeout,
		BaseContext: func(net.Listener) context.Context {
			return context.WithValue(context.WithoutCancel(ctx), insideKey{}, true)
		},
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve connections in memory: %w", err)
	}
	return nil
}
