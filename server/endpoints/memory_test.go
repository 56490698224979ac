package endpoints

import "runtime"

// allocated is how many bytes of memory something takes, all told: how much it does, whatever the machine does beside it.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
