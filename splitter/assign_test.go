package splitter

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAssign(t *testing.T) {
	tests := map[string]struct {
		reason   string
		replicas int32
		weights  map[string]int64
		previous map[string]int32
		want     map[string]int32
	}{
		"Even":            {"no remainder, no question", 6, map[string]int64{"east": 1, "west": 1}, nil, map[string]int32{"east": 3, "west": 3}},
		"EvenTie":         {"equal fractions go by name", 7, map[string]int64{"west": 1, "east": 1}, nil, map[string]int32{"east": 4, "west": 3}},
		"TieStays":        {"equal fractions stay where they are", 7, map[string]int64{"west": 1, "east": 1}, map[string]int32{"east": 3, "west": 4}, map[string]int32{"east": 3, "west": 4}},
		"Weighted":        {"4 and 1.33 and 0.67 of 6", 6, map[string]int64{"a": 6, "b": 2, "c": 1}, nil, map[string]int32{"a": 4, "b": 1, "c": 1}},
		"AtLeastOne":      {"a small weight still gets one if there are enough", 3, map[string]int64{"a": 100, "b": 1}, nil, map[string]int32{"a": 2, "b": 1}},
		"OneByFraction":   {"who has none takes what is left, and nobody's whole share", 64, map[string]int64{"a": 1, "b": 43, "c": 84}, map[string]int32{"b": 68}, map[string]int32{"a": 1, "b": 21, "c": 42}},
		"NotEnough":       {"fewer replicas than clusters: by name", 1, map[string]int64{"a": 1, "b": 1}, nil, map[string]int32{"a": 1, "b": 0}},
		"WeightZero":      {"weight 0 gets nothing even with plenty", 9, map[string]int64{"a": 1, "b": 0}, nil, map[string]int32{"a": 9, "b": 0}},
		"AllZero":         {"weights that say nothing are equal", 4, map[string]int64{"a": 0, "b": 0}, nil, map[string]int32{"a": 2, "b": 2}},
		"Nothing":         {"no replicas, all keys", 0, map[string]int64{"a": 1, "b": 2}, nil, map[string]int32{"a": 0, "b": 0}},
		"Negative":        {"a negative number is none", -3, map[string]int64{"a": 1}, nil, map[string]int32{"a": 0}},
		"NoClusters":      {"nothing to give it to", 3, nil, nil, map[string]int32{}},
		"LargeWeights":    {"products beyond 64 bits", 10, map[string]int64{"a": 1 << 62, "b": 1 << 62, "c": 1 << 62}, nil, map[string]int32{"a": 4, "b": 3, "c": 3}},
		"PreviousNoClaim": {"what somebody has is no claim against a larger fraction", 3, map[string]int64{"a": 5, "b": 3}, map[string]int32{"a": 0, "b": 3}, map[string]int32{"a": 2, "b": 1}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Assign(tc.replicas, tc.weights, tc.previous)); diff != "" {
				t.Errorf("%s: Assign(...): -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func FuzzAssign(f *testing.F) {
	f.Add(int32(6), int64(1), int64(1), int64(1), int32(0), int32(0))
	f.Add(int32(7), int64(3), int64(0), int64(1), int32(5), int32(2))
	f.Add(int32(-1), int64(-3), int64(1<<62), int64(1<<62), int32(1), int32(1))
	f.Add(int32(64), int64(1), int64(43), int64(84), int32(0), int32(68)) // who gets its only one has half a pod, as another
	f.Fuzz(func(t *testing.T, replicas int32, a, b, c int64, pa, pb int32) {
		weights := map[string]int64{"a": a, "b": b, "c": c}
		got := Assign(replicas, weights, map[string]int32{"a": pa, "b": pb})
		var sum int64
		positive := int32(0)
		for name, share := range got {
			if share < 0 {
				t.Fatalf("negative share: %v", got)
			}
			sum += int64(share)
			if weights[name] > 0 {
				positive++
			}
		}
		if len(got) != 3 || sum != int64(max(replicas, 0)) {
			t.Fatalf("Assign(%d, %v) = %v: want all keys and the exact sum", replicas, weights, got)
		}
		if positive > 0 {
			for name, share := range got {
				if weights[name] <= 0 && share > 0 || weights[name] > 0 && share == 0 && replicas >= positive {
					t.Fatalf("Assign(%d, %v) = %v: %s has a wrong share", replicas, weights, got, name)
				}
			}
		}
		if again := Assign(replicas, weights, got); !cmp.Equal(got, again) {
			t.Fatalf("Assign(%d, %v) is not stable: %v, then %v", replicas, weights, got, again)
		}
	})
}

func TestDuplicate(t *testing.T) {
	want := map[string]int32{"a": 3, "b": 3}
	if diff := cmp.Diff(want, Duplicate(3, map[string]int64{"a": 1, "b": 7})); diff != "" {
		t.Errorf("Duplicate: -want, +got:\n%s", diff)
	}
}
