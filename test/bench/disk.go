package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	syncs    = 100
	syncSize = 4096 // bytes: about a record of etcd's log
)

// disk names what a directory is on, and how long that takes to keep a small write, for which every write to the store waits.
func disk(dir string) (string, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	on, err := filesystem(string(mounts), dir)
	if err != nil {
		return "", err
	}
	ms, err := syncLatencies(dir)
	if err != nil {
		return "", fmt.Errorf("measure fsync in %s: %w", dir, err)
	}
	return fmt.Sprintf("data on %s, fsync of 4 KiB in %s ms (median of %d)", on, threeDigits(Median(ms)), len(ms)), nil
}

// filesystem names the type of what is mounted at a directory, or above it, and its device if it has one. mounts is
// /proc/self/mountinfo, where of two mounts in one place the later hides the earlier.
func filesystem(mounts, dir string) (string, error) {
	var found, at string
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(mounts) {
		before, after, _ := strings.Cut(line, " - ")
		mount, source := strings.Fields(before), strings.Fields(after)
		if len(mount) < 5 || len(source) < 2 {
			return "", fmt.Errorf("a mount is not as in proc_pid_mountinfo(5): %q", line)
		}
		point := strings.TrimSuffix(unescape.Replace(mount[4]), "/")
		if dir != point && !strings.HasPrefix(dir, point+"/") || len(point) < len(at) {
			continue
		}
		found, at = source[0], point
		if strings.HasPrefix(source[1], "/dev/") {
			found += " of " + source[1]
		}
	}
	if found == "" {
		return "", fmt.Errorf("nothing is mounted at %s or above it", dir)
	}
	return found, nil
}

// syncLatencies returns how many milliseconds each of some writes at the end of a file in a directory took, with its fsync.
func syncLatencies(dir string) (ms []float64, err error) {
	f, err := os.CreateTemp(dir, "atoll-bench-fsync-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	block := make([]byte, syncSize)
	rand.Read(block)
	for range syncs {
		began := time.Now()
		if _, err := f.Write(block); err != nil {
			return nil, err
		}
		if err := f.Sync(); err != nil {
			return nil, err
		}
		ms = append(ms, Milliseconds(time.Since(began)))
	}
	return ms, nil
}
