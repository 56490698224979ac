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
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/server/certificates"
)

// asker has a key and asks for certificates.
type asker struct {
	*running
	key *ecdsa.PrivateKey
}

func newAsker(t *testing.T, r *running) asker {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	return asker{r, key}
}

func (a asker) pem(t *testing.T, subject pkix.Name, uris ...*url.URL) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject, URIs: uris}, a.key)
	must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// request asks in a logical cluster; change may change what is asked for.
func (a asker) request(t *testing.T, in logicalcluster.Name, subject pkix.Name, change func(*certificatesv1.CertificateSigningRequest)) (*certificatesv1.CertificateSigningRequest, error) {
	t.Helper()
	r := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "r-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeAPIServerClientSignerName, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
			Request: a.pem(t, subject),
		},
	}
	if change != nil {
		change(r)
	}
	return a.in(t, in).CertificatesV1().CertificateSigningRequests().Create(t.Context(), r, metav1.CreateOptions{})
}

func (a asker) answer(t *testing.T, in logicalcluster.Name, r *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) {
	t.Helper()
	r = r.DeepCopy()
	r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: kind, Status: corev1.ConditionTrue, Reason: "Test"})
	_, err := a.in(t, in).CertificatesV1().CertificateSigningRequests().UpdateApproval(t.Context(), r.Name, r, metav1.UpdateOptions{})
	must(t, err)
}

// outcome of an approved request: its certificate, or why there is none.
func (a asker) outcome(t *testing.T, in logicalcluster.Name, r *certificatesv1.CertificateSigningRequest) (signed []byte, why string) {
	t.Helper()
	waitFor(t, 30*time.Second, "the request is answered", func() (string, bool) {
		now, err := a.in(t, in).CertificatesV1().CertificateSigningRequests().Get(t.Context(), r.Name, metav1.GetOptions{})
		must(t, err)
		for _, c := range now.Status.Conditions {
			if c.Type == certificatesv1.CertificateFailed {
				why = c.Reason + ": " + c.Message
			}
		}
		signed = now.Status.Certificate
		return fmt.Sprint(now.Status.Conditions), len(signed) > 0 || why != ""
	})
	return signed, why
}

// certificate of a user of a workspace, who asks for it and is approved.
func (a asker) certificate(t *testing.T, in logicalcluster.Name, subject pkix.Name, change func(*certificatesv1.CertificateSigningRequest)) *tls.Certificate {
	t.Helper()
	r, err := a.request(t, in, subject, change)
	must(t, err)
	a.answer(t, in, r, certificatesv1.CertificateApproved)
	signed, why := a.outcome(t, in, r)
	if why != "" {
		t.Fatalf("%s is refused: %s", subject, why)
	}
	return a.with(t, signed)
}

// with is a certificate with the key, as TLS wants it.
func (a asker) with(t *testing.T, signed []byte) *tls.Certificate {
	t.Helper()
	block, _ := pem.Decode(signed)
	leaf, err := x509.ParseCertificate(block.Bytes)
	must(t, err)
	return &tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: a.key, Leaf: leaf}
}

func (r *running) signCertificates(t *testing.T) {
	t.Helper()
	runController(t, r, func(c *client.Clients, i *client.Informers) (*certificates.Controller, error) {
		return certificates.New(c, i, certificates.Options{Sign: r.SignForWorkspace, Reserved: ReservedInWorkspaces, Longest: r.CertificateLifetime()})
	})
}

// bindAdmin makes a user an administrator of logical clusters, by their roles.
func (r *running) bindAdmin(t *testing.T, name string, clusters ...logicalcluster.Name) {
	t.Helper()
	for _, cluster := range clusters {
		_, err := r.in(t, cluster).RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "admin-"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}},
		}, metav1.CreateOptions{})
		must(t, err)
	}
}

const pods = "/api/v1/namespaces/default/pods"

