package builtin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	podutil "k8s.io/kubernetes/pkg/api/pod"
	api "k8s.io/kubernetes/pkg/apis/core"
	podrest "k8s.io/kubernetes/pkg/registry/core/pod/rest"
	svcreg "k8s.io/kubernetes/pkg/registry/core/service"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// A proxy to a pod goes through a port of it that is forwarded from where it runs, as for `kubectl port-forward`: to the very pod, and to nothing
// else. The addresses in statuses, which a tenant or a physical cluster can write, are dialled by nobody.
//
// What answers is a tenant's, and may be hostile to the server and to other tenants. Upstream's handler trusts it: it reads whole pages to rewrite
// their links, and the head of an upgrade without bound. So the handler is the standard library's, which keeps nothing but a bounded head, and
// upstream's types say what there is to ask for (docs/design/0009-streams.md).

// podProxy is pods/proxy.
type podProxy struct {
	*podrest.ProxyREST // its methods and options; its way to pods is not used
	pods               rest.Getter
	conns              connections
}

// Connect implements rest.Connecter, for [scheme:]name[:port].
func (p podProxy) Connect(ctx context.Context, id string, _ runtime.Object, responder rest.Responder) (http.Handler, error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(id)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%q is no pod: want [http:|https:]name[:port]", id))
	}
	ctx, err := find(ctx, p.pods, name)
	if err != nil {
		return nil, err
	}
	pod, ok := ctx.Value(podKey{}).(*api.Pod)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("pod %q was not looked for", name))
	}
	target, err := portOfPod(pod, scheme, port)
	if err != nil {
		return nil, err
	}
	return p.conns.proxy(ctx, pod, scheme, target, responder)
}

// serviceProxy is services/proxy: to one of the ready pods that a Service selects.
type serviceProxy struct {
	*svcreg.ProxyREST // as podProxy's
	services          rest.Getter
	conns             connections
}

// Connect implements rest.Connecter, for [scheme:]name[:port].
func (p serviceProxy) Connect(ctx context.Context, id string, _ runtime.Object, responder rest.Responder) (http.Handler, error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(id)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%q is no Service: want [http:|https:]name[:port]", id))
	}
	found, err := p.services.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	service, ok := found.(*api.Service)
	switch {
	case !ok || inMirror(ctx):
		return nil, errElsewhere()
	case len(service.Spec.Selector) == 0:
		return nil, NewNotImplemented(fmt.Sprintf("Service %q has no selector, so that no pod of a physical cluster is behind it: a proxy leads to such pods alone, by a Service with a selector or by their names", name))
	}
	of, err := portOf(service, port)
	if err != nil {
		return nil, err
	}
	behind, err := p.conns.behind(ctx, service, of)
	if err != nil {
		return nil, err
	}
	return p.conns.proxy(ctx, behind[0].pod, scheme, behind[0].port, responder)
}

// Of the pods that a Service selects, lookedAt are looked at together for one that answers, and of those mostPages times as many.
const (
	lookedAt  = 100
	mostPages = 10
)

// behind returns pods that answer for a port of a Service, one at least, those first that are each of another physical cluster. Few look at a time, and not for long: requests to
// proxies take no seat of their workspace, however many pods it has.
func (c connections) behind(ctx context.Context, service *api.Service, of *api.ServicePort) ([]podPort, error) {
	workspace, ok := lcctx.ClusterFrom(ctx)
	if !ok || workspace.Wildcard {
		return nil, errElsewhere()
	}
	done, err := c.counted.look(ctx, workspace.Name)
	if err != nil {
		return nil, err
	}
	defer done()
	page := &metainternalversion.ListOptions{LabelSelector: labels.SelectorFromSet(service.Spec.Selector), Limit: lookedAt}
	for range mostPages {
		selected, err := c.pods.List(ctx, page)
		if err != nil {
			return nil, err
		}
		all, ok := selected.(*api.PodList)
		if !ok {
			return nil, apierrors.NewInternalError(fmt.Errorf("a list of pods is a %T", selected))
		}
		if found := answering(all.Items, service, of, rand.Shuffle); len(found) > 0 {
			return found, nil
		}
		if page.Continue = all.Continue; page.Continue == "" {
			return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no pod that Service %q selects is Ready in a physical cluster, with port %s", service.Name, of.TargetPort.String()))
		}
	}
	return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("none of the first %d pods that Service %q selects is Ready in a physical cluster", mostPages*lookedAt, service.Name))
}

