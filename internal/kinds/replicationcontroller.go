package kinds

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// A ReplicationController is a ReplicaSet of an earlier form, and is carried out as one, as in Kubernetes (pkg/controller/replication/conversion.go).

// AsReplicaSet returns a ReplicaSet as it is, and a ReplicationController as the ReplicaSet that it stands for, which shares its content; nil for anything
// else. Without a selector it selects the labels of its pods, as the API server has it.
func AsReplicaSet(obj ctrlclient.Object) *appsv1.ReplicaSet {
	rc, ok := obj.(*corev1.ReplicationController)
	if !ok {
		set, _ := obj.(*appsv1.ReplicaSet)
		return set
	}
	template := replicationControllerTemplate(rc)
	labels := rc.Spec.Selector
	if len(labels) == 0 {
		labels = template.Labels
	}
	set := &appsv1.ReplicaSet{
		ObjectMeta: rc.ObjectMeta,
		Spec: appsv1.ReplicaSetSpec{
			Replicas: rc.Spec.Replicas, MinReadySeconds: rc.Spec.MinReadySeconds,
			Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: *template,
		},
		Status: appsv1.ReplicaSetStatus{
			Replicas: rc.Status.Replicas, FullyLabeledReplicas: rc.Status.FullyLabeledReplicas,
			ReadyReplicas: rc.Status.ReadyReplicas, AvailableReplicas: rc.Status.AvailableReplicas, ObservedGeneration: rc.Status.ObservedGeneration,
		},
	}
	for _, c := range rc.Status.Conditions {
		set.Status.Conditions = append(set.Status.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
	return set
}

// replicationControllerTemplate is never nil, which the API server takes no ReplicationController with.
func replicationControllerTemplate(obj ctrlclient.Object) *corev1.PodTemplateSpec {
	if template := obj.(*corev1.ReplicationController).Spec.Template; template != nil {
		return template
	}
	return &corev1.PodTemplateSpec{}
}

func replicationControllerContent(root ctrlclient.Object) ctrlclient.Object {
	out := &corev1.ReplicationController{Spec: *root.(*corev1.ReplicationController).Spec.DeepCopy()}
	out.Spec.Template = replicationControllerTemplate(out)
	templateContent(out.Spec.Template, root)
	return out
}

func replicationControllerDivision(obj ctrlclient.Object) Division {
	d := replicaSetDivision(obj)
	d.Replicas = &obj.(*corev1.ReplicationController).Spec.Replicas
	return d
}

func summariseReplicationController(obj ctrlclient.Object, view View) {
	root, set := obj.(*corev1.ReplicationController), AsReplicaSet(obj)
	summariseReplicaSet(set, view)
	sum := set.Status
	root.Status = corev1.ReplicationControllerStatus{
		Replicas: sum.Replicas, FullyLabeledReplicas: sum.FullyLabeledReplicas,
		ReadyReplicas: sum.ReadyReplicas, AvailableReplicas: sum.AvailableReplicas, ObservedGeneration: sum.ObservedGeneration,
	}
	for _, c := range sum.Conditions {
		root.Status.Conditions = append(root.Status.Conditions, corev1.ReplicationControllerCondition{
			Type: corev1.ReplicationControllerConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
}
