package webhooks

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"syscall"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
)

const (
	// dialTimeout and callTimeout bound what has no bound of its own; callTimeout is kube-apiserver's.
	dialTimeout = 10 * time.Second
	callTimeout = 30 * time.Second
	// Connections kept to one webhook between calls, and for how long. Each is two goroutines.
	idleConnections = 2
	idleTimeout     = 15 * time.Second
	// maxAnswerHeader in bytes; see answers.go for the body.
	maxAnswerHeader = 64 << 10
	// userAgent is kube-apiserver's.
	userAgent = "kube-apiserver-admission"
)

// Caller makes what upstream's clients of webhooks connect with.
type Caller struct {
	addresses Addresses
	dialer    *net.Dialer
	budget    *budget
}

// NewCaller returns one that calls webhooks where addresses allow it.
func NewCaller(addresses Addresses) *Caller {
	c := &Caller{addresses: addresses, budget: newBudget(mostOfAll, mostOfOne)}
	c.dialer = &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second, Control: c.control}
	return c
}

// control sees the address that is about to be connected to, after names were resolved: what they resolve to the next time
// does not matter.
func (c *Caller) control(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("look at the address %q of a webhook: %w", address, err)
	}
	return c.addresses.Check(to.Addr())
}

// Resolver is for what webhooks of a logical cluster are called for. It ignores what it wraps: what upstream would add are credentials.
func (c *Caller) Resolver(to Purpose, of logicalcluster.Name) webhook.AuthenticationInfoResolverWrapper {
	return func(webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
		return &webhook.AuthenticationInfoResolverDelegator{
			ClientConfigForFunc:        func(string) (*rest.Config, error) { return c.config(to, of), nil },
			ClientConfigForServiceFunc: func(string, string, int) (*rest.Config, error) { return c.config(to, of), nil },
		}
	}
}

func (c *Caller) config(to Purpose, of logicalcluster.Name) *rest.Config {
	return &rest.Config{
		UserAgent: userAgent,
		Timeout:   callTimeout,
		Dial:      c.dialer.DialContext,
		// Otherwise little that is sent may be much that is read, at the cost of this server's CPU.
		DisableCompression: true,
		// That there is a function keeps client-go from keeping the transport for ever, too.
		Proxy: func(*http.Request) (*url.URL, error) { return nil, nil },
		WrapTransport: func(next http.RoundTripper) http.RoundTripper {
			if made, ok := next.(*http.Transport); ok { // not yet in use: it was made for this client
				made.MaxIdleConnsPerHost, made.IdleConnTimeout = idleConnections, idleTimeout
				made.MaxResponseHeaderBytes = maxAnswerHeader
			}
			return answers{noRedirects{next}, boundsOf[to], c.budget, of}
		},
	}
}

// Service says at which host and port a port of a Service is reached, or why it is not: to people.
type Service func(ctx context.Context, namespace, name string, port int32) (address string, err error)

// Services finds Services by where.
func Services(where Service) webhook.ServiceResolver { return services{where} }

type services struct{ where Service }

// ResolveEndpoint says where a Service is reached. Upstream asks when it connects; the certificate is that of
// <name>.<namespace>.svc wherever that is.
func (s services) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	address, err := s.where(ctx, namespace, name, port)
	if err != nil {
		return nil, fmt.Errorf("the Service %s/%s cannot be called: %w; give the webhook a url instead of a service", namespace, name, err)
	}
	return &url.URL{Scheme: "https", Host: address}, nil
}
