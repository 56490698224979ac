package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
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
