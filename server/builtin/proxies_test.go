package builtin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/test/framework"
)

// TestRedirected: where a pod redirects to, for a client that knows the pod by a path that the pod does not know.
func TestRedirected(t *testing.T) {
	for name, tc := range map[string]struct {
		asked, location, want string
	}{
		"absolute path, from the top":         {"http://web-1:8080/", "/login", "./login"},
		"absolute path":                       {"http://web-1:8080/a/b", "/login", "../login"},
		"from a directory":                    {"http://web-1:8080/a/b/", "/login", "../../login"},
		"to the top":                          {"http://web-1:8080/a", "/", "./"},
		"query and fragment":                  {"http://web-1:8080/a/b?x=1", "/c?d=%2F#e%20f", "../c?d=%2F#e%20f"},
		"query alone":                         {"http://web-1:8080/a/b?x=1", "?y=2", "../a/b?y=2"},
		"relative":                            {"http://web-1:8080/a/b", "c", "../a/c"},
		"by the name of the pod":              {"http://web-1:8080/a", "http://web-1:8080/c", "./c"},
		"by its name, in other letters":       {"http://web-1:8080/a", "HTTP://WEB-1:8080/c", "./c"},
		"without a path":                      {"http://web-1:8080/a/b", "http://web-1:8080", "../"},
		"without the port of the scheme":      {"http://web-1:80/a", "http://web-1/c", "./c"},
		"of https":                            {"https://web-1:443/a", "https://web-1/c", "./c"},
		"by the host without a scheme":        {"https://web-1:8443/a", "//web-1:8443/c", "./c"},
		"a first segment with a colon":        {"http://web-1:8080/", "/a:b", "./a:b"},
		"what is escaped stays so":            {"http://web-1:8080/a%2Fb/c", "/d%2Fe", "../d%2Fe"},
		"two slashes":                         {"http://web-1:8080/", "/.//evil.example/", ".//evil.example/"},
		"a backslash is no host":              {"http://web-1:8080/", `/\evil.example`, "./%5Cevil.example"},
		"not above the top":                   {"http://web-1:8080/a/b", "../../../../secrets", "../secrets"},
		"not above the top, absolute":         {"http://web-1:8080/a/b", "/../../secrets", "../secrets"},
		"not above the top, escaped dots":     {"http://web-1:8080/a/b", "/%2e%2e/%2E./secrets", "../secrets"},
		"elsewhere":                           {"http://web-1:8080/a", "https://elsewhere.example/c", ""},
		"elsewhere without a scheme":          {"http://web-1:8080/a", "//elsewhere.example/c", ""},
		"another port of the pod":             {"http://web-1:8080/a", "http://web-1:9090/c", ""},
		"another scheme, opaque":              {"http://web-1:8080/a", "mailto:a@b.example", ""},
		"no host, and the API's to a browser": {"http://web-1:8080/a", "https:/clusters/root:bank/", ""},
		"opaque, and the API's to a browser":  {"http://web-1:8080/a", "https:clusters/root:bank/", ""},
		"an empty host, and the API's":        {"http://web-1:8080/a", "http:///clusters/root:bank/", ""},
		"no URL":                              {"http://web-1:8080/a", "/%zz", ""},
	} {
		asked, err := url.Parse(tc.asked)
		if err != nil {
			t.Fatal(err)
		}
		got := redirected(asked, tc.location)
		if got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
		// As a client resolves it, whatever path leads to the proxy, it stays there.
		for _, before := range []string{"https://api.example/clusters/root:shop/p/proxy", "http://localhost:8001/p/proxy"} {
			if got == "" {
				continue // it is not sent
			}
			client, err := url.Parse(before + asked.RequestURI())
			if err != nil {
				t.Fatal(err)
			}
			if to, err := client.Parse(got); err != nil || !strings.HasPrefix(to.String(), before+"/") {
				t.Errorf("%s: %q leads from %s to %s", name, got, client, to)
			}
		}
	}
}

func TestUnderProxy(t *testing.T) {
	const at = "/api/v1/namespaces/team/pods/web-1:80/proxy"
	for name, tc := range map[string]struct {
		path, opaque, want string
		ok                 bool
	}{
		"no slash":                   {at, "", "/", false},
		"the top":                    {at + "/", "", "/", true},
		"a path":                     {at + "/a/b/", "", "/a/b/", true},
		"two slashes":                {at + "//a", "", "//a", true},
		"as the client escaped it":   {at + "/a/b", "/clusters/root:shop" + at + "/a%2Fb", "/a%2Fb", true},
		"what else is escaped":       {at + "/a b", "/clusters/root:shop" + at + "/%61%20b", "/%61%20b", true},
		"what says something else":   {at + "/a b", "/clusters/root:shop" + at + "/c", "/a%20b", true},
		"a path that looks like one": {at + at + "/a", "/clusters/root:shop" + at + at + "/a", at + "/a", true},
	} {
		got, ok := underProxy(&url.URL{Path: tc.path, Opaque: tc.opaque})
		if got.EscapedPath() != tc.want || ok != tc.ok {
			t.Errorf("%s: %q %t, want %q %t", name, got.EscapedPath(), ok, tc.want, tc.ok)
		}
	}
}

