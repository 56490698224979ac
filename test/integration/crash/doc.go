// Package crash holds the controllers against the faults that a process of controllers meets, with the real server, real
// physical clusters and nothing simulated but the fault. Its code is all in tests:
//
//	line_test.go       the perturbed connection of one life of a controller: what it cuts, delays and drops
//	filter_test.go     the part of it that withholds watch events
//	subjects_test.go   the controllers: to add one is an entry of subjects
//	house_test.go      those that live in one process, what a user gives them to do, and what is looked at of that
//	clock_test.go      clocks that run faster, or are set
//	scenarios_test.go  what a user does, and what may be deleted then: to add one is an entry of scenarios
//	pull_test.go       what a syncer outside the server asks of it, for the scenario in which there is one
//	world_test.go      a server in this process, two physical clusters beside it, and who runs in it
//	run_test.go        one scenario played once, step by step, with the judge of each step
//	state_test.go      everything that a run left in the workspace, the mirrors and the clusters, comparable
//	audit_test.go      the audit logs
//	crash_test.go      the faults themselves
//
// The faults are those of the Sieve paper (OSDI '22, "Automatic Reliability Testing for Cluster Management Controllers"):
//
//   - A crash after the n-th write: `make soak` (ATOLL_SOAK=1) tries every n, else a third of them are drawn by lot. The server
//     answers that write, nobody hears the answer, and nothing more is sent. What the controller had in memory is gone; a new one
//     starts. How many writes there are an undisturbed run says first; where all are tried, a kind of write of it that no life ended
//     with fails the test.
//   - An older view after a restart. The first list of everything is the state of an earlier revision; the watches
//     catch up only when the controller has done what it would do.
//   - Dropped events. While others work nothing is seen; then the watch has expired, and a new list shows the
//     last states only. The scenario names what the user changes twice in a step; unless nobody saw the state between, the
//     run has tested nothing, and fails.
//
// A run is judged by what is left and by what happened. After every step of the user's all objects of the workspace, the
// mirrors and the physical clusters have to be those of the undisturbed run. And the audit logs of the physical
// clusters may show no delete that no step asked for, nor that of the server one by the house, which makes no Job twice, either.
// Nor is any user told that somebody else changed something in a physical cluster: nobody did.
//
// A write is known again in an audit log by its Audit-ID, which names the life that sent it and counts its writes: that
// is how each fault is proven to have happened as it says.
//
// The splitter's clock runs faster than the world's, so that the minute for which it keeps what vanished unseen takes
// seconds. That by which CronJobs are due, and what has ended goes, is set half a year ahead in one step.
//
// Those that do in workspaces what kube-controller-manager does in a cluster are one subject, the house: they live in one process, share
// its informers, and crash together. Each has writes of its own kinds, which say whose they are. What they crash after outside of make soak is drawn
// from the writes of all, and what was kept from them, or shown of the past, is counted of all.
//
// Every controller meets each of the faults with every change, in the shorter scenarios; `make soak` adds the longer ones, and the
// crashes after reports and heartbeats. What waits has minutes for what takes a second or two: how busy the machine is decides how long
// a run takes, not how it ends.
package crash
