package kinds

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

func TestJobGoesDown(t *testing.T) {
	root := &batchv1.Job{
		Spec: batchv1.JobSpec{
			Parallelism: ptr.To[int32](2), Completions: ptr.To[int32](4), CompletionMode: ptr.To(batchv1.IndexedCompletion), Suspend: ptr.To(true),
			TTLSecondsAfterFinished: ptr.To[int32](5), ManagedBy: ptr.To(batchv1.JobControllerName),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{batchv1.ControllerUidLabel: "root"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{batchv1.ControllerUidLabel: "root", batchv1.JobNameLabel: "x"}},
				Spec:       corev1.PodSpec{NodeName: "n1", RestartPolicy: corev1.RestartPolicyNever},
			},
		},
		Status: batchv1.JobStatus{Active: 2},
	}
	k, _ := ByKind("Job")
	want := &batchv1.Job{Spec: *root.Spec.DeepCopy()}
	want.Spec.ManualSelector, want.Spec.TTLSecondsAfterFinished, want.Spec.ManagedBy = ptr.To(true), nil, nil
	want.Spec.Template.Spec.NodeName, want.Spec.Template.Spec.AutomountServiceAccountToken = "", ptr.To(false)
	if diff := cmp.Diff(want, k.Content(root)); diff != "" {
		t.Errorf("it goes down with the workspace's selector and labels, and is deleted by the workspace alone: -want, +got:\n%s", diff)
	}
	if why := k.WhyWithheld(root); why != "" {
		t.Errorf("it is withheld: %s", why)
	}
	root.Spec.ManagedBy = ptr.To("kueue.example/multi")
	if k.WhyWithheld(root) == "" {
		t.Errorf("what somebody else carries out goes down")
	}
}

// conditions of a Job that are True.
func conditions(types ...batchv1.JobConditionType) (all []batchv1.JobCondition) {
	for _, t := range types {
		all = append(all, batchv1.JobCondition{Type: t, Status: corev1.ConditionTrue})
	}
	return all
}

