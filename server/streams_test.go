package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	clientexec "k8s.io/client-go/util/exec"

	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/test/framework"
)

// reaching are Kubelets that lead to one kubelet, and tell of which pods somebody asked.
type reaching struct {
	framework.NoPods
	server *httptest.Server
	refuse error

	mu    sync.Mutex
	asked []string // names and UIDs below
}

func (r *reaching) Reach(_ context.Context, shown metav1.Object) (func() net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, shown.GetName()+" "+shown.GetAnnotations()[workloadv1alpha1.PodUIDAnnotation])
	if r.refuse != nil {
		return nil, r.refuse
	}
	return func() net.Conn {
		conn, err := net.Dial("tcp", r.server.Listener.Addr().String())
		if err != nil {
			panic(err)
		}
		return conn
	}, nil
}

// streaming is a server whose workspace shop shows the pod web-1 of east, for whose container c a kubelet answers.
type streaming struct {
	*showing
	kubelets *reaching
	alice    *rest.Config // she may do everything with pods of the namespace
}

func startStreaming(t *testing.T) *streaming { return startStreamingWith(t, nil, nil) }

// startStreamingWith starts it with others behind ports of the pod, and with a change of the pod.
func startStreamingWith(t *testing.T, ports map[string]string, change func(*corev1.Pod)) *streaming {
	t.Helper()
	s := &streaming{showing: startShowing(t), kubelets: &reaching{server: httptest.NewServer(&framework.Kubelet{T: t, Dir: t.TempDir(), Ports: ports})}}
	t.Cleanup(s.kubelets.server.Close)
	s.Server.kubelets = s.kubelets
	if _, err := s.east.CoreV1().Pods(inEast).Create(t.Context(), s.below("web-1", change), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.alice = s.person(t, alice, "alice", rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{""}, Resources: []string{
		"pods", "pods/log", "pods/exec", "pods/attach", "pods/portforward", "pods/proxy", "services/proxy",
	}})
	return s
}

// person returns how somebody with a right to pods, and to list them, reaches the workspace.
func (s *streaming) person(t *testing.T, token, name string, rule rbacv1.PolicyRule) *rest.Config {
	t.Helper()
	enters := rbacv1.PolicyRule{Verbs: []string{"access"}, NonResourceURLs: []string{"/"}}
	if _, err := s.shop.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{enters, rule}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.shop.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config := s.withToken(token)
	waitFor(t, 20*time.Second, name+" may list pods", func() (string, bool) {
		_, err := kubeOf(t, config).CoreV1().Pods(team).List(t.Context(), metav1.ListOptions{})
		return fmt.Sprint(err), err == nil
	})
	return config
}

func (s *streaming) withToken(token string) *rest.Config {
	return &rest.Config{Host: s.URL() + clustersPrefix + string(shop), BearerToken: token, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: s.CACertificate()}}
}

func kubeOf(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

// execution returns what a command in the container c of a pod says.
func execution(t *testing.T, config *rest.Config, pod, input string, websocket bool, command ...string) (out, problems string, err error) {
	t.Helper()
	req := kubeOf(t, config).CoreV1().RESTClient().Post().Namespace(team).Resource("pods").Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: "c", Command: command, Stdin: input != "", Stdout: true, Stderr: true}, scheme.ParameterCodec)
	var executor remotecommand.Executor
	if websocket {
		executor, err = remotecommand.NewWebSocketExecutor(config, http.MethodGet, req.URL().String())
	} else {
		executor, err = remotecommand.NewSPDYExecutor(config, http.MethodPost, req.URL())
	}
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	options := remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr}
	if input != "" {
		options.Stdin = strings.NewReader(input)
	}
	err = executor.StreamWithContext(t.Context(), options)
	return stdout.String(), stderr.String(), err
}

