package fairness

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/util/flowcontrol"
)

// slowWriter takes its time for each write, as the client at its end does.
type slowWriter struct {
	*httptest.ResponseRecorder
	takes time.Duration
	busy  *atomic.Int64 // writers that are
	most  *atomic.Int64 // that were at once
}

func (w *slowWriter) Write(p []byte) (int, error) {
	n := w.busy.Add(1)
	defer w.busy.Add(-1)
	for most := w.most.Load(); n > most && !w.most.CompareAndSwap(most, n); most = w.most.Load() {
	}
	time.Sleep(w.takes)
	return w.ResponseRecorder.Write(p)
}

func (w *slowWriter) CloseNotify() <-chan bool { return nil }

// watching are watches that a Fairness serves, each of which writes an event when told to, or at once when that was before.
type watching struct {
	t      *testing.T
	around http.Handler
	event  chan struct{} // closed
	told   atomic.Int64
}

func newWatching(t *testing.T) *watching {
	f, err := New(Config{Seats: 40})
	if err != nil {
		t.Fatal(err)
	}
	w := &watching{t: t, event: make(chan struct{})}
	w.around = f.Around(http.HandlerFunc(func(out http.ResponseWriter, req *http.Request) {
		out.(http.Flusher).Flush()
		flowcontrol.WatchInitialized(req.Context())
		<-w.event
		if _, err := fmt.Fprint(out, "half of an event"); err != nil {
			return
		}
		_, _ = fmt.Fprint(out, "and the other")
		out.(http.Flusher).Flush()
		w.told.Add(1)
	}), filters.BasicLongRunningRequestCheck(sets.NewString("watch"), nil), time.Minute)
	return w
}

// open opens n watches of a workspace for as long as ctx lasts, which write as one writer does. It returns how many wrote at once.
func (w *watching) open(ctx context.Context, cluster string, n int, like slowWriter) (most *atomic.Int64) {
	like.busy, like.most = &atomic.Int64{}, &atomic.Int64{}
	for range n {
		writer := like
		writer.ResponseRecorder = httptest.NewRecorder()
		req := ask(w.t, cluster, "GET", "/api/v1/configmaps?watch=1&resourceVersion=7")
		asked, cancel := context.WithCancel(request.WithUser(req.Context(), &user.DefaultInfo{Name: "somebody"}))
		stop := context.AfterFunc(ctx, cancel)
		go func() {
			defer stop()
			defer cancel()
			w.around.ServeHTTP(&writer, req.WithContext(asked))
		}()
	}
	synctest.Wait()
	return like.most
}

func TestWatchesWriteInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = 100 * time.Microsecond
		w := newWatching(t)
		ofShop := w.open(t.Context(), "shop", 100, slowWriter{takes: takes})
		ofBank := w.open(t.Context(), "bank", 1, slowWriter{takes: takes})
		close(w.event)
		time.Sleep(2 * takes)
		synctest.Wait()
		if got, want := w.told.Load(), 1+writersOfWorkspace(); got != want || ofBank.Load() != 1 {
			t.Errorf("%d watches wrote an event in the time that one takes, want that of the other workspace and %d of this", got, want-1)
		}
		time.Sleep(100 * 2 * takes)
		if got, most := w.told.Load(), ofShop.Load(); got != 101 || most > writersOfWorkspace() {
			t.Errorf("%d watches of 101 wrote their events, %d of a workspace at once, want %d", got, most, writersOfWorkspace())
		}
	})
}

// Clients that do not read hold up the others of their workspace for a moment, and nobody else.
func TestWatchesThatAreNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatching(t)
		w.open(t.Context(), "shop", 10, slowWriter{takes: time.Hour})
		close(w.event)
		synctest.Wait() // until they have all turns: the others come after them
		w.open(t.Context(), "shop", 10, slowWriter{})
		w.open(t.Context(), "bank", 10, slowWriter{})
		if got := w.told.Load(); got != 10 {
			t.Errorf("%d watches of the other workspace wrote their events, want 10", got)
		}
		time.Sleep(11 * writeFor)
		if got := w.told.Load(); got != 20 {
			t.Errorf("%d watches that are read wrote their events, want 20", got)
		}
		time.Sleep(3 * time.Hour)
	})
}

// A watch that ends while it waits for its turn takes none.
func TestWatchEndsBeforeItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatching(t)
		w.open(t.Context(), "shop", 10*int(writersOfWorkspace()), slowWriter{takes: time.Hour})
		close(w.event)
		synctest.Wait() // until they have all turns
		ctx, cancel := context.WithCancel(t.Context())
		w.open(ctx, "shop", 1, slowWriter{})
		cancel()
		time.Sleep(11 * writeFor)
		w.open(t.Context(), "shop", 1, slowWriter{})
		if got := w.told.Load(); got != 1 {
			t.Errorf("%d watches wrote their events, want the one that did not end", got)
		}
		time.Sleep(3 * time.Hour)
	})
}
