package storage

import (
	"strings"
	"testing"
)

// FuzzWildcardFilter: a filter means exactly what was asked for, and never the parts of a longer path.
func FuzzWildcardFilter(f *testing.F) {
	for _, rest := range []string{"", "ns", "ns/name", "name", "/", "ns/", "/name", "ns/name/more", "*", "*/*", "..", "a,b=c", "a\\", "ns=x/name!=y", "\x00"} {
		for _, namespaced := range []bool{true, false} {
			f.Add(rest, namespaced, true)
			f.Add(rest, namespaced, false)
		}
	}
	f.Fuzz(func(t *testing.T, rest string, namespaced, recursive bool) {
		selector, err := wildcardFilter(rest, namespaced, recursive)
		if err != nil {
			return
		}
		if selector == nil {
			if rest != "" {
				t.Fatalf("%q is not filtered", rest)
			}
			return
		}
		var values []string
		for _, r := range selector.Requirements() {
			if strings.Contains(r.Value, "/") {
				t.Errorf("%q asks for %s %q", rest, r.Field, r.Value)
			}
			values = append(values, r.Value)
		}
		if got := strings.Join(values, "/"); got != rest {
			t.Errorf("%q asks for %q", rest, got)
		}
	})
}
