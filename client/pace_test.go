package client

import (
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"
)

func TestPace(t *testing.T) {
	const patience = 300 * time.Millisecond
	for name, tc := range map[string]struct {
		wrote    []string // versions, 100 ms apart; the last one just now
		later    time.Duration
		seen     string
		patience time.Duration
		want     time.Duration
		reason   string
	}{
		"Never":           {nil, 0, "1", patience, 0, "the first change is written at once"},
		"JustNow":         {[]string{"2"}, 0, "2", patience, patience, "more may come"},
		"Soon":            {[]string{"2"}, 100 * time.Millisecond, "2", patience, 200 * time.Millisecond, "what is left of it"},
		"Due":             {[]string{"2"}, patience, "2", patience, 0, "the last step is written"},
		"Urgent":          {[]string{"2"}, 0, "2", 0, 0, "somebody waits for it"},
		"Behind":          {[]string{"2"}, 0, "1", 0, unseen, "it would be a conflict"},
		"BehindForLong":   {[]string{"2"}, unseen, "1", 0, 0, "the other end may be another, which counts anew"},
		"Ahead":           {[]string{"2"}, 0, "10", 0, 0, "somebody else has written it since"},
		"SomethingElse":   {[]string{""}, 0, "1", patience, patience, "its effect is waited for"},
		"BehindBefore":    {[]string{"2", ""}, 0, "1", 0, unseen, "the write before is not shown yet"},
		"ClockTurnedBack": {[]string{"2"}, -time.Hour, "2", patience, 0, "nobody knows how long ago that was"},
		"NoVersion":       {[]string{"2"}, 0, "", patience, patience, "nothing to compare"},
	} {
		t.Run(name, func(t *testing.T) {
			clk := testclock.NewFakePassiveClock(time.Unix(1_000_000, 0))
			p := NewPace[string](clk)
			for i, version := range tc.wrote {
				clk.SetTime(time.Unix(1_000_000, int64(i)*int64(100*time.Millisecond)))
				p.Wrote("k", version)
			}
			clk.SetTime(clk.Now().Add(tc.later))
			if got := p.Wait("k", tc.seen, tc.patience); got != tc.want {
				t.Errorf("wait %s, want %s: %s", got, tc.want, tc.reason)
			}
			if got := p.Wait("other", tc.seen, tc.patience); got != 0 {
				t.Errorf("another object waits %s", got)
			}
		})
	}
}
