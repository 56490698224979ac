package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"k8s.io/component-helpers/node/util/sysctl"
)

// runInit is process 1 of the node's namespaces: it makes them what components find on a machine of their own, starts these in order, and returns when one has
// ended or it is told to stop. The kernel then ends the rest.
func runInit(o *options) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	if os.Getpid() != 1 {
		return errors.New("this is process 1 of a node, which realnode starts itself")
	}
	children := newChildren()
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return nil // the first process could not go on, and says why
	}
	if err := own(o); err != nil {
		return fmt.Errorf("make the node's file system: %w", err)
	}
	if err := writeFiles(o); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(o.node())); err != nil {
		return fmt.Errorf("name the node: %w", err)
	}
	for key, value := range map[string]string{"PATH": o.programs + ":" + o.system, "TMPDIR": "/var/tmp", "HOME": "/var/tmp"} {
		if err := os.Setenv(key, value); err != nil {
			return err
		}
	}
	physical, err := startAll(o, children, stop)
	if err != nil || physical == nil {
		return err
	}
	select {
	case c := <-children.first:
		return c.failure()
	case <-stop:
	}
	// What was written survives a kill, but a stop in order is the quieter one. What else runs is pods and what can be killed at any time.
	if err := syscall.Kill(physical.pid, syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop physical: %w", err)
	}
	<-physical.ended
	if physical.succeeded() {
		return nil
	}
	return physical.failure()
}

// startAll starts the components, and returns the one that is to be stopped in order; nil if it was told to stop before.
func startAll(o *options, children *children, stop <-chan os.Signal) (physical *child, err error) {
	ready, err := listenForReady()
	if err != nil {
		return nil, err
	}
	defer ready.Close()
	for _, step := range o.steps() {
		c, err := children.start(step)
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", step.name, err)
		}
		said := make(chan error, 1)
		if step.notifies {
			go func() { said <- untilReady(ready) }()
		}
		if next, err := children.await(c, said, stop); err != nil || !next {
			return nil, err
		}
		if step.name == "physical" {
			physical = c
		}
	}
	return physical, nil
}

// await waits until the next one may be started after c: when c has ended, or said that it is ready, as its step is. It may not where that tells to stop, or fails,
// nor where another one has ended meanwhile: c may not get on without it.
func (c *children) await(last *child, said <-chan error, stop <-chan os.Signal) (next bool, err error) {
	if !last.step.once && !last.step.notifies {
		return true, nil
	}
	select {
	case err := <-said:
		if err != nil {
			return false, fmt.Errorf("wait for %s: %w", last.step.name, err)
		}
		return true, nil
	case ended := <-c.first:
		return false, ended.failure()
	case <-last.ended:
		if last.step.once && last.succeeded() {
			return true, nil
		}
		if len(c.first) > 0 {
			last = <-c.first // which is why
		}
		return false, last.failure()
	case <-stop:
		return false, nil
	}
}

// own makes mounts that nobody outside sees: /proc of these processes, /run in memory, and the directory's var as /var, so that programs find their usual places
// empty at first and as they left them later. Settings of the machine are not the node's.
func own(o *options) error {
	// First not to be told of mounts outside, nor tell of ours; then to share among each other, as on a machine.
	for _, flag := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
		if err := unix.Mount("", "/", "", unix.MS_REC|flag, ""); err != nil {
			return fmt.Errorf("change the propagation of mounts: %w", err)
		}
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	for _, dir := range []string{"lib", "log", "tmp"} {
		if err := os.MkdirAll(o.path("var", dir), 0o755); err != nil {
			return err
		}
	}
	if err := os.Symlink("/run", o.path("var", "run")); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := unix.Mount(o.path("var"), "/var", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s at /var: %w", o.path("var"), err)
	}
	return ownSettings(o)
}

// settings are those of the whole machine that a kubelet makes what it wants them to be, and nobody puts back: setupKernelTunables in
// k8s.io/kubernetes/pkg/kubelet/cm. It is shown these instead, and protectKernelDefaults has it fail, not write, where one is not as it wants it.
var settings = map[string]int{
	sysctl.VMOvercommitMemory: sysctl.VMOvercommitMemoryAlways,
	sysctl.VMPanicOnOOM:       sysctl.VMPanicOnOOMInvokeOOMKiller,
	sysctl.KernelPanic:        sysctl.KernelPanicRebootTimeout,
	sysctl.KernelPanicOnOops:  sysctl.KernelPanicOnOopsAlways,
	sysctl.RootMaxKeys:        sysctl.RootMaxKeysSetting,
	sysctl.RootMaxBytes:       sysctl.RootMaxBytesSetting,
}

// ownSettings keeps the machine's settings from components: of /proc/sys they write only what is of their network namespace.
func ownSettings(o *options) error {
	const all, network = "/proc/sys", "/proc/sys/net"
	readOnly := uintptr(unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	mounts := []struct{ from, at string }{{all, all}, {network, network}}
	if err := os.MkdirAll(o.path("etc", "settings"), 0o755); err != nil {
		return err
	}
	for name, value := range settings {
		file := o.path("etc", "settings", strings.ReplaceAll(name, "/", "."))
		if err := os.WriteFile(file, fmt.Appendln(nil, value), 0o600); err != nil {
			return err
		}
		mounts = append(mounts, struct{ from, at string }{file, filepath.Join(all, name)})
	}
	for _, m := range mounts {
		if err := unix.Mount(m.from, m.at, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s at %s: %w", m.from, m.at, err)
		}
	}
	for _, m := range mounts {
		if m.at == network {
			continue
		}
		if err := unix.Mount("", m.at, "", readOnly, ""); err != nil {
			return fmt.Errorf("make %s read-only: %w", m.at, err)
		}
	}
	return nil
}

// writeFiles writes what components are configured with.
func writeFiles(o *options) error {
	files, err := o.files()
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// notifySocket is where components say, as they do to systemd, that they are ready.
const notifySocket = "/run/realnode.sock"

func listenForReady() (*net.UnixConn, error) {
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notifySocket, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("listen for components to be ready: %w", err)
	}
	return conn, nil
}

// untilReady returns when a component has said that it is ready.
func untilReady(conn *net.UnixConn) error {
	buffer := make([]byte, 4096)
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(buffer[:n])) {
			if strings.TrimSpace(line) == "READY=1" {
				return nil
			}
		}
	}
}
