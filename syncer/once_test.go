package syncer

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// buriedJob returns the tombstone of a Job, which says what was applied of it, and what is below.
func buriedJob(t *testing.T, applied string) (k key, leaf, down *unstructured.Unstructured) {
	k = key{batchv1.SchemeGroupVersion.WithResource("jobs"), "shop-1", "once"}
	down = unstructuredJob(t, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, Name: k.name, UID: "below",
			Labels:      map[string]string{workloadv1alpha1.SyncTargetLabel: "east-uid", workloadv1alpha1.RootUIDLabel: "root"},
			Annotations: map[string]string{workloadv1alpha1.RenderedAnnotation: "1"}},
		Status: batchv1.JobStatus{Active: 1},
	})
	leaf = down.DeepCopy()
	delete(leaf.Object, "status")
	leaf.SetUID("leaf")
	leaf.SetResourceVersion("3")
	leaf.SetFinalizers([]string{workloadv1alpha1.SyncerFinalizer, workloadv1alpha1.SplitterFinalizer})
	leaf.SetDeletionTimestamp(ptr.To(metav1.Now()))
	if applied != "" {
		leaf.SetAnnotations(map[string]string{workloadv1alpha1.RenderedAnnotation: "1", workloadv1alpha1.AppliedAnnotation: applied})
	}
	return k, leaf, down
}

// TestTombstoneOfAJobTellsFirst: a tombstone that does not say that its Job was applied deletes nothing before it says so: when the Job is gone
// below, nothing else tells that it may have begun. The hub taking no status of it is no hindrance.
func TestTombstoneOfAJobTellsFirst(t *testing.T) {
	now := metav1.Now()
	says := `mirror PATCH {"metadata":{"annotations":{"` + workloadv1alpha1.AppliedAnnotation + `":"1"},"resourceVersion":"3"}}`
	for name, tc := range map[string]struct {
		applied string
		going   bool // somebody deletes the Job below
		away    bool // the hub takes no write
		want    []string
	}{
		"Told":          {applied: "1", want: []string{"physical DELETE"}},
		"NotTold":       {want: []string{says}},
		"NotTold,Going": {going: true, want: []string{says}},
		"NotTold,Away":  {away: true},
	} {
		t.Run(name, func(t *testing.T) {
			k, leaf, down := buriedJob(t, tc.applied)
			if tc.going {
				down.SetDeletionTimestamp(&now)
			}
			var writes []string
			s := newIdle(t, func(w http.ResponseWriter, req *http.Request) {
				switch {
				case req.Method == http.MethodGet:
					answer(t, w, http.StatusOK, map[string]any{"apiVersion": "batch/v1", "kind": "JobList", "metadata": map[string]any{}, "items": []any{leaf.Object}})
				case tc.away || strings.HasSuffix(req.URL.Path, "/status"):
					http.Error(w, "not now", http.StatusServiceUnavailable)
				default:
					body, err := io.ReadAll(req.Body)
					if err != nil {
						t.Error(err)
					}
					writes = append(writes, "mirror "+req.Method+" "+string(body))
					answer(t, w, http.StatusOK, leaf.Object)
				}
			}, func(w http.ResponseWriter, req *http.Request) {
				if req.Method != http.MethodGet {
					writes = append(writes, "physical "+req.Method)
				}
				answer(t, w, http.StatusOK, down.Object)
			})
			if err := s.mirror.informers[k.resource].Add(leaf); err != nil {
				t.Fatal(err)
			}
			s.gate.open(s.gate.begin(), fine)
			_, err := s.reconcile(t.Context(), k)
			if diff := cmp.Diff(tc.want, writes); diff != "" {
				t.Errorf("writes: -want, +got:\n%s", diff)
			}
			if wrong := tc.away || tc.applied != ""; (err != nil) != wrong { // as told, its status is not taken
				t.Errorf("error %v, want one: %v", err, wrong)
			}
		})
	}
}

// TestTombstoneKeepsWhatItSays: a physical cluster that does not let us look is no proof that nothing was applied there.
func TestTombstoneKeepsWhatItSays(t *testing.T) {
	for name, refused := range map[string]string{"Job": "/jobs/", "Pods": "/pods"} {
		t.Run(name, func(t *testing.T) {
			k, leaf, _ := buriedJob(t, "1")
			var told []unstructured.Unstructured
			s := newIdle(t, func(w http.ResponseWriter, req *http.Request) {
				var o unstructured.Unstructured
				if err := json.NewDecoder(req.Body).Decode(&o.Object); err != nil {
					t.Errorf("%s %s: %v", req.Method, req.URL.Path, err)
				}
				told = append(told, o)
				answer(t, w, http.StatusOK, o.Object)
			}, func(w http.ResponseWriter, req *http.Request) {
				if strings.Contains(req.URL.Path, refused) {
					answer(t, w, http.StatusForbidden, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
						Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden,
						Message: "address also in use by back-1a2b/db"})
					return
				}
				notFound(t, w)
			})
			for namespace, workspace := range map[string]string{leaf.GetNamespace(): "front", "back-1a2b": "back"} {
				o := &unstructured.Unstructured{Object: map[string]any{}}
				o.SetName(namespace)
				o.SetLabels(map[string]string{workloadv1alpha1.WorkspaceLabel: workspace})
				if err := s.physical.informers[namespacesGVR].Add(o); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.mirror.informers[k.resource].Add(leaf); err != nil {
				t.Fatal(err)
			}
			s.gate.open(s.gate.begin(), fine)
			if _, err := s.reconcile(t.Context(), k); err != nil {
				t.Fatal(err)
			}
			if len(told) != 1 || told[0].GetAnnotations()[workloadv1alpha1.AppliedAnnotation] != "1" || told[0].GetAnnotations()[workloadv1alpha1.RefusedAnnotation] == "" {
				t.Fatalf("told %v, want once that it is refused, and still that it was applied", told)
			}
			if said := told[0].GetAnnotations()[workloadv1alpha1.RefusedAnnotation]; !strings.Contains(said, "in use by another namespace") {
				t.Errorf("told %s, want it without what another workspace's namespace is called", said)
			}
		})
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
