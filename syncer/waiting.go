package syncer

import "sync"

// waiting has the keys that could not be made right since a side is away. They are tried again after a back-off of up to a
// minute, or when that side is back. A key stays here while it is tried, so that one whose try ends too late is not missed.
type waiting struct {
	mu   sync.Mutex // guards keys
	keys map[key]struct{}
}

func (w *waiting) add(k key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.keys == nil {
		w.keys = map[key]struct{}{}
	}
	w.keys[k] = struct{}{}
}

func (w *waiting) remove(k key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.keys, k)
}

// take returns all keys and holds none of them any more.
func (w *waiting) take() map[key]struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	keys := w.keys
	w.keys = nil
	return keys
}

// retry tries what waits for a side that is back, without the rest of its back-off.
func (s *Syncer) retry() {
	for k := range s.waiting.take() {
		s.backoff.Forget(k)
		s.queue.Add(k)
	}
}
