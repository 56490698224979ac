// Package server is the API server: it serves every logical cluster at /clusters/<name or path> through the unmodified
// registries and handler chain of Kubernetes.
//
// A request's way: withLogicalCluster takes /clusters/... off the path and puts the logical cluster into the context;
// upstream's chain authenticates, ServiceAccounts in their own workspace only (identity); clusterAuthorizer decides, with the roles of that logical cluster; fairness gives it its turn; the registry
// (builtin, atollapis, customresources) defaults and validates; storage writes below the logical cluster's key, and nodes shows there which
// physical clusters there are. From the context on, nothing can reach another logical cluster, and what forgets the context is refused by storage.
//
// It reads and writes etcd, and the directory of keys (pki.go); a backup is both (backup.go). The server knows of workspaces
// only through Directory, which cmd joins to it, and of syncers only that each has an identity valid in one mirror.
// Controllers reach it over connections in memory (LoopbackConfig), through the same chain as everybody.
//
// When etcd is away requests fail or wait as in kube-apiserver and /readyz says so; nothing is served from memory as
// if it were current. Several servers may use one etcd, with the same certificate authorities (replicas.go).
//
// Read server.go first (the assembly), then clusters.go, authentication.go and auth.go.
package server
