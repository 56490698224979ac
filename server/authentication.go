package server

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	authenticationunion "k8s.io/apiserver/pkg/authentication/request/union"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	"k8s.io/utils/clock"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/identity"
)

// secure sets up TLS and authentication: ServiceAccounts, each in its own workspace; people, who are the same everywhere,
// by client certificates of our own authority and of --client-ca-file, static tokens, the structured configuration and a
// webhook; users of one workspace by its certificates; syncers here and elsewhere; and the server itself.
func (s *Server) secure(ctx context.Context, config *genericapiserver.Config) error {
	serving, err := newOwnCertificates(s.options.clock, func() (keyPair, error) { return s.keys.serving(s.ownHosts()...) }, s.otherCertificates())
	if err != nil {
		return err
	}
	own, err := dynamiccertificates.NewStaticCAContent("own-client-ca", s.keys.caPEM())
	if err != nil {
		return fmt.Errorf("load the server's certificate authority: %w", err)
	}
	clientCA := dynamiccertificates.CAContentProvider(own)
	if file := s.options.ClientCAFile; file != "" {
		more, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", file)
		if err != nil {
			return fmt.Errorf("load --client-ca-file %q: %w", file, err)
		}
		clientCA = dynamiccertificates.NewUnionCAContentProvider(own, more)
	}
	asked := []dynamiccertificates.CAContentProvider{clientCA}
	for name, keys := range map[string]*pki{"syncers": s.syncerKeys, "workspaces": s.workspaceKeys} {
		more, err := dynamiccertificates.NewStaticCAContent(name, keys.caPEM())
		if err != nil {
			return fmt.Errorf("load the certificate authority of %s: %w", name, err)
		}
		asked = append(asked, more)
	}
	// Whose certificates clients are asked for. What each is good for is said below.
	config.SecureServing = &genericapiserver.SecureServingInfo{
		Listener: s.listener, Cert: serving, ClientCA: dynamiccertificates.NewUnionCAContentProvider(asked...),
	}
	if o := s.options; o.TLSCertFile != "" {
		given, err := dynamiccertificates.NewDynamicSNIContentFromFiles("serving-cert", o.TLSCertFile, o.TLSPrivateKeyFile) // by the names in it
		if err != nil {
			return fmt.Errorf("load --tls-cert-file %q, --tls-private-key-file %q: %w", o.TLSCertFile, o.TLSPrivateKeyFile, err)
		}
		renewed, err := s.renewed(given)
		if err != nil {
			return err
		}
		config.SecureServing.SNICerts = []dynamiccertificates.SNICertKeyContentProvider{renewed}
	}

	if err := s.openTokens(ctx); err != nil {
		return err
	}
	byToken, audiences, strangers, err := s.authenticatePeople(ctx, config)
	if err != nil {
		return err
	}
	byCertificate := group.NewAuthenticatedGroupAdder(x509request.NewDynamic(clientCA.VerifyOptions, x509request.CommonNameUserConversion))
	s.reviewer = authenticationunion.NewFailOnError(s.tokens, peopleReviewed{outsiders{byToken}, s.tokens, audiences})
	known := authenticationunion.New(
		bearertoken.New(authenticator.Token(&s.syncers)), withItsEnd{s.syncerCertificates()}, withItsEnd{s.workspaceCertificates()},
		outsiders{withItsEnd{byCertificate}}, outsiders{forAudiences{byToken, audiences}})
	// Who shows a credential that nobody takes is refused, not taken for a stranger. Nobody is asked about the token of a
	// ServiceAccount but the workspace that issued it, nor about a syncer's bootstrap token but its mirror, least of all a
	// webhook.
	config.Authentication.Authenticator = attendants{authenticationunion.NewFailOnError(append([]authenticator.Request{s.tokens, bootstrapTokens{s}, known}, strangers...)...)}
	return nil
}

// withRoom lets authenticators say when the credential of a request ends, for withEndOfCredential, and that they could not find
// out whether it is good: who sends it is told to try again then, and not that it is good no longer.
func (s *Server) withRoom(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		req = req.WithContext(identity.WithRoom(req.Context()))
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(&unlessUndecided{ResponseWriter: w, req: req, answer: s.answer}), req)
	})
}

// unlessUndecided answers 503 in place of 401 where it is not decided whether a credential is good. Upstream's filter knows
// refusals alone, and clients take one for the end of their credential: they do not try again. Not safe for concurrent use, as
// what it is around.
type unlessUndecided struct {
	http.ResponseWriter
	req     *http.Request
	answer  func(http.ResponseWriter, *http.Request, error)
	instead bool // of what is written
}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (w *unlessUndecided) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *unlessUndecided) WriteHeader(code int) {
	if code != http.StatusUnauthorized || !identity.IsUndecided(w.req.Context()) {
		w.ResponseWriter.WriteHeader(code)
		return
	}
	w.instead = true
	err := apierrors.NewServiceUnavailable("it cannot be found out now whether the credential of the request is good, try again")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	w.answer(w.ResponseWriter, w.req, err)
}

// Write implements http.ResponseWriter.
func (w *unlessUndecided) Write(p []byte) (int, error) {
	if w.instead {
		return len(p), nil
	}
	return w.ResponseWriter.Write(p)
}

// withItsEnd takes client certificates, and says when the one ends that it took.
type withItsEnd struct{ authenticator.Request }

// AuthenticateRequest implements authenticator.Request.
func (a withItsEnd) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	found, ok, err := a.Request.AuthenticateRequest(req)
	if err == nil && ok {
		identity.SayEnd(req.Context(), func() time.Time { return req.TLS.PeerCertificates[0].NotAfter })
	}
	return found, ok, err
}

