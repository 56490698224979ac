package server

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/managedfields"
)

// TestConvertersAreBounded: who needs many loses his own, and not what others use; who is alone those that he has not used for
// longest.
func TestConvertersAreBounded(t *testing.T) {
	made := managedfields.NewDeducedTypeConverter()
	c := &converters{most: 100, of: map[string]*keptConverter{}}
	kept := func(reason string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, slices.Sorted(maps.Keys(c.of))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", reason, diff)
		}
	}
	c.add("apps/v1", &keptConverter{TypeConverter: made, bytes: 20, by: "bank"})
	for i := range 20 {
		c.add(fmt.Sprintf("large%02d", i), &keptConverter{TypeConverter: made, bytes: 30, by: "shop"})
	}
	kept("one has many", "apps/v1", "large18", "large19")
	c.get("large18")
	c.add("large20", &keptConverter{TypeConverter: made, bytes: 30, by: "shop"})
	kept("he used one", "apps/v1", "large18", "large20")
	c.add("large20", &keptConverter{TypeConverter: made, bytes: 10, by: "shop"})
	c.add("v1", &keptConverter{TypeConverter: made, bytes: 40, by: "bank"})
	kept("made twice, it counts once", "apps/v1", "large18", "large20", "v1")
	c.add("all", &keptConverter{TypeConverter: made, bytes: 1000, by: "bank"})
	kept("larger than all that is kept", "all")
	if c.get("v1") != nil || c.get("all") == nil || c.bytes != 1000 {
		t.Errorf("%d bytes are kept", c.bytes)
	}
}
