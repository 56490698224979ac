package syncer

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

const (
	// kubeletPatience is how long a kubelet waits for a connection, or for a short answer, before the cluster counts as out of
	// reach. Whoever asks waits before a terminal.
	kubeletPatience = 5 * time.Second
	// mostOfRefusal is how much of an answer that refuses something is passed on, in bytes.
	mostOfRefusal = 16 << 10
)

// shownPod says which pod of a physical cluster a pod of a workspace shows.
type shownPod struct {
	workspace logicalcluster.Name
	namespace string // of the workspace
	below     types.NamespacedName
	uid       types.UID
}

func podShownBy(row metav1.Object) shownPod {
	return shownPod{
		workspace: logicalcluster.From(row), namespace: row.GetNamespace(),
		below: types.NamespacedName{Namespace: row.GetAnnotations()[workloadv1alpha1.MirrorNamespaceAnnotation], Name: row.GetName()},
		uid:   types.UID(row.GetAnnotations()[workloadv1alpha1.PodUIDAnnotation]),
	}
}

// kubelet answers for pods of one physical cluster as a kubelet does for those of its node: what it is asked at a kubelet's paths, it
// asks the API server of the physical cluster for. Whose request it is, it does not say there: the workspace has decided that it may be.
type kubelet struct {
	relay
	target types.UID
	host   *url.URL
}

// relay answers at the paths of a kubelet with what somebody else answers, as far as that belongs to a stream.
type relay struct {
	cluster   string
	transport http.RoundTripper
	// at is where a subresource of a pod is asked for. container is "" where there is none; asked are parameters of a kubelet's paths.
	at       func(pod shownPod, subresource, container string, asked url.Values) *url.URL
	forget   func()        // closes connections that nobody uses
	patience time.Duration // how long what is to switch protocols may take to do so
	// noMetrics and noResize are why whoever answers might not know of metrics, and of resizes.
	noMetrics, noResize string
}

// newKubelet returns the kubelet of the SyncTarget with that name and UID, given how its physical cluster is reached.
func newKubelet(name string, target types.UID, physical *rest.Config) (*kubelet, error) {
	host, _, err := rest.DefaultServerUrlFor(physical)
	if err != nil {
		return nil, err
	}
	if host.Path == "" {
		host.Path = "/" // or what is joined to it has none
	}
	tlsConfig, err := rest.TLSConfigFor(physical)
	if err != nil {
		return nil, err
	}
	dial := physical.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: kubeletPatience, KeepAlive: 30 * time.Second}).DialContext
	}
	// Without HTTP/2, over which no connection can be taken over for a stream.
	plain := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: tlsConfig, TLSHandshakeTimeout: kubeletPatience, IdleConnTimeout: time.Minute,
		DisableCompression: true, DialContext: (&steady{dial: dial}).DialContext,
	}
	transport, err := rest.HTTPWrappersForConfig(physical, plain)
	if err != nil {
		return nil, err
	}
	k := &kubelet{target: target, host: host}
	k.relay = relay{cluster: name, transport: transport, at: k.below, forget: plain.CloseIdleConnections, patience: requestTimeout, noMetrics: noMetricsAPI, noResize: noResizeBelow}
	return k, nil
}

// below is where the API server of the physical cluster has a subresource of a pod.
func (k *kubelet) below(pod shownPod, subresource, container string, asked url.Values) *url.URL {
	switch subresource {
	case metricsOfPod, metricsOfNamespace:
		return k.metricsBelow(pod, subresource)
	case resizeSubresource:
		return k.mayResizeBelow(pod)
	}
	query := url.Values{}
	for name, values := range asked {
		query[parameters[subresource][name]] = values
	}
	if container != "" {
		query.Set("container", container)
	}
	at := k.host.JoinPath("api", "v1", "namespaces", pod.below.Namespace, "pods", pod.below.Name, subresource)
	at.RawQuery = query.Encode()
	return at
}

// steady dials one address: that to which the name of its host, or of the proxy to it, led at first. Where a pod was found, its stream
// goes; a name that leads elsewhere by then would have whatever answers there read to who asks.
type steady struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu      sync.Mutex
	address string // "" until somebody has answered
}

