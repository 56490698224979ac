package syncer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/test/framework"
)

const (
	kubeletShop   = logicalcluster.Name("shopname")
	kubeletTarget = "11111111-1111-1111-1111-111111111111"
)

// podOfShop is web-1 of the namespace prod of the workspace shop, which its physical cluster has as prod-x.
var podOfShop = shownPod{workspace: kubeletShop, namespace: "prod", below: types.NamespacedName{Namespace: "prod-x", Name: "web-1"}, uid: "uid-of-web-1"}

// apiBelow is an API server with a namespace and a pod, and what it was asked for besides.
type apiBelow struct {
	namespace corev1.Namespace
	pod       corev1.Pod
	asked     chan *http.Request // streams; nobody has to take them
	answer    http.HandlerFunc
}

func newAPIBelow(answer http.HandlerFunc) *apiBelow {
	return &apiBelow{
		namespace: corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name:        podOfShop.below.Namespace,
			Labels:      map[string]string{workloadv1alpha1.SyncTargetLabel: kubeletTarget, workloadv1alpha1.WorkspaceLabel: kubeletShop.String()},
			Annotations: map[string]string{workloadv1alpha1.RootAnnotation: "/prod"},
		}},
		pod:    corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: podOfShop.below.Name, UID: podOfShop.uid}},
		asked:  make(chan *http.Request, 10),
		answer: answer,
	}
}

func (b *apiBelow) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch req.URL.Path {
	case "/api/v1/namespaces/prod-x":
		_ = json.NewEncoder(w).Encode(b.namespace)
	case "/api/v1/namespaces/prod-x/pods/web-1":
		if b.pod.Name == "" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_ = json.NewEncoder(w).Encode(b.pod)
	default:
		b.asked <- req.Clone(context.Background())
		b.answer(w, req)
	}
}

// kubeletOver returns the kubelet over a physical cluster, and how to ask it for podOfShop.
func kubeletOver(t *testing.T, below http.Handler) (*kubelet, *http.Client) {
	t.Helper()
	server := httptest.NewServer(below)
	t.Cleanup(server.Close)
	k, err := newKubelet("east", kubeletTarget, &rest.Config{Host: server.URL, BearerToken: "syncer"})
	if err != nil {
		t.Fatal(err)
	}
	return k, askKubelet(k)
}

func askKubelet(k *kubelet) *http.Client {
	return askOver(func() (net.Conn, error) {
		ours, theirs := net.Pipe()
		go k.serveConn(context.Background(), theirs, podOfShop)
		return ours, nil
	})
}

// askOver asks what is at the other end of a connection, a new one each time.
func askOver(dial func() (net.Conn, error)) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return dial() }}}
}

// ways are how a server asks for podOfShop over a physical cluster.
var ways = map[string]func(*testing.T, http.Handler) *http.Client{
	"itself": func(t *testing.T, below http.Handler) *http.Client {
		_, client := kubeletOver(t, below)
		return client
	},
	"through a tunnel": func(t *testing.T, below http.Handler) *http.Client { return askThrough(tunnelTo(t, below)) },
}

func nothing(http.ResponseWriter, *http.Request) {}

