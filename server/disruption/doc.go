// Package disruption counts, for the PodDisruptionBudgets of all workspaces at once, the pods that each selects, and says how
// many may be evicted, as kube-controller-manager's disruption controller does for one cluster. Evictions take from that
// (server/builtin, evictions).
//
// It hears of every budget and of the metadata of every pod by two watches, and remembers the selectors of the budgets of each
// namespace that has any, and how many pods each selected: of a workspace without budgets nothing is kept, and of each event of
// its pods no more is done than to read it. Of an event where there are budgets the pod's labels are noted, and a worker holds
// them against the selectors, in the turn of the workspace: a pod has the budgets counted that select it. That one selects it
// no more is found within a minute or so, by one list of the namespace's pods. What is counted, what makes it and where that
// goes are read from the server for each count: a change of these alone brings none, as in Kubernetes, but that where a number
// was not known it is asked for again each minute.
//
// What always holds: what is not known is not allowed: where pods cannot be counted, or how many there are to be, no eviction
// is. Where each cluster runs all replicas of what is divided, those of all clusters are to be; what is in a cluster where it
// does not go any more serves nobody. A pod whose eviction was granted counts as gone for two minutes, or until it is. A
// logical cluster has not more than five counts a second, and fewer of budgets with many pods, whatever its pods do; its looks,
// of which two go on at once, wait four times as long as one has worked. A namespace has 1,000 budgets that are counted, and a
// selector 2 KiB: others allow nothing, and say why. Mirrors are left alone.
//
// The server starts it: New, then Run. When etcd is away nothing is counted, and what was granted before counts on.
//
// Read decide.go, which has no side effects, then controller.go.
package disruption
