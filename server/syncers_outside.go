package server

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/util/cert"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/certificates/authority"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/identity"
)

const (
	// clockSkew is how far the clock of a syncer may be behind ours, at most a tenth of what its certificate lasts.
	clockSkew = 5 * time.Minute
	// credentialCheck is how often it is asked, while a watch or tunnel of a syncer is open, whether its certificate or token is still good.
	credentialCheck = 5 * time.Second
	// bootstrapGroup holds who shows the bootstrap token of a syncer.
	bootstrapGroup = reservedPrefix + "bootstrappers"
)

// Credentials know what the syncers outside this process identify themselves with.
type Credentials interface {
	// WaitSynced blocks until every registration is known that was there when the server started, or ctx ends.
	WaitSynced(ctx context.Context) error
	// Token returns the id of a bootstrap token if it is good in that mirror now.
	Token(ctx context.Context, mirror logicalcluster.Name, token string) (id string, ok bool, err error)
	// Accepts says whether certificates of that mirror that go back to the bootstrap token of that id are good.
	Accepts(mirror logicalcluster.Name, id string) bool
}

// bootstrapUser is who shows a bootstrap token in its mirror. Like syncerUser it is known by its type.
type bootstrapUser struct {
	user.DefaultInfo
	mirror logicalcluster.Name
	// good asks again whether the token is.
	good func(ctx context.Context) (bool, error)
}

func credentialExtra(id string) map[string][]string {
	return map[string][]string{workloadv1alpha1.CredentialExtra: {id}}
}

// isSyncer says whether a user is a syncer, or asks for the certificate of one.
func isSyncer(who user.Info) bool {
	switch who.(type) {
	case *syncerUser, *bootstrapUser:
		return true
	}
	return false
}

// bootstrapTokens authenticates who shows a bootstrap token in the mirror that it is for. What looks like one is shown to nobody
// else there: one that is spent, or that cannot be looked for now, would go to whoever is asked about the tokens of people.
type bootstrapTokens struct{ server *Server }

// errNoBootstrapToken is of what does not look like one, or is not shown in a mirror. It does not leave bootstrapTokens.
var errNoBootstrapToken = errors.New("no bootstrap token of a syncer")

// AuthenticateRequest implements authenticator.Request.
func (t bootstrapTokens) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	found, ok, err := bearertoken.New(t).AuthenticateRequest(req)
	if errors.Is(err, errNoBootstrapToken) {
		return nil, false, nil
	}
	return found, ok, err
}

// AuthenticateToken implements authenticator.Token.
func (t bootstrapTokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	cluster, ok := lcctx.ClusterFrom(ctx)
	if !ok || !cluster.Mirror || !bootstraputil.IsValidBootstrapToken(token) {
		return nil, false, errNoBootstrapToken
	}
	id, ok, err := t.server.credentials.Token(ctx, cluster.Name, token)
	switch {
	case err != nil:
		identity.SayUndecided(ctx)
		return nil, false, err
	case !ok:
		return nil, false, errors.New("the bootstrap token of a syncer is not, or no longer, that of this mirror")
	}
	return &authenticator.Response{User: &bootstrapUser{
		DefaultInfo: user.DefaultInfo{
			Name: workloadv1alpha1.BootstrapUserPrefix + string(cluster.Name), Extra: credentialExtra(id),
			Groups: []string{bootstrapGroup, user.AllAuthenticated},
		},
		mirror: cluster.Name,
		good: func(ctx context.Context) (bool, error) {
			_, ok, err := t.server.credentials.Token(ctx, cluster.Name, token)
			return ok, err
		},
	}}, true, nil
}

// authorizeBootstrap lets a syncer ask for its certificate in its own mirror, and read the answer.
func authorizeBootstrap(who *bootstrapUser, cluster lcctx.Cluster, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	asks := attrs.IsResourceRequest() && attrs.GetAPIGroup() == certificatesv1.GroupName && attrs.GetResource() == "certificatesigningrequests" &&
		attrs.GetSubresource() == "" && slices.Contains(certificateVerbs, attrs.GetVerb())
	if cluster.Wildcard || !cluster.Mirror || cluster.Name != who.mirror || !asks {
		return authorizer.DecisionDeny, "with a bootstrap token a syncer may ask for its certificate, and do nothing else", nil
	}
	return authorizer.DecisionAllow, "", nil
}

