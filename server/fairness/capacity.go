package fairness

import (
	"runtime/metrics"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
)

const (
	// crowded is how long one goroutine in a hundred waits for a CPU when too much was begun: a millisecond is longer than most of
	// a request's steps take, and it waits before each of them.
	crowded = time.Millisecond
	// lookEvery and growEvery are how often seats are taken away while goroutines wait, and given back one by one afterwards.
	lookEvery = 50 * time.Millisecond
	growEvery = 250 * time.Millisecond
	// company is for how long it is remembered that more than one logical cluster asked.
	company = time.Second
)

// capacity is how many of its seats a level deals out: fewer while goroutines wait for CPUs, since what is begun then finishes
// no sooner, and whoever asks for little waits for it at each step. Where only one logical cluster asks it is all of them: it
// would gain nothing, unless somebody besides is to have his share. It is looked at when somebody asks, so that an idle server
// does nothing. Not safe for concurrent use.
type capacity struct {
	least, most int
	wait        func() time.Duration // of one goroutine in a hundred, since it was called before
	besides     func() time.Time     // when somebody asked last who has no seats of these, and is to have his share; nil: nobody is

	now     int
	looked  time.Time
	waited  time.Duration // as wait said then
	changed time.Time
	// Who asked last and when, and when another did.
	asker   logicalcluster.Name
	asked   time.Time
	another time.Time
}

func newCapacity(most int, wait func() time.Duration) *capacity {
	return &capacity{least: min(most, cpus()), most: most, wait: wait, now: most}
}

// asks tells that a logical cluster does, and returns whether the capacity is another by that.
func (c *capacity) asks(cluster logicalcluster.Name, at time.Time) bool {
	if cluster != c.asker {
		c.asker, c.another = cluster, c.asked
	}
	c.asked = at
	return c.look(at)
}

// look looks whether goroutines wait, unless it did a moment ago, and returns whether the capacity is another by that.
func (c *capacity) look(at time.Time) bool {
	if at.Sub(c.looked) < lookEvery {
		return false
	}
	before := c.now
	c.looked, c.waited = at, c.wait()
	switch {
	case at.Sub(c.orBesides(c.another)) > company:
		c.now = c.most
	case c.waited > crowded:
		c.now = max(c.least, c.now/2)
		c.changed = at
	case at.Sub(c.changed) >= growEvery:
		c.now = min(c.most, c.now+1)
		c.changed = at
	}
	return c.now != before
}

// isWith says whether another than this logical cluster asked a moment ago.
func (c *capacity) isWith(cluster logicalcluster.Name, at time.Time) bool {
	other := c.another
	if c.asker != cluster {
		other = c.asked
	}
	return at.Sub(c.orBesides(other)) <= company
}

// orBesides is when another asked, or somebody besides if that was later.
func (c *capacity) orBesides(another time.Time) time.Time {
	if c.besides != nil {
		if at := c.besides(); at.After(another) {
			return at
		}
	}
	return another
}

// of is the part of a number of seats that is dealt out.
func (c *capacity) of(seats int) int { return max(1, seats*c.now/c.most) }

// cpuWaits measures how long goroutines of this process wait for a CPU.
type cpuWaits struct {
	sample []metrics.Sample
	before []uint64
}

func newCPUWaits() *cpuWaits {
	w := &cpuWaits{sample: []metrics.Sample{{Name: "/sched/latencies:seconds"}}}
	w.rare()
	return w
}

// rare is the wait of one goroutine in a hundred since it was called before, to the resolution of Go's histogram.
func (w *cpuWaits) rare() time.Duration {
	metrics.Read(w.sample)
	h := w.sample[0].Value.Float64Histogram()
	if w.before == nil {
		w.before = make([]uint64, len(h.Counts))
	}
	var all uint64
	for i, n := range h.Counts {
		w.before[i] = n - w.before[i]
		all += w.before[i]
	}
	bucket, longer := len(h.Counts)-1, uint64(0)
	for ; bucket > 0; bucket-- {
		if longer += w.before[bucket]; longer > all/100 {
			break
		}
	}
	copy(w.before, h.Counts)
	return time.Duration(max(0, h.Buckets[bucket]) * float64(time.Second)) // the first begins at minus infinity
}
