package syncer

import (
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/connrotation"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// credentialTimeout bounds reading and writing the Secret that keeps a credential.
const credentialTimeout = 10 * time.Second

const (
	// keepTimeout is how long writing it is tried.
	keepTimeout = time.Minute
	// issueTimeout is how long a request may stay unanswered before it is made again.
	issueTimeout = 2 * time.Minute
)

// keyInProgress is the key, in the Secret, of the private key for which a certificate was asked first. A process that takes
// over goes on with the same request: the bootstrap token is good for no other.
const keyInProgress = "pending.key"

// ErrBootstrapRefused says that the hub does not take the bootstrap token: it ran out, was spent already, or its
// SyncTarget is gone.
var ErrBootstrapRefused = errors.New("the hub refuses the bootstrap token: it ran out, was used already, or the cluster was removed there")

// Credential is the client certificate of a syncer outside the server. It is kept in a Secret of the physical cluster,
// so that it outlives the Pod, and renews itself.
type Credential struct {
	hub      *rest.Config
	secrets  typedcorev1.SecretInterface
	name     string // of the Secret
	id       string // of the bootstrap token it goes back to
	template *x509.CertificateRequest
	tls      *tls.Config // of the hub, without a client certificate

	current     atomic.Pointer[tls.Certificate]
	connections *connrotation.Dialer
}

// OpenCredential returns the certificate that the Secret holds, or has one issued for the bootstrap token of hub, whose
// host ends in /clusters/<mirror>. It is renewed until ctx ends.
func OpenCredential(ctx context.Context, hub *rest.Config, secrets typedcorev1.SecretInterface, name string) (*Credential, error) {
	_, mirror, ok := strings.Cut(hub.Host, "/clusters/")
	id, _, isToken := strings.Cut(hub.BearerToken, ".")
	if !ok || mirror == "" || strings.Contains(mirror, "/") {
		return nil, fmt.Errorf("read the bootstrap kubeconfig: its server %q does not end in /clusters/<mirror>", hub.Host)
	}
	if !isToken {
		return nil, errors.New("read the bootstrap kubeconfig: its user has no bootstrap token")
	}
	tlsConfig, err := rest.TLSConfigFor(rest.AnonymousClientConfig(hub))
	if err != nil {
		return nil, fmt.Errorf("read the bootstrap kubeconfig: %w", err)
	}
	if tlsConfig == nil {
		return nil, fmt.Errorf("read the bootstrap kubeconfig: its server %q is not https", hub.Host)
	}
	c := &Credential{
		tls: tlsConfig, hub: hub, secrets: secrets, name: name, id: id,
		template: &x509.CertificateRequest{Subject: pkix.Name{
			CommonName: workloadv1alpha1.SyncerUserPrefix + mirror, SerialNumber: id,
		}},
		connections: connrotation.NewDialer((&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext),
	}
	pair, pending, err := c.load(ctx)
	if err != nil {
		return nil, err
	}
	if pair != nil {
		c.current.Store(pair)
		// A hub that was restored from an older state, or whose administrator wrote a new manifest, may refuse it.
		taken, err := c.knock(ctx, c.Config())
		if err != nil {
			return nil, err
		}
		if !taken {
			klog.FromContext(ctx).Info("The hub refuses the certificate that was kept, the bootstrap token is tried")
			pair = nil
		}
	}
	if pair == nil {
		if err := c.bootstrap(ctx, pending); err != nil {
			return nil, err
		}
	}
	return c, c.renew(ctx)
}

// load returns what the Secret holds: a pair, unless it goes back to another bootstrap token or has run out, and the key
// of a request that was not answered when its process ended.
func (c *Credential) load(ctx context.Context) (pair *tls.Certificate, pending []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, credentialTimeout)
	defer cancel()
	secret, err := c.secrets.Get(ctx, c.name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("read the credential in Secret %s: %w", c.name, err)
	}
	pending = secret.Data[keyInProgress]
	pair, err = parsePair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil || pair == nil {
		return nil, pending, nil // empty, or cut short: a new one is asked for
	}
	subject := pair.Leaf.Subject
	if subject.CommonName != c.template.Subject.CommonName || subject.SerialNumber != c.id || time.Now().After(pair.Leaf.NotAfter) {
		return nil, pending, nil
	}
	return pair, pending, nil
}

// parsePair returns nil without an error where there is nothing.
func parsePair(certPEM, keyPEM []byte) (*tls.Certificate, error) {
	if len(certPEM) == 0 {
		return nil, nil
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("read the pair of certificate and key: %w", err)
	}
	return &pair, nil // with its Leaf
}

// knock says whether the hub takes a credential. It waits for a hub that does not answer.
func (c *Credential) knock(ctx context.Context, cfg *rest.Config) (taken bool, err error) {
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return false, fmt.Errorf("make a client for %s: %w", c.hub.Host, err)
	}
	logger, told := klog.FromContext(ctx), ""
	for {
		_, err := kube.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{Limit: 1})
		switch {
		case err == nil:
			return true, nil
		case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err):
			return false, nil
		}
		if err.Error() != told {
			told = err.Error()
			logger.Info("The hub cannot be reached yet, will try again", "err", err)
		}
		select {
		case <-time.After(2 * time.Second):
		case <-ctx.Done():
			return false, fmt.Errorf("reach the hub: %w", err)
		}
	}
}

