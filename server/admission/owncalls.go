package admission

import (
	"context"
	"fmt"
	"sync"
	"time"

	lc "github.com/kcp-dev/logicalcluster/v3"
)

// What the server's own controllers write passes the webhooks of its workspace as what kube-controller-manager writes passes
// those of its cluster. But they are workers that all workspaces share, the fewest of one kind being eight: who waits for a
// webhook that hangs cannot work for anybody else. So few may wait at once, and the others come back later.
const (
	maxOwnCalls          = 6
	maxOwnCallsOfCluster = 3
	// turnWithin is how long one more waits for its turn. A webhook that works answers sooner.
	turnWithin = 50 * time.Millisecond
)

// ownCalls counts the server's own requests that are with webhooks.
type ownCalls struct {
	mu    sync.Mutex // guards what follows
	all   int
	of    map[lc.Name]int
	freed chan struct{} // closed and replaced when one is done
}

func newOwnCalls() *ownCalls { return &ownCalls{of: map[lc.Name]int{}, freed: make(chan struct{})} }

// begin lets a request go to webhooks; done is called after that.
func (o *ownCalls) begin(ctx context.Context, cluster lc.Name) (done func(), _ error) {
	var late <-chan time.Time
	for {
		o.mu.Lock()
		if o.all < maxOwnCalls && o.of[cluster] < maxOwnCallsOfCluster {
			o.all++
			o.of[cluster]++
			o.mu.Unlock()
			return func() { o.end(cluster) }, nil
		}
		freed := o.freed
		o.mu.Unlock()
		if late == nil {
			timer := time.NewTimer(turnWithin)
			defer timer.Stop()
			late = timer.C
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-late:
			return nil, fmt.Errorf("too many requests of the server itself wait for admission webhooks, of this workspace or of others: it tries again")
		}
	}
}

func (o *ownCalls) end(cluster lc.Name) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all--
	if o.of[cluster]--; o.of[cluster] == 0 {
		delete(o.of, cluster)
	}
	close(o.freed)
	o.freed = make(chan struct{})
}
