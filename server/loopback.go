package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"

	"google.golang.org/grpc/test/bufconn"
	"k8s.io/client-go/rest"
)

// loopbackBuffer of one connection in memory, in bytes each way.
const loopbackBuffer = 64 << 10

// loopback serves the whole handler chain, authentication included, over connections in memory: the server's own
// controllers cost neither TLS nor system calls, and no rule is different for them.
type loopback struct {
	listener *bufconn.Listener
	config   *rest.Config
}

func newLoopback() *loopback {
	listener := bufconn.Listen(loopbackBuffer)
	token := make([]byte, 32)
	_, _ = rand.Read(token) // never fails
	return &loopback{
		listener: listener,
		config: &rest.Config{
			Host:        "http://atoll",
			BearerToken: hex.EncodeToString(token),
			Dial:        func(ctx context.Context, _, _ string) (net.Conn, error) { return listener.DialContext(ctx) },
			QPS:         -1,
			// Nothing is saved by compressing what never leaves memory.
			DisableCompression: true,
		},
	}
}

// serve blocks until ctx ends.
func (l *loopback) serve(ctx context.Context, handler http.Handler) error {
	server := &http.Server{
		Handler: handler,
		// The whole chain takes requests only from this process, but idle connections still hold memory.
		IdleTimeout: idleTimeout,
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve connections in memory: %w", err)
	}
	return nil
}
