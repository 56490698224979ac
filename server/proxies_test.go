package server

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/utils/ptr"

	"atoll.dev/atoll/server/rbac"
	"atoll.dev/atoll/test/framework"
)

// application is what a tenant runs at a port: it redirects as applications do, sets a cookie, says what it was asked with, and sends back what follows an upgrade.
func application() http.Handler {
	mux := http.NewServeMux()
	to := func(path string, location func(req *http.Request) string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Location", location(req))
			w.WriteHeader(http.StatusFound)
		})
	}
	to("/login", func(*http.Request) string { return "/deep/home" })
	to("/deep/er/login", func(req *http.Request) string { return "http://" + req.Host + "/deep/home" })
	to("/out", func(*http.Request) string { return "../../../../../../../deep/home" })
	to("/away", func(*http.Request) string { return "https://elsewhere.example/" })
	mux.HandleFunc("/echo", func(w http.ResponseWriter, _ *http.Request) {
		conn, both, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close() //nolint:errcheck // a test's
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		line, _ := both.ReadString('\n')
		_, _ = io.WriteString(conn, line)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "session", Value: "1", Path: "/"})
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprintf(w, "%s of %s with %v", req.URL.Path, req.Host, req.Header)
	})
	return mux
}

// startApplication is streaming, with the application at the port http of the pod's container, and over TLS at the port secure of its sidecar.
func startApplication(t *testing.T) *streaming {
	t.Helper()
	plain, secure := httptest.NewServer(application()), httptest.NewTLSServer(application())
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	s := startStreamingWith(t, map[string]string{"8081": plain.Listener.Addr().String(), "8443": secure.Listener.Addr().String()}, func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "web", ContainerPort: 8081, Protocol: corev1.ProtocolTCP}}
		pod.Spec.InitContainers = []corev1.Container{{Name: "sidecar", Image: "i", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), Ports: []corev1.ContainerPort{{Name: "secure", ContainerPort: 8443, Protocol: corev1.ProtocolTCP}}}}
	})
	s.services(t)
	return s
}

// browser asks the server, over HTTP/1.1 or 2, as who has a token.
func (s *streaming) browser(token string, http2 bool) *http.Client {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.CACertificate())
	return &http.Client{Transport: bearer{token, &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: http2}}}
}

type bearer struct {
	token string
	http.RoundTripper
}

func (b bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+b.token)
	req.Header.Set("Cookie", "session=of-another")
	return b.RoundTripper.RoundTrip(req)
}

// browse asks for a URL, and reads all of the answer.
func browse(t *testing.T, client *http.Client, url string) (answer *http.Response, text string) {
	t.Helper()
	answer, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(answer.Body)
	must(t, err)
	must(t, answer.Body.Close())
	return answer, string(body)
}

// TestProxiesStayInTheirWorkspace: who follows a pod's redirects is led to the pod, by whatever path he came; neither side learns of the other what a
// browser would keep for all.
func TestProxiesStayInTheirWorkspace(t *testing.T) {
	s := startApplication(t)
	in := clustersPrefix + string(shop) + "/api/v1/namespaces/" + team + "/"
	for _, http2 := range []bool{false, true} {
		client := s.browser(alice, http2)
		for path, want := range map[string]string{
			"pods/web-1:8081/proxy":                     "pods/web-1:8081/proxy/",
			"pods/web-1:web/proxy?a=b":                  "pods/web-1:web/proxy/?a=b",
			"pods/web-1/proxy/login":                    "pods/web-1/proxy/deep/home",
			"pods/web-1:8081/proxy/deep/er/login":       "pods/web-1:8081/proxy/deep/home",
			"pods/web-1:8081/proxy/out":                 "pods/web-1:8081/proxy/deep/home",
			"pods/https:web-1:secure/proxy":             "pods/https:web-1:secure/proxy/",
			"pods/https:web-1:8443/proxy/login":         "pods/https:web-1:8443/proxy/deep/home",
			"pods/web-1:8081/proxy/a%2Fb%20c":           "pods/web-1:8081/proxy/a%2Fb%20c",
			"services/web:app/proxy":                    "services/web:app/proxy/",
			"services/https:web:secure/proxy/login?a=b": "services/https:web:secure/proxy/deep/home",
		} {
			answer, text := browse(t, client, s.URL()+in+path)
			if got := answer.Request.URL.RequestURI(); got != in+want || answer.StatusCode != http.StatusOK {
				t.Errorf("%s leads to %s: %s %s, want %s", path, got, answer.Status, text, in+want)
			}
			if strings.Contains(text, "Bearer") || strings.Contains(text, "Authorization") || strings.Contains(text, "of-another") || !strings.Contains(text, " of web-1:8") {
				t.Errorf("%s: the pod is told %s", path, text)
			}
			if h := answer.Header; h["Set-Cookie"] != nil || h.Get("Content-Security-Policy") != "sandbox allow-scripts allow-forms" {
				t.Errorf("%s: the answer has %v", path, h)
			}
		}
	}
	client := s.browser(alice, false)
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for path, want := range map[string]string{
		"pods/web-1:8081/proxy":               "proxy/",
		"pods/web-1:8081/proxy/login":         "./deep/home",
		"pods/web-1:8081/proxy/deep/er/login": "../../deep/home",
		"pods/web-1:8081/proxy/away":          "",
	} {
		answer, text := browse(t, client, s.URL()+in+path)
		if got := answer.Header.Get("Location"); got != want {
			t.Errorf("%s: %s, Location %q, want %q", path, answer.Status, got, want)
		}
		if want == "" && (answer.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, "https://elsewhere.example/")) {
			t.Errorf("%s: %s %s, want words of where it leads", path, answer.Status, text)
		}
	}
}

