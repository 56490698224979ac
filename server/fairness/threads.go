package fairness

import (
	"os"
	"runtime"
	"sync"
)

// threadsPerCPU is how many goroutines run at once for each CPU, by UseSpareThreads.
const threadsPerCPU = 2

// cpus is how many CPUs the process may use, by which work is dealt out: what Go says before UseSpareThreads.
var cpus = sync.OnceValue(func() int { return runtime.GOMAXPROCS(0) })

// UseSpareThreads lets Go run more goroutines at once than there are CPUs. Seats keep as many as there are CPUs busy, and the collector, while
// it works, half as many more; who asks for little would wait behind those at each step, for as long as Go lets one goroutine run, 10 ms. On a
// thread of its own it waits for the kernel alone, which prefers who has used little. It does nothing where GOMAXPROCS is set, or where the
// process may use fewer CPUs than the machine has: the kernel stops all of a control group that has used up its time. For the main function.
func UseSpareThreads() {
	if n := cpus(); os.Getenv("GOMAXPROCS") == "" && n == runtime.NumCPU() {
		runtime.GOMAXPROCS(threadsPerCPU * n)
	}
}