// A certificate that was approved in a workspace is somebody there, and nobody anywhere else, though somebody of the same name
// may do everything there.
func TestCertificatesAreOfOneWorkspace(t *testing.T) {
	r := startServer(t, withTokens(t))
	r.signCertificates(t)
	r.bindAdmin(t, "carol", "root", shop, bank, SystemAdminCluster)
	a := newAsker(t, r)
	carol := a.certificate(t, shop, pkix.Name{CommonName: "carol", Organization: []string{"team"}}, nil)
	waitFor(t, 30*time.Second, "carol reads in shop", func() (string, bool) {
		got := r.ask(t, asked{path: "/clusters/shopname" + pods, certificate: carol})
		return fmt.Sprintf("%d %s", got.code, got.body), got.code == http.StatusOK
	})
	for path, want := range map[string]int{
		"/clusters/root:shop" + pods:                             http.StatusOK,
		"/clusters/bankname" + pods:                              http.StatusUnauthorized,
		"/clusters/root:bank" + pods:                             http.StatusUnauthorized,
		"/clusters/root" + pods:                                  http.StatusUnauthorized,
		"/clusters/system:admin" + pods:                          http.StatusUnauthorized,
		"/clusters/eastname" + pods:                              http.StatusUnauthorized,
		"/clusters/*/api/v1/pods":                                http.StatusUnauthorized,
		"/clusters/none" + pods:                                  http.StatusUnauthorized,
		"/version":                                               http.StatusUnauthorized,
		pods:                                                     http.StatusUnauthorized,
		"/clusters/shopname/clusters/bankname" + pods:            http.StatusForbidden,
		"/clusters/bankname/../shopname" + pods:                  http.StatusUnauthorized,
		"/clusters/shopname" + BackupPath:                        http.StatusForbidden,
		"/clusters/shopname/metrics":                             http.StatusForbidden,
		"/clusters/shopname/apis/authentication.k8s.io/v1/nones": http.StatusNotFound,
	} {
		if got := r.ask(t, asked{path: path, certificate: carol}); got.code != want {
			t.Errorf("%s: %d %.200s, want %d", path, got.code, got.body, want)
		}
	}
	review := r.ask(t, asked{method: http.MethodPost, path: "/clusters/shopname/apis/authentication.k8s.io/v1/selfsubjectreviews", certificate: carol,
		body: `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}`})
	var self struct {
		Status struct {
			UserInfo struct {
				Username string
				Groups   []string
				Extra    map[string][]string
			}
		}
	}
	must(t, json.Unmarshal([]byte(review.body), &self))
	if who := self.Status.UserInfo; who.Username != "carol" || fmt.Sprint(who.Groups) != "[team system:authenticated]" || fmt.Sprint(who.Extra["atoll.dev/cluster"]) != "[shopname]" {
		t.Errorf("carol is %+v", who)
	}

	// What she may not be by impersonation either.
	for _, as := range []map[string]string{{"Impersonate-User": "x", "Impersonate-Group": "system:masters"}, {"Impersonate-User": "system:apiserver"}} {
		if got := r.ask(t, asked{path: "/clusters/shopname" + pods, certificate: carol, header: as}); got.code != http.StatusForbidden {
			t.Errorf("as %v: %d %.200s, want 403", as, got.code, got.body)
		}
	}

	// A workspace that she makes is not that of the carol whom everybody knows.
	made := r.ask(t, asked{method: http.MethodPost, path: "/clusters/shopname/apis/tenancy.kcp.io/v1alpha1/workspaces", certificate: carol,
		body: `{"kind":"Workspace","apiVersion":"tenancy.kcp.io/v1alpha1","metadata":{"name":"child"}}`})
	var child tenancyv1alpha1.Workspace
	must(t, json.Unmarshal([]byte(made.body), &child))
	if owner, owned := child.Annotations[tenancyv1alpha1.OwnerAnnotation]; made.code != http.StatusCreated || owned {
		t.Errorf("the workspace that carol made: %d %s, its owner is %q", made.code, made.body, owner)
	}

	// After a restart it is good as before.
	if again := r.restart(t); again.ask(t, asked{path: "/clusters/shopname" + pods, certificate: carol}).code != http.StatusOK {
		t.Error("after a restart the certificate is good no longer")
	}
}