// bootstrap has the first certificate issued. The key is kept before it is asked for.
func (c *Credential) bootstrap(ctx context.Context, keyPEM []byte) error {
	taken, err := c.knock(ctx, c.hub)
	if err != nil {
		return err
	}
	if !taken {
		return fmt.Errorf("%s: %w", c.hub.Host, ErrBootstrapRefused)
	}
	kube, err := kubernetes.NewForConfig(c.hub)
	if err != nil {
		return fmt.Errorf("make a client for %s: %w", c.hub.Host, err)
	}
	key, err := keyutil.ParsePrivateKeyPEM(keyPEM)
	if err != nil {
		if keyPEM, err = keyutil.MakeEllipticPrivateKeyPEM(); err != nil {
			return fmt.Errorf("make a key: %w", err)
		}
		if key, err = keyutil.ParsePrivateKeyPEM(keyPEM); err != nil {
			return fmt.Errorf("read the key just made: %w", err)
		}
		if err := c.keep(ctx, map[string][]byte{keyInProgress: keyPEM}); err != nil {
			return err
		}
	}
	request, err := cert.MakeCSRFromTemplate(key, c.template)
	if err != nil {
		return fmt.Errorf("make a certificate request: %w", err)
	}
	// Named after key and token, so that it is found again.
	public, err := x509.MarshalPKIXPublicKey(key.(crypto.Signer).Public())
	if err != nil {
		return fmt.Errorf("read the key: %w", err)
	}
	digest := sha256.Sum256(append(public, c.id...))
	name := "syncer-" + hex.EncodeToString(digest[:8])
	for {
		certPEM, err := c.ask(ctx, kube, name, request, key)
		if err == nil {
			_, err = pairStore{c, ctx}.Update(certPEM, keyPEM)
			return err
		}
		if errors.Is(err, ErrBootstrapRefused) || ctx.Err() != nil {
			return err
		}
		klog.FromContext(ctx).Error(err, "No certificate yet, will try again")
		select {
		case <-time.After(2 * time.Second):
		case <-ctx.Done():
			return err
		}
	}
}

