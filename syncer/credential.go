package syncer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
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
	"k8s.io/client-go/util/certificate"
	"k8s.io/client-go/util/connrotation"
	"k8s.io/klog/v2"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// credentialTimeout bounds reading and writing the Secret that keeps a credential.
const credentialTimeout = 10 * time.Second

// keepTimeout is how long writing it is tried.
const keepTimeout = time.Minute

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
	got         chan struct{} // closed when there is a certificate
	gotOnce     sync.Once
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
		got:         make(chan struct{}),
	}
	if err := c.load(ctx); err != nil {
		return nil, err
	}
	if c.current.Load() == nil {
		if err := c.knock(ctx); err != nil {
			return nil, err
		}
	}
	if err := c.renew(ctx); err != nil {
		return nil, err
	}
	select {
	case <-c.got:
		return c, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("get a certificate from %s: %w", hub.Host, context.Cause(ctx))
	}
}

// load takes over what the Secret holds, unless it goes back to another bootstrap token, has run out, or is refused.
func (c *Credential) load(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, credentialTimeout)
	defer cancel()
	secret, err := c.secrets.Get(ctx, c.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the credential in Secret %s: %w", c.name, err)
	}
	pair, err := parsePair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil || pair == nil {
		return nil // empty, or cut short: a new one is asked for
	}
	subject := pair.Leaf.Subject
	if subject.CommonName != c.template.Subject.CommonName || subject.SerialNumber != c.id || time.Now().After(pair.Leaf.NotAfter) {
		return nil
	}
	c.current.Store(pair)
	return nil
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

// knock tries the bootstrap token, since the certificate manager would try a bad one for ever.
func (c *Credential) knock(ctx context.Context) error {
	hub := rest.CopyConfig(c.hub)
	makeImpatient(hub)
	kube, err := kubernetes.NewForConfig(hub)
	if err != nil {
		return fmt.Errorf("make a client for %s: %w", c.hub.Host, err)
	}
	logger, told := klog.FromContext(ctx), ""
	for {
		_, err := kube.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{Limit: 1})
		switch {
		case err == nil:
			return nil
		case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err):
			return fmt.Errorf("%s: %w", c.hub.Host, ErrBootstrapRefused)
		}
		if err.Error() != told {
			told = err.Error()
			logger.Info("The hub cannot be reached yet, will try again", "err", err)
		}
		select {
		case <-time.After(2 * time.Second):
		case <-ctx.Done():
			return fmt.Errorf("reach the hub: %w", err)
		}
	}
}

// renew starts what asks for a certificate when there is none or it is near its end.
func (c *Credential) renew(ctx context.Context) error {
	manager, err := certificate.NewManager(&certificate.Config{
		Ctx:              &ctx,
		Name:             "credential",
		Template:         c.template,
		SignerName:       workloadv1alpha1.SyncerSigner,
		Usages:           []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		CertificateStore: pairStore{c, ctx},
		ClientsetFn: func(current *tls.Certificate) (kubernetes.Interface, error) {
			if current == nil {
				return kubernetes.NewForConfig(c.hub)
			}
			return kubernetes.NewForConfig(c.Config())
		},
	})
	if err != nil {
		return fmt.Errorf("keep the credential of %s: %w", c.hub.Host, err)
	}
	if c.current.Load() != nil {
		c.gotOnce.Do(func() { close(c.got) })
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
	s.gotOnce.Do(func() { close(s.got) })
	logger := klog.FromContext(s.ctx)
	logger.Info("Certificate issued", "until", pair.Leaf.NotAfter)
	if err := s.keep(certPEM, keyPEM); err != nil {
		// It is good all the same, and the bootstrap token that it was issued for is spent.
		logger.Error(err, "The certificate could not be kept: it ends with this process")
	}
	return pair, nil
}

// keep writes the pair into the Secret, trying for a minute.
func (s pairStore) keep(certPEM, keyPEM []byte) error {
	var last error
	err := wait.PollUntilContextTimeout(s.ctx, time.Second, keepTimeout, true, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, credentialTimeout)
		defer cancel()
		patch, err := json.Marshal(map[string]any{"data": map[string][]byte{corev1.TLSCertKey: certPEM, corev1.TLSPrivateKeyKey: keyPEM}})
		if err != nil {
			return false, err
		}
		_, last = s.secrets.Patch(ctx, s.name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: workloadv1alpha1.FieldManager})
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("keep the certificate in Secret %s: %w", s.name, errors.Join(err, last))
	}
	return nil
}
