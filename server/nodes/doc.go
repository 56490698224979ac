// Package nodes shows each workspace the physical clusters that it may use as Nodes, which nobody writes, and their classes
// (internal/classes) behind its own, of which it writes its own alone.
//
// It is a layer over the store of nodes, below the registry: what is below it makes Nodes of LogicalClusters, SyncTargets and
// PlacementPolicies, and what is above it (selectors, tables, versions, encodings, RBAC) is upstream's. Which clusters a workspace may
// use is the rule of internal/fleet, by which placement decides as well. It reads the watch caches of those three resources, of the
// workspace and of those above it, and writes nothing.
//
// What always holds:
//
//   - A list has a revision of etcd: nothing that was written before is missing, and no Node in it is newer. One that asks for no
//     resourceVersion is as of now.
//   - A Node has its SyncTarget's UID and resourceVersion. An event of a watch has at least the revision of the change that
//     caused it, and revisions in a watch never go back.
//   - A watch misses nothing. What there was at a revision is not kept, so a watch from one after which anything changed, in the
//     workspace or above it, is answered 410 Gone, at its beginning or as soon as that is known, and the client lists anew.
//   - Where it is not known what is above a workspace, reads fail: none would say that they are gone.
//   - Who asks by a UID (WithUID), as for what a token is bound to, gets the physical cluster with it from the workspace upward for as long as
//     its SyncTarget is there, whatever policies say.
//   - Only what a workspace sees is told: nothing of who else uses a cluster, of addresses, or of what its SyncTarget refers to.
//   - A row, a class of the workspace's own, comes before what is shown of its name, is read and written as if nothing was shown, and has
//     in lists and watches the resourceVersion that it is stored with. A write of what is shown is refused, a dry one too.
//   - A class that is shown has the UID of the clusters that have it and of being the default: of one UID, its resourceVersion never goes back.
//   - Without a watch there is one feed of each resource for the whole server. A watch is a goroutine, what it has sent last, and one
//     entry for each workspace from its own upward: a change wakes those whose Nodes it can change, and no others.
//
// The server makes it before its storage, which it lies over, and runs the feeds. When etcd is away reads fail, save those at
// resourceVersion 0; when a feed breaks, watches end with 410.
//
// On the wildcard there are the rows that workspaces had stored as nodes in an earlier version. They are seen by nobody else.
//
// Read node.go, classes.go, look.go, then store.go, uid.go and watch.go.
package nodes