// portOf returns the port of a Service of that name or number, or its only one if that is "".
func portOf(service *api.Service, port string) (*api.ServicePort, error) {
	ports := service.Spec.Ports
	if port == "" && len(ports) == 1 {
		return &ports[0], nil
	}
	i := slices.IndexFunc(ports, func(p api.ServicePort) bool {
		return p.Name != "" && p.Name == port || strconv.Itoa(int(p.Port)) == port
	})
	if i < 0 {
		var has []string
		for _, p := range ports {
			has = append(has, strings.TrimSuffix(fmt.Sprintf("%d (%s)", p.Port, p.Name), " ()"))
		}
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("Service %q has no port %q, of %s", service.Name, port, strings.Join(has, ", ")))
	}
	return &ports[i], nil
}

// podPort is a port of a pod.
type podPort struct {
	pod  *api.Pod
	port int32
}

// answering returns the pods that answer for a port of a Service, with the port of each, in an order that shuffle makes, those first that are each of another physical cluster. Which they are, upstream's
// controller of endpoints says: those that are ready, or all that have an address and have not ended if the Service publishes these, too.
func answering(pods []api.Pod, service *api.Service, of *api.ServicePort, shuffle func(n int, swap func(i, j int))) []podPort {
	var all []podPort
	for i := range pods {
		pod := &pods[i]
		answers := pod.DeletionTimestamp == nil && podutil.IsPodReady(pod)
		if service.Spec.PublishNotReadyAddresses {
			answers = len(pod.Status.PodIPs) > 0
		}
		if port, ok := portIn(pod, of); ok && answers && !hasEnded(pod) && pod.Labels[workloadv1alpha1.MirrorLabel] != "" {
			all = append(all, podPort{pod, port})
		}
	}
	shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	before := map[string]int{} // by mirror
	rounds := map[*api.Pod]int{}
	for _, p := range all {
		mirror := p.pod.Labels[workloadv1alpha1.MirrorLabel]
		rounds[p.pod] = before[mirror]
		before[mirror]++
	}
	slices.SortStableFunc(all, func(a, b podPort) int { return cmp.Compare(rounds[a.pod], rounds[b.pod]) })
	return all
}

// portIn is the number of the port of a pod to which one of a Service leads.
func portIn(pod *api.Pod, of *api.ServicePort) (int32, bool) {
	if of.TargetPort.Type == intstr.Int {
		return cmp.Or(of.TargetPort.IntVal, of.Port), true
	}
	for _, p := range portsOf(pod) {
		if p.Name == of.TargetPort.StrVal && p.Protocol == cmp.Or(of.Protocol, api.ProtocolTCP) {
			return p.ContainerPort, true
		}
	}
	return 0, false
}

// portsOf returns the ports that the containers of a pod declare, those of its sidecars at the end.
func portsOf(pod *api.Pod) []api.ContainerPort {
	var all []api.ContainerPort
	add := func(ports []api.ContainerPort) {
		for _, p := range ports {
			p.Protocol = cmp.Or(p.Protocol, api.ProtocolTCP)
			all = append(all, p)
		}
	}
	for i := range pod.Spec.Containers {
		add(pod.Spec.Containers[i].Ports)
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == api.ContainerRestartPolicyAlways {
			add(c.Ports)
		}
	}
	return all
}

// portOfPod returns the port of a pod that has that number, or the name among those that are declared. Of "" it is, as upstream, the first
// that is declared, else that of the scheme.
func portOfPod(pod *api.Pod, scheme, port string) (int32, error) {
	declared := slices.DeleteFunc(portsOf(pod), func(p api.ContainerPort) bool { return p.Protocol != api.ProtocolTCP })
	switch {
	case port == "" && len(declared) > 0:
		return declared[0].ContainerPort, nil
	case port == "" && scheme == "https":
		return 443, nil
	case port == "":
		return 80, nil
	}
	if number, err := strconv.ParseUint(port, 10, 16); err == nil && number > 0 {
		return int32(number), nil
	}
	var names []string
	for _, p := range declared {
		if p.Name == port {
			return p.ContainerPort, nil
		}
		if p.Name != "" {
			names = append(names, p.Name)
		}
	}
	return 0, apierrors.NewBadRequest(fmt.Sprintf("pod %q has no port %q: want a number from 1 to 65535, or the name of one that its containers declare, of %q", pod.Name, port, names))
}

