package framework

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// seedVariable repeats a test that draws lots.
const seedVariable = "ATOLL_TEST_SEED"

// Seed returns the seed of a test that draws lots, and prints how to repeat it.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(seedVariable); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s=%q: %v", seedVariable, text, err)
		}
	}
	t.Logf("repeat with %s=%d", seedVariable, seed)
	return seed
}
