package syncer

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

const (
	// tunnelPatience is how long a server may take to answer who asks for a tunnel.
	tunnelPatience = 10 * time.Second
	// longestTunnelRetry is the longest time between two tries to open a tunnel, to a server that refuses or to one that has none yet, without
	// the half that is added by lot.
	longestTunnelRetry = 40 * time.Second
	// nextServer is after what time another server is asked for, when one has taken a tunnel.
	nextServer = time.Second
	// mostServers bounds how many servers at one address are believed, and mostOfServer the tunnels to each: two, where one of them is lost
	// and that does not show here yet.
	mostServers, mostOfServer = 32, 2
)

// TunnelsConfig is what Tunnels need. All fields are required.
type TunnelsConfig struct {
	// Name and UID of the SyncTarget.
	Name, UID string
	// Mirror reaches the mirror: its host ends in /clusters/<mirror>, and its transport is an *http.Transport.
	Mirror *rest.Config
	// Physical reaches the physical cluster.
	Physical *rest.Config
}

// Tunnels keep the pods of a physical cluster in reach of the servers, for logs and streams, from within: over connections that go out.
// At one address may be several servers, each of which needs one. Whoever is asked says which it is, so the syncer asks until it
// has found them all, and goes on asking, rarely, since there may be more.
type Tunnels struct {
	end       tunnelEnd
	url       *url.URL
	transport http.RoundTripper
}

// NewTunnels returns Tunnels that do nothing before Run.
func NewTunnels(c TunnelsConfig) (*Tunnels, error) {
	if c.Name == "" || c.UID == "" || c.Mirror == nil || c.Physical == nil {
		return nil, errors.New("make tunnels: name, UID and both configurations are needed")
	}
	mirror, err := url.Parse(c.Mirror.Host)
	if err != nil {
		return nil, fmt.Errorf("read the address of the mirror: %w", err)
	}
	transport, err := upgradeable(c.Mirror)
	if err != nil {
		return nil, fmt.Errorf("make a client for the mirror of %s: %w", c.Name, err)
	}
	return &Tunnels{
		end: tunnelEnd{cluster: c.Name, target: types.UID(c.UID), physical: c.Physical},
		url: tunnelURL(mirror, c.Name), transport: transport,
	}, nil
}

// upgradeable returns what asks at cfg over a new connection each time, which can become something else: not over HTTP/2, and without
// what stands around cfg's transport, which knows requests and answers only.
func upgradeable(cfg *rest.Config) (http.RoundTripper, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.WrapTransport = nil
	given, ok := cfg.Transport.(*http.Transport)
	if !ok {
		return nil, fmt.Errorf("its transport is a %T, whose connections cannot be taken over", cfg.Transport)
	}
	plain := given.Clone()
	if plain.TLSClientConfig != nil {
		plain.TLSClientConfig.NextProtos = []string{"http/1.1"}
	}
	plain.ForceAttemptHTTP2, plain.DisableKeepAlives = false, true
	plain.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	return rest.HTTPWrappersForConfig(cfg, plain)
}

// errHeld is the answer of a server to which there is a tunnel already.
var errHeld = errors.New("the server has a tunnel of this syncer")

