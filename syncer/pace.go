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
// what goes on with a Deployment, steps forward may wait for the next. What somebody waits for may not: that it is through, or
// is not any more; nor may bad news: how many pods serve elsewhere is what decides how many may go here.
func mayWait(leaf, want *unstructured.Unstructured) (time.Duration, error) {
	if leaf.GetKind() != "Deployment" ||
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
	case before.finished != now.finished, before.resting != now.resting, before.trouble != now.trouble,
		now.counts.available < before.counts.available, now.counts.ready < before.counts.ready:
		return 0, nil
	case before.settled != now.settled:
		return client.WhileSettling, nil
	case before.counts == now.counts:
		return client.WhileNothing, nil
	}
	return client.WhileProgressing, nil
}

// progress is how far a Deployment's cluster has come with it.
type progress struct {
	settled, finished bool // as in kinds.Leaf
	// resting says that, besides, no pod is on its way out.
	resting bool
	counts  struct{ replicas, updated, ready, available, terminating int32 }
	// trouble is what the conditions complain of.
	trouble string
}

func progressOf(leaf *unstructured.Unstructured) (progress, error) {
	d := &appsv1.Deployment{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(leaf.Object, d); err != nil {
		return progress{}, fmt.Errorf("read Deployment %s/%s: %w", leaf.GetNamespace(), leaf.GetName(), err)
	}
	rendered := d.Annotations[workloadv1alpha1.RenderedAnnotation]
	p := progress{settled: rendered != "" && d.Annotations[workloadv1alpha1.AppliedAnnotation] == rendered && d.Status.ObservedGeneration >= d.Generation}
	p.counts.replicas, p.counts.updated, p.counts.ready, p.counts.available = d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.ReadyReplicas, d.Status.AvailableReplicas
	p.counts.terminating = ptr.Deref(d.Status.TerminatingReplicas, 0)
	p.finished = kinds.Leaf{Object: d, Settled: p.settled}.Finished()
	p.resting = p.finished && p.counts.terminating == 0
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue ||
			c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse {
			p.trouble += string(c.Type) + c.Reason
		}
	}
	return p, nil
}
