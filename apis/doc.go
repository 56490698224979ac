// Package apis holds the Go types of every API group that Atoll defines; it imports nothing of the project.
//
//	core.kcp.io/v1alpha1          LogicalCluster            (names, fields and phases as in kcp)
//	tenancy.kcp.io/v1alpha1       Workspace                 (as in kcp)
//	workload.kcp.io/v1alpha1      SyncTarget                (kcp's name, Atoll's fields)
//	placement.atoll.dev/v1alpha1  Placement, PlacementPolicy
//
// Deep copies and OpenAPI definitions are generated (`make generate`) and checked in.
package apis
