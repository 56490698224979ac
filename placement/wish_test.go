package placement

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
)

func TestParseWish(t *testing.T) {
	const (
		clusters = placementv1alpha1.ClustersAnnotation
		selector = placementv1alpha1.SelectorAnnotation
		most     = placementv1alpha1.MaxClustersAnnotation
		split    = placementv1alpha1.SplitAnnotation
	)
	// parsed is a wish in a form that can be compared.
	type parsed struct {
		Nowhere  bool
		Names    []string
		Selector string
		Max      int
		Split    placementv1alpha1.SplitPolicy
		Weights  map[string]int64
	}
	tests := map[string]struct {
		annotations map[string]string
		want        parsed
		err         string // part of the message
		reason      string
	}{
		"names":           {annotations: map[string]string{clusters: " west ,east,west"}, want: parsed{Names: []string{"east", "west"}, Split: "Even"}, reason: "spaces are tolerated, order and duplicates do not matter"},
		"all":             {annotations: map[string]string{clusters: " * "}, want: parsed{Split: "Even"}, reason: "no names, no limit"},
		"nowhere":         {annotations: map[string]string{clusters: " "}, want: parsed{Nowhere: true, Split: "Even"}, reason: "present and empty"},
		"selector":        {annotations: map[string]string{selector: "region=eu"}, want: parsed{Selector: "region=eu", Split: "Even"}, reason: "all that match"},
		"names, selector": {annotations: map[string]string{clusters: "a,b", selector: "x"}, want: parsed{Names: []string{"a", "b"}, Selector: "x", Split: "Even"}, reason: "both have to hold"},
		"max alone":       {annotations: map[string]string{most: "2"}, want: parsed{Max: 2, Split: "Even"}, reason: "two of all"},
		"split alone":     {annotations: map[string]string{split: "Duplicate"}, want: parsed{Max: 1, Split: "Duplicate"}, reason: "how to split says nothing of how many: one, as by default"},
		"weights alone":   {annotations: map[string]string{split: "Weighted: east = 3, west=0"}, want: parsed{Names: []string{"east", "west"}, Split: "Weighted", Weights: map[string]int64{"east": 3, "west": 0}}, reason: "weights name clusters"},
		"weights of all":  {annotations: map[string]string{clusters: "*", split: "Weighted:east=3"}, want: parsed{Split: "Weighted", Weights: map[string]int64{"east": 3}}, reason: "not limited to those with a weight"},

		"star and name":    {annotations: map[string]string{clusters: "*,east"}, err: `"*" cannot be the name`, reason: "either all or some"},
		"upper case":       {annotations: map[string]string{clusters: "East"}, err: `placement.atoll.dev/clusters="East" of namespace "shop"`, reason: "the message names annotation, value and place"},
		"trailing comma":   {annotations: map[string]string{clusters: "east,"}, err: `"" cannot be the name`, reason: "something is missing"},
		"bad selector":     {annotations: map[string]string{selector: "a in"}, err: "want a selector", reason: "the syntax is told"},
		"empty selector":   {annotations: map[string]string{selector: ""}, err: "it is empty", reason: "everything or nothing?"},
		"zero":             {annotations: map[string]string{most: "0"}, err: "positive number", reason: "nowhere is said otherwise"},
		"huge":             {annotations: map[string]string{most: "99999999999"}, err: "positive number", reason: "32 bit"},
		"capacity":         {annotations: map[string]string{split: "Capacity"}, err: "comes with a later version, use Even", reason: "not there yet"},
		"unknown split":    {annotations: map[string]string{split: "even"}, err: "want Even", reason: "case matters"},
		"even with list":   {annotations: map[string]string{split: "Even:a=1"}, err: "want Even", reason: "Even has no weights"},
		"weighted bare":    {annotations: map[string]string{split: "Weighted"}, err: "want Even", reason: "weights are missing"},
		"weighted empty":   {annotations: map[string]string{split: "Weighted:"}, err: "no weight", reason: "weights are missing"},
		"negative weight":  {annotations: map[string]string{split: "Weighted:a=-1"}, err: "no weight", reason: "0 is the least"},
		"too heavy":        {annotations: map[string]string{split: "Weighted:a=1000001"}, err: "no weight", reason: "sums must not overflow"},
		"weight twice":     {annotations: map[string]string{split: "Weighted:a=1,a=2"}, err: "two weights", reason: "which one?"},
		"no weight at all": {annotations: map[string]string{split: "Weighted:a=0"}, err: "every weight is 0", reason: "nothing would run"},
		"weight of other":  {annotations: map[string]string{clusters: "a", split: "Weighted:b=1"}, err: `weighs cluster "b"`, reason: "a slip of the pen in one of the two"},
		"first of several": {annotations: map[string]string{clusters: "A", split: "x"}, err: "placement.atoll.dev/clusters", reason: "one message, always the same"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w, err := parseWish(Level{Source: `namespace "shop"`, Annotations: tc.annotations})
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%s: got error %v, want one with %q", tc.reason, err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			got := parsed{Nowhere: w.nowhere, Names: w.names, Max: w.max, Split: w.split, Weights: w.weights}
			if w.selector != nil {
				got.Selector = w.selector.String()
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestSameWish(t *testing.T) {
	a := placementv1alpha1.ClustersAnnotation
	tests := map[string]struct {
		old, now map[string]string
		want     bool
		reason   string
	}{
		"other annotation": {old: map[string]string{"x": "1"}, now: nil, want: true, reason: "not ours"},
		"empty came":       {old: nil, now: map[string]string{a: ""}, reason: "present and empty is a wish: nowhere"},
		"changed":          {old: map[string]string{a: "a"}, now: map[string]string{a: "b"}, reason: "another wish"},
		"equal":            {old: map[string]string{a: "a"}, now: map[string]string{a: "a", "x": "1"}, want: true, reason: "the same wish"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := sameWish(tc.old, tc.now); got != tc.want {
				t.Errorf("%s: sameWish = %v", tc.reason, got)
			}
		})
	}
}

func FuzzParseNames(f *testing.F) {
	for _, s := range []string{"a,b", " a , b ", "*", "", ",", "a,,b", "A", "a;b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		names, err := parseNames(s)
		if err != nil {
			return
		}
		if len(names) == 0 || !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) != len(names) {
			t.Fatalf("parseNames(%q) = %q, want at least one name, sorted, each once", s, names)
		}
		if again, err := parseNames(strings.Join(names, ",")); err != nil || !slices.Equal(again, names) {
			t.Fatalf("parseNames(%q) = %q, which reads back as %q, %v", s, names, again, err)
		}
	})
}

func FuzzParseSplit(f *testing.F) {
	for _, s := range []string{"Even", "Duplicate", "Capacity", "Weighted:east=3,west=1", "Weighted:", "Weighted:a=-1", "Weighted: a = 1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		policy, weights, err := parseSplit(s)
		if err != nil {
			return
		}
		if (policy == placementv1alpha1.SplitWeighted) != (weights != nil) {
			t.Fatalf("parseSplit(%q) = %s, %v, want weights exactly for Weighted", s, policy, weights)
		}
		total := int64(0)
		for weight := range maps.Values(weights) {
			if weight < 0 || weight > maxWeight {
				t.Fatalf("parseSplit(%q) has weight %d", s, weight)
			}
			total += weight
		}
		if weights != nil && total == 0 {
			t.Fatalf("parseSplit(%q) has no weight at all", s)
		}
	})
}

