// Package finishedjobs deletes Jobs once spec.ttlSecondsAfterFinished has passed since they ended, in all workspaces at
// once, as kube-controller-manager's ttl-after-finished-controller does for one cluster.
//
// It hears of every Job by one watch that keeps nothing, and holds in one queue the names and times of those that are to go;
// each is looked at once an hour, and what has gone otherwise is dropped.
// It deletes them with what they own (foreground propagation); a workspace without such Jobs costs nothing.
//
// What always holds: a Job is deleted only as it was just read from etcd, by UID and resourceVersion, ended and older than its
// TTL then. One that the workspace does not let go is told by an Event, and tried again ten minutes later. Mirrors are left
// alone: a Job there is deleted by its tombstone only, and below by the physical cluster.
//
// The server starts it: New, then Run. When etcd is away nothing is deleted, and everything is tried again.
package finishedjobs