func TestSummariseJob(t *testing.T) {
	at := func(s int64) *metav1.Time { return ptr.To(metav1.Unix(s, 0)) }
	job := func(status batchv1.JobStatus, changes ...func(*Leaf, *batchv1.Job)) []Leaf {
		j := &batchv1.Job{Status: status}
		l := Leaf{Cluster: "east", Assigned: true, Current: true, Settled: true, Object: j}
		for _, change := range changes {
			change(&l, j)
		}
		return []Leaf{l}
	}
	runs := batchv1.JobStatus{StartTime: at(10), Active: 2, Ready: ptr.To[int32](1), Succeeded: 1, Failed: 1, Terminating: ptr.To[int32](0)}
	complete := batchv1.JobStatus{StartTime: at(10), CompletionTime: at(20), Succeeded: 4, Failed: 1, Ready: ptr.To[int32](0), Terminating: ptr.To[int32](0),
		Conditions: conditions(batchv1.JobSuccessCriteriaMet, batchv1.JobComplete)}
	with := func(s batchv1.JobStatus, change func(*batchv1.JobStatus)) batchv1.JobStatus {
		s = *s.DeepCopy()
		change(&s)
		return s
	}
	gone := func(l *Leaf, _ *batchv1.Job) {
		l.Refused = &workloadv1alpha1.Refusal{Reason: workloadv1alpha1.RefusedGone, Message: "deleted"}
	}
	ended := func(end ...batchv1.JobConditionType) func(*batchv1.JobStatus) {
		return func(s *batchv1.JobStatus) {
			s.Active, s.Ready = 0, ptr.To[int32](0)
			for _, c := range conditions(end...) {
				c.Reason, c.Message, c.LastProbeTime, c.LastTransitionTime = "Gone", `cluster "east": deleted`, *at(1000), *at(1000)
				s.Conditions = append(s.Conditions, c)
			}
		}
	}
	for name, tc := range map[string]struct {
		reason  string
		was     batchv1.JobStatus
		suspend bool
		leaves  []Leaf
		gone    string
		placed  *Reason
		want    batchv1.JobStatus
	}{
		"Runs":      {reason: "as its cluster says", leaves: job(runs), want: runs},
		"Uncounted": {reason: "what its controller has yet to count is its own affair", leaves: job(with(runs, func(s *batchv1.JobStatus) { s.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{} })), want: runs},
		"Complete":  {reason: "its end comes up", was: runs, leaves: job(complete), want: complete},
		"CompleteEarlier": {reason: "an earlier cluster does not say that it will be complete", was: runs,
			leaves: job(with(complete, func(s *batchv1.JobStatus) { s.Conditions = conditions(batchv1.JobComplete) })),
			want: with(complete, func(s *batchv1.JobStatus) {
				s.Conditions = conditions(batchv1.JobComplete, batchv1.JobSuccessCriteriaMet)
			})},
		"Final": {reason: "nothing changes an end", was: complete, leaves: job(runs, gone), gone: "gone", want: complete},
		"Tombstone": {reason: "its end there is our own doing", was: runs, leaves: job(with(runs, func(s *batchv1.JobStatus) { s.Conditions = conditions(batchv1.JobFailureTarget, batchv1.JobFailed) }),
			func(_ *Leaf, j *batchv1.Job) { j.DeletionTimestamp = at(30) }), want: runs},
		"CountersStay": {reason: "they do not go down", was: with(runs, func(s *batchv1.JobStatus) { s.Failed, s.Succeeded, s.StartTime = 3, 2, at(5) }), leaves: job(runs),
			want: with(runs, func(s *batchv1.JobStatus) { s.Failed, s.Succeeded, s.StartTime = 3, 2, at(5) })},
		"Suspended": {reason: "it begins anew when it is resumed", was: runs, suspend: true,
			leaves: job(batchv1.JobStatus{Succeeded: 1, Failed: 1, Conditions: conditions(batchv1.JobSuspended)}),
			want:   batchv1.JobStatus{Succeeded: 1, Failed: 1, Conditions: conditions(batchv1.JobSuspended)}},
		"Resumed": {reason: "and its start is another", was: batchv1.JobStatus{StartTime: at(5), Conditions: conditions(batchv1.JobSuspended)},
			leaves: job(with(runs, func(s *batchv1.JobStatus) {
				s.Conditions = []batchv1.JobCondition{{Type: batchv1.JobSuspended, Status: corev1.ConditionFalse}}
			})),
			want: with(runs, func(s *batchv1.JobStatus) {
				s.Conditions = []batchv1.JobCondition{{Type: batchv1.JobSuspended, Status: corev1.ConditionFalse}}
			})},
		"Lost": {reason: "nobody knows that they serve", leaves: job(runs, func(l *Leaf, _ *batchv1.Job) { l.Lost = true }), want: with(runs, func(s *batchv1.JobStatus) {
			s.Ready = ptr.To[int32](0)
			s.Conditions = []batchv1.JobCondition{{Type: ConditionSynced, Status: corev1.ConditionFalse, Reason: "Unreachable",
				Message: `Not heard of, their replicas count as not ready: cluster "east".`, LastProbeTime: *at(1000), LastTransitionTime: *at(1000)}}
		})},
		"Gone": {reason: "somebody deleted it there", was: runs, leaves: job(runs, gone), want: with(runs, ended(batchv1.JobFailureTarget, batchv1.JobFailed))},
		"GoneWhenDone": {reason: "it had met what it was to", leaves: job(with(runs, func(s *batchv1.JobStatus) { s.Conditions = conditions(batchv1.JobSuccessCriteriaMet) }), gone),
			want: with(runs, func(s *batchv1.JobStatus) {
				s.Conditions, s.CompletionTime = conditions(batchv1.JobSuccessCriteriaMet), at(1000)
				ended(batchv1.JobComplete)(s)
			})},
		"Vanished": {reason: "its cluster was removed", was: runs, gone: `cluster "east": deleted`, want: with(runs, ended(batchv1.JobFailureTarget, batchv1.JobFailed))},
		"NotPlaced": {reason: "the Placement's words", placed: &Reason{"NotPlaced", "No cluster."}, want: batchv1.JobStatus{Conditions: []batchv1.JobCondition{
			{Type: ConditionPlaced, Status: corev1.ConditionFalse, Reason: "NotPlaced", Message: "No cluster.", LastProbeTime: *at(1000), LastTransitionTime: *at(1000)}}}},
	} {
		t.Run(name, func(t *testing.T) {
			root := &batchv1.Job{Spec: batchv1.JobSpec{Suspend: &tc.suspend}, Status: tc.was}
			view := View{Leaves: tc.leaves, Gone: tc.gone, NotPlaced: tc.placed, Now: time.Unix(1000, 0)}
			summariseJob(root, view)
			if diff := cmp.Diff(tc.want, root.Status); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
			before := root.DeepCopy()
			view.Now = view.Now.Add(time.Hour)
			summariseJob(root, view)
			if diff := cmp.Diff(before, root); diff != "" {
				t.Errorf("%s: the same leaves give another status an hour later: -before, +after:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestJobFixed: the template of a Job may be changed as the API has it (pkg/registry/batch/job).
func TestJobFixed(t *testing.T) {
	began, suspended := metav1.Now(), batchv1.JobCondition{Type: batchv1.JobSuspended, Status: corev1.ConditionTrue}
	for name, tc := range map[string]struct {
		suspend bool
		status  batchv1.JobStatus
		want    bool
	}{
		"runs":                   {false, batchv1.JobStatus{}, true},
		"not begun":              {true, batchv1.JobStatus{}, false},
		"suspended":              {true, batchv1.JobStatus{StartTime: &began, Conditions: []batchv1.JobCondition{suspended}}, false},
		"suspended with results": {true, batchv1.JobStatus{Succeeded: 3, Failed: 1, Conditions: []batchv1.JobCondition{suspended}}, false},
		"ends its pods":          {true, batchv1.JobStatus{Active: 1, Conditions: []batchv1.JobCondition{suspended}}, true},
		"not suspended yet":      {true, batchv1.JobStatus{StartTime: &began}, true},
	} {
		k, _ := ByKind("Job")
		if got := k.KeepsTemplate(&batchv1.Job{Spec: batchv1.JobSpec{Suspend: &tc.suspend}, Status: tc.status}); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
