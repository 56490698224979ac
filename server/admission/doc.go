// Package admission decides about single requests in the logical cluster that their context names: kube-apiserver's
// plugins in its order, and a few of our own.
//
// Where Kubernetes' own plugin can be used it is, unmodified: every request gets an instance of its own (upstream.go), whose
// informers, listers and clients read the stores of this process in the request's logical cluster (informers.go,
// clients.go). Lifecycle, PodSecurity and ResourceQuota are one instance for all logical clusters, and Mirror, Nowhere, InUse,
// Decisions, Shown, WorkspaceTypes, TypeCircles, KeySizes, OwnName and Unsupported are ours. They read Objects; ResourceQuota alone writes, what is used of ResourceQuotas, which server/quota counts.
//
// Webhooks and policies are what people configure for their own logical cluster. Configurations keeps those of all of them by
// one watch for each resource (configurations.go). For the first request to a logical cluster that has some, an instance is
// made of what there is at that moment (dynamic.go): upstream's webhook plugins (webhooks.go), or upstream's dispatchers of
// policies over expressions that are compiled here (policies.go, mutatingpolicies.go), since upstream's own source of policies
// runs goroutines. It is made anew when they have changed, and never changes itself. What a policy compiles to is shared by all
// who have the same, and what fits into a bound of bytes is kept. The first request after a change may still meet the old ones, as
// in kube-apiserver. Parameters of policies are read when they are needed (params.go). What changes objects looks at them again when
// webhooks or policies have changed them (reinvoke.go). A few workers look at the types in policies, in turns (typechecks.go).
//
// What the server's own controllers write in a workspace passes its webhooks and policies, as what kube-controller-manager
// writes does in a cluster; who of them waits for a webhook that hangs does not keep the others from working for other
// workspaces (owncalls.go). Nobody's webhooks or policies hear of what the server alone may write (Placements, LogicalClusters, statuses of our
// kinds), of mirrors, or of a logical cluster that is being deleted, and none changes what an administrator of the server or a
// controller of it writes to an object of our kinds (a Workspace, a SyncTarget): it may refuse that. What controllers write without a request, such as the
// counts of ResourceQuotas, they do not see.
//
// What always holds: a plugin sees the objects of the request's logical cluster and of no other; what cannot be read is not
// allowed; there is no goroutine, informer or metric series of a logical cluster, and nothing at all of one without
// webhooks and policies. In mirrors only Lifecycle, OwnName and Mirror act: what is there is a rendering of what was admitted in a workspace, and the
// physical cluster admits it again.
//
// Of kube-apiserver's default plugins these are left out: StorageObjectInUseProtection, since the physical cluster protects what is in
// use; TaintNodesByCondition, NodeRestriction and PodTopologyLabels, since no kubelet speaks to a workspace; and those
// behind feature gates that are off.
//
// The server makes the chain at its start (New) and runs Configurations until it stops. When etcd is away, what the watch caches
// show is used, and what is not in them is refused, as all writes are. Read chain.go first, then dynamic.go.
package admission
