package placement

import (
	"slices"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/atoll/client"
)

// usage counts the Placements of every SyncTarget. What was decided counts from that moment, before an informer shows
// it: else a burst of new namespaces would all see the same cluster as the least used.
type usage struct {
	mu sync.Mutex // guards everything below
	// seen is what the informer shows; pending is what was decided and not seen yet, and hides seen. Keys are
	// Placements.
	seen, pending map[client.Key][]types.UID
	// count is the number of Placements of a SyncTarget, never 0.
	count map[types.UID]int
}

func newUsage() *usage {
	return &usage{seen: map[client.Key][]types.UID{}, pending: map[client.Key][]types.UID{}, count: map[types.UID]int{}}
}

// decide calls fn with the counts, and counts what it returns for key at once. Decisions run one after the other.
func (u *usage) decide(key client.Key, fn func(count func(types.UID) int) []types.UID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.setPending(key, fn(func(uid types.UID) int { return u.count[uid] }))
}

// release forgets what was decided for key: it was not written.
func (u *usage) release(key client.Key) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.drop(key)
}

// observe takes what the informer shows for key now, or last where the Placement is gone.
func (u *usage) observe(key client.Key, uids []types.UID, exists bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !exists {
		uids = nil // it counts no more
	}
	pending, isPending := u.pending[key]
	if isPending && (!exists || slices.Equal(pending, uids)) {
		u.drop(key)
		isPending = false
	}
	if !isPending {
		u.add(u.seen[key], -1)
		u.add(uids, 1)
	}
	if exists {
		u.seen[key] = uids
	} else {
		delete(u.seen, key)
	}
}

// of counts the Placements of a SyncTarget that the informer shows, and the logical clusters that they are in.
func (u *usage) of(target types.UID) (placements, clusters int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	in := map[logicalcluster.Name]bool{}
	for key, uids := range u.seen {
		if slices.Contains(uids, target) {
			placements++
			in[key.Cluster] = true
		}
	}
	return placements, len(in)
}

// setPending is called with mu held.
func (u *usage) setPending(key client.Key, uids []types.UID) {
	u.drop(key)
	if slices.Equal(u.seen[key], uids) {
		return
	}
	u.add(u.seen[key], -1)
	u.add(uids, 1)
	u.pending[key] = uids
}

// drop is called with mu held.
func (u *usage) drop(key client.Key) {
	if uids, ok := u.pending[key]; ok {
		u.add(uids, -1)
		u.add(u.seen[key], 1)
		delete(u.pending, key)
	}
}

// add is called with mu held.
func (u *usage) add(uids []types.UID, n int) {
	for _, uid := range uids {
		if u.count[uid] += n; u.count[uid] == 0 {
			delete(u.count, uid)
		}
	}
}
