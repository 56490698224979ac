package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/client"
)

// inFlight is how many workspaces are made or deleted at a time.
const inFlight = 64

// Workspaces makes and deletes workspaces in root. One watch tells of all of them what became of them.
type Workspaces struct {
	clients *client.Clients

	mu    sync.Mutex
	ready map[string]chan logicalcluster.Name // of those that are waited for; capacity 1
	gone  chan struct{}                       // a token for each that was deleted
	ended error                               // the watch has
}

// NewWorkspaces watches until the scenario ends.
func NewWorkspaces(ctx context.Context, env *Env, clients *client.Clients) (*Workspaces, error) {
	w := &Workspaces{clients: clients, ready: map[string]chan logicalcluster.Name{}, gone: make(chan struct{}, 1<<20)}
	root := client.In(ctx, "root")
	var list tenancyv1alpha1.WorkspaceList
	if err := clients.Objects.List(root, &list, ctrlclient.Limit(1)); err != nil {
		return nil, err
	}
	watcher, err := clients.Objects.Watch(root, &list, &ctrlclient.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
	if err != nil {
		return nil, err
	}
	var running sync.WaitGroup
	running.Go(func() { w.follow(watcher) })
	env.Cleanup(func() { watcher.Stop(); running.Wait() })
	return w, nil
}

func (w *Workspaces) follow(watcher watch.Interface) {
	for e := range watcher.ResultChan() {
		ws, ok := e.Object.(*tenancyv1alpha1.Workspace)
		switch {
		case !ok: // an error, after which the watch ends
		case e.Type == watch.Deleted:
			w.gone <- struct{}{}
		case ws.Status.Phase == corev1alpha1.LogicalClusterPhaseReady:
			w.mu.Lock()
			if waiter, ok := w.ready[ws.Name]; ok {
				waiter <- logicalcluster.Name(ws.Spec.Cluster)
				delete(w.ready, ws.Name)
			}
			w.mu.Unlock()
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = errors.New("the watch of Workspaces has ended")
	for _, waiter := range w.ready {
		close(waiter)
	}
	close(w.gone)
}

// Create posts a Workspace, waits until it is Ready, and returns its logical cluster.
func (w *Workspaces) Create(ctx context.Context, name string) (logicalcluster.Name, error) {
	waiter := make(chan logicalcluster.Name, 1)
	w.mu.Lock()
	w.ready[name] = waiter
	ended := w.ended
	w.mu.Unlock()
	if ended != nil {
		return "", ended
	}
	ws := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := w.clients.Objects.Create(client.In(ctx, "root"), ws); err != nil {
		return "", fmt.Errorf("create workspace %q: %w", name, err)
	}
	select {
	case cluster, ok := <-waiter:
		if !ok {
			return "", fmt.Errorf("wait for workspace %q: the watch of Workspaces has ended", name)
		}
		return cluster, nil
	case <-ctx.Done():
		return "", fmt.Errorf("wait for workspace %q: %w", name, context.Cause(ctx))
	}
}

// CreateMany makes those with the numbers from up to, but not including, to; it returns their logical clusters, how
// many milliseconds each took to be Ready, and how many a second there were.
func (w *Workspaces) CreateMany(ctx context.Context, from, to int) (clusters []logicalcluster.Name, ms []float64, rate float64, err error) {
	clusters = make([]logicalcluster.Name, to-from)
	ms, all, err := Load(ctx, inFlight, to-from, func(ctx context.Context, i int) (err error) {
		clusters[i], err = w.Create(ctx, workspaceName(from+i))
		return err
	})
	return clusters, ms, float64(to-from) / all.Seconds(), err
}

// DeleteMany deletes those with the numbers from up to, but not including, to, and waits until they are gone.
func (w *Workspaces) DeleteMany(ctx context.Context, from, to int) error {
	_, _, err := Load(ctx, inFlight, to-from, func(ctx context.Context, i int) error {
		ws := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: workspaceName(from + i)}}
		return w.clients.Objects.Delete(client.In(ctx, "root"), ws)
	})
	if err != nil {
		return err
	}
	for i := range to - from {
		select {
		case _, ok := <-w.gone:
			if !ok {
				return w.ended
			}
		case <-ctx.Done():
			return fmt.Errorf("%d of %d workspaces are deleted: %w", i, to-from, context.Cause(ctx))
		}
	}
	return nil
}

func workspaceName(i int) string { return fmt.Sprintf("bench-%06d", i) }