func TestHeadersOfProxies(t *testing.T) {
	asks := http.Header{
		"Authorization": {"Bearer t"}, "Cookie": {"session=1"}, "Impersonate-User": {"bob"}, "Impersonate-Extra-Scopes": {"x"}, "X-Remote-Group": {"g"}, "X-Real-Ip": {"10.0.0.1"},
		"X-Forwarded-Access-Token": {"t"}, "X-Auth-Request-Email": {"a@b.example"}, "Accept": {"*/*"}, "X-Csrf-Token": {"mine"}, "Remote-User": {"a"}, "Tailscale-User-Login": {"a"}, "X-Webauth-User": {"a"}, "Ssl-Client-Subject-Dn": {"CN=a"}, "X-Ms-Client-Principal-Name": {"a"}, "X-Ms-Version": {"1"},
		"Sec-Websocket-Protocol": {"chat, base64url.bearer.authorization.k8s.io.dDE", "superchat"},
	}
	dropSender(asks)
	if diff := cmp.Diff(http.Header{"Accept": {"*/*"}, "X-Csrf-Token": {"mine"}, "X-Ms-Version": {"1"}, "Sec-Websocket-Protocol": {"chat, superchat"}}, asks); diff != "" {
		t.Errorf("a pod is asked with %s", diff)
	}
	answers := http.Header{
		"Set-Cookie": {"session=1; Path=/"}, "Clear-Site-Data": {`"*"`}, "Strict-Transport-Security": {"max-age=1"}, "Nel": {"{}"}, "Www-Authenticate": {"Basic"}, "Service-Worker-Allowed": {"/"},
		"Content-Security-Policy": {"default-src 'self'"}, "Content-Type": {"text/html"}, "Location": {"/b", "/c"},
	}
	confine(answers, &url.URL{Scheme: "http", Host: "web-1:80", Path: "/a"})
	if diff := cmp.Diff(http.Header{
		"Content-Security-Policy": {"default-src 'self'", "sandbox allow-scripts allow-forms"}, "Content-Type": {"text/html"}, "Location": {"./b"},
	}, answers); diff != "" {
		t.Errorf("a client is answered with %s", diff)
	}
}

func podWithPorts() *api.Pod {
	return &api.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-1", Namespace: "team", Labels: map[string]string{workloadv1alpha1.MirrorLabel: "eastname"}},
		Spec: api.PodSpec{
			NodeName: "us-east-1",
			InitContainers: []api.Container{
				{Name: "first", Ports: []api.ContainerPort{{Name: "never", ContainerPort: 7000}}},
				{Name: "sidecar", RestartPolicy: ptr.To(api.ContainerRestartPolicyAlways), Ports: []api.ContainerPort{{Name: "metrics", ContainerPort: 9090, Protocol: api.ProtocolTCP}}},
			},
			Containers: []api.Container{{Name: "none"}, {Name: "c", Ports: []api.ContainerPort{{Name: "dns", ContainerPort: 53, Protocol: api.ProtocolUDP}, {Name: "http", ContainerPort: 8080}}}},
		},
		Status: api.PodStatus{PodIPs: []api.PodIP{{IP: "10.1.2.3"}}, Conditions: []api.PodCondition{{Type: api.PodReady, Status: api.ConditionTrue}}},
	}
}

func TestPortOfPod(t *testing.T) {
	for name, tc := range map[string]struct {
		scheme, port string
		bare         bool
		want         int32 // 0 is refused
	}{
		"by number":                       {port: "81", want: 81},
		"the last":                        {port: "65535", want: 65535},
		"by name":                         {port: "http", want: 8080},
		"of a sidecar":                    {port: "metrics", want: 9090},
		"the first that is declared":      {want: 8080},
		"none is declared":                {bare: true, want: 80},
		"none is declared, https":         {bare: true, scheme: "https", want: 443},
		"of what is no sidecar":           {port: "never"},
		"of UDP":                          {port: "dns"},
		"a name that is not there":        {port: "ftp"},
		"a name, and none is":             {port: "http", bare: true},
		"zero":                            {port: "0"},
		"too large":                       {port: "65536"},
		"negative":                        {port: "-1"},
		"no number":                       {port: "80x"},
		"what would be another authority": {port: "80@evil.example"},
	} {
		pod := podWithPorts()
		if tc.bare {
			pod.Spec = api.PodSpec{Containers: []api.Container{{Name: "c"}}}
		}
		got, err := portOfPod(pod, tc.scheme, tc.port)
		if got != tc.want || (tc.want == 0) != apierrors.IsBadRequest(err) {
			t.Errorf("%s: %d %v, want %d", name, got, err, tc.want)
		}
	}
}

func TestAnswering(t *testing.T) {
	byName := func(name string) *api.ServicePort {
		return &api.ServicePort{Port: 80, Protocol: api.ProtocolTCP, TargetPort: intstr.FromString(name)}
	}
	for name, tc := range map[string]struct {
		of      *api.ServicePort
		publish bool
		change  func(*api.Pod)
		want    int32 // 0 is none
	}{
		"by name":                           {of: byName("http"), want: 8080},
		"by the name of a sidecar's":        {of: byName("metrics"), want: 9090},
		"of what is no sidecar":             {of: byName("never")},
		"of another protocol":               {of: byName("dns")},
		"by number":                         {of: &api.ServicePort{Port: 80, TargetPort: intstr.FromInt32(81)}, want: 81},
		"by that of the Service":            {of: &api.ServicePort{Port: 80}, want: 80},
		"not ready":                         {of: byName("http"), change: func(p *api.Pod) { p.Status.Conditions = nil }},
		"not ready, which is published":     {of: byName("http"), publish: true, change: func(p *api.Pod) { p.Status.Conditions = nil }, want: 8080},
		"published, and has no address":     {of: byName("http"), publish: true, change: func(p *api.Pod) { p.Status = api.PodStatus{} }},
		"published, and has ended":          {of: byName("http"), publish: true, change: func(p *api.Pod) { p.Status.Phase = api.PodFailed }},
		"shown by nobody":                   {of: byName("http"), publish: true, change: func(p *api.Pod) { p.Labels = nil }},
		"being deleted":                     {of: byName("http"), change: func(p *api.Pod) { p.DeletionTimestamp = &metav1.Time{} }},
		"being deleted, which is published": {of: byName("http"), publish: true, change: func(p *api.Pod) { p.DeletionTimestamp = &metav1.Time{} }, want: 8080},
	} {
		pod := podWithPorts()
		if tc.change != nil {
			tc.change(pod)
		}
		service := &api.Service{Spec: api.ServiceSpec{PublishNotReadyAddresses: tc.publish}}
		got := answering([]api.Pod{*pod}, service, tc.of, unshuffled)
		if found := len(got) == 1 && got[0].port == tc.want; found != (tc.want != 0) || len(got) > 1 {
			t.Errorf("%s: %v, want %d", name, got, tc.want)
		}
	}
}

