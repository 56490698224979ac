package client

import (
	"strings"
	"testing"
)

// FuzzParseKey: a key names one object, and is read as it was written. Where nothing is said of the logical cluster there is no key.
func FuzzParseKey(f *testing.F) {
	for _, text := range []string{"", "|", "a|", "a|b", "a|b/c", "a|/c", "a|b/", "a|b/c/d", "|b/c", "a|b|c", "a|b|c/d", "a/b|c", "a", "a/b", "*|b", "\x00|\xff"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		k, err := ParseKey(text)
		cluster, _, separated := strings.Cut(text, "|")
		if separated != (err == nil) {
			t.Fatalf("%q: %v", text, err)
		}
		if err != nil {
			return
		}
		if string(k.Cluster) != cluster || strings.Contains(k.Namespace, "/") {
			t.Errorf("%q is %#v", text, k)
		}
		if again, err := ParseKey(k.String()); err != nil || k.Namespace+k.Name != "" && !strings.Contains(k.Name, "/") && again != k {
			t.Errorf("%q is %#v, which is written %q and read as %#v, %v", text, k, k, again, err)
		}
	})
}
