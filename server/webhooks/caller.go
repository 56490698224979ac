package webhooks

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"syscall"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"atoll.dev/atoll/internal/budget"
)

const (
	// dialTimeout and callTimeout bound what has no bound of its own; callTimeout is kube-apiserver's.
	dialTimeout = 10 * time.Second
	callTimeout = 30 * time.Second
	// Connections kept to one webhook between calls, and for how long. Each is two goroutines.
	idleConnections = 2
	idleTimeout     = 15 * time.Second
	// Connections to one webhook that is a Service, at a time, and how long they are kept: they go through what many share, and who finds none waits.
	serviceConnections = 10
	serviceIdleTimeout = 5 * time.Second
	// maxAnswerHeader in bytes; see answers.go for the body.
	maxAnswerHeader = 64 << 10
	// userAgent is kube-apiserver's.
	userAgent = "kube-apiserver-admission"
)

// Caller makes what upstream's clients of webhooks connect with.
type Caller struct {
	addresses Addresses
	dialer    *net.Dialer
	budget    *budget.Budget
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

// Resolver is for what webhooks of a logical cluster are called for; its Services are found by where. It ignores what it wraps: what upstream would add are credentials.
func (c *Caller) Resolver(to Purpose, of logicalcluster.Name, where Service) webhook.AuthenticationInfoResolverWrapper {
	return func(webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
		return &webhook.AuthenticationInfoResolverDelegator{
			ClientConfigForFunc: func(string) (*rest.Config, error) { return c.config(to, of, idleTimeout, 0), nil },
			ClientConfigForServiceFunc: func(name, namespace string, port int) (*rest.Config, error) {
				config := c.config(to, of, serviceIdleTimeout, serviceConnections)
				config.Dial = c.dialService(where, namespace, name, int32(port))
				return config, nil
			},
		}
	}
}

// config is for a client of one webhook, of which connections are kept for idle, and so many at most are at a time; any number if that is 0.
func (c *Caller) config(to Purpose, of logicalcluster.Name, idle time.Duration, most int) *rest.Config {
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
				made.MaxIdleConnsPerHost, made.IdleConnTimeout, made.MaxConnsPerHost = idleConnections, idle, most
				made.MaxResponseHeaderBytes = maxAnswerHeader
			}
			return answers{noRedirects{next}, boundsOf[to], c.budget, of}
		},
	}
}

type turnKey struct{}

// WithTurn returns a context with which a webhook is called only after take has returned without an error. It is asked before
// each call, also at once.
func WithTurn(ctx context.Context, take func() error) context.Context {
	return context.WithValue(ctx, turnKey{}, take)
}

// turn takes what a call with that context has to wait for, if there is such.
func turn(ctx context.Context) error {
	if take, ok := ctx.Value(turnKey{}).(func() error); ok {
		return take()
	}
	return nil
}

// Service says how a port of a Service is reached, or why it is not: to people.
type Service func(ctx context.Context, namespace, name string, port int32) (Way, error)

// Way leads to a port of a Service: Dial connects to it, where that is not nil; else it is at an address, which is dialed if Addresses allow it.
type Way struct {
	Address string // host:port
	Dial    func(context.Context) (net.Conn, error)
}

// dialService connects to a Service, wherever upstream thinks that it is. The certificate is that of <name>.<namespace>.svc wherever that is.
func (c *Caller) dialService(where Service, namespace, name string, port int32) func(context.Context, string, string) (net.Conn, error) {
	return func(asked context.Context, network, _ string) (net.Conn, error) {
		// The server itself looks for it: who is admitted, and what he asks for, is nothing to that.
		ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
		defer cancel()
		defer context.AfterFunc(asked, cancel)()
		conn, err := func() (net.Conn, error) {
			way, err := where(ctx, namespace, name, port)
			switch {
			case err != nil:
				return nil, err
			case way.Dial != nil:
				return way.Dial(ctx)
			}
			return c.dialer.DialContext(ctx, network, way.Address)
		}()
		if err != nil {
			return nil, fmt.Errorf("the Service %s/%s cannot be called: %w", namespace, name, err)
		}
		return conn, nil
	}
}

// Services leaves it to the connections of a Resolver where Services are.
func Services() webhook.ServiceResolver { return services{} }

type services struct{}

// ResolveEndpoint implements webhook.ServiceResolver. Nothing resolves what it returns.
func (services) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	return &url.URL{Scheme: "https", Host: net.JoinHostPort(name+"."+namespace+".svc", strconv.Itoa(int(port)))}, nil
}
