package server

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"atoll.dev/atoll/server/storage"
)

// logged are lines of a log.
type logged chan string

func (l logged) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// TestRewritesSayWhatTheyDid: a file that comes during a pass is not what that pass says is done, and has one of its own.
func TestRewritesSayWhatTheyDid(t *testing.T) {
	lines := make(logged, 100)
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(lines)))
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()

	r := newRewrites("sha256:first")
	passes := 0
	running.Go(func() {
		r.run(ctx, func(context.Context) (storage.Rewritten, error) { // one at a time
			if passes++; passes == 1 {
				r.took("sha256:second")
			}
			return storage.Rewritten{Read: int64(passes)}, nil
		})
	})
	for _, want := range []string{`hash="sha256:first" written=0 read=1`, `hash="sha256:second" written=0 read=2`} {
		select {
		case line := <-lines:
			if !strings.Contains(line, "All rows are written with the first key") || !strings.Contains(line, want) {
				t.Errorf("the log says %s, want all rows written with %s", line, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("no line in 20 s, want one with %s", want)
		}
	}
}
