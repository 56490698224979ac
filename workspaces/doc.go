// Package workspaces knows the tree of workspaces: it finds the logical cluster of a name or path, makes one for each
// new Workspace, and takes it down again.
//
// It reads Workspaces, LogicalClusters and SyncTargets, Placements (to empty them) and the metadata of leaves (to wait for
// them). It writes, in the parent's logical cluster, a Workspace's spec.cluster, spec.URL, status and finalizer; in the
// workspace's own one the LogicalCluster "cluster", the namespaces default and kube-system (people and charts expect
// both; the other two of a real cluster serve kubelets and bootstrapping), and the owner's ClusterRoleBinding.
//
// The type of a workspace is chosen and checked at admission (server/admission); here it is noted on the LogicalCluster.
//
// A new workspace is three writes: the Workspace, which is born with the name of its logical cluster, and two transactions
// (seed.go). Whatever these find different from what they expect is made by requests (create.go), as all of it once was.
//
// Initializers and terminators (internal/attendance) are copied from the Workspace, where admission noted them, to the
// LogicalCluster, and remove themselves there. A workspace with initializers is made as any other, but is Initializing until
// the last is gone.
//
// A Workspace that an import fills (ImportingAnnotation) gets its LogicalCluster and nothing else until the annotation is gone. The LogicalCluster
// has it, too, for who deletes in there, and loses it then.
//
// What always holds:
//
//   - A logical cluster exists exactly as long as its LogicalCluster object: it is the first thing written there and
//     the last thing deleted.
//   - Its name is in the Workspace's spec before anything is written under that name, and the Workspace keeps its
//     finalizer until nothing is left. So whatever crashes when, no data is left that no Workspace leads to.
//   - A Workspace is Ready only when this process' Directory knows its logical cluster and the authoriser knows its owner.
//
// A deletion first marks the LogicalCluster Terminating, or Deleting if it has no terminators: from then on the server
// refuses to create anything there (Directory.Terminating), and placement leaves its Placements alone. Nothing goes before
// its terminators are done.
// Then go, in this order: the Workspaces inside, which have logical clusters of their own; what runs in physical
// clusters, by Placements that this controller empties, until the splitter has no leaf of this workspace left in any
// mirror; the SyncTargets; all data; the LogicalCluster; the finalizer. The condition WorkspaceContentDeleted says what
// is waited for.
//
// Objects that finalizers hold are deleted by requests, one by one, and everything else stays until they are gone, so that
// who has to react finds what he needs (held.go). Where something runs in physical clusters they go first, for half a
// minute: what removes their finalizers may run there. Finalizers whose work ends with the workspace hold nothing
// (server/held.go), and where none does, one read of etcd shows it. A LogicalCluster with finalizers is deleted at the
// start, for those who put them there, and kept to the end by one of our own.
//
// The server starts it: NewDirectory and New before the shared informers run, Bootstrap when the server answers, then
// Run. If etcd is down nothing moves, and the Directory still answers from memory. If a physical cluster is down, a
// workspace that runs something there stays Deleting until it is back or its SyncTarget is deleted.
package workspaces