func unshuffled(int, func(i, j int)) {}

// TestAnsweringOfClusters: those that are first are each of another physical cluster, so that one that is away is not all that is tried.
func TestAnsweringOfClusters(t *testing.T) {
	var pods []api.Pod
	for i, mirror := range []string{"eastname", "eastname", "eastname", "westname", "westname", "northname"} {
		pod := podWithPorts()
		pod.Name, pod.Labels[workloadv1alpha1.MirrorLabel] = fmt.Sprint(i), mirror
		pods = append(pods, *pod)
	}
	var got []string
	for _, p := range answering(pods, &api.Service{}, &api.ServicePort{TargetPort: intstr.FromInt32(8080)}, unshuffled) {
		got = append(got, p.pod.Name)
	}
	if want := []string{"0", "3", "5", "1", "4", "2"}; !slices.Equal(got, want) {
		t.Errorf("they are tried in the order %q, want %q", got, want)
	}
}

// proxying is a proxy to one pod, by way of a kubelet that leads its ports to who listens in the test.
type proxying struct {
	framework.NoPods
	below   *framework.Kubelet
	kubelet string // its address
	pod     *api.Pod
	may     authorizer.Decision // whether who asks may forward ports
	asked   []string            // of the authorizer

	host      string           // of the proxy
	overHTTP2 *httptest.Server // the same
	open      *openStreams
	running   atomic.Int32 // requests
}

func startProxying(t *testing.T, silence time.Duration, ports map[string]string) *proxying {
	t.Helper()
	kubelet := &framework.Kubelet{T: t, Dir: t.TempDir(), Ports: ports}
	below := httptest.NewServer(kubelet)
	t.Cleanup(below.Close)
	p := &proxying{below: kubelet, kubelet: below.Listener.Addr().String(), pod: podWithPorts(), may: authorizer.DecisionAllow, open: newOpenStreams("logs and streams", mostStreamsOfWorkspace, mostStreamsOfCluster, false)}
	proxy := podProxy{pods: p, conns: connections{Ways: &Ways{kubelets: p, open: p.open}, counted: p.open, may: p, silence: silence}}
	handler := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		p.running.Add(1)
		defer p.running.Add(-1)
		ctx := genericapirequest.WithUser(lcctx.WithCluster(req.Context(), lcctx.Cluster{Name: "shopname"}), &user.DefaultInfo{Name: "alice"})
		handler, err := proxy.Connect(ctx, strings.Split(req.URL.Path, "/")[6], nil, answersError{w})
		if err != nil {
			answersError{w}.Error(err)
			return
		}
		handler.ServeHTTP(w, req.WithContext(ctx))
	})
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	p.host = server.Listener.Addr().String()
	p.overHTTP2 = httptest.NewUnstartedServer(handler)
	p.overHTTP2.EnableHTTP2 = true
	p.overHTTP2.StartTLS()
	t.Cleanup(p.overHTTP2.Close)
	return p
}

func (p *proxying) Get(context.Context, string, *metav1.GetOptions) (apiruntime.Object, error) {
	return p.pod, nil
}

func (p *proxying) Reach(ctx context.Context, _ metav1.Object) (func() net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.kubelet)
	return func() net.Conn { return conn }, err
}

func (p *proxying) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	p.asked = append(p.asked, fmt.Sprint(a.GetUser().GetName(), " ", a.GetVerb(), " ", a.GetResource(), "/", a.GetSubresource(), " ", a.GetNamespace(), "/", a.GetName()))
	return p.may, "", nil
}

type answersError struct{ w http.ResponseWriter }

func (answersError) Object(int, apiruntime.Object) {}

func (a answersError) Error(err error) {
	code := http.StatusInternalServerError
	if status, ok := err.(apierrors.APIStatus); ok { //nolint:errorlint // a test's
		code = int(status.Status().Code)
	}
	http.Error(a.w, err.Error(), code)
}

// send writes a request by hand and leaves the connection to the test.
func (p *proxying) send(t *testing.T, method, path string, more ...string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	head := fmt.Sprintf("%s /api/v1/namespaces/team/pods/%s HTTP/1.1\r\nHost: api.example\r\n", method, path)
	if _, err := io.WriteString(conn, head+strings.Join(append(more, "\r\n"), "\r\n")); err != nil {
		t.Fatal(err)
	}
	return conn
}

func answerOf(t *testing.T, reader *bufio.Reader) *http.Response {
	t.Helper()
	answer, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// nothingIsOpen waits until no stream is counted, and no request is served, any more.
func (p *proxying) nothingIsOpen(t *testing.T, when string) {
	t.Helper()
	framework.Eventually(t, time.Minute, "nothing is open "+when, func() string {
		p.open.mu.Lock()
		defer p.open.mu.Unlock()
		if n := p.running.Load(); len(p.open.of) > 0 || n > 0 {
			return fmt.Sprint(p.open.of, " and ", n, " requests")
		}
		return ""
	})
}

// listens is a pod's port: it hands each connection, with the head of a request read, to the function.
func listens(t *testing.T, serve func(conn net.Conn, req *http.Request)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer conn.Close() //nolint:errcheck // a test's
				if req, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					serve(conn, req)
				}
			})
		}
	})
	return l.Addr().String()
}

// endless writes something until nobody takes it any more.
func endless(conn net.Conn, something string) {
	for piece := []byte(strings.Repeat(something, 1<<10)); ; {
		if _, err := conn.Write(piece); err != nil {
			return
		}
	}
}

const upgrades = "Connection: Upgrade\r\nUpgrade: websocket"

