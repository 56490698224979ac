// Package classes is the one table of the classes that physical clusters have and workloads name: StorageClass, IngressClass, PriorityClass
// and RuntimeClass. It says what the syncer tells of one (Read), what a workspace is shown of it (Show), what objects name (Named),
// and, in words, what is missing where (Missing). All functions are pure.
//
// What always holds: nothing is told of a class but the fields of workloadv1alpha1.Class. Parameters, mount options and what selects
// nodes stay in the physical cluster: they may name Secrets, addresses and machines. There are at most Most classes of a kind, and what is
// no valid class is not told (Checked): who writes a SyncTarget's status is a tenant, or a physical cluster.
package classes
