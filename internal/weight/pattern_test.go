package weight

import (
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// TestPattern: what is estimated is no less than what is taken, and not very many times that.
func TestPattern(t *testing.T) {
	for name, text := range map[string]string{
		"label":     `^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$`,
		"often":     `((x{10}){10}){10}`,
		"or not":    `(([a-z]{0,10}){0,10}){0,10}`,
		"long":      strings.Repeat("[a-z]x", 1000),
		"at least":  `(ab[cd]e){500,}`,
		"letters":   `(\pL{10}){100}`,
		"or others": strings.Repeat("(ab|cd|ef[gh]|.*)", 300),
	} {
		t.Run(name, func(t *testing.T) {
			const times = 20
			var before, after runtime.MemStats
			all := make([]*regexp.Regexp, times)
			runtime.GC()
			runtime.ReadMemStats(&before)
			for i := range all {
				all[i] = regexp.MustCompile(text)
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			takes := int64(after.HeapAlloc-before.HeapAlloc) / times
			runtime.KeepAlive(all)
			if got := Pattern(text); got < takes || got > 3*takes+10_000 {
				t.Errorf("it takes %d bytes, and is estimated at %d", takes, got)
			}
		})
	}
	for text, want := range map[string]int64{"": 224, "(": 0, "x{1001}": 0, "a": 224} {
		if got := Pattern(text); got != want {
			t.Errorf("%q is estimated at %d bytes, want %d", text, got, want)
		}
	}
}
