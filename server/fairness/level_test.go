package fairness

import (
	"context"
	"fmt"
	"hash/maphash"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// crowd is requests that have entered a level and stay until they are told to leave.
type crowd struct {
	level *level
	ends  chan entered // of all that wait, until settle
	// What settle has seen.
	seated []string // in order
	leaves map[string]func()
	gaveUp []string
}

// entered is how a request's wait ended; leave is nil if it gave up.
type entered struct {
	name  string
	leave func()
}

// send lets a request of a workspace come, and returns when it has its seats or waits.
func (c *crowd) send(ctx context.Context, workspace, who, name string, seats uint64) {
	go func() {
		work := &flowcontrolrequest.WorkEstimate{InitialSeats: seats}
		leave, _ := c.level.enter(ctx, logicalcluster.Name(workspace), who, work, nil)
		c.ends <- entered{name, leave}
	}()
	c.settle()
}

// settle returns when all have seats, wait or gave up.
func (c *crowd) settle() {
	synctest.Wait()
	for {
		select {
		case e := <-c.ends:
			if e.leave == nil {
				c.gaveUp = append(c.gaveUp, e.name)
				continue
			}
			c.seated = append(c.seated, e.name)
			c.leaves[e.name] = e.leave
		default:
			return
		}
	}
}

// leave lets a request end, if it has its seats.
func (c *crowd) leave(name string) {
	if end, seated := c.leaves[name]; seated {
		end()
	}
	delete(c.leaves, name)
	c.settle()
}

func (c *crowd) all() {
	for len(c.leaves) > 0 {
		for name := range c.leaves {
			c.leave(name)
			break
		}
	}
}

// uncrowded is the wait of goroutines where nobody waits.
func uncrowded() time.Duration { return 0 }

// inBubble runs a test with a level of 8 seats of which a workspace has 4, in virtual time.
func inBubble(t *testing.T, test func(t *testing.T, c *crowd)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l, err := newLevel("workspaces", 8, 4, uncrowded)
		if err != nil {
			t.Fatal(err)
		}
		test(t, &crowd{level: l, ends: make(chan entered, 1000), leaves: map[string]func(){}})
	})
}

// TestFloodHoldsUpNobody: whoever comes to a quiet workspace has a seat at once, however many wait in another.
func TestFloodHoldsUpNobody(t *testing.T) {
	inBubble(t, func(t *testing.T, c *crowd) {
		for i := range 100 {
			c.send(t.Context(), "loud", "user", fmt.Sprintf("loud%d", i), 1)
		}
		if len(c.seated) != 4 {
			t.Fatalf("%d of the flood have seats, want 4", len(c.seated))
		}
		c.send(t.Context(), "quiet", "user", "quiet", 1)
		if len(c.seated) != 5 || c.seated[4] != "quiet" {
			t.Errorf("have seats: %v, want the quiet workspace's request among them", c.seated)
		}
		c.all()
		if len(c.seated) != 101 || len(c.gaveUp) != 0 {
			t.Errorf("%d had a seat and %d did not, want 101 and none", len(c.seated), len(c.gaveUp))
		}
	})
}

// TestManyFloods: where loud workspaces have all seats, a quiet one has its turn after at most a few of each, before what
// waited longer.
func TestManyFloods(t *testing.T) {
	inBubble(t, func(t *testing.T, c *crowd) {
		const loud = 20
		// Whose queue is also a loud one's waits for that one as well.
		queue := func(workspace string) uint64 {
			return maphash.String(c.level.seed, workspace) % uint64(queuesOfLevel.DesiredNumQueues)
		}
		quiet, taken := "quiet", map[uint64]bool{}
		for w := range loud {
			taken[queue(fmt.Sprint("loud", w))] = true
		}
		for taken[queue(quiet)] {
			quiet += "t"
		}
		for i := range 10 {
			for w := range loud {
				c.send(t.Context(), fmt.Sprint("loud", w), "user", fmt.Sprintf("loud%d/%d", w, i), 1)
			}
		}
		if len(c.seated) != 8 {
			t.Fatalf("%d have seats, want 8", len(c.seated))
		}
		c.send(t.Context(), quiet, "user", "quiet", 1)
		// 72 wait for a seat, three or four of each workspace, besides those that wait in their workspaces.
		left := 0
		for ; c.seated[len(c.seated)-1] != "quiet"; left++ {
			if left == 2*loud {
				t.Fatalf("had seats: %v, want the quiet one among them", c.seated)
			}
			time.Sleep(time.Millisecond)
			c.leave(c.seated[left])
		}
		t.Logf("it had its turn after %d", left)
		c.all()
	})
}

