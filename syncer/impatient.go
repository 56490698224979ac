package syncer

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

const (
	// requestTimeout bounds a request from its beginning to the last byte of its answer; of a watch, to the first.
	requestTimeout = 30 * time.Second
	// longestRetryAfter is the longest time to wait that is left to client-go, which waits up to ten times as long as a
	// server asks for. What asks for more fails at once, and is tried again by our own back-off.
	longestRetryAfter = time.Second
)

// impatient ends what would keep a worker waiting for a server, or a load balancer before it, that has lost the request or
// wants to be left alone for minutes: client-go bounds neither. A watch ends a requestTimeout after the time that it
// was asked for, should the server forget to.
type impatient struct {
	next    http.RoundTripper
	timeout time.Duration
}

// makeImpatient bounds every request that is made with cfg.
func makeImpatient(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return impatient{next, requestTimeout} })
}

func (i impatient) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	late := fmt.Errorf("no answer in %s: %w", i.timeout, context.DeadlineExceeded)
	timer := time.AfterFunc(i.timeout, func() { cancel(late) })
	end := func() {
		timer.Stop()
		cancel(nil)
	}
	resp, err := i.next.RoundTrip(req.WithContext(ctx))
	if err != nil {
		end()
		if cause := context.Cause(ctx); cause == late {
			err = late
		}
		return nil, err
	}
	if query := req.URL.Query(); query.Has("watch") {
		seconds, err := strconv.Atoi(query.Get("timeoutSeconds"))
		if timer.Stop(); err == nil {
			timer.Reset(i.timeout + time.Duration(seconds)*time.Second)
		}
	}
	resp.Body = &endingBody{ReadCloser: resp.Body, end: end}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && time.Duration(seconds)*time.Second > longestRetryAfter {
		resp.Header.Del("Retry-After")
	}
	return resp, nil
}

// endingBody calls end when it is closed.
type endingBody struct {
	io.ReadCloser
	once sync.Once
	end  func()
}

func (b *endingBody) Close() error {
	defer b.once.Do(b.end)
	return b.ReadCloser.Close()
}
