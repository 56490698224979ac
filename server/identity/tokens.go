package identity

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"golang.org/x/sync/singleflight"
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
	// errUndecided is of a token that may be valid.
	errUndecided = errors.New("the ServiceAccount of a token, or what it is bound to, cannot be read now")
	// errForeign marks a token that is none of this server's ServiceAccounts. It does not leave the package.
	errForeign = errors.New("no token of a ServiceAccount")
)

// Tokens issues and takes the tokens of ServiceAccounts, in the logical cluster of the request's context.
type Tokens struct {
	Issuers
	keys    *Keys
	objects getter
	ended   *Ended
	valid   *remembered
	looking singleflight.Group // by lookAt
	request authenticator.Request
	// verifier checks everything of a token that says one of those issuers.
	verifier func(issuers []string, audiences authenticator.Audiences) authenticator.Token
}

// NewTokens returns the tokens of ServiceAccounts that are in objects. What is deleted of these here, ended counts.
func NewTokens(issuers Issuers, keys *Keys, objects Objects, ended *Ended) *Tokens {
	validator := serviceaccount.NewValidator(getter{objects})
	t := &Tokens{Issuers: issuers, keys: keys, objects: getter{objects}, ended: ended, valid: newRemembered(keys.clock), verifier: func(issuers []string, audiences authenticator.Audiences) authenticator.Token {
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
	ctx = nodes.WithUID(ctx, nodeOf(token)) // what a Node is that it is bound to
	var of outcome
	// A review that names audiences asks about a token, and is no request of it.
	if _, review := authenticator.AudiencesFrom(ctx); review {
		of = t.look(ctx, accepted, here.Name, token)
	} else if of, err = t.lookedAt(ctx, accepted, here.Name, token); err != nil {
		return nil, false, err
	}
	switch {
	case of.err != nil && of.read.doubtful:
		// What it says is not why: upstream takes whatever cannot be read for gone, and what the watch cache has may be old.
		SayUndecided(ctx)
		return nil, false, errUndecided
	case of.err != nil:
		return nil, false, of.err
	}
	SayEnd(ctx, func() time.Time { return endOfToken(token) })
	return of.response, true, nil
}

// outcome is what came of a token, and what was read for it. err is nil if it is good.
type outcome struct {
	response *authenticator.Response
	err      error
	read     readings
}

// lookTimeout bounds a look at a token for several requests, which does not end with the first: it reads two objects, and the
// watch cache of each.
const lookTimeout = 4 * readTimeout

// lookedAt is what came of a token a moment ago, or comes of a look at it, which is one for all who ask at the same time.
func (t *Tokens) lookedAt(ctx context.Context, accepted Issuers, here logicalcluster.Name, token string) (outcome, error) {
	// Not later: what it is verified by, and what is found, is at least as new.
	ended := t.ended.of(here)
	by, err := t.keys.current(ctx)
	if err != nil {
		return outcome{}, err
	}
	if v, ok := t.valid.get(here, token, by, ended); ok && (v.refused != nil || t.objects.still(ctx, v.read)) {
		return outcome{response: v.response, err: v.refused}, nil
	}
	// Who asks after a deletion, or of other keys, does not join a look of before.
	all := fmt.Sprintf("%s %x %d %p", here, keyOf(here, token).hash, ended, by)
	found, _, _ := t.looking.Do(all, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
		defer cancel()
		of := t.look(ctx, accepted, here, token)
		switch {
		case of.read.doubtful:
		case of.err == nil:
			t.valid.add(here, token, validity{response: of.response, keys: by, ended: ended, read: of.read.of})
		case of.read.asked: // the signature is good, and everything else that is not in etcd
			t.valid.add(here, token, validity{refused: of.err, keys: by})
		}
		return of, nil
	})
	return found.(outcome), nil
}

// look verifies a token and what it depends on.
func (t *Tokens) look(ctx context.Context, accepted Issuers, here logicalcluster.Name, token string) outcome {
	of := outcome{}
	// The issuers of this logical cluster alone are accepted, once more after the signature is verified. So is the UID of a Node.
	response, ok, err := t.verifier(accepted.all(here), accepted.Audiences(here)).AuthenticateToken(context.WithValue(ctx, readingsKey{}, &of.read), token)
	if err == nil && !ok {
		err = errInvalid
	}
	of.response, of.err = response, err
	return of
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
		if by, err := t.keys.current(ctx); err == nil {
			// Also one that is refused by now is from there.
			if _, known := t.valid.get(claimed, token, by, t.ended.of(claimed)); known {
				home, ok = claimed, true
				return nil, false, nil
			}
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