// TestStreams: logs, exec, attach and port-forward of a pod that a physical cluster shows, over SPDY and WebSocket.
func TestStreams(t *testing.T) {
	s := startStreaming(t)
	pods := kubeOf(t, s.alice).CoreV1().Pods(team)

	line := func(previous bool, i int) string { return framework.LogLine("web-1", "c", previous, i) }
	all := func(previous bool) (text string) {
		for i := range framework.LogLines {
			text += line(previous, i+1)
		}
		return text
	}
	for name, tc := range map[string]struct {
		options corev1.PodLogOptions
		want    string
	}{
		"all":        {corev1.PodLogOptions{}, all(false)},
		"previous":   {corev1.PodLogOptions{Container: "c", Previous: true}, all(true)},
		"tail":       {corev1.PodLogOptions{TailLines: ptr.To[int64](1)}, line(false, framework.LogLines)},
		"timestamps": {corev1.PodLogOptions{TailLines: ptr.To[int64](1), Timestamps: true}, "2026-01-01T00:00:00Z " + line(false, framework.LogLines)},
		"limit":      {corev1.PodLogOptions{LimitBytes: ptr.To[int64](7)}, all(false)[:7]},
	} {
		if got, err := pods.GetLogs("web-1", &tc.options).DoRaw(t.Context()); err != nil || string(got) != tc.want {
			t.Errorf("logs, %s: %q %v, want %q", name, got, err, tc.want)
		}
	}
	if _, err := pods.GetLogs("web-1", &corev1.PodLogOptions{Container: "nobody"}).DoRaw(t.Context()); !apierrors.IsBadRequest(err) {
		t.Errorf("logs of no container: %v, want a bad request", err)
	}

	for _, websocket := range []bool{false, true} {
		if out, problems, err := execution(t, s.alice, "web-1", "hello", websocket, "sh", "-c", "cat; echo oops >&2"); out != "hello" || problems != "oops\n" || err != nil {
			t.Errorf("exec, websocket=%t: %q %q %v", websocket, out, problems, err)
		}
		var exit clientexec.CodeExitError
		if _, _, err := execution(t, s.alice, "web-1", "", websocket, "sh", "-c", "exit 3"); !errors.As(err, &exit) || exit.Code != 3 {
			t.Errorf("exec that fails, websocket=%t: %v, want code 3", websocket, err)
		}
	}
	if out, _, err := execution(t, s.alice, "web-1", strings.Repeat("0123456789abcdef", 1<<16), true, "wc", "-c"); strings.TrimSpace(out) != "1048576" || err != nil {
		t.Errorf("a mebibyte: %q %v", out, err)
	}

	s.forwards(t)
	s.proxies(t)
	s.kubelets.mu.Lock()
	defer s.kubelets.mu.Unlock()
	for _, asked := range s.kubelets.asked {
		if asked != "web-1 uid-of-web-1" {
			t.Errorf("a stream of %q", asked)
		}
	}
}

// forwards sends a line through a forwarded port, over SPDY and WebSocket.
func (s *streaming) forwards(t *testing.T) {
	t.Helper()
	target := kubeOf(t, s.alice).CoreV1().RESTClient().Post().Namespace(team).Resource("pods").Name("web-1").SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(s.alice)
	if err != nil {
		t.Fatal(err)
	}
	overSPDY := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, target)
	overWebSocket, err := portforward.NewSPDYOverWebsocketDialer(target, s.alice)
	if err != nil {
		t.Fatal(err)
	}
	addresses, ports := []string{"127.0.0.1"}, []string{"0:80"}
	for name, forward := range map[string]func(stop, ready chan struct{}) (*portforward.PortForwarder, error){
		"SPDY": func(stop, ready chan struct{}) (*portforward.PortForwarder, error) {
			return portforward.NewOnAddresses(overSPDY, addresses, ports, stop, ready, io.Discard, io.Discard)
		},
		"WebSocket": func(stop, ready chan struct{}) (*portforward.PortForwarder, error) {
			return portforward.NewOnAddresses(overWebSocket, addresses, ports, stop, ready, io.Discard, io.Discard)
		},
	} {
		stop, ready := make(chan struct{}), make(chan struct{})
		forwarder, err := forward(stop, ready)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- forwarder.ForwardPorts() }()
		select {
		case <-ready:
		case err := <-ended:
			t.Fatalf("port-forward over %s: %v", name, err)
		}
		ports, err := forwarder.GetPorts()
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, "through\n")
		if said, err := bufio.NewReader(conn).ReadString('\n'); said != "through\n" || err != nil {
			t.Errorf("port-forward over %s: %q %v", name, said, err)
		}
		_ = conn.Close()
		close(stop)
		if err := <-ended; err != nil && !errors.Is(err, portforward.ErrLostConnectionToPod) {
			t.Errorf("port-forward over %s ends: %v", name, err)
		}
	}
}

