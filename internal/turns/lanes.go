package turns

import (
	"container/list"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// LaneRules say how what is in one lane follows each other.
type LaneRules struct {
	// AtOnce is how many of a lane go on at once at most.
	AtOnce int
	// Apart is how far apart they begin at least.
	Apart time.Duration
	// Pause is how many times as long as one has worked those of its lane that are to come wait for it; of what it has worked MostWorked counts.
	Pause      time.Duration
	MostWorked time.Duration
}

// Lanes have what is to be done of somebody, who is called L, follow each other, so that however much there is of it, or however long it takes, it does
// not take all of the server. What is to be done is called K, and comes again for as long as it waits. Of whom there is nothing to be done nothing is kept for long.
type Lanes[L, K comparable] struct {
	rules LaneRules
	clock clock.PassiveClock

	mu sync.Mutex // guards what follows
	of map[L]*list.Element
	// order has the lanes, in which they are looked at whether anybody needs them.
	order *list.List
}

// lane is there as long as something of it goes on or waits, or would have to.
type lane[L, K comparable] struct {
	of    L
	free  time.Time // when another may begin
	going int       // that have begun and not ended
	// waits are those that are to come, and when, if nothing had delayed the lane; late is by how much it was, since some have worked for long, or as many went on as may.
	waits map[K]time.Time
	late  time.Duration
}

// NewLanes returns lanes of which nothing is known.
func NewLanes[L, K comparable](clk clock.PassiveClock, rules LaneRules) *Lanes[L, K] {
	return &Lanes[L, K]{rules: rules, clock: clk, of: map[L]*list.Element{}, order: list.New()}
}

// Turn says how long a key has to wait for others of its lane, 0 for not at all: it has begun, and Done says when it has ended. Who asks before its turn waits for what is left of it. Who has waited
// waits no more, unless as many go on as may. Whoever is told to wait asks again then, or gives its place up (Leave).
func (l *Lanes[L, K]) Turn(of L, key K) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	l.tidy(now)
	own := l.lane(of)
	if own == nil {
		own = &lane[L, K]{of: of, free: now, waits: map[K]time.Time{}}
		l.of[of] = l.order.PushBack(own)
	}
	at, waits := own.waits[key]
	if waits {
		at = at.Add(own.late)
	} else {
		at = own.next(now, l.rules.Apart)
	}
	if !at.After(now) && own.going < l.rules.AtOnce {
		delete(own.waits, key)
		own.going++
		return 0
	}
	own.waits[key] = at.Add(-own.late)
	if !at.After(now) { // until one ends it keeps its place, and so do those after it
		own.delay(l.rules.Apart)
		return l.rules.Apart
	}
	return at.Sub(now)
}

// Leave says that a key that waits will not ask again.
func (l *Lanes[L, K]) Leave(of L, key K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if own := l.lane(of); own != nil {
		delete(own.waits, key)
	}
}

// Done says that one has ended that had its turn, and how long it has worked, for which those that are to come wait longer.
func (l *Lanes[L, K]) Done(of L, worked time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.lane(of) // it is kept while something of it goes on
	own.going--
	if now := l.clock.Now(); own.free.Before(now) {
		own.free = now
	}
	own.delay(max(0, l.rules.Pause*min(worked, l.rules.MostWorked)-l.rules.Apart)) // its place was for so long already
}

// Going is how many of a lane have begun and not ended.
func (l *Lanes[L, K]) Going(of L) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if own := l.lane(of); own != nil {
		return own.going
	}
	return 0
}

// Len is how many lanes are kept.
func (l *Lanes[L, K]) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.of)
}

func (l *Lanes[L, K]) lane(of L) *lane[L, K] {
	if e, ok := l.of[of]; ok {
		return e.Value.(*lane[L, K])
	}
	return nil
}

// tidy looks at two lanes whether anybody needs them, the longest not looked at: there are never many more than are needed, and nobody looks at all of them.
func (l *Lanes[L, K]) tidy(now time.Time) {
	for range min(2, l.order.Len()) {
		e := l.order.Front()
		own := e.Value.(*lane[L, K])
		if len(own.waits) > 0 || own.going > 0 || own.free.After(now) {
			l.order.MoveToBack(e)
			continue
		}
		l.order.Remove(e)
		delete(l.of, own.of)
	}
}

// next takes the next place.
func (l *lane[L, K]) next(now time.Time, apart time.Duration) time.Time {
	at := l.free
	if at.Before(now) {
		at = now
	}
	l.free = at.Add(apart)
	return at
}

// delay has all that wait, and all that come, wait longer, in their order.
func (l *lane[L, K]) delay(by time.Duration) { l.free, l.late = l.free.Add(by), l.late+by }
