// Package apis holds the Go types of every API group that Atoll defines; it imports nothing of the project.
//
//	core.kcp.io/v1alpha1          LogicalCluster            (names, fields and phases as in kcp)
//	tenancy.kcp.io/v1alpha1       Workspace, WorkspaceType  (as in kcp)
//	workload.kcp.io/v1alpha1      SyncTarget                (kcp's name, Atoll's fields)
//	placement.atoll.dev/v1alpha1  Placement, PlacementPolicy
//
// Deep copies and OpenAPI definitions are generated (`go generate ./apis`) and checked in.
package apis

//go:generate go tool deepcopy-gen --go-header-file /dev/null --output-file zz_generated.deepcopy.go ./core/v1alpha1 ./tenancy/v1alpha1 ./workload/v1alpha1 ./placement/v1alpha1
//go:generate go tool openapi-gen --go-header-file /dev/null --output-dir openapi --output-pkg atoll.dev/atoll/apis/openapi --output-file zz_generated.openapi.go --output-model-name-file zz_generated.model_name.go --report-filename /dev/null ./core/v1alpha1 ./tenancy/v1alpha1 ./workload/v1alpha1 ./placement/v1alpha1
