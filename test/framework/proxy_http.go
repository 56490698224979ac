package framework

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
)

// Front is a load balancer in front of a physical cluster's API server, with the faults of those. It ends TLS, by a
// certificate of its own, and speaks HTTP/2. Its methods are for any goroutine.
type Front struct {
	// Proxy is between the clients and the load balancer, for faults of the network.
	Proxy *Proxy
	// Physical is the cluster as it is seen through both: with their address, and a token of a cluster-admin.
	Physical *Physical

	// Faulted counts the requests that a fault answered, Held those that it saw and let pass, Ended the watches that were cut.
	Faulted, Held, Ended atomic.Int64

	mu     sync.Mutex // guards all below
	fault  Fault
	events int // 0: watches go on
}

// Fault may answer a request in place of the cluster, or keep it waiting. It returns whether it answered it.
type Fault func(w http.ResponseWriter, r *http.Request) bool

// Refuses answers every request with that status. Retry-After is sent unless it is 0.
func Refuses(code int, retryAfter time.Duration) Fault {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		if retryAfter > 0 {
			w.Header().Set("Retry-After", fmt.Sprint(int(retryAfter.Seconds())))
		}
		http.Error(w, http.StatusText(code), code)
		return true
	}
}

// Slow keeps every request waiting before the cluster sees it.
func Slow(d time.Duration) Fault {
	return func(_ http.ResponseWriter, r *http.Request) bool {
		select {
		case <-time.After(d):
		case <-r.Context().Done():
		}
		return false
	}
}

// Swallows never answers, as where a load balancer lost its backend: only the client can end the request.
func Swallows(_ http.ResponseWriter, r *http.Request) bool {
	<-r.Context().Done()
	return true
}

// WatchesExpire answers every watch with 410, as an API server does that has forgotten the version it would begin with.
func WatchesExpire(w http.ResponseWriter, r *http.Request) bool {
	if !r.URL.Query().Has("watch") {
		return false
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusGone)
	// A lost client does not read it.
	_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version","reason":"Expired","code":410}`)
	return true
}

// StartFront starts a load balancer in front of p, without faults. It ends with the test.
func StartFront(t testing.TB, p *Physical) *Front {
	t.Helper()
	target, err := url.Parse(p.URL)
	if err != nil {
		t.Fatalf("parse the address of %s: %v", p.Name, err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(p.RESTConfig().CAData) {
		t.Fatalf("the kubeconfig of %s has no authority", p.Name)
	}
	f := &Front{}
	quiet := log.New(io.Discard, "", 0) // broken connections are what this is for
	backend := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true, IdleConnTimeout: time.Minute,
		},
		FlushInterval:  -1, // watches
		ErrorLog:       quiet,
		ModifyResponse: f.limit,
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		fault := f.fault
		f.mu.Unlock()
		if fault != nil {
			if fault(w, r) {
				f.Faulted.Add(1)
				return
			}
			f.Held.Add(1)
		}
		backend.ServeHTTP(w, r)
	}))
	server.EnableHTTP2, server.Config.ErrorLog = true, quiet
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	f.Proxy = StartProxy(t, server.Listener.Addr().String())
	f.Physical = &Physical{
		Process: p.Process, Name: p.Name, URL: "https://" + f.Proxy.Address, AuditLog: p.AuditLog,
		Kubeconfig: filepath.Join(t.TempDir(), p.Name+"-front.kubeconfig"),
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	config := clientcmdapi.NewConfig()
	config.Clusters["front"] = &clientcmdapi.Cluster{Server: f.Physical.URL, CertificateAuthorityData: ca}
	config.AuthInfos["front"] = &clientcmdapi.AuthInfo{Token: adminToken(t, p)}
	config.Contexts["front"] = &clientcmdapi.Context{Cluster: "front", AuthInfo: "front"}
	config.CurrentContext = "front"
	if err := clientcmd.WriteToFile(*config, f.Physical.Kubeconfig); err != nil {
		t.Fatalf("write the kubeconfig of %s behind a load balancer: %v", p.Name, err)
	}
	return f
}

// adminToken makes a ServiceAccount that may do everything, since a client certificate does not pass a Front.
func adminToken(t testing.TB, p *Physical) string {
	t.Helper()
	const name = "front-admin"
	kube := p.Clientset()
	meta := metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: name}
	if _, err := kube.CoreV1().ServiceAccounts(meta.Namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatalf("make an administrator of %s: %v", p.Name, err)
	}
	_, err := kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: meta.Namespace, Name: name}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatalf("make an administrator of %s: %v", p.Name, err)
	}
	token, err := kube.CoreV1().ServiceAccounts(meta.Namespace).CreateToken(t.Context(), name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](24 * 3600)}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("get a token of an administrator of %s: %v", p.Name, err)
	}
	return token.Status.Token
}

// Break makes fault see every request from now on. Requests under way are not touched.
func (f *Front) Break(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

// CutWatches ends every watch that begins from now on after that many events.
func (f *Front) CutWatches(events int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = events
}

// Restore ends all faults, the Proxy's as well. Requests that a fault keeps waiting go on waiting.
func (f *Front) Restore() {
	f.mu.Lock()
	f.fault, f.events = nil, 0
	f.mu.Unlock()
	f.Proxy.Restore()
}

// limit ends a watch after f.events events, each of which is a line.
func (f *Front) limit(r *http.Response) error {
	f.mu.Lock()
	events := f.events
	f.mu.Unlock()
	if events > 0 && r.Request.URL.Query().Has("watch") && strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		r.Body = &cutAfter{ReadCloser: r.Body, lines: events, cut: func() { f.Ended.Add(1) }}
	}
	return nil
}

// cutAfter ends a stream in the middle of things after some lines.
type cutAfter struct {
	io.ReadCloser
	lines int
	cut   func() // is told when it does
}

var errCut = errors.New("the watch was cut")

func (c *cutAfter) Read(p []byte) (int, error) {
	if c.lines <= 0 {
		c.cut()
		return 0, errCut
	}
	n, err := c.ReadCloser.Read(p)
	c.lines -= bytes.Count(p[:n], []byte("\n"))
	return n, err
}