// TestKubelet: what a kubelet is asked for a pod is asked of the API server, for that pod, whatever the path says of it.
func TestKubelet(t *testing.T) {
	const pod = "/api/v1/namespaces/prod-x/pods/web-1"
	for _, tc := range []struct{ method, asked, want string }{
		{"GET", "/containerLogs/prod/web-1/app?follow=true&previous=true&tailLines=5&sinceSeconds=9&timestamps=true&limitBytes=7&secret=1",
			pod + "/log?container=app&follow=true&limitBytes=7&previous=true&sinceSeconds=9&tailLines=5&timestamps=true"},
		{"POST", "/exec/prod/web-1/app?command=ls&command=-l&input=1&output=1&error=1&tty=1", pod + "/exec?command=ls&command=-l&container=app&stderr=1&stdin=1&stdout=1&tty=1"},
		{"GET", "/exec/prod/web-1/app?command=a%26container%3Db", pod + "/exec?command=a%26container%3Db&container=app"},
		{"POST", "/attach/prod/web-1/app?output=1", pod + "/attach?container=app&stdout=1"},
		{"POST", "/portForward/prod/web-1", pod + "/portforward"},
		{"POST", "/portForward/prod/web-1?port=80", pod + "/portforward?ports=80"},
		{"GET", "/containerLogs/prod/..%2F..%2F..%2Fsecrets%2Fx/app", pod + "/log?container=app"},
		{"GET", "/containerLogs/other/web-2/app", pod + "/log?container=app"},
		{"GET", "/containerLogs/prod/web-1/..%2F..%2Fsecrets", ""},
		{"GET", "/containerLogs/prod/web-1/a%26previous=true", ""},
		{"POST", "/exec/prod/web-1/app%3Fcommand=id", ""},
		{"DELETE", "/containerLogs/prod/web-1/app", ""},
		{"PUT", "/exec/prod/web-1/app", ""},
		{"GET", "/pods/", ""},
		{"POST", "/run/prod/web-1/app", ""},
		{"GET", "/api/v1/secrets", ""},
	} {
		t.Run(tc.method+" "+tc.asked, func(t *testing.T) {
			below := newAPIBelow(nothing)
			_, client := kubeletOver(t, below)
			req, err := http.NewRequestWithContext(t.Context(), tc.method, "http://east"+tc.asked, nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close() //nolint:errcheck // only read
			if tc.want == "" {
				if res.StatusCode < 400 || len(below.asked) > 0 {
					t.Errorf("answered %s, and %d went down", res.Status, len(below.asked))
				}
				return
			}
			if len(below.asked) != 1 {
				t.Fatalf("answered %s, and %d went down", res.Status, len(below.asked))
			}
			got := <-below.asked
			if got.URL.RequestURI() != tc.want || got.Method != tc.method {
				t.Errorf("asks %s %s, want %s", got.Method, got.URL.RequestURI(), tc.want)
			}
		})
	}
}

// TestKubeletFindsThePod: a name is not enough. The namespace says itself whose it is, and the pod is that of the UID.
func TestKubeletFindsThePod(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*apiBelow)
		pod    func(*shownPod)
		want   int // 0: found
	}{
		"the pod":                       {want: 0},
		"another pod of its name":       {change: func(b *apiBelow) { b.pod.UID = "another" }, want: http.StatusNotFound},
		"no pod":                        {change: func(b *apiBelow) { b.pod.Name = "" }, want: http.StatusNotFound},
		"no UID is shown, nor has it":   {change: func(b *apiBelow) { b.pod.UID = "" }, pod: func(p *shownPod) { p.uid = "" }, want: http.StatusNotFound},
		"another workspace's namespace": {change: func(b *apiBelow) { b.namespace.Labels[workloadv1alpha1.WorkspaceLabel] = "bank" }, want: http.StatusNotFound},
		"another SyncTarget's":          {change: func(b *apiBelow) { b.namespace.Labels[workloadv1alpha1.SyncTargetLabel] = "another" }, want: http.StatusNotFound},
		"for another of its namespaces": {change: func(b *apiBelow) { b.namespace.Annotations[workloadv1alpha1.RootAnnotation] = "/test" }, want: http.StatusNotFound},
		"nobody's namespace":            {change: func(b *apiBelow) { b.namespace.Labels, b.namespace.Annotations = nil, nil }, want: http.StatusNotFound},
		"a name that leads elsewhere":   {pod: func(p *shownPod) { p.below.Name = "../../../secrets/x" }, want: http.StatusBadRequest},
		"a name that leads up":          {pod: func(p *shownPod) { p.below.Name = ".." }, want: http.StatusBadRequest},
		"an escaped name":               {pod: func(p *shownPod) { p.below.Name = "..%2Fsecrets" }, want: http.StatusBadRequest},
		"a name with a query":           {pod: func(p *shownPod) { p.below.Name = "web-1?x=y" }, want: http.StatusBadRequest},
		"no name":                       {pod: func(p *shownPod) { p.below.Name = "" }, want: http.StatusBadRequest},
		"a namespace that leads away":   {pod: func(p *shownPod) { p.below.Namespace = "../nodes/x" }, want: http.StatusBadRequest},
		"no namespace":                  {pod: func(p *shownPod) { p.below.Namespace = "" }, want: http.StatusBadRequest},
		"an answer that is no object":   {change: func(b *apiBelow) { b.namespace.Name = strings.Repeat("x", mostTyped) }, want: http.StatusServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			below, pod := newAPIBelow(nothing), podOfShop
			if tc.change != nil {
				tc.change(below)
			}
			if tc.pod != nil {
				tc.pod(&pod)
			}
			k, _ := kubeletOver(t, below)
			err := k.find(t.Context(), pod)
			if got := codeOf(err); got != tc.want || len(below.asked) > 0 {
				t.Errorf("%d: %v, and %d went down, want %d", got, err, len(below.asked), tc.want)
			}
		})
	}
}

