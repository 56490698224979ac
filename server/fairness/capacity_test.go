package fairness

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
)

func TestCapacity(t *testing.T) {
	const most = 16
	type step struct {
		after time.Duration
		by    string
		wait  time.Duration
		want  int
	}
	const long, short = 2 * crowded, crowded / 2
	for _, test := range []struct {
		reason string
		steps  []step
	}{
		{"one alone keeps all, however long goroutines wait", []step{
			{2 * company, "loud", long, 16}, {lookEvery, "loud", long, 16}, {lookEvery, "loud", long, 16},
		}},
		{"two have half, and half again, down to one for each CPU", []step{
			{0, "loud", long, 16}, {lookEvery, "quiet", long, 8}, {lookEvery, "loud", long, 4}, {lookEvery, "loud", long, 2}, {lookEvery, "loud", long, 2},
		}},
		{"it is looked at now and then only", []step{
			{0, "loud", long, 16}, {lookEvery / 2, "quiet", long, 16}, {lookEvery / 2, "loud", long, 8},
		}},
		{"they come back one by one when nobody waits", []step{
			{0, "loud", long, 16}, {lookEvery, "quiet", long, 8}, {lookEvery, "quiet", long, 4}, {lookEvery, "loud", short, 4},
			{growEvery, "quiet", short, 5}, {lookEvery, "quiet", short, 5}, {growEvery, "loud", short, 6}, {lookEvery, "loud", long, 3},
		}},
		{"and all at once when the other is gone", []step{
			{0, "loud", long, 16}, {lookEvery, "quiet", long, 8}, {lookEvery, "loud", long, 4}, {lookEvery, "loud", long, 2},
			{company / 2, "loud", long, 2}, {company, "loud", long, 16},
		}},
	} {
		t.Run(test.reason, func(t *testing.T) {
			var wait time.Duration
			c := newCapacity(most, func() time.Duration { return wait })
			c.least = 2
			now := time.Now()
			for i, s := range test.steps {
				now = now.Add(s.after)
				wait = s.wait
				before := c.now
				changed := c.asks(logicalcluster.Name(s.by), now)
				if c.now != s.want || changed != (before != s.want) {
					t.Errorf("step %d: %d seats (changed: %v), want %d after %d", i, c.now, changed, s.want, before)
				}
			}
		})
	}
}

// TestCPUWaits: what waits behind others that keep all CPUs busy is seen, and is not seen any more afterwards.
func TestCPUWaits(t *testing.T) {
	w := newCPUWaits()
	n := 100 * runtime.GOMAXPROCS(0) // Go looks at one in eight
	ended := make(chan struct{})
	for range n {
		go func() {
			for began := time.Now(); time.Since(began) < time.Millisecond; {
			}
			ended <- struct{}{}
		}()
	}
	for range n {
		<-ended
	}
	if got := w.rare(); got < 5*time.Millisecond {
		t.Errorf("%d goroutines kept the CPUs busy for 100 ms, and one in a hundred waited for %v, want more than 5 ms", n, got)
	}
	if got := w.rare(); got > time.Second {
		t.Errorf("one in a hundred waited for %v, in no time", got)
	}
}

// TestCrowdedFlood: while goroutines wait for CPUs and another asks, too, a flood has one seat for each two CPUs, and a
// long list takes no more than that; when it is alone again, it has all.
func TestCrowdedFlood(t *testing.T) {
	inBubble(t, func(t *testing.T, c *crowd) {
		wait := 2 * crowded
		c.level.capacity.wait = func() time.Duration { return wait }
		c.level.capacity.least = 2
		asks := func(workspace string, i int) {
			time.Sleep(lookEvery)
			name := fmt.Sprint(workspace, i)
			c.send(t.Context(), workspace, "user", name, 1)
			if got := c.seated[len(c.seated)-1]; got != name {
				t.Errorf("the last that has a seat is %s, want %s, too", got, name)
			}
			c.leave(name)
		}
		for i := range 4 {
			asks("quiet", i)
			asks("loud", i)
		}
		before := len(c.seated)
		for i := range 20 {
			c.send(t.Context(), "loud", "user", fmt.Sprint("list", i), 4)
		}
		if got := len(c.seated) - before; got != 1 {
			t.Errorf("%d lists have seats, want 1", got)
		}
		asks("quiet", 4)
		wait = 0
		time.Sleep(2 * company)
		c.send(t.Context(), "loud", "user", "alone", 1)
		c.send(t.Context(), "loud", "user", "alone, too", 1)
		if got := c.level.capacity.now; got != 8 {
			t.Errorf("one alone may use %d seats, want all 8", got)
		}
		c.all()
		if len(c.gaveUp) != 0 {
			t.Errorf("gave up: %v, want nobody", c.gaveUp)
		}
	})
}

// TestCrowdedQueue: what came as a wide request before goroutines waited for CPUs, and has its turn while they do, leaves
// seats to others.
func TestCrowdedQueue(t *testing.T) {
	inBubble(t, func(t *testing.T, c *crowd) {
		c.level.capacity.least = 2
		for i := range 3 {
			c.send(t.Context(), "loud", "user", fmt.Sprint("list", i), 4)
		}
		c.level.capacity.wait = func() time.Duration { return 2 * crowded }
		for range 3 {
			time.Sleep(lookEvery)
			c.level.part("loud", c.level.join("loud"))
			c.level.part("quiet", c.level.join("quiet"))
		}
		c.leave("list0")
		if len(c.seated) != 2 {
			t.Errorf("had seats: %v, want two lists", c.seated)
		}
		c.send(t.Context(), "quiet", "user", "quiet", 1)
		if got := c.seated[len(c.seated)-1]; got != "quiet" {
			t.Errorf("the last that has a seat is %s, want quiet, too", got)
		}
		c.all()
	})
}

// TestCrowdedMirror: while goroutines wait for CPUs and a workspace asks, a flood in the only mirror that asks leaves seats to
// others as one in a workspace does; when no workspace asks, it has all.
func TestCrowdedMirror(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := New(Config{Seats: 8, SeatsPerWorkspace: 4})
		if err != nil {
			t.Fatal(err)
		}
		f.workspaces.capacity.wait, f.mirrors.capacity.wait = uncrowded, func() time.Duration { return 2 * crowded }
		f.mirrors.capacity.least = 2
		c := &crowd{level: f.mirrors, ends: make(chan entered, 1000), leaves: map[string]func(){}}
		asks := func(l *level, cluster logicalcluster.Name) { l.part(cluster, l.join(cluster)) }
		for range 3 {
			time.Sleep(lookEvery)
			asks(f.workspaces, "shop")
			asks(f.mirrors, "east")
		}
		for i := range 10 {
			c.send(t.Context(), "east", "syncer", fmt.Sprint("flood", i), 1)
		}
		if got := len(c.seated); got != 1 {
			t.Errorf("%d requests of the mirror have seats while a workspace asks, want 1", got)
		}
		time.Sleep(2 * company)
		asks(f.mirrors, "east")
		if got := f.mirrors.capacity.now; got != 8 {
			t.Errorf("one mirror alone may use %d seats, want all 8", got)
		}
		c.all()
	})
}
