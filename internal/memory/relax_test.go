package memory

import (
	"runtime/debug"
	"testing"
)

// percent is what the runtime goes by now.
func percent() int {
	now := debug.SetGCPercent(100)
	debug.SetGCPercent(now)
	return now
}

func TestRelax(t *testing.T) {
	for name, tc := range map[string]struct {
		variable string
		during   int
	}{
		"Default":     {"", percentAtStart},
		"SetByPerson": {"50", 77},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("GOGC", tc.variable)
			defer debug.SetGCPercent(debug.SetGCPercent(77))
			restore := Relax()
			if got := percent(); got != tc.during {
				t.Errorf("%d percent during the start, want %d", got, tc.during)
			}
			restore()
			if got := percent(); got != 77 {
				t.Errorf("%d percent after the start, want what it was before, 77", got)
			}
			debug.SetGCPercent(66)
			if restore(); percent() != 66 {
				t.Error("a second call changed it again")
			}
		})
	}
}
