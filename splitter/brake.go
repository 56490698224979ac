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
	// brakeRecount is how long a number of leaves is good: to count them takes a list of the mirror.
	brakeRecount = time.Second
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
	// missing holds leaves that were seen without root or place, order those of about the last minute as they came.
	missing map[string]*sighting
	order   []*sighting
	// recent counts the sightings that are.
	recent int
	// allowed is how many may be recent by the number of the mirror's leaves when they were counted.
	allowed int
	counted time.Time
}

// sighting is when a leaf was first seen without root or place.
type sighting struct {
	at     time.Time
	recent bool // less than brakeWindow ago, and still missing
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
		first = &sighting{at: now, recent: true}
		s.missing[leaf] = first
		s.order = append(s.order, first)
		s.recent++
	}
	if s.frozen {
		return false, 0
	}
	// Each new one counts those of the minute before it, so a burst is noticed before its first leaf may go.
	if s.isBurst(now, leaves) {
		s.frozen = true
		return false, 0
	}
	if wait := brakeWindow - now.Sub(first.at); wait > 0 {
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
		if first, ok := s.missing[leaf]; ok {
			s.pass(first)
		}
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
	s.missing, s.order, s.recent = map[string]*sighting{}, nil, 0
}

// isBurst says whether more leaves are missing since less than a minute than may be.
func (s *brakeState) isBurst(now time.Time, leaves func() int) bool {
	for len(s.order) > 0 && now.Sub(s.order[0].at) >= brakeWindow {
		s.pass(s.order[0])
		s.order = s.order[1:]
	}
	if s.recent <= brakeLeast {
		return false
	}
	if s.recent > s.allowed || now.Sub(s.counted) >= brakeRecount {
		s.allowed, s.counted = leaves()*brakePercent/100, now
	}
	return s.recent > s.allowed
}

// pass takes a sighting out of the count.
func (s *brakeState) pass(first *sighting) {
	if first.recent {
		first.recent = false
		s.recent--
	}
}

func (b *Brake) state(mirror string) *brakeState {
	s, ok := b.mirrors[mirror]
	if !ok {
		s = &brakeState{confirmed: map[string]bool{}, missing: map[string]*sighting{}}
		b.mirrors[mirror] = s
	}
	return s
}
