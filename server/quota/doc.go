// Package quota counts what ResourceQuotas limit, in all workspaces at once, as kube-controller-manager does for one cluster.
//
// It reads ResourceQuotas from a shared informer and what they limit from the server's stores, custom resources too, and writes
// the status of ResourceQuotas: what is allowed (spec.hard) and what is used. The admission plugin ResourceQuota
// (server/admission) charges the same status for every creation before it is let through; here it is made right when a
// ResourceQuota is new or changed, when something that it limits is gone, and five minutes after its status was written, which
// corrects what was charged for creations that failed later. A new one limits nothing until it is counted, and waits in a queue
// of its own.
//
// What always holds, with any number of servers on one etcd: of what a ResourceQuota limits there is never more than its status
// allows, unless there was when it was counted first. A status is written only if nobody has changed it since it was read, nor
// written anything that it was charged for since the lists began; what is charged then and not yet written is charged anew by its
// own server, before it is written. A limit that is new is told of before it is counted: who has not heard of it writes nothing
// after that. It is server/storage that puts all of this into the transactions of those who write; docs/design/0013-counts.md
// says why so.
//
// Until the count what was deleted is not given back: where creations never pause that is when they are refused, which charges
// nothing. New limits, which refuse nobody until they are counted, hold up who would use something of them (429) when their count
// was refused three times.
//
// Custom resources are those that a workspace defines for itself: of one that it does not, a ResourceQuota says what is allowed
// and not what is used, and refuses all until somebody defines it and it is counted, at once. etcd counts its rows in the
// namespace; none is read, which a schema of another workspace could not. Their watches are of the metadata that server/garbage
// reads.
//
// Only resources that a ResourceQuota somewhere limits are watched, each by one watch for all workspaces that keeps nothing. What
// a ResourceQuota limits is made out once for each spec (limits.go): an event, or a change of one ResourceQuota, is not compared
// with what all others say, or one workspace would hold up everybody. A workspace without ResourceQuotas, or with some and idle,
// costs nothing. ResourceQuotas of mirrors are left alone: the physical cluster counts those.
//
// The server starts it with the shared informers: New before they run, then Run. When etcd is away nothing is counted, and
// everything is tried again. Read controller.go first.
package quota
