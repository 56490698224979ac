// Package rbac serves rbac.authorization.k8s.io in every logical cluster and authorises requests with it.
//
// It reads and writes roles and bindings through upstream's registries; which logical cluster they belong to comes with
// the request's context, so one authoriser, one rule resolver and one set of stores serve all logical clusters without
// any state per cluster. What upstream would write into a cluster at its start (bootstrap roles and bindings) is made
// once, by Bootstrap, and shared by the storage's overlay.
//
// What always holds: an answer depends on the objects of the request's logical cluster and the shared bootstrap objects,
// and on nothing else; a request without a logical cluster in its context is refused by the storage below; members of
// system:masters may do anything.
//
// What a decision looks at is bounded (decision.go), and so is what it takes to find out whether somebody holds what he gives
// (granting.go): who may write roles could keep the server busy otherwise.
//
// The server starts it: NewStores, then NewAuthorizer and NewProvider over them. It runs no goroutines. If etcd is down,
// reads are answered from the watch caches and go stale; a store that cannot answer makes the decision "no opinion"
// with the error as its reason, which ends as a refusal.
package rbac
