package syncer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// ErrCertificateRefused says that the hub does not take the certificate any more.
var ErrCertificateRefused = errors.New("the hub refuses this syncer's certificate: the cluster was removed there, or a newer manifest took this one's place")

// leastRefusals is how many requests the hub has to refuse in refusedFor, and take none, to be believed.
const leastRefusals = 5

// Use runs work with how the hub is reached. Once the hub does not take the certificate any more it ends work's ctx, and
// returns ErrCertificateRefused when work has returned: to ask on would fill logs for ever, and no time mends it.
func (c *Credential) Use(ctx context.Context, work func(ctx context.Context, hub *rest.Config) error) error {
	return untilRefused(ctx, c.Config(), work)
}

func untilRefused(ctx context.Context, hub *rest.Config, work func(context.Context, *rest.Config) error) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	hub.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &refusals{next: next, end: func() { end(ErrCertificateRefused) }}
	})
	err := work(ctx, hub)
	if context.Cause(ctx) == ErrCertificateRefused {
		return fmt.Errorf("%s: %w", hub.Host, ErrCertificateRefused)
	}
	return err
}

// refusals calls end when all that the hub answers is that it does not know who asks. No answer says nothing.
type refusals struct {
	next http.RoundTripper
	end  func()

	mu    sync.Mutex // guards all below
	count int        // of refusals in a row
	since time.Time  // the first of them
}

func (r *refusals) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.next.RoundTrip(req)
	if err == nil && r.believed(resp.StatusCode == http.StatusUnauthorized) {
		r.end()
	}
	return resp, err
}

// believed takes an answer, and says whether there were enough refusals.
func (r *refusals) believed(refused bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !refused:
		r.count = 0
		return false
	case r.count == 0:
		r.since = time.Now()
	}
	r.count++
	return r.count >= leastRefusals && time.Since(r.since) >= refusedFor
}
