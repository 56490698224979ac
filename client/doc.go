// Package client has what every controller uses to talk to logical clusters: one set of clients for all of them, and
// informers over all of them at once.
//
// A request goes to the logical cluster that its context names (In), or to all (Everywhere: list and watch only); a
// context that names none is an error, never a default. So a logical cluster costs no client, no connection and no
// goroutine. The context also says which part of the process asks (As), for managedFields and the audit log.
//
// Informers key objects by "cluster|namespace/name". client-go's own shared informers must not be used on
// Everywhere: they key by "namespace/name" and would silently merge equal names of different logical clusters.
//
// Read clients.go first, then informer.go.
package client
