package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// stopTimeout is how long a process may take to end by itself.
const stopTimeout = 20 * time.Second

// children are the processes that run in the background, each in a process group of its own so that a Ctrl-C meant for
// the demo does not end them in no order.
type children struct {
	keep bool // they may outlive the demo
	all  []*child
}

type child struct {
	name string
	cmd  *exec.Cmd
	// ended is closed when the process has; err then says how.
	ended chan struct{}
	err   error
}

// start runs a program with its output in logFile.
func (c *children) start(name, logFile string, cmd *exec.Cmd) (*child, error) {
	log, err := os.Create(logFile)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	ch := &child{name: name, cmd: cmd, ended: make(chan struct{})}
	go func() {
		defer close(ch.ended)
		ch.err = cmd.Wait()
	}()
	c.all = append(c.all, ch)
	return ch, nil
}

// stop ends all, the last started first, and returns what had to be killed.
func (c *children) stop() error {
	var errs []error
	for i := len(c.all) - 1; i >= 0; i-- {
		c.all[i].signal(syscall.SIGTERM)
	}
	deadline := time.After(stopTimeout)
	for _, ch := range c.all {
		select {
		case <-ch.ended:
		case <-deadline:
			errs = append(errs, fmt.Errorf("%s did not stop within %s and was killed", ch.name, stopTimeout))
			ch.signal(syscall.SIGKILL)
			<-ch.ended
		}
	}
	return errors.Join(errs...)
}

func (ch *child) signal(s syscall.Signal) {
	select {
	case <-ch.ended: // its pid may be another's by now
	default:
		_ = ch.cmd.Process.Signal(s) // it can only fail where the process is gone
	}
}

// pids are those of all, each after a space.
func (c *children) pids() string {
	var b strings.Builder
	for _, ch := range c.all {
		fmt.Fprintf(&b, " %d", ch.cmd.Process.Pid)
	}
	return b.String()
}