func codeOf(err error) int {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return int(status.Status().Code)
	}
	return 0
}

// TestKubeletSaysNothingOfWhoAsks: the physical cluster is asked by its syncer, whatever a user's request carries; and of what it
// answers, only what belongs to the stream comes back.
func TestKubeletSaysNothingOfWhoAsks(t *testing.T) {
	for name, over := range ways {
		t.Run(name, func(t *testing.T) { saysNothingOfWhoAsks(t, over) })
	}
}

func saysNothingOfWhoAsks(t *testing.T, over func(*testing.T, http.Handler) *http.Client) {
	below := newAPIBelow(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Set-Cookie", "a=b")
		w.Header().Set("Audit-Id", "x")
	})
	client := over(t, below)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://east/exec/prod/web-1/app?command=id", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, header := range []string{
		"Authorization", "Cookie", "Impersonate-User", "Impersonate-Group", "Impersonate-Uid", "Impersonate-Extra-Scopes", "X-Remote-User", "X-Forwarded-For", "Forwarded", "User-Agent", "Audit-Id",
	} {
		req.Header.Set(header, "system:masters")
	}
	req.Header.Set("X-Stream-Protocol-Version", "v4.channel.k8s.io")
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // only read
	if len(below.asked) == 0 {
		t.Fatalf("answered %s", res.Status)
	}
	got := (<-below.asked).Header
	for header, values := range got {
		if strings.Contains(strings.Join(values, " "), "system:masters") {
			t.Errorf("%s goes down: %q", header, values)
		}
	}
	if got.Get("Authorization") != "Bearer syncer" || got.Get("X-Stream-Protocol-Version") == "" {
		t.Errorf("headers %v, want the syncer's token and the protocol of the stream", got)
	}
	if res.Header.Get("Set-Cookie") != "" || res.Header.Get("Audit-Id") != "" {
		t.Errorf("headers %v come back", res.Header)
	}
}

// TestKubeletStreams: what a container writes arrives as it is written, and a stream is taken over in both directions. What is left by
// its client ends below, and leaves nothing.
func TestKubeletStreams(t *testing.T) {
	for name, over := range ways {
		t.Run(name, func(t *testing.T) { streams(t, over) })
	}
}

