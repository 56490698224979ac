package syncer

import (
	"context"
	"net/http"
	"sync"
)

// gate keeps writes from going down on the ground of what a mirror showed after the heartbeats were last compared: a
// hub that is restored while the syncer runs first shows as a list or watch that begins anew. The answer to every such
// request closes the gate; a comparison that began later opens it. So does a physical cluster that does not answer a
// heartbeat, or a list or watch: it may come back restored.
type gate struct {
	mu sync.Mutex
	// begun counts the lists and watches of the mirror that were answered; checked is its value when the last finished comparison began.
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

// watched closes the gate whenever a list or watch of the mirror begins: when its answer does, since a request that was under way
// meanwhile may be answered by who took over. The heartbeat itself only gets and updates.
type watched struct {
	next http.RoundTripper
	gate *gate
}

func (w watched) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := w.next.RoundTrip(req)
	query := req.URL.Query()
	// client-go's informers name a resource version, a page size or a watch in every request.
	if err == nil && resp.StatusCode == http.StatusOK && req.Method == http.MethodGet &&
		(query.Has("watch") || query.Has("resourceVersion") || query.Has("limit")) {
		w.gate.close()
	}
	return resp, err
}
