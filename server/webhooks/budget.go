package webhooks

import (
	"fmt"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/resource"
)

// How many bytes of memory the answers may take that are read and unpacked at once, by weight: of all logical clusters, and of one of
// them. Somebody else decides what is in them and how long they last.
const (
	mostOfAll = 1 << 30
	mostOfOne = mostOfAll / 4
)

// budget counts what answers take.
type budget struct {
	most, mostOfOne int64 // bytes

	mu    sync.Mutex // guards what follows
	taken int64
	of    map[logicalcluster.Name]int64 // never 0
}

func newBudget(most, mostOfOne int64) *budget {
	return &budget{most: most, mostOfOne: mostOfOne, of: map[logicalcluster.Name]int64{}}
}

// take takes n bytes for a logical cluster. It takes nothing if it fails.
func (b *budget) take(cluster logicalcluster.Name, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.of[cluster]+n > b.mostOfOne:
		return fmt.Errorf("the answers of the workspace's webhooks would take more memory at once than the %s that they may: they have to be shorter, or fewer at a time",
			resource.NewQuantity(b.mostOfOne, resource.BinarySI))
	case b.taken+n > b.most:
		return fmt.Errorf("the answers of webhooks to this server take all of the %s of memory that they may: try again", resource.NewQuantity(b.most, resource.BinarySI))
	}
	b.add(cluster, n)
	return nil
}

// give gives back n bytes of a logical cluster.
func (b *budget) give(cluster logicalcluster.Name, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(cluster, -n)
}

// add counts n bytes more. The lock is held.
func (b *budget) add(cluster logicalcluster.Name, n int64) {
	b.taken += n
	if b.of[cluster] += n; b.of[cluster] == 0 {
		delete(b.of, cluster)
	}
}
