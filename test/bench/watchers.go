package main

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"atoll.dev/atoll/client"
)

const (
	watchersRow = "create rate with 5,000 watchers in other workspaces"

	createWorkers   = 32
	createsARound   = 3000
	watchersRounds  = 7
	watchersAtATime = 64 // that are opened

	createdPrefix = "cm-"
	seenName      = "seen"
)

var watchers = Scenario{
	Name: "watchers",
	Rows: []Row{{
		Name: watchersRow,
		Goal: atLeast(0.95),
		How:  "ConfigMaps in one workspace, 32 at a time: the rate while 5,000 others have a watch of their ConfigMaps each, against the rate while nobody watches",
	}},
	Run: runWatchers,
}

func runWatchers(ctx context.Context, env *Env) error {
	a := env.StartAtoll()
	clients := a.Clients()
	workspaces, err := NewWorkspaces(ctx, env, clients)
	if err != nil {
		return err
	}
	clusters, _, _, err := workspaces.CreateMany(ctx, 0, env.N(5000, 20)+1)
	if err != nil {
		return err
	}
	busy, watched := clusters[0], clusters[1:]
	env.Progress("there are %d workspaces", len(clusters))

	created := 0
	creates := func(ctx context.Context) (float64, error) {
		// Not while watches are still being taken up, or given back.
		if err := settle(ctx, a.PID()); err != nil {
			return 0, err
		}
		first, n := created, env.N(createsARound, 50)
		created += n
		_, all, err := Load(ctx, createWorkers, n, func(ctx context.Context, i int) error {
			return put(ctx, clients, busy, fmt.Sprintf("%s%06d", createdPrefix, first+i))
		})
		return float64(n) / all.Seconds(), err
	}
	watchedCreates := func(ctx context.Context) (float64, error) {
		w, err := openWatchers(ctx, clients, watched)
		if err != nil {
			return 0, err
		}
		defer w.stop()
		rate, err := creates(ctx)
		if err != nil {
			return 0, err
		}
		return rate, w.check(ctx, clients)
	}
	r, err := Compare(ctx, env.N(watchersRounds, 2), watchedCreates, creates)
	if err != nil {
		return err
	}
	return env.Report(watchersRow, Median(r.Ratios), fmt.Sprintf("%s/s against %s/s", number(Median(r.A)), number(Median(r.B))),
		r.Samples("creates per second, watched", "creates per second, not watched"))
}

// openedWatchers are watches of ConfigMaps, one in each logical cluster.
type openedWatchers struct {
	clusters []logicalcluster.Name
	watches  []watch.Interface
	bled     atomic.Int64 // events of what was created elsewhere
	stopping atomic.Bool
	broken   atomic.Int64 // ended by themselves
	seen     chan struct{}
	ended    chan struct{}
}

func openWatchers(ctx context.Context, clients *client.Clients, clusters []logicalcluster.Name) (*openedWatchers, error) {
	w := &openedWatchers{clusters: clusters, watches: make([]watch.Interface, len(clusters)), seen: make(chan struct{}, 1), ended: make(chan struct{}, len(clusters))}
	list, err := clients.Kube.CoreV1().ConfigMaps("default").List(client.In(ctx, clusters[0]), metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, err
	}
	_, _, err = Load(ctx, watchersAtATime, len(clusters), func(_ context.Context, i int) (err error) {
		// Not Load's context, which ends with it.
		w.watches[i], err = clients.Kube.CoreV1().ConfigMaps("").Watch(client.In(ctx, clusters[i]), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
		return err
	})
	for i, opened := range w.watches {
		if opened == nil {
			w.ended <- struct{}{}
			continue
		}
		go w.follow(i, opened)
	}
	if err != nil {
		w.stop()
		return nil, fmt.Errorf("open %d watches: %w", len(clusters), err)
	}
	return w, nil
}

func (w *openedWatchers) follow(i int, opened watch.Interface) {
	defer func() { w.ended <- struct{}{} }()
	for e := range opened.ResultChan() {
		cm, ok := e.Object.(*corev1.ConfigMap)
		switch {
		case !ok: // an error, after which the watch ends
		case strings.HasPrefix(cm.Name, createdPrefix):
			w.bled.Add(1)
		case cm.Name == seenName && i == len(w.watches)-1 && e.Type == watch.Added:
			w.seen <- struct{}{}
		}
	}
	if !w.stopping.Load() {
		w.broken.Add(1)
	}
}

// check that the watches were there all the time, that nobody was told of what is not his, and that they tell still.
func (w *openedWatchers) check(ctx context.Context, clients *client.Clients) error {
	if n := w.broken.Load(); n > 0 {
		return fmt.Errorf("%d of %d watches have ended", n, len(w.watches))
	}
	if n := w.bled.Load(); n > 0 {
		return fmt.Errorf("%d events came of what was created in another workspace", n)
	}
	last := w.clusters[len(w.clusters)-1]
	if err := put(ctx, clients, last, seenName); err != nil {
		return err
	}
	select {
	case <-w.seen:
		return clients.Kube.CoreV1().ConfigMaps("default").Delete(client.In(ctx, last), seenName, metav1.DeleteOptions{})
	case <-ctx.Done():
		return fmt.Errorf("wait for the event of a watched workspace: %w", context.Cause(ctx))
	}
}

// stop the watches and wait until all have ended.
func (w *openedWatchers) stop() {
	w.stopping.Store(true)
	for _, opened := range w.watches {
		if opened != nil {
			opened.Stop()
		}
	}
	for range w.watches {
		<-w.ended
	}
}
