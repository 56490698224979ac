package server

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// registered are the credentials of syncers outside: each mirror's certificates go back to one token. The tokens that can be
// shown are whole ones, by mirror.
type registered struct {
	mu      sync.Mutex
	ids     map[logicalcluster.Name]string
	tokens  map[logicalcluster.Name]string
	unknown bool // nothing is known yet
}

func (r *registered) Token(_ context.Context, mirror logicalcluster.Name, token string) (string, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id, _, _ := strings.Cut(token, ".")
	return id, r.tokens[mirror] == token, nil
}

func (r *registered) Accepts(mirror logicalcluster.Name, id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.unknown && r.ids[mirror] == id
}

func (r *registered) WaitSynced(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unknown {
		return errors.New("not yet")
	}
	return nil
}

func (r *registered) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// syncerOf returns a certificate of a mirror's syncer, as the server signs it.
func (r *running) syncerOf(t *testing.T, mirror logicalcluster.Name, id string) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	asked, err := cert.MakeCSRFromTemplate(key, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: workloadv1alpha1.SyncerUserPrefix + string(mirror), SerialNumber: id},
	})
	must(t, err)
	certPEM, err := r.SignSyncer(asked)
	must(t, err)
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	must(t, err)
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	must(t, err)
	return &pair
}

// watch begins a watch without an end, and returns its events line by line. The channel is closed with the watch.
func (r *running) watch(t *testing.T, certificate *tls.Certificate, path string, webSocket bool) <-chan string {
	t.Helper()
	return r.watchBy(t, asked{certificate: certificate, path: path}, webSocket)
}

// watchBy is watch with the credential and header of a request.
func (r *running) watchBy(t *testing.T, a asked, webSocket bool) <-chan string {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.CACertificate())
	config := &tls.Config{RootCAs: roots}
	if a.certificate != nil {
		config.Certificates = []tls.Certificate{*a.certificate}
	}
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.URL()+a.path+"?watch=true&timeoutSeconds=1000000000", nil)
	must(t, err)
	for key, value := range a.header {
		req.Header.Set(key, value)
	}
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	want := http.StatusOK
	if webSocket {
		want = http.StatusSwitchingProtocols
		for key, value := range map[string]string{
			"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Origin": r.URL(),
		} {
			req.Header.Set(key, value)
		}
	}
	response, err := transport.RoundTrip(req)
	must(t, err)
	if response.StatusCode != want {
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		t.Fatalf("watch %s: %d %s", a.path, response.StatusCode, body)
	}
	events := make(chan string, 100)
	go func() {
		defer close(events)
		defer response.Body.Close()
		lines := bufio.NewScanner(response.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			events <- lines.Text()
		}
		_ = lines.Err() // a watch may end in any way
	}()
	return events
}

// A watch of a syncer outside the server ends with the certificate that it was begun with, however long it was asked for.
func TestWatchEndsWithItsCertificate(t *testing.T) {
	t.Parallel()
	known := &registered{ids: map[logicalcluster.Name]string{east: "aaaaaa", west: "bbbbbb"}}
	r := startServerKnowing(t, known, nil)
	for _, mirror := range []logicalcluster.Name{east, west} {
		_, err := r.in(t, mirror).CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
		must(t, err)
	}
	write := func(mirror logicalcluster.Name, name string) {
		t.Helper()
		_, err := r.in(t, mirror).CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		must(t, err)
	}
	const path = "/api/v1/secrets"
	revoked := r.watch(t, r.syncerOf(t, east, "aaaaaa"), clustersPrefix+string(east)+path, false)
	overWebSocket := r.watch(t, r.syncerOf(t, east, "aaaaaa"), clustersPrefix+string(east)+path, true)
	other := r.watch(t, r.syncerOf(t, west, "bbbbbb"), clustersPrefix+string(west)+path, false)
	r.options.SyncerSigningDuration = 3 * time.Second
	short := r.syncerOf(t, west, "bbbbbb")
	expiring := r.watch(t, short, clustersPrefix+string(west)+path, false)
	write(east, "before")
	write(west, "before")
	for _, events := range []<-chan string{revoked, overWebSocket, other, expiring} {
		if until(t, events, "before") {
			t.Fatal("a watch ended although its certificate is good")
		}
	}
	if !until(t, expiring, "") || time.Now().Before(short.Leaf.NotAfter) {
		t.Errorf("the watch with a certificate until %s ended at %s", short.Leaf.NotAfter, time.Now())
	}
	known.set(func() { known.ids[east] = "cccccc" })
	for _, events := range []<-chan string{revoked, overWebSocket} {
		if !until(t, events, "") {
			t.Error("a watch goes on with a certificate that is good no longer")
		}
	}
	// It is the certificate of the one that ended them, and not the check.
	write(west, "after")
	if until(t, other, "after") {
		t.Error("the watch of another mirror ended, too")
	}
}

