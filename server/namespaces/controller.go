package namespaces

import (
	"context"
	"errors"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/queue"
)

// Default objects are one or two writes, deletions a read for each resource.
const (
	defaultsWorkers = 16
	deletionWorkers = 8
)

// ReadFunc reads an object of a logical cluster.
type ReadFunc func(ctx context.Context, cluster logicalcluster.Name, namespace, name, resourceVersion string, into ctrlclient.Object) (found bool, err error)

// CustomFunc is how many objects of custom resources a namespace of a logical cluster has, as etcd has it now, served or not.
type CustomFunc func(ctx context.Context, cluster logicalcluster.Name, namespace string) (map[schema.GroupResource]int64, error)

// Options are what the controller needs beside clients and informers.
type Options struct {
	// RootCA is the PEM of the authorities that sign the server's certificate, for pods that talk to it. Required.
	RootCA []byte
	// Read reads an object of the server without a request, at a resourceVersion as in a GET, and says whether there is
	// one. Without it, a namespace that has what it should have costs as many requests as one that has not.
	Read ReadFunc
	// Custom is asked before a namespace goes: discovery names neither what no version is served of, nor what this server
	// has not heard of yet. Required.
	Custom CustomFunc
}

// Controller looks after the namespaces of all logical clusters.
type Controller struct {
	clients   *client.Clients
	informers *client.Informers
	rootCA    rootCA
	read      ReadFunc
	custom    CustomFunc
	// defaults and deletions hold the keys of Namespaces.
	defaults, deletions *queue.Queue[client.Key]

	mu    sync.Mutex           // guards waits
	waits map[client.Key]round // by namespaces that are being deleted and hold something
}

// New returns the controller. It adds handlers to the informers, so they must not run yet.
func New(clients *client.Clients, informers *client.Informers, opts Options) (*Controller, error) {
	if len(opts.RootCA) == 0 {
		return nil, errors.New("namespaces: RootCA is required")
	}
	if opts.Custom == nil {
		return nil, errors.New("namespaces: Custom is required")
	}
	c := &Controller{clients: clients, informers: informers, rootCA: newRootCA(opts.RootCA), read: opts.Read, custom: opts.Custom, waits: map[client.Key]round{}}
	c.defaults = queue.New("namespace-defaults", c.ensureDefaults)
	c.deletions = queue.New("namespace-deletion", c.takeRound)

	informers.Namespaces.OnEvent(c.onNamespace)
	// The informers are not in step with each other: a namespace may be seen before its logical cluster.
	informers.LogicalClusters.OnEvent(func(e client.Event[*corev1alpha1.LogicalCluster]) {
		if e.Deleted() || e.Old != nil || e.Initial {
			return
		}
		for _, ns := range informers.Namespaces.List(lcctx.NameFrom(e.New), "") {
			c.defaults.Add(client.KeyOf(ns))
		}
	})
	informers.OnImported(func(cluster logicalcluster.Name) {
		for _, ns := range informers.Namespaces.List(cluster, "") {
			if ns.DeletionTimestamp != nil {
				c.deletions.Add(client.KeyOf(ns))
			}
		}
	})
	for _, kind := range informers.Kinds {
		kind.OnEvent(c.lookAgainWhenGone)
	}
	return c, nil
}

func (c *Controller) onNamespace(e client.Event[*corev1.Namespace]) {
	if e.Deleted() {
		return
	}
	// A list after a gap may show another namespace of the same name as a change of the old one.
	isNew := e.Old == nil || e.Old.UID != e.New.UID
	switch {
	case e.New.DeletionTimestamp != nil:
		if isNew || e.Old.DeletionTimestamp == nil {
			c.deletions.Add(client.KeyOf(e.New))
		}
	case isNew && !e.Initial: // those of the first list are compared with the first list of default objects
		c.defaults.Add(client.KeyOf(e.New))
	}
}

// lookAgainWhenGone makes the deletion of a namespace go on as soon as something in it is gone, without waiting for the
// next round. This matters in mirrors, where a namespace stays until the physical cluster has removed what it held.
func (c *Controller) lookAgainWhenGone(e client.Event[ctrlclient.Object]) {
	if !e.Deleted() {
		return
	}
	key := client.Key{Cluster: lcctx.NameFrom(e.Old), Name: e.Old.GetNamespace()}
	if ns, ok := c.informers.Namespaces.Get(key); ok && ns.DeletionTimestamp != nil {
		c.deletions.Add(key)
	}
}

// Run waits for the informers and works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	defer c.defaults.Stop()
	defer c.deletions.Stop()
	if err := c.informers.WaitSynced(ctx); err != nil {
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() { c.defaults.Run(ctx, defaultsWorkers) })
	wg.Go(func() { c.deletions.Run(ctx, deletionWorkers) })
	for _, w := range c.watchers() {
		wg.Go(func() { w.run(ctx) })
	}
	wg.Wait()
	return nil
}
