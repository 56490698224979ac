// Package certificates signs approved CertificateSigningRequests and deletes old ones, in all workspaces at once, as
// kube-controller-manager does for one cluster.
//
// Of Kubernetes' signers there is kubernetes.io/kube-apiserver-client: certificates by which people and programs are somebody
// in the workspace of the request, and nobody anywhere else. Others are left to who approves and signs them by the API, as
// signers of a domain of one's own are; those for kubelets and kubernetes.io/legacy-unknown have no use here, where no
// kubelet is. Who may ask, approve and sign is said by the roles of the workspace and by Kubernetes' admission.
//
// It hears of every CertificateSigningRequest by one watch that keeps nothing, and holds the names of those that are there in
// one queue until it is time to delete them. It writes their statuses, and nothing else. Requests of mirrors are those of
// syncers, and left alone.
//
// What always holds: only what is approved, neither denied nor failed, as just read from etcd, is signed. What names the
// server's administrators, its parts, or a ServiceAccount is refused with the condition Failed, and would be refused at the
// door besides (server/workspace_certificates.go, which also signs).
//
// The server starts it: New, then Run. When etcd is away nothing is signed or deleted, and everything is tried again. Read
// decide.go first.
package certificates
