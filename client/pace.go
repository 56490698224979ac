package client

import (
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

// How long what is told of an object may wait, for it to be told with what follows.
const (
	// WhileSettling is for that everybody below has seen what was applied: what they do first follows within milliseconds.
	WhileSettling = 50 * time.Millisecond
	// WhileProgressing is for a step on the way: another pod that runs.
	WhileProgressing = time.Second
	// WhileNothing is for what counts the same as before, in other words.
	WhileNothing = 5 * time.Second
)

const (
	// paced is how many objects a Pace remembers. What is forgotten is written at once.
	paced = 16384
	// unseen is how long an informer is waited for that does not show what was written.
	unseen = time.Second
)

// Pace keeps a controller from writing every step of what goes on with an object, say a status while pods start: it says how
// long a write has to wait after the one before. The caller puts the object's key back into its queue for then, so the last
// step is written in any case, and what happens meanwhile is written with it.
type Pace[K comparable] struct {
	clock clock.PassiveClock
	last  *lru.Cache // K → write
}

// write is the last of an object, or what counts as one.
type write struct {
	at      time.Time
	version string
}

// NewPace returns a Pace that remembers nothing.
func NewPace[K comparable](clk clock.PassiveClock) *Pace[K] {
	return &Pace[K]{clk, lru.New(paced)}
}

// Wrote says that an object was written just now, and which resource version came of it; empty if something else was written
// whose effect on the object is to be waited for.
func (p *Pace[K]) Wrote(k K, version string) {
	w := write{p.clock.Now(), version}
	if before, ok := p.last.Get(k); ok && version == "" {
		w.version = before.(write).version
	}
	p.last.Add(k, w)
}

// Wait is how long to wait before an object is written that an informer shows in version, so that patience lies between
// that and its last write; 0 if it may be written now. While the informer does not show the last write, whose result would be a
// conflict, it is the time after which that is not believed any more.
func (p *Pace[K]) Wait(k K, version string, patience time.Duration) time.Duration {
	v, ok := p.last.Get(k)
	if !ok {
		return 0
	}
	last := v.(write)
	if order, err := resourceversion.CompareResourceVersion(version, last.version); err == nil && order < 0 {
		patience = max(patience, unseen)
	}
	since := p.clock.Since(last.at)
	if since < 0 { // the clock was turned back
		return 0
	}
	return max(0, patience-since)
}
