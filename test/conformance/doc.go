// Package conformance runs Kubernetes' own end-to-end suite inside workspaces, and judges what comes of it.
//
// The suite is built unmodified (build.sh), and runs the specs of specs.txt: those [Conformance] specs that an unmodified
// etcd, kube-apiserver, kube-controller-manager and kube-scheduler without any node pass (contrib/physical, the peer), each
// within specTime. So no spec is among them that needs a running pod, for which it waits minutes there in vain; nor, by
// aggregated, one that needs an API server behind the API server. TestCandidates makes the list.
//
// TestConformance runs them on a peer and in two workspaces of one server at the same time, in both workspaces in the order
// of the same seed, each as a user who is cluster-admin there and nobody elsewhere. What always holds, or the run fails:
//   - the peer passes at least minPeerPasses specs: else nothing is proven;
//   - both workspaces pass what the peer passes, but for the exceptions, each of which has its reason;
//   - an exception fails: their list may only shrink. They run beside, each in a process of its own
//     that ends after specTime, in one further workspace and on the peer, since most of them wait for what does not come;
//   - a third workspace's objects are the same before and after, resourceVersions included.
//
// A workspace has all that the suite wants before its first spec, but the Service default/kubernetes, which it asks for the
// family of cluster IPs: the test makes it.
//
// It uses free ports, directories of the test, and the binaries in ATOLL_BIN_DIR or bin; nothing it starts outlives it.
// With -report it writes docs/conformance.md: see make conformance.
package conformance
