package framework

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// startTimeout covers a machine that builds something else meanwhile; alone, a start takes 4 s at most.
	startTimeout = 2 * time.Minute
	stopTimeout  = 30 * time.Second
	readyPoll    = 20 * time.Millisecond
	logTailLines = 80
)

// Process is a child process that a test can stop, kill, pause and start again. It is a program that ends when its
// standard input does, or is told by the kernel, so that it cannot outlive us. The methods are for one goroutine.
type Process struct {
	Dir string // where it keeps everything, the same after a Restart

	t      testing.TB
	name   string // in messages
	binary string
	args   []string
	env    []string             // nil: ours
	attr   *syscall.SysProcAttr // nil: nothing special
	log    string               // the file to which everything it prints is appended
	// prepare, if set, is called before each start.
	prepare func() error
	// ready returns nil once the process can be used. It is asked again and again until then.
	ready func(context.Context) error

	cmd  *exec.Cmd     // nil: not running
	pipe io.Closer     // the child's stdin
	done chan struct{} // closed when the child ended, after exit was set
	exit error
}

// Use makes t, a subtest, the one that a failure fails, until it ends.
func (p *Process) Use(t testing.TB) {
	before := p.t
	p.t = t
	t.Cleanup(func() { p.t = before })
}

// sharedBy is the process for a test that runs beside others, and neither stops nor starts it.
func (p *Process) sharedBy(t testing.TB) *Process {
	shared := *p
	shared.t = t
	return &shared
}

// Setenv sets a variable of its environment for the next starts.
func (p *Process) Setenv(key, value string) {
	if p.env == nil {
		p.env = os.Environ()
	}
	p.env = append(p.env, key+"="+value)
}

// Start starts the process, which is not running, and waits until it is ready.
func (p *Process) Start() {
	p.t.Helper()
	p.launch()
	p.await()
}

// launch starts the process and waits for nothing.
func (p *Process) launch() {
	p.t.Helper()
	if err := p.spawn(); err != nil {
		p.t.Fatalf("%s: start: %v", p.name, err)
	}
}

// await waits until the process is ready.
func (p *Process) await() {
	p.t.Helper()
	if !p.awaitOrEnd() {
		p.t.Fatalf("%s ended before it was ready: %v\n%s", p.name, p.exit, p.logTail())
	}
}

// TryStart starts the process, which is not running, and waits until it is ready or has ended with an error. Then it returns the end of
// its log.
func (p *Process) TryStart() (ended string) {
	p.t.Helper()
	p.launch()
	if p.awaitOrEnd() {
		return ""
	}
	var exit *exec.ExitError
	if !errors.As(p.exit, &exit) || exit.ExitCode() <= 0 {
		p.t.Errorf("%s ended with %v, want an exit code", p.name, p.exit)
	}
	return p.logTail()
}

// awaitOrEnd waits until the process is ready, or has ended.
func (p *Process) awaitOrEnd() (ready bool) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), startTimeout)
	defer cancel()
	for {
		last := p.ready(ctx)
		if last == nil {
			return true
		}
		select {
		case <-p.done:
			p.cmd = nil
			_ = p.pipe.Close() // nobody reads it any more
			return false
		case <-ctx.Done():
			p.t.Fatalf("%s is not ready after %s: %v\n%s", p.name, startTimeout, last, p.logTail())
		case <-time.After(readyPoll):
		}
	}
}