// proxies asks a pod, and a Service that it is behind, over HTTP.
func (s *streaming) proxies(t *testing.T) {
	t.Helper()
	s.services(t)
	rest := kubeOf(t, s.alice).CoreV1().RESTClient()
	at := "/api/v1/namespaces/" + team + "/"
	for path, want := range map[string]string{
		"pods/web-1:8080/proxy/some/path?q=1":  "GET /some/path?q=1  ",
		"pods/http:web-1:8080/proxy/":          "GET /  ",
		"services/web:80/proxy/x":              "GET /x  ",
		"services/http:web:http/proxy/a/b?c=1": "GET /a/b?c=1  ",
	} {
		got, err := rest.Get().RequestURI(at + path).DoRaw(t.Context())
		if err != nil || string(got) != want {
			t.Errorf("%s: %q %v, want %q", path, got, err, want)
		}
	}
	if got, err := rest.Put().AbsPath(at+"pods/web-1:8080/proxy/in").SetHeader("X-Test", "mine").Body([]byte("body")).DoRaw(t.Context()); err != nil || string(got) != "PUT /in mine body" {
		t.Errorf("PUT: %q %v", got, err)
	}
	for path, want := range map[string]struct {
		code int
		says string
	}{
		"pods/web-1:9/proxy/":          {http.StatusServiceUnavailable, "connection refused"},
		"services/web:closed/proxy/":   {http.StatusServiceUnavailable, "connection refused"},
		"services/web:8080/proxy/":     {http.StatusServiceUnavailable, "80 (http), 81 (closed), 82 (app)"},
		"services/empty:80/proxy/":     {http.StatusServiceUnavailable, "no pod"},
		"services/outside:80/proxy/":   {http.StatusNotImplemented, "no selector"},
		"services/absent:80/proxy/":    {http.StatusNotFound, "absent"},
		"pods/absent:80/proxy/":        {http.StatusNotFound, "absent"},
		"pods/ftp:web-1:8080:2/proxy/": {http.StatusBadRequest, "no pod"},
		"pods/web-1:http/proxy/":       {http.StatusBadRequest, "no port"},
		"pods/web-1:0/proxy/":          {http.StatusBadRequest, "1 to 65535"},
		"pods/web-1:65536/proxy/":      {http.StatusBadRequest, "1 to 65535"},
	} {
		err := rest.Get().RequestURI(at + path).MaxRetries(0).Do(t.Context()).Error()
		if code(err) != want.code || !strings.Contains(err.Error(), want.says) {
			t.Errorf("%s: %v, want %d and %q", path, err, want.code, want.says)
		}
	}
}

// services makes web-1 Ready, and Services that it is behind, or not.
func (s *streaming) services(t *testing.T) {
	t.Helper()
	ofEast := s.east.CoreV1().Pods(inEast)
	shown, err := ofEast.Get(t.Context(), "web-1", metav1.GetOptions{})
	must(t, err)
	shown.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.2.3", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	_, err = ofEast.UpdateStatus(t.Context(), shown, metav1.UpdateOptions{})
	must(t, err)
	for name, selector := range map[string]map[string]string{"web": {"app": "web"}, "empty": {"app": "nobody"}, "outside": nil} {
		_, err := s.shop.CoreV1().Services(team).Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
			Selector: selector, Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.Parse(framework.HTTPPort)}, {Name: "closed", Port: 81, TargetPort: intstr.Parse(framework.ClosedPort)},
				{Name: "app", Port: 82, TargetPort: intstr.Parse("web")}, {Name: "secure", Port: 443, TargetPort: intstr.Parse("secure")}},
		}}, metav1.CreateOptions{})
		must(t, err)
	}
}

