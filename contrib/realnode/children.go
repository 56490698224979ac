package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
)

// children are those of process 1, which are its own and those that others leave behind. It waits for all, so that package exec, which waits for its own, is not
// used here.
type children struct {
	first chan *child // the first component that ended

	mu    sync.Mutex
	known map[int]*child
}

// child is one that process 1 has started.
type child struct {
	step   step
	pid    int
	ended  chan struct{} // closed when it ended, after status was set
	status syscall.WaitStatus
}

func newChildren() *children {
	c := &children{first: make(chan *child, 1), known: map[int]*child{}}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGCHLD)
	go func() {
		for range signals {
			c.reap()
		}
	}()
	return c
}

// reap takes notice of all children that have ended.
func (c *children) reap() {
	for {
		c.mu.Lock() // neither between a start and its record, nor does a start take the number of one whose end is not recorded
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		ended := c.known[pid]
		delete(c.known, pid)
		c.mu.Unlock()
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return // none, or none that has ended
		}
		if ended == nil {
			continue
		}
		ended.status = status
		close(ended.ended)
		if !ended.step.once {
			select {
			case c.first <- ended:
			default:
			}
		}
	}
}

// start starts a program, whose words go to its log.
func (c *children) start(s step) (*child, error) {
	program, err := exec.LookPath(s.args[0])
	if err != nil {
		return nil, err
	}
	nothing, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer nothing.Close() // the child has its own
	files := []uintptr{nothing.Fd(), 1, 2}
	if s.log != "" {
		if err := os.MkdirAll(filepath.Dir(s.log), 0o755); err != nil {
			return nil, err
		}
		log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		defer log.Close() // the child has its own
		files = []uintptr{nothing.Fd(), log.Fd(), log.Fd()}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	pid, err := syscall.ForkExec(program, s.args, &syscall.ProcAttr{Dir: "/", Env: append(os.Environ(), s.env...), Files: files})
	if err != nil {
		return nil, err
	}
	started := &child{step: s, pid: pid, ended: make(chan struct{})}
	c.known[pid] = started
	return started, nil
}

// succeeded is for one that has ended.
func (c *child) succeeded() bool { return c.status.Exited() && c.status.ExitStatus() == 0 }

// failure says how one has ended that was not to.
func (c *child) failure() error {
	how := fmt.Sprintf("exit status %d", c.status.ExitStatus())
	if c.status.Signaled() {
		how = c.status.Signal().String()
	}
	if c.step.log == "" {
		return fmt.Errorf("%s ended: %s", c.step.name, how)
	}
	return fmt.Errorf("%s ended: %s; see %s", c.step.name, how, c.step.log)
}
