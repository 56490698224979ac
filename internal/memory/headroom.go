package memory

import (
	"os"
	"runtime"
	"runtime/debug"
	"sync"
)

// ServerHeadroom is the headroom of a server, in bytes: some twice what an empty one has in use. A collection costs what is in
// use and not what is thrown away, so that a small server that is busy would spend a quarter of its time on them.
const ServerHeadroom = 256 << 20

// usualPercent is what Go lets the heap grow by, of what is in use, before the next collection.
const usualPercent = 100

// Headroom lets the heap grow by that many bytes before the next collection, or to twice what is in use where that is more,
// until the function that it returns is called. Where GOGC is set, that holds; GOMEMLIMIT holds besides.
// What an idle process holds by it, ReleaseWhenIdle gives back.
func Headroom(bytes uint64) (end func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	h := &headroom{bytes: bytes}
	h.adjust()
	return func() {
		h.mutex.Lock()
		defer h.mutex.Unlock()
		h.ended = true
		debug.SetGCPercent(usualPercent)
	}
}

type headroom struct {
	bytes uint64
	mutex sync.Mutex
	ended bool // guarded by mutex
}

// percent is what gives the headroom at that many bytes in use.
func (h *headroom) percent(inUse uint64) int {
	return int(max(usualPercent, h.bytes*100/max(inUse, minInUse)))
}

// minInUse is what is taken to be in use until the first collection has found out: no process has less.
const minInUse = 4 << 20

// adjust goes by what the last collection found, and does so again after the next: nothing else changes what is known to be in use.
func (h *headroom) adjust() {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.ended {
		return
	}
	debug.SetGCPercent(h.percent(look().live))
	unused := &struct{ of *headroom }{h}
	runtime.AddCleanup(unused, (*headroom).adjust, h)
}
