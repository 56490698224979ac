package crash

import (
	"sync"
	"testing"
	"time"

	"k8s.io/utils/clock"
)

const (
	// hurry is how much faster than the world's the splitter's clock runs: the minute for which it keeps what vanished
	// unseen is two seconds.
	hurry = 30
	// haste is how much faster that of HorizontalPodAutoscalers runs: they are looked at each second.
	haste = 15
)

// fastClock runs so many times as fast as the world's.
type fastClock struct {
	clock.RealClock
	began time.Time
	times time.Duration
}

func (c fastClock) Now() time.Time                         { return c.began.Add(time.Since(c.began) * c.times) }
func (c fastClock) Since(t time.Time) time.Duration        { return c.Now().Sub(t) }
func (c fastClock) After(d time.Duration) <-chan time.Time { return c.RealClock.After(d / c.times) }
func (c fastClock) NewTimer(d time.Duration) clock.Timer   { return c.RealClock.NewTimer(d / c.times) }
func (c fastClock) NewTicker(d time.Duration) clock.Ticker { return c.RealClock.NewTicker(d / c.times) }
func (c fastClock) Sleep(d time.Duration)                  { c.RealClock.Sleep(d / c.times) }
func (c fastClock) Tick(d time.Duration) <-chan time.Time  { return c.NewTicker(d).C() }

// anHour is how long a queue waits at most before it looks at the clock again (internal/queue), and a little more.
const anHour = time.Hour + time.Minute

// steppedClock is ahead of the world's by as much as was set last, and what waits for a time that has come by that waits no more.
type steppedClock struct {
	clock.RealClock // its tickers

	mu     sync.Mutex // guards what follows
	ahead  time.Duration
	timers map[*steppedTimer]bool // those that were not stopped; some may have fired
}

type steppedTimer struct {
	clock.Timer
	of *steppedClock
	at time.Time
}

func newSteppedClock() *steppedClock { return &steppedClock{timers: map[*steppedTimer]bool{}} }

// set has the clock be ahead by so much from now on.
func (c *steppedClock) set(ahead time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead = ahead
	for t := range c.timers {
		if !t.Timer.Stop() {
			delete(c.timers, t) // it has fired
			continue
		}
		t.Timer.Reset(t.at.Sub(c.now()))
	}
}

// pass has so much time pass, if the clock is ahead.
func (c *steppedClock) pass(d time.Duration) {
	c.mu.Lock()
	ahead := c.ahead
	c.mu.Unlock()
	if ahead > 0 {
		c.set(ahead + d)
	}
}

// now is Now, for who holds mu.
func (c *steppedClock) now() time.Time { return time.Now().Add(c.ahead) }

func (c *steppedClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now()
}

func (c *steppedClock) Since(t time.Time) time.Duration        { return c.Now().Sub(t) }
func (c *steppedClock) After(d time.Duration) <-chan time.Time { return c.NewTimer(d).C() }
func (c *steppedClock) Sleep(d time.Duration)                  { <-c.After(d) }

func (c *steppedClock) NewTimer(d time.Duration) clock.Timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &steppedTimer{Timer: c.RealClock.NewTimer(d), of: c, at: c.now().Add(d)}
	c.timers[t] = true
	return t
}

func (t *steppedTimer) Stop() bool {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	delete(t.of.timers, t)
	return t.Timer.Stop()
}

func (t *steppedTimer) Reset(d time.Duration) bool {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.at, t.of.timers[t] = t.of.now().Add(d), true
	return t.Timer.Reset(d)
}

// What waits for an hour waits no more when the clock is set an hour ahead, and waits anew when it is set back before that.
func TestSteppedClock(t *testing.T) {
	c := newSteppedClock()
	began := c.Now()
	fires := func(timer clock.Timer) bool {
		select { // which of both is ready is no matter of chance: what does not fire waits for an hour
		case <-timer.C():
			return true
		case <-time.After(time.Second):
			return false
		}
	}
	hour, stopped, again := c.NewTimer(time.Hour), c.NewTimer(time.Hour), c.NewTimer(time.Hour)
	if !stopped.Stop() || !again.Reset(3*time.Hour) {
		t.Error("a timer that waits could not be stopped, or reset")
	}
	if fires(hour) {
		t.Error("an hour has passed at once")
	}
	c.set(2 * time.Hour)
	if since := c.Since(began); since < 2*time.Hour {
		t.Errorf("it is ahead by %s, want 2h", since)
	}
	if !fires(hour) || fires(stopped) || fires(again) {
		t.Error("after two hours one timer should fire: not the one that was stopped, nor the one for three")
	}
	c.set(0)
	later := c.NewTimer(time.Hour)
	if fires(later) || fires(again) {
		t.Error("set back, a timer fires before its time")
	}
	c.set(4 * time.Hour)
	if !fires(later) || !fires(again) {
		t.Error("after four hours timers do not fire")
	}
}
