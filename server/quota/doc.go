// Package quota counts what ResourceQuotas limit, in all workspaces at once, as kube-controller-manager does for one cluster.
//
// It reads ResourceQuotas from a shared informer and what they limit from the server's stores, and writes the status of
// ResourceQuotas: what is allowed (spec.hard) and what is used. The admission plugin ResourceQuota (server/admission) charges
// the same status for every creation before it is let through; here it is made right when a ResourceQuota is new or changed,
// when something that it limits is gone, and five minutes after its status was written, which corrects what was charged for
// creations that failed later. A new one limits nothing until it is counted, and waits in a queue of its own.
//
// What always holds: a status is written only if nobody has changed it since it was read. Between its charge and its end a
// creation is charged and not yet there: a count that begins in that moment misses the charge, and used is too low by it until
// the next count. So what holds to the number is many creations alone; beside deletions, changes of a ResourceQuota and the
// counts that these cause a few more may get through, as with kube-controller-manager.
//
// Only resources that a ResourceQuota somewhere limits are watched, each by one watch for all workspaces that keeps nothing; a
// workspace without ResourceQuotas, or with some and idle, costs nothing. ResourceQuotas of mirrors are left alone: the physical cluster counts those.
//
// The server starts it with the shared informers: New before they run, then Run. When etcd is away nothing is counted, and
// everything is tried again. Read controller.go first.
package quota
