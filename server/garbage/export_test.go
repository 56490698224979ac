package garbage

// Nodes is how many objects the collector keeps in memory.
func (c *Collector) Nodes() int { return c.graph.size() }
