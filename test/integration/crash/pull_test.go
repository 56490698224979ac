package crash

import (
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/workspaces"
)

// pulled is a cluster that is synced from outside. There is none: what its syncer asks of the hub the user asks.
const pulled = "pulled"

// pull registers the cluster, and asks for its first certificate.
func (u *user) pull() error {
	const token = "aaaaaa.0123456789abcdef"
	secret := bootstrapSecret(token)
	if err := u.clients.Objects.Create(client.In(u.ctx, workspaces.Root), secret); err != nil {
		return err
	}
	u.keys = map[string][]byte{}
	u.register(&workloadv1alpha1.SyncTarget{
		ObjectMeta: metav1.ObjectMeta{Name: pulled},
		Spec: workloadv1alpha1.SyncTargetSpec{
			BootstrapTokenSecretRef: &corev1.SecretReference{Namespace: secret.Namespace, Name: secret.Name},
		},
	})
	return u.ask("first", token, rest.Config{BearerToken: token})
}

// renew asks for another certificate with the first.
func (u *user) renew() error {
	first, err := u.clients.Kube.CertificatesV1().CertificateSigningRequests().Get(client.In(u.ctx, u.mirror(pulled)), "first", metav1.GetOptions{})
	if err != nil {
		return err
	}
	return u.ask("renewed", "aaaaaa", rest.Config{TLSClientConfig: rest.TLSClientConfig{CertData: first.Status.Certificate, KeyData: u.keys["first"]}})
}

const lastToken = "cccccc.0123456789abcdef"

// replaceToken replaces the token twice, and asks for a certificate with the last.
func (u *user) replaceToken() error {
	for _, token := range []string{"bbbbbb.0123456789abcdef", lastToken} {
		if err := u.clients.Objects.Update(client.In(u.ctx, workspaces.Root), bootstrapSecret(token)); err != nil {
			return err
		}
	}
	return u.ask("replaced", lastToken, rest.Config{BearerToken: lastToken})
}

// steal asks for a certificate with a token that was spent.
func (u *user) steal() error { return u.ask("stolen", lastToken, rest.Config{BearerToken: lastToken}) }

func (u *user) removePulled() error {
	in := client.In(u.ctx, workspaces.Root)
	return errors.Join(u.clients.Objects.Delete(in, &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: pulled}}),
		u.clients.Objects.Delete(in, bootstrapSecret(lastToken)))
}

func bootstrapSecret(token string) *corev1.Secret {
	id, _, _ := strings.Cut(token, ".")
	hash := sha256.Sum256([]byte(token))
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: pulled},
		Type:       workloadv1alpha1.BootstrapTokenSecretType,
		Data: map[string][]byte{
			workloadv1alpha1.BootstrapTokenID: []byte(id), workloadv1alpha1.BootstrapTokenHash: []byte(hex.EncodeToString(hash[:])),
			workloadv1alpha1.BootstrapTokenExpiration: []byte(time.Now().Add(24 * time.Hour).Format(time.RFC3339)),
		},
	}
}

// ask makes a request as the syncer of the cluster, whose credential goes back to the token, as soon as the server knows it.
func (u *user) ask(name, token string, as rest.Config) error {
	mirror := string(u.mirror(pulled))
	keyPEM, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return err
	}
	id, _, _ := strings.Cut(token, ".")
	pem, err := certificateRequest(keyPEM, pkix.Name{CommonName: workloadv1alpha1.SyncerUserPrefix + mirror, SerialNumber: id})
	if err != nil {
		return err
	}
	u.keys[name] = keyPEM
	as.Host, as.CAData = u.server.URL()+"/clusters/"+mirror, u.server.CACertificate()
	kube, err := kubernetes.NewForConfig(&as)
	if err != nil {
		return err
	}
	request := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem, SignerName: workloadv1alpha1.SyncerSigner,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
	eventually(u.t, "the syncer may ask for its certificate "+name, func() string {
		if _, err := kube.CertificatesV1().CertificateSigningRequests().Create(u.ctx, request, metav1.CreateOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
	return nil
}

// certificateRequest is one with a key, both in PEM.
func certificateRequest(keyPEM []byte, subject pkix.Name) ([]byte, error) {
	key, err := keyutil.ParsePrivateKeyPEM(keyPEM)
	if err != nil {
		return nil, err
	}
	return cert.MakeCSRFromTemplate(key, &x509.CertificateRequest{Subject: subject})
}

// addPulled adds what there is of the cluster: what became of each request, and which one its token was spent on.
func (r *run) addPulled(s state) {
	r.t.Helper()
	if r.user.keys == nil {
		return
	}
	target := &workloadv1alpha1.SyncTarget{}
	err := r.clients.Objects.Get(client.In(r.ctx, workspaces.Root), types.NamespacedName{Name: pulled}, target)
	if apierrors.IsNotFound(err) {
		s["mirror of "+pulled+" rows"] = strconv.Itoa(r.rows(string(r.mirror(pulled))))
		return
	}
	must(r.t, err)
	requests, err := r.clients.Kube.CertificatesV1().CertificateSigningRequests().List(client.In(r.ctx, r.mirror(pulled)), metav1.ListOptions{})
	if target.DeletionTimestamp != nil {
		s[pulled] = `"deletionTimestamp"` // its mirror may be gone
		return
	}
	must(r.t, err)
	spent := target.Status.Credential
	for _, q := range requests.Items {
		var conditions []string
		missing := 1 // answers
		for _, c := range q.Status.Conditions {
			conditions = append(conditions, fmt.Sprintf("%s: %s", c.Type, c.Message))
			if c.Type == certificatesv1.CertificateDenied {
				missing = 0
			}
		}
		if len(q.Status.Certificate) > 0 {
			missing = 0
		}
		s["mirror of "+pulled+" "+q.Name] = fmt.Sprintf("%q, issued %v, behind by %d", conditions, len(q.Status.Certificate) > 0, missing)
		spent = strings.ReplaceAll(spent, string(q.UID), q.Name)
	}
	s[pulled] = "spent " + spent
}

// reader refuses what is no read.
type reader struct{ http.RoundTripper }

func (r reader) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodGet {
		return nil, errors.New("another answers requests here")
	}
	return r.RoundTripper.RoundTrip(req)
}
