// Package resourcemetrics serves metrics.k8s.io/v1beta1 in every workspace, for `kubectl top`: what its pods use, and what they use together in each physical
// cluster, which is a Node to it (docs/design/0015-resource-metrics.md).
//
// It reads the rows of the workspace's pods, and its Nodes, from the watch caches, and asks the physical clusters that show pods there for what these use: each
// that is concerned, once for each namespace, by way of one of the pods (builtin.Ways). Nothing is written, and nothing is kept from one request to the next.
//
// What always holds: nothing is shown but of pods that the workspace has a row of, by the name and namespace that the server itself wrote into it; whose
// they are, how they are called and labelled is the row's. Of what a physical cluster says pass the numbers, their time, and names of containers that the row
// has. What it says costs no memory but for what is shown. What others use of a physical cluster is not shown. A request takes allTake at most; a cluster that
// does not answer is named, and holds up no other.
//
// The server installs its Provider; the package runs goroutines for as long as a request lasts. When etcd is down, pods and Nodes are shown as the watch caches
// have them; where nothing can be read below since kubeconfigs cannot, clusters are away.
//
// Read decide.go, which has no side effects, then ask.go.
package resourcemetrics
