// Package builtin serves in every logical cluster what kube-apiserver serves by default: upstream's registries,
// unmodified, over stores that take the logical cluster from the request's context.
//
// Most providers are upstream's own. Those that upstream ties to one cluster are composed here: core (allocators, kubelet
// connections), rbac (see server/rbac), and those with a client of their own get one that reads the request's logical
// cluster. Hooks that would write into whichever cluster the loopback client points at do not run; what they would write
// is shared by the storage's overlay (SharedObjects).
//
// A Service's cluster IP is locked by an IPAddress object of its logical cluster, and a node port by an exclusive row of
// it. Creating either is the lock, in etcd, so any number of servers can share one etcd and none keeps allocations in memory.
// What a crash between a lock and the write of its Service leaves is taken over by whoever next wants it, once it is older
// than any request can be.
//
// The pods of a mirror are a view of those pods of workspaces that its physical cluster runs (shownpods.go). Its events go to
// workspaces, and are not kept in it (shownevents.go). Tokens that are asked for there are of workspaces (podtokens.go).
// Jobs and ReplicationControllers take their pods along where nobody says what is to become of these (podsgo.go).
// Nodes are read and not written: what is shown as such are physical clusters (server/nodes).
//
// What always holds: within a logical cluster no two Services hold one cluster IP or one node port, and a lock is given
// up only after the Service without it is written. In mirrors nothing is allocated: the physical cluster does that.
// Whose a pod is that a physical cluster shows, and who owns it, is never what the cluster says, nor what an event is about, nor which tokens
// its pods want.
//
// The server installs the providers at start; the package runs no goroutines. When etcd is down, writes fail and leave
// at most a lock that nobody holds.
package builtin
