package identity

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	apiserverserviceaccount "k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/kubernetes/pkg/serviceaccount"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/nodes"
)

var (
	// errElsewhere says the same of every token of this server that is shown in the wrong place, genuine or not.
	errElsewhere = errors.New("a token of a ServiceAccount is valid in the workspace alone that issued it")
	errInvalid   = errors.New("the token of a ServiceAccount is not valid")
	// errForeign marks a token that is none of this server's ServiceAccounts. It does not leave the package.
	errForeign = errors.New("no token of a ServiceAccount")
)

// Tokens issues and takes the tokens of ServiceAccounts, in the logical cluster of the request's context.
type Tokens struct {
	Issuers
	keys    *Keys
	request authenticator.Request
	// verifier checks everything of a token that says one of those issuers.
	verifier func(issuers []string, audiences authenticator.Audiences) authenticator.Token
}

// NewTokens returns the tokens of ServiceAccounts that are in objects.
func NewTokens(issuers Issuers, keys *Keys, objects Objects) *Tokens {
	validator := serviceaccount.NewValidator(getter{objects})
	t := &Tokens{Issuers: issuers, keys: keys, verifier: func(issuers []string, audiences authenticator.Audiences) authenticator.Token {
		return serviceaccount.JWTTokenAuthenticator(issuers, keys, audiences, validator)
	}}
	t.request = ofRequest(t)
	return t
}

// GenerateToken implements serviceaccount.TokenGenerator.
func (t *Tokens) GenerateToken(ctx context.Context, claims *jwt.Claims, private any) (string, error) {
	cluster, ok := lcctx.ClusterFrom(ctx)
	if !ok || cluster.Wildcard {
		return "", errors.New("issue a token: the context names no one logical cluster")
	}
	signs, until, err := t.keys.signing(ctx)
	if err != nil {
		return "", fmt.Errorf("issue a token: %w", err)
	}
	if claims.Expiry == nil || claims.Expiry.Time().After(until) {
		return "", errors.New("issue a token: it would outlast the key that signs it")
	}
	generator, err := serviceaccount.JWTTokenGenerator(t.of(cluster.Name), signs)
	if err != nil {
		return "", fmt.Errorf("issue a token: %w", err)
	}
	return generator.GenerateToken(ctx, claims, private)
}

// accepted are the issuers whose tokens may be valid: those of this server, of the other servers, and of before, when it
// had another address.
func (t *Tokens) accepted() Issuers { return t.with(t.keys.held.Load().bases) }

// Audiences are what a token must be for, at least one of them, to be taken by the API in a logical cluster.
func (t *Tokens) Audiences(cluster logicalcluster.Name) authenticator.Audiences {
	return t.accepted().Audiences(cluster)
}

// AuthenticateRequest implements authenticator.Request. A token that claims to be from here, or is signed by a key of ours,
// is refused with an error unless it is valid here, so that nobody else is asked about it; any other is nobody's here.
func (t *Tokens) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	response, ok, err := t.request.AuthenticateRequest(req)
	if errors.Is(err, errForeign) {
		return nil, false, nil
	}
	return response, ok, err
}

// AuthenticateToken implements authenticator.Token.
func (t *Tokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	accepted, claimed, err := t.whose(ctx, token)
	if err != nil {
		return nil, false, err
	}
	here, ok := lcctx.ClusterFrom(ctx)
	if !ok || here.Wildcard || here.Name != claimed {
		return nil, false, errElsewhere
	}
	// The issuers of this logical cluster alone are accepted, once more after the signature is verified. So is the UID of a Node.
	response, ok, err := t.verifier(accepted.all(here.Name), accepted.Audiences(here.Name)).AuthenticateToken(nodes.WithUID(ctx, nodeOf(token)), token)
	if err == nil && !ok {
		err = errInvalid
	}
	if err == nil {
		SayEnd(ctx, func() time.Time { return endOfToken(token) })
	}
	return response, ok, err
}

// whose is the logical cluster that a token claims to be from, of those issuers. It verifies nothing of that; but a token
// that claims to be from elsewhere is foreign only if no key of ours signed it.
func (t *Tokens) whose(ctx context.Context, token string) (Issuers, logicalcluster.Name, error) {
	accepted := t.accepted()
	claimed, ours := accepted.claimed(token)
	if ours {
		return accepted, claimed, nil
	}
	if !t.signed(ctx, token) {
		return Issuers{}, "", errForeign
	}
	// Another server may have another address since the row was read.
	if _, err := t.keys.read(ctx, true); err != nil {
		return Issuers{}, "", err
	}
	accepted = t.accepted()
	if claimed, ours = accepted.claimed(token); !ours {
		return Issuers{}, "", errInvalid
	}
	return accepted, claimed, nil
}

// signed says whether a key of ours signed a token.
func (t *Tokens) signed(ctx context.Context, token string) bool {
	parsed, err := jwt.ParseSigned(token)
	if err != nil {
		return false
	}
	s, err := t.keys.current(ctx)
	if err != nil {
		return false
	}
	for _, header := range parsed.Headers {
		for _, p := range s.public {
			if p.KeyID == header.KeyID && parsed.Claims(p.PublicKey) == nil {
				return true
			}
		}
	}
	return false
}

// Home is the logical cluster that issued the token of a request, if it is genuine, has not ended, and is for the API. It
// says where the request belongs and not who sends it: what the token is bound to is not looked at.
func (t *Tokens) Home(req *http.Request) (home logicalcluster.Name, ok bool) {
	look := authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		accepted, claimed, err := t.whose(ctx, token)
		if err != nil {
			return nil, false, nil
		}
		genuine := serviceaccount.JWTTokenAuthenticator(accepted.all(claimed), t.keys, accepted.Audiences(claimed), inTime{t.keys})
		if _, verified, err := genuine.AuthenticateToken(ctx, token); verified && err == nil {
			home, ok = claimed, true
		}
		return nil, false, nil // which leaves the token on the request, for who authenticates
	})
	_, _, _ = ofRequest(look).AuthenticateRequest(req)
	return home, ok
}

// ofRequest asks about the token of a request, wherever Kubernetes lets one be.
func ofRequest(token authenticator.Token) authenticator.Request {
	return group.NewAuthenticatedGroupAdder(union.NewFailOnError(bearertoken.New(token), websocket.NewProtocolAuthenticator(token)))
}

// inTime is a validator that asks for nothing but that a token is valid now.
type inTime struct{ keys *Keys }

func (v inTime) Validate(_ context.Context, _ string, public *jwt.Claims, _ *struct{}) (*apiserverserviceaccount.ServiceAccountInfo, error) {
	if err := public.Validate(jwt.Expected{Time: v.keys.clock.Now()}); err != nil {
		return nil, err
	}
	return &apiserverserviceaccount.ServiceAccountInfo{}, nil
}
