// Package admission decides about single requests in the logical cluster that their context names: kube-apiserver's
// plugins in its order, and a few of our own.
//
// Where Kubernetes' own plugin can be used it is, unmodified: every request gets an instance of its own (upstream.go), whose
// informers, listers and clients read the stores of this process in the request's logical cluster (informers.go,
// clients.go). Lifecycle, PodSecurity and ResourceQuota are one instance for all logical clusters, and Mirror, Nowhere, InUse and
// Unsupported are ours. They read Objects; ResourceQuota alone writes, what is used of ResourceQuotas, which server/quota counts.
//
// What always holds: a plugin sees the objects of the request's logical cluster and of no other; what cannot be read is not
// allowed; there is no goroutine, informer, client, cache or metric series of a logical cluster, whether it has policies or
// not. In mirrors only Lifecycle and Mirror act: what is there is a rendering of what was admitted in a workspace, and the
// physical cluster admits it again.
//
// Of kube-apiserver's default plugins these are left out: StorageObjectInUseProtection, since nothing would take its
// finalizers away; TaintNodesByCondition, NodeRestriction and PodTopologyLabels, since no kubelet speaks to a workspace; those
// behind feature gates that are off; and as yet webhooks and policies.
//
// The server makes the chain at its start (New) and the package runs nothing. When etcd is away, what the watch caches show
// is used, and what is not in them is refused, as all writes are. Read chain.go first.
package admission
