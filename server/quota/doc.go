// Package quota counts what ResourceQuotas limit, in all workspaces at once, as kube-controller-manager does for one cluster.
//
// It reads ResourceQuotas from a shared informer and what they limit from the server's stores, custom resources too, and writes the status of
// ResourceQuotas: what is allowed (spec.hard) and what is used. The admission plugin ResourceQuota (server/admission) charges
// the same status for every creation before it is let through; here it is made right when a ResourceQuota is new or changed,
// when something that it limits is gone, and five minutes after its status was written, which corrects what was charged for
// creations that failed later. A new one limits nothing until it is counted, and waits in a queue of its own.
//
// What always holds: a status is written only if nobody has changed it since it was read, and no more is let through than a
// ResourceQuota allows. Between its charge and its write an object is charged and not yet there, and a count would miss it, as
// kube-controller-manager's does: so the requests that charge are known until they end (charges.go), and a ResourceQuota is
// counted when it has none, looked at between the read of it and the lists. A request that was given up, or took more than three
// seconds, counts for ten more, in which etcd may still write. Until the count what was deleted is not given back: where creations
// never pause that is when they are refused, which charges nothing.
//
// With several servers this one knows nothing of the requests to the others. It counts then what nobody has charged for two
// seconds; a creation at another server that takes longer than that from its charge to its write is missed, and one more let
// through. So it is with a new ResourceQuota, or a new limit in one, for what is being created in the moment in which it is
// counted first: nobody charges that.
//
// Custom resources are those that a workspace defines for itself: of one that it does not, a ResourceQuota says what is allowed and not
// what is used, and refuses all until somebody defines it and it is counted, at once. etcd counts its rows in the namespace; none
// is read, which a schema of another workspace could not. Their watches are of the metadata that server/garbage reads.
//
// Only resources that a ResourceQuota somewhere limits are watched, each by one watch for all workspaces that keeps nothing; a
// workspace without ResourceQuotas, or with some and idle, costs nothing. ResourceQuotas of mirrors are left alone: the physical cluster counts those.
//
// The server starts it with the shared informers: New before they run, then Run. When etcd is away nothing is counted, and
// everything is tried again. Read controller.go first.
package quota
