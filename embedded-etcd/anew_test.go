package embeddedetcd

import (
	"testing"
	"time"
)

func TestThrift(t *testing.T) {
	const mib = 1 << 20
	free := space{inUse: 10 * mib, file: 100 * mib}
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		before []space // one a minute
		next   time.Duration
		now    space
		want   bool
	}{
		"mostly free for long":          {before: []space{free, free, free, free, free, free}, now: free, want: true},
		"mostly free for a minute":      {before: []space{free}, now: free},
		"mostly free now":               {now: free},
		"was full in between":           {before: []space{free, free, free, {inUse: 26 * mib, file: 100 * mib}, free, free}, now: free},
		"is full again":                 {before: []space{free, free, free, free, free, free}, now: space{inUse: 26 * mib, file: 100 * mib}},
		"a quarter of it is in use":     {before: []space{free, free, free, free, free, free}, now: space{inUse: 25 * mib, file: 100 * mib}, want: true},
		"little is won":                 {before: []space{free, free, free, free, free, free}, now: space{inUse: mib, file: 16 * mib}},
		"takes long":                    {before: []space{free, free, free, free, free, free}, now: space{inUse: 33 * mib, file: 8192 * mib}},
		"just enough is won":            {before: []space{{inUse: mib, file: 17 * mib}, {inUse: mib, file: 17 * mib}, {inUse: mib, file: 17 * mib}, {inUse: mib, file: 17 * mib}, {inUse: mib, file: 17 * mib}, {inUse: mib, file: 17 * mib}}, now: space{inUse: mib, file: 17 * mib}, want: true},
		"was tried long ago":            {before: []space{free, free, free, free, free, free}, next: 6 * time.Minute, now: free, want: true},
		"was tried, and is not yet due": {before: []space{free, free, free, free, free, free}, next: 7 * time.Minute, now: free},
	} {
		t.Run(name, func(t *testing.T) {
			saved, now := thrift{after: 6 * time.Minute}, start
			for _, s := range test.before {
				if saved.due(now, s) {
					t.Errorf("due after %v already", now.Sub(start))
				}
				now = now.Add(time.Minute)
			}
			saved.next = start.Add(test.next)
			if got := saved.due(now, test.now); got != test.want {
				t.Errorf("due is %v after %v, want %v", got, now.Sub(start), test.want)
			}
		})
	}
}
