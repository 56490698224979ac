package admission

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	lc "github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"atoll.dev/atoll/server/webhooks"
)

// What the server's own controllers write passes the webhooks of its workspace as what kube-controller-manager writes passes
// those of its cluster. But they are workers that all workspaces share, four of some kinds: who waits for a webhook that hangs
// cannot work for anybody else. So few of them call webhooks at once, and all but one of these for a second at most; the others,
// and those that take longer, come back later. Who takes longer waits among his like then: nobody who answers soon waits for him.
const (
	// maxQuickCalls is how many there are at once to workspaces that are known to answer soon, maxFirstCalls to those of which
	// nothing is known, and maxSlowCalls to those that did not answer soon; one to each workspace. None takes a turn of another
	// class.
	maxQuickCalls = 2
	maxFirstCalls = 1
	maxSlowCalls  = 1
	// soon is within what a call has to be done. It ends then, but for those to workspaces that are slow.
	soon = time.Second
	// slowFor is how long a workspace is slow at least that was not done so soon: twice as long each time, up to mostSlowFor, and in
	// any case until a call to it is. So who answers soon for once, to hang again, does that ever less often.
	slowFor     = time.Minute
	mostSlowFor = time.Hour
	// pauseTimes is how many times as long as a call took the next one to its workspace waits, for the last turn of its class, where
	// others were refused one within wantedFor, and longTimes how many times more what it took beyond half of turnWithin: who waits
	// for a turn is there when such a call ends, but not when one of nearly a second does, and a dozen of these, paused as little as
	// others, would have a turn for good. All who want one have asked again by then: a queue tries after 30 s at most.
	pauseTimes = 10
	longTimes  = 100
	wantedFor  = time.Minute
	// maxKnown is of how many workspaces it is known, some 100 bytes of each.
	maxKnown = 10_000
	// turnWithin is how long one more waits for its turn. A webhook that works answers sooner.
	turnWithin = 50 * time.Millisecond
)

var (
	errTooManyOwnCalls = errors.New("too many requests of the server itself wait for admission webhooks, of this workspace or of others: it tries again")
	errLateOwnCall     = fmt.Errorf("the admission webhooks of the workspace take longer than %s: the server itself tries again in turn with others that do", soon)
)

// class is what is known of how soon the webhooks of a logical cluster answer.
type class int

const (
	first class = iota // nothing
	quick
	slow
	nClasses
)

var mostOf = [nClasses]int{first: maxFirstCalls, quick: maxQuickCalls, slow: maxSlowCalls}

// ownCalls counts the server's own requests that are with webhooks.
type ownCalls struct {
	soon time.Duration // the constant, but in tests

	mu     sync.Mutex // guards what follows
	going  [nClasses]int
	of     map[lc.Name]bool
	wanted [nClasses]time.Time // when somebody last found that others had all turns
	known  map[lc.Name]pace
	freed  chan struct{} // closed and replaced when one is done
}

// pace is how a logical cluster was called before.
type pace struct {
	class
	rests  time.Time // until when others come first
	until  time.Time // when one that is done soon makes it quick; of one that is, when it could be
	yields time.Time // until when, from then on, those come first that were slow once
	last   time.Duration
}

func newOwnCalls() *ownCalls {
	return &ownCalls{soon: soon, of: map[lc.Name]bool{}, known: map[lc.Name]pace{}, freed: make(chan struct{})}
}

// with runs a phase of a request that may call webhooks of a logical cluster. It takes a turn before the first call, and none
// where there is nothing to call. What has no turn, or takes too long for it, is refused, whatever the webhooks' failure policies
// say: they are asked when it is tried again.
func (o *ownCalls) with(ctx context.Context, cluster lc.Name, phase func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := &ownPhase{calls: o, cluster: cluster, cancel: cancel}
	defer func() { _ = p.end() }() // it may panic
	err := phase(webhooks.WithTurn(ctx, func() error { return p.turn(ctx) }))
	switch why := p.end(); {
	case errors.Is(why, errTooManyOwnCalls), errors.Is(why, errLateOwnCall):
		return apierrors.NewTooManyRequests(why.Error(), 0) // a time would have its client sleep, in a worker that all workspaces share
	case why != nil:
		return apierrors.NewInternalError(why)
	}
	return atOnce(err)
}

