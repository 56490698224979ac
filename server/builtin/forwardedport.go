package builtin

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	api "k8s.io/kubernetes/pkg/apis/core"
)

// mostSilence is how long a proxy lasts in which neither side sends anything. That a client has left, a server of HTTP/1.1 does not see while the
// pod reads no more of what he sent, or if he sent more than his request: he would hold a stream of all who use the physical cluster, with no
// connection of his own. Load balancers give up after a minute or a few.
const mostSilence = 10 * time.Minute

// silentError says that a proxy has ended since nothing went through it for that long.
type silentError struct{ most time.Duration }

func (e *silentError) Error() string {
	return fmt.Sprintf("it has ended, since nothing was sent and nothing answered for %s", e.most)
}

// lifetime is how long a proxy lasts, as far as that is not for its client to say.
type lifetime struct {
	mu      sync.Mutex // guards what follows
	cancel  context.CancelCauseFunc
	most    time.Duration // in which nothing goes through it
	silence *time.Timer
	heard   bool // of the pod
	isOver  bool
}

func startLifetime(mostSilence time.Duration, cancel context.CancelCauseFunc) *lifetime {
	l := &lifetime{cancel: cancel, most: mostSilence}
	l.silence = time.AfterFunc(mostSilence, func() { l.end(&silentError{mostSilence}) })
	return l
}

// end ends the proxy, unless it is over.
func (l *lifetime) end(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.isOver {
		l.cancel(why)
	}
}

// answered says that the pod has answered. What it sends before reaches no client: he would hold a stream for as long as it likes.
func (l *lifetime) answered() {
	l.mu.Lock()
	l.heard = true
	l.mu.Unlock()
	l.breaksSilence(true)
}

// breaksSilence says that something went through, of the pod or to it.
func (l *lifetime) breaksSilence(ofPod bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.isOver && (l.heard || !ofPod) {
		l.silence.Reset(l.most)
	}
}

// over says that the proxy has ended, whoever still reads and writes: nothing ends it any more.
func (l *lifetime) over() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isOver = true
	l.silence.Stop()
}

// forward returns a transport whose connections are to ports of the pod that was found, whatever host they name. They end with ctx, which the lifetime ends.
func (c connections) forward(ctx context.Context, life *lifetime) (http.RoundTripper, error) {
	dial, err := c.forwards(ctx, life)
	if err != nil {
		return nil, err
	}
	return &http.Transport{
		DialContext: func(_ context.Context, _, address string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			return dial(port)
		},
		// Whose certificate a pod has, nobody knows: it is reached by what it is, as kubelets reach it for probes. An address as its name has it told none.
		TLSClientConfig:        &tls.Config{InsecureSkipVerify: true, ServerName: "127.0.0.1"}, //nolint:gosec // the pod is known by its UID where it runs
		TLSHandshakeTimeout:    handshakeTakes,
		MaxResponseHeaderBytes: mostOfHead,
		DisableKeepAlives:      true,
		DisableCompression:     true, // what the client accepts is his to say, and nothing is unpacked here
	}, nil
}

// forwards returns what connects to ports of the pod that was found, over a connection each. These end with ctx, which the lifetime ends.
func (c connections) forwards(ctx context.Context, life *lifetime) (dial func(port string) (net.Conn, error), err error) {
	pod, ok := ctx.Value(podKey{}).(*api.Pod)
	if !ok {
		return nil, apierrors.NewInternalError(errors.New("no pod was looked for"))
	}
	kubelet, err := c.GetConnectionInfo(ctx, types.NodeName(pod.Spec.NodeName))
	if err != nil {
		return nil, err
	}
	at := &url.URL{Scheme: kubelet.Scheme, Host: net.JoinHostPort(kubelet.Hostname, kubelet.Port), Path: fmt.Sprintf("/portForward/%s/%s", pod.Namespace, pod.Name)}
	return func(port string) (net.Conn, error) {
		conn, err := dialKubelet(ctx, kubelet.Transport, at)
		if err != nil {
			return nil, err
		}
		forwarded, err := newForwardedPort(ctx, conn, port, life)
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		return forwarded, nil
	}, nil
}

