package framework

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Program is somebody else's program, which a test runs against a server.
type Program struct {
	Name   string // in messages
	Binary string
	Args   []string
	Env    []string                    // beside ours
	Ready  func(context.Context) error // nil once it can be used; it is asked again and again
}

// StartProgram starts a program that ends by SIGTERM, waits until it is ready, and stops it at the end of the test.
func StartProgram(t testing.TB, program Program) *Process {
	t.Helper()
	dir := t.TempDir()
	p := &Process{
		Dir: dir, t: t, name: program.Name, binary: program.Binary, args: program.Args,
		env: append(os.Environ(), program.Env...), log: filepath.Join(dir, "log"),
		attr:  &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}, // it does not look at its standard input
		ready: program.Ready,
	}
	t.Cleanup(p.Stop)
	p.Start()
	return p
}
