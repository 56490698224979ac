package syncer

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

func unstructuredJob(t *testing.T, j *batchv1.Job) *unstructured.Unstructured {
	t.Helper()
	j.TypeMeta = metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(j)
	if err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: content}
}

func TestIsGone(t *testing.T) {
	jobs, deployments := key{resource: batchv1.SchemeGroupVersion.WithResource("jobs")}, key{resource: appsv1.SchemeGroupVersion.WithResource("deployments")}
	applied := metav1.ObjectMeta{Annotations: map[string]string{workloadv1alpha1.AppliedAnnotation: "1"}}
	began := batchv1.JobStatus{StartTime: ptr.To(metav1.Unix(10, 0))}
	for reason, tc := range map[string]struct {
		k    key
		leaf batchv1.Job
		down bool
		want bool
	}{
		"it never was there":             {k: jobs},
		"it is there":                    {k: jobs, leaf: batchv1.Job{Status: began}, down: true},
		"it had begun":                   {k: jobs, leaf: batchv1.Job{Status: began}, want: true},
		"it may have begun":              {k: jobs, leaf: batchv1.Job{ObjectMeta: applied}, want: true},
		"it was suspended":               {k: jobs, leaf: batchv1.Job{ObjectMeta: applied, Spec: batchv1.JobSpec{Suspend: ptr.To(true)}}},
		"what is not done once is again": {k: deployments, leaf: batchv1.Job{ObjectMeta: applied}},
	} {
		var down *unstructured.Unstructured
		if tc.down {
			down = &unstructured.Unstructured{}
		}
		if got, err := isGone(tc.k, unstructuredJob(t, &tc.leaf), down); err != nil || got != tc.want {
			t.Errorf("%s: gone: %v %v, want %v", reason, got, err, tc.want)
		}
	}
}

// TestStatusOfAJobFits: the hub takes no status in which a Job begins at another time, or its counters go down.
func TestStatusOfAJobFits(t *testing.T) {
	meta := metav1.ObjectMeta{
		Labels: map[string]string{workloadv1alpha1.RootUIDLabel: "root"}, Annotations: map[string]string{workloadv1alpha1.RenderedAnnotation: "1"}}
	leaf := unstructuredJob(t, &batchv1.Job{ObjectMeta: meta, Status: batchv1.JobStatus{StartTime: ptr.To(metav1.Unix(10, 0)), Failed: 2}})
	down := unstructuredJob(t, &batchv1.Job{ObjectMeta: meta, Status: batchv1.JobStatus{StartTime: ptr.To(metav1.Unix(20, 0)), CompletionTime: ptr.To(metav1.Unix(30, 0)),
		Succeeded: 1, Conditions: []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}}})
	want, changed, err := report(leaf, outcome{down: down}, true)
	if err != nil || !changed {
		t.Fatalf("it is reported: %v %v", changed, err)
	}
	got := &batchv1.Job{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(want.Object, got); err != nil {
		t.Fatal(err)
	}
	s := got.Status
	if s.StartTime.Unix() != 10 || s.Failed != 2 || s.Succeeded != 1 || len(s.Conditions) != 2 {
		t.Errorf("the status is %+v, want the first start, no fewer failures, and that it met what it was to", s)
	}
}
