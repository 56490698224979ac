package syncer

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
)

// gate keeps writes from going down on the ground of what a side showed after the heartbeats were last compared: a side
// that is restored while the syncer runs first shows as a request that fails, or as a list or watch that begins anew.
// Either closes the gate; a comparison that began later opens it.
type gate struct {
	mu sync.Mutex
	// begun counts what closed the gate; checked is its value when the last finished comparison began.
	begun, checked int64
	verdict        verdict
	// opened is closed, and replaced, with every comparison.
	opened chan struct{}
	// stale gets a value when the gate closes.
	stale chan struct{}
}

func newGate() *gate {
	return &gate{checked: -1, opened: make(chan struct{}), stale: make(chan struct{}, 1)}
}

// close demands a new comparison.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.begun++
	select {
	case g.stale <- struct{}{}:
	default:
	}
}

// begin returns what a comparison that begins now has to give to open.
func (g *gate) begin() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.begun
}

// open ends the comparison that began at begun. It returns whether the verdict changed.
func (g *gate) open(begun int64, v verdict) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	changed := g.verdict != v
	g.checked, g.verdict = max(g.checked, begun), v
	close(g.opened)
	g.opened = make(chan struct{})
	return changed
}

// pass waits until the gate is open, and says what the comparison found. ok is false when ctx ended first.
func (g *gate) pass(ctx context.Context) (v verdict, ok bool) {
	for {
		g.mu.Lock()
		v, ok, opened := g.verdict, g.checked >= g.begun, g.opened
		g.mu.Unlock()
		if ok {
			return v, true
		}
		select {
		case <-opened:
		case <-ctx.Done():
			return 0, false
		}
	}
}

// guarded closes the gate whenever those who answer may not be those who answered before: when a request finds nobody,
// when a list or watch begins, and when a watch ends. It closes when the answer comes, since a request that was under way
// meanwhile may be answered by who took over. The heartbeat itself only gets and updates.
type guarded struct {
	next http.RoundTripper
	gate *gate
}

func (g guarded) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := g.next.RoundTrip(req)
	switch {
	case err != nil:
		if wanted(req) {
			g.gate.close()
		}
	case isAway(resp.StatusCode):
		g.gate.close()
	case resp.StatusCode == http.StatusOK && shows(req):
		g.gate.close()
		if req.URL.Query().Has("watch") {
			resp.Body = &guardedBody{resp.Body, req, g.gate}
		}
	}
	return resp, err
}

// guardedBody is the answer to a watch.
type guardedBody struct {
	io.ReadCloser
	req  *http.Request
	gate *gate
}

func (b *guardedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && wanted(b.req) {
		b.gate.close()
	}
	return n, err
}

// wanted says whether somebody still wants the answer.
func wanted(req *http.Request) bool { return !errors.Is(req.Context().Err(), context.Canceled) }

// isAway says whether a status tells that there is nobody to answer, or nothing to store to. An Internal Server Error tells
// of a webhook below more often than of that.
func isAway(status int) bool {
	return status == http.StatusBadGateway || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout
}

// shows says whether a request is an informer's list or watch: client-go's informers name a resource version, a page size
// or a watch in every request.
func shows(req *http.Request) bool {
	query := req.URL.Query()
	return req.Method == http.MethodGet && (query.Has("watch") || query.Has("resourceVersion") || query.Has("limit"))
}
