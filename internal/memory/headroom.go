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

// Headroom lets the heap grow by some bytes before the next collection, or to twice what is in use where that is more. Where GOGC
// is set, that holds; GOMEMLIMIT holds besides. What an idle process holds by it, ReleaseWhenIdle gives back, but for what lies
// between objects that are in use: so a start that leaves little in use has little headroom.
type Headroom struct {
	off   bool // GOGC holds
	mutex sync.Mutex
	bytes uint64 // guarded by mutex, as ended
	ended bool
}

// NewHeadroom gives that many bytes of headroom, until End.
func NewHeadroom(bytes uint64) *Headroom {
	h := &Headroom{off: os.Getenv("GOGC") != "", bytes: bytes}
	if !h.off {
		h.again()
	}
	return h
}

// Set changes the headroom.
func (h *Headroom) Set(bytes uint64) {
	h.mutex.Lock()
	h.bytes = bytes
	h.mutex.Unlock()
	h.adjust()
}

// End gives up the headroom.
func (h *Headroom) End() {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if !h.off && !h.ended {
		debug.SetGCPercent(usualPercent)
	}
	h.ended = true
}

// percent is what gives the headroom at that many bytes in use.
func (h *Headroom) percent(inUse uint64) int {
	return int(max(usualPercent, h.bytes*100/max(inUse, minInUse)))
}

// minInUse is what is taken to be in use until the first collection has found out: no process has less.
const minInUse = 4 << 20

// adjust goes by what the last collection found.
func (h *Headroom) adjust() {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if !h.off && !h.ended {
		debug.SetGCPercent(h.percent(look().live))
	}
}

// again adjusts, and does so after each collection: nothing else changes what is known to be in use.
func (h *Headroom) again() {
	h.mutex.Lock()
	ended := h.ended
	h.mutex.Unlock()
	if ended {
		return
	}
	h.adjust()
	unused := &struct{ of *Headroom }{h}
	runtime.AddCleanup(unused, (*Headroom).again, h)
}
