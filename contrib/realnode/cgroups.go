package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// madeCgroups is what the sweeper says when the cgroups are there.
const madeCgroups = "made\n"

// hierarchy is a mounted tree of cgroups.
type hierarchy struct {
	mount   string
	options []string // the controllers among them, if it is of version 1
	unified bool     // it is of version 2, and the only one
}

// controllers are those that a kubelet and runc cannot do without, of either version of cgroups. Of version 2 they make use of one more.
var (
	controllers        = []string{"cpu", "cpuacct", "cpuset", "devices", "freezer", "memory", "pids"}
	unifiedControllers = []string{"cpu", "cpuset", "memory", "pids"}
	unifiedOptional    = "hugetlb"
)

// unifiedMount is where a hierarchy of version 2 is that is the only one, as kubelet and runc take it.
const unifiedMount = "/sys/fs/cgroup"

// hierarchies finds them in the content of /proc/self/mountinfo.
func hierarchies(mountinfo []byte) []hierarchy {
	var found []hierarchy
	for line := range bytes.Lines(mountinfo) {
		// "36 25 0:31 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:15 - cgroup cgroup rw,cpu,cpuacct": optional fields before the hyphen.
		before, after, ok := strings.Cut(strings.TrimSpace(string(line)), " - ")
		mount, filesystem := strings.Fields(before), strings.Fields(after)
		if !ok || len(mount) < 5 || len(filesystem) < 3 {
			continue
		}
		switch filesystem[0] {
		case "cgroup":
			found = append(found, hierarchy{mount: mount[4], options: strings.Split(filesystem[2], ",")})
		case "cgroup2":
			found = append(found, hierarchy{mount: mount[4], unified: mount[4] == unifiedMount})
		}
	}
	return found
}

func readHierarchies() ([]hierarchy, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return hierarchies(data), nil
}

// missing returns the controllers that none of the hierarchies has.
func missing(of []hierarchy) ([]string, error) {
	var has []string
	want := controllers
	for _, h := range of {
		has = append(has, h.options...)
		if h.unified {
			there, err := words(h.mount, "cgroup.controllers")
			if err != nil {
				return nil, err
			}
			has, want = append(has, there...), unifiedControllers
		}
	}
	return slices.DeleteFunc(slices.Clone(want), func(c string) bool { return slices.Contains(has, c) }), nil
}

// words reads a file of a cgroup.
func words(elem ...string) ([]string, error) {
	data, err := os.ReadFile(filepath.Join(elem...))
	return strings.Fields(string(data)), err
}

// makeCgroups makes a cgroup in each hierarchy, or takes over what an earlier node of that name has left.
func makeCgroups(of []hierarchy, name string) error {
	for _, h := range of {
		if h.unified {
			if err := enableControllers(h.mount); err != nil {
				return err
			}
		}
		if err := os.Mkdir(filepath.Join(h.mount, name), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// enableControllers gives cgroups below one of version 2 the controllers that a kubelet asks for. Who has the machine as a rule has given most of them already;
// those that are given stay, since others may have begun to use them.
func enableControllers(cgroup string) error {
	there, err := words(cgroup, "cgroup.controllers")
	if err != nil {
		return err
	}
	file := filepath.Join(cgroup, "cgroup.subtree_control")
	given, err := words(file)
	if err != nil {
		return err
	}
	var give []string
	for _, c := range append(slices.Clone(unifiedControllers), unifiedOptional) {
		if slices.Contains(there, c) && !slices.Contains(given, c) {
			give = append(give, "+"+c)
		}
	}
	if len(give) == 0 {
		return nil
	}
	return os.WriteFile(file, []byte(strings.Join(give, " ")), 0)
}

// removeCgroups removes a cgroup and all below it, in which no process is, from each hierarchy.
func removeCgroups(of []hierarchy, name string) error {
	var errs []error
	for _, h := range of {
		var all []string
		err := filepath.WalkDir(filepath.Join(h.mount, name), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			} else if err != nil {
				return err
			}
			if d.IsDir() {
				all = append(all, path)
			}
			return nil
		})
		if err != nil {
			errs = append(errs, err)
		}
		for _, path := range slices.Backward(all) { // the deepest first
			if err := unix.Rmdir(path); err != nil {
				errs = append(errs, fmt.Errorf("remove cgroup %s: %w", path, err))
			}
		}
	}
	return errors.Join(errs...)
}

// sweep makes the cgroups of a node, says so, and removes them when nothing is left that could be in them: when alive, whose other end is the first process's, has
// come to its end, and process 1 of the node's namespaces has ended, which the kernel lets happen after all others there have. It waits for who still does that for
// an earlier start: what holds the lock file.
func sweep(name, lock string, alive io.Reader, first *os.File, out io.Writer) error {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	held, err := os.OpenFile(lock, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer held.Close() // nothing was written
	if err := eintr(func() error { return unix.Flock(int(held.Fd()), unix.LOCK_EX) }); err != nil {
		return fmt.Errorf("lock %s: %w", lock, err)
	}
	all, err := readHierarchies()
	if err != nil {
		return err
	}
	if err := makeCgroups(all, name); err != nil {
		return errors.Join(err, removeCgroups(all, name))
	}
	_, sayErr := io.WriteString(out, madeCgroups)
	_, _ = io.Copy(io.Discard, alive) // an error also means that it is gone
	ended := []unix.PollFd{{Fd: int32(first.Fd()), Events: unix.POLLIN}}
	err = eintr(func() error {
		_, err := unix.Poll(ended, -1)
		return err
	})
	if err != nil {
		return fmt.Errorf("wait for process 1: %w", err)
	}
	return errors.Join(sayErr, removeCgroups(all, name))
}

// eintr calls f until no signal has interrupted it.
func eintr(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
