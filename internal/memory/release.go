// Package memory decides how much memory the garbage collector may take: some when the process is busy, so that it collects
// seldom, and nothing that is not in use when it is idle.
//
// Go lets the heap grow to twice what is in use before it collects (GOGC), and keeps that much for the next time. That is
// little for a small server, which would collect all the time, and much for a server that has thousands of idle workspaces:
// it is idle itself most of the time, and would hold twice what they cost.
package memory

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// lookEvery is the time between two looks at the heap.
	lookEvery = 5 * time.Second
	// A process is idle that allocates less than this fraction of what is in use between two looks.
	busyFraction = 1.0 / 16
	// Only a gain of more than this fraction of what is in use is worth a collection.
	gainFraction = 1.0 / 8
)

// usage of the heap, in bytes.
type usage struct {
	allocated uint64 // ever
	live      uint64 // found in use by the last collection
	held      uint64 // of the system's memory: in use, garbage, or free and not given back
}

const (
	allocated = "/gc/heap/allocs:bytes"
	live      = "/gc/heap/live:bytes"
	objects   = "/memory/classes/heap/objects:bytes"
	free      = "/memory/classes/heap/free:bytes"
)

func look() usage {
	samples := []metrics.Sample{{Name: allocated}, {Name: live}, {Name: objects}, {Name: free}}
	metrics.Read(samples)
	return usage{samples[0].Value.Uint64(), samples[1].Value.Uint64(), samples[2].Value.Uint64() + samples[3].Value.Uint64()}
}

// worthwhile says whether a process that went from one usage to the next has been idle, and holds much more than it uses.
func worthwhile(before, now usage) bool {
	idle := float64(now.allocated-before.allocated) < busyFraction*float64(now.live)
	return idle && float64(now.held) > (1+gainFraction)*float64(now.live)
}

// ReleaseWhenIdle gives unused memory back whenever the process is idle, until ctx ends.
func ReleaseWhenIdle(ctx context.Context, clk clock.WithTicker) {
	ticker := clk.NewTicker(lookEvery)
	defer ticker.Stop()
	for before := look(); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		now := look()
		if worthwhile(before, now) {
			debug.FreeOSMemory()
			after := look()
			klog.FromContext(ctx).V(4).Info("Gave unused memory back", "bytesHeldBefore", now.held, "bytesHeld", after.held)
			now = after
		}
		before = now
	}
}
