package garbage

import "github.com/kcp-dev/logicalcluster/v3"

// Gather is how long suspects wait for more.
const Gather = gather

// Nodes is how many objects the collector keeps in memory.
func (c *Collector) Nodes() int { return c.graph.size() }

// Waiting is how many objects of a logical cluster wait for the next sweep.
func (c *Collector) Waiting(cluster logicalcluster.Name) int {
	c.waiting.mu.Lock()
	defer c.waiting.mu.Unlock()
	return len(c.waiting.items[cluster])
}