// allow lets everybody who may use the proxy ask a port that a container declares. A forwarded port is one of the pod's localhost, where also
// listens what no Service and no neighbour reaches, since it trusts its own pod: an administration page, a debugger. Who may
// forward ports reaches it anyway; nobody else is to by a proxy, which a kube-apiserver sends to the pod's address.
func (c connections) allow(ctx context.Context, pod *api.Pod, port int32) error {
	if declares(pod, port) {
		return nil
	}
	who, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("nobody asks for port %d of pod %q", port, pod.Name))
	}
	decision, _, err := c.may.Authorize(ctx, authorizer.AttributesRecord{
		User: who, Verb: "create", Namespace: pod.Namespace, APIVersion: corev1.SchemeGroupVersion.Version, Resource: "pods", Subresource: "portforward", Name: pod.Name, ResourceRequest: true,
	})
	switch {
	case decision == authorizer.DecisionAllow:
		return nil
	case err != nil:
		return fmt.Errorf("ask whether %q may forward ports of pod %q: %w", who.GetName(), pod.Name, err)
	}
	return apierrors.NewForbidden(api.Resource("pods/portforward"), pod.Name, fmt.Errorf(
		"no container declares port %d, and such a port of the pod's localhost is for those who may create pods/portforward: declare it in the pod's spec, or ask for that right", port))
}

// declares says whether a container of a pod declares a port of TCP.
func declares(pod *api.Pod, port int32) bool {
	return slices.ContainsFunc(portsOf(pod), func(p api.ContainerPort) bool { return p.ContainerPort == port && p.Protocol == api.ProtocolTCP })
}

// proxy returns what answers a request with the answer of a port of a pod.
func (c connections) proxy(ctx context.Context, pod *api.Pod, scheme string, port int32, responder rest.Responder) (http.Handler, error) {
	if err := c.allow(ctx, pod, port); err != nil {
		return nil, err
	}
	at := url.URL{Scheme: cmp.Or(scheme, "http"), Host: net.JoinHostPort(pod.Name, strconv.Itoa(int(port)))} // its name is resolved by nobody
	return &proxied{conns: c, pod: pod, at: at, responder: responder}, nil
}

// proxied is one request to a port of a pod.
type proxied struct {
	conns     connections
	pod       *api.Pod
	at        url.URL
	responder rest.Responder
}

const (
	// mostOfHead is how much is read of the head of a pod's answer, in bytes. Servers send 8 KiB or 16 KiB at most as a rule.
	mostOfHead = 64 << 10
	// handshakeTakes is how long a pod may take for that of TLS.
	handshakeTakes = 10 * time.Second
)

func (p *proxied) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	asked, ok := underProxy(req.URL)
	if reads := req.Method == http.MethodGet || req.Method == http.MethodHead; !ok && reads && !isUpgrade(req.Header) {
		// A page's links lead from its directory. The reference is relative, since what is before it is not known here: a path through
		// `kubectl proxy`, or to the workspace.
		w.Header().Set("Location", (&url.URL{Path: "proxy/", RawQuery: req.URL.RawQuery}).String())
		w.WriteHeader(http.StatusMovedPermanently)
		return
	}
	at := p.at
	at.Path, at.RawPath, at.RawQuery = asked.Path, asked.RawPath, req.URL.RawQuery

	ctx, end := context.WithCancelCause(context.WithValue(req.Context(), podKey{}, p.pod))
	defer end(nil)
	defer whenEnded(ctx, func() { endClient(w) })() // one that does not read would hold it, and one that has switched protocols
	life := startLifetime(p.conns.silence, end)
	defer life.over()
	transport, err := p.conns.forward(ctx, life)
	if err != nil {
		p.responder.Error(err)
		return
	}
	var refused, switched bool
	(&httputil.ReverseProxy{
		Transport:     onlyFinal{transport, req.Context()},
		FlushInterval: -1, // what a pod sends is its client's at once: nothing is kept
		Rewrite: func(ask *httputil.ProxyRequest) {
			ask.Out.URL, ask.Out.Host = &at, ""
			dropSender(ask.Out.Header)
			upgradeOrBody(ask.Out)
		},
		ModifyResponse: func(answer *http.Response) error {
			life.answered()
			if to := elsewhere(answer, &at); to != "" {
				return fmt.Errorf("it redirects to %.253q, which is not that port of the pod: ask for that by itself", to)
			}
			confine(answer.Header, &at)
			if both, ok := answer.Body.(io.ReadWriter); ok && answer.StatusCode == http.StatusSwitchingProtocols {
				switched = true
				answer.Body = inOne{both, answer.Body}
			}
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) {
			if silent := (*silentError)(nil); errors.As(context.Cause(ctx), &silent) {
				err = silent
			}
			if refused = true; req.ProtoMajor == 1 && ctx.Err() != nil {
				w.Header().Set("Connection", "close") // with its deadline that has passed, all that is asked over it later would end at once
			}
			p.responder.Error(apierrors.NewServiceUnavailable(fmt.Sprintf("proxy to port %s of pod %q by %s: %v", at.Port(), p.pod.Name, at.Scheme, err)))
		},
		ErrorLog: log.New(io.Discard, "", 0), // of what a pod does wrong the client is told
	}).ServeHTTP(w, req)
	if life.over(); ctx.Err() != nil && req.ProtoMajor == 1 && !refused && !switched {
		panic(http.ErrAbortHandler) // as above, and nothing is left to be told
	}
}

