package server

import (
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/util/managedfields"
)

// converters keeps what is made of documents of OpenAPI, by their address, which has their hash: logical clusters with the same
// share it. When there is too much of it, something goes of the logical cluster that has had most made. So one with documents
// without number loses its own, and what others use stays: it is theirs as soon as it had to be made again.
type converters struct {
	most int // bytes

	mu    sync.Mutex // guards what follows
	of    map[string]*keptConverter
	bytes int
	uses  uint64
}

// keptConverter is what was made of a document, by whom it was needed first.
type keptConverter struct {
	managedfields.TypeConverter
	bytes int
	by    logicalcluster.Name
	used  uint64 // more than that of all that were used before
}

// get returns nil if there is none.
func (c *converters) get(address string) managedfields.TypeConverter {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, ok := c.of[address]
	if !ok {
		return nil
	}
	c.uses++
	found.used = c.uses
	return found.TypeConverter
}

func (c *converters) add(address string, made *keptConverter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if before, ok := c.of[address]; ok { // two requests needed it at once
		c.bytes -= before.bytes
	}
	c.uses++
	made.used = c.uses
	c.of[address] = made
	c.bytes += made.bytes
	for c.bytes > c.most && len(c.of) > 1 {
		c.drop(address)
	}
}

// drop drops the one that was not used for longest of those of the logical cluster that has most, but not the one at that
// address. It looks at all, of which there are some dozens. The lock is held.
func (c *converters) drop(but string) {
	has := map[logicalcluster.Name]int{}
	for _, one := range c.of {
		has[one.by] += one.bytes
	}
	oldest := ""
	for address, one := range c.of {
		if address == but {
			continue
		}
		if last, ok := c.of[oldest]; !ok || has[one.by] > has[last.by] || has[one.by] == has[last.by] && one.used < last.used {
			oldest = address
		}
	}
	c.bytes -= c.of[oldest].bytes
	delete(c.of, oldest)
}
