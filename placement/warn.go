package placement

import (
	"github.com/kcp-dev/logicalcluster/v3"

	"atoll.dev/atoll/apis/core/v1alpha1"
	"atoll.dev/atoll/client"
)

// WhyNowhere says why an object with these annotations, applied to a namespace now, would run nowhere; "" if something
// would run it. It reads informers only and decides nothing: it is for a warning to who applies the object, who hears
// from the Placement a moment later in any case.
func (c *Controller) WhyNowhere(cluster logicalcluster.Name, namespace string, annotations map[string]string) string {
	lc, ok := c.world.LogicalCluster(cluster)
	if !ok || !isWorkspace(lc) || isTerminating(lc) {
		return ""
	}
	key := client.Key{Cluster: cluster, Name: namespace}
	for _, p := range c.world.Placements(key) {
		if p.Spec.Object == nil && len(p.Spec.Clusters) > 0 && !HasWish(annotations) {
			return "" // it goes where the namespace is
		}
	}
	chain, complete := lineage(lc, c.world.LogicalCluster)
	if !complete {
		return ""
	}
	s, fallback := (&reconciler{world: c.world}).look(lc, chain)
	levels := []Level{{Source: "this object", Annotations: annotations}}
	if ns, ok := c.world.Namespace(key); ok {
		levels = append(levels, Level{Source: "namespace " + quote(namespace), Annotations: ns.Annotations})
	}
	levels = append(levels, Level{Source: "this workspace's LogicalCluster " + quote(v1alpha1.LogicalClusterName), Annotations: lc.Annotations})
	decision := Decide(Request{Levels: append(levels, fallback...), Allow: s.allow}, s.candidates, nil)
	if len(decision.Clusters) > 0 {
		return ""
	}
	return decision.Message
}