// TestProxyIsBounded: what a pod sends without end takes no memory of all, and comes as it is sent.
func TestProxyIsBounded(t *testing.T) {
	p := startProxying(t, time.Minute, map[string]string{
		"81": listens(t, func(conn net.Conn, _ *http.Request) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nX-Long: ")
			endless(conn, "0123456789abcdef")
		}),
		"82": listens(t, func(conn net.Conn, _ *http.Request) {
			endless(conn, "HTTP/1.1 103 Early Hints\r\nSet-Cookie: a=b\r\n\r\n")
		}),
		"83": listens(t, func(conn net.Conn, _ *http.Request) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<a href=\"/first\">\n")
			endless(conn, "<a href=\"/more\" ")
		}),
		"84": listens(t, func(conn net.Conn, _ *http.Request) {
			_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\n\r\n<a href=\"/first\">\n")
			endless(conn, "<a href=\"/more\" ")
		}),
		"85": listens(t, func(conn net.Conn, _ *http.Request) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nfirst\n")
			_, _ = io.Copy(io.Discard, conn)
		}),
	})
	part := p.send(t, http.MethodGet, "web-1:85/proxy/", "Accept: */*")
	if line, err := bufio.NewReader(answerOf(t, bufio.NewReader(part)).Body).ReadString('\n'); line != "first\n" || err != nil {
		t.Errorf("what a pod has sent of an answer of some length: %q %v", line, err)
	}
	_ = part.Close()
	for name, tc := range map[string]struct{ port, more string }{
		"a head":                       {"81", "Accept: */*"},
		"a head of an upgrade":         {"81", upgrades},
		"informational answers":        {"82", "Accept: */*"},
		"informational, to an upgrade": {"82", upgrades},
	} {
		answer := answerOf(t, bufio.NewReader(p.send(t, http.MethodGet, "web-1:"+tc.port+"/proxy/", tc.more)))
		text, err := io.ReadAll(answer.Body)
		if said := string(text); answer.StatusCode != http.StatusServiceUnavailable || !strings.Contains(said, `port `+tc.port+` of pod "web-1"`) || !strings.Contains(said, "65536 bytes") || err != nil {
			t.Errorf("%s without end: %s %q %v", name, answer.Status, said, err)
		}
		p.nothingIsOpen(t, "after "+name)
	}

	for name, tc := range map[string]struct {
		port, more string
		want       int
	}{
		"a page":                           {"83", "Accept: */*", http.StatusOK},
		"a page that refuses an upgrade":   {"84", upgrades, http.StatusBadRequest},
		"a page instead of a switch to it": {"83", upgrades, http.StatusOK},
	} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		conn := p.send(t, http.MethodGet, "web-1:"+tc.port+"/proxy/", tc.more)
		reader := bufio.NewReader(conn)
		answer := answerOf(t, reader)
		body := bufio.NewReader(answer.Body)
		if line, err := body.ReadString('\n'); answer.StatusCode != tc.want || line != "<a href=\"/first\">\n" || err != nil {
			t.Fatalf("%s without end begins with %s %q %v", name, answer.Status, line, err)
		}
		if n, err := io.CopyN(io.Discard, body, 64<<20); err != nil {
			t.Errorf("%s without end ends after %d: %v", name, n, err)
		}
		runtime.GC() // garbage is not held, and how much there may be of it is GOGC's
		runtime.ReadMemStats(&after)
		if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 32<<20 {
			t.Errorf("64 MiB of %s take %d bytes", name, grown)
		}
		_ = conn.Close()
		p.nothingIsOpen(t, "after "+name)
	}
}

// TestProxyEndsWithItsClient: a client that has left holds nothing, whatever the pod does.
func TestProxyEndsWithItsClient(t *testing.T) {
	says := func(head string) string {
		return listens(t, func(conn net.Conn, _ *http.Request) {
			_, _ = io.WriteString(conn, head)
			_, _ = io.Copy(io.Discard, conn)
		})
	}
	echo := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, both, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close() //nolint:errcheck // a test's
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSet-Cookie: a=b\r\n\r\n")
		line, _ := both.ReadString('\n')
		_, _ = io.WriteString(conn, line)
		_, _ = io.Copy(io.Discard, both) // and says nothing more, nor leaves
		<-t.Context().Done()
	})
	plain, overTLS := httptest.NewServer(echo), httptest.NewTLSServer(echo)
	t.Cleanup(plain.Close)
	t.Cleanup(overTLS.Close)
	p := startProxying(t, time.Hour, map[string]string{
		"81": says("HTTP/1.1 400 Bad Request\r\nContent-Length: 1\r\n\r\n"),
		"82": says("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"),
		"83": plain.Listener.Addr().String(),
		"84": overTLS.Listener.Addr().String(),
	})
	for name, tc := range map[string]struct {
		path, more string
		want       int
	}{
		"a refused upgrade":           {"web-1:81/proxy/", upgrades, http.StatusBadRequest},
		"an answer without its body":  {"web-1:82/proxy/", "Accept: */*", http.StatusOK},
		"an upgrade":                  {"web-1:83/proxy/", upgrades, http.StatusSwitchingProtocols},
		"an upgrade without a slash":  {"web-1:83/proxy", upgrades, http.StatusSwitchingProtocols},
		"an upgrade, in chunks":       {"web-1:83/proxy/", upgrades + "\r\nTransfer-Encoding: chunked", http.StatusSwitchingProtocols},
		"an upgrade over TLS":         {"https:web-1:84/proxy/", upgrades, http.StatusSwitchingProtocols},
		"what the pod never answers":  {"web-1:85/proxy/", "Accept: */*", 0},
		"the same, and is an upgrade": {"web-1:85/proxy/", upgrades, 0},
	} {
		p.pod.Spec.Containers[0].Ports = []api.ContainerPort{{ContainerPort: 85}}
		conn := p.send(t, http.MethodGet, tc.path, tc.more)
		if tc.want != 0 {
			reader := bufio.NewReader(conn)
			if answer := answerOf(t, reader); answer.StatusCode != tc.want || answer.Header["Set-Cookie"] != nil {
				t.Errorf("%s is answered %s, want %d, with %v", name, answer.Status, tc.want, answer.Header)
			}
			if tc.want == http.StatusSwitchingProtocols {
				if _, err := io.WriteString(conn, "through\n"); err != nil {
					t.Error(err)
				}
				if line, err := reader.ReadString('\n'); line != "through\n" || err != nil {
					t.Errorf("%s: %q %v", name, line, err)
				}
			}
		}
		if p.open.mu.Lock(); tc.want != 0 && p.open.of["shopname"] != 1 {
			t.Errorf("%s: %v are open", name, p.open.of)
		}
		p.open.mu.Unlock()
		_ = conn.Close()
		p.nothingIsOpen(t, "after "+name)
	}
}

