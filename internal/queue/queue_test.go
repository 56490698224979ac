package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// Whatever an error says, a key is tried again as long as the controller lives.
func TestFailuresAreTriedAgain(t *testing.T) {
	for _, tc := range []struct {
		reason string
		err    error
	}{
		{"any error", errors.New("broken")},
		{"a request that was cancelled for reasons of its own", fmt.Errorf("read: %w", context.Canceled)},
		{"a request that took too long", fmt.Errorf("read: %w", context.DeadlineExceeded)},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			defer running.Wait()
			defer cancel()
			calls, again := 0, make(chan struct{})
			q := New("test", func(context.Context, string) (time.Duration, error) {
				if calls++; calls == 1 { // one call for a key at a time
					return 0, tc.err
				}
				close(again)
				return 0, nil
			})
			q.Add("key")
			running.Go(func() { q.Run(ctx, 1) })
			select {
			case <-again:
			case <-time.After(20 * time.Second):
				t.Fatal("called once in 20 s, want again")
			}
		})
	}
}

// However far away the time of a key is, it is asked within the hour whether it still has one: keys of objects that are gone
// are not kept for as long as their tenants say.
func TestNoKeyWaitsForLong(t *testing.T) {
	const years = 68 * 365 * 24 * time.Hour
	for _, tc := range []struct {
		reason string
		add    func(q *Queue[string])
		calls  int // before the key waits
	}{
		{"a key that is to wait", func(q *Queue[string]) { q.AddAfter("key", years) }, 0},
		{"a key that waits again", func(q *Queue[string]) { q.Add("key") }, 1},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			defer running.Wait()
			defer cancel()
			clk := clocktesting.NewFakeClock(time.Now())
			calls := make(chan struct{}, 10)
			q := NewWithClock("test", clk, func(context.Context, string) (time.Duration, error) {
				calls <- struct{}{}
				return years, nil
			})
			called := func(when string) {
				t.Helper()
				select {
				case <-calls:
				case <-time.After(20 * time.Second):
					t.Fatalf("%s not called in 20 s", when)
				}
			}
			always := clk.Waiters() // the queue's own timers
			tc.add(q)
			running.Go(func() { q.Run(ctx, 1) })
			for range tc.calls {
				called("at first")
			}
			for hour := range 3 {
				for end := time.Now().Add(20 * time.Second); clk.Waiters() <= always; {
					if time.Now().After(end) {
						t.Fatalf("hour %d: %d timers after 20 s, want one for the key beside %d", hour, clk.Waiters(), always)
					}
					<-time.After(time.Millisecond)
				}
				clk.Step(longest)
				called(fmt.Sprintf("after %d hours", hour+1))
			}
		})
	}
}

type tenantsKey struct{ tenant, name string }

func (k tenantsKey) Tenant() string { return k.tenant }

// A tenant with many keys, some of which come again at once, holds up nobody else.
func TestTenantsTakeTurns(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var got []string
	var q *Queue[tenantsKey]
	q = New("test", func(_ context.Context, key tenantsKey) (time.Duration, error) {
		got = append(got, key.tenant+key.name)
		if key.name == "again" && len(got) < 8 {
			q.Add(key)
		}
		if q.Len() == 0 {
			cancel()
		}
		return 0, nil
	})
	for _, key := range []tenantsKey{{"a", "1"}, {"a", "2"}, {"a", "again"}, {"a", "3"}, {"b", "1"}, {"c", "1"}, {"c", "2"}} {
		q.Add(key)
	}
	q.Run(ctx, 1)
	if want := []string{"a1", "b1", "c1", "a2", "c2", "aagain", "a3", "aagain"}; !slices.Equal(got, want) {
		t.Errorf("handled %v, want %v", got, want)
	}
}

// TestLater: a key whose turn has not come is asked then, and what has failed before that still counts.
func TestLater(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	var q *Queue[string]
	var failures []int
	answers := []error{errors.New("broken"), Later(time.Millisecond), fmt.Errorf("broken as well"), fmt.Errorf("asked by another: %w", Later(time.Millisecond)), nil, nil}
	done := make(chan struct{})
	q = New("test", func(context.Context, string) (time.Duration, error) {
		failures = append(failures, q.keys.NumRequeues("key"))
		err := answers[len(failures)-1]
		if len(failures) == len(answers) {
			close(done)
			return 0, nil
		}
		if err == nil {
			return time.Millisecond, nil
		}
		return 0, err
	})
	q.Add("key")
	running.Go(func() { q.Run(ctx, 1) })
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("it is not asked again within 20 s")
	}
	if want := []int{0, 1, 1, 2, 2, 0}; !slices.Equal(failures, want) {
		t.Errorf("failures that count each time: %v, want %v", failures, want)
	}
}
