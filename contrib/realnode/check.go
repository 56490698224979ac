package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"atoll.dev/atoll/internal/netns"
)

// lack is what a machine has not, and needs to run pods. The word is the same on all machines.
type lack struct{ what, why string }

// What a machine may lack, in the order in which it is looked for: without one of the first four nothing else is tried.
const (
	programsLack   = "programs" // of the machine
	buildLack      = "build"    // of ours
	rootLack       = "root"
	placeLack      = "place"
	namespacesLack = "namespaces"
	cgroupsLack    = "cgroups"
	seccompLack    = "seccomp"
	kmsgLack       = "kmsg"
	mountsLack     = "mounts"
	devicesLack    = "devices"
	overlayLack    = "overlay"
	networkLack    = "network"
	nftablesLack   = "nftables"
)

// programs are those that build.sh makes, beside this one.
var programs = []string{"physical", "kubelet", "kube-proxy", "coredns", "containerd", "containerd-shim-runc-v2", "ctr", "runc", pauseFile}

// plugins are the CNI plugins that pods' networks are made by.
var plugins = []string{"ptp", "host-local", "loopback"}

// check tries everything that running pods needs of a machine, and leaves nothing.
func check(ctx context.Context, o *options) []lack {
	if lacks := append(checkPrograms(o), checkRoot()...); len(lacks) > 0 {
		return lacks
	}
	if lacks := checkPlaces(o); len(lacks) > 0 {
		return lacks
	}
	lacks := checkCgroups(o)
	if _, err := os.ReadFile("/proc/sys/kernel/seccomp/actions_avail"); err != nil {
		lacks = append(lacks, lack{seccompLack, "the kernel has no seccomp filters, which the Pod Security Standard \"restricted\" asks for: " + err.Error()})
	}
	if f, err := os.Open("/dev/kmsg"); err != nil {
		lacks = append(lacks, lack{kmsgLack, "a kubelet reads the kernel's words about processes killed for memory: " + err.Error()})
	} else {
		_ = f.Close() // nothing was written
	}
	return append(lacks, checkNamespaces(ctx, o)...)
}

func checkPrograms(o *options) []lack {
	var lacks []lack
	missing := func(what string, names []string, how string) {
		if len(names) > 0 {
			lacks = append(lacks, lack{what, strings.Join(names, ", ") + " not found: " + how})
		}
	}
	missing(buildLack, absent(o.programs, programs), "contrib/realnode/build.sh builds them")
	const debian = "contrib/realnode/debian.sh installs what is Debian's"
	missing(programsLack, absent(o.plugins, plugins), debian)
	if !slices.ContainsFunc(filepath.SplitList(o.system), func(dir string) bool { return exists(filepath.Join(dir, "nft")) }) {
		missing(programsLack, []string{"nft"}, debian+" in "+o.system)
	}
	return lacks
}

func checkPlaces(o *options) []lack {
	var lacks []lack
	for _, path := range o.paths() {
		if hidden(*path) {
			lacks = append(lacks, lack{placeLack, *path + " is below /var or /run, which are the node's own in its namespaces: have it elsewhere"})
		}
	}
	return lacks
}

// absent returns the files that are not in a directory, by their paths.
func absent(dir string, names []string) []string {
	var missing []string
	for _, name := range names {
		if path := filepath.Join(dir, name); !exists(path) {
			missing = append(missing, path)
		}
	}
	return missing
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func checkRoot() []lack {
	if os.Geteuid() != 0 {
		return []lack{{rootLack, "a kubelet runs as root, and this is user " + fmt.Sprint(os.Geteuid())}}
	}
	return nil
}

func checkCgroups(o *options) []lack {
	all, err := readHierarchies()
	if err != nil {
		return []lack{{cgroupsLack, err.Error()}}
	}
	names, err := missing(all)
	if err != nil {
		return []lack{{cgroupsLack, err.Error()}}
	}
	if len(names) > 0 {
		return []lack{{cgroupsLack, "no mounted hierarchy has the controllers " + strings.Join(names, ", ")}}
	}
	probe := o.cgroup() + "-probe"
	if err := errors.Join(makeCgroups(all, probe), removeCgroups(all, probe)); err != nil {
		return []lack{{cgroupsLack, err.Error()}}
	}
	return nil
}

// checkNamespaces asks a process that has such as the node will have.
func checkNamespaces(ctx context.Context, o *options) (lacks []lack) {
	made := !exists(o.dir)
	if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return []lack{{mountsLack, err.Error()}}
	}
	dir, err := os.MkdirTemp(o.dir, "probe-")
	if err != nil {
		return []lack{{mountsLack, err.Error()}}
	}
	defer func() {
		err := os.RemoveAll(dir) // what it mounted went with it
		if made {
			err = errors.Join(err, os.Remove(o.dir))
		}
		if err != nil {
			lacks = append(lacks, lack{mountsLack, err.Error()})
		}
	}()
	probed := *o
	probed.dir = dir
	cmd := exec.CommandContext(ctx, "/proc/self/exe", append([]string{probeCommand}, probed.flags()...)...)
	cmd.SysProcAttr = namespaces()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return []lack{{namespacesLack, fmt.Sprintf("make namespaces of processes, mounts, network, names and IPC: %v %s", err, &stderr)}}
	}
	for line := range strings.Lines(string(out)) {
		what, why, _ := strings.Cut(strings.TrimSpace(line), "\t")
		lacks = append(lacks, lack{what, why})
	}
	return lacks
}

