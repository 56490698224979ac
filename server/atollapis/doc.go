// Package atollapis serves Atoll's own API groups in every logical cluster:
//
//	core.kcp.io/v1alpha1          logicalclusters(/status)
//	tenancy.kcp.io/v1alpha1       workspaces(/status), workspacetypes(/status)
//	workload.kcp.io/v1alpha1      synctargets(/status)
//	placement.atoll.dev/v1alpha1  placements(/status), placementpolicies
//
// It reads and writes their objects, as JSON under <group>/<resource>, through one generic registry; resources.go is the
// table of what sets the resources apart. All of them are cluster-scoped.
//
// The types are registered in legacyscheme.Scheme when this package is linked in, each Go type both as v1alpha1 and as
// the internal version: there is one version, so nothing is converted, but for what stored.go leaves out of the rows of
// Workspaces and LogicalClusters. So the storage factory, the codecs and the
// OpenAPI of the built-in types serve ours too, once ConfigureStorage and DefinitionNames have been applied.
//
// What always holds: a status endpoint changes nothing but the status, the other endpoint everything but the status;
// metadata.generation rises with each change of the spec; what decides where a request goes or who owns a workspace
// (spec.cluster, the path of a logical cluster, the owner's name) is written by the system alone, that is by members of
// system:masters, whatever RBAC says. That nobody but the server writes placements is seen to by authorization and admission.
//
// The server starts it: Providers go into the same InstallAPIs call as the built-in ones. It runs no goroutines. If etcd
// is down, its registries answer as those of built-in types do.
package atollapis
