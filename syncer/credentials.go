package syncer

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/queue"
)

const (
	// credentialWorkers is how many certificates are signed at once.
	credentialWorkers = 2
	// requestTTL is how long a request stays after it was answered, for people to see. An hour is kube-controller-manager's.
	requestTTL = time.Hour
	// knownTimeout is how long a request waits for a server that starts; the chain's own limit of time begins only later.
	knownTimeout = 10 * time.Second
	// byMirrorOfCredential is an index of SyncTargets by status.mirror.
	byMirrorOfCredential = "credentials/mirror"
)

// CredentialsConfig is what Credentials need. All fields are required.
type CredentialsConfig struct {
	Clients   *client.Clients
	Informers *client.Informers
	// Sign returns, as PEM, the certificate for a PEM-encoded request; the server takes who shows it for a syncer.
	Sign  func(request []byte) ([]byte, error)
	Clock clock.PassiveClock
}

// Credentials know what the syncers outside the server identify themselves with, and have their certificates signed.
type Credentials struct {
	config   CredentialsConfig
	requests *client.Informer[*certificatesv1.CertificateSigningRequest]
	queue    *queue.Queue[client.Key]

	mu     sync.Mutex                 // guards tokens
	tokens map[client.Key]storedToken // by the key of their Secret
}

// storedToken is the content of a Secret of type BootstrapTokenSecretType.
type storedToken struct {
	version    string // of the Secret: UID/resourceVersion
	id, hash   string
	expiration time.Time
}

// NewCredentials returns Credentials whose index is added to the shared informers, which must not run yet.
func NewCredentials(c CredentialsConfig) (*Credentials, error) {
	if c.Clients == nil || c.Informers == nil || c.Sign == nil || c.Clock == nil {
		return nil, errors.New("make the syncers' credentials: every field of the configuration is needed")
	}
	creds := &Credentials{config: c, tokens: map[client.Key]storedToken{}}
	creds.queue = queue.New("credentials", creds.reconcile)
	err := c.Informers.SyncTargets.AddIndex(byMirrorOfCredential, func(t *workloadv1alpha1.SyncTarget) []string {
		if t.Status.Mirror == "" || isTwin(t) {
			return nil
		}
		return []string{t.Status.Mirror}
	})
	if err != nil {
		return nil, fmt.Errorf("index SyncTargets by %s: %w", byMirrorOfCredential, err)
	}
	creds.requests, err = client.NewInformer(c.Clients, &certificatesv1.CertificateSigningRequest{}, client.InformerOptions[*certificatesv1.CertificateSigningRequest]{
		FieldSelector: "spec.signerName=" + workloadv1alpha1.SyncerSigner,
	})
	if err != nil {
		return nil, err
	}
	c.Informers.Of("Secret").OnEvent(creds.onSecret)
	c.Informers.SyncTargets.OnEvent(creds.onSyncTarget)
	creds.requests.OnEvent(func(e client.Event[*certificatesv1.CertificateSigningRequest]) {
		if !e.Deleted() {
			creds.queue.Add(client.KeyOf(e.New))
		}
	})
	return creds, nil
}

// onSecret forgets the token of a Secret that is gone.
func (c *Credentials) onSecret(e client.Event[ctrlclient.Object]) {
	if e.Deleted() {
		c.forget(client.KeyOf(e.Old))
	}
}

// onSyncTarget forgets the token that a SyncTarget no longer refers to. If another one does, it is read again.
func (c *Credentials) onSyncTarget(e client.Event[*workloadv1alpha1.SyncTarget]) {
	if e.Old == nil {
		return
	}
	was, ok := tokenSecretOf(e.Old)
	if !ok {
		return
	}
	if !e.Deleted() {
		if is, ok := tokenSecretOf(e.New); ok && is == was {
			return
		}
	}
	c.forget(was)
}

func (c *Credentials) forget(secret client.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.tokens, secret)
}

// tokenSecretOf returns the key of the Secret with a SyncTarget's bootstrap token, and whether there is one.
func tokenSecretOf(t *workloadv1alpha1.SyncTarget) (client.Key, bool) {
	ref := t.Spec.BootstrapTokenSecretRef
	if ref == nil {
		return client.Key{}, false
	}
	return client.Key{Cluster: client.KeyOf(t).Cluster, Namespace: ref.Namespace, Name: ref.Name}, true
}

// Run signs until ctx ends.
func (c *Credentials) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { c.requests.Run(ctx) })
	if err := c.WaitSynced(ctx); err != nil {
		c.queue.Stop()
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("sign certificates of syncers: %w", err)
	}
	c.queue.Run(ctx, credentialWorkers)
	return nil
}

