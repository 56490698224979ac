// Package autoscaling carries out the HorizontalPodAutoscalers of all workspaces, as kube-controller-manager's horizontal-pod-autoscaler does for one cluster
// (docs/design/0016-autoscaling.md).
//
// It hears of every HorizontalPodAutoscaler by one watch, and looks at each every 15 s: it reads the scale of its target, the pods that this selects, and what these use, from
// the workspace's own API, whose metrics.k8s.io asks the physical clusters (server/resourcemetrics). It writes the target's scale, the HorizontalPodAutoscaler's status, and Events. What the
// replicas are divided into is the splitter's: to this package a workload over several physical clusters is one.
//
// What always holds: what is not known is no reason for fewer replicas: pods without metrics count as in Kubernetes, and there are not fewer while a physical cluster says nothing
// at all of pods that run there; for an hour, if these are Ready. What uses less than it is to is no reason for more. Metrics of a namespace are read once for all that look in the same moment. Between two looks no more is kept than what windows and policies of spec.behavior
// look back at, who is silent, and what was told and written last, by UID, and of a workspace without HorizontalPodAutoscalers nothing. Mirrors are left alone.
//
// The server starts it: New, then Run. After a start nothing is known of before, as in Kubernetes: for as long as the window of scaling down there are not fewer replicas than there were at
// the start, unless the window is 0. When etcd or the physical clusters are away nothing is scaled, and the status says why as soon as it can be written.
//
// Read calculate.go, behave.go, decide.go and tell.go, which have no side effects, then read.go and controller.go.
package autoscaling
