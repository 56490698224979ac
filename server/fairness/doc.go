// Package fairness divides what the server can do at once between workspaces, so that one that floods it slows itself and
// not its neighbours.
//
// A request that was authorised takes seats: one, or more for a long list, the start of a watch with many objects, or a
// write that many watches will hear of. It takes them twice. First of its workspace, which has a bounded number and deals
// them fairly to its users; then of the server, which deals its own fairly to workspaces. Both are upstream's queue sets,
// those of API Priority and Fairness, with workspaces in place of flow schemas: who waits too long, or finds a queue full, gets
// 429 with Retry-After. Refused requests take no seats: nobody can wear out a workspace that he may not use.
//
// Seats are for work. A request that keeps one for longer than patience mostly waits for somebody else, such as a webhook
// or a client that sends its body slowly: it gives its seats back and goes on without. That of its workspace it keeps as long
// as many others of the workspace go on without one: some times its seats, or as many as those while goroutines wait for CPUs and another
// workspace is there, since then they may be some that compute.
//
// While goroutines wait for CPUs and more than one workspace asks, or a workspace beside a mirror, fewer seats are dealt out,
// down to one for each CPU: what is begun then finishes no sooner, and who asks for little would wait for it. See capacity.go.
// The process has threads to spare, so that even then something small runs at once (threads.go), and none of them runs for long
// (threads_linux.go).
//
// Levels do not share seats: requests to workspaces, and those to mirrors, which only syncers make. Who owns a workspace may
// register a cluster and have its syncer's credential, so a mirror is bounded as a workspace is. Administrators and
// the server's own controllers are exempt, as in kube-apiserver: what they wait for is often a request of their own.
// Besides, the open watches of a workspace or mirror are bounded, since each costs memory for as long as it is open, and they
// write their events in turn, since one write wakes all of them. See writing.go.
//
// It reads the context of requests, writes nothing, and keeps nothing of a workspace that asks for nothing, but for the
// lengths of a bounded number of long lists. All of it holds for one process: several servers on one etcd each
// divide their own. The server puts it into its handler chain. When etcd is away requests keep their seats until they
// fail, or for as long as patience.
//
// Read fairness.go first, then level.go, then capacity.go.
package fairness
