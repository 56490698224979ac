package kinds

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// jobContent keeps the selector and the labels of the workspace, so that `kubectl logs job/x` finds the pods there. When it goes after it
// has finished is for the workspace to say.
func jobContent(root ctrlclient.Object) ctrlclient.Object {
	out := &batchv1.Job{Spec: *root.(*batchv1.Job).Spec.DeepCopy()}
	out.Spec.ManualSelector, out.Spec.TTLSecondsAfterFinished, out.Spec.ManagedBy = ptr.To(true), nil, nil
	templateContent(&out.Spec.Template, root)
	return out
}

// jobWithheld: whoever manages it makes its pods.
func jobWithheld(root ctrlclient.Object) string {
	if by := ptr.Deref(root.(*batchv1.Job).Spec.ManagedBy, batchv1.JobControllerName); by != batchv1.JobControllerName {
		return fmt.Sprintf("it is managed by %q", by)
	}
	return ""
}

func jobPods(leaf ctrlclient.Object) (wanted, ready int32) {
	j := leaf.(*batchv1.Job)
	if jobEnded(j) {
		return 0, 0
	}
	return j.Status.Active, ptr.Deref(j.Status.Ready, 0)
}

// jobObserved: there is no generation to go by, so that it has been seen at all has to do.
func jobObserved(leaf ctrlclient.Object) bool {
	j := leaf.(*batchv1.Job)
	return j.Status.StartTime != nil || is(j, batchv1.JobSuspended) || jobEnded(j)
}

// jobRolledOut: its pods come and go, and are as they should be while it runs.
func jobRolledOut(leaf ctrlclient.Object) bool {
	wanted, ready := jobPods(leaf)
	return ready >= wanted
}

func jobStays(leaf ctrlclient.Object) *Reason {
	if !jobBegun(leaf) {
		return nil
	}
	return &Reason{"Begun", "a Job that has begun is not begun again elsewhere"}
}

// jobBegun says that pods of it are, or were, somewhere: of a leaf also where its cluster has yet to say so. What is suspended runs nothing.
func jobBegun(obj ctrlclient.Object) bool {
	j := obj.(*batchv1.Job)
	s, applied := j.Status, j.Annotations[workloadv1alpha1.AppliedAnnotation] != ""
	started := s.StartTime != nil && !is(j, batchv1.JobSuspended) // clusters up to 1.35 keep the time of the start
	return applied && !ptr.Deref(j.Spec.Suspend, false) || started || s.Active > 0 || s.Succeeded > 0 || s.Failed > 0
}

// jobFixed says that its template cannot be changed, as the API has it: that of one which is suspended can be, once nothing of it runs.
func jobFixed(leaf ctrlclient.Object) bool {
	j := leaf.(*batchv1.Job)
	return !ptr.Deref(j.Spec.Suspend, false) || j.Status.Active > 0 || j.Status.StartTime != nil && !is(j, batchv1.JobSuspended)
}

// jobEnded says that it is complete, or has failed: nothing changes that any more.
func jobEnded(obj ctrlclient.Object) bool {
	j := obj.(*batchv1.Job)
	return is(j, batchv1.JobComplete) || is(j, batchv1.JobFailed)
}

func is(j *batchv1.Job, t batchv1.JobConditionType) bool {
	return jobCondition(j, t) == corev1.ConditionTrue
}

func jobCondition(j *batchv1.Job, t batchv1.JobConditionType) corev1.ConditionStatus {
	for _, c := range j.Status.Conditions {
		if c.Type == t {
			return c.Status
		}
	}
	return ""
}

