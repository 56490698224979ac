package memory

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

func TestPercent(t *testing.T) {
	const mb = 1 << 20
	for name, tc := range map[string]struct {
		inUse uint64
		want  int
	}{
		"UnknownYet": {0, 6400},
		"Small":      {64 * mb, 400},
		"AsMuch":     {256 * mb, 100},
		"Large":      {2048 * mb, 100},
	} {
		if got := (&Headroom{bytes: 256 * mb}).percent(tc.inUse); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

// percentNow is what the runtime goes by.
func percentNow() int {
	now := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(now)
	return int(now[0].Value.Uint64())
}

// waitPercent waits until the runtime goes by what is wanted: a cleanup runs some time after its collection.
func waitPercent(t *testing.T, when string, wanted func(int) bool) {
	t.Helper()
	for !wanted(percentNow()) {
		select {
		case <-t.Context().Done():
			t.Fatalf("%s the heap grows by %d percent", when, percentNow())
		case <-time.After(time.Millisecond):
		}
	}
}

func TestHeadroom(t *testing.T) {
	t.Setenv("GOGC", "")
	before := percentNow()
	defer debug.SetGCPercent(before)
	const bytes = 64 << 20
	h := NewHeadroom(0)
	if got := percentNow(); got != usualPercent {
		t.Errorf("%d percent without headroom, want %d", got, usualPercent)
	}
	sink = nil
	runtime.GC()
	h.Set(bytes)
	waitPercent(t, "with little in use", func(percent int) bool { return percent > 2*usualPercent })
	collections := func() uint32 {
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.NumGC
	}
	began := collections()
	for range 4 * bytes >> 10 {
		sink = [][]byte{make([]byte, 1<<10)}
	}
	// Without, one for each few MB.
	if n := collections() - began; n == 0 || n > 8 {
		t.Errorf("%d collections while four times the headroom was thrown away", n)
	}
	for range 2 * bytes >> 20 {
		sink = append(sink, make([]byte, 1<<20))
	}
	runtime.GC()
	waitPercent(t, "with twice the headroom in use", func(percent int) bool { return percent == usualPercent })
	sink = nil
	runtime.GC()
	waitPercent(t, "with little in use again", func(percent int) bool { return percent > 2*usualPercent })
	h.End()
	runtime.GC()
	if got := percentNow(); got != usualPercent {
		t.Errorf("%d percent at the end", got)
	}
}

func TestHeadroomAndGOGC(t *testing.T) {
	t.Setenv("GOGC", "50")
	defer debug.SetGCPercent(debug.SetGCPercent(77))
	h := NewHeadroom(64 << 20)
	if got := percentNow(); got != 77 {
		t.Errorf("%d percent, want what somebody has set", got)
	}
	if h.End(); percentNow() != 77 {
		t.Errorf("%d percent at the end, want what somebody has set", percentNow())
	}
}
