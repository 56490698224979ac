package kinds

import "k8s.io/apimachinery/pkg/runtime/schema"

// Kept are kinds that do something in a cluster and, as yet, nothing in a workspace: they are kept, and neither
// go down to a physical cluster nor are carried out here. The list only shrinks.
var Kept = []schema.GroupResource{
	{Resource: "replicationcontrollers"},
	{Resource: "persistentvolumes"},
	{Group: "discovery.k8s.io", Resource: "endpointslices"},
	{Group: "autoscaling", Resource: "horizontalpodautoscalers"},
}

// CarriedOutHere are kinds that act on what is made in the workspace, and as yet do not go down, with what they act on.
var CarriedOutHere = map[schema.GroupResource]string{
	{Group: "policy", Resource: "poddisruptionbudgets"}: "hold evictions that are asked for in the workspace, and not yet those that somebody asks for in a physical cluster",
	{Resource: "resourcequotas"}:                        "limit what is made in the workspace, and not yet the pods that physical clusters make for a workload",
}