// Nobody gets a certificate of who has power by his name alone, and if he had one it would be refused.
func TestCertificatesOfNobody(t *testing.T) {
	r := startServer(t, withTokens(t))
	r.signCertificates(t)
	a := newAsker(t, r)
	bankURI := workspaceURI(bank)
	for _, tc := range []struct {
		reason  string
		subject pkix.Name
		uris    []*url.URL
		created bool
	}{
		{"administrators of the server", pkix.Name{CommonName: "x", Organization: []string{"system:masters"}}, nil, false},
		{"who watches the server", pkix.Name{CommonName: "x", Organization: []string{"system:monitoring"}}, nil, true},
		{"the server itself", pkix.Name{CommonName: "system:apiserver"}, nil, true},
		{"a syncer", pkix.Name{CommonName: "system:atoll:syncer:eastname", Organization: []string{"system:atoll:syncers"}}, nil, true},
		{"a syncers' group", pkix.Name{CommonName: "x", Organization: []string{"system:atoll:syncers"}}, nil, true},
		{"a ServiceAccount", pkix.Name{CommonName: "system:serviceaccount:default:default"}, nil, true},
		{"all ServiceAccounts", pkix.Name{CommonName: "x", Organization: []string{"system:serviceaccounts"}}, nil, true},
		{"a ServiceAccount of another workspace", pkix.Name{CommonName: "system:kcp:serviceaccount:bankname:default:default"}, nil, true},
		{"of another workspace", pkix.Name{CommonName: "x"}, []*url.URL{bankURI}, true},
	} {
		made, err := a.request(t, shop, tc.subject, func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Request = a.pem(t, tc.subject, tc.uris...)
		})
		if (err == nil) != tc.created || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", tc.reason, err)
		}
		if err == nil {
			a.answer(t, shop, made, certificatesv1.CertificateApproved)
			if signed, why := a.outcome(t, shop, made); len(signed) > 0 {
				t.Errorf("%s: signed, failed %q", tc.reason, why)
			}
		}
		// As if it were signed all the same.
		block, _ := pem.Decode(a.pem(t, tc.subject, tc.uris...))
		asks, err := x509.ParseCertificateRequest(block.Bytes)
		must(t, err)
		signed, err := r.SignForWorkspace(shop, asks, nil, time.Hour)
		must(t, err)
		for _, path := range []string{"/clusters/shopname/version", "/clusters/bankname/version", "/clusters/eastname/version", "/version"} {
			want := http.StatusUnauthorized
			if len(tc.uris) > 0 && path == "/clusters/shopname/version" {
				want = http.StatusForbidden // it is who it says, in this workspace: the URI asked for is not signed
			}
			if got := r.ask(t, asked{path: path, certificate: a.with(t, signed)}); got.code != want {
				t.Errorf("%s, signed all the same, %s: %d %s, want %d", tc.reason, path, got.code, got.body, want)
			}
		}
	}

	// What the authority might sign by mistake, and who else signs what looks alike.
	sign := func(by *pki, uris ...*url.URL) *tls.Certificate {
		t.Helper()
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, URIs: uris,
			NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}, by.ca, a.key.Public(), by.caKey)
		must(t, err)
		return a.with(t, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	}
	pretender := mustPKI(t, t.TempDir())
	pretender.ca.SubjectKeyId = r.workspaceKeys.ca.SubjectKeyId
	for reason, certificate := range map[string]*tls.Certificate{
		"an authority that says it is this one": sign(pretender, workspaceURI(shop)),
		"no URI":                                sign(r.workspaceKeys),
		"two URIs":                              sign(r.workspaceKeys, workspaceURI(shop), bankURI),
		"a host":                                sign(r.workspaceKeys, &url.URL{Scheme: "atoll", Host: "h", Path: "/clusters/shopname"}),
		"no name":                               sign(r.workspaceKeys, workspaceURI("")),
		"a mirror":                              sign(r.workspaceKeys, workspaceURI(east)),
		"all":                                   sign(r.workspaceKeys, workspaceURI("*")),
		"the authority of syncers":              sign(r.syncerKeys, workspaceURI(shop)),
		"an authority of somebody's own":        sign(mustPKI(t, t.TempDir()), workspaceURI(shop)),
	} {
		for _, path := range []string{"/clusters/shopname/version", "/clusters/eastname/version", "/clusters/*/version", "/version"} {
			if got := r.ask(t, asked{path: path, certificate: certificate}); got.code != http.StatusUnauthorized {
				t.Errorf("%s, %s: %d %s, want 401", reason, path, got.code, got.body)
			}
		}
	}
}

