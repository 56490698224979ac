package splitter

import (
	"fmt"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"
)

func TestBrake(t *testing.T) {
	leaf := func(i int) string { return fmt.Sprintf("leaf-%d", i) }
	tests := map[string]struct {
		reason string
		leaves int
		run    func(*Brake, *testclock.FakeClock)
		frozen bool
		goes   bool // what leaf-0 may do a minute after run
	}{
		"Few":                {"20 of 50 are within bounds, and go after a minute", 50, func(b *Brake, c *testclock.FakeClock) { miss(b, 0, 20, 50) }, false, true},
		"TooMany":            {"21 of 50 are not, and none of them goes", 50, func(b *Brake, c *testclock.FakeClock) { miss(b, 0, 21, 50) }, true, false},
		"TenPercent":         {"100 of 1,000 are 10 %", 1000, func(b *Brake, c *testclock.FakeClock) { miss(b, 0, 100, 1000) }, false, true},
		"MoreThanTenPercent": {"101 of 1,000 are more", 1000, func(b *Brake, c *testclock.FakeClock) { miss(b, 0, 101, 1000) }, true, false},
		"Spread": {"21 in more than a minute are no burst", 50, func(b *Brake, c *testclock.FakeClock) {
			miss(b, 0, 15, 50)
			c.Step(brakeWindow)
			for i := range 15 {
				b.Forget("m", leaf(i))
			}
			miss(b, 15, 30, 50)
		}, false, false},
		"Confirmed": {"an administrator's word lets go at once what was missing", 50, func(b *Brake, c *testclock.FakeClock) {
			miss(b, 0, 30, 50)
			b.Confirm("m")
		}, false, true},
		"ConfirmedAmongOthers": {"a leaf that misses nothing takes nobody's confirmation along", 50, func(b *Brake, c *testclock.FakeClock) {
			miss(b, 0, 30, 50)
			b.Confirm("m")
			b.Forget("m", "healthy")
			c.Step(-brakeWindow) // what is confirmed waits for no minute
		}, false, true},
		"Told": {"a freeze from before a restart holds", 50, func(b *Brake, c *testclock.FakeClock) { b.Freeze("m") }, true, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := testclock.NewFakeClock(time.Unix(0, 0))
			b := NewBrake(c)
			tc.run(b, c)
			if frozen, _ := b.Frozen("m"); frozen != tc.frozen {
				t.Errorf("%s: frozen = %v, want %v", tc.reason, frozen, tc.frozen)
			}
			c.Step(brakeWindow)
			if ok, _ := b.Missing("m", leaf(0), func() int { return tc.leaves }); ok != tc.goes {
				t.Errorf("%s: a leaf may go = %v, want %v", tc.reason, ok, tc.goes)
			}
			if ok, _ := b.Missing("other", leaf(0), func() int { return tc.leaves }); ok {
				t.Errorf("%s: a leaf of another mirror may go the moment it is found missing", tc.reason)
			}
		})
	}
}

func miss(b *Brake, from, to, leaves int) {
	for i := from; i < to; i++ {
		b.Missing("m", fmt.Sprintf("leaf-%d", i), func() int { return leaves })
	}
}

// TestBrakeKeepsForAMinute: the first of many must not be gone before the last is counted.
func TestBrakeKeepsForAMinute(t *testing.T) {
	c := testclock.NewFakeClock(time.Unix(0, 0))
	b := NewBrake(c)
	ok, again := b.Missing("m", "leaf", func() int { return 1000 })
	if ok || again != brakeWindow {
		t.Errorf("first sight: Missing = %v, %v, want to wait %v", ok, again, brakeWindow)
	}
	c.Step(brakeWindow - time.Second)
	if ok, again := b.Missing("m", "leaf", func() int { return 1000 }); ok || again != time.Second {
		t.Errorf("a second before: Missing = %v, %v, want to wait 1 s", ok, again)
	}
	c.Step(time.Second)
	if ok, _ := b.Missing("m", "leaf", func() int { return 1000 }); !ok {
		t.Error("after a minute: the leaf is still kept")
	}
}

// TestBrakeCountsLittle: a large mirror is not listed for each leaf that is missing.
func TestBrakeCountsLittle(t *testing.T) {
	c := testclock.NewFakeClock(time.Unix(0, 0))
	b := NewBrake(c)
	counts := 0
	for i := range 10_000 {
		b.Missing("m", fmt.Sprintf("leaf-%d", i), func() int { counts++; return 200_000 })
	}
	if counts != 1 {
		t.Errorf("the leaves were counted %d times for 10,000 that are missing at once", counts)
	}
	c.Step(brakeRecount)
	b.Missing("m", "one more", func() int { counts++; return 100_000 })
	if frozen, _ := b.Frozen("m"); !frozen || counts != 2 {
		t.Errorf("10,001 of 100,000 by now, counted %d times in all: frozen is %v", counts, frozen)
	}
}

// TestBrakeForgetsWhatCameBack: leaves that miss nothing any more, or went, are no part of a burst.
func TestBrakeForgetsWhatCameBack(t *testing.T) {
	c := testclock.NewFakeClock(time.Unix(0, 0))
	b := NewBrake(c)
	for i := range 100 {
		b.Missing("m", fmt.Sprintf("leaf-%d", i), func() int { return 50 })
		if i%brakeLeast == 0 {
			c.Step(brakeWindow) // some are forgotten within the minute, some after it
		}
		b.Forget("m", fmt.Sprintf("leaf-%d", i))
	}
	miss(b, 0, brakeLeast, 50)
	if frozen, missing := b.Frozen("m"); frozen || missing != brakeLeast {
		t.Errorf("frozen is %v with %d missing, want %d", frozen, missing, brakeLeast)
	}
	miss(b, brakeLeast, brakeLeast+1, 50)
	if frozen, _ := b.Frozen("m"); !frozen {
		t.Error("one more than may be missing freezes nothing")
	}
}