// whenEnded calls f when ctx has ended. Whoever calls it defers what is returned, after which f is not called any more, nor is it still running.
func whenEnded(ctx context.Context, f func()) (done func()) {
	called := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(called)
		f()
	})
	return func() {
		if !stop() {
			<-called
		}
	}
}

// lastWords is how long a client may take to read why its proxy has ended.
const lastWords = 5 * time.Second

// endClient has who reads from a client, or writes to it, be done, also where its connection was taken over.
func endClient(w http.ResponseWriter) {
	now, client := time.Now(), http.NewResponseController(w)
	_, _ = client.SetReadDeadline(now), client.SetWriteDeadline(now.Add(lastWords))
}

// underProxy returns the path after that of the proxy, as the client escaped it where that is known, and whether there is one: the path of the proxy
// itself has no slash at its end.
func underProxy(of *url.URL) (*url.URL, bool) {
	parts := strings.SplitN(of.Path, "/", 9) // /api/v1/namespaces/NAMESPACE/pods/NAME/proxy/PATH
	if len(parts) < 9 {
		return &url.URL{Path: "/"}, false
	}
	asked := &url.URL{Path: "/" + parts[8]}
	// The server takes the workspace off the path and leaves what the client sent as Opaque.
	for whole := cmp.Or(of.Opaque, of.EscapedPath()); ; {
		slash := strings.IndexByte(whole, '/')
		if slash < 0 {
			return asked, true
		}
		whole = whole[slash+1:]
		if len(whole) > 3*len(parts[8]) {
			continue
		}
		if path, err := url.PathUnescape(whole); err == nil && path == parts[8] {
			asked.RawPath = "/" + whole
			return asked, true
		}
	}
}

func isUpgrade(headers http.Header) bool { return headers.Get("Upgrade") != "" }

// upgradeOrBody leaves a request that has both only one: its body would be read while its connection is another protocol's. A GET has none,
// whatever proxies on the way announce; who sends something by another method wants it answered, and may be refused the upgrade.
func upgradeOrBody(req *http.Request) {
	switch {
	case !isUpgrade(req.Header) || req.Body == nil:
	case req.Method == http.MethodGet:
		req.Body, req.ContentLength, req.TransferEncoding = nil, 0, nil
	default:
		req.Header.Del("Connection")
		req.Header.Del("Upgrade")
	}
}

// onlyFinal is a transport that passes no informational answers on, so that it counts them to the head. What is in them is for nobody to confine.
type onlyFinal struct {
	http.RoundTripper
	ctx context.Context // the request's, to which httputil.ReverseProxy adds nothing but who wants them
}

func (o onlyFinal) RoundTrip(req *http.Request) (*http.Response, error) {
	return o.RoundTripper.RoundTrip(req.WithContext(o.ctx))
}

// inOne is a connection of which no half is closed: a client that has left would hold the other half for as long as the pod likes.
type inOne struct {
	io.ReadWriter
	io.Closer
}

// senders are the headers that are known to say who asks, by their names and how these begin. They are for this server, and for what stands before it: what
// is to know a tenant's pod would act as whoever asks it. syncer/kubelet.go names the headers that pass instead, since those of streams are few and known; an
// application has its own.
var senders, sendersBegin = []string{"Authorization", "Cookie", "Cookie2", "X-Real-Ip", "X-Amz-Security-Token"}, []string{
	"Impersonate-", "X-Remote-", "X-Forwarded-", "Remote-", "X-Auth-Request-", "X-Webauth-", "Cf-Access-", "Tailscale-", "X-Goog-Authenticated-User-", "X-Goog-Iap-", "X-Amzn-Oidc-",
	"X-Ms-Client-Principal", "X-Ms-Token-", "X-Pomerium-", "X-Ssl-", "Ssl-Client-", "X-Client-Cert", "X-Vouch-", "X-Authentik-",
}

