package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"atoll.dev/atoll/client"
)

const (
	// floodCommand is the argument with which this executable is a flood. It is for itself only.
	floodCommand  = "flood"
	floodWorkers  = 64
	floodWatches  = 1000
	floodNice     = 19
	floodStop     = 30 * time.Second
	floodedObject = "loud-"
)

// What a flood does, over and over, from each worker.
const (
	floodOfWrites = "writes" // create a ConfigMap
	floodOfLists  = "lists"  // list all ConfigMaps
)

// flood is what a process that floods a workspace is told.
type flood struct {
	Server, Token string
	CA            []byte // PEM
	Cluster       logicalcluster.Name
	// List is the namespace whose ConfigMaps are listed, Write the one in which they are made.
	List, Write string
	Of          string
	// Watches of all ConfigMaps are opened before.
	Watches int
}

// flooded is what it says in the end.
type flooded struct {
	Requests int64 // that were answered
	Seconds  float64
}

func (f flooded) rate() float64 { return float64(f.Requests) / f.Seconds }

// start floods from a process of its own, which yields to the server and to who measures as one on another machine would: what
// is measured is how the server divides itself. Once it returns, each worker has been answered once.
func (f flood) start(ctx context.Context) (stop func() (flooded, error), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	told, err := json.Marshal(f)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, floodCommand)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a flood: %w", err)
	}
	says := json.NewDecoder(stdout)
	end := func() (last flooded, err error) {
		kill := time.AfterFunc(floodStop, func() { _ = cmd.Process.Kill() })
		defer kill.Stop()
		_ = stdin.Close() // it ends with that
		err = says.Decode(&last)
		return last, errors.Join(err, cmd.Wait())
	}
	cancelled := context.AfterFunc(ctx, func() { _ = stdin.Close() })
	var first flooded
	if _, err = stdin.Write(append(told, '\n')); err == nil {
		err = says.Decode(&first)
	}
	if err != nil {
		cancelled()
		_, ended := end()
		return nil, fmt.Errorf("flood with %s: %w", f.Of, errors.Join(err, ended))
	}
	return func() (flooded, error) {
		cancelled()
		last, err := end()
		if err != nil {
			return last, fmt.Errorf("flood with %s: %w", f.Of, err)
		}
		return last, nil
	}, nil
}

// runFlood is the process: it says so when each worker was answered once, goes on until its input ends, and says how much it did.
func runFlood(ctx context.Context, in io.Reader, out io.Writer) error {
	if err := syscall.Setpriority(syscall.PRIO_PGRP, 0, floodNice); err != nil {
		return fmt.Errorf("yield to others: %w", err)
	}
	var f flood
	told := json.NewDecoder(in)
	if err := told.Decode(&f); err != nil {
		return fmt.Errorf("what to flood: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, in)
	}()
	config := &rest.Config{
		Host: f.Server, BearerToken: f.Token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: f.CA}, Dial: (&net.Dialer{}).DialContext,
	}
	clients, err := client.New(config)
	if err != nil {
		return err
	}
	if f.Watches > 0 {
		watches, err := openWatchers(ctx, clients, slices.Repeat([]logicalcluster.Name{f.Cluster}, f.Watches))
		if err != nil {
			return err
		}
		defer watches.stop()
	}

	var done atomic.Int64
	first := make(chan struct{}, floodWorkers)
	ended := make(chan error, 1)
	go func() {
		_, _, err := Load(context.WithoutCancel(ctx), floodWorkers, floodWorkers, func(others context.Context, worker int) error {
			for i := 0; ctx.Err() == nil && others.Err() == nil; i++ {
				if err := f.ask(ctx, clients, worker, i); err != nil {
					if ctx.Err() != nil {
						return nil
					}
					return err
				}
				done.Add(1)
				if i == 0 {
					first <- struct{}{}
				}
			}
			return nil
		})
		ended <- err
	}()
	say := json.NewEncoder(out)
	for range floodWorkers {
		select {
		case <-first:
		case err := <-ended:
			return errors.Join(err, ctx.Err())
		}
	}
	began, before := time.Now(), done.Load()
	if err := say.Encode(flooded{}); err != nil {
		return err
	}
	if err := <-ended; err != nil {
		return err
	}
	return say.Encode(flooded{Requests: done.Load() - before, Seconds: time.Since(began).Seconds()})
}

// ask does one request of a worker.
func (f flood) ask(ctx context.Context, clients *client.Clients, worker, i int) error {
	ctx = client.In(ctx, f.Cluster)
	if f.Of == floodOfLists {
		_, err := clients.Kube.CoreV1().ConfigMaps(f.List).List(ctx, metav1.ListOptions{})
		return err
	}
	name := floodedObject + strconv.Itoa(os.Getpid()) + "-" + strconv.Itoa(worker) + "-" + strconv.Itoa(i)
	_, err := clients.Kube.CoreV1().ConfigMaps(f.Write).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	return err
}
