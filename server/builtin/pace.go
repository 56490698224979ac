package builtin

import (
	"sync"

	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

// pacedMirrors is how many mirrors a pace remembers.
const pacedMirrors = 4096

// pace bounds how often something is done for the same key, such as a mirror: so many at once, and so many a second after that. What is
// forgotten begins anew.
type pace struct {
	perSecond float32
	burst     int
	clock     clock.PassiveClock
	mu        sync.Mutex // guards that there is one of a key
	of        *lru.Cache // of flowcontrol.PassiveRateLimiter, by key
}

func newPace(clk clock.PassiveClock, remembered int, perSecond float32, burst int) *pace {
	return &pace{perSecond: perSecond, burst: burst, clock: clk, of: lru.New(remembered)}
}

func (p *pace) take(key any) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.of.Get(key)
	if !ok {
		known = flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(p.perSecond, p.burst, p.clock)
		p.of.Add(key, known)
	}
	return known.(flowcontrol.PassiveRateLimiter).TryAccept()
}
