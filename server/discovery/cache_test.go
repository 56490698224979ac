package discovery

import (
	"errors"
	"fmt"
	"sync"
	"testing"
)

func keyOf(i int) cacheKey { return key(fmt.Sprint(i), "", nil) }

func sized(bytes int) func() (*document, error) {
	return func() (*document, error) { return &document{gzipped: make([]byte, bytes)}, nil }
}

func TestCacheIsBounded(t *testing.T) {
	c := newDocumentCache(100)
	mustMake := func(i int, want bool) {
		t.Helper()
		made := false
		if _, err := c.get(keyOf(i), func() (*document, error) { made = true; return sized(40)() }); err != nil || made != want {
			t.Errorf("document %d was made: %t, want %t (%v)", i, made, want, err)
		}
	}
	mustMake(1, true)
	mustMake(2, true)
	mustMake(1, false)
	mustMake(3, true) // 2 goes: 1 was used since
	mustMake(1, false)
	mustMake(2, true)
	if c.size > c.limit || len(c.byKey) != c.used.Len() || len(c.byKey) != 2 {
		t.Errorf("%d bytes in %d documents, %d in order", c.size, len(c.byKey), c.used.Len())
	}
	if _, err := c.get(keyOf(9), sized(101)); err != nil {
		t.Error(err)
	}
	if c.size > c.limit || len(c.byKey) != 2 {
		t.Errorf("one that is too large was kept: %d bytes in %d documents", c.size, len(c.byKey))
	}
}

func TestCacheMakesOnce(t *testing.T) {
	c := newDocumentCache(100)
	var making sync.WaitGroup
	made := 0
	for range 20 {
		making.Go(func() {
			if _, err := c.get(keyOf(1), func() (*document, error) { made++; return sized(1)() }); err != nil {
				t.Error(err)
			}
		})
	}
	making.Wait()
	if made != 1 {
		t.Errorf("made %d times", made)
	}
	broken := errors.New("broken")
	if _, err := c.get(keyOf(2), func() (*document, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	if _, err := c.get(keyOf(2), sized(1)); err != nil {
		t.Errorf("a failure was kept: %v", err)
	}
}

// TestKeys are equal for equal documents alone.
func TestKeys(t *testing.T) {
	a, b := define("ants.example.com", "x", "v1"), define("bees.example.com", "y", "v1")
	seen := map[cacheKey]string{}
	for name, k := range map[string]cacheKey{
		"a":         key(openAPIv3, "example.com/v1", served(t, a)),
		"b":         key(openAPIv3, "example.com/v1", served(t, b)),
		"a and b":   key(openAPIv3, "example.com/v1", served(t, a, b)),
		"v2 of a":   key(openAPIv3, "example.com/v2", served(t, a)),
		"nothing":   key(openAPIv3, "example.com/v1", nil),
		"protobuf":  key(openAPIv3+"proto", "example.com/v1", served(t, a)),
		"OpenAPIv2": key(openAPIv2, "example.com/v1", served(t, a)),
	} {
		if other, ok := seen[k]; ok {
			t.Errorf("%s and %s have one key", name, other)
		}
		seen[k] = name
	}
	if key(openAPIv3, "example.com/v1", served(t, a)) != key(openAPIv3, "example.com/v1", served(t, define("ants.example.com", "x", "v1"))) {
		t.Error("equal definitions have two keys")
	}
}
