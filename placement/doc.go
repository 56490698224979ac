// Package placement decides to which physical clusters the objects of a workspace go, and writes the decisions down as
// Placements.
//
// It reads what people wish (annotations placement.atoll.dev/* on an object, its namespace, or the LogicalCluster, else
// the default of a PlacementPolicy), what may be used (SyncTargets of the workspace and of the workspaces above it,
// within the policies' allow) and what is to run (kinds.go), and writes one Placement for each namespace that holds
// something to run without a wish of its own, and one for each object with one. It writes nothing else: the splitter carries
// Placements out, and shows their condition Placed on the objects of the workspace.
//
// What always holds:
//   - A decision is stable: what is placed stays where it is while that is still wanted, allowed and registered, also
//     while the cluster is away or cordoned. Nothing moves because of a mistake in a wish (unknown or forbidden name,
//     bad syntax, a selector that matches nothing); the condition Placed tells, and the placement waits. An object that
//     gets its first wish stands where its namespace had it.
//   - A SyncTarget that is a Duplicate gets nothing, and keeps something only if it was synced before it became one.
//   - Nobody below can widen what a policy above allows, and whether a forbidden cluster exists cannot be learnt here.
//   - Names are resolved to UIDs once. A SyncTarget that was re-created under its name is another cluster.
//   - A Placement shrinks for what is gone only after an uncached read says so too.
//   - Nothing is placed, moved or taken away while a workspace waits for initializers or terminators (internal/attendance).
//   - Mirrors are never placed: only logical clusters of use Workspace are.
//
// The server starts it, with every other controller, as a privileged identity. While etcd is down nothing is decided and
// nothing changes; a physical cluster that is down keeps what it has. After a crash everything is decided again from
// what is stored, with the same result.
//
// Which clusters a workspace may use at all is the rule of internal/fleet.
//
// Read wish.go for the syntax, then decide.go for the rules; both are pure. reconcile.go puts them to work.
package placement
