package syncer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"golang.org/x/net/http2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// A tunnel is a connection that a syncer in its cluster has opened to a server. On it the server asks, as a client of HTTP/2, and the
// syncer answers. Each request is a stream to one pod: what it carries both ways is a connection to the kubelet that the syncer is for
// that pod.

const (
	// tunnelPing is after what time without a word either end asks the other whether it is there, and tunnelPingTimeout how long it waits
	// for the answer. Both together are less than the silence after which a physical cluster is not Ready; and load balancers that end
	// what is idle wait longer.
	tunnelPing        = 10 * time.Second
	tunnelPingTimeout = 10 * time.Second
	// tunnelWrite is how long either end waits for the other to take a byte.
	tunnelWrite = 20 * time.Second
	// mostUnread is how much of a stream either end takes before somebody reads it, in bytes: what a network with a round trip of 50 ms
	// has under way at 10 MB/s. No stream waits for what is not read of another.
	mostUnread = 512 << 10
	// tunnelFrame is the largest piece of a stream, in bytes: others wait for one at most, and the server keeps as much for each stream.
	tunnelFrame = 16 << 10
	// mostTunnelStreams is how many streams one tunnel has at once. The server asks for mostStreamsOfCluster at most (server/builtin).
	mostTunnelStreams = 1024
	// mostTunnelHeader bounds what a head says, in bytes.
	mostTunnelHeader = 64 << 10
	// tunnelPath is what a stream to a pod is asked for at.
	tunnelPath = "/pod"
)

// query is how a tunnel says which pod.
func (p shownPod) query() url.Values {
	return url.Values{
		"workspace": {p.workspace.String()}, "namespace": {p.namespace},
		"namespaceBelow": {p.below.Namespace}, "nameBelow": {p.below.Name}, "uid": {string(p.uid)},
	}
}

func podAskedFor(query url.Values) shownPod {
	return shownPod{
		workspace: logicalcluster.Name(query.Get("workspace")), namespace: query.Get("namespace"),
		below: types.NamespacedName{Namespace: query.Get("namespaceBelow"), Name: query.Get("nameBelow")},
		uid:   types.UID(query.Get("uid")),
	}
}

// tunnel is the server's end.
type tunnel struct {
	client   *http2.ClientConn
	conn     *noticed
	replaced atomic.Bool // by a newer one
}

// newTunnel takes a connection over. What the other end answers is believed as little as what a physical cluster does.
func newTunnel(conn net.Conn) (*tunnel, error) {
	bounds := &http.Transport{DisableCompression: true, HTTP2: &http.HTTP2Config{
		MaxReceiveBufferPerStream: mostUnread, MaxReceiveBufferPerConnection: mostTunnelStreams * mostUnread,
		SendPingTimeout: tunnelPing, PingTimeout: tunnelPingTimeout, WriteByteTimeout: tunnelWrite,
	}}
	transport, err := http2.ConfigureTransports(bounds)
	if err != nil {
		return nil, fmt.Errorf("speak HTTP/2: %w", err)
	}
	transport.MaxHeaderListSize = mostTunnelHeader
	ours := &noticed{Conn: conn, closed: make(chan struct{})}
	client, err := transport.NewClientConn(ours)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("speak HTTP/2: %w", err), ours.Close())
	}
	return &tunnel{client: client, conn: ours}, nil
}

// ended is closed when the tunnel is: by us, by the other end, or since that did not answer.
func (t *tunnel) ended() <-chan struct{} { return t.conn.closed }

// close ends the tunnel with all its streams.
func (t *tunnel) close() {
	_ = t.client.Close() // the other end may be gone
	_ = t.conn.Close()
}

// reach finds a pod of the physical cluster of that name at the other end, and returns how to connect to what answers for it.
func (t *tunnel) reach(ctx context.Context, cluster string, pod shownPod) (dial func() net.Conn, err error) {
	r := &relay{cluster: cluster, at: atKubelet, patience: requestTimeout, noMetrics: earlierSyncer, noResize: earlierSyncerNoResize}
	conn, err := t.open(ctx, r, pod)
	if err != nil {
		return nil, err
	}
	once := make(chan net.Conn, 1)
	once <- conn
	plain := &http.Transport{
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: mostTunnelHeader,
		DialContext: func(context.Context, string, string) (net.Conn, error) { // whose context may end when the connection is there
			select {
			case conn := <-once:
				return conn, nil
			default:
				return t.open(ctx, r, pod)
			}
		},
	}
	r.transport, r.forget = plain, plain.CloseIdleConnections
	return func() net.Conn {
		ours, theirs := net.Pipe()
		go r.serveConn(ctx, theirs, pod)
		return ours
	}, nil
}