// TestProxyEndsInSilence: a client that leaves unseen, since there is something of his that the pod does not read, holds nothing for longer than
// the pod is silent.
func TestProxyEndsInSilence(t *testing.T) {
	p := startProxying(t, time.Second, map[string]string{
		"81": listens(t, func(conn net.Conn, _ *http.Request) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
			<-t.Context().Done()
		}),
		"82": listens(t, func(conn net.Conn, _ *http.Request) {
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			<-t.Context().Done()
		}),
		"83": listens(t, func(conn net.Conn, _ *http.Request) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
			endless(conn, "0123456789abcdef")
		}),
		"84": listens(t, func(conn net.Conn, _ *http.Request) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nX-Long: ")
			for each := time.Tick(200 * time.Millisecond); ; <-each { // now and then a word for nobody
				if _, err := io.WriteString(conn, "x"); err != nil {
					return
				}
			}
		}),
		"85": listens(t, func(conn net.Conn, _ *http.Request) { _, _ = io.Copy(io.Discard, conn) }),
		"86": listens(t, func(conn net.Conn, _ *http.Request) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
			each := time.Tick(200 * time.Millisecond)
			for range 10 {
				<-each
				_, _ = io.WriteString(conn, "x")
			}
		}),
		"87": listens(t, func(conn net.Conn, _ *http.Request) { // the head counts
			each := time.Tick(700 * time.Millisecond)
			for _, text := range []string{"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n", "x"} {
				<-each
				_, _ = io.WriteString(conn, text)
			}
		}),
	})
	for port, want := range map[string]string{"86": "xxxxxxxxxx", "87": "x"} {
		slow := answerOf(t, bufio.NewReader(p.send(t, http.MethodGet, "web-1:"+port+"/proxy/", "Connection: close")))
		if text, err := io.ReadAll(slow.Body); string(text) != want || err != nil {
			t.Errorf("a page that comes by and by: %q %v, want %q", text, err, want)
		}
	}
	// Who waits is told.
	for over, client := range map[string]*http.Client{"http://" + p.host: http.DefaultClient, p.overHTTP2.URL: p.overHTTP2.Client()} {
		answer, err := client.Get(over + "/api/v1/namespaces/team/pods/web-1:85/proxy/")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(text), "nothing answered for 1s") || err != nil {
			t.Errorf("%s: a pod that is silent: %s %q %v", answer.Proto, answer.Status, text, err)
		}
		// What is asked next, over the same connection if it is kept, does not end at once.
		next, err := client.Get(over + "/api/v1/namespaces/team/pods/web-1:" + framework.HTTPPort + "/proxy/next")
		if err != nil {
			t.Fatal(err)
		}
		text, err = io.ReadAll(next.Body)
		_ = next.Body.Close()
		if next.StatusCode != http.StatusOK || !strings.HasPrefix(string(text), "GET /next") || err != nil {
			t.Errorf("%s: after a pod that was silent: %s %q %v", next.Proto, next.Status, text, err)
		}
	}
	p.nothingIsOpen(t, "after a pod that is silent")
	// Clients that stay, and do nothing.
	for name, tc := range map[string]struct{ port, more string }{
		"a page that nobody reads":   {"83", "Accept: */*"},
		"a switch that nobody uses":  {"82", upgrades},
		"a page that does not go on": {"81", "Accept: */*"},
	} {
		conn := p.send(t, http.MethodGet, "web-1:"+tc.port+"/proxy/", tc.more)
		p.nothingIsOpen(t, "after "+name)
		_ = conn.Close()
	}
	for name, tc := range map[string]struct{ method, port, more string }{
		"a body that nobody reads":     {http.MethodPost, "81", "Content-Length: 1000000000000"},
		"a head that never ends":       {http.MethodPost, "84", "Content-Length: 1000000000000"},
		"one request, and of the next": {http.MethodGet, "81", "Accept: */*\r\n\r\nG"},
		"an upgrade that nobody reads": {http.MethodGet, "82", upgrades},
	} {
		conn := p.send(t, tc.method, "web-1:"+tc.port+"/proxy/", tc.more)
		if tc.method == http.MethodGet { // of a body the pod sees the head when some of it has come
			answerOf(t, bufio.NewReader(conn))
		}
		if !strings.HasSuffix(tc.more, "G") {
			endless(conn, "0123456789abcdef") // until the proxy ends, or does not for a minute
		}
		_ = conn.Close()
		p.nothingIsOpen(t, "after "+name)
	}
}

// TestWhenEnded: a connection is not touched any more when its request has been answered. Over HTTP/2 that ends the process, else the next request.
func TestWhenEnded(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	began, goOn, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	wait := whenEnded(ctx, func() {
		close(began)
		<-goOn
	})
	end()
	<-began
	go func() {
		defer close(done)
		wait()
	}()
	select {
	case <-done:
		t.Error("it goes on, and what was to be called has not returned")
	case <-time.After(100 * time.Millisecond): // it does not in this time
	}
	close(goOn)
	<-done
	ctx, end = context.WithCancel(t.Context())
	whenEnded(ctx, func() { t.Error("called, and it had not ended") })()
	end()
}

