package quota

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/atoll/client"
)

// TestChargesInFlight: a charge is in flight from before it is made until its request has ended, and longer if a write may come yet.
func TestChargesInFlight(t *testing.T) {
	q, other := client.Key{Cluster: "shop", Namespace: "ns", Name: "q"}, client.Key{Cluster: "bank", Namespace: "ns", Name: "q"}
	for name, test := range map[string]struct {
		reason string
		took   time.Duration // from the charge on
		gone   bool          // the client
		after  time.Duration // for which it is in flight, from the end of the request
	}{
		"done":        {reason: "what it wrote is there", took: prompt},
		"slow":        {reason: "etcd may have given up the write, and do it yet", took: prompt + time.Millisecond, after: lingering},
		"given up":    {reason: "nobody waits for the write", gone: true, after: lingering},
		"never ended": {reason: "its ResourceQuota would not be counted any more", took: longest, after: 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				charges := NewCharges()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				charges.Around(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
					time.Sleep(time.Hour) // it may take as long as it likes until it charges
					if charges.InFlight(q) {
						t.Error("in flight before the charge")
					}
					charges.Begin(req.Context(), q)
					charges.Begin(req.Context(), q) // a second attempt
					if !charges.InFlight(q) || charges.InFlight(other) {
						t.Errorf("in flight: %v, and of another workspace %v", charges.InFlight(q), charges.InFlight(other))
					}
					time.Sleep(test.took)
					if test.gone {
						cancel()
					}
				})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPost, "/", nil))
				if test.after > 0 {
					time.Sleep(test.after - time.Millisecond)
					if !charges.InFlight(q) {
						t.Errorf("not in flight just before %v after the request: %s", test.after, test.reason)
					}
					time.Sleep(2 * time.Millisecond)
				}
				if charges.InFlight(q) {
					t.Errorf("in flight %v after the request: %s", test.after, test.reason)
				}
				time.Sleep(lingering)
				synctest.Wait()
				if len(charges.byID) != 0 {
					t.Errorf("%v is kept", charges.byID)
				}
			})
		})
	}
}

// TestChargesOfNoRequest: what did not come through Around is not in flight for ever.
func TestChargesOfNoRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		charges, q := NewCharges(), client.Key{Cluster: "shop", Namespace: "ns", Name: "q"}
		charges.Begin(t.Context(), q)
		time.Sleep(longest - time.Millisecond)
		if !charges.InFlight(q) {
			t.Error("not in flight while its request may go on")
		}
		time.Sleep(2 * time.Millisecond)
		if charges.InFlight(q) || len(charges.byID) != 0 {
			t.Errorf("still in flight: %v", charges.byID)
		}
	})
}
