package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kcp-dev/logicalcluster/v3"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
	"atoll.dev/atoll/test/host"
)

// put creates a small ConfigMap in the namespace default of a logical cluster.
func put(ctx context.Context, clients *client.Clients, cluster logicalcluster.Name, name string) error {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"key": "value"}}
	if _, err := clients.Kube.CoreV1().ConfigMaps("default").Create(client.In(ctx, cluster), cm, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create ConfigMap %q in logical cluster %q: %w", name, cluster, err)
	}
	return nil
}

// Memory of a process, in MB of 1,000,000 bytes.
type Memory struct {
	Anon float64 // RssAnon: heap, stacks
	File float64 // RssFile: pages of the binary and of etcd's database, which the system takes back when it needs them
}

// Total of both.
func (m Memory) Total() float64 { return m.Anon + m.File }

func (m Memory) String() string {
	return fmt.Sprintf("RssAnon %s, RssFile %s", quantity(m.Anon, "MB"), quantity(m.File, "MB"))
}

const (
	// settledAfter so many seconds, in which the server gave back less than a hundredth.
	settledAfter = 15
	settleAtMost = 90
)

// memory forces a collection, waits until the server, idle, gives nothing back any more, and returns what it holds then.
func memory(ctx context.Context, env *Env, a *framework.Atoll) (Memory, error) {
	if err := collect(ctx, a); err != nil {
		return Memory{}, fmt.Errorf("force a collection: %w", err)
	}
	var least Memory
	for i, same := 0, 0; i < settleAtMost && same < env.N(settledAfter, 1); i++ {
		now, err := memoryOf(a.PID())
		if err != nil {
			return Memory{}, err
		}
		if same++; i == 0 || now.Total() < 0.99*least.Total() {
			least, same = now, 0
		}
		select {
		case <-ctx.Done():
			return Memory{}, ctx.Err()
		case <-time.After(time.Second):
		}
	}
	return least, nil
}

const (
	// forgetAtMost is how long it takes at most until an idle server has forgotten the events of a busy time: its watch caches a few
	// times 80 s, and up to ten minutes until etcd is compacted, if nothing is written meanwhile.
	forgetAtMost = 12 * time.Minute
	leastEvents  = 100 // that a watch cache has room for
	// giveBackAtMost is how long it takes at most from then until an embedded etcd's file that is mostly free is small: six minutes.
	giveBackAtMost = 8 * time.Minute
)

// forgotten waits until the watch caches of an idle server have no room for more events than they have when it starts, and its etcd no
// history of before.
func forgotten(ctx context.Context, env *Env, a *framework.Atoll) error {
	if env.Quick {
		return nil
	}
	clients := a.Clients()
	last, err := revisionOf(ctx, clients)
	if err != nil {
		return err
	}
	missing := func() (string, error) {
		metrics, err := get(ctx, a, "/metrics")
		if err != nil {
			return "", fmt.Errorf("read the metrics: %w", err)
		}
		for line := range strings.Lines(metrics) {
			if !strings.HasPrefix(line, "watch_cache_capacity{") {
				continue
			}
			room, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
			if err != nil {
				return "", fmt.Errorf("read the metrics: %w", err)
			}
			if room > leastEvents {
				return "a watch cache has not forgotten its events: " + line, nil
			}
		}
		// That before the last write: etcd is compacted at what is newest, and keeps that.
		_, err = listOne(ctx, clients, metav1.ListOptions{ResourceVersion: strconv.FormatInt(last-1, 10), ResourceVersionMatch: metav1.ResourceVersionMatchExact})
		switch {
		case apierrors.IsResourceExpired(err):
			return "", nil
		case err != nil:
			return "", err
		}
		return fmt.Sprintf("etcd has the history of revision %d", last-1), nil
	}
	ctx, cancel := context.WithTimeout(ctx, forgetAtMost)
	defer cancel()
	for {
		what, err := missing()
		if what == "" {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("after %v: %s: %w", forgetAtMost, what, context.Cause(ctx))
		case <-time.After(5 * time.Second):
		}
	}
}

// storeFile is how many bytes the file of an embedded etcd has.
func storeFile(a *framework.Atoll) (int64, error) {
	info, err := os.Stat(filepath.Join(a.Dir, "etcd", "data", "member", "snap", "db"))
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// gaveBack waits until the file of an embedded etcd, which had so many bytes, has less than half of them, and returns how many it has. It
// keeps them if it is not mostly free, or small.
func gaveBack(ctx context.Context, env *Env, a *framework.Atoll, had int64) (has int64, err error) {
	for began := time.Now(); ; {
		if has, err = storeFile(a); err != nil || has < had/2 || env.Quick || time.Since(began) > giveBackAtMost {
			return has, err
		}
		select {
		case <-ctx.Done():
			return has, ctx.Err()
		case <-time.After(5 * time.Second):
		}
	}
}

// revisionOf is how many writes the server's etcd has seen.
func revisionOf(ctx context.Context, clients *client.Clients) (int64, error) {
	list, err := listOne(ctx, clients, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(list.ResourceVersion, 10, 64)
}

// listOne lists one ConfigMap.
func listOne(ctx context.Context, clients *client.Clients, options metav1.ListOptions) (*corev1.ConfigMapList, error) {
	options.Limit = 1
	return clients.Kube.CoreV1().ConfigMaps("default").List(client.In(ctx, "root"), options)
}

// collect makes a server collect its garbage.
func collect(ctx context.Context, a *framework.Atoll) error {
	_, err := get(ctx, a, "/debug/pprof/heap?gc=1")
	return err
}

// get returns what a server answers on a path.
func get(ctx context.Context, a *framework.Atoll, path string) (string, error) {
	httpClient, err := rest.HTTPClientFor(a.Config())
	if err != nil {
		return "", err
	}
	defer httpClient.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s %w", resp.Status, err)
	}
	return string(body), nil
}

// cpuTime is how long a process has been on a processor.
func cpuTime(pid int) (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name of the program, in parentheses, may hold anything.
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	var ticks [2]int64 // utime and stime, the 14th and 15th field of proc(5), in hundredths of a second
	for i := range ticks {
		if ticks[i], err = strconv.ParseInt(fields[11+i], 10, 64); err != nil {
			return 0, err
		}
	}
	return time.Duration(ticks[0]+ticks[1]) * 10 * time.Millisecond, nil
}

func memoryOf(pid int) (Memory, error) {
	var m Memory
	for field, into := range map[string]*float64{"RssAnon": &m.Anon, "RssFile": &m.File} {
		value, err := host.Field(fmt.Sprintf("/proc/%d/status", pid), field)
		if err != nil {
			return m, err
		}
		kb, err := host.Kilobytes(value)
		if err != nil {
			return m, err
		}
		*into = kb * 1024 / 1e6
	}
	return m, nil
}
