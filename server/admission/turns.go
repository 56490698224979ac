package admission

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// maxWaiting is how many requests wait for their turn in one namespace. Each holds one of the requests that the server
// handles at a time, which are everybody's.
const maxWaiting = 100

// turns are locks by namespace and logical cluster, which keep requests of one process from conflicting; other processes
// are kept out by the resourceVersion. There are those that somebody holds or waits for.
type turns struct {
	mu    sync.Mutex // guards the map and the counts in it
	taken map[string]*turn
}

type turn struct {
	free  chan struct{} // holds one value while nobody has the turn
	users int           // who has it and who waits
}

// take waits for one's turn until ctx ends, and returns what ends it. An error is a TooManyRequests: nothing has been done.
func (t *turns) take(ctx context.Context, key, namespace string) (end func(), err error) {
	mine, ok := t.queue(key)
	if !ok {
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("%d requests wait for the ResourceQuotas of namespace %q already", maxWaiting, namespace), 1)
	}
	select {
	case <-mine.free:
		return func() {
			mine.free <- struct{}{}
			t.leave(key, mine)
		}, nil
	case <-ctx.Done():
		t.leave(key, mine)
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("the ResourceQuotas of namespace %q were busy with other requests: %v", namespace, context.Cause(ctx)), 1)
	}
}

// queue returns the turn of a key, which leave is to be told of, and false if too many wait for it.
func (t *turns) queue(key string) (*turn, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	mine := t.taken[key]
	if mine == nil {
		if t.taken == nil {
			t.taken = map[string]*turn{}
		}
		mine = &turn{free: make(chan struct{}, 1)}
		mine.free <- struct{}{}
		t.taken[key] = mine
	}
	if mine.users > maxWaiting {
		return nil, false
	}
	mine.users++
	return mine, true
}

func (t *turns) leave(key string, mine *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if mine.users--; mine.users == 0 {
		delete(t.taken, key)
	}
}
