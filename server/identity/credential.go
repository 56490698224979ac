package identity

import (
	"context"
	"sync/atomic"
	"time"

	"gopkg.in/go-jose/go-jose.v2/jwt"
)

// roomKey is where the context of a request has room for what authenticators say besides who sends it.
type roomKey struct{}

type room struct {
	end       atomic.Pointer[func() time.Time]
	undecided atomic.Bool
}

// WithRoom returns a context with room for what SayEnd and SayUndecided say.
func WithRoom(ctx context.Context) context.Context {
	return context.WithValue(ctx, roomKey{}, &room{})
}

// SayEnd says when the credential ends by which a request is authenticated; zero is never. Who takes a credential says it, and
// the first word counts: what a TokenReview asks about later is not what its own request came with. Impersonation, which puts
// another user into the context, leaves it. Without room nothing is said.
func SayEnd(ctx context.Context, end func() time.Time) {
	if said, ok := ctx.Value(roomKey{}).(*room); ok {
		said.end.CompareAndSwap(nil, &end)
	}
}

// EndOf is when the credential ends that a request was authenticated by, if it does and that was said.
func EndOf(ctx context.Context) (time.Time, bool) {
	said, ok := ctx.Value(roomKey{}).(*room)
	if !ok || said.end.Load() == nil {
		return time.Time{}, false
	}
	end := (*said.end.Load())()
	return end, !end.IsZero()
}

// SayUndecided says that it could not be found out whether a credential is good. To be told that it is not would be the end of it
// for its client.
func SayUndecided(ctx context.Context) {
	if said, ok := ctx.Value(roomKey{}).(*room); ok {
		said.undecided.Store(true)
	}
}

// IsUndecided says whether that was said of a credential of a request.
func IsUndecided(ctx context.Context) bool {
	said, ok := ctx.Value(roomKey{}).(*room)
	return ok && said.undecided.Load()
}

// endOfToken is when a token ends that was verified; zero for one that does not say.
func endOfToken(token string) time.Time {
	parsed, err := jwt.ParseSigned(token)
	if err != nil {
		return time.Time{}
	}
	var claims jwt.Claims
	if err := parsed.UnsafeClaimsWithoutVerification(&claims); err != nil || claims.Expiry == nil {
		return time.Time{}
	}
	return claims.Expiry.Time()
}
