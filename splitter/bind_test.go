package splitter

import "testing"

func TestPickCandidate(t *testing.T) {
	for name, tc := range map[string]struct {
		reason     string
		candidates []Candidate
		want       string // "" for none
	}{
		"none":      {"there is no cluster", nil, ""},
		"first":     {"equal input gives equal output", []Candidate{{Name: "west", Weight: 1}, {Name: "east", Weight: 1}}, "east"},
		"heaviest":  {"what is bound once cannot be divided", []Candidate{{Name: "east", Weight: 1}, {Name: "west", Weight: 3}}, "west"},
		"peers":     {"members reach each other's addresses", []Candidate{{Name: "east", Weight: 3}, {Name: "west", Weight: 1, Peers: true}}, "west"},
		"barred":    {"its syncer would let the pod lie", []Candidate{{Name: "east", Barred: true, Peers: true}, {Name: "west"}}, "west"},
		"unheard":   {"nobody would run it now", []Candidate{{Name: "east", Unheard: true, Weight: 9}, {Name: "west"}}, "west"},
		"no choice": {"it waits", []Candidate{{Name: "east", Unheard: true}, {Name: "west", Barred: true}}, ""},
	} {
		got := ""
		if i, ok := PickCandidate(tc.candidates); ok {
			got = tc.candidates[i].Name
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q: %s", name, got, tc.want, tc.reason)
		}
	}
}
