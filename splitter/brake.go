package splitter

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// brakeWindow is how long a leaf is kept that nobody was seen to give up, and the time over which such leaves are
	// counted.
	brakeWindow = time.Minute
	// brakeLeast is how many such leaves never freeze a mirror; brakePercent of its leaves do not either.
	brakeLeast   = 20
	brakePercent = 10
)

// Brake decides whether leaves may be deleted that nobody was seen to give up. Such a leaf misses its root, which was
// found missing rather than seen deleted: a hub that was restored from an older state, or a list that lost objects, looks
// just like that. Or it misses a place: no cluster is left for its root, and nobody wished that; a slip in a policy
// looks just like that. Such a leaf is kept for a minute; if more than max(20, 10 %) of a mirror's leaves come together
// in a minute, the mirror is frozen and none of its leaves is deleted, for whatever reason, until an administrator
// confirms. It remembers in memory: after a restart, minutes count anew, and Freeze tells it of mirrors that were frozen.
type Brake struct {
	clock clock.PassiveClock

	mu      sync.Mutex // guards mirrors
	mirrors map[string]*brakeState
}

type brakeState struct {
	frozen bool
	// confirmed are leaves that an administrator agreed to delete.
	confirmed map[string]bool
	// missing holds leaves by the time they were first seen without root or place.
	missing map[string]time.Time
}

// NewBrake returns a Brake that has seen nothing.
func NewBrake(c clock.PassiveClock) *Brake {
	return &Brake{clock: c, mirrors: map[string]*brakeState{}}
}

// Missing says whether a leaf (any unique string) may be deleted that misses its root or a place; if not, ask again after
// the time returned, or when the mirror is not frozen any more if that is 0. Leaves counts the leaves in the mirror.
func (b *Brake) Missing(mirror, leaf string, leaves func() int) (ok bool, again time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.state(mirror)
	if s.confirmed[leaf] && !s.frozen {
		return true, 0
	}
	now := b.clock.Now()
	first, seen := s.missing[leaf]
	if !seen {
		first = now
		s.missing[leaf] = now
	}
	if s.frozen {
		return false, 0
	}
	// Each new one counts those of the minute before it, so a burst is noticed before its first leaf may go.
	recent := 0
	for _, t := range s.missing {
		if now.Sub(t) < brakeWindow {
			recent++
		}
	}
	if recent > brakeLeast && recent > leaves()*brakePercent/100 {
		s.frozen = true
		return false, 0
	}
	if wait := brakeWindow - now.Sub(first); wait > 0 {
		return false, wait
	}
	return true, 0
}

// Forget is called when a leaf is gone or misses nothing any more. A leaf that is still being deleted is not forgotten: it
// would be missed, and counted, anew.
func (b *Brake) Forget(mirror, leaf string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s, ok := b.mirrors[mirror]; ok {
		delete(s.missing, leaf)
		delete(s.confirmed, leaf)
		if !s.frozen && len(s.missing) == 0 && len(s.confirmed) == 0 {
			delete(b.mirrors, mirror)
		}
	}
}

// Frozen says whether no leaf of the mirror may be deleted, and how many miss their root or a place.
func (b *Brake) Frozen(mirror string) (frozen bool, missing int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s, ok := b.mirrors[mirror]; ok {
		return s.frozen, len(s.missing)
	}
	return false, 0
}

// Freeze freezes a mirror.
func (b *Brake) Freeze(mirror string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state(mirror).frozen = true
}

// Confirm ends a freeze: what missed its root or a place until now may be deleted.
func (b *Brake) Confirm(mirror string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.state(mirror)
	s.frozen = false
	for leaf := range s.missing {
		s.confirmed[leaf] = true
	}
	s.missing = map[string]time.Time{}
}

func (b *Brake) state(mirror string) *brakeState {
	s, ok := b.mirrors[mirror]
	if !ok {
		s = &brakeState{confirmed: map[string]bool{}, missing: map[string]time.Time{}}
		b.mirrors[mirror] = s
	}
	return s
}