// atOnce is a refusal without the time after which its webhook wants to be asked again: client-go would sleep for so long, ten times, in
// a worker that all workspaces share. When it is tried again says its queue.
func atOnce(err error) error {
	var refused *apierrors.StatusError
	if !errors.As(err, &refused) || refused.ErrStatus.Details == nil || refused.ErrStatus.Details.RetryAfterSeconds == 0 {
		return err
	}
	status := refused.ErrStatus.DeepCopy()
	status.Details.RetryAfterSeconds = 0
	return &apierrors.StatusError{ErrStatus: *status}
}

// ownPhase is a phase of one of the server's own requests: its calls have one turn together.
type ownPhase struct {
	calls   *ownCalls
	cluster lc.Name
	cancel  func()

	mu    sync.Mutex // guards what follows; held while the turn is waited for
	asked bool
	call  *ownCall
	late  *time.Timer // nil for one that may take longer
	err   error       // that it has no turn, or no longer
}

// turn waits for the turn of the phase, if it has none yet.
func (p *ownPhase) turn(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked {
		return p.err
	}
	p.asked = true
	if p.call, p.err = p.calls.begin(ctx, p.cluster); p.err == nil && p.call.class != slow {
		p.late = time.AfterFunc(p.calls.soon, p.cancel)
	}
	return p.err
}

// end gives the turn back, and says why there was none, or why it ended.
func (p *ownPhase) end() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = true
	if p.call != nil {
		if p.late != nil && !p.late.Stop() {
			p.err = errLateOwnCall
		}
		p.calls.end(p.call)
		p.call = nil
	}
	return p.err
}

// ownCall is one that goes on.
type ownCall struct {
	class
	cluster lc.Name
	began   time.Time
}

// begin waits for a turn.
func (o *ownCalls) begin(ctx context.Context, cluster lc.Name) (*ownCall, error) {
	var late <-chan time.Time
	for {
		call, freed := o.try(cluster)
		if call != nil {
			return call, nil
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
func (o *ownCalls) try(cluster lc.Name) (_ *ownCall, freed <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now, is := time.Now(), o.known[cluster]
	class, rests := is.class, is.rests
	if class == slow && !now.Before(is.until) {
		// It may be quick again: that is found out in a second, so that it waits for none of those that hang.
		class, rests = first, is.yields
	}
	switch free := mostOf[class] - o.going[class]; {
	case o.of[cluster]:
		return nil, o.freed
	case free == 0:
		o.wanted[class] = now
		return nil, o.freed
	case free == 1 && now.Before(rests) && now.Sub(o.wanted[class]) < wantedFor:
		return nil, o.freed
	}
	o.going[class]++
	o.of[cluster] = true
	return &ownCall{class, cluster, now}, nil
}

func (o *ownCalls) end(c *ownCall) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.going[c.class]--
	delete(o.of, c.cluster)
	o.learn(c.cluster, time.Since(c.began))
	close(o.freed)
	o.freed = make(chan struct{})
}

// pauseAfter is how long a logical cluster comes after others when a call to it took so long. Those that take longer than soon
// are among their like.
func (o *ownCalls) pauseAfter(took time.Duration) time.Duration {
	pause := pauseTimes * took
	if took < o.soon {
		pause += longTimes * max(0, took-turnWithin/2)
	}
	return pause
}

// learn remembers how soon a logical cluster answers. The lock is held.
func (o *ownCalls) learn(cluster lc.Name, took time.Duration) {
	is, known := o.known[cluster]
	if !known && len(o.known) >= maxKnown {
		for other := range o.known { // of which nothing is known then: its next call ends in time
			delete(o.known, other)
			break
		}
	}
	now := time.Now()
	is.rests = now.Add(o.pauseAfter(took))
	switch {
	case took >= o.soon:
		if is.class != slow && now.Sub(is.until) > mostSlowFor {
			is.last = 0
		}
		is.last = min(max(2*is.last, slowFor), mostSlowFor)
		is.class, is.until = slow, now.Add(is.last)
		is.yields = is.until.Add(is.last - slowFor)
	case is.class != slow || !now.Before(is.until):
		is.class = quick
	}
	o.known[cluster] = is
}