// A watch that was begun with a bootstrap token ends when the token is spent, runs out or is replaced, as requests with it are
// refused from then on: it would be there to read along the certificate requests of whoever has the token next.
func TestWatchEndsWithItsBootstrapToken(t *testing.T) {
	t.Parallel()
	tokens := map[logicalcluster.Name]string{east: "aaaaaa.0123456789abcdef", west: "bbbbbb.0123456789abcdef"}
	known := &registered{tokens: maps.Clone(tokens)}
	r := startServerKnowing(t, known, nil)
	requests := func(mirror logicalcluster.Name) asked {
		return asked{token: tokens[mirror], path: clustersPrefix + string(mirror) + "/apis/certificates.k8s.io/v1/certificatesigningrequests"}
	}
	ask := func(mirror logicalcluster.Name, name string) {
		t.Helper()
		a := newAsker(t, r)
		_, err := r.in(t, mirror).CertificatesV1().CertificateSigningRequests().Create(t.Context(), &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request: a.pem(t, pkix.Name{CommonName: "x"}), SignerName: workloadv1alpha1.SyncerSigner,
				Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
			},
		}, metav1.CreateOptions{})
		must(t, err)
	}
	ended := r.watchBy(t, requests(east), false)
	overWebSocket := r.watchBy(t, requests(east), true)
	other := r.watchBy(t, requests(west), false)
	ask(east, "before")
	ask(west, "before")
	for _, events := range []<-chan string{ended, overWebSocket, other} {
		if until(t, events, "before") {
			t.Fatal("a watch ended although its token is good")
		}
	}
	known.set(func() { delete(known.tokens, east) })
	if got := r.ask(t, requests(east)); got.code != http.StatusUnauthorized {
		t.Errorf("a request with a token that is good no longer: %d %s, want 401", got.code, got.body)
	}
	for _, events := range []<-chan string{ended, overWebSocket} {
		if !until(t, events, "") {
			t.Error("a watch goes on with a token that is good no longer")
		}
	}
	ask(west, "after")
	if until(t, other, "after") {
		t.Error("the watch with another token ended, too")
	}
}

// A watch does not end with a credential of which the store could not be asked, only with one that is good no longer.
func TestWatchOutlivesTheQuestionAfterItsCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := []error{errors.New("etcdserver: request timed out"), nil, errors.New("etcdserver: leader changed")}
		asked := 0
		who := &bootstrapUser{mirror: east, good: func(context.Context) (bool, error) {
			if asked++; asked > len(answers) {
				return false, nil
			}
			return answers[asked-1] == nil, answers[asked-1]
		}}
		ctx := request.WithUser(request.WithRequestInfo(t.Context(), &request.RequestInfo{Verb: "watch"}), who)
		began := time.Now()
		(&Server{}).withEndOfCredential(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
			<-req.Context().Done()
		}), func(*http.Request, *request.RequestInfo) bool { return true }).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
		if lasted, want := time.Since(began), time.Duration(len(answers)+1)*credentialCheck; lasted != want {
			t.Errorf("the watch ended after %s, want %s: it was asked %d times, with the answers %v and then that the token is good no longer", lasted, want, asked, answers)
		}
	})
}

// until reads the events of a watch up to one that contains a name, or to its end.
func until(t *testing.T, events <-chan string, name string) (ended bool) {
	t.Helper()
	patience := time.After(time.Minute)
	for last := ""; ; {
		select {
		case event, open := <-events:
			if last = event; !open {
				return true
			}
			if name != "" && strings.Contains(event, name) {
				return false
			}
		case <-patience:
			t.Fatalf("the watch still goes on, waiting for %q; last event %.300s", name, last)
		}
	}
}

// A server that starts does not refuse a syncer because it knows of none yet: that would be taken for its word.
func TestSyncersAreNotRefusedByAServerThatStarts(t *testing.T) {
	known := &registered{ids: map[logicalcluster.Name]string{east: "aaaaaa"}}
	r := startServerKnowing(t, known, nil)
	certificate := r.syncerOf(t, east, "aaaaaa")
	list := asked{path: clustersPrefix + string(east) + "/api/v1/secrets", certificate: certificate}
	if got := r.ask(t, list); got.code != http.StatusOK {
		t.Fatalf("list with a good certificate: %d %s", got.code, got.body)
	}
	known.set(func() { known.unknown = true })
	if got := r.ask(t, list); got.code != http.StatusServiceUnavailable {
		t.Errorf("with a certificate, when nothing is known: %d %s, want 503", got.code, got.body)
	}
	list.certificate, list.token = nil, "aaaaaa.0123456789abcdef"
	if got := r.ask(t, list); got.code != http.StatusServiceUnavailable {
		t.Errorf("with a token, when nothing is known: %d %s, want 503", got.code, got.body)
	}
}
