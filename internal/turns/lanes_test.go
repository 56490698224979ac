package turns

import (
	"fmt"
	"slices"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

const (
	apart  = 50 * time.Millisecond
	atOnce = 4
	pause  = 4
)

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func newLanes() (*Lanes[string, string], *clocktesting.FakePassiveClock) {
	clk := clocktesting.NewFakePassiveClock(noon)
	return NewLanes[string, string](clk, LaneRules{AtOnce: atOnce, Apart: apart, Pause: pause, MostWorked: time.Second}), clk
}

// TestTurns: however many there are, those of a lane go on one after the other, and each once; others do not wait for them, and nothing is kept of them.
func TestTurns(t *testing.T) {
	lanes, clk := newLanes()
	turn := func(of, key string) time.Duration { // it takes no time
		wait := lanes.Turn(of, key)
		if wait == 0 {
			lanes.Done(of, 0)
		}
		return wait
	}
	for i := range 4 {
		if wait := turn("shop", fmt.Sprint(i)); wait != time.Duration(i)*apart {
			t.Errorf("%d of one lane waits %s", i, wait)
		}
	}
	if wait := turn("bank", "0"); wait != 0 {
		t.Errorf("one of another lane waits %s", wait)
	}
	for i := 1; i < 4; i++ {
		clk.SetTime(noon.Add(time.Duration(i) * apart))
		if wait := turn("shop", fmt.Sprint(i)); wait != 0 {
			t.Errorf("%d of one lane waits %s once more", i, wait)
		}
	}
	if wait := turn("shop", "3"); wait != apart {
		t.Errorf("one that is to go on again at once waits %s, want %s", wait, apart)
	}
	clk.SetTime(noon.Add(3*apart + apart/4))
	for range 2 {
		if wait := turn("shop", "3"); wait != apart*3/4 {
			t.Errorf("one that comes before its turn waits %s, want %s", wait, apart*3/4)
		}
	}
	clk.SetTime(noon.Add(4 * apart))
	if wait := turn("shop", "3"); wait != 0 {
		t.Errorf("one that has waited waits %s once more", wait)
	}
	clk.SetTime(noon.Add(time.Minute))
	if wait := turn("bank", "0"); wait != 0 || lanes.Len() != 1 {
		t.Errorf("waits %s, %d lanes are kept", wait, lanes.Len())
	}
	lanes.Turn("bank", "1") // which takes long
	clk.SetTime(noon.Add(2 * time.Minute))
	lanes.Turn("bank", "1")
	clk.SetTime(noon.Add(3 * time.Minute))
	if first, second := lanes.Turn("bank", "2"), lanes.Turn("bank", "3"); first != 0 || second != apart {
		t.Errorf("two that come while one goes on wait %s and %s, want 0 and %s", first, second, apart)
	}
}

// TestLanesAtOnce: of a lane a few go on at once, however long they take, and those that wait have their turns when one ends, in the order in which they have come.
func TestLanesAtOnce(t *testing.T) {
	lanes, clk := newLanes()
	due := map[int]time.Time{} // as a queue has them
	var begun []int
	asked := 0
	ask := func(name int) {
		asked++
		wait := lanes.Turn("shop", fmt.Sprint(name))
		if due[name] = clk.Now().Add(wait); wait == 0 {
			begun = append(begun, name)
			delete(due, name)
		}
	}
	for i := range 100 {
		ask(i)
	}
	pass := func(times int) {
		for range times {
			for name, at := range due {
				if !at.After(clk.Now()) {
					ask(name)
				}
			}
			clk.SetTime(clk.Now().Add(apart))
		}
	}
	pass(200)
	if len(begun) != atOnce || lanes.Going("shop") != atOnce || asked > 100+8*200 {
		t.Fatalf("%v have begun, and none has ended, want %d; for that %d times one was asked, want a few times in each %s", begun, atOnce, asked, apart)
	}
	for range 20 {
		lanes.Done("shop", 0)
		pass(10)
	}
	if want := atOnce + 20; len(begun) != want || !slices.IsSorted(begun) {
		t.Errorf("%v have begun, and 20 have ended, want %d, and the first first", begun, want)
	}
	clk.SetTime(clk.Now().Add(time.Hour))
	if wait := lanes.Turn("bank", "0"); wait != 0 || lanes.Len() != 2 {
		t.Errorf("one of another lane waits %s, and %d lanes are kept, want that of what goes on, too", wait, lanes.Len())
	}
}

// TestLargeTakeTurns: what works for long has all of its lane come later, those that wait already, too, in their order.
func TestLargeTakeTurns(t *testing.T) {
	lanes, clk := newLanes()
	for i := range 3 {
		lanes.Turn("shop", fmt.Sprint(i))
	}
	lanes.Done("shop", 2*apart)
	clk.SetTime(noon.Add(2 * apart))
	for i, want := range map[int]time.Duration{1: 6 * apart, 2: 7 * apart, 3: 8 * apart} {
		if wait := lanes.Turn("shop", fmt.Sprint(i)); wait != want {
			t.Errorf("%d waits %s after one that has worked for two of them, want %s", i, wait, want)
		}
	}
	if wait := lanes.Turn("bank", "0"); wait != 0 {
		t.Errorf("one of another lane waits %s", wait)
	}
	clk.SetTime(noon.Add(9 * apart))
	if wait := lanes.Turn("shop", "1"); wait != 0 {
		t.Errorf("one whose turn has come waits %s", wait)
	}
	lanes.Done("bank", apart) // which nobody has waited for: it counts from now
	if wait := lanes.Turn("bank", "1"); wait != 3*apart {
		t.Errorf("one that comes after a large one waits %s, want %s", wait, 3*apart)
	}
	for i := range 100 { // an etcd that was away
		clk.SetTime(noon.Add(time.Minute + time.Duration(i)*apart))
		lanes.Turn("slow", fmt.Sprint(i))
	}
	for range atOnce {
		lanes.Done("slow", time.Hour)
	}
	if wait := lanes.Turn("slow", "200"); wait > 20*time.Second {
		t.Errorf("one waits %s for those that waited for an hour", wait)
	}

	// All of a thousand that work for a second each, for ten minutes.
	n := 0
	for second := range 600 {
		clk.SetTime(noon.Add(time.Hour + time.Duration(second)*time.Second))
		for i := range 1000 {
			if lanes.Turn("large", fmt.Sprint(i)) == 0 {
				n++
				lanes.Done("large", time.Second)
			}
		}
	}
	if most := int(600 * time.Second / (pause * time.Second)); n < most/2 || n > most+1 {
		t.Errorf("there are %d of a second in ten minutes, want about %d", n, most)
	}
}

// TestLanesAreNotKept: of lanes that nobody needs any more few are kept, though nobody looks at all of them at once, and none of who gives its place up.
func TestLanesAreNotKept(t *testing.T) {
	lanes, clk := newLanes()
	for i := range 1000 {
		of := fmt.Sprint(i)
		lanes.Turn(of, "a")
		if lanes.Turn(of, "b") == 0 {
			t.Fatal("two begin at once")
		}
		lanes.Done(of, 0)
		lanes.Leave(of, "b")
	}
	lanes.Leave("nobody", "b")
	if n := lanes.Len(); n != 1000 {
		t.Errorf("%d lanes are kept, want those that were just asked for", n)
	}
	clk.SetTime(noon.Add(time.Minute))
	for i := range 501 {
		lanes.Turn("busy", fmt.Sprint(i))
	}
	if n := lanes.Len(); n != 1 {
		t.Errorf("%d lanes are kept, want the busy one", n)
	}
}
