package discovery

import (
	"context"
	"fmt"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// How many documents of OpenAPI are made at a time, for all logical clusters.
	makers = 2
	// How many requests of one logical cluster may make a document or wait to: each of them is one of those that the server
	// answers at a time for everybody.
	waiters = 50
)

// turns lets documents be made: one at a time for a logical cluster, however many it asks for, and a few for all. So who
// waits, waits for the own logical cluster and for one document of each other one that asks, at most.
type turns struct {
	makers  chan struct{}
	waiters int

	mu        sync.Mutex // guards what follows
	byCluster map[logicalcluster.Name]*turn
}

// turn is that of a logical cluster; it is there while requests want it.
type turn struct {
	taken  chan struct{}
	wanted int
}

func newTurns(makers, waiters int) *turns {
	return &turns{makers: make(chan struct{}, makers), waiters: waiters, byCluster: map[logicalcluster.Name]*turn{}}
}

// take waits for the turn of a logical cluster, as long as ctx lasts. Who has made the document calls done.
func (t *turns) take(ctx context.Context, cluster logicalcluster.Name) (done func(), err error) {
	own, ok := t.want(cluster)
	if !ok {
		return nil, apierrors.NewTooManyRequests("too many requests wait for the OpenAPI documents of this logical cluster", 1)
	}
	// Of the own logical cluster first: no more than one request of it waits for the others.
	select {
	case own.taken <- struct{}{}:
	case <-ctx.Done():
		t.unwant(cluster, own)
		return nil, outOfTime(ctx)
	}
	release := func() {
		<-own.taken
		t.unwant(cluster, own)
	}
	select {
	case t.makers <- struct{}{}:
	case <-ctx.Done():
		release()
		return nil, outOfTime(ctx)
	}
	return func() {
		<-t.makers
		release()
	}, nil
}

func outOfTime(ctx context.Context) error {
	return apierrors.NewTimeoutError(fmt.Sprintf("other OpenAPI documents are being made (%v)", context.Cause(ctx)), 1)
}

func (t *turns) want(cluster logicalcluster.Name) (*turn, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := t.byCluster[cluster]
	if own == nil {
		own = &turn{taken: make(chan struct{}, 1)}
		t.byCluster[cluster] = own
	}
	if own.wanted >= t.waiters {
		return nil, false
	}
	own.wanted++
	return own, true
}

func (t *turns) unwant(cluster logicalcluster.Name, own *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if own.wanted--; own.wanted == 0 {
		delete(t.byCluster, cluster)
	}
}
