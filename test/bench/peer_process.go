package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"atoll.dev/atoll/test/framework"
)

// peerStart bounds the start of a part of contrib/physical, peerStop its end.
const (
	peerStart = 2 * time.Minute
	peerStop  = 30 * time.Second
)

// peerPart is a running part of contrib/physical: a kube-apiserver or an etcd alone.
type peerPart struct {
	dir        string
	URL        string `json:"url"`
	Kubeconfig string `json:"kubeconfig"` // of a kube-apiserver
	PID        int    `json:"pid"`
}

// startPart starts contrib/physical with flags, and waits until what they ask for serves.
func startPart(ctx context.Context, env *Env, name string, flags ...string) (*peerPart, error) {
	p := &peerPart{dir: filepath.Join(env.TempDir(), name)}
	binary := filepath.Join(filepath.Dir(framework.Binary(env.t)), "physical")
	log := filepath.Join(p.dir, "physical.log")
	cmd := exec.Command(binary, append([]string{
		"start", "--name=" + name, "--root-directory=" + p.dir, "--log-file=" + log, "--exit-with-parent"}, flags...)...)
	var output bytes.Buffer // read after the end only
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", binary, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	env.Cleanup(func() {
		_ = stdin.Close() // it ends with that
		select {
		case err := <-ended:
			if err != nil {
				env.t.Errorf("%s ended: %v\n%s", name, err, output.String())
			}
		case <-time.After(peerStop):
			_ = cmd.Process.Kill()
			env.t.Errorf("%s did not stop in %s", name, peerStop)
		}
	})
	ctx, cancel := context.WithTimeout(ctx, peerStart)
	defer cancel()
	for {
		data, err := os.ReadFile(filepath.Join(p.dir, "ready")) // written in one step
		if err == nil {
			return p, json.Unmarshal(data, p)
		}
		if !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		select {
		case err := <-ended:
			ended <- nil
			return nil, fmt.Errorf("%s ended before it was ready: %w\n%s", name, err, output.String())
		case <-ctx.Done():
			return nil, fmt.Errorf("%s is not ready: %w; see %s", name, ctx.Err(), log)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// etcdFlags are the flags, of a kube-apiserver and of Atoll alike, with which a server uses an etcd that runs alone.
func (p *peerPart) etcdFlags() []string {
	pki := filepath.Join(p.dir, "pki")
	return []string{
		"--etcd-cafile=" + filepath.Join(pki, "etcd-ca.crt"),
		"--etcd-certfile=" + filepath.Join(pki, "apiserver-etcd-client.crt"),
		"--etcd-keyfile=" + filepath.Join(pki, "apiserver-etcd-client.key"),
	}
}

// settleAtLast is how long it takes at most until what was set off is done.
const settleAtLast = 5 * time.Minute

// settle returns once the processes use less than a twentieth of a processor each: what was set off is done.
func settle(ctx context.Context, pids ...int) error {
	const look = 500 * time.Millisecond
	used := func() (all time.Duration, err error) {
		for _, pid := range pids {
			one, err := cpuTime(pid)
			if err != nil {
				return 0, err
			}
			all += one
		}
		return all, nil
	}
	for deadline := time.Now().Add(settleAtLast); time.Now().Before(deadline); {
		before, err := used()
		if err != nil {
			return err
		}
		if err := pause(ctx, look); err != nil {
			return err
		}
		after, err := used()
		if err != nil {
			return err
		}
		if after-before <= time.Duration(len(pids))*look/20 {
			return nil
		}
	}
	return fmt.Errorf("processes %v are still at work after %s", pids, settleAtLast)
}

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