func (p *Process) spawn() error {
	if p.cmd != nil {
		return fmt.Errorf("it runs already as process %d", p.cmd.Process.Pid)
	}
	if err := os.MkdirAll(p.Dir, 0o700); err != nil {
		return err
	}
	if p.prepare != nil {
		if err := p.prepare(); err != nil {
			return err
		}
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own
	cmd := exec.Command(p.binary, p.args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = p.env
	if cmd.SysProcAttr = p.attr; p.attr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	// Its own process group, so that the ^C of a terminal reaches it through its end of stdin alone, after our cleanup.
	cmd.SysProcAttr.Setpgid = true
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	started, done := make(chan error), make(chan struct{})
	go func() {
		// A signal for our death is sent when the thread ends that started the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.exit = cmd.Wait()
			close(done)
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	p.cmd, p.pipe, p.done = cmd, pipe, done
	return nil
}

// Stop ends the process with SIGTERM and waits for it. It fails the test if that takes too long or ends with an error,
// and does nothing if the process does not run.
func (p *Process) Stop() {
	p.t.Helper()
	p.end(syscall.SIGTERM)
}

// Ends waits until the process ends by itself, with an error, and returns the end of its log.
func (p *Process) Ends(within time.Duration) string {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(within):
		p.t.Fatalf("%s has not ended after %s\n%s", p.name, within, p.logTail())
	}
	p.cmd = nil
	_ = p.pipe.Close() // nobody reads it any more
	if p.exit == nil {
		p.t.Errorf("%s ended without an error", p.name)
	}
	return p.logTail()
}

// Kill ends the process with SIGKILL. What it keeps stays.
func (p *Process) Kill() {
	p.t.Helper()
	p.end(syscall.SIGKILL)
}

// Restart starts the process again on what it keeps and on its address, stopping it before if it runs.
func (p *Process) Restart() {
	p.t.Helper()
	p.Stop()
	p.Start()
}

// Pause stops the process from doing anything, until Resume; its connections stay open. Stop and Kill end it nevertheless.
func (p *Process) Pause() {
	p.t.Helper()
	p.Signal(syscall.SIGSTOP)
	// The signal is on its way, and the process may answer still: it is stopped when its last thread is. That is asked for, and not taken: a second
	// Pause finds it, too.
	err := error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		err = unix.Waitid(unix.P_PID, p.PID(), nil, unix.WSTOPPED|unix.WNOWAIT, nil)
	}
	if err != nil {
		p.t.Fatalf("%s: wait until it is paused: %v", p.name, err)
	}
}

// Resume lets a paused process go on.
func (p *Process) Resume() {
	p.t.Helper()
	p.Signal(syscall.SIGCONT)
}

// Signal sends a signal to the running process.
func (p *Process) Signal(sig os.Signal) {
	p.t.Helper()
	if p.cmd == nil {
		p.t.Fatalf("%s is not running", p.name)
	}
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatalf("%s: send %v: %v", p.name, sig, err)
	}
}

// Running says whether the process was started and has not been stopped. For the goroutine that starts and stops it.
func (p *Process) Running() bool { return p.cmd != nil }

// PID of the running process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

func (p *Process) end(sig syscall.Signal) {
	p.t.Helper()
	if p.cmd == nil {
		return
	}
	cmd := p.cmd
	p.cmd = nil
	defer p.pipe.Close()
	// A paused process takes SIGTERM only once it goes on.
	for _, sig := range []syscall.Signal{sig, syscall.SIGCONT} {
		if err := cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			p.t.Errorf("%s: send %v: %v", p.name, sig, err)
		}
	}
	select {
	case <-p.done:
	case <-time.After(stopTimeout):
		_ = cmd.Process.Kill() // it may end just now
		<-p.done
		p.t.Errorf("%s did not stop in %s\n%s", p.name, stopTimeout, p.logTail())
	}
	if sig != syscall.SIGKILL && p.exit != nil {
		p.t.Errorf("%s stopped: %v\n%s", p.name, p.exit, p.logTail())
	} else if p.t.Failed() {
		p.t.Logf("%s", p.logTail())
	}
}

// Log returns everything that the process has printed, in all its lives.
func (p *Process) Log() string {
	p.t.Helper()
	data, err := os.ReadFile(p.log)
	if err != nil {
		p.t.Fatalf("%s: %v", p.name, err)
	}
	return string(data)
}

// logTail returns the last lines of the log, or why there are none.
func (p *Process) logTail() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return fmt.Sprintf("no log: %v", err)
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return p.log + ":\n" + strings.Join(lines[max(0, len(lines)-logTailLines):], "\n")
}
