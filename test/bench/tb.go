package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"testing"
)

// tb lets a scenario use the test framework, which reports to a test. What the framework does not use of testing.TB is
// nil here.
type tb struct {
	testing.TB
	ctx      context.Context
	cancel   context.CancelFunc
	root     string // where TempDir makes directories
	cleanups []func()
	errs     []error
	failed   bool // the scenario has
}

// fatal is what Fatalf panics with.
type fatal struct{ error }

func (t *tb) Helper()                  {}
func (t *tb) Name() string             { return "bench" }
func (t *tb) Context() context.Context { return t.ctx }
func (t *tb) Cleanup(f func())         { t.cleanups = append(t.cleanups, f) }
func (t *tb) Failed() bool             { return t.failed || len(t.errs) > 0 }
func (t *tb) Log(args ...any)          { fmt.Fprintln(os.Stderr, args...) }
func (t *tb) Error(args ...any)        { t.errs = append(t.errs, fmt.Errorf("%s", fmt.Sprint(args...))) }
func (t *tb) Fatal(args ...any)        { panic(fatal{fmt.Errorf("%s", fmt.Sprint(args...))}) }

func (t *tb) Logf(format string, args ...any)   { fmt.Fprintf(os.Stderr, format+"\n", args...) }
func (t *tb) Errorf(format string, args ...any) { t.errs = append(t.errs, fmt.Errorf(format, args...)) }
func (t *tb) Fatalf(format string, args ...any) { panic(fatal{fmt.Errorf(format, args...)}) }

func (t *tb) TempDir() string {
	dir, err := os.MkdirTemp(t.root, "")
	if err != nil {
		t.Fatalf("make a directory: %v", err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove a directory: %v", err)
		}
	})
	return dir
}

// try calls f and returns its error, that of a Fatalf, or a panic with its stack.
func try(f func() error) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case fatal:
			err = r.error
		default:
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	return f()
}

// cleanUp calls what Cleanup was given, the last first, and returns what went wrong since the beginning.
func (t *tb) cleanUp() []error {
	t.cancel()
	for len(t.cleanups) > 0 {
		last := t.cleanups[len(t.cleanups)-1]
		t.cleanups = t.cleanups[:len(t.cleanups)-1]
		if err := try(func() error { last(); return nil }); err != nil {
			t.errs = append(t.errs, err)
		}
	}
	return t.errs
}
