package framework

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// physicalStartTimeout covers a machine that builds something else meanwhile; alone, a start takes 4 s.
	physicalStartTimeout = 2 * time.Minute
	// physicalStopTimeout is longer than the process takes to give up on a component.
	physicalStopTimeout = 30 * time.Second
	physicalPoll        = 20 * time.Millisecond
	physicalLogTail     = 40 // lines
)

// Physical is a physical cluster in a child process: contrib/physical.
// Its methods are for one goroutine; what RESTConfig and Clientset return may be shared.
type Physical struct {
	Name       string
	URL        string // https://127.0.0.1:PORT, the same after a Restart
	Kubeconfig string // of the administrator, the same after a Restart
	AuditLog   string
	Dir        string

	t    testing.TB
	args []string
	log  string
	cmd  *exec.Cmd     // nil: not running
	pipe io.Closer     // the child's stdin: it stops when this is closed, also by our death
	done chan struct{} // closed when the child ended, after exit was set
	exit error
}

// PhysicalOption changes how a cluster is started.
type PhysicalOption func(*Physical)

// PhysicalNodes sets the number of simulated nodes. The default is 3.
func PhysicalNodes(n int) PhysicalOption {
	return func(p *Physical) { p.args = append(p.args, fmt.Sprintf("--nodes=%d", n)) }
}

// PhysicalDir keeps the cluster in a directory of the caller's, instead of one of its own that goes with the test.
func PhysicalDir(dir string) PhysicalOption {
	return func(p *Physical) { p.Dir = dir }
}

// StartPhysical starts a cluster, waits until it takes pods, and stops it at the end of the test.
func StartPhysical(t testing.TB, name string, opts ...PhysicalOption) *Physical {
	t.Helper()
	p := &Physical{Name: name, t: t}
	for _, opt := range opts {
		opt(p)
	}
	if p.Dir == "" {
		p.Dir = filepath.Join(t.TempDir(), name)
	}
	p.log = filepath.Join(p.Dir, "physical.log")
	t.Cleanup(p.Stop)
	p.start()
	return p
}

// RESTConfig returns the administrator's access, without a rate limit on the client's side.
func (p *Physical) RESTConfig() *rest.Config {
	p.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", p.Kubeconfig)
	if err != nil {
		p.t.Fatalf("physical cluster %q: read its kubeconfig: %v", p.Name, err)
	}
	config.QPS = -1
	return config
}

// Clientset returns a client with the access of RESTConfig.
func (p *Physical) Clientset() kubernetes.Interface {
	p.t.Helper()
	client, err := kubernetes.NewForConfig(p.RESTConfig())
	if err != nil {
		p.t.Fatalf("physical cluster %q: make a client: %v", p.Name, err)
	}
	return client
}

// Stop ends the cluster with SIGTERM and waits for it. It fails the test if the cluster stops with an error or not in time.
func (p *Physical) Stop() { p.end(syscall.SIGTERM) }

// Kill ends the cluster with SIGKILL. Its data stays.
func (p *Physical) Kill() { p.end(syscall.SIGKILL) }

// Restart starts a stopped or killed cluster again, and stops a running one before. Data, address and kubeconfig stay.
func (p *Physical) Restart() {
	p.t.Helper()
	p.Stop()
	p.start()
}

// Signal sends a signal to the process of a running cluster, for example SIGSTOP and later SIGCONT.
func (p *Physical) Signal(sig os.Signal) {
	p.t.Helper()
	if p.cmd == nil {
		p.t.Fatalf("physical cluster %q is not running", p.Name)
	}
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatalf("physical cluster %q: send %v: %v", p.Name, sig, err)
	}
}

// Use makes t, a subtest, the one that a failure fails, until it ends.
func (p *Physical) Use(t testing.TB) {
	before := p.t
	p.t = t
	t.Cleanup(func() { p.t = before })
}

