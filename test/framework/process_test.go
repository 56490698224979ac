package framework

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// childDir and childExit, in the environment, make the test binary a child: the directory that it keeps its record of
// starts in, and the code that it exits with on SIGTERM.
const (
	childDir  = "FRAMEWORK_CHILD_DIR"
	childExit = "FRAMEWORK_CHILD_EXIT"
	// childBusy makes it use all processors until it ends.
	childBusy = "FRAMEWORK_CHILD_BUSY"
	// parentDir makes it the parent of such a child: it starts one and is killed.
	parentDir = "FRAMEWORK_PARENT_DIR"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		child(dir)
	}
	os.Exit(m.Run())
}

func child(dir string) {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	end := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // any end will do
		close(end)
	}()
	fmt.Println("child is here")
	f, err := os.OpenFile(filepath.Join(dir, "starts"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(f, os.Getpid())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if os.Getenv(childBusy) != "" {
		for range 2 * runtime.NumCPU() {
			go func() {
				for {
					_, _ = os.Stat(dir) // each call is a thread of the kernel for itself
				}
			}()
		}
	}
	select {
	case <-term:
		code, _ := strconv.Atoi(os.Getenv(childExit)) // empty: 0
		os.Exit(code)
	case <-end:
		os.Exit(0)
	}
}

// newChild is not started yet.
func newChild(t *testing.T, failures testing.TB, dir string) *Process {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(childDir, dir)
	started := 0
	return &Process{
		Dir: dir, t: failures, name: "child", binary: binary, log: filepath.Join(dir, "log"),
		prepare: func() error { started = len(starts(dir)); return nil },
		ready: func(context.Context) error {
			if len(starts(dir)) == started {
				return fmt.Errorf("no new line in its record")
			}
			return nil
		},
	}
}

// starts returns the process ids of all starts so far.
func starts(dir string) []string {
	data, _ := os.ReadFile(filepath.Join(dir, "starts")) // none before the first
	return strings.Fields(string(data))
}

// state is the letter that the kernel has for a process, or "" if there is none: T is stopped, Z has ended.
func state(pid string) string {
	stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return ""
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return after[:1]
}

// standsStill fails the test unless each thread of a process is stopped.
func standsStill(t *testing.T, p *Process) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", p.PID()))
	if err != nil || len(threads) == 0 {
		t.Fatalf("threads %q, error %v", threads, err)
	}
	for _, thread := range threads {
		if s := state(strings.TrimPrefix(thread, "/proc/")); s != "T" {
			t.Fatalf("thread %s is in state %q", filepath.Base(thread), s)
		}
	}
}

func TestProcess(t *testing.T) {
	dir := t.TempDir()
	p := newChild(t, t, dir)
	t.Cleanup(p.Stop)
	isState := func(what string, want func(string) bool) {
		t.Helper()
		pid := starts(dir)[len(starts(dir))-1]
		Eventually(t, time.Minute, what, func() string {
			if s := state(pid); !want(s) {
				return "state is " + strconv.Quote(s)
			}
			return ""
		})
	}
	gone := func(s string) bool { return s == "" }

	p.Start()
	if pid := strconv.Itoa(p.PID()); starts(dir)[0] != pid {
		t.Errorf("process %s runs, its pid is said to be %s", starts(dir)[0], pid)
	}
	p.Pause()
	standsStill(t, p)
	p.Resume()
	isState("the resumed child goes on", func(s string) bool { return s == "S" || s == "R" })
	p.Restart()
	if len(starts(dir)) != 2 || state(starts(dir)[0]) != "" {
		t.Errorf("starts %v, the first is in state %q; want it gone and a second", starts(dir), state(starts(dir)[0]))
	}
	p.Pause()
	standsStill(t, p)
	p.Pause() // does nothing
	standsStill(t, p)
	p.Stop()
	isState("a paused child can be stopped", gone)
	p.Stop() // does nothing
	p.Start()
	p.Kill()
	isState("the killed child is gone", gone)
	p.Restart()
	if n := len(starts(dir)); n != 4 {
		t.Errorf("%d starts, want 4", n)
	}
	if log := p.logTail(); strings.Count(log, "child is here") != 4 {
		t.Errorf("the log has not what all four printed:\n%s", log)
	}
}

// TestPausedProcessStandsStill: when Pause returns, none of its threads goes on. A signal alone is on its way then.
func TestPausedProcessStandsStill(t *testing.T) {
	t.Setenv(childBusy, "yes")
	p := newChild(t, t, t.TempDir())
	t.Cleanup(p.Stop)
	p.Start()
	for range 200 {
		p.Pause()
		standsStill(t, p)
		p.Resume()
	}
}

// failures keeps what would fail a test.
type failures struct {
	testing.TB
	all []string
}

func (f *failures) Helper()                   {}
func (f *failures) Failed() bool              { return len(f.all) > 0 }
func (f *failures) Logf(string, ...any)       {}
func (f *failures) Errorf(s string, a ...any) { f.all = append(f.all, fmt.Sprintf(s, a...)) }
func (f *failures) Fatalf(s string, a ...any) { f.Errorf(s, a...); panic(f) }

// TestProcessTellsWhatFails: each with the last lines of the log.
func TestProcessTellsWhatFails(t *testing.T) {
	for _, test := range []struct {
		reason, want string
		do           func(*Process)
	}{
		{"it stops with an error", "child stopped: exit status 3\n", func(p *Process) { p.Start(); p.Stop() }},
		{"it ends before it is ready", "child ended before it was ready: exit status 3\n", func(p *Process) {
			p.ready = func(context.Context) error {
				if len(starts(p.Dir)) > 0 {
					_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may be gone
				}
				return fmt.Errorf("never")
			}
			p.Start()
		}},
		{"a restart after such an end starts it", "child stopped: exit status 3\n", func(p *Process) { p.Start(); p.Restart(); p.Kill() }},
	} {
		t.Run(test.reason, func(t *testing.T) {
			f := &failures{TB: t}
			dir := t.TempDir()
			t.Setenv(childExit, "3")
			p := newChild(t, f, dir)
			defer func() {
				_ = recover() // a Fatalf; it is among the failures
				if len(f.all) != 1 || !strings.HasPrefix(f.all[0], test.want) || !strings.HasSuffix(f.all[0], "child is here") {
					t.Errorf("failures %q, want one that starts %q and ends with the log", f.all, test.want)
				}
				for _, pid := range starts(dir) {
					if s := state(pid); s != "" {
						t.Errorf("process %s is left in state %s", pid, s)
					}
				}
			}()
			test.do(p)
		})
	}
}

// TestParent is the parent of TestNothingOutlivesTheTest.
func TestParent(t *testing.T) {
	dir := os.Getenv(parentDir)
	if dir == "" {
		t.Skip("this is for a child process of TestNothingOutlivesTheTest")
	}
	newChild(t, t, dir).Start()
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // cannot fail
	select {}
}

// TestNothingOutlivesTheTest: not even one that is killed.
func TestNothingOutlivesTheTest(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestParent$")
	cmd.Env = append(os.Environ(), parentDir+"="+dir)
	out, err := cmd.CombinedOutput()
	if len(starts(dir)) != 1 {
		t.Fatalf("%d children were started: %v\n%s", len(starts(dir)), err, out)
	}
	Eventually(t, time.Minute, "the child of the killed test ends", func() string {
		if s := state(starts(dir)[0]); s != "" && s != "Z" { // who inherits it may take a while to notice
			return "state is " + s
		}
		return ""
	})
}
