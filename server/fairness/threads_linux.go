package fairness

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// slice is for how long the kernel lets one thread of the process run while others wait, where it would be a few milliseconds.
const slice = 200 * time.Microsecond

// UseShortSlices asks the kernel to let no thread of the process run for long while another waits. A long list computes for as long as it
// is let, and a request that asks for little waits for that at each step, since each is on another thread. It takes Linux 6.12 to do
// something. For the main function, before there is much else: threads get it from those that start them.
func UseShortSlices() {
	asked := map[int]bool{}
	for more := true; more; { // others may be started meanwhile
		more = false
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			klog.V(2).InfoS("Threads run for as long as the kernel lets them", "err", err)
			return
		}
		for _, of := range threads {
			id, err := strconv.Atoi(of.Name())
			if err != nil || asked[id] {
				continue
			}
			asked[id], more = true, true
			if err := useSlice(id, slice); err != nil {
				klog.V(2).InfoS("A thread runs for as long as the kernel lets it", "err", err)
			}
		}
	}
}

// useSlice asks for the slice of a thread. What else is asked of the kernel for it stays.
func useSlice(thread int, d time.Duration) error {
	attr, err := unix.SchedGetAttr(thread, 0)
	if err != nil {
		return fmt.Errorf("read how thread %d is scheduled: %w", thread, err)
	}
	if attr.Policy != unix.SCHED_NORMAL && attr.Policy != unix.SCHED_BATCH {
		return nil // of others runtime means something else
	}
	attr.Runtime = uint64(d)
	if err := unix.SchedSetAttr(thread, attr, 0); err != nil {
		return fmt.Errorf("have thread %d scheduled for %s at a time: %w", thread, d, err)
	}
	return nil
}
