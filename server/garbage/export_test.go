package garbage

import "github.com/kcp-dev/logicalcluster/v3"

// Gather is how long suspects wait for more.
const Gather = gather

// Nodes is how many objects the collector keeps in memory.
func (c *Collector) Nodes() int { return c.graph.size() }

// Followed is how many resources the collector follows.
func (c *Collector) Followed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.followed)
}

// Open is how many stores of custom resources are open.
func (c *Custom) Open() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.stores)
}

// Waiting is how many objects of a logical cluster wait for the next sweep.
func (c *Collector) Waiting(cluster logicalcluster.Name) int {
	c.waiting.mu.Lock()
	defer c.waiting.mu.Unlock()
	return len(c.waiting.items[cluster])
}