// execIn asks for the execution of a command, whose input is a stream.
func execIn(t *testing.T, client *http.Client, command string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://east/exec/prod/web-1/app?input=1&command="+command, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "SPDY/3.1")
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func streams(t *testing.T, over func(*testing.T, http.Handler) *http.Client) {
	more, ended := make(chan struct{}), make(chan struct{}, 2)
	below := newAPIBelow(func(w http.ResponseWriter, req *http.Request) {
		if strings.HasSuffix(req.URL.Path, "/log") {
			_, _ = io.WriteString(w, "first\n")
			w.(http.Flusher).Flush()
			if req.URL.Query().Get("tailLines") != "" {
				<-req.Context().Done() // nothing is written any more
				ended <- struct{}{}
				return
			}
			<-more
			_, _ = io.WriteString(w, "second\n")
			return
		}
		conn, buffered, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close() //nolint:errcheck // a test's
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4\r\n\r\n")
		line, _ := buffered.ReadString('\n')
		_, _ = conn.Write(data(len("you said ")+len(line), []byte("you said "+line)...))
		_, _ = buffered.ReadString('\n') // until the client is gone
		ended <- struct{}{}
	})
	client := over(t, below)
	before := runtime.NumGoroutine()

	res, err := client.Get("http://east/containerLogs/prod/web-1/app?follow=true")
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(res.Body)
	if line, err := lines.ReadString('\n'); line != "first\n" || err != nil {
		t.Errorf("the log begins with %q: %v", line, err)
	}
	close(more)
	if rest, err := io.ReadAll(lines); string(rest) != "second\n" || err != nil {
		t.Errorf("the log ends with %q: %v", rest, err)
	}
	_ = res.Body.Close()

	res, err = client.Get("http://east/containerLogs/prod/web-1/app?follow=true&tailLines=1")
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(res.Body).ReadString('\n'); line != "first\n" || err != nil {
		t.Errorf("the log begins with %q: %v", line, err)
	}
	_ = res.Body.Close()
	<-ended

	upgraded := execIn(t, client, "cat")
	stream, ok := upgraded.Body.(io.ReadWriteCloser)
	if upgraded.StatusCode != http.StatusSwitchingProtocols || !ok || upgraded.Header.Get("X-Stream-Protocol-Version") != "v4" {
		t.Fatalf("the stream is answered with %s %v", upgraded.Status, upgraded.Header)
	}
	if _, err := io.WriteString(stream, "hello\n"); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, len(data(0))+len("you said hello\n"))
	if _, err := io.ReadFull(stream, said); string(said) != string(data(len("you said hello\n"), []byte("you said hello\n")...)) || err != nil {
		t.Errorf("the stream answers %q: %v", said, err)
	}
	_ = stream.Close()
	<-ended
	leavesNothing(t, before)
}

// TestKubeletWaitsForStreams: what is to switch protocols answers within a bound; a log may be silent, as of a container that has written
// nothing yet, of which a kubelet says nothing before.
func TestKubeletWaitsForStreams(t *testing.T) {
	wrote := make(chan struct{})
	below := newAPIBelow(func(w http.ResponseWriter, req *http.Request) {
		if strings.HasSuffix(req.URL.Path, "/log") {
			<-wrote
			_, _ = io.WriteString(w, "at last")
			return
		}
		<-req.Context().Done()
	})
	k, client := kubeletOver(t, below)
	k.patience = 100 * time.Millisecond
	log := make(chan string, 1)
	go func() {
		res, err := client.Get("http://east/containerLogs/prod/web-1/app?follow=true")
		if err != nil {
			log <- err.Error()
			return
		}
		defer res.Body.Close() //nolint:errcheck // only read
		text, err := io.ReadAll(res.Body)
		log <- fmt.Sprint(string(text), err)
	}()
	<-below.asked
	for path, method := range map[string]string{"exec/prod/web-1/app": http.MethodPost, "attach/prod/web-1/app": http.MethodGet, "portForward/prod/web-1": http.MethodPost} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		req, err := http.NewRequestWithContext(ctx, method, "http://east/"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "SPDY/3.1")
		res, err := client.Do(req)
		if err != nil || res.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%s: %v %v, want 503", path, res, err)
		}
		if err == nil {
			_ = res.Body.Close()
		}
		cancel()
	}
	close(wrote)
	if got := <-log; got != "at last<nil>" {
		t.Errorf("the log that was silent: %q", got)
	}
}

// leavesNothing waits until no more goroutines run than before.
func leavesNothing(t *testing.T, before int) {
	t.Helper()
	framework.Eventually(t, 10*time.Second, "ended streams leave no goroutine", func() string {
		if now := runtime.NumGoroutine(); now > before {
			stacks := make([]byte, 1<<20)
			return fmt.Sprintf("%d, and %d before:\n%s", now, before, stacks[:runtime.Stack(stacks, true)])
		}
		return ""
	})
}