// mostTried is how many pods are tried of those that answer for a Service.
const mostTried = 3

// DialService connects to a port of one of the Ready pods that a Service of ctx's logical cluster selects, through what answers for it where it runs, until the connection is closed, or is silent for too
// long. Where one cannot be reached, another is tried, in another physical cluster if there is one. It waits for room among what is open to webhooks. ctx bounds how long it takes; errors are for people.
func (w *Ways) DialService(ctx context.Context, service *api.Service, of *api.ServicePort) (net.Conn, error) {
	c := connections{Ways: w, counted: w.hooks}
	found, err := c.behind(genericapirequest.WithNamespace(ctx, service.Namespace), service, of)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, to := range found[:min(len(found), mostTried)] {
		conn, err := c.dial(ctx, to)
		if err == nil {
			return conn, nil
		}
		if errs = append(errs, fmt.Errorf("port %d of pod %q, in physical cluster %q: %w", to.port, to.pod.Name, to.pod.Spec.NodeName, err)); ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// dial connects to a port of a pod that a container declares: nobody asks, whose right to others could be looked at (allow).
func (c connections) dial(ctx context.Context, to podPort) (net.Conn, error) {
	if !declares(to.pod, to.port) {
		return nil, errors.New("no container declares that port: declare it in the pod's spec")
	}
	open, end := context.WithCancelCause(context.WithValue(context.WithoutCancel(ctx), podKey{}, to.pod))
	connected := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	life := startLifetime(mostSilence, end)
	dial, err := c.forwards(open, life)
	var conn net.Conn
	if err == nil {
		conn, err = dial(strconv.Itoa(int(to.port)))
	}
	if !connected() { // it has ended with who waited for it, whatever came of it
		if why := context.Cause(ctx); err == nil {
			err = why
		} else {
			err = fmt.Errorf("%w: %w", why, err)
		}
	}
	if err != nil {
		life.over()
		end(err) // which closes the connection, too
		return nil, err
	}
	life.answered() // from here on either side breaks its silence
	return &keptPort{conn, life, end}, nil
}

// keptPort is a connection to a port of a pod that outlives who asked for it.
type keptPort struct {
	net.Conn
	life *lifetime
	end  context.CancelCauseFunc
}

// Close ends what the connection is made over, and then the connection, which says goodbye first: a peer that reads nothing would hold that for ever.
func (p *keptPort) Close() error {
	p.life.over()
	p.end(net.ErrClosed)
	return p.Conn.Close()
}

// dialKubelet connects to a kubelet to forward a port of a pod.
func dialKubelet(ctx context.Context, through http.RoundTripper, portForward *url.URL) (httpstream.Connection, error) {
	upgrade, err := spdy.NewRoundTripperWithConfig(spdy.RoundTripperConfig{UpgradeTransport: through})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, portForward.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set(httpstream.HeaderProtocolVersion, portforward.PortForwardProtocolV1Name)
	resp, err := upgrade.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	return upgrade.NewConnection(resp)
}

// forwardedPort is a connection to a port of a pod, over one of the kubelet's that has no other. It ends with its context: spdystream has no deadlines.
type forwardedPort struct {
	httpstream.Stream
	conn     httpstream.Connection
	ctx      context.Context // the proxy's
	life     *lifetime
	deadline *time.Timer

	told    chan struct{} // closed when the kubelet has said why there is none, or that there was one
	refused string        // what it said; read it after told
}

const (
	// mostOfProblem is how much is read of why a port is not forwarded, in bytes.
	mostOfProblem = 4 << 10
	// problemTakes is how long it is waited for, when the port sends nothing more: it is the kubelet's next word.
	problemTakes = time.Second
)

// newForwardedPort opens a port over a connection to a kubelet, which ends with ctx. What is below of that has to end with it, too: Close writes first, which
// waits for a peer that does not read. And Close alone ends who reads its streams.
func newForwardedPort(ctx context.Context, conn httpstream.Connection, port string, life *lifetime) (*forwardedPort, error) {
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	headers := func(kind string) http.Header {
		return http.Header{corev1.StreamType: {kind}, corev1.PortHeader: {port}, corev1.PortForwardRequestIDHeader: {"0"}}
	}
	problems, err := conn.CreateStream(headers(corev1.StreamTypeError))
	if err != nil {
		return nil, fmt.Errorf("forward port %s: %w", port, err)
	}
	if err := problems.Close(); err != nil { // nothing is written to it
		return nil, fmt.Errorf("forward port %s: %w", port, err)
	}
	data, err := conn.CreateStream(headers(corev1.StreamTypeData))
	if err != nil {
		return nil, fmt.Errorf("forward port %s: %w", port, err)
	}
	p := &forwardedPort{Stream: data, conn: conn, ctx: ctx, life: life, told: make(chan struct{})}
	p.deadline = time.AfterFunc(mostSilence, func() { life.end(fmt.Errorf("port %s: %w", port, context.DeadlineExceeded)) })
	p.deadline.Stop()
	go func() {
		defer close(p.told)
		said, err := io.ReadAll(io.LimitReader(problems, mostOfProblem+1))
		switch {
		case len(said) > mostOfProblem: // what follows would be kept for nobody
			p.refused = fmt.Sprintf("its kubelet says more than %d bytes about port %s", mostOfProblem, port)
			life.end(errors.New(p.refused))
		case err == nil:
			// The port has ended for the kubelet. What it sent before may still be on its way here: the kubelet ends that, too.
			p.refused = strings.TrimSpace(string(said))
		}
	}()
	return p, nil
}

// Read reads what the port sends, and says why there is none.
func (p *forwardedPort) Read(b []byte) (int, error) {
	n, err := p.Stream.Read(b)
	if n > 0 {
		p.life.breaksSilence(true)
	}
	if err == nil {
		return n, nil
	}
	if p.ctx.Err() != nil { // to spdystream it is an end like any other
		return n, fmt.Errorf("%w: %w", io.ErrUnexpectedEOF, context.Cause(p.ctx))
	}
	select {
	case <-p.told:
		if p.refused != "" {
			err = errors.New(p.refused)
		}
	case <-time.After(problemTakes):
	}
	return n, err
}

// Write writes to the port.
func (p *forwardedPort) Write(b []byte) (int, error) {
	n, err := p.Stream.Write(b)
	if n > 0 {
		p.life.breaksSilence(false)
	}
	return n, err
}

// Close ends the kubelet's connection.
func (p *forwardedPort) Close() error {
	p.deadline.Stop()
	return p.conn.Close()
}

// What a connection of a machine has besides, one over another has not.

// LocalAddr implements net.Conn.
func (*forwardedPort) LocalAddr() net.Addr { return forwardedAddr{} }

// RemoteAddr implements net.Conn.
func (*forwardedPort) RemoteAddr() net.Addr { return forwardedAddr{} }

// SetDeadline implements net.Conn: the proxy ends then, and the last that was set counts. crypto/tls alone sets some, when it says goodbye to a pod that may
// read nothing. One that has passed means that nothing follows but Close.
func (p *forwardedPort) SetDeadline(at time.Time) error {
	if left := time.Until(at); !at.IsZero() && left > 0 {
		p.deadline.Reset(left)
	} else {
		p.deadline.Stop()
	}
	return nil
}

// SetReadDeadline implements net.Conn.
func (p *forwardedPort) SetReadDeadline(at time.Time) error { return p.SetDeadline(at) }

// SetWriteDeadline implements net.Conn.
func (p *forwardedPort) SetWriteDeadline(at time.Time) error { return p.SetDeadline(at) }

type forwardedAddr struct{}

func (forwardedAddr) Network() string { return "forwarded" }
func (forwardedAddr) String() string  { return "forwarded" }
