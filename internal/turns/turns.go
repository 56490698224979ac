// Package turns lets one at a time have what a key names, and a bounded number wait for it as long as their contexts last.
// What nobody has or waits for costs nothing.
//
// It holds within one process: what several processes share is kept apart by conditions on its writes.
package turns

import (
	"context"
	"errors"
	"sync"
)

// ErrTooMany is that of a key that too many have or wait for already.
var ErrTooMany = errors.New("too many wait already")

// Turns are locks by key.
type Turns[K comparable] struct {
	most int

	mu    sync.Mutex // guards what follows
	byKey map[K]*turn
}

// turn is there while somebody has it or waits for it.
type turn struct {
	taken chan struct{}
	users int // who has it and who waits
}

// New returns turns of which at most so many have one or wait for it.
func New[K comparable](most int) *Turns[K] {
	return &Turns[K]{most: most, byKey: map[K]*turn{}}
}

// Take waits for the turn of a key, and returns what ends it. The error is ErrTooMany, at once, or the cause that ctx ended for.
func (t *Turns[K]) Take(ctx context.Context, key K) (end func(), err error) {
	own, ok := t.enter(key)
	if !ok {
		return nil, ErrTooMany
	}
	select {
	case own.taken <- struct{}{}:
		return func() {
			<-own.taken
			t.leave(key, own)
		}, nil
	case <-ctx.Done():
		t.leave(key, own)
		return nil, context.Cause(ctx)
	}
}

// Len is the number of keys that somebody has or waits for.
func (t *Turns[K]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byKey)
}

// Few are turns of which one at a time is had of a key, and a few of all keys. So who waits, waits for the own key and for one turn of
// each other that somebody waits for, at most.
type Few[K comparable] struct {
	few chan struct{}
	own *Turns[K]
}

// NewFew returns turns of which few are had at once, and at most so many of a key have one or wait for it.
func NewFew[K comparable](few, most int) *Few[K] {
	return &Few[K]{few: make(chan struct{}, few), own: New[K](most)}
}

// Take is that of Turns.
func (f *Few[K]) Take(ctx context.Context, key K) (end func(), err error) {
	// Of the own key first: no more than one of it waits for the others.
	endOwn, err := f.own.Take(ctx, key)
	if err != nil {
		return nil, err
	}
	select {
	case f.few <- struct{}{}:
		return func() {
			<-f.few
			endOwn()
		}, nil
	case <-ctx.Done():
		endOwn()
		return nil, context.Cause(ctx)
	}
}

// Len is the number of keys that somebody has or waits for.
func (f *Few[K]) Len() int { return f.own.Len() }

// Had is how many turns somebody has.
func (f *Few[K]) Had() int { return len(f.few) }

func (t *Turns[K]) enter(key K) (*turn, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := t.byKey[key]
	if own == nil {
		own = &turn{taken: make(chan struct{}, 1)}
		t.byKey[key] = own
	}
	if own.users >= t.most {
		return nil, false
	}
	own.users++
	return own, true
}

func (t *Turns[K]) leave(key K, own *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if own.users--; own.users == 0 {
		delete(t.byKey, key)
	}
}
