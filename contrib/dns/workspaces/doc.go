// Package workspaces is a plugin of CoreDNS for the physical clusters of Atoll. A namespace of a workspace has another name in a physical
// cluster, by which nobody in the workspace knows it. With this plugin a pod of a workspace asks for the Services and pods of its workspace as in any cluster
// (web, web.shop, web.shop.svc, web.shop.svc.cluster.local), and finds those of no other namespace of the physical cluster:
// there is no such name, nor a name for such an address. Who is no pod of a workspace is served as without it.
//
// In a Corefile it stands beside kubernetes, with the same zone:
//
//	workspaces [ZONE...] {
//	    pods NETWORK...
//	    api SERVICE NAMESPACE
//	    kubeconfig FILE [CONTEXT]
//	}
//
// api names a Service of the physical cluster that leads to the server of the workspaces: pods of workspaces find it as kubernetes.default, as
// they would find the API of their cluster. Their tokens say which workspace is theirs.
//
// The zones are the cluster's domain, cluster.local where none is named. Without kubeconfig it is a pod of the cluster, as CoreDNS
// is as a rule; its ServiceAccount lists and watches pods and namespaces.
//
// pods are the networks that pods have their addresses of: who asks from there, and is no pod that is known, is told nothing.
//
// Who asks is known by the address, which has to be the pod's own: a cache on the node that asks in the name of its pods hides them.
// Pods in the node's network have none of their own, and are served as who is no pod of a workspace.
package workspaces