// ask makes a request, or finds it, and returns the certificate that is issued.
func (c *Credential) ask(ctx context.Context, kube kubernetes.Interface, name string, request []byte, key any) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, issueTimeout)
	defer cancel()
	name, uid, err := csr.RequestCertificateWithContext(ctx, kube, request, name, workloadv1alpha1.SyncerSigner, nil, syncerUsages, key)
	if err != nil {
		return nil, fmt.Errorf("ask %s for a certificate: %w", c.hub.Host, err)
	}
	certPEM, err := csr.WaitForCertificate(ctx, kube, name, uid)
	if err == nil {
		return certPEM, nil
	}
	answered, getErr := kube.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
	if getErr == nil {
		for _, condition := range answered.Status.Conditions {
			if condition.Type == certificatesv1.CertificateDenied {
				return nil, fmt.Errorf("%s: %w: %s", c.hub.Host, ErrBootstrapRefused, condition.Message)
			}
		}
	}
	return nil, fmt.Errorf("wait for the certificate of %s: %w", c.hub.Host, err)
}

// syncerUsages are what the certificate of a syncer is for.
var syncerUsages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}

// renew starts what asks for another certificate when this one is near its end.
func (c *Credential) renew(ctx context.Context) error {
	manager, err := certificate.NewManager(&certificate.Config{
		Ctx:              &ctx,
		Name:             "credential",
		Template:         c.template,
		SignerName:       workloadv1alpha1.SyncerSigner,
		Usages:           syncerUsages,
		CertificateStore: pairStore{c, ctx},
		ClientsetFn: func(current *tls.Certificate) (kubernetes.Interface, error) {
			if current == nil {
				return nil, errors.New("the certificate has run out: write a new manifest with atoll cluster add NAME --manifest")
			}
			return kubernetes.NewForConfig(c.Config())
		},
	})
	if err != nil {
		return fmt.Errorf("keep the credential of %s: %w", c.hub.Host, err)
	}
	manager.Start()
	return nil
}

// Config returns how the hub is reached with the certificate, whichever is the newest.
func (c *Credential) Config() *rest.Config {
	cfg, tlsConfig := rest.AnonymousClientConfig(c.hub), c.tls.Clone()
	tlsConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return c.current.Load(), nil
	}
	cfg.Transport = utilnet.SetTransportDefaults(&http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: tlsConfig, TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 25, DialContext: c.connections.DialContext,
	})
	cfg.TLSClientConfig = rest.TLSClientConfig{}
	makeImpatient(cfg)
	return cfg
}

// pairStore is where the certificate manager keeps what it got.
type pairStore struct {
	*Credential
	ctx context.Context
}

// Current implements certificate.Store.
func (s pairStore) Current() (*tls.Certificate, error) {
	if pair := s.current.Load(); pair != nil {
		return pair, nil
	}
	none := certificate.NoCertKeyError("there is no certificate yet")
	return nil, &none
}

// Update implements certificate.Store. Connections of the former certificate end, since the server checks it with
// every request.
func (s pairStore) Update(certPEM, keyPEM []byte) (*tls.Certificate, error) {
	pair, err := parsePair(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	if pair == nil {
		return nil, errors.New("the hub issued an empty certificate")
	}
	s.current.Store(pair)
	s.connections.CloseAll()
	logger := klog.FromContext(s.ctx)
	logger.Info("Certificate issued", "until", pair.Leaf.NotAfter)
	// A nil takes the key in progress away.
	if err := s.keep(s.ctx, map[string][]byte{corev1.TLSCertKey: certPEM, corev1.TLSPrivateKeyKey: keyPEM, keyInProgress: nil}); err != nil {
		// It is good all the same, and the bootstrap token that it was issued for is spent.
		logger.Error(err, "The certificate could not be kept: it ends with this process")
	}
	return pair, nil
}

// keep writes into the Secret, trying for a minute.
func (c *Credential) keep(ctx context.Context, data map[string][]byte) error {
	patch, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		return fmt.Errorf("write Secret %s: %w", c.name, err)
	}
	var last error
	err = wait.PollUntilContextTimeout(ctx, time.Second, keepTimeout, true, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, credentialTimeout)
		defer cancel()
		_, last = c.secrets.Patch(ctx, c.name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: workloadv1alpha1.FieldManager})
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("keep the credential in Secret %s: %w", c.name, errors.Join(err, last))
	}
	return nil
}
