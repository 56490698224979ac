package identity

import (
	"context"
	"sync/atomic"
	"time"

	"gopkg.in/go-jose/go-jose.v2/jwt"
)

// endKey is where the context of a request has room for the end of its credential.
type endKey struct{}

// WithEnd returns a context with room for what SayEnd says.
func WithEnd(ctx context.Context) context.Context {
	return context.WithValue(ctx, endKey{}, &atomic.Pointer[func() time.Time]{})
}

// SayEnd says when the credential ends by which a request is authenticated; zero is never. Who takes a credential says it, and
// the first word counts: what a TokenReview asks about later is not what its own request came with. Impersonation, which puts
// another user into the context, leaves it. Without room nothing is said.
func SayEnd(ctx context.Context, end func() time.Time) {
	if room, ok := ctx.Value(endKey{}).(*atomic.Pointer[func() time.Time]); ok {
		room.CompareAndSwap(nil, &end)
	}
}

// EndOf is when the credential ends that a request was authenticated by, if it does and that was said.
func EndOf(ctx context.Context) (time.Time, bool) {
	room, ok := ctx.Value(endKey{}).(*atomic.Pointer[func() time.Time])
	if !ok || room.Load() == nil {
		return time.Time{}, false
	}
	end := (*room.Load())()
	return end, !end.IsZero()
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
