package syncer

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// newCredential returns one whose Secret, empty at first, is in the fake cluster. While down is set, nothing there answers.
func newCredential(t *testing.T) (c *Credential, secret func() *corev1.Secret, down func(bool)) {
	t.Helper()
	var mu sync.Mutex
	var isDown bool
	below := fake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "atoll-system", Name: "west"}})
	below.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		return isDown, nil, errors.New("the control plane is being upgraded")
	})
	hub := &rest.Config{Host: "https://atoll.example/clusters/" + testMirror, BearerToken: "aaaaaa.0123456789abcdef"}
	c, err := NewCredential(hub, below.CoreV1().Secrets("atoll-system"), "west")
	if err != nil {
		t.Fatal(err)
	}
	secret = func() *corev1.Secret {
		found, err := below.Tracker().Get(corev1.SchemeGroupVersion.WithResource("secrets"), "atoll-system", "west")
		if err != nil {
			t.Fatal(err)
		}
		return found.(*corev1.Secret)
	}
	return c, secret, func(now bool) { mu.Lock(); defer mu.Unlock(); isDown = now }
}

// newPair returns the PEM of a certificate as the hub issues it, and of its key.
func newPair(t *testing.T, until time.Time) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: until, Subject: pkix.Name{CommonName: workloadv1alpha1.SyncerUserPrefix + testMirror, SerialNumber: "aaaaaa"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	if keyPEM, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der}), keyPEM
}

// TestCredentialTellsPodsTheAuthority: what verifies the hub's certificate comes from the bootstrap kubeconfig, in it or in a file, and is not in the config that the
// credential makes.
func TestCredentialTellsPodsTheAuthority(t *testing.T) {
	authority, _ := newPair(t, time.Now().Add(time.Hour))
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, authority, 0o600); err != nil {
		t.Fatal(err)
	}
	const host = "https://atoll.example:7443/clusters/" + testMirror
	for name, trust := range map[string]rest.TLSClientConfig{"in it": {CAData: authority}, "in a file": {CAFile: file}} {
		hub := &rest.Config{Host: host, BearerToken: "aaaaaa.0123456789abcdef", TLSClientConfig: trust}
		c, err := NewCredential(hub, fake.NewClientset().CoreV1().Secrets("atoll-system"), "west")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&API{Host: "atoll.example", Port: "7443", CA: authority}, c.API()); diff != "" {
			t.Errorf("with the authority %s, pods are told (-want +got):\n%s", name, diff)
		}
	}
}

// A certificate that cannot be kept when it is issued is kept as soon as that is possible: in the term of its leader, or
// in a later one of the same process.
func TestCertificateIsKeptInTheEnd(t *testing.T) {
	for name, terms := range map[string]int{"in the same term": 1, "in a later term": 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, secret, down := newCredential(t)
				certPEM, keyPEM := newPair(t, time.Now().Add(24*time.Hour))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				down(true)
				if _, err := (pairStore{c, ctx}).Update(certPEM, keyPEM); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Hour)
				if got := secret().Data[corev1.TLSCertKey]; len(got) > 0 {
					t.Fatal("the Secret was written while nothing answered")
				}
				if terms > 1 {
					cancel()
					synctest.Wait()
					if pair := c.recall(t.Context(), nil); pair == nil {
						t.Fatal("the process has forgotten what it could not keep")
					}
				}
				down(false)
				time.Sleep(time.Minute)
				if got := secret(); string(got.Data[corev1.TLSCertKey]) != string(certPEM) || string(got.Data[corev1.TLSPrivateKeyKey]) != string(keyPEM) {
					t.Error("a minute after the cluster answers again the Secret does not hold the certificate")
				}
				if pair := c.recall(t.Context(), nil); pair != nil {
					t.Error("what was kept is still held against the Secret")
				}
			})
		})
	}
}

// Of the Secret and this process' memory the newer certificate counts.
func TestNewestCertificateCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, down := newCredential(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer func() { cancel(); synctest.Wait() }()
		down(true)
		certPEM, keyPEM := newPair(t, time.Now().Add(24*time.Hour))
		if _, err := (pairStore{c, ctx}).Update(certPEM, keyPEM); err != nil {
			t.Fatal(err)
		}
		for _, until := range []time.Duration{time.Hour, 48 * time.Hour} {
			held, err := parsePair(newPair(t, time.Now().Add(until)))
			if err != nil {
				t.Fatal(err)
			}
			if got := c.recall(ctx, held); (got == held) != (until == 48*time.Hour) {
				t.Errorf("the Secret's ends in %s, the one in memory in 24h: the former is taken: %v", until, got == held)
			}
		}
		time.Sleep(25 * time.Hour)
		if got := c.recall(ctx, nil); got != nil {
			t.Errorf("one that ended at %s is taken", got.Leaf.NotAfter)
		}
	})
}

// A Secret that cannot be read now is read later.
func TestCredentialIsReadInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, down := newCredential(t)
		down(true)
		time.AfterFunc(time.Minute, func() { down(false) })
		if _, _, err := c.load(t.Context()); err != nil {
			t.Errorf("load: %v", err)
		}
	})
}

// hubOf answers requests in turn, by status code; 0 is no answer at all. The last goes on for ever.
type hubOf struct{ codes []int }

func (h *hubOf) RoundTrip(req *http.Request) (*http.Response, error) {
	code := h.codes[0]
	if len(h.codes) > 1 {
		h.codes = h.codes[1:]
	}
	if code == 0 {
		<-req.Context().Done()
		return nil, req.Context().Err()
	}
	body := `{"kind":"CertificateSigningRequestList","apiVersion":"certificates.k8s.io/v1","items":[]}`
	if code != http.StatusOK {
		reason := map[int]metav1.StatusReason{401: metav1.StatusReasonUnauthorized, 403: metav1.StatusReasonForbidden, 503: metav1.StatusReasonServiceUnavailable}[code]
		body = fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, code)
	}
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: req}, nil
}

// A hub is believed when it goes on refusing a credential, and waited for when it does not answer.
func TestKnock(t *testing.T) {
	for _, tc := range []struct {
		reason string
		codes  []int
		taken  bool
		most   time.Duration
	}{
		{"it takes the credential", []int{200}, true, time.Second},
		{"a hub that starts refuses in passing", []int{401, 401, 200}, true, refusedFor},
		{"so does one whose rights are not known yet", []int{403, 200}, true, refusedFor},
		{"it goes on refusing", []int{401}, false, 2 * refusedFor},
		{"it refuses now and then only", []int{401, 503, 401, 503, 401, 503, 401, 503, 401, 200}, true, time.Minute},
		{"a request got lost", []int{0, 200}, true, requestTimeout + time.Minute},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, _, _ := newCredential(t)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				hub := rest.CopyConfig(c.hub)
				hub.Transport, hub.TLSClientConfig = &hubOf{tc.codes}, rest.TLSClientConfig{}
				began := time.Now()
				taken, err := c.knock(ctx, hub)
				if took := time.Since(began); err != nil || taken != tc.taken || took > tc.most {
					t.Errorf("knock = %v, %v after %s; want %v within %s", taken, err, took, tc.taken, tc.most)
				}
			})
		})
	}
}