// atKubelet is where a kubelet answers for what relay.at is asked. Which pod it is, the stream said that leads there.
func atKubelet(pod shownPod, subresource, container string, asked url.Values) *url.URL {
	paths := map[string]string{"log": "containerLogs", "exec": "exec", "attach": "attach", "portforward": "portForward", metricsOfPod: "podMetrics", metricsOfNamespace: "podMetrics", resizeSubresource: "resize"}
	name := pod.below.Name
	if subresource == metricsOfNamespace {
		name = ""
	}
	at := (&url.URL{Scheme: "http", Host: "kubelet", Path: "/"}).JoinPath(paths[subresource], pod.below.Namespace, name, container)
	at.RawQuery = asked.Encode()
	return at
}

// open asks the other end for a stream to a pod. It ends with ctx, whether somebody uses it or not.
func (t *tunnel) open(ctx context.Context, r *relay, pod shownPod) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(kubeletPatience, cancel)
	reading, writing := io.Pipe()
	at := url.URL{Scheme: "http", Host: "syncer", Path: tunnelPath, RawQuery: pod.query().Encode()}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at.String(), reading)
	if err != nil {
		cancel()
		return nil, apierrors.NewInternalError(err)
	}
	answer, err := t.client.RoundTrip(req)
	if err != nil {
		cancel()
		return nil, r.errAway(ctx, err)
	}
	conn := &streamConn{Reader: answer.Body, Writer: writing, close: sync.OnceValue(func() error {
		cancel()
		return errors.Join(writing.Close(), answer.Body.Close())
	})}
	context.AfterFunc(ctx, func() { _ = conn.Close() }) // which HTTP/2 looks at until the answer begins
	if answer.StatusCode == http.StatusOK && late.Stop() {
		return conn, nil
	}
	words, err := io.ReadAll(io.LimitReader(answer.Body, mostOfRefusal))
	_ = conn.Close() // nobody is left to be told
	switch {
	case err != nil:
		return nil, r.errAway(ctx, err)
	case answer.StatusCode == http.StatusNotFound:
		return nil, r.errGone(pod)
	}
	return nil, r.errRefused(answer.StatusCode, string(words))
}

// streamConn is a stream of a tunnel as a connection.
type streamConn struct {
	io.Reader
	io.Writer
	close func() error
}

var _ net.Conn = &streamConn{}

func (c *streamConn) Close() error { return c.close() }

// LocalAddr and the rest of net.Conn: nobody asks for these.
func (c *streamConn) LocalAddr() net.Addr              { return &net.UnixAddr{Name: "tunnel", Net: "unix"} }
func (c *streamConn) RemoteAddr() net.Addr             { return c.LocalAddr() }
func (c *streamConn) SetDeadline(time.Time) error      { return os.ErrNoDeadline }
func (c *streamConn) SetReadDeadline(time.Time) error  { return os.ErrNoDeadline }
func (c *streamConn) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }

// noticed is a connection whose end shows.
type noticed struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (n *noticed) Close() error {
	n.once.Do(func() { close(n.closed) })
	return n.Conn.Close()
}

// tunnelEnd is the syncer's end: it answers for pods of one physical cluster, that of the SyncTarget with that name and UID.
type tunnelEnd struct {
	cluster  string
	target   types.UID
	physical *rest.Config
}

// serve answers on one connection until that is closed or ctx ends.
func (e *tunnelEnd) serve(ctx context.Context, conn net.Conn) error {
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // the other end sees it
	base := &http.Server{Handler: e, MaxHeaderBytes: mostTunnelHeader}
	server := &http2.Server{
		MaxConcurrentStreams:     mostTunnelStreams,
		MaxUploadBufferPerStream: mostUnread, MaxUploadBufferPerConnection: mostTunnelStreams * mostUnread,
		MaxReadFrameSize: tunnelFrame,
		ReadIdleTimeout:  tunnelPing, PingTimeout: tunnelPingTimeout, WriteByteTimeout: tunnelWrite,
	}
	if err := http2.ConfigureServer(base, server); err != nil {
		return fmt.Errorf("speak HTTP/2: %w", err)
	}
	server.ServeConn(conn, &http2.ServeConnOpts{Context: ctx, BaseConfig: base})
	return nil
}

