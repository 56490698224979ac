// Package endpoints makes the EndpointSlices and Endpoints of Services with a selector, in all workspaces at once, out of the pods that these show, as kube-controller-manager's endpointslice
// and endpoints controllers do for one cluster (docs/design/0017-endpoints.md).
//
// Of Endpoints that somebody writes for a Service without a selector it makes EndpointSlices (mirror.go).
//
// It reads Services, pods, Nodes, EndpointSlices and Endpoints from the watch caches, copies of them what it has bounded, and writes EndpointSlices, Endpoints and Events about Services. It hears of every Service by the informer that all controllers share,
// of the metadata of every pod by one of its own, and of that of every EndpointSlice and of all Endpoints by watches that keep nothing. Upstream's Reconciler says what is to be written (decide.go); it is
// given only so much that it cannot take long.
//
// What always holds: an address that is to go is taken out before others come, and whatever else is refused; a pod that cannot be an endpoint keeps no other from being one. What is written
// counts against the workspace's limits as if who wrote the Service had, and what refuses it there is told to its people by Events, after all that is let in is written. Of a Service without a selector nothing is touched but what was made when it had one. Mirrors are left alone: what
// serves there each physical cluster knows itself. None of it is dialed by the server (server/admission).
//
// The server starts it: New, then Run. When etcd is away slices stay as they are, and are made right after. One that is made anew, as by another leader, looks at
// each Service once, in turns of their workspaces.
//
// Read decide.go, legacy.go and mirror.go, which have no side effects, then controller.go.
package endpoints
