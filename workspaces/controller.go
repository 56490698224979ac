package workspaces

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwait "k8s.io/apimachinery/pkg/util/wait"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/attendance"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/queue"
)

const (
	// workers is how many workspaces are made or deleted at a time. They wait for etcd most of the time, and etcd
	// writes what comes together in one go.
	workers = 32

	// catchUp is how long a worker waits for the informer to see what the worker wrote.
	catchUp      = 5 * time.Second
	catchUpEvery = time.Millisecond
)

// Options are what the controller needs beside clients and informers.
type Options struct {
	// URLBase is the external address of the server without a path, as https://host:6443. Required.
	URLBase string
	// DeleteData deletes every object of a logical cluster but its LogicalCluster, in all resources, if finalizers hold none
	// of them. Else it deletes nothing and returns what is held. It is called again after a failure or a crash, also when
	// nothing is left. Required.
	DeleteData func(ctx context.Context, cluster logicalcluster.Name) (lcctx.Held, error)
	// Held returns what DeleteData would, and deletes nothing. Required.
	Held func(ctx context.Context, cluster logicalcluster.Name) (lcctx.Held, error)
	// DeleteRest deletes whatever a logical cluster has, which nothing can be created in any more: its LogicalCluster is gone. Required.
	DeleteRest func(ctx context.Context, cluster logicalcluster.Name) error

	// The rest makes new workspaces cheap; all of it or nothing is given. Without it each object is a request.

	// WriteTogether writes objects in one transaction, each in the logical cluster that its annotation names, and says
	// whether it did: not if one exists already, or one with a resourceVersion is not at it any more, or while is not. No two
	// objects may be of one kind.
	WriteTogether func(ctx context.Context, while ctrlclient.Object, objects ...ctrlclient.Object) (written bool, err error)
	// Read reads an object, with everything it holds, at a resourceVersion as in a GET, and says whether there is one. Where
	// the version is not "", it reads what the authoriser does.
	Read func(ctx context.Context, cluster logicalcluster.Name, namespace, name, resourceVersion string, into ctrlclient.Object) (found bool, err error)
	// NamespaceContent returns what every namespace holds, no two of a kind.
	NamespaceContent func(namespace string) []ctrlclient.Object
}

// Controller makes and deletes the logical clusters of Workspaces.
type Controller struct {
	opts      Options
	clients   *client.Clients
	informers *client.Informers
	queue     *queue.Queue[client.Key]
	leaves    []leafIndex
	asks      chan struct{} // holds one for each worker that asks what finalizers hold to go

	mu    sync.Mutex           // guards waits
	waits map[client.Key]*wait // by Workspaces that are being deleted and hold what finalizers hold
}

// New returns the controller. It adds handlers and indexes to the informers, so they must not run yet.
func New(clients *client.Clients, informers *client.Informers, opts Options) (*Controller, error) {
	if opts.URLBase == "" || opts.DeleteData == nil || opts.Held == nil || opts.DeleteRest == nil {
		return nil, errors.New("workspaces: URLBase, DeleteData, Held and DeleteRest are required")
	}
	c := &Controller{opts: opts, clients: clients, informers: informers, asks: make(chan struct{}, asking), waits: map[client.Key]*wait{}}
	c.queue = queue.New("workspaces", c.reconcile)

	informers.Workspaces.OnEvent(func(e client.Event[*tenancyv1alpha1.Workspace]) {
		if worthALook(e) {
			c.queue.Add(client.KeyOf(e.New))
		}
		if e.Deleted() {
			c.forget(client.KeyOf(e.Old))
			c.wake(lcctx.NameFrom(e.Old))
		}
	})
	informers.LogicalClusters.OnEvent(func(e client.Event[*corev1alpha1.LogicalCluster]) {
		switch {
		case e.Deleted():
		case e.Old == nil:
			if !e.Initial {
				c.addOwner(e.New)
			}
		case attendance.Changed(e.Old, e.New):
			c.addOwner(e.New)
		case len(e.Old.Finalizers) != len(e.New.Finalizers):
			c.wake(lcctx.NameFrom(e.New))
		}
	})
	informers.SyncTargets.OnEvent(func(e client.Event[*workloadv1alpha1.SyncTarget]) {
		if e.Deleted() {
			c.wake(lcctx.NameFrom(e.Old))
		}
	})
	informers.Placements.OnEvent(func(e client.Event[*placementv1alpha1.Placement]) {
		if e.Deleted() || len(e.New.Spec.Clusters) == 0 {
			c.wake(lcctx.NameFrom(e.Object()))
		}
	})
	var err error
	if c.leaves, err = indexLeaves(informers, c.wake); err != nil {
		return nil, err
	}
	return c, nil
}

// Run waits for the informers and works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	defer c.queue.Stop()
	if err := c.informers.WaitSynced(ctx); err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	c.queue.Run(ctx, workers)
	return nil
}

// wake looks again at the Workspace of a logical cluster that is being deleted: something it may wait for has gone.
func (c *Controller) wake(cluster logicalcluster.Name) {
	lc, ok := c.informers.LogicalClusters.Get(clusterKey(cluster))
	if !ok || !lc.Status.Phase.Ends() {
		return
	}
	c.addOwner(lc)
}

// addOwner looks at the Workspace of a logical cluster, if it is one's.
func (c *Controller) addOwner(lc *corev1alpha1.LogicalCluster) {
	if o := lc.Spec.Owner; o != nil && o.Resource == "workspaces" {
		c.queue.Add(client.Key{Cluster: logicalcluster.Name(o.Cluster), Name: o.Name})
	}
}

func (c *Controller) reconcile(ctx context.Context, key client.Key) (time.Duration, error) {
	w, ok := c.informers.Workspaces.Get(key)
	switch {
	case !ok:
		return 0, nil
	case w.DeletionTimestamp == nil:
		return 0, c.create(ctx, w)
	case slices.Contains(w.Finalizers, tenancyv1alpha1.WorkspaceFinalizer):
		return c.delete(ctx, w)
	}
	return 0, nil
}

// see waits until the informer of LogicalClusters holds one that is as wanted.
func (c *Controller) see(ctx context.Context, cluster logicalcluster.Name, wanted func(*corev1alpha1.LogicalCluster) bool) error {
	err := apiwait.PollUntilContextTimeout(ctx, catchUpEvery, catchUp, true, func(context.Context) (bool, error) {
		lc, ok := c.informers.LogicalClusters.Get(clusterKey(cluster))
		return ok && wanted(lc), nil
	})
	if err != nil {
		return fmt.Errorf("wait for the informer to see logical cluster %q: %w", cluster, err)
	}
	return nil
}

func in(ctx context.Context, w metav1.Object) context.Context {
	return client.In(ctx, lcctx.NameFrom(w))
}