// TestWhoMayStream: the rights of the workspace decide; and nobody reaches a pod by what somebody wrote into it.
func TestWhoMayStream(t *testing.T) {
	s := startStreaming(t)
	reader := s.person(t, bob, "bob", rbacv1.PolicyRule{Verbs: []string{"get", "list"}, APIGroups: []string{""}, Resources: []string{"pods", "pods/log"}})
	if _, err := kubeOf(t, reader).CoreV1().Pods(team).GetLogs("web-1", &corev1.PodLogOptions{}).DoRaw(t.Context()); err != nil {
		t.Errorf("who may read logs reads them: %v", err)
	}
	s.kubelets.asked = nil
	for _, websocket := range []bool{false, true} {
		if _, _, err := execution(t, reader, "web-1", "", websocket, "id"); err == nil || !strings.Contains(err.Error(), "forbidden") {
			t.Errorf("exec without the right, websocket=%t: %v", websocket, err)
		}
	}
	if _, err := kubeOf(t, s.withToken("nobodys")).CoreV1().Pods(team).GetLogs("web-1", &corev1.PodLogOptions{}).DoRaw(t.Context()); !apierrors.IsUnauthorized(err) {
		t.Errorf("nobody: %v", err)
	}

	// A mirror shows pods to its syncer, and lets it into none.
	for name, kube := range map[string]kubernetes.Interface{"its syncer": s.east, "another": s.west, "the server": s.in(t, east)} {
		if _, err := kube.CoreV1().Pods(inEast).GetLogs("web-1", &corev1.PodLogOptions{}).DoRaw(t.Context()); err == nil {
			t.Errorf("%s reads a log in the mirror", name)
		}
	}

	// What a tenant makes is shown by no physical cluster, whatever he writes.
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "forged"},
		Spec:       corev1.PodSpec{NodeName: "us-east-1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		Status:     corev1.PodStatus{PodIP: "127.0.0.1", HostIP: "127.0.0.1"},
	}
	ofShop := s.shop.CoreV1().Pods(team)
	if _, err := ofShop.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, subresource := range []string{"log", "exec", "attach", "portforward", "proxy"} {
		err := s.shop.CoreV1().RESTClient().Get().Namespace(team).Resource("pods").Name("forged").SubResource(subresource).Do(t.Context()).Error()
		if code(err) != http.StatusNotImplemented {
			t.Errorf("%s of a pod that no cluster shows: %v, want 501", subresource, err)
		}
	}
	if len(s.kubelets.asked) > 0 {
		t.Errorf("somebody asked for %v", s.kubelets.asked)
	}

	s.kubelets.refuse = apierrors.NewServiceUnavailable(`physical cluster "us-east-1" is not Ready (HeartbeatLost)`)
	if _, err := kubeOf(t, s.alice).CoreV1().Pods(team).GetLogs("web-1", &corev1.PodLogOptions{}).MaxRetries(0).Stream(t.Context()); code(err) != http.StatusServiceUnavailable || !strings.Contains(err.Error(), `"us-east-1"`) {
		t.Errorf("a cluster that is away: %v", err)
	}
	for _, websocket := range []bool{false, true} {
		if _, _, err := execution(t, s.alice, "web-1", "", websocket, "id"); err == nil || !strings.Contains(err.Error(), `"us-east-1"`) {
			t.Errorf("exec in a cluster that is away, websocket=%t: %v", websocket, err)
		}
	}
}

func code(err error) int {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return int(status.Status().Code)
	}
	return 0
}

