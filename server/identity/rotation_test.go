package identity

import (
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// start is when the tests begin.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const day = 24 * time.Hour

// numbered makes "keys" that are numbers.
func numbered() func() ([]byte, error) {
	n := 0
	return func() ([]byte, error) {
		n++
		return []byte(strconv.Itoa(n)), nil
	}
}

// Over three years no instant is without exactly one key that signs, and each token verifies until it ends.
func TestRotateOverYears(t *testing.T) {
	for _, longest := range []time.Duration{time.Hour, 30 * day, 400 * day} {
		generate := numbered()
		var keys []key
		needed := map[string]time.Time{} // by key, the end of the last token that it signed
		most := 0
		for now := start; now.Before(start.Add(3 * 365 * day)); now = now.Add(6 * time.Hour) {
			next, err := rotate(keys, now, longest, "https://atoll", generate)
			if err != nil {
				t.Fatal(err)
			}
			if again, err := rotate(next, now, longest, "https://atoll", generate); err != nil || !cmp.Equal(next, again) {
				t.Fatalf("at %s: what was rotated is rotated again: %v, %v", now, err, cmp.Diff(next, again))
			}
			keys, most = next, max(most, len(next))
			i := signer(keys, now)
			if i < 0 {
				t.Fatalf("at %s nothing signs: %v", now, keys)
			}
			needed[string(keys[i].Private)] = now.Add(longest)
			have := map[string]bool{}
			for _, k := range keys {
				have[string(k.Private)] = !now.After(k.VerifiesUntil)
			}
			for name, until := range needed {
				if !now.After(until) && !have[name] {
					t.Fatalf("at %s a token of key %s is valid until %s and cannot be verified", now, name, until)
				}
			}
		}
		if want := int((2*(longest+signingPeriod)+announcement)/signingPeriod) + 2; most > want {
			t.Errorf("with tokens of %s there were %d keys at once, want at most %d", longest, most, want)
		}
	}
}

func TestRotate(t *testing.T) {
	made := func(name string, from time.Time, verifies time.Time) key {
		return key{Private: []byte(name), SignsFrom: from, SignsUntil: from.Add(signingPeriod), VerifiesUntil: verifies, Bases: []string{"https://atoll"}}
	}
	at := func(k key, bases ...string) key {
		k.Bases = bases
		return k
	}
	plus := func(d time.Duration) time.Time { return start.Add(signingPeriod + d) }
	tests := map[string]struct {
		keys   []key
		now    time.Time
		want   []key
		signs  int
		reason string
	}{
		"first": {
			now: start, want: []key{made("1", start.Add(-skew), plus(day))}, signs: 0,
			reason: "it signs at once, on servers whose clock is behind as well, and verifies a day and the skew longer",
		},
		"young": {
			keys: []key{made("a", start, plus(day+skew))}, now: start.Add(signingPeriod - announcement - 1),
			want: []key{made("a", start, plus(day+skew))}, signs: 0, reason: "nothing is due",
		},
		"due": {
			keys: []key{made("a", start, plus(day+skew))}, now: start.Add(signingPeriod - announcement),
			want: []key{made("a", start, plus(day+skew)), made("1", plus(0), plus(0).Add(signingPeriod+day+skew))}, signs: 0,
			reason: "the next is published, and does not sign yet",
		},
		"next": {
			keys: []key{made("a", start, plus(day+skew)), made("b", plus(0), plus(60*day))}, now: plus(0),
			want: []key{made("a", start, plus(day+skew)), made("b", plus(0), plus(60*day))}, signs: 1, reason: "the next signs, the last verifies",
		},
		"done": {
			keys: []key{made("a", start, plus(day+skew)), made("b", plus(0), plus(60*day))}, now: plus(day + skew + 1),
			want: []key{made("a", start, plus(day+skew)), made("b", plus(0), plus(60*day))}, signs: 1, reason: "no token of the first can be valid, if the clock is right",
		},
		"done long ago": {
			keys: []key{made("a", start, plus(day+skew)), made("b", plus(10*day), plus(60*day))}, now: plus(day + skew).Add(signingPeriod + day + skew + 1),
			want: []key{made("b", plus(10*day), plus(60*day))}, signs: 0, reason: "whatever the clock is",
		},
		"a clock that is a month ahead": {
			keys: []key{made("a", start, plus(day+skew))}, now: plus(30 * day),
			want: []key{made("a", start, plus(day+skew)), made("1", plus(30*day-skew), plus(60*day-skew).Add(day+skew))}, signs: 1,
			reason: "it takes no key away from the others",
		},
		"beside a clock that is ahead": {
			keys: []key{made("a", start, plus(day+skew)), made("b", plus(30*day), plus(90*day))}, now: plus(-day),
			want: []key{made("a", start, plus(day+skew)), made("1", plus(0), plus(30*day).Add(day+skew)), made("b", plus(30*day), plus(90*day))}, signs: 0,
			reason: "there is a key that signs until that of the other does",
		},
		"asleep": {
			keys: []key{made("a", start, plus(day+skew))}, now: plus(90 * day),
			want: []key{made("1", plus(90*day-skew), plus(90*day).Add(signingPeriod+day))}, signs: 0, reason: "nobody asked for months",
		},
		"longer tokens": {
			keys: []key{made("a", start, plus(time.Hour))}, now: start.Add(day),
			want: []key{made("a", start, plus(day+skew))}, signs: 0, reason: "a server that gives longer tokens lengthens what it signs with",
		},
		"shorter tokens": {
			keys: []key{made("a", start, plus(90*day))}, now: start.Add(day),
			want: []key{made("a", start, plus(90*day))}, signs: 0, reason: "the longer ones that it signed stay valid",
		},
		"longer tokens, too late": {
			keys: []key{made("a", start, plus(time.Hour)), made("b", plus(0), plus(60*day))}, now: plus(30 * time.Minute),
			want: []key{made("a", start, plus(time.Hour)), made("b", plus(0), plus(60*day))}, signs: 1, reason: "it signs nothing any more",
		},
		"another address": {
			keys: []key{at(made("a", start, plus(day+skew)), "https://a", "https://z")}, now: start.Add(day),
			want: []key{at(made("a", start, plus(day+skew)), "https://a", "https://atoll", "https://z")}, signs: 0, reason: "what was issued by the others stays valid",
		},
		"another address, too late": {
			keys: []key{at(made("a", start, plus(day+skew)), "https://a"), made("b", plus(0), plus(60*day))}, now: plus(day),
			want: []key{at(made("a", start, plus(day+skew)), "https://a"), made("b", plus(0), plus(60*day))}, signs: 1, reason: "it signs nothing any more",
		},
	}
	for name, test := range tests {
		got, err := rotate(test.keys, test.now, day, "https://atoll", numbered())
		if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
			t.Errorf("%s: error %v (-want +got):\n%s%s", name, err, diff, test.reason)
		}
		if i := signer(got, test.now); i != test.signs {
			t.Errorf("%s: key %d signs, want %d: %s", name, i, test.signs, test.reason)
		}
	}
}
