// Package budget bounds how much memory something takes at once, of all logical clusters together and of each of them: of what
// somebody else decides how much it is, and how long it lasts.
package budget

import (
	"fmt"
	"maps"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Budget counts what is taken.
type Budget struct {
	most, mostOfOne int64 // bytes
	ofOne, ofAll    string

	mu    sync.Mutex // guards what follows
	taken int64
	of    map[logicalcluster.Name]int64 // never 0
}

// New returns a budget of so many bytes, and so many for one logical cluster. What takes them is called ofOne and ofAll in
// errors, such as "the answers of the workspace's webhooks" and "the answers of webhooks to this server".
func New(most, mostOfOne int64, ofOne, ofAll string) *Budget {
	return &Budget{most: most, mostOfOne: mostOfOne, ofOne: ofOne, ofAll: ofAll, of: map[logicalcluster.Name]int64{}}
}

// Exceeded is the error of who would take more than there is. Somebody else decides how often that is: it is for who asked, and
// not for the log.
type Exceeded string

func (e Exceeded) Error() string { return string(e) }

// Take takes n bytes for a logical cluster. It takes nothing if it fails, with Exceeded.
func (b *Budget) Take(cluster logicalcluster.Name, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.of[cluster]+n > b.mostOfOne:
		return Exceeded(fmt.Sprintf("%s would take more memory at once than the %s that they may: they have to be shorter, or fewer at a time",
			b.ofOne, resource.NewQuantity(b.mostOfOne, resource.BinarySI)))
	case b.taken+n > b.most:
		return Exceeded(fmt.Sprintf("%s take all of the %s of memory that they may: try again", b.ofAll, resource.NewQuantity(b.most, resource.BinarySI)))
	}
	b.add(cluster, n)
	return nil
}

// Give gives back n bytes of a logical cluster.
func (b *Budget) Give(cluster logicalcluster.Name, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(cluster, -n)
}

// Taken are the bytes that are taken, by logical cluster; those that have taken none are not there.
func (b *Budget) Taken() map[logicalcluster.Name]int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.of)
}

// add counts n bytes more. The lock is held.
func (b *Budget) add(cluster logicalcluster.Name, n int64) {
	b.taken += n
	if b.of[cluster] += n; b.of[cluster] == 0 {
		delete(b.of, cluster)
	}
}
