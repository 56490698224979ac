package discovery

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// ended is the context of a client that is gone: it gets a turn only if it need not wait.
func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func mustTake(t *testing.T, turns *makerTurns, cluster logicalcluster.Name) (done func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	done, err := turns.take(ctx, cluster)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

func TestWhoWaitsGoesWithItsContext(t *testing.T) {
	turns := newMakerTurns(2, 2)
	mustNot := func(reason string, cluster logicalcluster.Name) {
		t.Helper()
		if _, err := turns.take(ended(t), cluster); !apierrors.IsTimeout(err) {
			t.Errorf("%s: got %v, want a timeout", reason, err)
		}
	}
	ofShop := mustTake(t, turns, shop)
	mustNot("a second one of the same logical cluster", shop)
	ofBank := mustTake(t, turns, bank) // does not wait for shop
	mustNot("a third one of all", empty)
	ofShop()
	mustNot("a second one of the same logical cluster", bank)
	mustTake(t, turns, empty)()
	ofBank()
	if n := turns.Len(); n != 0 || turns.Had() != 0 {
		t.Errorf("with nobody left %d logical clusters are known and %d turns taken", n, turns.Had())
	}
}

func TestFewWait(t *testing.T) {
	turns := newMakerTurns(2, 1)
	done := mustTake(t, turns, shop)
	if _, err := turns.take(t.Context(), shop); !apierrors.IsTooManyRequests(err) {
		t.Errorf("one more than may wait: got %v, want that they are too many", err)
	}
	mustTake(t, turns, bank)()
	done()
	mustTake(t, turns, shop)()
}

// TestTurnsAreFew has many requests of many logical clusters at a time.
func TestTurnsAreFew(t *testing.T) {
	turns := newMakerTurns(2, 100)
	var all atomic.Int32
	var asking sync.WaitGroup
	for c := range 5 {
		cluster := logicalcluster.Name(fmt.Sprint("c", c))
		var own atomic.Int32
		for range 40 {
			asking.Go(func() {
				done, err := turns.take(t.Context(), cluster)
				if err != nil {
					t.Error(err)
					return
				}
				if n := own.Add(1); n > 1 {
					t.Errorf("%d at a time of %s", n, cluster)
				}
				if n := all.Add(1); n > 2 {
					t.Errorf("%d at a time of all", n)
				}
				all.Add(-1)
				own.Add(-1)
				done()
			})
		}
	}
	asking.Wait()
	if n := turns.Len(); n != 0 {
		t.Errorf("%d logical clusters are known with nobody left", n)
	}
}