// Run keeps tunnels until ctx ends, and answers on them. What is wrong it tells once, and tries again.
func (t *Tunnels) Run(ctx context.Context) {
	var answering wait.Group
	defer answering.Wait()
	type end struct {
		server string
		lived  time.Duration
	}
	ended := make(chan end)
	held := map[string]int{} // by server
	pause := newTunnelPause()
	logger := klog.FromContext(ctx)
	for told := ""; ctx.Err() == nil; {
		conn, server, err := t.dial(ctx, held)
		var next <-chan time.Time // when the next server is asked for; nil: when this tunnel has ended
		switch {
		case err == nil:
			logger.Info("Logs and streams of this cluster go through this syncer", "hub", t.url.Host, "server", cmp.Or(server, "alone"))
			held[server]++
			told = ""
			if server != "" {
				next = time.After(nextServer)
			}
			began := time.Now()
			answering.Start(func() {
				if err := t.end.serve(ctx, conn); err != nil {
					logger.Error(err, "Cannot answer for logs and streams")
				}
				select {
				case ended <- end{server, time.Since(began)}:
				case <-ctx.Done():
				}
			})
		case errors.Is(err, errHeld):
			told, next = "", time.After(pause.Step())
		default:
			if err.Error() != told && ctx.Err() == nil {
				told = err.Error()
				logger.Info("Logs and streams of this cluster are not in reach of the hub, will try again", "hub", t.url.Host, "err", err)
			}
			next = time.After(pause.Step())
		}
		for waiting := true; waiting; {
			select {
			case <-next:
				waiting = false
			case e := <-ended:
				logger.Info("The connection for logs and streams has ended, will open another", "hub", t.url.Host, "server", cmp.Or(e.server, "alone"), "after", e.lived)
				if held[e.server]--; held[e.server] == 0 {
					delete(held, e.server)
				}
				if e.lived >= longestTunnelRetry { // not one that is ended as soon as it is there
					pause = newTunnelPause()
				}
				next = time.After(pause.Step())
			case <-ctx.Done():
				waiting = false
			}
		}
	}
}

func newTunnelPause() *wait.Backoff {
	return &wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.5, Steps: 1 << 20, Cap: longestTunnelRetry}
}

// dial opens a tunnel, and returns which server is at its end, "" for one that is alone. held is how many each has that has one.
func (t *Tunnels) dial(ctx context.Context, held map[string]int) (conn net.Conn, server string, err error) {
	ctx, cancel := context.WithTimeout(ctx, tunnelPatience)
	defer cancel() // a connection that was taken over does not end with it
	upgraded := &upgradedConn{}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) { upgraded.Conn = got.Conn }})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url.String(), nil)
	if err != nil {
		return nil, "", fmt.Errorf("ask for a tunnel: %w", err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", workloadv1alpha1.TunnelProtocol)
	req.Header.Set("User-Agent", workloadv1alpha1.FieldManager)
	if len(held) > 0 {
		req.Header.Set(workloadv1alpha1.TunnelHeldHeader, strings.Join(slices.Sorted(maps.Keys(held)), ","))
	}
	answer, err := t.transport.RoundTrip(req)
	if err != nil {
		return nil, "", fmt.Errorf("ask for a tunnel: %w", err)
	}
	if answer.StatusCode == http.StatusSwitchingProtocols {
		body, ok := answer.Body.(io.ReadWriteCloser)
		server, protocol := answer.Header.Get(workloadv1alpha1.TunnelServerHeader), answer.Header.Get("Upgrade")
		switch {
		case !ok || protocol != workloadv1alpha1.TunnelProtocol: // and nothing is read, of which nobody says when it ends
			err = fmt.Errorf("ask for a tunnel: the answer is %q, want %q: is a proxy in the way?", protocol, workloadv1alpha1.TunnelProtocol)
		case len(held) >= mostServers && held[server] == 0:
			err = fmt.Errorf("ask for a tunnel: there are more than %d servers at this address", mostServers)
		case held[server] >= mostOfServer:
			err = fmt.Errorf("ask for a tunnel: server %.80q, which has %d, takes another", server, held[server])
		default:
			upgraded.body = body
			return upgraded, server, nil
		}
		_ = answer.Body.Close() // whoever sent that knows
		return nil, "", err
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, mostOfRefusal))
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return nil, "", fmt.Errorf("ask for a tunnel: %w", err)
	}
	if answer.StatusCode == http.StatusConflict {
		return nil, "", errHeld
	}
	return nil, "", fmt.Errorf("ask for a tunnel: %s: %s", answer.Status, cmp.Or(messageOf(text), "is the server of an earlier version, or a proxy before it in the way?"))
}

// upgradedConn is a connection on which a request has been answered, and that is ours then. What came with the answer is in the body.
type upgradedConn struct {
	net.Conn
	body io.ReadWriteCloser
}

func (c *upgradedConn) Read(p []byte) (int, error)  { return c.body.Read(p) }
func (c *upgradedConn) Write(p []byte) (int, error) { return c.body.Write(p) }
func (c *upgradedConn) Close() error                { return c.body.Close() }
