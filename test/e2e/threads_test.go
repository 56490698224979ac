package e2e

import (
	"regexp"
	"runtime"
	"strconv"
	"testing"

	"atoll.dev/atoll/test/framework"
)

// A server runs more goroutines at once than the machine has CPUs, so that who asks for little does not wait behind those that keep all CPUs
// busy; as many as it may use where that is less, or as GOMAXPROCS says.
func TestThreads(t *testing.T) {
	t.Parallel()
	byCPUs := runtime.GOMAXPROCS(0)
	if byCPUs == runtime.NumCPU() {
		byCPUs *= 2
	}
	for name, c := range map[string]struct {
		set  string
		want int
	}{
		"by CPUs": {want: byCPUs},
		"as told": {set: "3", want: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := framework.NewAtoll(t)
			a.Setenv("GOMAXPROCS", c.set)
			a.Start()
			metrics := a.MustStdout("kubectl", "get", "--raw", "/metrics")
			found := regexp.MustCompile(`(?m)^go_sched_gomaxprocs_threads (\d+)$`).FindStringSubmatch(metrics)
			if found == nil {
				t.Fatal("/metrics does not say how many goroutines run at once")
			}
			if got, _ := strconv.Atoi(found[1]); got != c.want {
				t.Errorf("%d goroutines run at once, want %d", got, c.want)
			}
		})
	}
}
