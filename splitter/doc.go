// Package splitter divides what users apply over physical clusters and sums up what becomes of it.
//
// It reads roots (kinds.All) and Placements in workspaces, SyncTargets, and leaves in mirrors, from the shared informers;
// the content of ConfigMaps, Secrets and ServiceAccounts, which informers do not hold, it reads when it is needed. It writes
// leaves and their namespaces into mirrors, the status and Events of roots and the revisions of their templates (ReplicaSets,
// ControllerRevisions) into workspaces, the status (but not the conditions) of Placements, and the condition Frozen of SyncTargets.
//
// What always holds:
//   - A leaf is deleted only after an uncached read showed that its root is gone, is another object by now, is being deleted or
//     none that goes down any more (a ReplicaSet that a Deployment has by now), or that its Placement left the cluster. Leaves whose root was found missing rather than seen deleted, or whose Placement
//     has no cluster left although nobody asked for that, are subject to a Brake.
//   - Moving and re-splitting never leave fewer replicas available than were asked for and available (Plan), and clusters roll
//     together only within the root's strategy (DivideRollout). Targets come from the Placement and the root alone: a
//     cluster that is not heard of changes the status, not the division.
//   - A DaemonSet leaves a cluster only when it serves, as it is now, in all that stay (PlanCopies). What an only observed cluster
//     reports lets none be left, of no kind.
//   - What runs in one cluster at a time (PlanSingle) has a leaf only where an uncached read of all mirrors shows no other.
//   - What is done once, and has begun, is not begun again, and what has ended is left alone. A tombstone that may have begun stays until its root tells.
//   - No leaf is made of what the cluster's syncer does not carry.
//   - What pods need is written before the pods, with what bounds them (bounds.go), and stays until after them.
//   - A namespace of a mirror is used only if it is labelled as the workspace's. It goes soon after its last leaf, and holds
//     nothing then, of whatever kind.
//   - The status of a Placement is about one decision: it is written once every root is planned for by it, and has a cluster Ready
//     only if what is there is what the plans want there in the end.
//   - A revision is a record: nothing that runs depends on one. One that does not name the workload as its controller, by UID, is never
//     changed, adopted or deleted, and a second pass over what has not changed writes none.
//   - Of a status, ends and bad news are written at once; steps on the way may wait for the next (pace.go).
//
// Each step follows from what is stored and seen, so it can be interrupted anywhere. The server starts it: New before the
// shared informers run, then Run. If a physical cluster is down its leaves wait; if etcd is down nothing moves and everything is
// tried again.
//
// Plan, PlanCopies, PlanSingle, PlanRevisions, DivideRollout, Assign and Brake are pure; a simulation of clusters (sim_test.go) runs them in random
// interleavings. Read plan.go first, then workload.go; copies.go and single.go are the same for what is not divided, and history.go keeps the
// revisions of all.
package splitter