// TestFairToUsers: in a workspace, a user who comes seldom is served before all that another has waiting.
func TestFairToUsers(t *testing.T) {
	inBubble(t, func(t *testing.T, c *crowd) {
		for i := range 100 {
			c.send(t.Context(), "shop", "loud", fmt.Sprintf("loud%d", i), 1)
		}
		c.send(t.Context(), "shop", "quiet", "quiet", 1)
		time.Sleep(time.Millisecond)
		for left := 0; c.seated[len(c.seated)-1] != "quiet"; left++ {
			if left > 8 {
				t.Fatalf("had seats: %v, want the quiet one among them", c.seated)
			}
			time.Sleep(time.Millisecond)
			c.leave(c.seated[left])
		}
		c.all()
	})
}

// TestWideRequests: two lists of four seats each are not worked on at once where there are four.
func TestWideRequests(t *testing.T) {
	inBubble(t, func(t *testing.T, c *crowd) {
		c.send(t.Context(), "loud", "user", "list1", 4)
		c.send(t.Context(), "loud", "user", "list2", 4)
		if len(c.seated) != 1 {
			t.Errorf("have seats: %v, want one list", c.seated)
		}
		c.all()
		if len(c.seated) != 2 {
			t.Errorf("had seats: %v, want both", c.seated)
		}
	})
}

// TestPatience: requests that keep their seats for long, waiting for others, stop neither their neighbours nor those of their
// own workspace; but only so many go on without.
func TestPatience(t *testing.T) {
	const without = 4 * overtimePerSeat
	inBubble(t, func(t *testing.T, c *crowd) {
		for i := range 2 * without {
			c.send(t.Context(), "slow", "user", fmt.Sprintf("slow%d", i), 1)
		}
		for _, step := range []struct {
			after time.Duration
			want  int
			why   string
		}{
			{patience - time.Millisecond, 4, "all seats of the workspace"},
			{2 * time.Millisecond, 8, "four went on without"},
			{2 * overtimePerSeat * patience, without + 4, "no more go on without"},
		} {
			time.Sleep(step.after)
			c.settle()
			if len(c.seated) != step.want {
				t.Errorf("%d were let in, want %d: %s", len(c.seated), step.want, step.why)
			}
		}
		c.leave("slow0") // one of those without a seat
		time.Sleep(patience)
		c.settle()
		if len(c.seated) != without+5 {
			t.Errorf("%d were let in, want %d: another may go on without", len(c.seated), without+5)
		}
		c.all()
		if len(c.seated) != 2*without {
			t.Errorf("%d were let in, want %d", len(c.seated), 2*without)
		}
	})
}

// TestSlowWorkspacesHoldNoSeats: two workspaces that could have all seats between them, and whose requests all hang, hold
// none of them; a third has one at once. They end as they came.
func TestSlowWorkspacesHoldNoSeats(t *testing.T) {
	inBubble(t, func(t *testing.T, c *crowd) {
		const each = 100
		for i := range each {
			for _, workspace := range []string{"slow", "hangs"} {
				c.send(t.Context(), workspace, "user", fmt.Sprintf("%s%d", workspace, i), 1)
			}
		}
		time.Sleep(10 * patience)
		c.settle()
		c.send(t.Context(), "quiet", "user", "quiet", 1)
		if c.seated[len(c.seated)-1] != "quiet" {
			t.Errorf("%d were let in, the quiet workspace's request is not among them", len(c.seated))
		}
		c.all()
		if len(c.seated) != 2*each+1 || len(c.gaveUp) != 0 {
			t.Errorf("%d had a seat and %d did not, want %d and none", len(c.seated), len(c.gaveUp), 2*each+1)
		}
		for name, own := range c.level.clusters {
			if own.users != 0 || own.overtime != 0 || !own.queues.IsIdle() {
				t.Errorf("%s has %d users and %d that go on without a seat after the last one", name, own.users, own.overtime)
			}
		}
		if !c.level.queues.IsIdle() {
			t.Error("seats of the level are taken after the last one")
		}
	})
}

// TestCallbacks: where writes of a workspace wait for its webhook, three times as many as it has seats, the webhook can read
// from it to answer them.
func TestCallbacks(t *testing.T) {
	inBubble(t, func(t *testing.T, c *crowd) {
		for i := range 12 {
			c.send(t.Context(), "shop", "user", fmt.Sprintf("write%d", i), 1)
		}
		time.Sleep(3*patience + time.Millisecond)
		c.settle()
		c.send(t.Context(), "shop", "webhook", "callback", 1)
		if len(c.seated) != 13 {
			t.Errorf("have seats: %v, want all writes and the webhook's read", c.seated)
		}
		c.all()
	})
}

