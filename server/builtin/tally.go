package builtin

import (
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

const (
	// maxTallies is of how many roots the pods are known that mirrors show; those of others are counted anew.
	maxTallies = 10_000
	// recountFull is how long a count that found no room refuses: a syncer tries each pod that it cannot show again and again.
	recountFull = 5 * time.Second
)

// tallies are how many pods mirrors show of each root. Counted for each pod, many at once would pass where one has room, and each cost a
// look at all pods of the namespace.
type tallies struct {
	clock clock.PassiveClock
	mu    sync.Mutex // guards that there is one of a key
	of    *lru.Cache // by tallyKey
}

type tallyKey struct {
	mirror logicalcluster.Name
	root   types.UID
}

func newTallies(clk clock.PassiveClock) *tallies {
	return &tallies{clock: clk, of: lru.New(maxTallies)}
}

func (t *tallies) get(key tallyKey) *tally {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known, ok := t.of.Get(key); ok {
		return known.(*tally)
	}
	made := &tally{clock: t.clock}
	t.of.Add(key, made)
	return made
}

// tally is of one root. It is never too low, but for what other servers make: a mirror that uses each of several may show as many for each;
// and for what was under way when as many roots as are known at most were asked for since: that is a few.
type tally struct {
	clock   clock.PassiveClock
	mu      sync.Mutex // guards all below
	counted bool
	full    time.Time // when a count last found no room
	// shown are those that were counted, and all that were tried since, of which underWay have not ended yet.
	shown, underWay int
}

// take says whether there may be one more beside those that there are, and how many that is at most. If there may, end ends its making.
// It counts, at the first and whenever there seems to be no room, but not just after that was so: most pods ended since, or were not made.
// While one is under way it does not: nobody could say whether that was counted, too.
func (t *tally) take(most int, count func() (int, error)) (end func(), shown int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.clock.Now(); !t.counted || t.shown >= most && t.underWay == 0 && now.Sub(t.full) >= recountFull {
		there, err := count()
		if err != nil {
			return nil, 0, err
		}
		if t.counted, t.shown = true, there; there >= most {
			t.full = now
		}
	}
	if t.shown >= most {
		return nil, t.shown, nil
	}
	t.shown++
	t.underWay++
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.underWay--
	}, t.shown, nil
}
