package embeddedetcd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// ErrInUse says that another process has the data directory.
var ErrInUse = errors.New("is in use")

// lockDir takes the data directory for this process, and returns what gives it back. etcd itself would wait for bbolt's
// lock without a word; this fails at once and says who holds the directory. The kernel drops the lock when a process
// ends in whatever way, so a lock file that lies there means nothing.
func lockDir(dir string) (unlock func(), err error) {
	path := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data directory %s: %w", dir, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock data directory %s: %w", dir, err)
		}
		holder := "another process"
		if pid, readErr := os.ReadFile(path); readErr == nil && len(pid) > 0 {
			holder = "process " + strings.TrimSpace(string(pid))
		}
		return nil, fmt.Errorf("data directory %s %w by %s: stop that one first, or give this one its own with --root-directory", dir, ErrInUse, holder)
	}
	// The number is only for the message above; a lock without it still holds.
	if err := f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("lock data directory %s: %w", dir, err)
		}
	}
	return func() { f.Close() }, nil
}
