package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/cli"
)

// The end of the time may interrupt a look, which then has seen nothing.
func TestAwaitedSaysWhatItSawLast(t *testing.T) {
	for name, seen := range map[string][]string{"waits for east": {"waits for east", ""}, "not answered": {""}} {
		// It may not be watched.
		closed := awaited{newFakeAtoll(t).hub, cli.Root, &tenancyv1alpha1.WorkspaceList{}, "shop"}
		err := closed.until(t.Context(), 2*rewatchAfter, func(ctx context.Context) (bool, string, error) {
			now := seen[0]
			if len(seen) > 1 {
				seen = seen[1:]
				return false, now, nil
			}
			<-ctx.Done()
			return false, now, fmt.Errorf("read it: %w", ctx.Err())
		})
		if err == nil || !strings.HasPrefix(err.Error(), "not within 1s: ") || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want one with %q", err, name)
		}
	}
}

// TestAwaitedLooksUponChanges: what has not changed is not asked for again.
func TestAwaitedLooksUponChanges(t *testing.T) {
	f := newFakeAtoll(t, "shop")
	f.watchable = true
	shop := awaited{f.hub, cli.Root, &tenancyv1alpha1.WorkspaceList{}, "shop"}
	var changes, looks atomic.Int64
	ctx, cancel := context.WithCancel(client.In(t.Context(), "root"))
	var changing sync.WaitGroup
	changing.Go(func() {
		for ctx.Err() == nil {
			w := &tenancyv1alpha1.Workspace{}
			if err := f.hub.Objects.Get(ctx, ctrlclient.ObjectKey{Name: "shop"}, w); err != nil {
				t.Error(err)
				return
			}
			w.Labels = map[string]string{"change": fmt.Sprint(changes.Add(1))}
			if err := f.hub.Objects.Update(ctx, w); err != nil {
				t.Error(err)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond): // many looks would fit in
			}
		}
	})
	err := shop.until(t.Context(), time.Minute, func(context.Context) (bool, string, error) {
		// One is the first; each other one is of a change.
		if n := looks.Add(1); changes.Load() < n-1 {
			t.Errorf("look %d after %d changes", n, changes.Load())
		}
		return looks.Load() == 5, "it is not done", nil
	})
	cancel()
	changing.Wait()
	if err != nil {
		t.Error(err)
	}
}