// sendersHave are parts of such names.
var sendersHave = []string{"-Jwt", "Oidc", "Client-Cert", "Access-Token"}

// tokenProtocol begins the protocol of a WebSocket that is a token, of clients that cannot send headers.
const tokenProtocol = "base64url.bearer.authorization.k8s.io."

// dropSender removes what says who asks.
func dropSender(headers http.Header) {
	for name := range headers {
		begins := func(with string) bool { return strings.HasPrefix(name, with) }
		has := func(part string) bool { return strings.Contains(name, part) }
		if slices.Contains(senders, name) || slices.ContainsFunc(sendersBegin, begins) || slices.ContainsFunc(sendersHave, has) {
			delete(headers, name)
		}
	}
	const protocol = "Sec-Websocket-Protocol"
	var protocols []string
	for _, line := range headers[protocol] {
		for one := range strings.SplitSeq(line, ",") {
			if one = strings.TrimSpace(one); one != "" && !strings.HasPrefix(one, tokenProtocol) {
				protocols = append(protocols, one)
			}
		}
	}
	if headers.Del(protocol); len(protocols) > 0 {
		headers.Set(protocol, strings.Join(protocols, ", "))
	}
}

// ofOrigin are the headers of an answer that a browser takes for all of the origin it has it from: here the API, and all tenants' pages.
var ofOrigin = []string{
	"Set-Cookie", "Set-Cookie2", "Clear-Site-Data", "Strict-Transport-Security", "Public-Key-Pins", "Alt-Svc", "Nel", "Report-To", "Reporting-Endpoints", "Service-Worker-Allowed",
	"Accept-Ch", "Www-Authenticate", // who is asked for a password here gives it to the API, each time
}

// sandbox gives a page an origin of its own, as if it were from a site that nobody knows: without allow-same-origin its scripts read nothing of
// the API, and ask it for nothing as whoever looks at the page, be it by his certificate. Forms and scripts of such an origin do no more than those of any site.
const sandbox = "sandbox allow-scripts allow-forms"

// confine keeps an answer of a pod to itself: it says nothing for others of the API's origin, and leads from what was asked for to no other path of the API.
func confine(headers http.Header, asked *url.URL) {
	for _, name := range ofOrigin {
		headers.Del(name)
	}
	headers.Add("Content-Security-Policy", sandbox) // beside the pod's own: a browser keeps all of them
	locations := headers["Location"]
	if delete(headers, "Location"); len(locations) > 0 {
		if to := redirected(asked, locations[0]); to != "" {
			headers.Set("Location", to)
		}
	}
}

// elsewhere says where an answer redirects to that is not the pod, empty if it does not. Clients of the API send their credentials along, wherever they
// are redirected (client-go does), and to a browser a URL without a host is one of the API.
func elsewhere(answer *http.Response, asked *url.URL) string {
	if to := answer.Header.Get("Location"); to != "" && answer.StatusCode >= 300 && answer.StatusCode < 400 && redirected(asked, to) == "" {
		return to
	}
	return ""
}

var plainDots = strings.NewReplacer("%2e", ".", "%2E", ".") // as browsers read them

// redirected returns where a pod redirects to, relative to what was asked for: so it stays under the path of the proxy, which a pod does not know, and which
// is not the same to all clients. "" is elsewhere, or nowhere: what is no URL to us might be another one to browsers.
func redirected(asked *url.URL, location string) string {
	reference, err := url.Parse(location)
	if err != nil {
		return ""
	}
	if escaped := plainDots.Replace(reference.EscapedPath()); reference.Opaque == "" {
		if reference.Path, err = url.PathUnescape(escaped); err != nil {
			return ""
		}
		reference.RawPath = escaped
	}
	to := asked.ResolveReference(reference)
	if to.Scheme != "http" && to.Scheme != "https" || to.Opaque != "" || hostOf(to) != hostOf(asked) {
		return ""
	}
	up := strings.Repeat("../", strings.Count(asked.EscapedPath(), "/")-1)
	relative := cmp.Or(up, "./") + strings.TrimPrefix(to.EscapedPath(), "/")
	if to.RawQuery != "" || to.ForceQuery {
		relative += "?" + to.RawQuery
	}
	if to.Fragment != "" {
		relative += "#" + to.EscapedFragment()
	}
	return relative
}

// hostOf is the name and port of a URL.
func hostOf(u *url.URL) string {
	port := "80"
	if u.Scheme == "https" {
		port = "443"
	}
	return strings.ToLower(u.Hostname()) + ":" + cmp.Or(u.Port(), port)
}
