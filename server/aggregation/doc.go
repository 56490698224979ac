// Package aggregation fills the ClusterRoles that have an aggregation rule, in all workspaces at once, as
// kube-controller-manager's clusterrole-aggregation-controller does for one cluster.
//
// It hears of every ClusterRole that is a row, by one watch that keeps nothing, and puts the workspace of each into a queue.
// There it reads all ClusterRoles of the workspace, the bootstrap ones that it shares with all others too, where the watch
// cache has them and without a request, since somebody may have many and change one of them all the time; so workspaces take
// turns, too. It applies server-side the rules that a role lacks or has too many of. So admin, edit and view become rows of a
// workspace when it has a role that adds to them, and not before: a workspace without roles of its own costs nothing.
//
// What always holds: only rules are written, and only of roles with an aggregation rule; they are rules of other roles of the
// same workspace, whose authors held what they granted. Mirrors are left alone. Where they would take too long to sum up, or take
// from each other without end, they stay as they are, and an event in namespace default says so.
//
// The server starts it: New, then Run. When etcd is away nothing is written, and everything is tried again.
package aggregation
