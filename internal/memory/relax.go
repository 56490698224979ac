package memory

import (
	"os"
	"runtime/debug"
	"sync"
)

// percentAtStart is what the heap may grow by, of what the last collection found in use, before the next one.
const percentAtStart = 400

// Relax makes collections of garbage few until the function that it returns is called, for a time in which most of what is
// allocated stays: collecting while caches fill is a third of what a start with many workspaces costs. Where GOGC is set it
// holds from the beginning, and GOMEMLIMIT holds at all times.
func Relax() (restore func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	before := debug.SetGCPercent(percentAtStart)
	return sync.OnceFunc(func() { debug.SetGCPercent(before) })
}