// TestWhatComputesKeepsItsSeat: while goroutines wait for CPUs and another workspace is there, no more long requests go on without seats than
// their workspace has, and they hold none of the level; when nobody waits, or the workspace is alone, more do.
func TestWhatComputesKeepsItsSeat(t *testing.T) {
	for _, test := range []struct {
		reason string
		wait   time.Duration
		quiet  bool // another workspace asks now and then
		hangs  bool // another has a request that takes as long
		more   bool // others are let in beside the first
	}{
		{"what computes, beside one that asks", 2 * crowded, true, false, false},
		{"what computes, beside one whose request lasts", 2 * crowded, false, true, false},
		{"what computes, alone", 2 * crowded, false, false, true},
		{"what waits for others, beside one that asks", crowded / 2, true, false, true},
		{"what waits for others, beside one whose request lasts", crowded / 2, false, true, true},
	} {
		t.Run(test.reason, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *crowd) {
				wait := test.wait
				c.level.capacity.wait = func() time.Duration { return wait }
				c.level.capacity.least = 8 // it is about those that have seats
				if test.hangs {
					c.send(t.Context(), "hangs", "user", "hangs", 1)
				}
				for i := range 40 {
					c.send(t.Context(), "loud", "user", fmt.Sprint("loud", i), 1)
				}
				loud := func() (n int) {
					c.settle()
					for _, name := range c.seated {
						if strings.HasPrefix(name, "loud") {
							n++
						}
					}
					return n
				}
				quiet := 0
				pass := func(times int) {
					for range times {
						time.Sleep(patience/4 + time.Millisecond)
						if test.quiet {
							quiet++
							name := fmt.Sprint("quiet", quiet)
							c.send(t.Context(), "quiet", "user", name, 1)
							if _, seated := c.leaves[name]; !seated {
								t.Errorf("%s has no seat", name)
							}
							c.leave(name)
						}
					}
				}
				pass(16)
				if got := loud(); got < 8 || got > 8 != test.more {
					t.Errorf("%d of the loud workspace were let in, more than twice the 4 it has seats for: %t, want %t", got, got > 8, test.more)
				}
				before := loud()
				c.leave("loud0")
				pass(4)
				if got := loud(); !test.more && got != before+1 {
					t.Errorf("%d more were let in when one was done, want one", got-before)
				}
				wait = 0
				time.Sleep(patience + time.Millisecond)
				if got := loud(); !test.more && got != before+1+4 {
					t.Errorf("%d more were let in when nobody waits for CPUs any more, want one for each that has a seat", got-before-1)
				}
				c.all()
				if len(c.gaveUp) != 0 {
					t.Errorf("gave up: %v, want nobody", c.gaveUp)
				}
			})
		})
	}
}

// TestCallbacksBesideOthers: where writes of a workspace wait for its webhook and another workspace asks, too, the webhook can read from it to
// answer them, unless somebody computes.
func TestCallbacksBesideOthers(t *testing.T) {
	inBubble(t, func(t *testing.T, c *crowd) {
		c.send(t.Context(), "other", "user", "other", 1)
		for i := range 12 {
			c.send(t.Context(), "shop", "user", fmt.Sprintf("write%d", i), 1)
		}
		time.Sleep(3*patience + time.Millisecond)
		c.settle()
		c.send(t.Context(), "shop", "webhook", "callback", 1)
		if got := c.seated[len(c.seated)-1]; got != "callback" {
			t.Errorf("have seats: %v, want the webhook's read, too", c.seated)
		}
		c.all()
	})
}

// TestGivesUp: who waits too long, and who finds queues full, is told; both leave nothing behind.
func TestGivesUp(t *testing.T) {
	inBubble(t, func(t *testing.T, c *crowd) {
		for i := range 4 {
			c.send(t.Context(), "loud", "user", fmt.Sprintf("loud%d", i), 1)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		most := queuesOfWorkspace.HandSize * queuesOfWorkspace.QueueLengthLimit
		for i := range most + 1 {
			c.send(short, "loud", "user", fmt.Sprintf("waits%d", i), 1)
		}
		if len(c.gaveUp) != 1 {
			t.Errorf("%d were refused at once, want the one beyond %d", len(c.gaveUp), most)
		}
		time.Sleep(time.Second)
		c.settle()
		if len(c.gaveUp) != most+1 || len(c.seated) != 4 {
			t.Errorf("%d gave up and %d had seats, want %d and 4", len(c.gaveUp), len(c.seated), most+1)
		}
		c.all()
		if own := c.level.clusters["loud"]; own.users != 0 || !own.queues.IsIdle() || !c.level.queues.IsIdle() {
			t.Errorf("%d users are left", own.users)
		}
	})
}

// TestIdleCostNothing: of workspaces that ask for nothing only a few have queues.
func TestIdleCostNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, c *crowd) {
		for i := range 10 * keptIdle {
			name := fmt.Sprint("w", i)
			c.send(t.Context(), name, "user", name, 1)
			c.leave(name)
		}
		if got := len(c.level.clusters); got > keptIdle {
			t.Errorf("%d workspaces have queues, want at most %d", got, keptIdle)
		}
		if c.level.idle != len(c.level.clusters) {
			t.Errorf("%d are idle of %d, want all", c.level.idle, len(c.level.clusters))
		}
	})
}
