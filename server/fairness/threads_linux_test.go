package fairness

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestShortSlices asks in a process of its own, whose threads are not those of other tests.
func TestShortSlices(t *testing.T) {
	const child = "ATOLL_TEST_SHORT_SLICES"
	if os.Getenv(child) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestShortSlices$", "-test.v")
		cmd.Env = append(os.Environ(), child+"=1")
		out, err := cmd.CombinedOutput()
		switch said := string(out); {
		case strings.Contains(said, "--- SKIP"):
			t.Skip(said)
		case err != nil || !strings.Contains(said, "--- PASS"):
			t.Fatalf("%v\n%s", err, said)
		}
		return
	}
	const nice = 5
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, nice); err != nil { // of the thread
		t.Fatal(err)
	}
	before := threads(t)
	UseShortSlices()
	// They start further ones.
	done := make(chan struct{})
	defer close(done)
	for range 20 {
		started := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(started)
			<-done
		}()
		<-started
	}
	after := threads(t)
	if len(after) < len(before)+10 {
		t.Fatalf("%d threads, before %d: none were started", len(after), len(before))
	}
	for thread, attr := range after {
		if attr.Runtime != uint64(slice) {
			t.Errorf("thread %d has a slice of %s, want %s", thread, time.Duration(attr.Runtime), slice)
		}
		if was, ok := before[thread]; ok && (attr.Nice != was.Nice || attr.Policy != was.Policy) {
			t.Errorf("thread %d has niceness %d and policy %d, had %d and %d", thread, attr.Nice, attr.Policy, was.Nice, was.Policy)
		}
	}
}

// threads are those of the process. The test is skipped where the kernel has no slices.
func threads(t *testing.T) map[int]*unix.SchedAttr {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	all := map[int]*unix.SchedAttr{}
	for _, entry := range entries {
		var id int
		if _, err := fmt.Sscan(entry.Name(), &id); err != nil {
			t.Fatal(err)
		}
		attr, err := unix.SchedGetAttr(id, 0)
		if err != nil {
			t.Fatal(err)
		}
		if attr.Runtime == 0 {
			t.Skip("this kernel does not tell slices of threads: it takes Linux 6.12")
		}
		all[id] = attr
	}
	return all
}
