package kinds

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

func replicaSetContent(root ctrlclient.Object) ctrlclient.Object {
	out := &appsv1.ReplicaSet{Spec: *root.(*appsv1.ReplicaSet).Spec.DeepCopy()}
	templateContent(&out.Spec.Template, root)
	return out
}

// replicaSetDivision: which template a pod was made of, its cluster neither asks nor tells. Of too many it takes away those first that do not serve.
func replicaSetDivision(obj ctrlclient.Object) Division {
	r := AsReplicaSet(obj)
	s := r.Status
	return Division{
		Replicas: &r.Spec.Replicas,
		Pods:     s.Replicas, Updated: s.Replicas, Available: s.AvailableReplicas, Terminating: ptr.Deref(s.TerminatingReplicas, 0),
	}
}

func replicaSetPods(leaf ctrlclient.Object) (wanted, ready int32) {
	r := AsReplicaSet(leaf)
	return ptr.Deref(r.Spec.Replicas, 1), r.Status.ReadyReplicas
}

func replicaSetObserved(leaf ctrlclient.Object) bool {
	r := AsReplicaSet(leaf)
	return r.Status.ObservedGeneration >= r.Generation
}

// replicaSetRolledOut says no while there may be pods of an earlier template: what these refer to has to stay for as long.
func replicaSetRolledOut(leaf ctrlclient.Object) bool {
	_, earlier := leaf.GetAnnotations()[workloadv1alpha1.EarlierTemplateAnnotation]
	return !earlier && replicaSetServes(leaf)
}

// replicaSetServes does not ask for pods of the present template: nobody replaces the others.
func replicaSetServes(leaf ctrlclient.Object) bool {
	r := AsReplicaSet(leaf)
	want := ptr.Deref(r.Spec.Replicas, 1)
	return r.Status.Replicas == want && r.Status.AvailableReplicas == want
}

func replicaSetFailing(leaf ctrlclient.Object) (reason, message string) {
	for _, c := range AsReplicaSet(leaf).Status.Conditions {
		if c.Type == appsv1.ReplicaSetReplicaFailure && c.Status == corev1.ConditionTrue {
			return c.Reason, c.Message
		}
	}
	return "", ""
}

// summariseReplicaSet sums the counters. As with a Deployment, pods of a cluster that is being left are there until they are gone; and those of a
// cluster that is not heard of are there, and not ready.
func summariseReplicaSet(obj ctrlclient.Object, view View) {
	root := obj.(*appsv1.ReplicaSet)
	before := root.Status.Conditions
	sum := appsv1.ReplicaSetStatus{ObservedGeneration: root.Status.ObservedGeneration}
	var failures []string
	for _, l := range view.Leaves {
		r := AsReplicaSet(l.Object)
		if r == nil {
			continue
		}
		sum.Replicas += r.Status.Replicas
		sum.FullyLabeledReplicas += r.Status.FullyLabeledReplicas
		if !l.Lost {
			sum.ReadyReplicas += r.Status.ReadyReplicas
			sum.AvailableReplicas += r.Status.AvailableReplicas
		}
		if t := r.Status.TerminatingReplicas; t != nil {
			sum.TerminatingReplicas = ptr.To(ptr.Deref(sum.TerminatingReplicas, 0) + *t)
		}
		if reason, message := replicaSetFailing(r); reason != "" && l.Assigned {
			failures = append(failures, fmt.Sprintf("cluster %q: %s: %s", l.Cluster, reason, message))
		}
	}
	if view.observed() {
		sum.ObservedGeneration = max(sum.ObservedGeneration, root.Generation)
	}
	set := func(condition string, status corev1.ConditionStatus, reason, message string) {
		c := appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetConditionType(condition), Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(view.Now),
		}
		for _, was := range before {
			if was.Type == c.Type && was.Status == status {
				c.LastTransitionTime = was.LastTransitionTime
			}
		}
		sum.Conditions = append(sum.Conditions, c)
	}
	if len(failures) > 0 {
		set(string(appsv1.ReplicaSetReplicaFailure), corev1.ConditionTrue, "FailedCreate", join(failures))
	}
	for _, t := range view.troubles() {
		set(t.condition, corev1.ConditionFalse, t.Reason.Reason, t.Message)
	}
	root.Status = sum
}