// Token returns the id of a bootstrap token that is good in a mirror now. One that was spent is good until the syncer
// can have fetched its certificate, for nothing else.
func (c *Credentials) Token(ctx context.Context, mirror logicalcluster.Name, token string) (id string, ok bool, err error) {
	if !bootstraputil.IsValidBootstrapToken(token) {
		return "", false, nil
	}
	known, cancel := context.WithTimeout(ctx, knownTimeout)
	defer cancel()
	if err := c.WaitSynced(known); err != nil {
		return "", false, err
	}
	target := c.target(mirror)
	if target == nil {
		return "", false, nil
	}
	stored, err := c.stored(ctx, target)
	if err != nil || stored.id == "" {
		return "", false, err
	}
	hash := sha256.Sum256([]byte(token))
	if subtle.ConstantTimeCompare([]byte(hex.EncodeToString(hash[:])), []byte(stored.hash)) != 1 || c.config.Clock.Now().After(stored.expiration) {
		return "", false, nil
	}
	if spent, request := splitCredential(target.Status.Credential); spent == stored.id && !c.open(mirror, request) {
		return "", false, nil
	}
	return stored.id, true, nil
}

// Accepts says whether certificates of a mirror that go back to the token of that id are good.
func (c *Credentials) Accepts(mirror logicalcluster.Name, id string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), knownTimeout)
	defer cancel()
	if c.WaitSynced(ctx) != nil {
		return false
	}
	target := c.target(mirror)
	if target == nil {
		return false
	}
	current, _ := splitCredential(target.Status.Credential)
	return id != "" && current == id
}

// WaitSynced blocks until everything is known that the server held when it started: before, it would refuse every syncer.
func (c *Credentials) WaitSynced(ctx context.Context) error {
	if err := c.config.Informers.WaitSynced(ctx); err != nil {
		return fmt.Errorf("learn of the SyncTargets: %w", err)
	}
	return c.requests.WaitSynced(ctx)
}

// target returns the SyncTarget of a mirror, nil if there is none that is to be synced from outside.
func (c *Credentials) target(mirror logicalcluster.Name) *workloadv1alpha1.SyncTarget {
	found := c.config.Informers.SyncTargets.ByIndex(byMirrorOfCredential, string(mirror))
	if len(found) != 1 || found[0].Spec.KubeconfigSecretRef != nil {
		return nil
	}
	return found[0]
}

// targetNow is target by what the store holds, where the mirror says whose it is.
func (c *Credentials) targetNow(ctx context.Context, mirror logicalcluster.Name) (*workloadv1alpha1.SyncTarget, error) {
	target, err := targetOf(ctx, c.config.Clients.Objects, mirror)
	if err != nil || target == nil || target.Spec.KubeconfigSecretRef != nil {
		return nil, err
	}
	return target, nil
}

// targetOf reads, uncached, the SyncTarget that a mirror says it is of, and that says so too; nil if there is none. Either alone may be wrong: a
// workspace's owner may write the status of a SyncTarget.
func targetOf(ctx context.Context, objects ctrlclient.Reader, mirror logicalcluster.Name) (*workloadv1alpha1.SyncTarget, error) {
	var lc corev1alpha1.LogicalCluster
	err := objects.Get(client.In(ctx, mirror), ctrlclient.ObjectKey{Name: corev1alpha1.LogicalClusterName}, &lc)
	if ctrlclient.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read logical cluster %s: %w", mirror, err)
	}
	owner := lc.Spec.Owner
	if err != nil || lc.Spec.Use != corev1alpha1.LogicalClusterUseMirror || owner == nil {
		return nil, nil
	}
	target := &workloadv1alpha1.SyncTarget{}
	err = objects.Get(client.In(ctx, logicalcluster.Name(owner.Cluster)), ctrlclient.ObjectKey{Name: owner.Name}, target)
	if ctrlclient.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read the SyncTarget of mirror %s: %w", mirror, err)
	}
	if err != nil || target.UID != owner.UID || target.Status.Mirror != string(mirror) {
		return nil, nil
	}
	return target, nil
}

// open says whether the request that a token was spent on is still there for its syncer to see.
func (c *Credentials) open(mirror logicalcluster.Name, request types.UID) bool {
	return slices.ContainsFunc(c.requests.List(mirror, ""), func(r *certificatesv1.CertificateSigningRequest) bool { return r.UID == request })
}

func joinCredential(id string, request types.UID) string { return id + "/" + string(request) }

func splitCredential(credential string) (id string, request types.UID) {
	id, uid, _ := strings.Cut(credential, "/")
	return id, types.UID(uid)
}

