package framework

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/atoll/client"
)

const commandTimeout = 2 * time.Minute

// Atoll is an Atoll server in a child process, the built binary. What Clients and Config return may be shared by
// goroutines.
type Atoll struct {
	*Process          // Dir is --root-directory
	URL        string // https://127.0.0.1:PORT, the same after a Restart
	Kubeconfig string // of the administrator, context root, the same after a Restart
}

// StartAtoll starts a server with further flags of `atoll start`, waits until it is ready, and stops it at the end of
// the test.
func StartAtoll(t testing.TB, flags ...string) *Atoll {
	t.Helper()
	a := NewAtoll(t, flags...)
	a.Start()
	return a
}

// NewAtoll is StartAtoll without the start.
func NewAtoll(t testing.TB, flags ...string) *Atoll {
	t.Helper()
	dir, port := filepath.Join(t.TempDir(), "atoll"), strconv.Itoa(FreePort(t))
	a := &Atoll{
		Process: &Process{
			Dir: dir, t: t, name: "atoll", binary: Binary(t), log: filepath.Join(dir, "atoll.log"),
			args: append([]string{"start", "--root-directory=" + dir, "--secure-port=" + port, "--exit-with-parent"}, flags...),
		},
		URL:        "https://127.0.0.1:" + port,
		Kubeconfig: filepath.Join(dir, "admin.kubeconfig"),
	}
	a.ready = a.readyz
	t.Cleanup(a.Stop)
	return a
}

// SharedBy is the server for a test that runs beside others, and neither stops nor restarts it.
func (a *Atoll) SharedBy(t testing.TB) *Atoll {
	shared := *a
	shared.Process = a.sharedBy(t)
	return &shared
}

// StartReplica starts another server on the same etcd, with the same certificate authorities.
func (a *Atoll) StartReplica(t testing.TB, flags ...string) *Atoll {
	t.Helper()
	replica := NewAtoll(t, flags...)
	for _, file := range []string{"ca.crt", "ca.key", "syncers/ca.crt", "syncers/ca.key", "workspaces/ca.crt", "workspaces/ca.key"} {
		data, err := os.ReadFile(filepath.Join(a.Dir, "pki", file))
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(replica.Dir, "pki", file)
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	replica.Start()
	return replica
}

// FreePort returns a port that nothing listens on, for a server that keeps it over a restart. It is below those that the
// kernel gives to outgoing connections, one of which could take it while the server is down.
func FreePort(t testing.TB) int {
	t.Helper()
	const first, beyond, tries = 10000, 32000, 100
	var last error
	for range tries {
		port := first + rand.IntN(beyond-first)
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			_ = listener.Close() // nothing was accepted
			return port
		}
		last = err
	}
	t.Fatalf("find a free port: %v", last)
	return 0
}

// readyz returns nil once the server says that it is ready.
func (a *Atoll) readyz(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", a.Kubeconfig)
	if err != nil {
		return err
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	defer httpClient.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL+"/readyz?verbose", nil)
	if err != nil {
		return err
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("/readyz answers %s: %s", resp.Status, body)
	}
	return nil
}

// Config is the administrator's access to the server, without a path.
func (a *Atoll) Config() *rest.Config {
	a.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", a.Kubeconfig)
	if err != nil {
		a.t.Fatalf("read the administrator's kubeconfig: %v", err)
	}
	config.Host, config.QPS = a.URL, -1
	return config
}

// Clients reach every logical cluster as the administrator.
func (a *Atoll) Clients() *client.Clients {
	a.t.Helper()
	clients, err := client.New(a.Config())
	if err != nil {
		a.t.Fatalf("make clients: %v", err)
	}
	return clients
}

// Run runs the atoll binary with the administrator's kubeconfig, as a person would, and returns what it prints and
// how it ends.
func (a *Atoll) Run(args ...string) (string, error) { return a.RunWithInput("", args...) }

// RunWithInput is Run with something on standard input.
func (a *Atoll) RunWithInput(input string, args ...string) (string, error) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.t.Context()), commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, Binary(a.t), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+a.Kubeconfig)
	cmd.Stdin = strings.NewReader(input)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	err := runBound(cmd)
	return output.String(), err
}

// runBound runs a command to its end, which is that of this process at the latest.
func runBound(cmd *exec.Cmd) error {
	// The signal is sent when the thread ends that started the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd.Run()
}

// Says is what commands of the atoll binary print, for people to read after a failure.
func (a *Atoll) Says(commands ...[]string) string {
	a.t.Helper()
	var b strings.Builder
	for _, args := range commands {
		said, err := a.Run(args...)
		fmt.Fprintf(&b, "$ atoll %s\n%s", strings.Join(args, " "), said)
		if err != nil {
			fmt.Fprintf(&b, "%v\n", err)
		}
	}
	return b.String()
}

// KubeconfigOf writes, and returns the name of, a kubeconfig of the administrator that leads to a workspace, by its path.
func (a *Atoll) KubeconfigOf(t testing.TB, workspace string) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(a.Kubeconfig)
	if err != nil {
		t.Fatalf("read the administrator's kubeconfig: %v", err)
	}
	config.Clusters[config.Contexts[config.CurrentContext].Cluster].Server = a.URL + "/clusters/" + workspace
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatalf("write the kubeconfig of workspace %s: %v", workspace, err)
	}
	return file
}

// MustStdout runs the atoll binary like MustRun, and returns what it prints on standard output alone.
func (a *Atoll) MustStdout(args ...string) string {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.t.Context()), commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, Binary(a.t), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+a.Kubeconfig)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		a.t.Fatalf("atoll %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	return string(output)
}

// MustRun is Run that fails the test on an error.
func (a *Atoll) MustRun(args ...string) string { return a.MustRunWithInput("", args...) }

// MustRunWithInput is RunWithInput that fails the test on an error.
func (a *Atoll) MustRunWithInput(input string, args ...string) string {
	a.t.Helper()
	output, err := a.RunWithInput(input, args...)
	if err != nil {
		a.t.Fatalf("atoll %s: %v\n%s", strings.Join(args, " "), err, output)
	}
	return output
}

// Eventually calls check until it returns "", and fails the test with its last answer after timeout. What costs more to find
// out than to check, and is there to be read after a failure alone, is said by explain.
func Eventually(t testing.TB, timeout time.Duration, what string, check func() (problem string), explain ...func() string) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		began := time.Now()
		problem := check()
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			for _, more := range explain {
				problem += "\n" + more()
			}
			t.Fatalf("%s: not after %s: %s", what, timeout, problem)
		}
		// What costs much, as a kubectl does, is looked at less often: else who waits keeps a processor from those it waits for.
		time.Sleep(min(max(100*time.Millisecond, 4*time.Since(began)), 2*time.Second))
	}
}

// Binary is the atoll binary: in ATOLL_BIN_DIR, else in the repository's bin, where `make build` puts it.
func Binary(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("ATOLL_BIN_DIR")
	if dir == "" {
		mod, err := exec.Command("go", "env", "GOMOD").Output()
		if err != nil {
			t.Fatalf("find the repository: %v", err)
		}
		dir = filepath.Join(filepath.Dir(strings.TrimSpace(string(mod))), "bin")
	}
	binary := filepath.Join(dir, "atoll")
	if _, err := os.Stat(binary); err != nil {
		t.Fatalf("find the atoll binary: %v; run `make build` first", err)
	}
	return binary
}