func (p *Physical) start() {
	p.t.Helper()
	bin := filepath.Join(physicalBinDir(p.t), "physical")
	args := append([]string{"start", "--name=" + p.Name, "--root-directory=" + p.Dir, "--log-file=" + p.log, "--exit-with-parent"}, p.args...)
	if err := os.MkdirAll(p.Dir, 0o700); err != nil {
		p.t.Fatalf("physical cluster %q: %v", p.Name, err)
	}
	ready := filepath.Join(p.Dir, "ready")
	// A killed cluster leaves its file behind.
	if err := os.Remove(ready); err != nil && !errors.Is(err, os.ErrNotExist) {
		p.t.Fatalf("physical cluster %q: %v", p.Name, err)
	}
	var output bytes.Buffer // read after the end only
	cmd := exec.Command(bin, args...)
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.WaitDelay = time.Second // a child of its own that outlived it may hold our pipe
	// Its own process group, so that the ^C of a terminal reaches it through its end of stdin alone, after our cleanup.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		p.t.Fatalf("physical cluster %q: %v", p.Name, err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatalf("physical cluster %q: start %s: %v", p.Name, bin, err)
	}
	done := make(chan struct{})
	p.cmd, p.pipe, p.done, p.exit = cmd, stdin, done, nil
	go func() {
		p.exit = cmd.Wait()
		close(done)
	}()

	timeout := time.After(physicalStartTimeout)
	for {
		data, err := os.ReadFile(ready)
		if err == nil {
			p.read(data)
			return
		}
		if !errors.Is(err, os.ErrNotExist) {
			p.t.Fatalf("physical cluster %q: %v", p.Name, err)
		}
		select {
		case <-done:
			p.cmd = nil
			p.t.Fatalf("physical cluster %q ended before it was ready: %v\n%s%s", p.Name, p.exit, &output, p.logTail())
		case <-timeout:
			p.t.Fatalf("physical cluster %q is not ready after %s\n%s", p.Name, physicalStartTimeout, p.logTail())
		case <-time.After(physicalPoll):
		}
	}
}

// read takes over the content of the ready file; contrib/physical writes it in one step.
func (p *Physical) read(data []byte) {
	p.t.Helper()
	var ready struct{ URL, Kubeconfig, AuditLog string }
	if err := json.Unmarshal(data, &ready); err != nil {
		p.t.Fatalf("physical cluster %q: parse its ready file: %v\n%s", p.Name, err, data)
	}
	p.URL, p.Kubeconfig, p.AuditLog = ready.URL, ready.Kubeconfig, ready.AuditLog
}

// end does nothing if the cluster does not run.
func (p *Physical) end(sig syscall.Signal) {
	p.t.Helper()
	if p.cmd == nil {
		return
	}
	cmd := p.cmd
	p.cmd = nil
	defer p.pipe.Close()
	if err := cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("physical cluster %q: send %v: %v", p.Name, sig, err)
	}
	// A process stopped by SIGSTOP takes SIGTERM only once it continues.
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("physical cluster %q: send SIGCONT: %v", p.Name, err)
	}
	select {
	case <-p.done:
	case <-time.After(physicalStopTimeout):
		_ = cmd.Process.Kill() // it may end just now
		<-p.done
		p.t.Errorf("physical cluster %q did not stop in %s\n%s", p.Name, physicalStopTimeout, p.logTail())
	}
	if sig != syscall.SIGKILL && p.exit != nil {
		p.t.Errorf("physical cluster %q stopped: %v\n%s", p.Name, p.exit, p.logTail())
	}
}

// logTail returns the last lines of the log, or why there are none.
func (p *Physical) logTail() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return fmt.Sprintf("no log: %v", err)
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return p.log + ":\n" + strings.Join(lines[max(0, len(lines)-physicalLogTail):], "\n")
}

// physicalBinDir returns ATOLL_BIN_DIR, which must be absolute, or the repository's bin after bringing its executables up to date.
func physicalBinDir(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv("ATOLL_BIN_DIR"); dir != "" {
		return dir
	}
	dir, err := buildPhysical(t.Context())
	if err != nil {
		t.Fatalf("build contrib/physical: %v", err)
	}
	return dir
}

// physicalBuild guards dir, which is empty until the build of this process.
var physicalBuild struct {
	sync.Mutex
	dir string
}

// buildPhysical builds once a process; test packages run side by side, so one at a time on the machine.
func buildPhysical(ctx context.Context) (string, error) {
	physicalBuild.Lock()
	defer physicalBuild.Unlock()
	if physicalBuild.dir != "" {
		return physicalBuild.dir, nil
	}
	mod, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	root := filepath.Dir(strings.TrimSpace(string(mod)))
	bin := filepath.Join(root, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(bin, ".physical.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close() // unlocks
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if out, err := exec.CommandContext(ctx, filepath.Join(root, "contrib", "physical", "build.sh"), bin).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	physicalBuild.dir = bin
	return bin, nil
}