// stored returns the bootstrap token that a SyncTarget refers to, its id empty if there is none. It asks the server
// only when the Secret has changed: strangers can make it be called.
func (c *Credentials) stored(ctx context.Context, target *workloadv1alpha1.SyncTarget) (storedToken, error) {
	k, ok := tokenSecretOf(target)
	if !ok {
		return storedToken{}, nil
	}
	seen, ok := c.config.Informers.Of("Secret").Get(k)
	if !ok {
		return storedToken{}, nil
	}
	version := string(seen.GetUID()) + "/" + seen.GetResourceVersion()
	c.mu.Lock()
	known, ok := c.tokens[k]
	c.mu.Unlock()
	if ok && known.version == version {
		return known, nil
	}
	token, err := c.storedNow(ctx, target)
	if err != nil || token.version == "" {
		return storedToken{}, err
	}
	c.mu.Lock()
	c.tokens[k] = token
	c.mu.Unlock()
	return token, nil
}

// storedNow is stored by what the store holds.
func (c *Credentials) storedNow(ctx context.Context, target *workloadv1alpha1.SyncTarget) (storedToken, error) {
	k, ok := tokenSecretOf(target)
	if !ok {
		return storedToken{}, nil
	}
	secret, err := c.config.Clients.Kube.CoreV1().Secrets(k.Namespace).Get(client.In(ctx, k.Cluster), k.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return storedToken{}, nil
	}
	if err != nil {
		return storedToken{}, fmt.Errorf("read the bootstrap token in Secret %s: %w", k, err)
	}
	token := readToken(secret)
	token.version = string(secret.UID) + "/" + secret.ResourceVersion
	return token, nil
}

// readToken returns a token without id for what is no token: then nobody can show it.
func readToken(secret *corev1.Secret) storedToken {
	expiration, err := time.Parse(time.RFC3339, string(secret.Data[workloadv1alpha1.BootstrapTokenExpiration]))
	if err != nil || secret.Type != workloadv1alpha1.BootstrapTokenSecretType {
		return storedToken{}
	}
	return storedToken{
		id:         string(secret.Data[workloadv1alpha1.BootstrapTokenID]),
		hash:       string(secret.Data[workloadv1alpha1.BootstrapTokenHash]),
		expiration: expiration,
	}
}

// reconcile answers one request, and removes it some time after.
func (c *Credentials) reconcile(ctx context.Context, k client.Key) (time.Duration, error) {
	request, ok := c.requests.Get(k)
	if !ok {
		return 0, nil
	}
	if answered(request) {
		if age := c.config.Clock.Since(request.CreationTimestamp.Time); age < requestTTL {
			return requestTTL - age, nil
		}
		err := c.config.Clients.Objects.Delete(client.In(ctx, k.Cluster), request.DeepCopy(), ctrlclient.Preconditions{UID: &request.UID})
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("remove the certificate request %s: %w", k, err)
		}
		return 0, nil
	}

	target := c.target(k.Cluster)
	verdict, err := c.rule(ctx, request, target, c.stored)
	if err == nil && verdict.refused != "" {
		// A syncer that is refused gives up, and another server, which had seen more, may have let it in: only the store refuses.
		if target, err = c.targetNow(ctx, k.Cluster); err == nil {
			verdict, err = c.rule(ctx, request, target, c.storedNow)
		}
	}
	if err != nil {
		return 0, err
	}
	if verdict.refused != "" {
		klog.FromContext(ctx).Info("Certificate of a syncer refused", "request", k.String(), "user", request.Spec.Username, "reason", verdict.refused)
		return 0, c.answer(ctx, request, certificatesv1.CertificateDenied, "Refused", verdict.refused)
	}
	if verdict.spend != "" {
		// Before anything is signed: of two requests with one token, the first to be written here is the one.
		target = target.DeepCopy()
		target.Status.Credential = verdict.spend
		if err := c.config.Clients.Objects.Status().Update(client.In(ctx, client.KeyOf(target).Cluster), target); err != nil {
			return 0, fmt.Errorf("spend the bootstrap token of SyncTarget %s: %w", client.KeyOf(target), err)
		}
	}
	return 0, c.sign(ctx, request)
}

// rule judges a request with the token that read finds.
func (c *Credentials) rule(ctx context.Context, request *certificatesv1.CertificateSigningRequest, target *workloadv1alpha1.SyncTarget,
	read func(context.Context, *workloadv1alpha1.SyncTarget) (storedToken, error)) (ruling, error) {
	var token storedToken
	if target != nil {
		var err error
		if token, err = read(ctx, target); err != nil {
			return ruling{}, err
		}
	}
	return judge(request, client.KeyOf(request).Cluster, target, token.id), nil
}

