package framework

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/atoll/client"
)

const (
	// atollStartTimeout covers a machine that builds something else meanwhile; alone, a start takes a second or two.
	atollStartTimeout = time.Minute
	atollStopTimeout  = 30 * time.Second
	commandTimeout    = 2 * time.Minute
)

// Atoll is an Atoll server in a child process, the built binary. Its methods are for one goroutine; what Clients and
// Config return may be shared.
type Atoll struct {
	Dir        string // --root-directory
	URL        string // https://127.0.0.1:PORT, the same after a Restart
	Kubeconfig string // of the administrator, context root, the same after a Restart

	t    testing.TB
	args []string
	port int
	cmd  *exec.Cmd     // nil: not running
	pipe io.Closer     // the child's stdin: it stops when this is closed, also by our death
	done chan struct{} // closed when the child ended, after exit was set
	exit error
}

// StartAtoll starts a server with further flags of `atoll start`, waits until it is ready, and stops it at the end of
// the test.
func StartAtoll(t testing.TB, flags ...string) *Atoll {
	t.Helper()
	a := &Atoll{t: t, Dir: filepath.Join(t.TempDir(), "atoll"), args: flags, port: freePort(t)}
	a.Kubeconfig = filepath.Join(a.Dir, "admin.kubeconfig")
	a.URL = "https://127.0.0.1:" + strconv.Itoa(a.port)
	t.Cleanup(a.Stop)
	a.start()
	return a
}

// freePort returns a port that nothing listens on, so that a server keeps it over a restart. Another process could
// take it first; the server's start then says so.
func freePort(t testing.TB) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("find a free port: %v", err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// Use makes t, a subtest, the one that a failure fails, until it ends.
func (a *Atoll) Use(t testing.TB) {
	before := a.t
	a.t = t
	t.Cleanup(func() { a.t = before })
}

func (a *Atoll) start() {
	a.t.Helper()
	if err := os.MkdirAll(a.Dir, 0o700); err != nil {
		a.t.Fatalf("start atoll: %v", err)
	}
	log, err := os.OpenFile(a.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		a.t.Fatalf("start atoll: %v", err)
	}
	defer log.Close() // the child has its own
	args := append([]string{"start", "--root-directory=" + a.Dir, "--secure-port=" + strconv.Itoa(a.port), "--exit-with-parent"}, a.args...)
	cmd := exec.Command(Binary(a.t), args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		a.t.Fatalf("start atoll: %v", err)
	}
	if err := cmd.Start(); err != nil {
		a.t.Fatalf("start atoll: %v", err)
	}
	done := make(chan struct{})
	a.cmd, a.pipe, a.done, a.exit = cmd, stdin, done, nil
	go func() {
		a.exit = cmd.Wait()
		close(done)
	}()
	ctx, cancel := context.WithTimeout(a.t.Context(), atollStartTimeout)
	defer cancel()
	var last error
	for {
		if last = a.readyz(ctx); last == nil {
			return
		}
		select {
		case <-done:
			a.cmd = nil
			a.t.Fatalf("atoll ended before it was ready: %v\n%s", a.exit, a.logTail())
		case <-ctx.Done():
			a.t.Fatalf("atoll is not ready after %s: %v\n%s", atollStartTimeout, last, a.logTail())
		case <-time.After(20 * time.Millisecond):
		}
	}
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

// Stop ends the server with SIGTERM and waits for it. It fails the test if that takes too long or ends with an error.
func (a *Atoll) Stop() { a.end(syscall.SIGTERM) }

// Kill ends the server with SIGKILL. Its data stays.
func (a *Atoll) Kill() { a.end(syscall.SIGKILL) }

// Restart starts the server again on its data and address, stopping it before if it runs.
func (a *Atoll) Restart() {
	a.t.Helper()
	a.Stop()
	a.start()
}

func (a *Atoll) end(sig syscall.Signal) {
	a.t.Helper()
	if a.cmd == nil {
		return
	}
	cmd := a.cmd
	a.cmd = nil
	defer a.pipe.Close()
	if err := cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		a.t.Errorf("stop atoll: send %v: %v", sig, err)
	}
	select {
	case <-a.done:
	case <-time.After(atollStopTimeout):
		_ = cmd.Process.Kill() // it may end just now
		<-a.done
		a.t.Errorf("atoll did not stop in %s\n%s", atollStopTimeout, a.logTail())
	}
	if sig != syscall.SIGKILL && a.exit != nil {
		a.t.Errorf("atoll stopped: %v\n%s", a.exit, a.logTail())
	}
	if a.t.Failed() {
		a.t.Logf("%s", a.logTail())
	}
}

// PID of the running server.
func (a *Atoll) PID() int { return a.cmd.Process.Pid }

func (a *Atoll) log() string { return filepath.Join(a.Dir, "atoll.log") }

func (a *Atoll) logTail() string {
	data, err := os.ReadFile(a.log())
	if err != nil {
		return fmt.Sprintf("no log: %v", err)
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return a.log() + ":\n" + strings.Join(lines[max(0, len(lines)-80):], "\n")
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
	err := cmd.Run()
	return output.String(), err
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

// Eventually calls check until it returns "", and fails the test with its last answer after timeout.
func Eventually(t testing.TB, timeout time.Duration, what string, check func() (problem string)) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		problem := check()
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after %s: %s", what, timeout, problem)
		}
		time.Sleep(50 * time.Millisecond)
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