// TestKubeletStreamsEndWithTheirRequest: a stream that its client has left ends, whatever the physical cluster does: one that is silent
// once it has switched protocols, and one that does not even read what it is asked.
func TestKubeletStreamsEndWithTheirRequest(t *testing.T) {
	const ask = "POST /exec/prod/web-1/app?command=cat HTTP/1.1\r\nHost: east\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
	for name, tc := range map[string]struct{ switches, fills bool }{
		"after 101":                       {switches: true},
		"before 101":                      {},
		"before 101, with more than fits": {fills: true},
	} {
		t.Run(name, func(t *testing.T) {
			asked, release := make(chan struct{}), make(chan struct{})
			below := newAPIBelow(func(w http.ResponseWriter, _ *http.Request) {
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				if tc.switches {
					_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
				}
				close(asked)
				<-release // nothing is read, and nothing closed
				_ = conn.Close()
			})
			k, _ := kubeletOver(t, below)
			t.Cleanup(func() { close(release) }) // before the server ends, which waits
			before := runtime.NumGoroutine()

			ctx, cancel := context.WithCancel(t.Context())
			ours, theirs := net.Pipe()
			go k.serveConn(ctx, theirs, podOfShop)
			length := 0
			if tc.fills {
				length = 1 << 30
			}
			if _, err := fmt.Fprintf(ours, "%sContent-Length: %d\r\n\r\n", ask, length); err != nil {
				t.Fatal(err)
			}
			<-asked
			for tc.fills { // until nothing is taken any more
				_ = ours.SetWriteDeadline(time.Now().Add(time.Second))
				if _, err := ours.Write(make([]byte, 1<<20)); errors.Is(err, os.ErrDeadlineExceeded) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
			if tc.switches {
				res, err := http.ReadResponse(bufio.NewReader(ours), nil)
				if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
					t.Fatalf("%v %v", res, err)
				}
			}
			cancel()
			_ = ours.Close()
			leavesNothing(t, before+1) // what answers below
		})
	}
}

// TestKubeletRefusals: an API server's words reach the user, with the name of the cluster, and with a code that is about the request;
// that nobody answers does so without an address.
func TestKubeletRefusals(t *testing.T) {
	status := func(s metav1.Status) http.HandlerFunc {
		s.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(int(s.Code))
			_ = json.NewEncoder(w).Encode(s)
		}
	}
	left := make(chan struct{}) // by who is answered with a protocol that nobody asked for
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		code   int
		want   string
	}{
		"waiting":      {status(apierrors.NewBadRequest(`container "app" in pod "web-1" is waiting to start`).Status()), http.StatusBadRequest, "is waiting to start"},
		"forbidden":    {status(apierrors.NewForbidden(podsGVR.GroupResource(), "web-1", errors.New("no right")).Status()), http.StatusForbidden, "no right"},
		"unauthorised": {status(apierrors.NewUnauthorized("who are you").Status()), http.StatusServiceUnavailable, "who are you"},
		"text":         {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "overloaded", http.StatusBadGateway) }, http.StatusBadGateway, "overloaded"},
		"redirects": {func(w http.ResponseWriter, req *http.Request) {
			http.Redirect(w, req, "http://127.0.0.1/elsewhere", http.StatusFound)
		}, http.StatusServiceUnavailable, "302"},
		"has nothing":    {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, http.StatusServiceUnavailable, "204"},
		"a made-up code": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "what now", 799) }, http.StatusServiceUnavailable, "what now"},
		"switches unasked": {func(w http.ResponseWriter, _ *http.Request) {
			defer close(left)
			conn, buffered, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
			_, _ = buffered.ReadByte()
			_ = conn.Close()
		}, http.StatusServiceUnavailable, "does not answer"},
		"hangs up": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, http.StatusServiceUnavailable, "does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			_, client := kubeletOver(t, newAPIBelow(tc.answer))
			res, err := client.Get("http://east/containerLogs/prod/web-1/app")
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close() //nolint:errcheck // only read
			text, err := io.ReadAll(res.Body)
			if err != nil || res.StatusCode != tc.code || !strings.Contains(string(text), tc.want) || !strings.Contains(string(text), `"east"`) || strings.Contains(string(text), "{") || strings.Contains(string(text), "127.0.0.1") {
				t.Errorf("answered %s: %s (%v), want %d, the cluster's name, and %q", res.Status, text, err, tc.code, tc.want)
			}
		})
	}
	select {
	case <-left:
	case <-time.After(10 * time.Second):
		t.Error("a connection that switched unasked stays open")
	}

	gone, err := newKubelet("east", kubeletTarget, &rest.Config{Host: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := gone.find(t.Context(), podOfShop); codeOf(err) != http.StatusServiceUnavailable || err.Error() != `physical cluster "east" does not answer` {
		t.Errorf("nobody answers: %v", err)
	}
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		code   int
	}{
		"forbidden":      {status(apierrors.NewForbidden(podsGVR.GroupResource(), "web-1", errors.New("no right")).Status()), http.StatusForbidden},
		"unauthorised":   {status(apierrors.NewUnauthorized("no").Status()), http.StatusServiceUnavailable},
		"redirects":      {func(w http.ResponseWriter, req *http.Request) { http.Redirect(w, req, "/secret", http.StatusFound) }, http.StatusServiceUnavailable},
		"a made-up code": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(799) }, http.StatusServiceUnavailable},
		"no API server":  {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "a secret", http.StatusForbidden) }, http.StatusForbidden},
	} {
		t.Run("find, "+name, func(t *testing.T) {
			k, _ := kubeletOver(t, tc.answer)
			if err := k.find(t.Context(), podOfShop); codeOf(err) != tc.code || !strings.Contains(err.Error(), `"east"`) || strings.Contains(err.Error(), "secret") {
				t.Errorf("find: %v, want %d, the cluster's name, and nothing that is no API server's", err, tc.code)
			}
		})
	}
}