// TestStreamsWithBody: whoever announces a body and sends none holds no room once he is gone. A log with one is refused; streams that switch
// protocols begin, since proxies announce what follows as a body in chunks.
func TestStreamsWithBody(t *testing.T) {
	s := startStreaming(t)
	config := rest.CopyConfig(s.alice)
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	core := kubeOf(t, config).CoreV1().RESTClient()
	ask := func(subresource, method string, header http.Header) (net.Conn, *http.Response) {
		url := core.Get().Namespace(team).Resource("pods").Name("web-1").SubResource(subresource).URL()
		if subresource == "exec" {
			url.RawQuery = "command=sh&stdin=true&stdout=true"
		} else {
			url.RawQuery = "follow=true"
		}
		conn, err := tls.Dial("tcp", url.Host, tlsConfig)
		if err != nil {
			t.Fatal(err)
		}
		head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n", method, url.RequestURI(), url.Host, config.BearerToken)
		var rest strings.Builder
		if err := header.Write(&rest); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, head+rest.String()+"\r\n"); err != nil {
			t.Fatal(err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s with %v: %v", subresource, header, err)
		}
		return conn, res
	}
	spdy := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}, "X-Stream-Protocol-Version": {"v4.channel.k8s.io"}}
	websocket := http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="},
		"Sec-Websocket-Protocol": {"v5.channel.k8s.io"},
	}
	with := func(headers http.Header, name, value string) http.Header {
		all := headers.Clone()
		if all == nil {
			all = http.Header{}
		}
		all.Set(name, value)
		return all
	}
	for name, tc := range map[string]struct {
		subresource, method string
		header              http.Header
		want                int
	}{
		"a log of a length":         {"log", http.MethodGet, with(nil, "Content-Length", "10"), http.StatusBadRequest},
		"a log in chunks":           {"log", http.MethodGet, with(nil, "Transfer-Encoding", "chunked"), http.StatusBadRequest},
		"exec by WebSocket, chunks": {"exec", http.MethodGet, with(websocket, "Transfer-Encoding", "chunked"), http.StatusSwitchingProtocols},
		"exec by WebSocket":         {"exec", http.MethodGet, websocket, http.StatusSwitchingProtocols},
		"exec by SPDY":              {"exec", http.MethodPost, spdy, http.StatusSwitchingProtocols},
	} {
		conn, res := ask(tc.subresource, tc.method, tc.header)
		if res.StatusCode != tc.want {
			t.Errorf("%s is answered %s, want %d", name, res.Status, tc.want)
		}
		_ = conn.Close()
	}
	waitFor(t, time.Minute, "their room is free again, and used up", func() (string, bool) {
		var open []net.Conn
		status := http.StatusSwitchingProtocols
		for len(open) <= 100 && status == http.StatusSwitchingProtocols {
			header := websocket // of the last, since a refusal waits for a body
			if len(open) < 100 {
				header = with(websocket, "Transfer-Encoding", "chunked")
			}
			conn, res := ask("exec", http.MethodGet, header)
			open, status = append(open, conn), res.StatusCode
		}
		for _, conn := range open {
			_ = conn.Close()
		}
		return fmt.Sprintf("the %dth: %d", len(open), status), len(open) == 101 && status == http.StatusTooManyRequests
	})
	waitFor(t, time.Minute, "there is room again", func() (string, bool) {
		conn, res := ask("exec", http.MethodGet, websocket)
		_ = conn.Close()
		return res.Status, res.StatusCode == http.StatusSwitchingProtocols
	})
}

// TestStreamsAreBounded: a workspace has so many streams at once, and each that ends makes room and leaves nothing; however long they
// are open, no limit of time of requests ends them.
func TestStreamsAreBounded(t *testing.T) {
	s := startStreaming(t)
	pods := kubeOf(t, s.alice).CoreV1().Pods(team)
	follow := func() (io.ReadCloser, error) {
		return pods.GetLogs("web-1", &corev1.PodLogOptions{Follow: true}).MaxRetries(0).Stream(t.Context())
	}
	first, err := follow()
	if err != nil {
		t.Fatal(err)
	}
	_ = first.Close()
	var before int
	waitFor(t, time.Minute, "the first stream has ended", func() (string, bool) {
		seen := runtime.NumGoroutine()
		settled := seen == before
		before = seen
		return fmt.Sprint(seen), settled
	})

	var open []io.ReadCloser
	for range 100 { // as docs/operations says
		log, err := follow()
		if err != nil {
			t.Fatalf("stream %d: %v", len(open), err)
		}
		if line, err := bufio.NewReader(log).ReadString('\n'); err != nil {
			t.Fatalf("stream %d: %q %v", len(open), line, err)
		}
		open = append(open, log)
	}
	// What is long running is ended by no limit of time of requests.
	if said := s.ask(t, asked{path: "/metrics", token: monitor}).body; !regexp.MustCompile(`apiserver_longrunning_requests\{[^}]*subresource="log"[^}]*\} 100\n`).MatchString(said) {
		t.Errorf("100 open logs are not counted as long running:\n%s", regexp.MustCompile(`apiserver_longrunning_requests\{.*`).FindAllString(said, -1))
	}
	if _, err := follow(); !apierrors.IsTooManyRequests(err) {
		t.Errorf("one more: %v, want 429", err)
	}
	for _, log := range open {
		_ = log.Close()
	}
	waitFor(t, time.Minute, "there is room again", func() (string, bool) {
		log, err := follow()
		if err == nil {
			_ = log.Close()
		}
		return fmt.Sprint(err), err == nil
	})
	waitFor(t, time.Minute, "ended streams leave no goroutine", func() (string, bool) {
		stacks := make([]byte, 1<<21)
		now := runtime.NumGoroutine()
		return fmt.Sprintf("%d, and %d before:\n%s", now, before, stacks[:runtime.Stack(stacks, true)]), now < before+len(open)/2 // the server's own come and go
	})
}

