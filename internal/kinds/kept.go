package kinds

import "k8s.io/apimachinery/pkg/runtime/schema"

// Kept are kinds that do something in a cluster and, as yet, nothing in a workspace: they are kept, and neither
// go down to a physical cluster nor are carried out here. The list only shrinks.
var Kept = []schema.GroupResource{
	{Resource: "persistentvolumes"},
	{Group: "discovery.k8s.io", Resource: "endpointslices"},
}

// Here is what a kind does in the workspace, and does not do, which who creates one is warned of; empty for nothing.
type Here struct{ Does, Lacks string }

// CarriedOutHere are kinds that act on what is made in the workspace, and do not go down.
var CarriedOutHere = map[schema.GroupResource]Here{
	{Group: "autoscaling", Resource: "horizontalpodautoscalers"}: {Does: "scale what is made in the workspace, by the CPU and memory that its pods use in all physical clusters together"},
	{Group: "policy", Resource: "poddisruptionbudgets"}: {
		Does: "hold evictions that are asked for in the workspace", Lacks: "those that somebody asks for in a physical cluster",
	},
	{Resource: "resourcequotas"}: {Does: "limit what is made in the workspace", Lacks: "the pods that physical clusters make for a workload"},
}

// String is what it does, and what not.
func (h Here) String() string {
	if h.Lacks == "" {
		return h.Does
	}
	return h.Does + ", and not yet " + h.Lacks
}
