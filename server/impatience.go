package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// stallLimit is how long a client may take nothing of its backup or export: the store's file grows while it waits for a
// backup, as nothing in it can be used again. It is also how long one may send nothing of its import.
const stallLimit = time.Minute

var errStopping = errors.New("the server stops")

// impatience limits how long a connection waits for its client.
type impatience struct {
	mu   sync.Mutex // guards what follows
	set  func(deadline time.Time) error
	over bool
}

// extend gives the client another stallLimit.
func (i *impatience) extend() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.over {
		return errStopping
	}
	if err := i.set(time.Now().Add(stallLimit)); err != nil {
		return fmt.Errorf("set a limit of time: %w", err)
	}
	return nil
}

// end ends what waits for the client, and refuses to wait again.
func (i *impatience) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.over = true
	_ = i.set(time.Now()) // extend has told if this is not possible
}

// lift takes the limit off.
func (i *impatience) lift() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.over {
		_ = i.set(time.Time{}) // extend has told if this is not possible
	}
}

// untilStop ends what waits for a client when the server stops, and the context that it returns with errStopping. Whoever calls
// it defers done, after which nothing touches the connection any more.
func (s *Server) untilStop(parent context.Context, end func()) (ctx context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(parent)
	ended := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-s.stopping:
			cancel(errStopping)
			end()
		case <-ended:
		}
	})
	return ctx, func() {
		close(ended)
		watching.Wait()
		cancel(nil)
	}
}

// impatientWriter gives up on a client that takes nothing for stallLimit.
type impatientWriter struct {
	http.ResponseWriter
	impatience
	written int64
}

func newImpatientWriter(w http.ResponseWriter) *impatientWriter {
	return &impatientWriter{ResponseWriter: w, impatience: impatience{set: http.NewResponseController(w).SetWriteDeadline}}
}

func (w *impatientWriter) Write(p []byte) (int, error) {
	if err := w.extend(); err != nil {
		return 0, err
	}
	n, err := w.ResponseWriter.Write(p)
	w.written += int64(n)
	return n, err
}

// impatientReader gives up on a client that sends nothing for stallLimit.
type impatientReader struct {
	io.Reader
	impatience
}

func newImpatientReader(w http.ResponseWriter, req *http.Request) *impatientReader {
	return &impatientReader{Reader: req.Body, impatience: impatience{set: http.NewResponseController(w).SetReadDeadline}}
}

func (r *impatientReader) Read(p []byte) (int, error) {
	if err := r.extend(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}