// certificateVerbs is what a syncer needs of CertificateSigningRequests to have its certificate issued and renewed.
var certificateVerbs = []string{"create", "get", "list", "watch"}

// syncerCertificates authenticates syncers by certificates of the authority that signs for them alone.
func (s *Server) syncerCertificates() authenticator.Request {
	pool := x509.NewCertPool()
	pool.AddCert(s.syncerKeys.ca)
	options := x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	return ofAuthority{s.syncerKeys.ca, x509request.New(options, x509request.UserConversionFunc(func(chain []*x509.Certificate) (*authenticator.Response, bool, error) {
		subject := chain[0].Subject
		name, ok := strings.CutPrefix(subject.CommonName, workloadv1alpha1.SyncerUserPrefix)
		if !ok {
			return nil, false, fmt.Errorf("the certificate of %q is no syncer's", subject.CommonName)
		}
		mirror := logicalcluster.Name(name)
		if !s.credentials.Accepts(mirror, subject.SerialNumber) {
			return nil, false, fmt.Errorf("the certificate of %q goes back to a bootstrap token that was replaced, or its cluster was removed", subject.CommonName)
		}
		found := newSyncerUser(mirror)
		found.Extra = credentialExtra(subject.SerialNumber)
		found.credential = subject.SerialNumber
		return &authenticator.Response{User: found}, true, nil
	}))}
}

// goodStill returns what asks again whether the credential of a syncer outside this process is good; nil for everybody else.
func (s *Server) goodStill(who user.Info) func(ctx context.Context) (bool, error) {
	switch who := who.(type) {
	case *bootstrapUser:
		return who.good
	case *syncerUser:
		if who.credential != "" {
			return func(context.Context) (bool, error) { return s.credentials.Accepts(who.mirror, who.credential), nil }
		}
	}
	return nil
}

// withEndOfCredential ends what runs long, such as watches, execs and tunnels, when the credential does that it was begun with, also by one who
// is somebody else since by impersonation, and a syncer's when its certificate or bootstrap token is refused from then on: it lasts as long
// as its client likes. Where it cannot be told whether a credential is good, it is asked again: a store that hiccups is no refusal. It
// stands after authentication. Other requests end within a minute anyway.
func (s *Server) withEndOfCredential(next http.Handler, longRunning request.LongRunningRequestCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, _ := request.RequestInfoFrom(req.Context())
		end, ends := identity.EndOf(req.Context())
		who, _ := request.UserFrom(req.Context())
		good := s.goodStill(who)
		if info == nil || !longRunning(req, info) || !ends && good == nil {
			next.ServeHTTP(w, req)
			return
		}
		ctx, cancel := context.WithCancel(req.Context())
		defer cancel()
		if ends {
			var passed context.CancelFunc
			ctx, passed = context.WithDeadline(ctx, end)
			defer passed()
		}
		if good != nil {
			var check func()
			check = func() {
				still, err := good(ctx)
				switch {
				case ctx.Err() != nil: // the request has ended, maybe before the answer
					return
				case err == nil && !still:
					klog.FromContext(ctx).Info("A request is ended, since the credential of its syncer is good no longer", "user", who.GetName(), "verb", info.Verb, "resource", info.Resource, "subresource", info.Subresource)
					cancel()
					return
				case err != nil:
					klog.FromContext(ctx).V(2).Info("Ask again whether the credential of a request is good", "user", who.GetName(), "verb", info.Verb, "resource", info.Resource, "subresource", info.Subresource, "err", err)
				}
				time.AfterFunc(credentialCheck, check)
			}
			time.AfterFunc(credentialCheck, check)
		}
		next.ServeHTTP(w, req.WithContext(ctx))
	})
}

// SignSyncer returns the client certificate, as PEM, for a PEM-encoded request of a syncer outside this process. Whose
// request it is was judged before.
func (s *Server) SignSyncer(request []byte) ([]byte, error) {
	block, _ := pem.Decode(request)
	if block == nil {
		return nil, errors.New("the request is not PEM")
	}
	ttl := s.options.SyncerSigningDuration
	der, err := (&authority.CertificateAuthority{Certificate: s.syncerKeys.ca, PrivateKey: s.syncerKeys.caKey}).Sign(block.Bytes, authority.PermissiveSigningPolicy{
		TTL: ttl, Backdate: min(clockSkew, ttl/10), Short: ttl + 1,
		Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
	})
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der}), nil
}