// TestProxyIsResetByItsClient: over HTTP/2, while the pod says nothing, and while it answers.
func TestProxyIsResetByItsClient(t *testing.T) {
	p := startProxying(t, time.Hour, map[string]string{
		"81": listens(t, func(conn net.Conn, _ *http.Request) { _, _ = io.Copy(io.Discard, conn) }),
		"82": listens(t, func(conn net.Conn, _ *http.Request) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx")
			_, _ = io.Copy(io.Discard, conn)
		}),
	})
	var clients sync.WaitGroup
	for i := range 20 {
		clients.Go(func() {
			for n := range 10 {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/api/v1/namespaces/team/pods/web-1:%d/proxy/", p.overHTTP2.URL, 81+(i+n)%2), nil)
				if err != nil {
					t.Error(err)
				}
				if answer, err := p.overHTTP2.Client().Do(req); err == nil {
					if answer.ProtoMajor != 2 {
						t.Errorf("%s", answer.Proto)
					}
					_ = answer.Body.Close()
				}
				cancel()
			}
		})
	}
	clients.Wait()
	p.nothingIsOpen(t, "after they were reset")
}

// TestLastWordOfAKubelet: of a port that has ended, such as that its pod has not read all that was sent to it. What it had sent arrives.
func TestLastWordOfAKubelet(t *testing.T) {
	const page = 400 << 10
	p := startProxying(t, time.Minute, map[string]string{"81": listens(t, func(conn net.Conn, _ *http.Request) {
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", page, strings.Repeat("x", page))
	})})
	p.below.LastWord = "an error occurred forwarding: connection reset by peer"
	for range 20 {
		answer := answerOf(t, bufio.NewReader(p.send(t, http.MethodGet, "web-1:81/proxy/", "Connection: close")))
		if n, err := io.Copy(io.Discard, answer.Body); n != page || err != nil {
			t.Fatalf("%s: %d of %d bytes, and %v", answer.Status, n, page, err)
		}
	}
	p.nothingIsOpen(t, "after all")
}

// saying is a kubelet's connection, on each of whose streams it says something.
type saying struct {
	httpstream.Connection
	something string
}

func (s saying) CreateStream(http.Header) (httpstream.Stream, error) {
	return said{Reader: strings.NewReader(s.something)}, nil
}
func (saying) Close() error { return nil }

type said struct {
	httpstream.Stream
	io.Reader
}

func (s said) Read(b []byte) (int, error) { return s.Reader.Read(b) }
func (said) Write(b []byte) (int, error)  { return len(b), nil }
func (said) Close() error                 { return nil }

// TestDeadlinesOfForwardedPorts: one that is to come ends the proxy; one that has passed, which crypto/tls sets whenever it closes, does not.
func TestDeadlinesOfForwardedPorts(t *testing.T) {
	ctx, end := context.WithCancelCause(t.Context())
	life := startLifetime(time.Hour, end)
	port, err := newForwardedPort(ctx, saying{}, "80", life)
	if err != nil {
		t.Fatal(err)
	}
	if err := port.SetWriteDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ctx.Done():
		t.Errorf("a deadline that has passed: %v", context.Cause(ctx))
	case <-time.After(100 * time.Millisecond): // it does not end in this time
	}
	if err := port.SetDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	if _, err := port.Read(make([]byte, 1)); !errors.Is(err, io.ErrUnexpectedEOF) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("what was read until then ends with %v", err)
	}
}

// TestLifetime: what comes after the end changes nothing.
func TestLifetime(t *testing.T) {
	ctx, end := context.WithCancelCause(t.Context())
	defer end(nil)
	life := startLifetime(time.Hour, end)
	life.over()
	life.end(errors.New("late"))
	if life.breaksSilence(false); ctx.Err() != nil || life.silence.Stop() {
		t.Errorf("%v; it waits for silence, and is over", context.Cause(ctx))
	}
}

// TestKubeletThatSaysTooMuch: what it says of a port without end is not kept, and who reads from the port is done.
func TestKubeletThatSaysTooMuch(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // a test's
	open := make(chan struct{})
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = spdy.NewServerConnection(conn, func(stream httpstream.Stream, replied <-chan struct{}) error {
			if stream.Headers().Get(corev1.StreamType) == corev1.StreamTypeError {
				go func() {
					for <-open; ; {
						if _, err := stream.Write(make([]byte, mostOfProblem)); err != nil {
							return
						}
					}
				}()
			} else {
				go func() {
					<-replied
					close(open)
				}()
			}
			return nil
		})
	}()
	below, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancelCause(t.Context())
	context.AfterFunc(ctx, func() { _ = below.Close() }) // as connections do
	conn, err := spdy.NewClientConnection(below)
	if err != nil {
		t.Fatal(err)
	}
	life := startLifetime(time.Hour, end)
	defer life.over()
	port, err := newForwardedPort(ctx, conn, "80", life)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := port.Read(make([]byte, 1))
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "more than 4096 bytes about port 80") {
			t.Errorf("it ends with %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("who reads is not done after a minute")
	}
}

