package embeddedetcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

const (
	// Upstream's API server uses the same: a dead connection is noticed after 30 + 10 s.
	keepaliveTime    = 30 * time.Second
	keepaliveTimeout = 10 * time.Second
	dialTimeout      = 20 * time.Second
)

// ExternalOptions say how to reach an etcd that somebody else runs.
type ExternalOptions struct {
	// Endpoints are URLs, for instance https://10.0.0.1:2379. At least one.
	Endpoints []string
	// CertFile, KeyFile and CAFile are PEM files; all empty for plain text.
	CertFile, KeyFile, CAFile string
}

// Connect opens a client to an external etcd and returns when the store has answered once. It refuses a store of a
// format that this binary does not know.
func Connect(ctx context.Context, o ExternalOptions) (*Etcd, error) {
	if len(o.Endpoints) == 0 {
		return nil, errors.New("connect to etcd: no endpoints given")
	}
	cfg := clientv3.Config{
		Endpoints:            o.Endpoints,
		DialTimeout:          dialTimeout,
		DialKeepAliveTime:    keepaliveTime,
		DialKeepAliveTimeout: keepaliveTimeout,
		Logger:               zap.NewNop(), // errors come back from the calls
	}
	if o.CertFile != "" || o.KeyFile != "" || o.CAFile != "" {
		tls, err := transport.TLSInfo{CertFile: o.CertFile, KeyFile: o.KeyFile, TrustedCAFile: o.CAFile}.ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("connect to etcd at %s: %w", strings.Join(o.Endpoints, ","), err)
		}
		cfg.TLS = tls
	}
	client, err := clientv3.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to etcd at %s: %w", strings.Join(o.Endpoints, ","), err)
	}
	first, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if err := checkFormat(first, client); err != nil {
		return nil, errors.Join(fmt.Errorf("open the store at %s: %w", strings.Join(o.Endpoints, ","), err), client.Close())
	}
	return &Etcd{Client: client, stop: client.Close}, nil
}
