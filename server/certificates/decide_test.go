package certificates

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/url"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
)

var now = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

func request(conditions ...certificatesv1.CertificateSigningRequestCondition) *certificatesv1.CertificateSigningRequest {
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-23 * time.Hour))},
		Spec:       certificatesv1.CertificateSigningRequestSpec{SignerName: certificatesv1.KubeAPIServerClientSignerName},
		Status:     certificatesv1.CertificateSigningRequestStatus{Conditions: conditions},
	}
}

func condition(kind certificatesv1.RequestConditionType, ago time.Duration) certificatesv1.CertificateSigningRequestCondition {
	return certificatesv1.CertificateSigningRequestCondition{Type: kind, Status: corev1.ConditionTrue, LastUpdateTime: metav1.NewTime(now.Add(-ago))}
}

func key(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// issued puts a certificate that ends then into a request.
func issued(t *testing.T, r *certificatesv1.CertificateSigningRequest, ends time.Time) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key := key(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: ends}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	if r.Status.Certificate, err = cert.EncodeCertificates(parsed); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestDecide(t *testing.T) {
	const approved, denied, failed = certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed
	with := func(r *certificatesv1.CertificateSigningRequest, change func(*certificatesv1.CertificateSigningRequest)) *certificatesv1.CertificateSigningRequest {
		change(r)
		return r
	}
	for _, tc := range []struct {
		reason  string
		request *certificatesv1.CertificateSigningRequest
		want    decision
	}{
		{"nobody has answered", request(), decision{again: time.Hour}},
		{"nobody has answered for a day", with(request(), func(r *certificatesv1.CertificateSigningRequest) {
			r.CreationTimestamp = metav1.NewTime(now.Add(-24 * time.Hour))
		}), decision{remove: true}},
		{"approved", request(condition(approved, time.Minute)), decision{sign: true}},
		{"approved a day ago, and the signer was away", request(condition(approved, 24*time.Hour)), decision{remove: true}},
		{"denied", request(condition(denied, time.Minute)), decision{again: 59 * time.Minute}},
		{"approved and denied", request(condition(approved, time.Minute), condition(denied, time.Minute)), decision{again: 59 * time.Minute}},
		{"approved and failed", request(condition(approved, time.Minute), condition(failed, time.Minute)), decision{again: 59 * time.Minute}},
		{"denied an hour ago", request(condition(denied, time.Hour)), decision{remove: true}},
		{"failed an hour ago", request(condition(approved, time.Hour), condition(failed, time.Hour)), decision{remove: true}},
		{"signed", issued(t, request(condition(approved, time.Minute)), now.Add(24*time.Hour)), decision{again: 59 * time.Minute}},
		{"signed an hour ago", issued(t, request(condition(approved, time.Hour)), now.Add(24*time.Hour)), decision{remove: true}},
		{"signed, for a few minutes", issued(t, request(condition(approved, time.Minute)), now.Add(5*time.Minute)), decision{again: 5 * time.Minute}},
		{"signed, and over", issued(t, request(condition(approved, time.Minute)), now.Add(-time.Minute)), decision{remove: true}},
		{"of another signer", with(request(condition(approved, time.Minute)), func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.SignerName = "example.com/s"
		}), decision{again: 24*time.Hour - time.Minute}},
		{"for a kubelet, of which there is none", with(request(condition(approved, time.Minute)), func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.SignerName = certificatesv1.KubeAPIServerClientKubeletSignerName
		}), decision{again: 24*time.Hour - time.Minute}},
		{"of another signer, who puts there what is no certificate", with(request(condition(approved, time.Minute)), func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.SignerName, r.Status.Certificate = "example.com/s", []byte("-")
		}), decision{again: 59 * time.Minute}},
		{"being deleted", with(request(condition(approved, time.Minute)), func(r *certificatesv1.CertificateSigningRequest) {
			r.DeletionTimestamp = &metav1.Time{Time: now}
		}), decision{}},
	} {
		if got := decide(tc.request, now); got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.reason, got, tc.want)
		}
	}
}

func TestLifetime(t *testing.T) {
	for _, tc := range []struct {
		asked *int32
		want  time.Duration
	}{
		{nil, 24 * time.Hour},
		{ptr.To[int32](3600), time.Hour},
		{ptr.To[int32](1), shortest},
		{ptr.To[int32](1 << 30), 24 * time.Hour},
	} {
		if got := lifetime(tc.asked, 24*time.Hour); got != tc.want {
			t.Errorf("%v asked: %s, want %s", ptr.Deref(tc.asked, 0), got, tc.want)
		}
	}
}

func TestCheck(t *testing.T) {
	client := []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment}
	named := func(common string, groups ...string) x509.CertificateRequest {
		return x509.CertificateRequest{Subject: pkix.Name{CommonName: common, Organization: groups}}
	}
	somewhere := named("carol")
	somewhere.URIs = []*url.URL{{Scheme: "atoll", Path: "/clusters/bank", OmitHost: true}}
	for _, tc := range []struct {
		reason string
		usages []certificatesv1.KeyUsage
		asked  x509.CertificateRequest
		forged bool
		want   string // part of the error
	}{
		{"a user in groups", client, named("carol", "team", "system:nodes"), false, ""},
		{"not for clients", client[1:], named("carol"), false, "missing required usage"},
		{"for servers besides", append(client, certificatesv1.UsageServerAuth), named("carol"), false, "invalid usage"},
		{"to sign others", append(client, certificatesv1.UsageCertSign), named("carol"), false, "invalid usage"},
		{"nobody", client, named("", "team"), false, "no common name"},
		{"a reserved user", client, named("reserved"), false, `"reserved"`},
		{"a reserved group", client, named("carol", "team", "reserved"), false, `"reserved"`},
		{"another workspace's", client, somewhere, false, "URIs"},
		{"with the key of somebody else", client, named("carol"), true, "not signed with its key"},
	} {
		der, err := x509.CreateCertificateRequest(rand.Reader, &tc.asked, key(t))
		if err != nil {
			t.Fatal(err)
		}
		asked, err := x509.ParseCertificateRequest(der)
		if err != nil {
			t.Fatal(err)
		}
		if tc.forged {
			asked.PublicKey = key(t).Public()
		}
		err = check(tc.usages, asked, func(name string) bool { return name == "reserved" })
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.reason, err, tc.want)
		}
	}
}
