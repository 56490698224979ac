package server

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"
)

// TestProbe: however many ask, etcd is asked once a second, and everybody gets that answer.
func TestProbe(t *testing.T) {
	clock := testingclock.NewFakePassiveClock(time.Now())
	asked, answer := make(chan struct{}, 100), make(chan error)
	p := newProbe(time.Second, clock, func(context.Context) error {
		asked <- struct{}{}
		return <-answer
	})
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.check(impatient); !errors.Is(err, context.Canceled) {
		t.Errorf("who does not wait: %v", err)
	}
	away := errors.New("etcd is away")
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if err := p.check(t.Context()); !errors.Is(err, away) {
				t.Errorf("who asks meanwhile, or within the second: %v, want %v", err, away)
			}
		})
	}
	answer <- away
	all.Wait()
	if n := len(asked); n != 1 {
		t.Errorf("asked %d times, want 1", n)
	}
	clock.SetTime(clock.Now().Add(time.Second))
	all.Go(func() {
		if err := p.check(t.Context()); err != nil {
			t.Errorf("a second later: %v", err)
		}
	})
	answer <- nil
	all.Wait()
	if n := len(asked); n != 2 {
		t.Errorf("asked %d times, want 2", n)
	}
}