func (s *steady) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	s.mu.Lock()
	address = cmp.Or(s.address, address)
	s.mu.Unlock()
	conn, err := s.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.address = cmp.Or(s.address, conn.RemoteAddr().String())
	s.mu.Unlock()
	return conn, nil
}

// find refuses a pod that is not in the physical cluster with its UID, in a namespace that is there for its workspace's. Names say too
// little of both: others may have them by now. Who then asks by name asks for that pod, unless it is replaced by one of its name within
// the moment between: pods of Deployments and DaemonSets, whose names are random, are not.
func (k *kubelet) find(ctx context.Context, pod shownPod) error {
	if len(validation.IsDNS1123Label(pod.below.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(pod.below.Name)) > 0 {
		return apierrors.NewBadRequest(fmt.Sprintf("%q is no name of a pod", pod.below)) // nor a part of a path
	}
	ctx, cancel := context.WithTimeout(ctx, kubeletPatience)
	defer cancel()
	defer k.forget()
	namespace, err := k.metadata(ctx, "namespaces", pod.below.Namespace)
	if err != nil {
		return err
	}
	if namespace == nil || namespace.Labels[workloadv1alpha1.SyncTargetLabel] != string(k.target) ||
		namespace.Labels[workloadv1alpha1.WorkspaceLabel] != pod.workspace.String() ||
		namespace.Annotations[workloadv1alpha1.RootAnnotation] != "/"+pod.namespace {
		return k.errGone(pod)
	}
	found, err := k.metadata(ctx, "namespaces", pod.below.Namespace, "pods", pod.below.Name)
	if err != nil {
		return err
	}
	if found == nil || pod.uid == "" || found.UID != pod.uid {
		return k.errGone(pod)
	}
	return nil
}

func (r *relay) errGone(pod shownPod) error {
	err := apierrors.NewNotFound(podsGVR.GroupResource(), pod.below.Name)
	err.ErrStatus.Message = fmt.Sprintf("pod %q is not in %s any more", pod.below.Name, r.called())
	return err
}

// metadataBelow is what is read of an object's metadata. The rest, such as managedFields, would take many times its text in memory.
type metadataBelow struct {
	UID         types.UID         `json:"uid"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// metadata reads what an object of the physical cluster says of itself, nil if it is not there.
func (k *kubelet) metadata(ctx context.Context, path ...string) (*metadataBelow, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.host.JoinPath("api", "v1").JoinPath(path...).String(), nil)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	req.Header.Set("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json")
	req.Header.Set("User-Agent", workloadv1alpha1.FieldManager)
	answer, err := k.transport.RoundTrip(req)
	if err != nil {
		return nil, k.errAway(ctx, err)
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, mostTyped))
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return nil, k.errAway(ctx, err)
	}
	switch answer.StatusCode {
	case http.StatusOK:
		var object struct {
			Metadata metadataBelow `json:"metadata"`
		}
		if err := json.Unmarshal(text, &object); err != nil {
			return nil, k.errAway(ctx, err)
		}
		return &object.Metadata, nil
	case http.StatusNotFound:
		return nil, nil
	}
	return nil, k.errRefused(answer.StatusCode, messageOf(text)) // and no other text: this may not be an API server at all
}

// errRefused is an answer, as inWords has it, as the error of an API.
func (r *relay) errRefused(code int, words string) error {
	code, words = r.inWords(code, words)
	refused := apierrors.NewGenericServerResponse(code, http.MethodGet, podsGVR.GroupResource(), "", "", 0, true)
	refused.ErrStatus.Message = words
	return refused
}

// errAway says that the physical cluster does not answer. Its address is nothing to who uses a workspace.
func (r *relay) errAway(ctx context.Context, err error) *apierrors.StatusError {
	klog.FromContext(ctx).V(2).Info("A physical cluster was asked for a pod and did not answer", "cluster", r.cluster, "err", err)
	return apierrors.NewServiceUnavailable(r.called() + " does not answer")
}

// refuseAway refuses a request with errAway.
func (r *relay) refuseAway(ctx context.Context, w http.ResponseWriter, err error) {
	http.Error(w, r.errAway(ctx, err).ErrStatus.Message, http.StatusServiceUnavailable)
}

// inWords has a refusal as a kubelet writes one, as text, with a code that is true for who asks a workspace: what is not accepted is the
// syncer's credential, not his; and what is neither what was asked for nor a refusal, such as a redirect, is an answer to nobody.
func (r *relay) inWords(code int, words string) (int, string) {
	words = cmp.Or(strings.TrimSpace(words[:min(len(words), mostOfRefusal)]), fmt.Sprintf("answers %d", code))
	if code == http.StatusUnauthorized || code < 400 || code > 599 {
		code = http.StatusServiceUnavailable
	}
	if name := r.called(); !strings.HasPrefix(words, name) { // as it does where a syncer relays, too
		words = name + ": " + words
	}
	return code, words
}

// called is what the physical cluster is called in words; those of a refusal begin with it.
func (r *relay) called() string { return fmt.Sprintf("physical cluster %q", r.cluster) }

// messageOf returns what an API server says in a Status, "" if a text is none.
func messageOf(text []byte) string {
	var status struct {
		Kind    string `json:"kind"`
		Message string `json:"message"`
	}
	if json.Unmarshal(text, &status) != nil || status.Kind != "Status" {
		return ""
	}
	return status.Message
}

// parameters of a kubelet's paths, by the subresource of a pod that answers there, with what that calls them.
var parameters = map[string]map[string]string{
	"log": {
		"follow": "follow", "previous": "previous", "timestamps": "timestamps", "sinceSeconds": "sinceSeconds", "sinceTime": "sinceTime",
		"tailLines": "tailLines", "limitBytes": "limitBytes", "stream": "stream",
	},
	"exec":        {"command": "command", "input": "stdin", "output": "stdout", "error": "stderr", "tty": "tty"},
	"attach":      {"input": "stdin", "output": "stdout", "error": "stderr", "tty": "tty"},
	"portforward": {"port": "ports"},
}

// passed are the headers that go through: those of streams. Whatever else a request carries is for the workspace, or is of a user
// there, and some of it says who asks; and what an API server answers besides is of the physical cluster.
var passed = map[string]bool{
	"Connection": true, "Upgrade": true, "X-Stream-Protocol-Version": true, "X-Accepted-Stream-Protocol-Versions": true,
	"Accept": true, "Content-Type": true, "Content-Length": true, "Transfer-Encoding": true,
	"Sec-Websocket-Key": true, "Sec-Websocket-Version": true, "Sec-Websocket-Protocol": true, "Sec-Websocket-Extensions": true, "Sec-Websocket-Accept": true,
}

func keepPassed(headers http.Header) {
	maps.DeleteFunc(headers, func(name string, _ []string) bool { return !passed[name] })
}

// handler returns what answers for one pod, at the paths of a kubelet, of what the pods of its namespace use (podmetrics.go),
// and whether it may be resized (resize.go). Names of pods in these are the workspace's: which pod it is, was found before, and
// what a path says of it changes nothing.
func (r *relay) handler(pod shownPod) http.Handler {
	mux := http.NewServeMux()
	for path, subresource := range map[string]string{
		"GET /containerLogs/{namespace}/{pod}/{container}": "log",
		"GET /exec/{namespace}/{pod}/{container}":          "exec",
		"POST /exec/{namespace}/{pod}/{container}":         "exec",
		"GET /attach/{namespace}/{pod}/{container}":        "attach",
		"POST /attach/{namespace}/{pod}/{container}":       "attach",
		"GET /portForward/{namespace}/{pod}":               "portforward",
		"POST /portForward/{namespace}/{pod}":              "portforward",
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, req *http.Request) { r.stream(w, req, pod, subresource) })
	}
	for path, of := range map[string]string{
		"GET /podMetrics/{namespace}":       metricsOfNamespace,
		"GET /podMetrics/{namespace}/{pod}": metricsOfPod,
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, req *http.Request) { r.metrics(w, req, pod, of) })
	}
	mux.HandleFunc("PATCH /resize/{namespace}/{pod}", func(w http.ResponseWriter, req *http.Request) { r.mayResize(w, req, pod) })
	return mux
}

func (r *relay) stream(w http.ResponseWriter, req *http.Request, pod shownPod, subresource string) {
	asked := req.URL.Query()
	maps.DeleteFunc(asked, func(name string, _ []string) bool { return parameters[subresource][name] == "" })
	container := req.PathValue("container")
	if container != "" && len(validation.IsDNS1123Label(container)) > 0 {
		http.Error(w, fmt.Sprintf("%q is no name of a container", container), http.StatusBadRequest)
		return
	}
	at := r.at(pod, subresource, container, asked)
	ctx, cancel := context.WithCancel(req.Context())
	defer cancel()
	late := time.AfterFunc(r.patience, cancel)
	defer late.Stop()
	if subresource == "log" {
		late.Stop() // a kubelet answers nothing before a container has written something
	}
	(&httputil.ReverseProxy{
		Transport:     r.transport,
		FlushInterval: -1,
		Rewrite: func(ask *httputil.ProxyRequest) {
			ask.Out.URL, ask.Out.Host = at, ""
			keepPassed(ask.Out.Header)
			ask.Out.Header.Set("User-Agent", workloadv1alpha1.FieldManager)
		},
		ModifyResponse: func(answer *http.Response) error {
			defer late.Stop()
			return r.pass(answer)
		},
		ErrorHandler: func(w http.ResponseWriter, req *http.Request, err error) {
			r.refuseAway(req.Context(), w, err)
		},
	}).ServeHTTP(w, req.WithContext(ctx))
}

// pass lets an answer through: what was asked for, and anything else as a refusal in words.
func (r *relay) pass(answer *http.Response) error {
	keepPassed(answer.Header)
	asked := answer.Request.Header.Get("Upgrade")
	switch {
	case answer.StatusCode == http.StatusOK && asked == "":
		return nil
	case answer.StatusCode == http.StatusSwitchingProtocols:
		switched := answer.Header.Get("Upgrade")
		conn, ok := answer.Body.(io.ReadWriteCloser)
		if asked == "" || !strings.EqualFold(asked, switched) || !ok {
			return fmt.Errorf("it switches to protocol %q, asked for %q", switched, asked)
		}
		answer.Body = spdyOf(conn, switched)
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, mostOfRefusal))
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return err
	}
	code, words := r.inWords(answer.StatusCode, cmp.Or(messageOf(text), string(text)))
	answer.StatusCode, answer.Status = code, http.StatusText(code)
	answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader([]byte(words))), int64(len(words))
	answer.Header = http.Header{"Content-Type": {"text/plain; charset=utf-8"}, "Content-Length": {strconv.Itoa(len(words))}}
	return nil
}

// serveConn answers for a pod on one connection, and returns when that is closed. What it asks below ends with ctx: a connection that was
// taken over, or has a body to be read yet, is not looked at by its server, which would not see it closed.
func (r *relay) serveConn(ctx context.Context, conn net.Conn, pod shownPod) {
	defer r.forget()
	server := &http.Server{
		Handler: r.handler(pod), ReadHeaderTimeout: kubeletPatience,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	server.SetKeepAlivesEnabled(false)
	_ = server.Serve(newOneConn(conn)) // the connection is closed
}

// oneConn is a listener of one connection. It ends with that, whoever has taken it over by then.
type oneConn struct {
	net.Conn
	accepted chan net.Conn
	closed   chan struct{}
	close    func()
}

func newOneConn(conn net.Conn) *oneConn {
	l := &oneConn{Conn: conn, accepted: make(chan net.Conn, 1), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	l.accepted <- l
	return l
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case conn := <-l.accepted:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *oneConn) Addr() net.Addr { return l.LocalAddr() }

// Close closes the connection; the listener ends with it.
func (l *oneConn) Close() error {
	l.close()
	return l.Conn.Close()
}
