package builtin

import (
	"errors"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// TestTally: as many pass at once as there is room for, few counts are needed for many, and what has ended makes room.
func TestTally(t *testing.T) {
	const most = 40
	clk := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	tally := newTallies(clk).get(tallyKey{"east", "root"})
	there, counts := 0, 0
	count := func() (int, error) {
		counts++
		return there, nil
	}
	var ends []func()
	for range most + 5 {
		end, _, err := tally.take(most, count)
		if err != nil {
			t.Fatal(err)
		}
		if end != nil {
			ends = append(ends, end) // none is written yet, so that no count finds it
		}
	}
	if len(ends) != most {
		t.Errorf("%d pass at once, want %d", len(ends), most)
	}
	for i, end := range ends {
		there++
		end()
		if i == most/2 {
			if end, shown, err := tally.take(most, count); end != nil || shown != most || err != nil {
				t.Errorf("while others are under way, of %d there is room for one more: %v", shown, err)
			}
		}
	}
	for range 5 {
		if end, shown, err := tally.take(most, count); end != nil || shown != most || err != nil {
			t.Errorf("of %d there is room for one more: %v", shown, err)
		}
	}
	if counts != 2 {
		t.Errorf("they were counted %d times, want at the first, and when there was no room, and not for each that is refused", counts)
	}

	there, counts = 0, 0
	clk.SetTime(clk.Now().Add(recountFull))
	for i := range most {
		end, _, err := tally.take(most, count)
		if err != nil || end == nil {
			t.Fatalf("%d pass after all had ended, want %d: %v", i, most, err)
		}
		there++
		end()
	}
	if counts != 1 {
		t.Errorf("they were counted %d times for %d pods, want once", counts, most)
	}

	if end, _, err := tally.take(most+1, count); end == nil || err != nil {
		t.Errorf("where more may be, there is no room for one: %v", err)
	} else {
		end()
	}

	broken := errors.New("etcd does not answer")
	if end, _, err := tally.take(most, func() (int, error) { return 0, broken }); end != nil || !errors.Is(err, broken) {
		t.Errorf("what cannot be counted passes: %v", err)
	}
}
