package admission

import (
	"context"
	"errors"
	"sync"
	"time"

	lc "github.com/kcp-dev/logicalcluster/v3"
)

// What the server's own controllers write passes the webhooks of its workspace as what kube-controller-manager writes passes
// those of its cluster. But they are workers that all workspaces share, four of some kinds: who waits for a webhook that hangs
// cannot work for anybody else. So fewer than that may wait at once, and the others come back later. Of those few, some are
// for workspaces whose webhooks are known to answer soon: others could have all of them for as long as they like.
const (
	maxOwnCalls = 3
	// maxUnprovenCalls is how many of them may be to workspaces that are not known to answer soon, one to each.
	maxUnprovenCalls = 2
	// maxOwnCallsOfCluster is how many of them may be to one that is.
	maxOwnCallsOfCluster = 2
	// soon is within what a call has to be done to count for its workspace, and slowFor how long one counts against it that
	// was not.
	soon    = time.Second
	slowFor = time.Minute
	// maxKnown is of how many workspaces it is known.
	maxKnown = 1000
	// turnWithin is how long one more waits for its turn. A webhook that works answers sooner.
	turnWithin = 50 * time.Millisecond
)

var errTooManyOwnCalls = errors.New("too many requests of the server itself wait for admission webhooks, of this workspace or of others: it tries again")

// ownCalls counts the server's own requests that are with webhooks.
type ownCalls struct {
	mu       sync.Mutex // guards what follows
	all      int
	unproven int // those that began when their logical cluster was not known to answer soon
	of       map[lc.Name]int
	// soonFrom is since when a logical cluster is known to answer soon, or from when on it may be.
	soonFrom map[lc.Name]time.Time
	freed    chan struct{} // closed and replaced when one is done
}

func newOwnCalls() *ownCalls {
	return &ownCalls{of: map[lc.Name]int{}, soonFrom: map[lc.Name]time.Time{}, freed: make(chan struct{})}
}

// begin lets a request go to webhooks; done is called after that.
func (o *ownCalls) begin(ctx context.Context, cluster lc.Name) (done func(), _ error) {
	var late <-chan time.Time
	for {
		done, freed := o.try(cluster)
		if done != nil {
			return done, nil
		}
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
			return nil, errTooManyOwnCalls
		}
	}
}

// try returns what begin does, or nil and what tells when to try again.
func (o *ownCalls) try(cluster lc.Name) (done func(), freed <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	began := time.Now()
	from, known := o.soonFrom[cluster]
	proven, most := known && !began.Before(from), maxOwnCallsOfCluster
	if !proven {
		most = 1
	}
	if o.all >= maxOwnCalls || o.of[cluster] >= most || !proven && o.unproven >= maxUnprovenCalls {
		return nil, o.freed
	}
	o.all++
	o.of[cluster]++
	if !proven {
		o.unproven++
	}
	return func() { o.end(cluster, proven, time.Since(began)) }, nil
}

func (o *ownCalls) end(cluster lc.Name, proven bool, took time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all--
	if o.of[cluster]--; o.of[cluster] == 0 {
		delete(o.of, cluster)
	}
	if !proven {
		o.unproven--
	}
	o.learn(cluster, took)
	close(o.freed)
	o.freed = make(chan struct{})
}

// learn remembers how soon a logical cluster answers. The lock is held.
func (o *ownCalls) learn(cluster lc.Name, took time.Duration) {
	_, known := o.soonFrom[cluster]
	if !known && len(o.soonFrom) >= maxKnown {
		for any := range o.soonFrom { // of which nothing is known then: its next call proves itself
			delete(o.soonFrom, any)
			break
		}
	}
	if took > soon {
		o.soonFrom[cluster] = time.Now().Add(slowFor)
	} else if !known {
		o.soonFrom[cluster] = time.Now()
	}
}
