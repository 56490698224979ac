package endpoints

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	clocktesting "k8s.io/utils/clock/testing"

	"atoll.dev/atoll/client"
)

var web = client.Key{Cluster: "shop", Namespace: "team", Name: "web"}

// TestOwnWrites: what was written here wakes nobody, whichever is first, its answer or its event; what others write does.
func TestOwnWrites(t *testing.T) {
	o := newOwn(clocktesting.NewFakePassiveClock(noon))
	if o.is(web, told{slice: "a", version: "1"}) || o.looks(web) != "" || o.wait(web) != 0 {
		t.Error("of a Service that was never written something is known")
	}
	o.begin(web, sets.New("a", "b", "c"))
	if !o.is(web, told{slice: "a", version: "8"}) {
		t.Error("while it is written an event is somebody else's")
	}
	o.wrote(web, "a", "8")
	o.wrote(web, "b", "12")
	if o.end(web) {
		t.Error("somebody else has written")
	}
	for version, want := range map[string]bool{"7": true, "8": true, "9": false, "12": false} {
		if got := o.is(web, told{slice: "a", version: version}); got != want {
			t.Errorf("version %s of a is ours: %v", version, got)
		}
	}
	if !o.is(web, told{slice: "b", version: "12"}) || o.is(web, told{slice: "c", version: "12"}) || o.looks(web) != "12" {
		t.Errorf("of b nothing is known, or of c, or %q is the newest", o.looks(web))
	}

	o.begin(web, sets.New("a", "b", "c"))
	o.is(web, told{slice: "a", version: "20"})
	o.wrote(web, "a", "21")
	o.is(web, told{slice: "b", version: "22"})
	if !o.end(web) {
		t.Error("b was written by somebody else, and nobody says so")
	}
	if len(o.writing) != 0 {
		t.Errorf("kept are %v", o.writing)
	}
	o.removed(web, "a")
	if o.is(web, told{slice: "a", version: "21"}) {
		t.Error("one that was deleted is known")
	}
	if !o.is(web, told{slice: "a", version: "23", gone: true}) || o.is(web, told{slice: "a", version: "25", gone: true}) {
		t.Error("that it is gone is told by somebody else, or of one that was made again by us")
	}
	if o.is(web, told{slice: "b", version: "24", gone: true}) || o.is(web, told{slice: "b", version: "12"}) {
		t.Error("that somebody deletes another is ours")
	}

	o.begin(web, sets.New("a", "b", "c"))
	for i := range mostTold {
		o.is(web, told{slice: fmt.Sprint(i), version: "30"})
	}
	if o.is(web, told{slice: "a", version: "30"}) || len(o.writing[web]) != mostTold {
		t.Errorf("%d events are kept, and one more", len(o.writing[web]))
	}
	if !o.end(web) {
		t.Error("somebody has written much meanwhile, and nobody says so")
	}
	for i := range 2 * rememberedServices {
		o.wrote(client.Key{Cluster: "shop", Name: fmt.Sprint(i)}, "a", "1")
	}
	if n := o.written.Len(); n != rememberedServices {
		t.Errorf("%d Services are remembered", n)
	}
}

// TestSlicesThatAreGone: of slices that somebody deletes whenever they are made, nothing stays, whenever that is told, or if it never is.
func TestSlicesThatAreGone(t *testing.T) {
	for name, goes := range map[string]struct{ meanwhile, after bool }{"while others are made": {true, false}, "after that": {false, true}, "untold": {false, false}} {
		o := newOwn(clocktesting.NewFakePassiveClock(noon))
		for i := range 100 {
			slice := fmt.Sprint("web-", i)
			gone := told{slice, "9", true}
			o.begin(web, sets.New[string]())
			if goes.meanwhile {
				o.is(web, gone)
			}
			o.wrote(web, slice, "8")
			o.wrote(web, "stays", "8")
			if others := o.end(web); others != goes.meanwhile {
				t.Errorf("%s: that somebody else has written is said: %v", name, others)
			}
			if goes.after && o.is(web, gone) {
				t.Errorf("%s: it is ours", name)
			}
			if n := len(o.last(web).of); n > 2 {
				t.Fatalf("%s: %d versions are kept after %d looks", name, n, i+1)
			}
		}
		for i := range 100 {
			o.begin(web, sets.New("stays"))
			o.removed(web, fmt.Sprint("web-", i))
			o.end(web)
		}
		if n := o.last(web).removed.Len(); n > 1 || len(o.last(web).of) != 1 {
			t.Errorf("%s: %d deleted ones are kept, and %v", name, n, o.last(web).of)
		}
	}
}

