package nodes

import (
	"maps"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/apis/core"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// messages of the condition Ready. A SyncTarget's own may name addresses, Secrets and what other workspaces have there, and is for
// who holds it.
var messages = map[core.ConditionStatus]string{
	core.ConditionTrue:    "The physical cluster answers.",
	core.ConditionFalse:   "The physical cluster cannot be used: its SyncTarget says why, in the workspace that holds it.",
	core.ConditionUnknown: "The physical cluster has not been heard of: its SyncTarget says since when, in the workspace that holds it.",
}

// nodeOf returns the Node that shows a SyncTarget in a workspace. It says what holds for whoever may use the cluster, and nothing of
// who does.
func nodeOf(t *workloadv1alpha1.SyncTarget, workspace logicalcluster.Name) *core.Node {
	ready := readyOf(t)
	n := &core.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: t.Name, UID: t.UID, ResourceVersion: t.ResourceVersion, CreationTimestamp: t.CreationTimestamp,
			Labels:      maps.Clone(t.Labels),
			Annotations: map[string]string{lcctx.Annotation: workspace.String()},
		},
		Spec: core.NodeSpec{Unschedulable: takesNothing(t)},
		Status: core.NodeStatus{
			Capacity: resources(t.Status.Capacity), Allocatable: resources(t.Status.Capacity),
			Conditions: []core.NodeCondition{ready},
			NodeInfo:   core.NodeSystemInfo{KubeletVersion: t.Status.Version},
		},
	}
	if n.Spec.Unschedulable {
		n.Spec.Taints = append(n.Spec.Taints, core.Taint{Key: corev1.TaintNodeUnschedulable, Effect: core.TaintEffectNoSchedule})
	}
	switch ready.Status {
	case core.ConditionFalse:
		n.Spec.Taints = append(n.Spec.Taints, core.Taint{Key: corev1.TaintNodeNotReady, Effect: core.TaintEffectNoSchedule})
	case core.ConditionUnknown:
		n.Spec.Taints = append(n.Spec.Taints, core.Taint{Key: corev1.TaintNodeUnreachable, Effect: core.TaintEffectNoSchedule})
	}
	return n
}

// takesNothing says whether a physical cluster gets nothing new, however ready it is.
func takesNothing(t *workloadv1alpha1.SyncTarget) bool {
	return t.Spec.Unschedulable || t.DeletionTimestamp != nil || t.IsDuplicate() ||
		meta.IsStatusConditionTrue(t.Status.Conditions, workloadv1alpha1.SyncTargetObserveOnly)
}

func readyOf(t *workloadv1alpha1.SyncTarget) core.NodeCondition {
	ready := core.NodeCondition{Type: core.NodeReady, Status: core.ConditionUnknown, Reason: "NotConnected", LastTransitionTime: t.CreationTimestamp}
	if c := meta.FindStatusCondition(t.Status.Conditions, workloadv1alpha1.SyncTargetReady); c != nil {
		ready.Status, ready.Reason, ready.LastTransitionTime = core.ConditionStatus(c.Status), c.Reason, c.LastTransitionTime
	}
	ready.Message = messages[ready.Status]
	// Heartbeats are in a Lease of the mirror: one changes no Node.
	ready.LastHeartbeatTime = ready.LastTransitionTime
	return ready
}

func resources(list corev1.ResourceList) core.ResourceList {
	out := make(core.ResourceList, len(list))
	for name, quantity := range list {
		out[core.ResourceName(name)] = quantity.DeepCopy()
	}
	return out
}
