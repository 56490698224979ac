package syncer

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
)

// mayWait is how long leaf may wait to be told what want says since it was last told something, or since it was applied. Of
// what goes on with what is divided, or copied, steps forward may wait for the next. What somebody waits for may not: that it is through, or
// is not any more; nor may bad news: how many pods serve elsewhere is what decides how many may go here.
func mayWait(leaf, want *unstructured.Unstructured) (time.Duration, error) {
	if kind, _ := kinds.ByKind(leaf.GetKind()); kind.Goes != kinds.Divided && kind.Goes != kinds.Copied ||
		leaf.GetAnnotations()[workloadv1alpha1.RefusedAnnotation] != want.GetAnnotations()[workloadv1alpha1.RefusedAnnotation] {
		return 0, nil
	}
	before, err := progressOf(leaf)
	if err != nil {
		return 0, err
	}
	now, err := progressOf(want)
	if err != nil {
		return 0, err
	}
	switch {
	case before.finished != now.finished, before.serves != now.serves, before.resting != now.resting, before.trouble != now.trouble,
		now.counts.available < before.counts.available, now.counts.ready < before.counts.ready:
		return 0, nil
	case before.settled != now.settled:
		return client.WhileSettling, nil
	case before.counts == now.counts:
		return client.WhileNothing, nil
	}
	return client.WhileProgressing, nil
}

// progress is how far a cluster has come with what is divided, or copied.
type progress struct {
	settled, finished, serves bool // as in kinds.Leaf
	// resting says that, besides, no pod is on its way out.
	resting bool
	counts  struct{ wanted, replicas, updated, ready, available, terminating int32 }
	// trouble is what the conditions complain of.
	trouble string
}

func progressOf(leaf *unstructured.Unstructured) (p progress, err error) {
	k, _ := kinds.ByKind(leaf.GetKind())
	o := k.New()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(leaf.Object, o); err != nil {
		return progress{}, fmt.Errorf("read %s %s/%s: %w", k.GVK.Kind, leaf.GetNamespace(), leaf.GetName(), err)
	}
	rendered := o.GetAnnotations()[workloadv1alpha1.RenderedAnnotation]
	p.settled = rendered != "" && o.GetAnnotations()[workloadv1alpha1.AppliedAnnotation] == rendered && k.Observed(o)
	l := kinds.Leaf{Object: o, Settled: p.settled}
	p.finished, p.serves = l.Finished(), l.Serves()
	switch o := o.(type) {
	case *appsv1.Deployment:
		p.counts.replicas, p.counts.updated, p.counts.ready, p.counts.available = o.Status.Replicas, o.Status.UpdatedReplicas, o.Status.ReadyReplicas, o.Status.AvailableReplicas
		p.counts.terminating = ptr.Deref(o.Status.TerminatingReplicas, 0)
		for _, c := range o.Status.Conditions {
			if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue ||
				c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse {
				p.trouble += string(c.Type) + c.Reason
			}
		}
	case *appsv1.ReplicaSet, *corev1.ReplicationController:
		s := kinds.AsReplicaSet(o).Status
		p.counts.replicas, p.counts.updated, p.counts.ready, p.counts.available = s.Replicas, s.FullyLabeledReplicas, s.ReadyReplicas, s.AvailableReplicas
		p.counts.terminating = ptr.Deref(s.TerminatingReplicas, 0)
		for _, c := range s.Conditions {
			if c.Type == appsv1.ReplicaSetReplicaFailure && c.Status == corev1.ConditionTrue {
				p.trouble += string(c.Type) + c.Reason
			}
		}
	case *appsv1.DaemonSet:
		p.counts.wanted, p.counts.replicas = o.Status.DesiredNumberScheduled, o.Status.CurrentNumberScheduled+o.Status.NumberMisscheduled
		p.counts.updated, p.counts.ready, p.counts.available = o.Status.UpdatedNumberScheduled, o.Status.NumberReady, o.Status.NumberAvailable
	}
	p.resting = p.finished && p.counts.terminating == 0
	return p, nil
}