// answered says whether nothing more is to be done for a request.
func answered(request *certificatesv1.CertificateSigningRequest) bool {
	return len(request.Status.Certificate) > 0 || slices.ContainsFunc(request.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed
	})
}

// ruling is what is to be done with a request: it is refused, with a reason; or signed, after status.credential of the
// SyncTarget was set to spend if that is not empty.
type ruling struct{ refused, spend string }

// judge rules on a request in a mirror. target is nil where no SyncTarget is synced from outside by way of it; token is
// the id of its bootstrap token, empty if it has none.
func judge(request *certificatesv1.CertificateSigningRequest, mirror logicalcluster.Name, target *workloadv1alpha1.SyncTarget, token string) ruling {
	if target == nil {
		return ruling{refused: "No cluster is synced from outside by way of this mirror."}
	}
	extra := request.Spec.Extra[workloadv1alpha1.CredentialExtra]
	if len(extra) != 1 || extra[0] == "" {
		return ruling{refused: "Only a syncer may ask for such a certificate."}
	}
	id := extra[0]
	if wrong := wrongRequest(request, mirror, id); wrong != "" {
		return ruling{refused: wrong}
	}
	current, spentOn := splitCredential(target.Status.Credential)
	switch request.Spec.Username {
	case workloadv1alpha1.SyncerUserPrefix + string(mirror):
		if id != current {
			return ruling{refused: "The certificate goes back to a bootstrap token that was replaced."}
		}
		return ruling{}
	case workloadv1alpha1.BootstrapUserPrefix + string(mirror):
		switch {
		case id == current && spentOn == request.UID:
			return ruling{} // we stopped half-way
		case id == current:
			return ruling{refused: "The bootstrap token was used already."}
		case id != token:
			return ruling{refused: "The bootstrap token was replaced."}
		}
		return ruling{spend: joinCredential(id, request.UID)}
	}
	return ruling{refused: "Only the syncer of this mirror may ask for such a certificate."}
}

// wrongRequest returns why a request is not for exactly the certificate that the syncer of a mirror has, or "".
func wrongRequest(request *certificatesv1.CertificateSigningRequest, mirror logicalcluster.Name, id string) string {
	block, _ := pem.Decode(request.Spec.Request)
	if block == nil {
		return "The request is not PEM."
	}
	wanted, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return fmt.Sprintf("The request cannot be read: %v.", err)
	}
	subject := wanted.Subject
	if subject.CommonName != workloadv1alpha1.SyncerUserPrefix+string(mirror) || subject.SerialNumber != id || len(subject.Names) != 2 ||
		len(wanted.DNSNames)+len(wanted.IPAddresses)+len(wanted.EmailAddresses)+len(wanted.URIs) > 0 {
		return fmt.Sprintf("The request is for %q, want common name %s%s, the serial number %q and no other name.", subject, workloadv1alpha1.SyncerUserPrefix, mirror, id)
	}
	usages := slices.Sorted(slices.Values(request.Spec.Usages))
	if !slices.Equal(usages, []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature}) {
		return fmt.Sprintf("The request is for usages %v, want client auth and digital signature.", request.Spec.Usages)
	}
	return ""
}

// answer adds an approval or a denial.
func (c *Credentials) answer(ctx context.Context, request *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType, reason, message string) error {
	request = request.DeepCopy()
	request.Status.Conditions = append(request.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message,
	})
	k := client.KeyOf(request)
	_, err := c.config.Clients.Kube.CertificatesV1().CertificateSigningRequests().UpdateApproval(client.In(ctx, k.Cluster), request.Name, request, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("answer the certificate request %s: %w", k, err)
	}
	return nil
}

// sign approves a request and issues its certificate.
func (c *Credentials) sign(ctx context.Context, request *certificatesv1.CertificateSigningRequest) error {
	k := client.KeyOf(request)
	approved := slices.ContainsFunc(request.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == certificatesv1.CertificateApproved
	})
	if !approved {
		// Its event brings us back.
		return c.answer(ctx, request, certificatesv1.CertificateApproved, "Syncer", "The syncer of this mirror asked for it.")
	}
	certificate, err := c.config.Sign(request.Spec.Request)
	if err != nil {
		return fmt.Errorf("sign the certificate of request %s: %w", k, err)
	}
	request = request.DeepCopy()
	request.Status.Certificate = certificate
	_, err = c.config.Clients.Kube.CertificatesV1().CertificateSigningRequests().UpdateStatus(client.In(ctx, k.Cluster), request, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("issue the certificate of request %s: %w", k, err)
	}
	klog.FromContext(ctx).Info("Certificate of a syncer issued", "request", k.String(), "user", request.Spec.Username)
	return nil
}