// TestOwnDeletion: what was deleted here may still be there for a look that comes before that is told, and finds nothing to write. Then that it is gone has it looked at once more, whatever was deleted.
func TestOwnDeletion(t *testing.T) {
	for name, slice := range map[string]string{"a slice": "a", "Endpoints": ofEndpoints} {
		for what, tc := range map[string]struct{ looks, told, wakes bool }{
			"told before a look": {true, true, false},
			"a look before that": {true, false, true},
			"no look":            {false, false, false},
		} {
			o := newOwn(clocktesting.NewFakePassiveClock(noon))
			gone := told{slice, "9", true}
			o.begin(web, sets.New(slice))
			o.removed(web, slice)
			o.end(web)
			wakes := tc.told && !o.is(web, gone)
			if tc.looks {
				o.looks(web)
			}
			if wakes = wakes || !tc.told && !o.is(web, gone); wakes != tc.wakes {
				t.Errorf("%s, %s: that it is gone has its Service looked at: %v", name, what, wakes)
			}
		}
	}
}

// TestRefusedAgain: what is refused is tried again after twice as long each time, up to ten minutes, whoever looks in between, and anew when it was taken.
func TestRefusedAgain(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(noon)
	o := newOwn(clk)
	for _, want := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 10 * time.Minute, 10 * time.Minute} {
		if got := o.refused(web); got != want {
			t.Fatalf("it is tried again after %s, want %s", got, want)
		}
		clk.SetTime(clk.Now().Add(time.Second))
		for range 5 { // pods come and go
			if got := o.refused(web); got != want-time.Second {
				t.Fatalf("a second later it is tried again after %s, want %s", got, want-time.Second)
			}
		}
		if wait := o.wait(web); wait <= 0 {
			t.Error("one that is refused is written at each step")
		}
		clk.SetTime(clk.Now().Add(want))
	}
	clk.SetTime(noon.Add(-time.Hour))
	if got := o.refused(web); got != 10*time.Minute {
		t.Errorf("where the clock was turned back it is tried again after %s", got)
	}
	o.accepted(web)
	if got := o.refused(web); got != 30*time.Second {
		t.Errorf("after it was taken it is tried again after %s", got)
	}
	o.accepted(client.Key{Name: "another"})
}

// TestBetweenWrites: a Service is not written at each step, the less often the more was.
func TestBetweenWrites(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(noon)
	o := newOwn(clk)
	write := func(slices int) {
		o.begin(web, sets.New("a", "b", "c"))
		for i := range slices {
			o.wrote(web, fmt.Sprint(i), "1")
		}
		o.end(web)
	}
	for _, slices := range []time.Duration{1, 50} {
		if write(int(slices)); o.wait(web) != betweenWrites+slices*forEachSlice {
			t.Errorf("after %d slices it waits %s, want %s", slices, o.wait(web), betweenWrites+slices*forEachSlice)
		}
	}
	clk.SetTime(noon.Add(time.Second))
	if left := o.wait(web); left != betweenWrites+50*forEachSlice-time.Second {
		t.Errorf("a second later it waits %s", left)
	}
	clk.SetTime(noon.Add(time.Hour))
	if left := o.wait(web); left != 0 {
		t.Errorf("an hour later it waits %s", left)
	}
	clk.SetTime(noon.Add(-time.Hour))
	if left := o.wait(web); left != 0 {
		t.Errorf("where the clock was turned back it waits %s", left)
	}
}
