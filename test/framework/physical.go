package framework

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// Physical is a physical cluster in a child process: contrib/physical. What RESTConfig and Clientset return may be
// shared by goroutines.
type Physical struct {
	*Process
	Name       string
	URL        string // https://127.0.0.1:PORT, the same after a Restart
	Kubeconfig string // of the administrator, the same after a Restart
	AuditLog   string

	fullSpeed bool
}

// PhysicalOption changes how a cluster is started.
type PhysicalOption func(*Physical)

// PhysicalNodes sets the number of simulated nodes. The default is 3.
func PhysicalNodes(n int) PhysicalOption {
	return func(p *Physical) { p.args = append(p.args, fmt.Sprintf("--nodes=%d", n)) }
}

// PhysicalFullSpeed lets the cluster use all CPUs, and memory as usual. Else it makes do with one, and collects garbage less often: a test has
// several that do little, and what they do beside that is a third less so.
func PhysicalFullSpeed() PhysicalOption {
	return func(p *Physical) { p.fullSpeed = true }
}

// PhysicalFsync makes the cluster's etcd wait for the disk, as one in production does.
func PhysicalFsync() PhysicalOption {
	return func(p *Physical) { p.args = append(p.args, "--etcd-fsync") }
}

// PhysicalQuotaPeriod is how long after one count the cluster counts for its ResourceQuotas anew. Its controller counts what its informer has, and
// may miss a pod that was charged just before: it is right again only after this time, and its default is 5 minutes.
func PhysicalQuotaPeriod(period time.Duration) PhysicalOption {
	return func(p *Physical) {
		p.args = append(p.args, "--controller-manager-flag=--resource-quota-sync-period="+period.String())
	}
}

// PhysicalExecOnHost lets commands in the cluster's pods run on this machine.
func PhysicalExecOnHost() PhysicalOption {
	return func(p *Physical) { p.args = append(p.args, "--exec-on-host") }
}

// PhysicalDir keeps the cluster in a directory of the caller's, instead of one of its own that goes with the test.
func PhysicalDir(dir string) PhysicalOption {
	return func(p *Physical) { p.Dir = dir }
}

// StartPhysical starts a cluster, waits until it takes pods, and stops it at the end of the test.
func StartPhysical(t testing.TB, name string, opts ...PhysicalOption) *Physical {
	t.Helper()
	p := newPhysical(t, name, opts...)
	p.Start()
	return p
}

// newPhysical is StartPhysical without the start.
func newPhysical(t testing.TB, name string, opts ...PhysicalOption) *Physical {
	t.Helper()
	p := &Physical{Name: name, Process: &Process{
		t: t, name: fmt.Sprintf("physical cluster %q", name), binary: filepath.Join(binDir(t, "contrib/physical/build.sh"), "physical"),
	}}
	for _, opt := range opts {
		opt(p)
	}
	if !p.fullSpeed {
		p.Setenv("GOMAXPROCS", "1")
		p.Setenv("GOGC", "300")
	}
	if p.Dir == "" {
		p.Dir = filepath.Join(t.TempDir(), name)
		p.args = append(p.args, fmt.Sprintf("--secure-port=%d", FreePort(t)))
	}
	p.log = filepath.Join(p.Dir, "physical.log")
	p.args = append([]string{"start", "--name=" + name, "--root-directory=" + p.Dir, "--exit-with-parent"}, p.args...)
	p.prepare, p.ready = p.forget, p.read
	t.Cleanup(p.Stop)
	return p
}

// SharedBy is the cluster for a test that runs beside others, and neither stops nor restarts it.
func (p *Physical) SharedBy(t testing.TB) *Physical {
	shared := *p
	shared.Process = p.sharedBy(t)
	return &shared
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

func (p *Physical) readyFile() string { return filepath.Join(p.Dir, "ready") }

// forget removes the ready file, which a killed cluster leaves behind.
func (p *Physical) forget() error {
	if err := os.Remove(p.readyFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// read takes over the content of the ready file; contrib/physical writes it in one step.
func (p *Physical) read(context.Context) error {
	data, err := os.ReadFile(p.readyFile())
	if err != nil {
		return err
	}
	var ready struct{ URL, Kubeconfig, AuditLog string }
	if err := json.Unmarshal(data, &ready); err != nil {
		return fmt.Errorf("parse its ready file: %w\n%s", err, data)
	}
	p.URL, p.Kubeconfig, p.AuditLog = ready.URL, ready.Kubeconfig, ready.AuditLog
	return nil
}

// binDir returns ATOLL_BIN_DIR, which must be absolute, or the repository's bin after a script of it has brought its executables there up to
// date.
func binDir(t testing.TB, script string) string {
	t.Helper()
	if dir := os.Getenv("ATOLL_BIN_DIR"); dir != "" {
		return dir
	}
	dir, err := build(t.Context(), script)
	if err != nil {
		t.Fatalf("build by %s: %v", script, err)
	}
	return dir
}

// built guards dirs: what each script that has run in this process has built into.
var built = struct {
	sync.Mutex
	dirs map[string]string
}{dirs: map[string]string{}}

// build builds once a process; test packages run side by side, so one at a time on the machine.
func build(ctx context.Context, script string) (string, error) {
	built.Lock()
	defer built.Unlock()
	if dir := built.dirs[script]; dir != "" {
		return dir, nil
	}
	root, err := repository(ctx)
	if err != nil {
		return "", err
	}
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
	if out, err := exec.CommandContext(ctx, filepath.Join(root, script), bin).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	built.dirs[script] = bin
	return bin, nil
}

// repository returns the directory of this module.
func repository(ctx context.Context) (string, error) {
	mod, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(mod))), nil
}
