package splitter

import "testing"

func TestPickSeat(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		seats  []Seat
		want   string // "" for none
	}{
		"none":      {"there is no cluster", nil, ""},
		"first":     {"equal input gives equal output", []Seat{{Name: "west", Weight: 1}, {Name: "east", Weight: 1}}, "east"},
		"heaviest":  {"what is bound once cannot be divided", []Seat{{Name: "east", Weight: 1}, {Name: "west", Weight: 3}}, "west"},
		"peers":     {"members reach each other's addresses", []Seat{{Name: "east", Weight: 3}, {Name: "west", Weight: 1, Peers: true}}, "west"},
		"barred":    {"its syncer would let the pod lie", []Seat{{Name: "east", Barred: true, Peers: true}, {Name: "west"}}, "west"},
		"unheard":   {"nobody would run it now", []Seat{{Name: "east", Unheard: true, Weight: 9}, {Name: "west"}}, "west"},
		"no choice": {"it waits", []Seat{{Name: "east", Unheard: true}, {Name: "west", Barred: true}}, ""},
	} {
		got := ""
		if i, ok := PickSeat(tc.seats); ok {
			got = tc.seats[i].Name
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q: %s", name, got, tc.want, tc.reason)
		}
	}
}
