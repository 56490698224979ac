package workspaces

import (
	"context"
	"fmt"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/attendance"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// ErrNotFound is the error that no logical cluster has that path.
var ErrNotFound = lcctx.ErrNotFound

const (
	byPath = "workspaces.path"

	// A path that was looked for in vain is not looked for again for missTTL, up to maxMisses paths; and at most
	// maxReads searches run at a time. Together they keep a flood of made-up paths from keeping etcd busy.
	missTTL   = time.Second
	maxMisses = 8192
	maxReads  = 8
)

// Directory says which logical clusters there are and which one has a path. It answers from the shared informer of
// LogicalClusters; what that does not hold is read from the store, because the informer may be behind.
//
// Reading a LogicalCluster from the store is a request to the logical cluster in question. Whoever serves the requests
// of clients must not ask Resolve about them in turn; Known and KnownPath do not read.
type Directory struct {
	clients   *client.Clients
	informers *client.Informers
	clusters  *client.Informer[*corev1alpha1.LogicalCluster]
	misses    *cache.LRUExpireCache
	reads     chan struct{}
}

// NewDirectory returns the directory. It adds an index to the informers, so they must not run yet.
func NewDirectory(clients *client.Clients, informers *client.Informers) (*Directory, error) {
	err := informers.LogicalClusters.AddIndex(byPath, func(c *corev1alpha1.LogicalCluster) []string {
		if path := c.Annotations[lcctx.PathAnnotation]; path != "" {
			return []string{path}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("index logical clusters by path: %w", err)
	}
	return &Directory{
		clients:   clients,
		informers: informers,
		clusters:  informers.LogicalClusters,
		misses:    cache.NewLRUExpireCache(maxMisses),
		reads:     make(chan struct{}, maxReads),
	}, nil
}

// Known returns the logical cluster of that name if the informer holds it. It never reads from the store.
func (d *Directory) Known(name logicalcluster.Name) (lcctx.Cluster, bool) {
	c, ok := d.clusters.Get(clusterKey(name))
	if !ok {
		return lcctx.Cluster{}, false
	}
	return clusterOf(name, c), true
}

// Annotation returns an annotation of a logical cluster as the informer has it, "" if there is none.
func (d *Directory) Annotation(name logicalcluster.Name, key string) string {
	c, ok := d.clusters.Get(clusterKey(name))
	if !ok {
		return ""
	}
	return c.Annotations[key]
}

// OnImported tells of each logical cluster when it is first seen that no import fills it, or none any more. Called before the informers run.
func (d *Directory) OnImported(tell func(logicalcluster.Name)) { d.informers.OnImported(tell) }

// OnGone tells of each logical cluster that has gone, with all that was in it. Called before the informers run.
func (d *Directory) OnGone(tell func(logicalcluster.Name)) {
	d.clusters.OnEvent(func(e client.Event[*corev1alpha1.LogicalCluster]) {
		if e.Deleted() {
			tell(lcctx.NameFrom(e.Object()))
		}
	})
}

// Terminating says whether the logical cluster is being deleted: it can be read, but takes nothing new.
func (d *Directory) Terminating(name logicalcluster.Name) bool {
	c, ok := d.clusters.Get(clusterKey(name))
	return ok && c.Status.Phase.Ends()
}

// Initialized says whether the logical cluster has no initializers left. Before, nobody but attendants can use it.
func (d *Directory) Initialized(name logicalcluster.Name) bool {
	c, ok := d.clusters.Get(clusterKey(name))
	return ok && attendance.Initialized(c)
}

// KnownPath returns the logical cluster at the end of a path if the informer holds it. Two logical clusters have one path
// only for the moment in which the informer has not seen yet that the older one is gone.
func (d *Directory) KnownPath(path logicalcluster.Path) (logicalcluster.Name, bool) {
	var newest *corev1alpha1.LogicalCluster
	for _, c := range d.clusters.ByIndex(byPath, path.String()) {
		if newest == nil || newest.CreationTimestamp.Before(&c.CreationTimestamp) {
			newest = c
		}
	}
	if newest == nil {
		return "", false
	}
	return lcctx.NameFrom(newest), true
}

// Resolve returns the logical cluster at the end of a path of at least two names: from root, or from any logical cluster.
// The error is ErrNotFound if there is none, and without a search for a path that is too long to be one.
func (d *Directory) Resolve(ctx context.Context, path logicalcluster.Path) (logicalcluster.Name, error) {
	if n := len(path.String()); n > lcctx.MaxPathLength {
		return "", fmt.Errorf("%w: a path of %d characters is longer than %d", ErrNotFound, n, lcctx.MaxPathLength)
	}
	if name, ok := d.KnownPath(path); ok {
		return name, nil
	}
	if _, isName := path.Name(); isName || !path.IsValid() {
		return "", notFound(path)
	}
	var found logicalcluster.Name
	ok, err := d.search(ctx, path.String(), func() (ok bool, err error) {
		found, ok, err = d.walk(ctx, path)
		return ok, err
	})
	if err != nil {
		return "", fmt.Errorf("look for workspace %q: %w", path, err)
	}
	if !ok {
		return "", notFound(path)
	}
	return found, nil
}

func notFound(path logicalcluster.Path) error { return fmt.Errorf("%w: %q", ErrNotFound, path) }

// walk follows the Workspaces from the nearest ancestor that is known, and at the latest from the first segment, which is
// the name of a logical cluster.
func (d *Directory) walk(ctx context.Context, path logicalcluster.Path) (logicalcluster.Name, bool, error) {
	var at logicalcluster.Name
	var below []string // from the leaf upwards
	for ancestor := path; ; {
		parent, base := ancestor.Split()
		below = append(below, base)
		if name, ok := parent.Name(); ok {
			at = name
			break
		}
		if name, ok := d.KnownPath(parent); ok {
			at = name
			break
		}
		ancestor = parent
	}
	for i := len(below) - 1; i >= 0; i-- {
		if lcctx.ValidateName(string(at)) != nil {
			return "", false, nil
		}
		w := &tenancyv1alpha1.Workspace{}
		if ok, err := d.get(ctx, at, below[i], w); err != nil || !ok || w.Spec.Cluster == "" {
			return "", false, err
		}
		at = logicalcluster.Name(w.Spec.Cluster)
	}
	if _, ok := d.Known(at); ok {
		return at, true, nil
	}
	ok, err := d.get(ctx, at, corev1alpha1.LogicalClusterName, &corev1alpha1.LogicalCluster{})
	return at, ok, err
}

// search runs read unless it found nothing a moment ago.
func (d *Directory) search(ctx context.Context, what string, read func() (bool, error)) (bool, error) {
	if _, missed := d.misses.Get(what); missed {
		return false, nil
	}
	select {
	case d.reads <- struct{}{}:
		defer func() { <-d.reads }()
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	if _, missed := d.misses.Get(what); missed { // while we queued
		return false, nil
	}
	ok, err := read()
	if err == nil && !ok {
		d.misses.Add(what, struct{}{}, missTTL)
	}
	return ok, err
}

// get reads an object from the store, and says whether it is there.
func (d *Directory) get(ctx context.Context, cluster logicalcluster.Name, name string, into ctrlclient.Object) (bool, error) {
	err := d.clients.Objects.Get(client.In(ctx, cluster), types.NamespacedName{Name: name}, into)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

func clusterOf(name logicalcluster.Name, c *corev1alpha1.LogicalCluster) lcctx.Cluster {
	return lcctx.Cluster{Name: name, Mirror: c.Spec.Use == corev1alpha1.LogicalClusterUseMirror}
}

// clusterKey is the key of the LogicalCluster object of that logical cluster.
func clusterKey(name logicalcluster.Name) client.Key {
	return client.Key{Cluster: name, Name: corev1alpha1.LogicalClusterName}
}