// TestStreamsEndWithTheirCredential: what somebody reads and executes lasts no longer than the token that it was begun with.
func TestStreamsEndWithTheirCredential(t *testing.T) {
	s := startStreaming(t)
	if _, err := s.shop.CoreV1().ServiceAccounts(team).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: robot}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.shop.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: robot}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "alice"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: team, Name: robot}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, 20*time.Second, "the ServiceAccount may list pods", func() (string, bool) {
		_, err := kubeOf(t, s.withToken(s.tokenFor(t, time.Hour))).CoreV1().Pods(team).List(t.Context(), metav1.ListOptions{})
		return fmt.Sprint(err), err == nil
	})
	const lifetime = 8 * time.Second
	began := time.Now()
	short := s.withToken(s.tokenFor(t, lifetime))
	ends := map[string]<-chan time.Time{"a log": s.follow(t, short)}
	for name, websocket := range map[string]bool{"exec over SPDY": false, "exec over WebSocket": true} {
		ends[name] = s.echo(t, short, websocket)
	}
	lasting := s.follow(t, s.alice)
	for name, ended := range ends {
		select {
		case at := <-ended:
			// Tokens know whole seconds.
			if lasted := at.Sub(began); lasted < lifetime-2*time.Second {
				t.Errorf("%s ended after %s, before its token", name, lasted)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s goes on without its token", name)
		}
	}
	select {
	case <-lasting:
		t.Error("the log of another ended, too")
	default:
	}
}

// follow reads the log of web-1, and says when it ends.
func (s *streaming) follow(t *testing.T, config *rest.Config) (ended <-chan time.Time) {
	t.Helper()
	log, err := kubeOf(t, config).CoreV1().Pods(team).GetLogs("web-1", &corev1.PodLogOptions{Follow: true}).MaxRetries(0).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	lines := bufio.NewReader(log)
	if _, err := lines.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	at := make(chan time.Time, 1)
	go func() {
		_, _ = io.Copy(io.Discard, lines)
		at <- time.Now()
	}()
	return at
}

// echo executes what says what it is told in web-1, and says when it ends.
func (s *streaming) echo(t *testing.T, config *rest.Config, websocket bool) (ended <-chan time.Time) {
	t.Helper()
	req := kubeOf(t, config).CoreV1().RESTClient().Post().Namespace(team).Resource("pods").Name("web-1").SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: "c", Command: []string{"cat"}, Stdin: true, Stdout: true}, scheme.ParameterCodec)
	executor, err := remotecommand.NewSPDYExecutor(config, http.MethodPost, req.URL())
	if websocket {
		executor, err = remotecommand.NewWebSocketExecutor(config, http.MethodGet, req.URL().String())
	}
	if err != nil {
		t.Fatal(err)
	}
	stdin, input := io.Pipe()
	output, stdout := io.Pipe()
	t.Cleanup(func() { _ = input.Close() })
	at := make(chan time.Time, 1)
	go func() {
		err := executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout})
		at <- time.Now()
		_ = stdout.CloseWithError(fmt.Errorf("exec ended: %v", err))
	}()
	if _, err := io.WriteString(input, "hello\n"); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewReader(output)
	if line, err := said.ReadString('\n'); line != "hello\n" {
		t.Fatalf("exec, websocket=%t: %q %v", websocket, line, err)
	}
	go func() { _, _ = io.Copy(io.Discard, said) }()
	return at
}
