package realnodes

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// realNode is one as this machine sees it, on which others may run beside it.
type realNode struct {
	*testing.T
	dir    string // of the cluster
	cgroup string // the name below which its cgroups are
}

func newRealNode(t *testing.T, name string) *realNode {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, name)
	sum := sha256.Sum256([]byte(dir))
	return &realNode{T: t, dir: dir, cgroup: fmt.Sprintf("atoll-%s-%x", name, sum[:4])}
}

// processes are the words of each, by its number: those that name the directory, have it as /var, or are in a cgroup of the node.
func (r *realNode) processes() map[int][]string {
	r.Helper()
	found := map[int][]string{}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		r.Fatal(err)
	}
	ours, oursErr := os.Stat(filepath.Join(r.dir, "var"))
	if oursErr != nil && !errors.Is(oursErr, fs.ErrNotExist) {
		r.Fatal(oursErr)
	}
	for _, process := range all {
		command, err := os.ReadFile(filepath.Join(process, "cmdline"))
		cgroups, cgroupErr := os.ReadFile(filepath.Join(process, "cgroup"))
		if err != nil || cgroupErr != nil {
			continue // it has ended
		}
		theirs, err := os.Stat(filepath.Join(process, "root", "var"))
		if !strings.Contains(string(command), r.dir) && !strings.Contains(string(cgroups), "/"+r.cgroup) && (oursErr != nil || err != nil || !os.SameFile(ours, theirs)) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(process))
		if err != nil {
			r.Fatal(err)
		}
		found[pid] = strings.Split(strings.TrimSuffix(string(command), "\x00"), "\x00")
	}
	return found
}

// process is the number of the only one of that program.
func (r *realNode) process(program string) int {
	r.Helper()
	var found []int
	all := r.processes()
	for pid, words := range all {
		if words[0] == program {
			found = append(found, pid)
		}
	}
	if len(found) != 1 {
		r.Fatalf("%d processes of the node are %s, want one: %v", len(found), program, all)
	}
	return found[0]
}

// traces are the node's processes, the mounts that we see of its directory, its cgroups, and, since whose they are is not to be seen, addresses as nodes and pods have
// them, and the machine's settings.
func (r *realNode) traces() []string {
	r.Helper()
	var found []string
	for pid, words := range r.processes() {
		found = append(found, fmt.Sprintf("process %d %s", pid, strings.Join(words, " ")))
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		r.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, r.dir) {
			found = append(found, "mount "+strings.TrimSpace(line))
		}
	}
	for _, mount := range r.hierarchies() {
		err := filepath.WalkDir(filepath.Join(mount, r.cgroup), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				found = append(found, "cgroup "+path)
			}
			return nil // it goes while we look
		})
		if err != nil {
			r.Fatal(err)
		}
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		r.Fatal(err)
	}
	for _, address := range addresses {
		if strings.HasPrefix(address.String(), "10.254.0.") || strings.HasPrefix(address.String(), "10.244.") {
			found = append(found, "address "+address.String())
		}
	}
	for _, name := range machineSettings {
		value, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if err != nil {
			r.Fatal(err)
		}
		found = append(found, "setting "+name+"="+strings.TrimSpace(string(value)))
	}
	return found
}

// hierarchies are where cgroups are.
func (r *realNode) hierarchies() []string {
	r.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		r.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); fields[2] == "cgroup" || fields[2] == "cgroup2" {
			found = append(found, fields[1])
		}
	}
	return found
}

// shows fails where the traces of a node with a pod lack one of a kind that is to be seen of it: what is not seen then stays unseen.
func (r *realNode) shows(traces []string) {
	r.Helper()
	want := []string{"process .*kubelet", "process .*containerd-shim", "process .* serve"}
	for _, mount := range r.hierarchies() {
		want = append(want, "cgroup "+filepath.Join(mount, r.cgroup))
	}
	for _, w := range want {
		first, rest, _ := strings.Cut(w, ".*")
		if !slices.ContainsFunc(traces, func(s string) bool { return strings.HasPrefix(s, first) && strings.Contains(s, rest) }) {
			r.Errorf("while a pod runs there is no %s in\n%s", w, strings.Join(traces, "\n"))
		}
	}
}

// machineSettings are those that a kubelet writes where it may.
var machineSettings = []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"}

// keepsSettings: what the node's components may not write are the machine's settings. A kubelet that finds them as it wants them would not write anyway, so the
// files are asked that it has before it.
func (r *realNode) keepsSettings() {
	r.Helper()
	of := fmt.Sprintf("/proc/%d/root/proc/sys", r.process("kubelet"))
	readOnly := 0
	err := filepath.WalkDir(of, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path == filepath.Join(of, "net"):
			return fs.SkipDir // of the network namespace
		case d.IsDir():
			return nil
		}
		if info, err := d.Info(); err != nil || info.Mode()&0o222 == 0 {
			return err
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if errors.Is(err, syscall.EROFS) {
			readOnly++
			return nil
		} else if errors.Is(err, syscall.EACCES) {
			return nil // nor may we on the machine
		}
		r.Errorf("open %s in the node for writing: %v, want that it is read-only", path, err)
		if err == nil {
			return f.Close() // nothing is written
		}
		return nil
	})
	if err != nil {
		r.Fatal(err)
	}
	if readOnly < 50 {
		r.Errorf("only %d settings in the node are read-only", readOnly)
	}
	for _, name := range machineSettings {
		machine, err := os.Stat(filepath.Join("/proc/sys", name))
		if err != nil {
			r.Fatal(err)
		}
		node, err := os.Stat(filepath.Join(of, name))
		if err != nil || os.SameFile(machine, node) {
			r.Errorf("%s in the node is the machine's: %v", name, err)
		}
	}
}

// difference is what is in a and not in b, each as often as it is more.
func difference(a, b []string) []string {
	left := slices.Clone(b)
	var more []string
	for _, s := range a {
		if i := slices.Index(left, s); i >= 0 {
			left = slices.Delete(left, i, i+1)
		} else {
			more = append(more, s)
		}
	}
	return more
}
