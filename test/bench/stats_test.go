package main

import (
	"math"
	"testing"
)

func TestStats(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i)
	}
	for name, tc := range map[string]struct {
		reason    string
		got, want float64
	}{
		"MedianOdd":    {"the middle one, unsorted input", Median([]float64{3, 1, 2}), 2},
		"MedianEven":   {"between the middle two", Median([]float64{4, 1, 2, 3}), 2.5},
		"MedianNone":   {"nothing was measured, which is not 0", Median(nil), math.NaN()},
		"P99":          {"99 of 1 to 100 are at most 99", Percentile(hundred, 99), 99},
		"P50":          {"50 of 1 to 100 are at most 50", Percentile(hundred, 50), 50},
		"P100":         {"the maximum", Percentile(hundred, 100), 100},
		"P0":           {"the minimum", Percentile(hundred, 0), 1},
		"P99OfFew":     {"of few samples the worst one", Percentile([]float64{1, 2, 3}, 99), 3},
		"PercentileNo": {"nothing was measured", Percentile(nil, 50), math.NaN()},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.got != tc.want && !(math.IsNaN(tc.got) && math.IsNaN(tc.want)) {
				t.Errorf("%s: got %v, want %v", tc.reason, tc.got, tc.want)
			}
		})
	}
}
