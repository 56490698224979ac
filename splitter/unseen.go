package splitter

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"atoll.dev/atoll/client"
)

// unseen are the leaves of workloads that were made here, until the informer was seen to show them. Without them a cluster that is
// left again a moment after its leaf was made would count as one that has no pods, and others would not wait for it.
type unseen struct {
	mu     sync.Mutex                       // guards leaves
	leaves map[key]map[client.Key]types.UID // by root, by leaf
}

func newUnseen() *unseen { return &unseen{leaves: map[key]map[client.Key]types.UID{}} }

// made remembers a leaf of a root.
func (u *unseen) made(root key, leaf client.Key, uid types.UID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.leaves[root] == nil {
		u.leaves[root] = map[client.Key]types.UID{}
	}
	u.leaves[root][leaf] = uid
}

// forget a leaf of a root, which the informer shows, or which is gone.
func (u *unseen) forget(root key, leaf client.Key) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if delete(u.leaves[root], leaf); len(u.leaves[root]) == 0 {
		delete(u.leaves, root)
	}
}

// forgetAll leaves of a root that is gone: each that is left is looked at when the informer shows it.
func (u *unseen) forgetAll(root key) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.leaves, root)
}

func (u *unseen) of(root key) map[client.Key]types.UID {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Clone(u.leaves[root])
}

// withUnseen returns the leaves of a root that the informer shows, and those that were made and are not shown yet.
func (c *Controller) withUnseen(ctx context.Context, s *source, root client.Key, shown []ctrlclient.Object) ([]ctrlclient.Object, error) {
	all := slices.Clone(shown)
	made := key{s.GVK.Kind, root}
	for leaf, uid := range c.unseen.of(made) {
		at := slices.IndexFunc(all, func(o ctrlclient.Object) bool { return client.KeyOf(o) == leaf })
		if at >= 0 && all[at].GetUID() == uid {
			c.unseen.forget(made, leaf)
			continue
		}
		live := s.New()
		err := c.clients.Objects.Get(client.In(ctx, leaf.Cluster), types.NamespacedName{Namespace: leaf.Namespace, Name: leaf.Name}, live)
		switch of, ok := rootOf(live); {
		case apierrors.IsNotFound(err) || err == nil && (live.GetUID() != uid || !ok || of != root): // shown and gone since
			c.unseen.forget(made, leaf)
		case err != nil:
			return nil, fmt.Errorf("read leaf %s %s, which was made a moment ago: %w", s.GVK.Kind, leaf, err)
		case at >= 0:
			all[at] = live // in place of one of its name that is gone
		default:
			all = append(all, live)
		}
	}
	return all, nil
}
