package fairness

import (
	"context"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

// writeFor is how long a watch is counted among those that write, from the first byte until it flushes, as it does after each event that
// has none behind it. Some twenty times what it takes to write one to a client that reads.
const writeFor = time.Millisecond

// writersOfWorkspace is how many watches of a workspace write at once: as many as keep half of the CPUs busy.
func writersOfWorkspace() int64 { return int64(max(1, cpus()/2)) }

// inTurn is the writer of a watch that writes its events in turn with the others of its workspace: from the first byte until they are
// flushed. A write wakes all that watch it. If hundreds ran at once, each step of what anybody else asks would wait behind all of them:
// goroutines run in the order in which they can, and while many can nobody looks whether the network has something.
//
// Who does not read holds up the others of his workspace for writeFor. A watch over a websocket has the connection for itself, and is not
// among them. Not safe for concurrent use, as what it is around.
type inTurn struct {
	http.ResponseWriter
	ctx     context.Context
	writers *semaphore.Weighted // of the workspace
	release func()              // nil when nothing is written that was not flushed
}

func newInTurn(ctx context.Context, w http.ResponseWriter, writers *semaphore.Weighted) http.ResponseWriter {
	return responsewriter.WrapForHTTP1Or2(&inTurn{ResponseWriter: w, ctx: ctx, writers: writers})
}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (w *inTurn) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements http.ResponseWriter.
func (w *inTurn) Write(p []byte) (int, error) {
	if w.release == nil {
		if err := w.writers.Acquire(w.ctx, 1); err != nil {
			return 0, err // the request has ended
		}
		release := sync.OnceFunc(func() { w.writers.Release(1) })
		over := time.AfterFunc(writeFor, release)
		w.release = func() {
			over.Stop()
			release()
		}
	}
	return w.ResponseWriter.Write(p)
}

// Flush implements http.Flusher.
func (w *inTurn) Flush() {
	if flusher, ok := w.ResponseWriter.(http.Flusher); ok {
		flusher.Flush()
	}
	if w.release != nil {
		w.release()
		w.release = nil
	}
}