// TestLooksForPods: few at a time, of each workspace and of all; the others wait.
func TestLooksForPods(t *testing.T) {
	open := newOpenStreams("logs and streams", mostStreamsOfWorkspace, mostStreamsOfCluster, false)
	look := func(ctx context.Context, workspace string) func() {
		t.Helper()
		done, err := open.look(ctx, logicalcluster.Name(workspace))
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	var all []func()
	for range mostLooksOfWorkspace {
		all = append(all, look(t.Context(), "shop"))
	}
	given, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := open.look(given, "shop"); !apierrors.IsTooManyRequests(err) {
		t.Errorf("one more of the workspace: %v, want 429", err)
	}
	waits := make(chan func())
	go func() {
		done, err := open.look(t.Context(), "shop")
		if err != nil {
			t.Error(err)
		}
		waits <- done
	}()
	for i := range mostLooks - mostLooksOfWorkspace {
		all = append(all, look(t.Context(), fmt.Sprint("other", i)))
	}
	if _, err := open.look(given, "bank"); !apierrors.IsTooManyRequests(err) {
		t.Errorf("one more of all: %v, want 429", err)
	}
	select {
	case <-waits:
		t.Error("it looks, and others do")
	default:
	}
	all[0]()
	all = append(all[1:], <-waits)
	for _, done := range all {
		done()
	}
	if len(open.looks) > 0 || !open.looking.TryAcquire(mostLooks) {
		t.Errorf("%v look, and nobody does", open.looks)
	}
}

// podPages lists pods a page at a time.
type podPages struct {
	rest.Lister
	ready int // which of them is Ready, from 0
	asked int // pages
}

func (p *podPages) List(_ context.Context, options *metainternalversion.ListOptions) (apiruntime.Object, error) {
	page := &api.PodList{}
	for i := range options.Limit {
		pod := podWithPorts()
		if p.asked*int(options.Limit)+int(i) != p.ready {
			pod.Status.Conditions = nil
		}
		page.Items = append(page.Items, *pod)
	}
	p.asked++
	page.Continue = fmt.Sprint(p.asked)
	return page, nil
}

// TestFindBehindServices: not among the first alone, and not among all that there are.
func TestFindBehindServices(t *testing.T) {
	ctx := lcctx.WithCluster(t.Context(), lcctx.Cluster{Name: "shopname"})
	service := &api.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: api.ServiceSpec{Selector: map[string]string{"app": "web"}}}
	for ready, want := range map[int]int{0: 1, 99: 1, 100: 2, 999: mostPages, 1000: mostPages} {
		pods := &podPages{ready: ready}
		ways := &Ways{open: newOpenStreams("logs and streams", mostStreamsOfWorkspace, mostStreamsOfCluster, false), pods: pods}
		behind, err := connections{Ways: ways, counted: ways.open}.behind(ctx, service, &api.ServicePort{Port: 80, TargetPort: intstr.FromString("http")})
		if found := len(behind) == 1 && behind[0].port == 8080 && err == nil; found != (ready < 1000) || pods.asked != want || !found && !apierrors.IsServiceUnavailable(err) {
			t.Errorf("the one at %d: %v %v, in %d pages, want %d", ready, behind, err, pods.asked, want)
		}
		if len(ways.open.looks) > 0 {
			t.Errorf("the one at %d: it still looks", ready)
		}
	}
}

// TestDialService: a connection to a port behind a Service lasts until it is closed, whatever becomes of who asked for it.
func TestDialService(t *testing.T) {
	p := startProxying(t, time.Minute, nil)
	service := &api.Service{ObjectMeta: metav1.ObjectMeta{Name: "hooks", Namespace: "team"}, Spec: api.ServiceSpec{Selector: map[string]string{"app": "web"}}}
	of := &api.ServicePort{Port: 443, TargetPort: intstr.FromString("http")}
	cluster := lcctx.WithCluster(t.Context(), lcctx.Cluster{Name: "shopname"})
	hooks := newOpenStreams("connections to webhooks", 1, 2, true)
	ready, none := both{pods: []api.Pod{*podWithPorts()}}, both{}
	of1 := func(k Kubelets, pods rest.Lister) *Ways { return &Ways{kubelets: k, hooks: hooks, pods: pods} }
	ways := of1(p, ready)
	nothing := func(when string) {
		t.Helper()
		p.open = hooks
		p.nothingIsOpen(t, when)
	}

	ctx, cancel := context.WithCancel(cluster)
	conn, err := ways.DialService(ctx, service, of)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	reader := bufio.NewReader(conn)
	for i := range 2 {
		if _, err := fmt.Fprintf(conn, "POST /%d HTTP/1.1\r\nHost: hooks.team.svc\r\nContent-Length: 2\r\n\r\n{}", i); err != nil {
			t.Fatal(err)
		}
		answer := answerOf(t, reader)
		if text, err := io.ReadAll(answer.Body); err != nil || string(text) != fmt.Sprintf("POST /%d  {}", i) {
			t.Errorf("request %d is answered %q, %v", i, text, err)
		}
	}
	if hooks.of["shopname"] != 1 || hooks.of["eastname"] != 1 {
		t.Errorf("%v are open, want it among those of its workspace and its physical cluster", hooks.of)
	}
	// There is room for no more: who asks waits for it.
	brief, cancel := context.WithTimeout(cluster, 50*time.Millisecond)
	defer cancel()
	if _, err := ways.DialService(brief, service, of); err == nil || !strings.Contains(err.Error(), "1 connections to webhooks of the workspace are open") {
		t.Errorf("one more: %v", err)
	}
	waited := make(chan error, 1)
	go func() {
		next, err := ways.DialService(cluster, service, of)
		if err == nil {
			err = next.Close()
		}
		waited <- err
	}()
	if err := conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if err := <-waited; err != nil && !errors.Is(err, net.ErrClosed) {
		t.Errorf("when there is room again: %v", err)
	}
	nothing("after it is closed")

	leaves, leave := context.WithCancel(cluster)
	for name, tc := range map[string]struct {
		ctx  context.Context
		ways *Ways
		want string
	}{
		"nothing is Ready":      {cluster, of1(p, none), "that Service \"hooks\" selects is Ready"},
		"nobody waits any more": {leaves, of1(leaving{p, leave}, ready), "canceled"},
		"its cluster is away":   {cluster, of1(away{}, ready), `port 8080 of pod "web-1", in physical cluster "us-east-1": it is away`},
		"no kubelet answers":    {cluster, of1(silent{}, ready), `port 8080 of pod "web-1"`},
		"of no logical cluster": {t.Context(), ways, "this needs a way to where a pod runs"},
	} {
		conn, err := tc.ways.DialService(tc.ctx, service, of)
		if err == nil {
			t.Errorf("%s: it is connected: %v", name, conn.Close())
		} else if !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
		nothing("after " + name)
	}
	of.TargetPort = intstr.FromInt32(15000)
	if _, err := ways.DialService(cluster, service, of); err == nil || !strings.Contains(err.Error(), "no container declares that port") {
		t.Errorf("a port that is the pod's own: %v", err)
	}
}

