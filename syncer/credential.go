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
	"sync"
	"sync/atomic"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
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
	// issueTimeout is how long a request may stay unanswered before it is made again.
	issueTimeout = 2 * time.Minute
	// credentialRetry is the time between two tries of whatever failed.
	credentialRetry = 2 * time.Second
	// refusedFor is how long a hub has to refuse a credential to be believed: a proxy before it, or the hub itself while
	// it starts, may do so in passing.
	refusedFor = 10 * time.Second
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
	api      *API        // what pods reach it by

	current     atomic.Pointer[tls.Certificate]
	connections *connrotation.Dialer

	mu     sync.Mutex        // guards unkept
	unkept map[string][]byte // what of current the Secret still lacks

	keeping sync.Mutex // guards giveUp
	giveUp  func()     // ends the writing of what is unkept, and waits; nil before the first
}

// NewCredential returns the credential of the syncer of a mirror, from its bootstrap kubeconfig: the host of hub ends in
// /clusters/<mirror>, and its bearer token is the bootstrap token. Open comes before all else.
func NewCredential(hub *rest.Config, secrets typedcorev1.SecretInterface, name string) (*Credential, error) {
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
	trusted := rest.CopyConfig(hub)
	if err := rest.LoadTLSFiles(trusted); err != nil {
		return nil, fmt.Errorf("read the bootstrap kubeconfig: %w", err)
	}
	if !strings.HasPrefix(hub.Host, "https://") {
		return nil, fmt.Errorf("read the bootstrap kubeconfig: its server %q is not https", hub.Host)
	}
	if tlsConfig == nil { // it names no authority: the system's count
		tlsConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	hub = rest.CopyConfig(hub)
	makeImpatient(hub)
	return &Credential{
		tls: tlsConfig, api: APIAt(hub.Host, trusted.CAData), hub: hub, secrets: secrets, name: name, id: id,
		template: &x509.CertificateRequest{Subject: pkix.Name{
			CommonName: workloadv1alpha1.SyncerUserPrefix + mirror, SerialNumber: id,
		}},
		connections: connrotation.NewDialer((&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext),
	}, nil
}

// Open finds the certificate in the Secret, or has one issued for the bootstrap token. It is renewed until ctx ends. What
// this process got before, and could not keep, counts as if it were in the Secret.
func (c *Credential) Open(ctx context.Context) error {
	pair, pending, err := c.load(ctx)
	if err != nil {
		return err
	}
	if pair = c.recall(ctx, pair); pair != nil {
		c.current.Store(pair)
		// A hub that was restored from an older state, or whose administrator wrote a new manifest, may refuse it.
		taken, err := c.knock(ctx, c.Config())
		if err != nil {
			return err
		}
		if !taken {
			klog.FromContext(ctx).Info("The hub refuses the certificate that was kept, the bootstrap token is tried")
			pair = nil
		}
	}
	if pair == nil {
		if err := c.bootstrap(ctx, pending); err != nil {
			return err
		}
	}
	return c.renew(ctx)
}

// retry calls try until it is done, or ctx ends. What is wrong meanwhile is told once.
func retry(ctx context.Context, trouble string, try func(context.Context) (done bool, err error)) error {
	for told := ""; ; {
		done, err := try(ctx)
		if done {
			return err
		}
		if err == nil {
			err = errors.New("not yet")
		}
		if err.Error() != told && ctx.Err() == nil {
			told = err.Error()
			klog.FromContext(ctx).Info(trouble+", will try again", "err", err)
		}
		select {
		case <-time.After(credentialRetry):
		case <-ctx.Done():
			return err
		}
	}
}

// load returns what the Secret holds: a pair, unless it goes back to another bootstrap token or has run out, and the key
// of a request that was not answered when its process ended.
func (c *Credential) load(ctx context.Context) (pair *tls.Certificate, pending []byte, err error) {
	var secret *corev1.Secret
	err = retry(ctx, "The credential cannot be read", func(ctx context.Context) (_ bool, err error) {
		ctx, cancel := context.WithTimeout(ctx, credentialTimeout)
		defer cancel()
		secret, err = c.secrets.Get(ctx, c.name, metav1.GetOptions{})
		return err == nil || apierrors.IsNotFound(err), err
	})
	if err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil, fmt.Errorf("there is no Secret %q for the credential in the physical cluster: apply the manifest of \"atoll cluster add --manifest\" there, and run in its namespace: %w", c.name, err)
		}
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
	var since time.Time // it has been refused
	err = retry(ctx, "The hub cannot be reached yet", func(ctx context.Context) (bool, error) {
		_, err := kube.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{Limit: 1})
		switch {
		case err == nil:
			taken = true
			return true, nil
		case !apierrors.IsUnauthorized(err) && !apierrors.IsForbidden(err):
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) >= refusedFor:
			return true, nil
		}
		return false, err
	})
	if err != nil {
		return false, fmt.Errorf("reach the hub: %w", err)
	}
	return taken, nil
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
			return fmt.Errorf("keep the key in Secret %s: %w", c.name, err)
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
	return retry(ctx, "No certificate yet", func(ctx context.Context) (bool, error) {
		certPEM, err := c.ask(ctx, kube, name, request, key)
		if err != nil {
			return errors.Is(err, ErrBootstrapRefused), err
		}
		_, err = pairStore{c, ctx}.Update(certPEM, keyPEM)
		return true, err
	})
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
				return nil, fmt.Errorf("%s: %w: %s", c.hub.Host, ErrBootstrapRefused, strings.TrimSuffix(condition.Message, "."))
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

