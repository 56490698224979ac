package server

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// probe asks something that costs, for whoever wants to know: not more often than every so long, and once for all who ask
// meanwhile. Nobody need be known to ask for health.
type probe struct {
	ask   func(context.Context) error
	every time.Duration
	clock clock.PassiveClock

	mu     sync.Mutex // guards what follows
	latest *answered
}

// answered is one asking. done is closed when err is set.
type answered struct {
	began time.Time
	done  chan struct{}
	err   error
}

func newProbe(every time.Duration, clock clock.PassiveClock, ask func(context.Context) error) *probe {
	return &probe{ask: ask, every: every, clock: clock}
}

// check returns the newest answer: of what was asked less than every ago, or is being asked. It waits for it until ctx ends;
// who asked first does not end it for the others by going away.
func (p *probe) check(ctx context.Context) error {
	p.mu.Lock()
	now := p.clock.Now()
	if p.latest == nil || p.latest.isDone() && now.Sub(p.latest.began) >= p.every {
		a := &answered{began: now, done: make(chan struct{})}
		p.latest = a
		go func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), etcdPatience)
			defer cancel()
			defer close(a.done)
			a.err = p.ask(ctx)
		}()
	}
	a := p.latest
	p.mu.Unlock()
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (a *answered) isDone() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}