// openTokens reads the keys for tokens of ServiceAccounts, or makes the first.
func (s *Server) openTokens(ctx context.Context) error {
	bases := s.options.ServiceAccountIssuers
	if len(bases) == 0 {
		bases = []string{s.url}
	}
	issuers, err := identity.NewIssuers(bases, s.options.Authentication.APIAudiences)
	if err != nil {
		return fmt.Errorf("issue tokens of ServiceAccounts: %w", err)
	}
	keys, err := identity.OpenKeys(ctx, s.backend, issuers, s.options.ServiceAccountMaxTokenExpiration, clock.RealClock{})
	if err != nil {
		return fmt.Errorf("issue tokens of ServiceAccounts: %w", err)
	}
	s.tokens = identity.NewTokens(issuers, keys, s.backend, s.ended)
	return nil
}

// authenticatePeople returns upstream's authenticators of bearer tokens other than ServiceAccounts', what those are for
// where they do not say, and what takes who shows nothing, if anything does.
func (s *Server) authenticatePeople(ctx context.Context, config *genericapiserver.Config) (authenticator.Request, authenticator.Audiences, []authenticator.Request, error) {
	fail := func(err error) (authenticator.Request, authenticator.Audiences, []authenticator.Request, error) {
		return nil, nil, nil, fmt.Errorf("set up authentication: %w", err)
	}
	o := *s.options.Authentication
	o.TokenFile = &kubeoptions.TokenFileAuthenticationOptions{TokenFile: s.options.TokenAuthFile}
	if len(o.APIAudiences) == 0 {
		o.APIAudiences = []string{s.url}
	}
	read, err := o.ToAuthenticationConfig()
	if err != nil {
		return fail(err)
	}
	// With these upstream reads what tokens of ServiceAccounts depend on; it is not told to take any.
	unused, err := kubernetes.NewForConfig(s.loopback.config)
	if err != nil {
		return fail(err)
	}
	made := &genericapiserver.AuthenticationInfo{}
	err = o.ApplyTo(ctx, made, config.SecureServing, nil, &openapicommon.Config{}, nil, unused, informers.NewSharedInformerFactory(unused, 0), "atoll")
	if err != nil {
		return fail(err)
	}
	return made.Authenticator, o.APIAudiences, nobody(read.AuthenticationConfig.Anonymous), nil
}

// nobody returns what takes a request without any credential for one of a stranger: always, unless --authentication-config
// says otherwise.
func nobody(configured *apiserver.AnonymousAuthConfig) []authenticator.Request {
	switch {
	case configured == nil:
		return []authenticator.Request{anonymous.NewAuthenticator(nil)}
	case configured.Enabled:
		return []authenticator.Request{anonymous.NewAuthenticator(configured.Conditions)}
	}
	return nil
}

// peopleReviewed answers TokenReviews about people. Their tokens are for the API of all workspaces, and so for that of the
// workspace of the review, whichever of its audiences the review asks for.
type peopleReviewed struct {
	people authenticator.Request
	// audiences are what the API takes in a workspace.
	audiences interface {
		Audiences(logicalcluster.Name) authenticator.Audiences
	}
	// everywhere are what tokens of people are for, where they do not say.
	everywhere authenticator.Audiences
}

// AuthenticateRequest implements authenticator.Request, for a request whose context names the audiences.
func (p peopleReviewed) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	ctx := req.Context()
	cluster, _ := lcctx.ClusterFrom(ctx)
	asked, _ := authenticator.AudiencesFrom(ctx)
	here := asked.Intersect(p.audiences.Audiences(cluster.Name))
	if len(here) > 0 {
		ctx = authenticator.WithAudiences(ctx, slices.Concat(asked, p.everywhere))
	}
	found, ok, err := p.people.AuthenticateRequest(req.WithContext(ctx))
	if err != nil || !ok {
		return nil, false, err
	}
	audiences := found.Audiences.Intersect(asked)
	if len(found.Audiences.Intersect(p.everywhere)) > 0 {
		audiences = append(audiences, here...)
	}
	if len(audiences) == 0 {
		return nil, false, nil
	}
	return &authenticator.Response{User: found.User, Audiences: slices.Compact(slices.Sorted(slices.Values(audiences)))}, true, nil
}

// forAudiences takes tokens that are for one of some audiences. (The handler chain is told none: those of ServiceAccounts are their
// workspace's.)
type forAudiences struct {
	authenticator.Request
	audiences authenticator.Audiences
}

// AuthenticateRequest implements authenticator.Request.
func (f forAudiences) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	return f.Request.AuthenticateRequest(req.WithContext(authenticator.WithAudiences(req.Context(), f.audiences)))
}

// describeIssuer serves what others need to verify tokens of a workspace's ServiceAccounts.
func (s *Server) describeIssuer(w http.ResponseWriter, req *http.Request) {
	cluster, ok := lcctx.ClusterFrom(req.Context())
	switch {
	case !ok || cluster.Wildcard:
		s.answer(w, req, notFound("each workspace issues tokens of its own: put /clusters/<path>, such as /clusters/root, before %s", req.URL.Path))
		return
	case req.Method != http.MethodGet && req.Method != http.MethodHead:
		s.answer(w, req, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: req.URL.Path}, req.Method))
		return
	}
	metadata, err := s.tokens.Metadata(req.Context(), cluster.Name)
	if err != nil {
		klog.FromContext(req.Context()).Error(err, "Could not describe the issuer of tokens", "cluster", cluster)
		s.answer(w, req, apierrors.NewServiceUnavailable("the keys for tokens cannot be read now, try again"))
		return
	}
	identity.ServeMetadata(w, req, metadata)
}