// FuzzMessage looks for messages that would be refused as a condition's.
func FuzzMessage(f *testing.F) {
	f.Add("a", "b", "c", "d")
	f.Fuzz(func(t *testing.T, clusters, selector, most, split string) {
		d := Decide(Request{Levels: []Level{{Source: "x", Annotations: map[string]string{
			placementv1alpha1.ClustersAnnotation: clusters, placementv1alpha1.SelectorAnnotation: selector,
			placementv1alpha1.MaxClustersAnnotation: most, placementv1alpha1.SplitAnnotation: split,
		}}}}, ready(3), nil)
		if d.Reason == "" || d.Message == "" || len(d.Message) > 32768 {
			t.Fatalf("got reason %q and a message of %d bytes: %.100s", d.Reason, len(d.Message), d.Message)
		}
	})
}

// FuzzParseSelector: what is accepted selects the same when it is written out and read again, and is not empty.
func FuzzParseSelector(f *testing.F) {
	for _, s := range []string{"", "region=eu", "region=eu,tier!=test", "a in (b,c)", "a notin (b)", "!a", "a", "a>1", ",", "*", " ", "a in ()", "a=", "a==b,", "\x00", "a=b\x00,c=d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		selector, err := parseSelector(s)
		if err != nil {
			return
		}
		if selector.Empty() || strings.ContainsRune(s, 0) {
			t.Fatalf("parseSelector(%q) selects everything, or more than what it says", s)
		}
		again, err := parseSelector(selector.String())
		if err != nil || again.String() != selector.String() {
			t.Fatalf("parseSelector(%q) = %q, which reads back as %v, %v", s, selector, again, err)
		}
	})
}

// FuzzParseMax: a maximum is at least 1 and the number that is written there.
func FuzzParseMax(f *testing.F) {
	for _, s := range []string{"", "1", "2", "+2", "007", "0", "-1", "1.0", "2147483647", "2147483648", " 1", "1_000", "0x1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		most, err := parseMax(s)
		if err != nil {
			return
		}
		if most < 1 || strconv.Itoa(most) != strings.TrimLeft(strings.TrimPrefix(s, "+"), "0") {
			t.Fatalf("parseMax(%q) = %d", s, most)
		}
	})
}
