package client

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

// TestTouched: each set of labels is kept once; of more than a few it is not known which changed.
func TestTouched(t *testing.T) {
	web, db := map[string]string{"app": "web", "tier": "front"}, map[string]string{"app": "db"}
	var touched Touched
	by := func(selector string) bool {
		t.Helper()
		is, err := labels.Parse(selector)
		if err != nil {
			t.Fatal(err)
		}
		return touched.By(func(l map[string]string) bool { return is.Matches(labels.Set(l)) })
	}
	if by("") {
		t.Error("of nothing something has changed")
	}
	for range 3 {
		touched.Add(NewLabelled(web))
		touched.Add(NewLabelled(maps.Clone(web)))
		touched.Add(NewLabelled(db))
	}
	if touched.Len() != 2 {
		t.Errorf("%d sets of labels are kept, want each once", touched.Len())
	}
	if by("!app") {
		t.Error("one without labels has changed")
	}
	touched.Add(NewLabelled(nil))
	for selector, want := range map[string]bool{
		"app=web": true, "app=web,tier=front": true, "app=db,tier=front": false, "app=cache": false, "app!=web": true, "": true, "!app": true,
	} {
		if got := by(selector); got != want {
			t.Errorf("by %q it is %v, want %v", selector, got, want)
		}
	}
	for i := range 2 * MostTouched {
		touched.Add(NewLabelled(map[string]string{"n": fmt.Sprint(i)}))
		if touched.Len() > MostTouched {
			t.Fatalf("%d sets of labels are kept", touched.Len())
		}
	}
	if !by("app=cache") {
		t.Error("of many it is known that one has not changed")
	}
}

// TestManyLabels: of labels without number nothing is kept, nor held against others.
func TestManyLabels(t *testing.T) {
	many := func(n, size int) map[string]string {
		labels := map[string]string{}
		for i := range n {
			labels[fmt.Sprintf("label-%05d", i)] = strings.Repeat("x", size)
		}
		return labels
	}
	for name, tc := range map[string]struct {
		labels map[string]string
		few    bool
	}{
		"none":             {nil, true},
		"a few":            {many(MostLabels, 10), true},
		"one more":         {many(MostLabels+1, 10), false},
		"long ones":        {many(60, 63), false},
		"without a number": {many(50_000, 0), false},
		"left out before":  {map[string]string{"": ""}, false},
	} {
		var touched Touched
		touched.Add(NewLabelled(tc.labels))
		held := 0
		concerned := touched.By(func(map[string]string) bool { held++; return false })
		if few := FewLabels(tc.labels); few != tc.few || concerned == tc.few || (touched.Len() == 1) != tc.few || (held == 1) != tc.few {
			t.Errorf("%s: few are %v, held against %d times, all are concerned: %v", name, few, held, concerned)
		}
	}
}