// summariseJob tells what the one cluster says. What is being deleted there says nothing of the Job: its end is our own doing.
func summariseJob(obj ctrlclient.Object, view View) {
	root := obj.(*batchv1.Job)
	if jobEnded(root) {
		return
	}
	before := root.DeepCopy()
	s := &root.Status
	for _, l := range view.Leaves {
		j, _ := l.Object.(*batchv1.Job)
		if j == nil || j.DeletionTimestamp != nil || !l.Assigned {
			continue
		}
		if jobObserved(j) { // else its controller has said nothing yet, not that it is not suspended any more
			*s = *j.Status.DeepCopy()
			s.UncountedTerminatedPods = nil // what its controller has yet to do there
			if l.Lost && !jobEnded(j) {
				s.Ready = ptr.To[int32](0)
			}
			fitJob(before, root)
		}
		if l.Refused != nil && l.Refused.Reason == workloadv1alpha1.RefusedGone && !jobEnded(root) {
			failJob(root, fmt.Sprintf("cluster %q: %s", l.Cluster, l.Refused.Message), metav1.NewTime(view.Now))
		}
	}
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c batchv1.JobCondition) bool { return isOurs(string(c.Type)) })
	if view.Gone != "" && !jobEnded(root) {
		failJob(root, view.Gone, metav1.NewTime(view.Now))
	}
	if jobEnded(root) {
		return
	}
	since := func(c batchv1.JobCondition) (string, corev1.ConditionStatus, metav1.Time) {
		return string(c.Type), c.Status, c.LastTransitionTime
	}
	for _, c := range view.troubles() {
		at := falseSince(before.Status.Conditions, c.condition, view.Now, since)
		s.Conditions = append(s.Conditions, batchv1.JobCondition{
			Type: batchv1.JobConditionType(c.condition), Status: corev1.ConditionFalse, Reason: c.Reason.Reason, Message: c.Message,
			LastTransitionTime: at, LastProbeTime: at,
		})
	}
}

// fitJob makes a status one that may follow another, as the API server has it: counters do not go down, the time of the start stays
// unless the Job was suspended, and an end is final. Clusters of earlier versions do not say beforehand how a Job will end.
func fitJob(beforeObj, nowObj ctrlclient.Object) {
	before, now := beforeObj.(*batchv1.Job), nowObj.(*batchv1.Job)
	for _, final := range []batchv1.JobConditionType{batchv1.JobComplete, batchv1.JobFailed, batchv1.JobFailureTarget, batchv1.JobSuccessCriteriaMet} {
		if is(before, final) && !is(now, final) {
			now.Status = *before.Status.DeepCopy()
			return
		}
	}
	was, s := &before.Status, &now.Status
	s.Succeeded, s.Failed = max(s.Succeeded, was.Succeeded), max(s.Failed, was.Failed)
	resumed := is(before, batchv1.JobSuspended) && jobCondition(now, batchv1.JobSuspended) == corev1.ConditionFalse
	if was.StartTime != nil && !ptr.Deref(now.Spec.Suspend, false) && !resumed {
		s.StartTime = was.StartTime
	}
	if was.CompletionTime != nil {
		s.CompletionTime = was.CompletionTime
	}
	for end, target := range map[batchv1.JobConditionType]batchv1.JobConditionType{
		batchv1.JobComplete: batchv1.JobSuccessCriteriaMet, batchv1.JobFailed: batchv1.JobFailureTarget,
	} {
		if is(now, end) && !is(now, target) && !is(before, end) {
			for _, c := range s.Conditions {
				if c.Type == end {
					c.Type = target
					s.Conditions = append(s.Conditions, c)
					break
				}
			}
		}
	}
}

// failJob says that a Job has failed which is not there any more, unless it had met what it was to: then it is complete.
func failJob(j *batchv1.Job, message string, now metav1.Time) {
	s := &j.Status
	if s.StartTime == nil {
		s.StartTime = &now
	}
	s.Active, s.Ready, s.Terminating = 0, ptr.To[int32](0), ptr.To[int32](0)
	end := func(t batchv1.JobConditionType) {
		s.Conditions = append(s.Conditions, batchv1.JobCondition{
			Type: t, Status: corev1.ConditionTrue, Reason: "Gone", Message: message, LastProbeTime: now, LastTransitionTime: now})
	}
	if is(j, batchv1.JobSuccessCriteriaMet) {
		s.CompletionTime = &now
		end(batchv1.JobComplete)
		return
	}
	if !is(j, batchv1.JobFailureTarget) {
		end(batchv1.JobFailureTarget)
	}
	end(batchv1.JobFailed)
}
