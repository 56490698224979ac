package framework

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// inContainer shows a process the file system of an image as a container engine does: read-only but for one volume, with /proc, in a
// mount namespace of its own: "sh -ec inContainer ROOT VOLUME MOUNT COMMAND ...". The command is to change its root itself.
const inContainer = `
root=$0 volume=$1 mount=$2
shift 2
mount --bind "$root" "$root"
mount --bind "$volume" "$root$mount"
mount -t proc proc "$root/proc"
mount -o remount,bind,ro,exec "$root"
exec "$@"`

// Container is what a container engine knows of a container: an image's file system and how the program in it is run.
type Container struct {
	Root   string // the image's file system, as a directory
	Volume string // a directory, which is written to
	Mount  string // where the volume is in the image
	Dir    string // where the program runs
	User   int64  // and group
	Env    []string
	Hosts  []string // names of this machine, in /etc/hosts
}

// CanRunContainers returns an error where no file system can be shown to a process as a container engine does.
func CanRunContainers() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("it takes root")
	}
	if out, err := exec.Command("unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt").CombinedOutput(); err != nil {
		return fmt.Errorf("make a mount namespace: %w: %s", err, out)
	}
	return nil
}

// Prepare makes what an engine adds to an image: the mount points, /etc/hosts, and the volume as its user's.
func (c Container) Prepare(t testing.TB) {
	t.Helper()
	for _, dir := range []string{filepath.Join(c.Root, "proc"), filepath.Join(c.Root, c.Mount), c.Volume} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(c.Volume, int(c.User), int(c.User)); err != nil {
		t.Fatal(err)
	}
	hosts := "127.0.0.1 localhost " + strings.Join(c.Hosts, " ") + "\n"
	if err := os.WriteFile(filepath.Join(c.Root, "etc", "hosts"), []byte(hosts), 0o644); err != nil {
		t.Fatal(err)
	}
}

// args are those of unshare to run a command. Nothing of our environment gets in, so that the command is found by the image's PATH.
func (c Container) args(t testing.TB, command []string) []string {
	t.Helper()
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Fatal(err)
	}
	return slices.Concat([]string{"--mount", "sh", "-ec", inContainer, c.Root, c.Volume, c.Mount, "env", "-i"}, c.Env,
		[]string{unshare, "--root=" + c.Root, "--wd=" + c.Dir, fmt.Sprintf("--setgid=%d", c.User), fmt.Sprintf("--setuid=%d", c.User)}, command)
}

// Start starts a command, which ends when its standard input does, waits until it is ready, and stops it at the end of the test.
func (c Container) Start(t testing.TB, name string, ready func(context.Context) error, command ...string) *Process {
	t.Helper()
	dir := t.TempDir()
	p := &Process{Dir: dir, t: t, name: name, binary: "unshare", args: c.args(t, command), log: filepath.Join(dir, "log"), ready: ready}
	t.Cleanup(p.Stop)
	p.Start()
	return p
}

// MustRun runs a command, as "kubectl exec" does in the running container, and returns what it prints.
func (c Container) MustRun(t testing.TB, input string, command ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", c.args(t, command)...)
	cmd.Stdin = strings.NewReader(input)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, &output)
	}
	return output.String()
}