// ServeHTTP answers for one stream.
func (e *tunnelEnd) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path != tunnelPath || req.Method != http.MethodPost {
		http.Error(w, fmt.Sprintf("%s %s is not known to the syncer: it may be older than the server", req.Method, req.URL.Path), http.StatusNotImplemented)
		return
	}
	ctx, cancel := context.WithCancel(req.Context())
	defer cancel()
	// What the server leaves is read no more: of that HTTP/2 would count what it has given back.
	defer context.AfterFunc(ctx, func() { _ = req.Body.Close() })()
	pod := podAskedFor(req.URL.Query())
	// For each stream, as the server does where it reaches the cluster itself: nothing is kept.
	k, err := newKubelet(e.cluster, e.target, e.physical)
	if err == nil {
		err = k.find(ctx, pod)
	} else {
		klog.FromContext(ctx).Error(err, "No way to the pods of this cluster")
		err = apierrors.NewServiceUnavailable(fmt.Sprintf("physical cluster %q cannot be reached by its syncer", e.cluster))
	}
	if err != nil {
		code := http.StatusInternalServerError
		var status apierrors.APIStatus
		if errors.As(err, &status) {
			code = int(status.Status().Code)
		}
		http.Error(w, err.Error(), code)
		return
	}
	w.WriteHeader(http.StatusOK)
	up := flushing{w, http.NewResponseController(w)}
	if err := up.Flush(); err != nil {
		return // the stream has ended
	}
	ours, theirs := net.Pipe()
	var copying sync.WaitGroup
	copying.Go(func() { k.serveConn(ctx, theirs, pod) })
	copying.Go(func() {
		defer cancel()
		defer ours.Close()             //nolint:errcheck // in memory
		_, _ = io.Copy(ours, req.Body) // until either end has had enough
	})
	_, _ = io.Copy(up, ours) // the same
	cancel()
	_ = ours.Close()
	_ = req.Body.Close()
	copying.Wait()
}

// flushing writes at once.
type flushing struct {
	io.Writer
	*http.ResponseController
}

func (f flushing) Write(p []byte) (int, error) {
	n, err := f.Writer.Write(p)
	return n, cmp.Or(err, f.Flush())
}

// tunnels are those of a server, one of each mirror.
type tunnels struct {
	mu sync.Mutex
	of map[logicalcluster.Name]*tunnel
}

// get returns that of a mirror, nil if there is none. One that takes no more streams is none: it ends, so that the syncer opens another.
func (t *tunnels) get(mirror logicalcluster.Name) *tunnel {
	t.mu.Lock()
	this := t.of[mirror]
	t.mu.Unlock()
	if this != nil && this.client.State().Closing {
		this.close()
		return nil
	}
	return this
}

var (
	errReplaced = errors.New("the syncer has opened another")
	errCut      = errors.New("the other end has ended it, or does not answer")
)

// hold keeps a connection as the tunnel of a mirror until it or ctx ends, or a newer one is there: a syncer that opens another has lost
// the one before, or is another replica. It returns which of these it was.
func (t *tunnels) hold(ctx context.Context, mirror logicalcluster.Name, conn net.Conn) error {
	this, err := newTunnel(conn)
	if err != nil {
		return err
	}
	defer this.close()
	t.mu.Lock()
	former := t.of[mirror]
	if t.of == nil {
		t.of = map[logicalcluster.Name]*tunnel{}
	}
	t.of[mirror] = this
	t.mu.Unlock()
	if former != nil {
		former.replaced.Store(true)
		former.close()
	}
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.of[mirror] == this {
			delete(t.of, mirror)
		}
	}()
	select {
	case <-this.ended():
		if this.replaced.Load() {
			return errReplaced
		}
		return errCut
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// tunnelURL is where a syncer asks for its tunnel.
func tunnelURL(mirror *url.URL, target string) *url.URL {
	return mirror.JoinPath("apis", syncTargetsGVR.Group, syncTargetsGVR.Version, syncTargetsGVR.Resource, target, workloadv1alpha1.TunnelSubresource)
}
