// Package process has how processes that run clusters end and keep out of each other's way.
package process

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// UntilEOF returns a context that ends when r does: the parent holds the other end of our stdin, and the kernel
// closes it however the parent dies.
func UntilEOF(ctx context.Context, r io.Reader) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, r) // an error also means that the parent is gone
	}()
	return ctx
}

// Lock takes a file, which keeps a second process off its directory. The kernel drops the lock with the process.
func Lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock file: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close() // the lock error is the one to tell
		return nil, fmt.Errorf("another process runs the cluster in %s: %w", filepath.Dir(path), err)
	}
	return func() { _ = f.Close() }, nil // nothing was written
}
