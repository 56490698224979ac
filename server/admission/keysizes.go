package admission

import (
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/apis/certificates"
)

const (
	// largestRSA is the largest RSA key, in bits, that anybody is waited for: crypto/tls's limit for what peers show.
	largestRSA = 8192
	// largestRequest is how long spec.request of a CertificateSigningRequest may be, in bytes.
	largestRequest = 64 << 10
)

// KeySizes refuses RSA keys that nobody uses: what a signature costs to check grows with the square of the key's size, there is
// no end to it before it is done, and a key of a megabyte takes a quarter of an hour. The API checks the signature of a
// CertificateSigningRequest when it is made, and a webhook's server may show a certificate that its caBundle has signed.
type KeySizes struct {
	*admission.Handler
}

// NewKeySizes returns the plugin. It has to come after all that changes objects: upstream checks signatures before any plugin
// validates.
func NewKeySizes() *KeySizes {
	return &KeySizes{Handler: admission.NewHandler(admission.Create, admission.Update)}
}

// Admit implements admission.MutationInterface, and changes nothing.
func (*KeySizes) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" {
		return nil
	}
	var err error
	switch object := a.GetObject().(type) {
	case *certificates.CertificateSigningRequest:
		err = checkRequest(object.Spec.Request)
	case *admissionregistration.ValidatingWebhookConfiguration:
		for _, hook := range object.Webhooks {
			err = checkBundle(err, "webhook "+hook.Name, hook.ClientConfig.CABundle)
		}
	case *admissionregistration.MutatingWebhookConfiguration:
		for _, hook := range object.Webhooks {
			err = checkBundle(err, "webhook "+hook.Name, hook.ClientConfig.CABundle)
		}
	case *apiextensions.CustomResourceDefinition:
		if conversion := object.Spec.Conversion; conversion != nil && conversion.WebhookClientConfig != nil {
			err = checkBundle(nil, "spec.conversion", conversion.WebhookClientConfig.CABundle)
		}
	}
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	return nil
}

// checkRequest leaves what cannot be parsed to the API, which says what is wrong with it.
func checkRequest(encoded []byte) error {
	if len(encoded) > largestRequest {
		return fmt.Errorf("spec.request has %d bytes, and may have %d", len(encoded), largestRequest)
	}
	block, _ := pem.Decode(encoded)
	if block == nil {
		return nil
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil
	}
	return checkKey("spec.request", request.PublicKey)
}

func checkBundle(before error, where string, bundle []byte) error {
	if before != nil {
		return before
	}
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			continue // the API says so, or nobody can use it
		}
		if err := checkKey(where+": caBundle", certificate.PublicKey); err != nil {
			return err
		}
	}
	return nil
}

func checkKey(where string, public any) error {
	if key, ok := public.(*rsa.PublicKey); ok && key.N.BitLen() > largestRSA {
		return fmt.Errorf("%s: an RSA key of %d bits; at most %d are accepted: take a shorter one, or an elliptic one", where, key.N.BitLen(), largestRSA)
	}
	return nil
}
