package workspaces

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/util/cache"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// A flood of names that do not exist reads each name once, and few at a time; a failure is not remembered.
func TestSearchIsCheapForMisses(t *testing.T) {
	d := &Directory{misses: cache.NewLRUExpireCache(maxMisses), reads: make(chan struct{}, maxReads)}
	var reads, now, most atomic.Int64
	read := func() (bool, error) {
		reads.Add(1)
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		return false, nil
	}
	const names, asking = 50, 200
	var wg sync.WaitGroup
	for range asking {
		wg.Go(func() {
			for n := range names {
				if ok, err := d.search(context.Background(), fmt.Sprint(n), read); ok || err != nil {
					t.Errorf("search: %v, %v", ok, err)
				}
			}
		})
	}
	wg.Wait()
	// Each name may be read by as many as could read at once before the first of them was done.
	if got := reads.Load(); got > names*maxReads {
		t.Errorf("%d reads for %d names asked %d times each", got, names, asking)
	}
	if got := most.Load(); got > maxReads {
		t.Errorf("%d reads at a time, want at most %d", got, maxReads)
	}

	down := errors.New("etcd is down")
	if _, err := d.search(context.Background(), "new", func() (bool, error) { return false, down }); !errors.Is(err, down) {
		t.Errorf("error is %v", err)
	}
	if ok, err := d.search(context.Background(), "new", func() (bool, error) { return true, nil }); !ok || err != nil {
		t.Errorf("after a failure: %v, %v", ok, err)
	}
}

// A path comes from whoever names a type of a workspace, too, as long as a request may be.
func TestLongPathsAreNotSearched(t *testing.T) {
	var d Directory // which has nothing to search in
	path := logicalcluster.NewPath("root" + strings.Repeat(":x", lcctx.MaxPathLength/2))
	if _, err := d.Resolve(t.Context(), path); !errors.Is(err, ErrNotFound) || len(err.Error()) > 200 {
		t.Errorf("resolve a path of %d characters: %v", len(path.String()), err)
	}
}
