package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

	// Rewatched counts how often the server ended the watch, as it does when it cannot get rid of the events, and it was
	// opened again from the last event.
	Rewatched atomic.Int64
}

// NewWorkspaces watches until the context ends.
func NewWorkspaces(ctx context.Context, env *Env, clients *client.Clients) (*Workspaces, error) {
	w := &Workspaces{clients: clients, ready: map[string]chan logicalcluster.Name{}, gone: make(chan struct{}, 1<<20)}
	var list tenancyv1alpha1.WorkspaceList
	if err := clients.Objects.List(client.In(ctx, "root"), &list, ctrlclient.Limit(1)); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { w.end(w.follow(ctx, list.ResourceVersion)) })
	env.Cleanup(func() { stop(); running.Wait() })
	return w, nil
}

// follow watches from a resource version on, and returns why it cannot go on.
func (w *Workspaces) follow(ctx context.Context, version string) error {
	for {
		watcher, err := w.clients.Objects.Watch(client.In(ctx, "root"), &tenancyv1alpha1.WorkspaceList{},
			&ctrlclient.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: version}})
		if err != nil {
			return err
		}
		for e := range watcher.ResultChan() {
			ws, ok := e.Object.(*tenancyv1alpha1.Workspace)
			if !ok {
				watcher.Stop()
				return apierrors.FromObject(e.Object)
			}
			version = ws.ResourceVersion
			w.handle(e.Type, ws)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		w.Rewatched.Add(1)
	}
}

func (w *Workspaces) handle(event watch.EventType, ws *tenancyv1alpha1.Workspace) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch waiter, waited := w.ready[ws.Name]; {
	case event == watch.Deleted:
		w.gone <- struct{}{}
	case waited && ws.Status.Phase == corev1alpha1.LogicalClusterPhaseReady:
		waiter <- logicalcluster.Name(ws.Spec.Cluster)
		delete(w.ready, ws.Name)
	}
}

// end tells those who wait that nothing will come.
func (w *Workspaces) end(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = fmt.Errorf("the watch of Workspaces has ended: %w", err)
	for _, waiter := range w.ready {
		close(waiter)
	}
	close(w.gone)
}

// Create posts a Workspace, waits until it is Ready, and returns its logical cluster.
func (w *Workspaces) Create(ctx context.Context, name string) (logicalcluster.Name, error) {
	waiter := make(chan logicalcluster.Name, 1)
	if err := w.wait(name, waiter); err != nil {
		return "", err
	}
	ws := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := w.clients.Objects.Create(client.In(ctx, "root"), ws); err != nil {
		return "", fmt.Errorf("create workspace %q: %w", name, err)
	}
	select {
	case cluster, ok := <-waiter:
		if !ok {
			return "", fmt.Errorf("wait for workspace %q: %w", name, w.err())
		}
		return cluster, nil
	case <-ctx.Done():
		return "", fmt.Errorf("wait for workspace %q: %w", name, context.Cause(ctx))
	}
}

// wait sends the logical cluster of a workspace to waiter once it is Ready.
func (w *Workspaces) wait(name string, waiter chan logicalcluster.Name) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ready[name] = waiter
	return w.ended
}

// err is why the watch ended.
func (w *Workspaces) err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended
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
				return w.err()
			}
		case <-ctx.Done():
			return fmt.Errorf("%d of %d workspaces are deleted: %w", i, to-from, context.Cause(ctx))
		}
	}
	return nil
}

func workspaceName(i int) string { return fmt.Sprintf("bench-%06d", i) }
