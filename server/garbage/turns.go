package garbage

import (
	"context"
	"sync"
	"time"

	"atoll.dev/atoll/internal/queue"
)

// most is how many items are handled together, so that no key's turn takes long, and what was read for the first of them is
// not old when it comes to the last.
const most = 1000

// turns collects items by key and has those of one key handled together, one call per key at a time and the keys in turn, so
// that one with many items holds up none of the others. What is added while its key is handled is handled in the next call.
type turns[K, I comparable] struct {
	keys *queue.Queue[K]

	mu    sync.Mutex
	items map[K]map[I]struct{}
}

// handleFunc handles items, and returns those that are to be handled again: together with what is new, after the returned
// time, or after a back-off if it returns an error.
type handleFunc[K, I comparable] func(ctx context.Context, key K, items []I) (left []I, again time.Duration, err error)

// newTurns returns turns without items; name appears in logs and metrics.
func newTurns[K, I comparable](name string, handle handleFunc[K, I]) *turns[K, I] {
	t := &turns[K, I]{items: map[K]map[I]struct{}{}}
	t.keys = queue.New(name, func(ctx context.Context, key K) (time.Duration, error) {
		items, more := t.take(key)
		if len(items) == 0 {
			return 0, nil
		}
		left, again, err := handle(ctx, key, items)
		t.put(key, left)
		if more && len(left) < len(items) {
			t.keys.Add(key) // behind the other keys; without progress the rest waits like what was tried
		}
		return again, err
	})
	return t
}

func (t *turns[K, I]) add(key K, item I) {
	t.put(key, []I{item})
	t.keys.Add(key)
}

// addAfter adds an item whose key's turn comes then: with what is added meanwhile.
func (t *turns[K, I]) addAfter(key K, item I, then time.Duration) {
	t.put(key, []I{item})
	t.keys.AddAfter(key, then)
}

func (t *turns[K, I]) put(key K, items []I) {
	if len(items) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.items[key] == nil {
		t.items[key] = map[I]struct{}{}
	}
	for _, item := range items {
		t.items[key][item] = struct{}{}
	}
}

// take returns items to handle now, and whether there are more.
func (t *turns[K, I]) take(key K) (items []I, more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for item := range t.items[key] {
		if len(items) == most {
			return items, true
		}
		items = append(items, item)
		delete(t.items[key], item)
	}
	delete(t.items, key)
	return items, false
}

// run handles items with that many workers until ctx ends; stop ends what turns have running even if they are never run.
func (t *turns[K, I]) run(ctx context.Context, workers int) { t.keys.Run(ctx, workers) }

func (t *turns[K, I]) stop() { t.keys.Stop() }
