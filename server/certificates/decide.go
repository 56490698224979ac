package certificates

import (
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
)

// How long requests stay: kube-controller-manager's times.
const (
	keepAnswered   = time.Hour      // from the signing, denial or failure
	keepUnanswered = 24 * time.Hour // from the creation, or from an approval that no signer follows
)

// shortest is the shortest lifetime of a certificate, the API's for spec.expirationSeconds.
const shortest = 10 * time.Minute

// decision is what to do with a request. The zero value means to leave it.
type decision struct {
	sign, remove bool
	// look again at it after that time, if it is > 0.
	again time.Duration
}

// decide says what to do with a request at a time.
func decide(r *certificatesv1.CertificateSigningRequest, now time.Time) decision {
	if r.DeletionTimestamp != nil {
		return decision{}
	}
	ends, known := endOf(r)
	switch {
	case known && !ends.After(now):
		return decision{remove: true}
	case waitsForSignature(r):
		return decision{sign: true}
	case known:
		return decision{again: ends.Sub(now)}
	}
	return decision{}
}

func waitsForSignature(r *certificatesv1.CertificateSigningRequest) bool {
	return r.Spec.SignerName == certificatesv1.KubeAPIServerClientSignerName && len(r.Status.Certificate) == 0 &&
		has(r, certificatesv1.CertificateApproved) && !has(r, certificatesv1.CertificateDenied) && !has(r, certificatesv1.CertificateFailed)
}

// has says whether a request has a condition; the API takes those with status True alone.
func has(r *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) bool {
	for _, c := range r.Status.Conditions {
		if c.Type == kind && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

// endOf is when a request is to be deleted: the first of what its conditions and its certificate say, if they say anything.
func endOf(r *certificatesv1.CertificateSigningRequest) (ends time.Time, known bool) {
	until := func(t time.Time) {
		if !known || t.Before(ends) {
			ends, known = t, true
		}
	}
	if len(r.Status.Conditions) == 0 {
		until(r.CreationTimestamp.Add(keepUnanswered))
	}
	for _, c := range r.Status.Conditions {
		issued := len(r.Status.Certificate) > 0
		switch {
		case c.LastUpdateTime.IsZero():
		case c.Type == certificatesv1.CertificateApproved && !issued:
			until(c.LastUpdateTime.Add(keepUnanswered))
		default:
			until(c.LastUpdateTime.Add(keepAnswered))
		}
		if c.Type == certificatesv1.CertificateApproved && issued {
			if certs, err := cert.ParseCertsPEM(r.Status.Certificate); err == nil { // whatever another signer has put there
				until(certs[0].NotAfter)
			}
		}
	}
	return ends, known
}

// lifetime of a certificate: as long as is asked for, at most longest.
func lifetime(asked *int32, longest time.Duration) time.Duration {
	if asked == nil {
		return longest
	}
	return min(max(time.Duration(*asked)*time.Second, shortest), longest)
}

// check says why a request is not signed, in words for who asked. reserved says which names of users and groups are nobody's
// in a workspace.
func check(usages []certificatesv1.KeyUsage, request *x509.CertificateRequest, reserved func(string) bool) error {
	client := false
	for _, usage := range usages {
		switch usage {
		case certificatesv1.UsageClientAuth:
			client = true
		case certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment:
		default:
			return fmt.Errorf("invalid usage for client certificate: %s", usage)
		}
	}
	if !client {
		return fmt.Errorf("missing required usage for client certificate: %s", certificatesv1.UsageClientAuth)
	}
	if err := request.CheckSignature(); err != nil {
		return fmt.Errorf("the request is not signed with its key: %w", err)
	}
	if request.Subject.CommonName == "" {
		return errors.New("the subject has no common name, which is the name of the user")
	}
	for _, name := range append([]string{request.Subject.CommonName}, request.Subject.Organization...) {
		if reserved(name) {
			return fmt.Errorf("the subject claims to be %q, which nobody can be by a certificate of a workspace", name)
		}
	}
	if len(request.URIs) > 0 {
		return errors.New("the request has URIs as alternative names: the one of a certificate of a workspace is the workspace's")
	}
	return nil
}

// failed adds the condition of a request that is not signed.
func failed(r *certificatesv1.CertificateSigningRequest, why error, now time.Time) {
	at := metav1.NewTime(now)
	r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue,
		Reason: "SignerValidationFailure", Message: why.Error(), LastUpdateTime: at, LastTransitionTime: at,
	})
}
