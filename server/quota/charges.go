package quota

import (
	"context"
	"net/http"
	"sync"
	"time"

	"atoll.dev/atoll/client"
)

const (
	// prompt is how long after its charge a request has ended by which etcd has done what it was asked: it gives up a write
	// after five seconds, and may do it all the same when it is able to.
	prompt = 3 * time.Second
	// lingering is how long a write may come after the end of a request that was given up, or that took longer.
	lingering = 10 * time.Second
	// longest is how long a charge is in flight at most, should its request never end. The server ends them after a minute.
	longest = 2 * time.Minute
)

// Charges are those in flight: a ResourceQuota was charged, or is about to be, and what it was charged for may not be written yet.
// Who counts then does not know whether to count it. They are those of this process, and take memory only while there are some.
type Charges struct {
	mu   sync.Mutex // guards what follows, and the requests
	byID map[client.Key]map[*request]time.Time
}

// request may charge. The time in byID is when a ResourceQuota stops to wait for its end.
type request struct {
	began   time.Time // of its first charge
	charged []client.Key
}

type requestKey struct{}

// NewCharges returns an empty set.
func NewCharges() *Charges {
	return &Charges{byID: map[client.Key]map[*request]time.Time{}}
}

// Around lets the requests to next charge: their charges are in flight until next has returned.
func (c *Charges) Around(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r := &request{}
		ctx := context.WithValue(req.Context(), requestKey{}, r)
		defer func() { c.end(r, ctx.Err() != nil) }()
		next.ServeHTTP(w, req.WithContext(ctx))
	})
}

// Begin comes before the charge of a ResourceQuota. What did not come through Around is in flight for two minutes.
func (c *Charges) Begin(ctx context.Context, quota client.Key) {
	r, ok := ctx.Value(requestKey{}).(*request)
	if !ok {
		r = &request{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if len(r.charged) == 0 {
		r.began = now
	}
	if c.byID[quota] == nil {
		c.byID[quota] = map[*request]time.Time{}
	}
	if _, again := c.byID[quota][r]; !again {
		r.charged = append(r.charged, quota)
	}
	c.byID[quota][r] = now.Add(longest)
}

// end is that of a request. If it was given up, or took long, a write of it may come yet.
func (c *Charges) end(r *request, givenUp bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(r.charged) == 0 {
		return
	}
	if givenUp || time.Since(r.began) > prompt {
		time.AfterFunc(lingering, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.remove(r)
		})
		return
	}
	c.remove(r)
}

// remove forgets a request. Callers hold mu.
func (c *Charges) remove(r *request) {
	for _, quota := range r.charged {
		delete(c.byID[quota], r)
		if len(c.byID[quota]) == 0 {
			delete(c.byID, quota)
		}
	}
}

// InFlight says whether charges of a ResourceQuota are.
func (c *Charges) InFlight(quota client.Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for r, until := range c.byID[quota] {
		if now.Before(until) {
			return true
		}
		delete(c.byID[quota], r)
	}
	if len(c.byID[quota]) == 0 {
		delete(c.byID, quota)
	}
	return false
}