// TestProxiesSwitchProtocols: a WebSocket goes through the whole server.
func TestProxiesSwitchProtocols(t *testing.T) {
	s := startApplication(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.CACertificate())
	host := strings.TrimPrefix(s.URL(), "https://")
	for _, path := range []string{"pods/web-1:8081/proxy/echo", "pods/https:web-1:8443/proxy/echo", "services/web:app/proxy/echo"} {
		conn, err := tls.Dial("tcp", host, &tls.Config{RootCAs: roots})
		if err != nil {
			t.Fatal(err)
		}
		must(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		_, err = fmt.Fprintf(conn, "GET %s%s/api/v1/namespaces/%s/%s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", clustersPrefix, shop, team, path, host, alice)
		must(t, err)
		reader := bufio.NewReader(conn)
		answer, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.WriteString(conn, "through\n")
		must(t, err)
		if line, err := reader.ReadString('\n'); answer.StatusCode != http.StatusSwitchingProtocols || line != "through\n" || err != nil {
			t.Errorf("%s: %s %q %v", path, answer.Status, line, err)
		}
		must(t, conn.Close())
	}
}

// TestWhoMayProxy: the rights of the workspace decide, and of another workspace nobody reaches the pod.
func TestWhoMayProxy(t *testing.T) {
	s := startApplication(t)
	proxies := rbacv1.PolicyRule{Verbs: []string{"get", "list"}, APIGroups: []string{""}, Resources: []string{"pods", "pods/proxy", "services/proxy"}}
	reader := s.person(t, bob, "bob", proxies)
	s.makeNamespace(t, bank, team)
	s.bind(t, bank, "", "alice-is-admin", "admin", "alice")
	s.bind(t, bank, "", "alice-enters", rbac.WorkspaceAccess, "alice")
	waitForCode(t, s.running, asked{path: clustersPrefix + string(bank) + "/api/v1/namespaces/" + team + "/pods", token: alice}, http.StatusOK)
	rest := kubeOf(t, reader).CoreV1().RESTClient()
	for path, want := range map[string]int{
		"pods/web-1:web/proxy/":                         http.StatusOK,
		"services/web:app/proxy/":                       http.StatusOK,
		"pods/web-1:" + framework.HTTPPort + "/proxy/":  http.StatusForbidden, // which no container declares
		"services/web:http/proxy/":                      http.StatusForbidden, // the same
		"pods/web-1:" + framework.ClosedPort + "/proxy": http.StatusForbidden, // before anything else
	} {
		err := rest.Get().RequestURI("/api/v1/namespaces/" + team + "/" + path).MaxRetries(0).Do(t.Context()).Error()
		if got := code(err); got != want && (want != http.StatusOK || err != nil) {
			t.Errorf("%s, with a right to proxies alone: %v, want %d", path, err, want)
		}
		if want == http.StatusForbidden && !strings.Contains(fmt.Sprint(err), "pods/portforward") {
			t.Errorf("%s: %v does not say which right is needed", path, err)
		}
	}
	s.kubelets.mu.Lock()
	s.kubelets.asked = nil
	s.kubelets.mu.Unlock()
	for _, path := range []string{"pods/web-1:web/proxy/", "services/web:app/proxy/"} {
		for cluster, token := range map[string]string{string(bank): alice, string(shop): "nobodys"} {
			if got := s.ask(t, asked{path: clustersPrefix + cluster + "/api/v1/namespaces/" + team + "/" + path, token: token}); got.code != http.StatusNotFound && got.code != http.StatusUnauthorized {
				t.Errorf("%s in %s: %v", path, cluster, got)
			}
		}
	}
	s.kubelets.mu.Lock()
	defer s.kubelets.mu.Unlock()
	if len(s.kubelets.asked) > 0 {
		t.Errorf("somebody asked for %v", s.kubelets.asked)
	}
}
