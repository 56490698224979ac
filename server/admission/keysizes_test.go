package admission

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/apis/certificates"
)

// fakeKey is a public key whose private one nobody knows; making one of that size would take too long.
func fakeKey(t *testing.T, bits int) *rsa.PublicKey {
	t.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), uint(bits-1)))
	if err != nil {
		t.Fatal(err)
	}
	return &rsa.PublicKey{N: n.SetBit(n.SetBit(n, bits-1, 1), 0, 1), E: 65537}
}

// requestOf is a CertificateSigningRequest with a key of that size and a signature that does not fit.
func requestOf(t *testing.T, bits int) []byte {
	t.Helper()
	type info struct {
		Version       int
		Subject       asn1.RawValue
		PublicKey     asn1.RawValue
		RawAttributes []asn1.RawValue `asn1:"tag:0"`
	}
	public, err := x509.MarshalPKIXPublicKey(fakeKey(t, bits))
	if err != nil {
		t.Fatal(err)
	}
	subject, err := asn1.Marshal(pkix.Name{CommonName: "ann"}.ToRDNSequence())
	if err != nil {
		t.Fatal(err)
	}
	der, err := asn1.Marshal(struct {
		Info      info
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{
		info{Subject: asn1.RawValue{FullBytes: subject}, PublicKey: asn1.RawValue{FullBytes: public}},
		pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}, Parameters: asn1.NullRawValue},
		asn1.BitString{Bytes: make([]byte, bits/8), BitLength: bits},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x509.ParseCertificateRequest(der); err != nil {
		t.Fatalf("the test's request: %v", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// bundleOf is an authority with a key of that size.
func bundleOf(t *testing.T, bits int) []byte {
	t.Helper()
	signer, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, &x509.Certificate{Subject: pkix.Name{CommonName: "another"}}, fakeKey(t, bits), signer)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestKeySizes(t *testing.T) {
	small, large := bundleOf(t, largestRSA), append(bundleOf(t, 2048), bundleOf(t, largestRSA+8)...)
	validating := func(bundle []byte) runtime.Object {
		return &admissionregistration.ValidatingWebhookConfiguration{Webhooks: []admissionregistration.ValidatingWebhook{
			{Name: "first"}, {Name: "second", ClientConfig: admissionregistration.WebhookClientConfig{CABundle: bundle}}, {Name: "third"},
		}}
	}
	mutating := func(bundle []byte) runtime.Object {
		return &admissionregistration.MutatingWebhookConfiguration{Webhooks: []admissionregistration.MutatingWebhook{
			{Name: "first", ClientConfig: admissionregistration.WebhookClientConfig{CABundle: bundle}}, {Name: "second"},
		}}
	}
	definition := func(bundle []byte) runtime.Object {
		return &apiextensions.CustomResourceDefinition{Spec: apiextensions.CustomResourceDefinitionSpec{Conversion: &apiextensions.CustomResourceConversion{
			WebhookClientConfig: &apiextensions.WebhookClientConfig{CABundle: bundle},
		}}}
	}
	request := func(encoded []byte) runtime.Object {
		return &certificates.CertificateSigningRequest{Spec: certificates.CertificateSigningRequestSpec{Request: encoded}}
	}
	for _, test := range []struct {
		reason  string
		object  runtime.Object
		refused bool
	}{
		{"a request with the largest key", request(requestOf(t, largestRSA)), false},
		{"a request with a larger key", request(requestOf(t, largestRSA+8)), true},
		{"a request that is too long to look at", request(make([]byte, largestRequest+1)), true},
		{"the API says what is wrong with what is no request", request([]byte("nothing")), false},
		{"a validating webhook's authority", validating(small), false},
		{"the second one of its bundle is too large", validating(large), true},
		{"a mutating webhook's authority", mutating(small), false},
		{"the second one of its bundle is too large", mutating(large), true},
		{"a conversion webhook's authority", definition(small), false},
		{"the second one of its bundle is too large", definition(large), true},
		{"no conversion", &apiextensions.CustomResourceDefinition{}, false},
	} {
		a := admission.NewAttributesRecord(test.object, nil, schema.GroupVersionKind{}, "", "x", schema.GroupVersionResource{}, "", admission.Create, nil, false, &user.DefaultInfo{Name: "ann"})
		if err := NewKeySizes().Admit(t.Context(), a, nil); apierrors.IsForbidden(err) != test.refused || err != nil && !test.refused {
			t.Errorf("%s: %T: %v, want a refusal: %v", test.reason, test.object, err, test.refused)
		}
	}
}
