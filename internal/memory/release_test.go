package memory

import (
	"context"
	"runtime"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

func TestWorthwhile(t *testing.T) {
	const mb = 1 << 20
	for name, tc := range map[string]struct {
		before, now usage
		want        bool
	}{
		"IdleAndFull":     {usage{1000 * mb, 100 * mb, 200 * mb}, usage{1001 * mb, 100 * mb, 200 * mb}, true},
		"IdleWithNoGain":  {usage{1000 * mb, 100 * mb, 105 * mb}, usage{1001 * mb, 100 * mb, 106 * mb}, false},
		"BusyThoughFull":  {usage{1000 * mb, 100 * mb, 200 * mb}, usage{1050 * mb, 100 * mb, 200 * mb}, false},
		"NothingInUseYet": {usage{}, usage{allocated: mb, held: mb}, false},
	} {
		if got := worthwhile(tc.before, tc.now); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}

var sink [][]byte

func TestReleaseWhenIdle(t *testing.T) {
	const garbage = 256 << 20
	clk := clocktesting.NewFakeClock(time.Now())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ReleaseWhenIdle(ctx, clk)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	for range garbage >> 20 {
		sink = append(sink, make([]byte, 1<<20))
	}
	runtime.GC() // what is in use is known
	sink = nil
	runtime.GC()
	if held := look().held; held < garbage/2 { // Go gives some of it back, in time
		t.Fatalf("%d bytes are held after %d bytes have become free, so nothing is shown by this test", held, garbage)
	}
	for {
		clk.Step(lookEvery)
		if look().held < garbage/4 {
			return
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("%d bytes are still held", look().held)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