// TestKubeletKeepsToItsAddress: a stream goes to the address at which the pod was found, whatever the host's name leads to by then, and
// by the proxy that the server's environment names.
func TestKubeletKeepsToItsAddress(t *testing.T) {
	found := newAPIBelow(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "a line") })
	other := newAPIBelow(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "a secret") })
	leads := make(chan *httptest.Server, 2) // where the name leads to, one time after the other
	for _, below := range []*apiBelow{found, other} {
		server := httptest.NewServer(below)
		t.Cleanup(server.Close)
		leads <- server
	}
	k, err := newKubelet("east", kubeletTarget, &rest.Config{Host: "http://east.example", Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		if address == "east.example:80" {
			address = (<-leads).Listener.Addr().String()
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := k.find(t.Context(), podOfShop); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		res, err := askKubelet(k).Get("http://east/containerLogs/prod/web-1/app")
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(res.Body); string(text) != "a line" || err != nil {
			t.Errorf("the log is %q: %v", text, err)
		}
		_ = res.Body.Close()
	}
	if transport, ok := k.transport.(*http.Transport); !ok || transport.Proxy == nil ||
		reflect.ValueOf(transport.Proxy).Pointer() != reflect.ValueOf(http.ProxyFromEnvironment).Pointer() {
		t.Errorf("%T does not use the environment's proxy", k.transport)
	}
}

// TestKubeletUnpacksLittle: what is read to find a pod, or to say why it is not found, takes no more memory than its text a few times.
func TestKubeletUnpacksLittle(t *testing.T) {
	for name, tc := range map[string]struct {
		code int
		text string
	}{
		"an object": {http.StatusOK, fill(mostTyped, `{"metadata":{"managedFields":[`, `{},`, `{}]}}`)},
		"a Status":  {http.StatusForbidden, fill(mostTyped, `{"kind":"Status","message":"no","details":{"causes":[`, `{},`, `{}]}}`)},
	} {
		t.Run(name, func(t *testing.T) {
			k, _ := kubeletOver(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tc.code)
				_, _ = io.WriteString(w, tc.text)
			}))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := k.find(t.Context(), podOfShop)
			runtime.ReadMemStats(&after)
			if took := after.TotalAlloc - before.TotalAlloc; err == nil || took > 8*mostTyped {
				t.Errorf("%d KiB took %d KiB: %v", len(tc.text)>>10, took>>10, err)
			}
		})
	}
}