// API is where pods reach the API of their workspaces, since they are where the syncer is; nil if they do not. Config does not tell: what verifies the hub's
// certificate is in its transport.
func (c *Credential) API() *API { return c.api }

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
	klog.FromContext(s.ctx).Info("Certificate issued", "until", pair.Leaf.NotAfter)
	// A nil takes the key in progress away.
	s.keepOn(s.ctx, map[string][]byte{corev1.TLSCertKey: certPEM, corev1.TLSPrivateKeyKey: keyPEM, keyInProgress: nil})
	return pair, nil
}

// recall returns the certificate that was issued last: what the Secret holds, or what this process has got and could not
// keep until now. That is kept from here on.
func (c *Credential) recall(ctx context.Context, held *tls.Certificate) *tls.Certificate {
	c.mu.Lock()
	unkept := c.unkept
	c.mu.Unlock()
	if unkept == nil {
		return held
	}
	pair, err := parsePair(unkept[corev1.TLSCertKey], unkept[corev1.TLSPrivateKeyKey])
	if err != nil || time.Now().After(pair.Leaf.NotAfter) || held != nil && held.Leaf.NotAfter.After(pair.Leaf.NotAfter) {
		return held
	}
	c.keepOn(ctx, unkept)
	return pair
}

// keepOn writes a certificate and its key into the Secret, in the background if that does not succeed at once: they
// are good all the same, but the bootstrap token that they were issued for is spent, so that a process without them would
// need a person. What was to be written before is given up.
func (c *Credential) keepOn(ctx context.Context, data map[string][]byte) {
	c.keeping.Lock()
	defer c.keeping.Unlock()
	if c.giveUp != nil {
		c.giveUp()
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	c.giveUp = func() { cancel(); <-ended }
	c.mu.Lock()
	c.unkept = data
	c.mu.Unlock()
	tried := make(chan struct{})
	go func() {
		defer close(ended)
		defer cancel()
		first := sync.OnceFunc(func() { close(tried) })
		defer first()
		err := retry(ctx, "The certificate cannot be kept: it would end with this process", func(ctx context.Context) (bool, error) {
			defer first()
			err := c.write(ctx, data)
			return err == nil, err
		})
		if err == nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.unkept = nil
		}
	}()
	<-tried
}

// keep writes into the Secret, until that succeeds or ctx ends.
func (c *Credential) keep(ctx context.Context, data map[string][]byte) error {
	return retry(ctx, "The credential cannot be kept", func(ctx context.Context) (bool, error) {
		err := c.write(ctx, data)
		return err == nil || apierrors.IsNotFound(err), err
	})
}

// write tries once.
func (c *Credential) write(ctx context.Context, data map[string][]byte) error {
	ctx, cancel := context.WithTimeout(ctx, credentialTimeout)
	defer cancel()
	patch, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		return fmt.Errorf("write Secret %s: %w", c.name, err)
	}
	_, err = c.secrets.Patch(ctx, c.name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: workloadv1alpha1.FieldManager})
	return err
}