// probe is process 1 of such namespaces: it does what process 1 of a node does, and what components do that fails on some machines, and writes what does not work.
func probe(ctx context.Context, o *options, out io.Writer) error {
	if os.Getpid() != 1 {
		return errors.New("this is process 1 of namespaces that realnode makes itself")
	}
	if err := os.Setenv("PATH", o.system); err != nil {
		return err
	}
	for _, try := range []struct {
		what string
		do   func(context.Context, *options) error
	}{
		{mountsLack, func(_ context.Context, o *options) error { return own(o) }},
		{devicesLack, tryDevice},
		{overlayLack, tryOverlay},
		{networkLack, tryNetwork},
		{nftablesLack, tryNFTables},
	} {
		if err := try.do(ctx, o); err != nil {
			fmt.Fprintf(out, "%s\t%s\n", try.what, strings.Join(strings.Fields(err.Error()), " "))
			if try.what == mountsLack {
				return nil // the next ones would do it to the machine
			}
		}
	}
	return nil
}

// tryDevice makes a device, as runc does for each container.
func tryDevice(_ context.Context, o *options) error {
	null := o.path("null")
	if err := unix.Mknod(null, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
		return fmt.Errorf("make a device in %s: %w", o.dir, err)
	}
	f, err := os.OpenFile(null, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("open a device: %w", err)
	}
	return f.Close()
}

// tryOverlay mounts what containerd makes of an image and what a container writes.
func tryOverlay(_ context.Context, o *options) error {
	path := func(name string) string { return o.path("overlay", name) }
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.MkdirAll(path(name), 0o700); err != nil {
			return err
		}
	}
	what := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", path("lower"), path("upper"), path("work"))
	if err := unix.Mount("overlay", path("merged"), "overlay", 0, what); err != nil {
		return fmt.Errorf("mount an overlay in %s: %w", o.dir, err)
	}
	return nil
}

// tryNetwork gives a network namespace what a pod's has, by the plugin that does it for pods.
func tryNetwork(ctx context.Context, o *options) error {
	if err := network(); err != nil {
		return err
	}
	pod, err := netns.New(func() error { return nil })
	if err != nil {
		return err
	}
	defer pod.Close()
	cmd := exec.CommandContext(ctx, filepath.Join(o.plugins, "ptp"))
	cmd.Env = []string{
		"CNI_COMMAND=ADD", "CNI_CONTAINERID=probe", "CNI_IFNAME=eth0", "CNI_PATH=" + o.plugins,
		fmt.Sprintf("CNI_NETNS=/proc/%d/fd/%d", os.Getpid(), pod.Fd()),
	}
	cmd.Stdin = strings.NewReader(`{"cniVersion": "1.0.0", "name": "probe", "type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]]}}`)
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("give a pod a network: %w: %s", err, said)
	}
	// Nothing answers, but the way there is one: a pod's address is beyond the device that the plugin made.
	conn, err := net.Dial("udp", "10.244.0.2:9")
	if err != nil {
		return fmt.Errorf("find the way to a pod: %w", err)
	}
	return conn.Close()
}

//go:embed probe.nft
var services string

// tryNFTables makes rules as kube-proxy makes for a Service.
func tryNFTables(ctx context.Context, _ *options) error {
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(services)
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make rules for a Service: %w: %s", err, said)
	}
	return nil
}
