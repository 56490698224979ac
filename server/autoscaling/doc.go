// Package autoscaling carries out the HorizontalPodAutoscalers of all workspaces, as kube-controller-manager's horizontal-pod-autoscaler does for one cluster
// (docs/design/0016-autoscaling.md).
//
// It hears of every HorizontalPodAutoscaler by one watch, and looks at each every 15 s: it reads the scale of its target, the pods that this selects, and what these use, from
// the workspace's own API, whose metrics.k8s.io asks the physical clusters (server/resourcemetrics). It writes the target's scale, the HorizontalPodAutoscaler's status, and Events. What the
// replicas are divided into is the splitter's: to this package a workload over several physical clusters is one.
//
// What always holds: what is not known is no reason for fewer replicas: pods without metrics, or that are reported and not shown, count as in Kubernetes, and there are not fewer while a physical cluster says nothing
// at all of pods that run there, or shows none of them; for an hour, unless it is known to be away. What uses less than it is to is no reason for more, nor what uses more for fewer. Where each physical cluster runs all replicas, each has its own need.
// Metrics of a namespace are read once for all that look in the same moment. A workspace has four looks at once, and a fifth of a worker while they are short. Between two looks no more is kept than what windows and policies of spec.behavior
// look back at, who is silent, the target's selector, and what was told and written last, by UID, and of a workspace without HorizontalPodAutoscalers nothing. Mirrors are left alone.
//
// The server starts it: New, then Run. After a start nothing is known of before, as in Kubernetes: for as long as the window of scaling down there are not fewer replicas than there were at
// the start, unless the window is 0. When etcd or the physical clusters are away nothing is scaled, and the status says why as soon as it can be written.
//
// Read calculate.go, behave.go, decide.go and tell.go, which have no side effects, then read.go and controller.go.
package autoscaling