// TestDialServiceElsewhere: where a physical cluster is away, a pod of another one is connected to.
func TestDialServiceElsewhere(t *testing.T) {
	p := startProxying(t, time.Minute, nil)
	east, west := podWithPorts(), podWithPorts()
	west.Name, west.Spec.NodeName, west.Labels = "web-2", "us-west-1", map[string]string{workloadv1alpha1.MirrorLabel: "westname"}
	ways := &Ways{kubelets: partly{p, "westname"}, hooks: newOpenStreams("connections to webhooks", 9, 9, true), pods: both{pods: []api.Pod{*east, *east, *east, *west}}}
	service := &api.Service{ObjectMeta: metav1.ObjectMeta{Name: "hooks", Namespace: "team"}, Spec: api.ServiceSpec{Selector: map[string]string{"app": "web"}}}
	for range 20 { // in whichever order they come
		conn, err := ways.DialService(lcctx.WithCluster(t.Context(), lcctx.Cluster{Name: "shopname"}), service, &api.ServicePort{Port: 443, TargetPort: intstr.FromString("http")})
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close() // it is ours alone
	}
}

// TestWebhookThatReadsNothing: a connection ends when it is closed, whatever its other end does.
func TestWebhookThatReadsNothing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := startProxying(t, time.Minute, map[string]string{"8080": l.Addr().String()})
	hooks := newOpenStreams("connections to webhooks", 1, 1, true)
	ways := &Ways{kubelets: p, hooks: hooks, pods: &podPages{}}
	service := &api.Service{ObjectMeta: metav1.ObjectMeta{Name: "hooks", Namespace: "team"}, Spec: api.ServiceSpec{Selector: map[string]string{"app": "web"}}}
	conn, err := ways.DialService(lcctx.WithCluster(t.Context(), lcctx.Cluster{Name: "shopname"}), service, &api.ServicePort{Port: 443, TargetPort: intstr.FromString("http")})
	if err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() {
		for range 1 << 10 {
			if _, err := conn.Write(make([]byte, 1<<20)); err != nil {
				written <- err
				return
			}
		}
		written <- nil
	}()
	select {
	case err := <-written:
		t.Fatalf("it reads all: %v", err)
	case <-time.After(2 * time.Second):
	}
	closed := make(chan struct{})
	go func() {
		_ = conn.Close() // what it says goodbye to may not listen
		close(closed)
	}()
	for what, ended := range map[string]func() bool{
		"Close":        func() bool { _, open := <-closed; return !open },
		"what is sent": func() bool { return <-written != nil },
	} {
		done := make(chan bool, 1)
		go func() { done <- ended() }()
		select {
		case ok := <-done:
			if !ok {
				t.Errorf("%s has not ended by an error", what)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s waits for who reads nothing", what)
		}
	}
	p.open = hooks
	p.nothingIsOpen(t, "after that")
}

// partly are Kubelets of which only those of one mirror can be reached.
type partly struct {
	Kubelets
	of string
}

func (k partly) Reach(ctx context.Context, shown metav1.Object) (func() net.Conn, error) {
	if shown.GetLabels()[workloadv1alpha1.MirrorLabel] != k.of {
		return nil, errors.New("it is away")
	}
	return k.Kubelets.Reach(ctx, shown)
}

// both are the pods that there are.
type both struct {
	rest.Lister
	pods []api.Pod
}

func (b both) List(context.Context, *metainternalversion.ListOptions) (apiruntime.Object, error) {
	return &api.PodList{Items: b.pods}, nil
}

// away are Kubelets that cannot be reached, silent those that hang up, and leaving those that are found when nobody waits any more.
type (
	away    struct{}
	silent  struct{}
	leaving struct {
		Kubelets
		leave func()
	}
)

func (l leaving) Reach(ctx context.Context, shown metav1.Object) (func() net.Conn, error) {
	dial, err := l.Kubelets.Reach(ctx, shown)
	l.leave()
	return dial, err
}

func (away) Reach(context.Context, metav1.Object) (func() net.Conn, error) {
	return nil, errors.New("it is away")
}

func (silent) Reach(context.Context, metav1.Object) (func() net.Conn, error) {
	return func() net.Conn {
		ours, theirs := net.Pipe()
		_ = theirs.Close()
		return ours
	}, nil
}

// TestProxyToUndeclaredPorts: they are for those who may forward ports.
func TestProxyToUndeclaredPorts(t *testing.T) {
	p := startProxying(t, time.Minute, nil)
	p.may = authorizer.DecisionNoOpinion
	for path, want := range map[string]int{
		"web-1:8080/proxy/": http.StatusOK, "web-1:http/proxy/": http.StatusOK, "web-1/proxy/": http.StatusOK, "web-1:15000/proxy/": http.StatusForbidden, "web-1:53/proxy/": http.StatusForbidden,
	} {
		answer := answerOf(t, bufio.NewReader(p.send(t, http.MethodGet, path, "Connection: close")))
		text, err := io.ReadAll(answer.Body)
		if answer.StatusCode != want || err != nil || want == http.StatusForbidden && !strings.Contains(string(text), "create pods/portforward") {
			t.Errorf("%s: %s %q %v, want %d", path, answer.Status, text, err, want)
		}
	}
	if len(p.asked) != 2 || p.asked[0] != "alice create pods/portforward team/web-1" {
		t.Errorf("asked for %q", p.asked)
	}
	p.nothingIsOpen(t, "after all")
}
