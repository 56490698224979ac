package splitter

import (
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
)

// lookInside is how long a namespace of a mirror that holds nothing but what this version has no rules for is left alone: nobody tells of
// its end.
const lookInside = 10 * time.Minute

// keepEmpty is how long a namespace stays in a mirror after its last leaf. Below, deleting one takes 5 s and more, and whoever
// applies again meanwhile would wait for it.
const keepEmpty = 30 * time.Second

// reasonComplete is the reason of Progressing of a Deployment that is through, as Kubernetes has it.
const reasonComplete = "NewReplicaSetAvailable"

// mayWait is how long a Deployment's status may stay as before and not become now, since it was last written or its leaves
// were. Steps forward may wait for the next. What somebody waits for may not, that it is through or serves again, and bad news
// may not.
func mayWait(before, now *appsv1.Deployment) time.Duration {
	was, is := before.Status, now.Status
	lost := holds(before, appsv1.DeploymentProgressing) && !holds(now, appsv1.DeploymentProgressing) &&
		was.ObservedGeneration >= before.Generation // else the generation says that what the status says is over
	switch {
	case lost, !holds(before, appsv1.DeploymentProgressing) && holds(now, appsv1.DeploymentProgressing),
		holds(before, appsv1.DeploymentAvailable) != holds(now, appsv1.DeploymentAvailable),
		trouble(before) != trouble(now), is.AvailableReplicas < was.AvailableReplicas, is.ReadyReplicas < was.ReadyReplicas:
		return 0
	case was.ObservedGeneration != is.ObservedGeneration, before.Annotations[revisionAnnotation] != now.Annotations[revisionAnnotation]:
		return client.WhileSettling
	}
	was.Conditions, is.Conditions = nil, nil
	if equality.Semantic.DeepEqual(was, is) {
		return client.WhileNothing
	}
	return client.WhileProgressing
}

// dividedMayWait is mayWait for whatever is divided.
func dividedMayWait(before, now ctrlclient.Object) time.Duration {
	if set := kinds.AsReplicaSet(before); set != nil {
		return setTold(set).mayWait(setTold(kinds.AsReplicaSet(now)))
	}
	return mayWait(before.(*appsv1.Deployment), now.(*appsv1.Deployment))
}

// told is what of a status that is told says how long the next may wait: of all kinds but Deployments, whose conditions say more.
type told struct {
	// serves says that all pods serve, and that there is no other; trouble is what the conditions complain of: all of them are ours, or do.
	serves           bool
	trouble          string
	available, ready int32
	observed         int64
}

// mayWait is how long is may wait after was. That all serve is an end.
func (was told) mayWait(is told) time.Duration {
	switch {
	case was.serves != is.serves, was.trouble != is.trouble, is.available < was.available, is.ready < was.ready:
		return 0
	case was.observed != is.observed:
		return client.WhileSettling
	}
	return client.WhileProgressing
}

// setTold is what the status of a ReplicaSet, or a ReplicationController, says.
func setTold(r *appsv1.ReplicaSet) told {
	k, _ := kinds.Of(r)
	is := told{
		serves:    k.Observed(r) && k.Serves(r),
		available: r.Status.AvailableReplicas, ready: r.Status.ReadyReplicas, observed: r.Status.ObservedGeneration,
	}
	for _, c := range r.Status.Conditions {
		is.trouble += string(c.Type) + c.Reason + c.Message
	}
	return is
}

// copiesMayWait is mayWait for a DaemonSet.
func copiesMayWait(before, now *appsv1.DaemonSet) time.Duration {
	return copiesTold(before).mayWait(copiesTold(now))
}

// copiesTold is what a DaemonSet's status says.
func copiesTold(d *appsv1.DaemonSet) told {
	k, _ := kinds.Of(d)
	is := told{
		serves:    k.Observed(d) && k.RolledOut(d),
		available: d.Status.NumberAvailable, ready: d.Status.NumberReady, observed: d.Status.ObservedGeneration,
	}
	for _, c := range d.Status.Conditions {
		is.trouble += string(c.Type) + c.Reason + c.Message
	}
	return is
}

// placedMayWait is how long the clusters of a Placement may stay in its status as before and not become now. An end may not
// wait, that all that is placed serves, with nothing left elsewhere; nor may that this is so no more: it was told, and is relied
// on. Nor may a refusal, or its end.
func placedMayWait(before, now []placementv1alpha1.PlacedClusterStatus) time.Duration {
	if len(before) > 0 && serve(before) || serve(now) || !slices.Equal(refusing(before), refusing(now)) {
		return 0
	}
	return client.WhileProgressing
}

// serve says that all clusters do what they are to do.
func serve(clusters []placementv1alpha1.PlacedClusterStatus) bool {
	return !slices.ContainsFunc(clusters, func(c placementv1alpha1.PlacedClusterStatus) bool { return c.Phase != placementv1alpha1.PhaseReady })
}

// refusing are the names of the clusters that refuse something, in their order.
func refusing(clusters []placementv1alpha1.PlacedClusterStatus) (names []string) {
	for _, c := range clusters {
		if c.Phase == placementv1alpha1.PhaseRefused {
			names = append(names, c.Name)
		}
	}
	return names
}

// holds says of Available that it is True, of Progressing that it is through.
func holds(d *appsv1.Deployment, kind appsv1.DeploymentConditionType) bool {
	for _, c := range d.Status.Conditions {
		if c.Type == kind {
			return c.Status == corev1.ConditionTrue && (kind != appsv1.DeploymentProgressing || c.Reason == reasonComplete)
		}
	}
	return false
}

// trouble is what the conditions complain of.
func trouble(d *appsv1.Deployment) (text string) {
	for _, c := range d.Status.Conditions {
		switch {
		case c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue,
			c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse,
			c.Type == kinds.ConditionPlaced, c.Type == kinds.ConditionSynced:
			text += string(c.Type) + c.Reason + c.Message
		}
	}
	return text
}
