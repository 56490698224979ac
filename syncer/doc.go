// Package syncer makes a physical cluster run what its mirror says, and tells the mirror how it goes. A Syncer is to
// its mirror what a kubelet is to its Node.
//
// Flow of a Syncer, one for each SyncTarget: leaves (kinds.All) and Namespaces of the mirror that carry WorkspaceLabel
// → server-side apply to the physical cluster; status found there → /status of the leaf, with AppliedAnnotation or
// RefusedAnnotation; nodes, classes, version and health of the physical cluster → status of the SyncTarget's twin, the object
// of the same name in the mirror; pods of the physical cluster that were made of leaves → pods of the mirror, which the server makes
// pods of workspaces (pods.go). The Manager runs in the server: SyncTargets → mirror logical cluster, twin, running
// Syncers (those with a kubeconfig Secret) → status and conditions of SyncTargets.
//
// A Syncer outside the server (`atoll syncer`, pull) is the same one, with a Credential in the place of the identity that
// the Manager gives; in the server, Credentials say which bootstrap tokens and certificates are good, and have the
// certificates signed: CertificateSigningRequests of the mirrors → status.credential of SyncTargets, certificates.
//
// What always holds:
//   - A bootstrap token is good for one request, and a certificate only while status.credential names its token: watches
//     that were begun with either end with it, too.
//   - Nothing is deleted downstream because something is missing in the mirror. Only a tombstone, a leaf with
//     deletionTimestamp, deletes: what a fresh read shows to be ours and of the same root, by UID. Objects of ours
//     without a leaf are counted and reported (condition Orphans).
//   - A leaf of what makes pods goes after them (foreground); of what runs in one cluster at a time also after pods that were left without it.
//   - What is done once, and had begun, is not made again where it is gone (RefusedGone).
//   - An object without our SyncTargetLabel is never changed or deleted; a namespace without it is never used. What is new
//     is created, never applied, and a namespace that holds an orphan, or somebody else's object, is not deleted (contents.go).
//   - No write goes down on the ground of a list or watch of the mirror begun after the heartbeats were last
//     compared (gate.go). A mirror that shows an older heartbeat than the physical cluster was restored from a
//     snapshot, and the Syncer only observes until an administrator confirms. So it does where the physical cluster
//     shows an older heartbeat than the mirror recorded. Meanwhile the twin's status says what a confirmation would
//     do (difference.go).
//   - No write goes down, not even a heartbeat, unless the twin says that the SyncTarget was let in to the very physical cluster
//     that answers (letInTo, isLetIn): several registrations of one cluster do not write there at once, wherever their syncers run.
//   - No write goes down on the ground of what was seen of a side before it was restored: a Syncer that finds a heartbeat
//     older than it left it throws its caches away (history.go), since watches go on from one history into the other.
//   - No write goes down without a fresh read of its leaf from the hub: two syncers of one target, one of which is behind,
//     do not undo each other's work. Nor does one go down, whatever was read before, when another Syncer may be in the place of
//     this one: whoever runs it is asked before each (fence.go).
//   - No request waits for longer than 30 s, whatever a server asks for or forgets (impatient.go); those for the lock of
//     the leader election for no longer than 5 s (cmd/atoll, lead).
//   - A pod below is deleted only where a fresh read shows that somebody deletes the one in the workspace, and one above goes only
//     where a fresh read below shows that it is gone: absence says nothing. Neither happens while the heartbeats are not compared.
//   - What a physical cluster answers is read only as far as there is room for it (room.go): it takes no notice of selectors and
//     limits unless it wants to.
//   - A status goes up only from the object of the leaf's own root; observedGeneration of a leaf is its generation
//     only when the controllers below have observed what was rendered from it.
//   - A second pass over unchanged objects writes nothing on either side.
//   - What somebody else changes or deletes below is put back, and told where the user looks; the same is written to one object ever
//     less often (drift.go).
//   - That a workload is through, that fewer of its pods serve, and what is refused goes up at once; steps on the way may wait
//     for the next (pace.go), and the last word always goes.
//
// The field manager on both sides is FieldManager, the finalizer on leaves and their namespaces SyncerFinalizer, the
// Manager's finalizer on SyncTargets ManagerFinalizer.
//
// Failure: without the physical cluster nothing goes down, leaves that wait for it say Unreachable, and the twin is
// not Ready after 40 s, as when one resource there cannot be listed and watched; without the hub the physical cluster keeps what it has. Both sides are listed again when they
// are back, within 8 s however long or often they were away (internal/reflector), and what differs is made right. A Syncer keeps no state but caches: it can be killed at any point.
//
// Read leaf.go first, then render.go and heartbeat.go; manager.go for the server's side.
package syncer