// Only what is approved is signed, in workspaces, for the one signer, and for as long as is asked for.
func TestCertificateRequests(t *testing.T) {
	r := startServer(t, func(o *Options) { o.ClusterSigningDuration = 48 * time.Hour })
	r.signCertificates(t)
	a := newAsker(t, r)
	x := pkix.Name{CommonName: "x"}
	pending, err := a.request(t, shop, x, nil)
	must(t, err)
	denied, err := a.request(t, shop, x, nil)
	must(t, err)
	a.answer(t, shop, denied, certificatesv1.CertificateDenied)
	large, err := os.ReadFile("admission/testdata/large-key.csr") // its signature fits to nothing, but nobody looks
	must(t, err)
	_, err = a.request(t, shop, x, func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Request = large })
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "an RSA key of 8200 bits") {
		t.Errorf("a request with a key of 8200 bits: %v", err)
	}
	foreign, err := a.request(t, shop, x, func(r *certificatesv1.CertificateSigningRequest) { r.Spec.SignerName = "example.com/s" })
	must(t, err)
	a.answer(t, shop, foreign, certificatesv1.CertificateApproved)
	mirrored, err := a.request(t, east, x, nil)
	must(t, err)
	a.answer(t, east, mirrored, certificatesv1.CertificateApproved)
	for asked, want := range map[*int32]time.Duration{nil: 48 * time.Hour, ptr.To[int32](600): 10 * time.Minute, ptr.To[int32](1 << 30): 48 * time.Hour} {
		got := time.Until(a.certificate(t, shop, x, func(r *certificatesv1.CertificateSigningRequest) { r.Spec.ExpirationSeconds = asked }).Leaf.NotAfter)
		if got > want || got < want-time.Minute {
			t.Errorf("asked for %d s: good for %s, want %s", ptr.Deref(asked, 0), got, want)
		}
	}
	for reason, of := range map[string]struct {
		in logicalcluster.Name
		r  *certificatesv1.CertificateSigningRequest
	}{"pending": {shop, pending}, "denied": {shop, denied}, "another signer's": {shop, foreign}, "in a mirror": {east, mirrored}} {
		got, err := a.in(t, of.in).CertificatesV1().CertificateSigningRequests().Get(t.Context(), of.r.Name, metav1.GetOptions{})
		must(t, err)
		if len(got.Status.Certificate) > 0 {
			t.Errorf("%s: signed", reason)
		}
	}

	// A watch ends with its certificate.
	block, _ := pem.Decode(a.pem(t, x))
	asks, err := x509.ParseCertificateRequest(block.Bytes)
	must(t, err)
	r.bindAdmin(t, "x", shop)
	signed, err := r.SignForWorkspace(shop, asks, nil, 5*time.Second)
	must(t, err)
	until := a.with(t, signed).Leaf.NotAfter
	waitFor(t, 5*time.Second, "x reads in shop", func() (string, bool) {
		got := r.ask(t, asked{path: "/clusters/shopname" + pods, certificate: a.with(t, signed)})
		return fmt.Sprintf("%d %s", got.code, got.body), got.code == http.StatusOK
	})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.CACertificate())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{*a.with(t, signed)}}}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL()+"/clusters/shopname"+pods+"?watch=true", nil)
	must(t, err)
	response, err := transport.RoundTrip(req)
	must(t, err)
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatalf("watch: %s", response.Status)
	}
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
	}
	if ctx.Err() != nil || time.Now().Before(until.Add(-time.Second)) {
		t.Errorf("the watch ended %s after its certificate", time.Since(until))
	}
}
