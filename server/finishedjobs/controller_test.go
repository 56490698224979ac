package finishedjobs

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/client/clienttest"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

var noon = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

// ended is a Job that ended so at noon, and may stay for a minute.
func ended(how batchv1.JobConditionType) *batchv1.Job {
	return &batchv1.Job{
		TypeMeta:   metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "done", UID: "u", ResourceVersion: "7", Annotations: map[string]string{lcctx.Annotation: "shop"}},
		Spec:       batchv1.JobSpec{TTLSecondsAfterFinished: ptr.To[int32](60)},
		Status:     batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: how, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(noon)}}},
	}
}

// TestExpires: a Job goes so long after it ended, in either way, and no other does.
func TestExpires(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*batchv1.Job)
		want   bool
	}{
		"ended":             {func(*batchv1.Job) {}, true},
		"failed":            {func(j *batchv1.Job) { j.Status.Conditions[0].Type = batchv1.JobFailed }, true},
		"may stay":          {func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = nil }, false},
		"is suspended":      {func(j *batchv1.Job) { j.Status.Conditions[0].Type = batchv1.JobSuspended }, false},
		"is about to end":   {func(j *batchv1.Job) { j.Status.Conditions[0].Type = batchv1.JobSuccessCriteriaMet }, false},
		"has not ended":     {func(j *batchv1.Job) { j.Status.Conditions[0].Status = corev1.ConditionFalse }, false},
		"nobody knows when": {func(j *batchv1.Job) { j.Status.Conditions[0].LastTransitionTime = metav1.Time{} }, false},
		"goes already":      {func(j *batchv1.Job) { j.DeletionTimestamp = ptr.To(metav1.NewTime(noon)) }, false},
	} {
		job := ended(batchv1.JobComplete)
		tc.change(job)
		if at, ok := expires(job); ok != tc.want || ok && !at.Equal(noon.Add(time.Minute)) {
			t.Errorf("%s: %s, %v", name, at, ok)
		}
	}
}

// jobs is a server with a Job, which answers a deletion as it is told, and takes Events.
type jobs struct {
	t      *testing.T
	job    *batchv1.Job // nil if it is gone
	mirror bool
	answer *apierrors.StatusError // to a deletion; nil deletes

	mu      sync.Mutex // guards what follows
	deleted []*metav1.DeleteOptions
	told    []*corev1.Event
}

// sent is what a request has in its body.
func sent(t *testing.T, req *http.Request) runtime.Object {
	t.Helper()
	body, err := io.ReadAll(req.Body)
	if err != nil {
		t.Error(err)
	}
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		t.Errorf("%s %s: %v", req.Method, req.URL, err)
	}
	return obj
}

func (j *jobs) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	answer := func(code int, obj any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(obj)
	}
	refuse := func(err *apierrors.StatusError) {
		err.ErrStatus.APIVersion, err.ErrStatus.Kind = "v1", "Status"
		answer(int(err.ErrStatus.Code), err.ErrStatus)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	switch path := req.URL.Path; {
	case strings.HasSuffix(path, "/logicalclusters/cluster"):
		lc := &corev1alpha1.LogicalCluster{TypeMeta: metav1.TypeMeta{APIVersion: corev1alpha1.GroupVersion.String(), Kind: "LogicalCluster"}}
		if lc.Name = corev1alpha1.LogicalClusterName; j.mirror {
			lc.Spec.Use = corev1alpha1.LogicalClusterUseMirror
		}
		answer(http.StatusOK, lc)
	case path == "/clusters/shop/apis/batch/v1/namespaces/default/jobs/done" && j.job == nil:
		refuse(apierrors.NewNotFound(batchv1.Resource("jobs"), "done"))
	case path == "/clusters/shop/apis/batch/v1/namespaces/default/jobs/done" && req.Method == http.MethodGet:
		answer(http.StatusOK, j.job)
	case path == "/clusters/shop/apis/batch/v1/namespaces/default/jobs/done" && req.Method == http.MethodDelete:
		j.deleted = append(j.deleted, sent(j.t, req).(*metav1.DeleteOptions))
		if j.answer != nil {
			refuse(j.answer)
			return
		}
		answer(http.StatusOK, j.job)
	case path == "/clusters/shop/api/v1/namespaces/default/events" && req.Method == http.MethodPost:
		event := sent(j.t, req).(*corev1.Event)
		j.told = append(j.told, event)
		event.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}
		answer(http.StatusCreated, event)
	default:
		refuse(apierrors.NewNotFound(corev1.Resource("paths"), req.Method+" "+path))
	}
}

// TestRemove: a Job is deleted as it was read, when its time has come. What the workspace does not let go is told there and
// tried again later, and is no failure of the server; anything else is.
func TestRemove(t *testing.T) {
	denied := apierrors.NewForbidden(batchv1.Resource("jobs"), "done", errors.New("no"))
	denied.ErrStatus.Message = `admission webhook "keep.example.com" denied the request: they stay`
	asGone := apierrors.NewNotFound(batchv1.Resource("jobs"), "done")
	asGone.ErrStatus.Message = denied.ErrStatus.Message
	uncalled := apierrors.NewInternalError(errors.New("no"))
	uncalled.ErrStatus.Message = `Internal error occurred: failed calling webhook "keep.example.com": no route`
	for name, tc := range map[string]struct {
		change          func(*batchv1.Job) // nil for one that is gone
		mirror          bool
		after           time.Duration // noon
		answer          *apierrors.StatusError
		deletes, tells  bool
		again           time.Duration
		fails, conflict bool
	}{
		"its time has come":         {change: func(*batchv1.Job) {}, after: time.Minute, deletes: true},
		"its time is to come":       {change: func(*batchv1.Job) {}, after: 20 * time.Second, again: 40 * time.Second},
		"somebody gave it more":     {change: func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = ptr.To[int32](100) }, after: time.Minute, again: 40 * time.Second},
		"somebody lets it stay":     {change: func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = nil }, after: time.Minute},
		"it is gone":                {after: time.Minute},
		"in a mirror":               {change: func(*batchv1.Job) {}, mirror: true, after: time.Minute},
		"a webhook denies":          {change: func(*batchv1.Job) {}, after: time.Minute, answer: denied, deletes: true, tells: true, again: refused},
		"a webhook says it is gone": {change: func(*batchv1.Job) {}, after: time.Minute, answer: asGone, deletes: true, tells: true, again: refused},
		"a webhook does not answer": {change: func(*batchv1.Job) {}, after: time.Minute, answer: uncalled, deletes: true, tells: true, again: refused},
		"later":                     {change: func(*batchv1.Job) {}, after: time.Minute, answer: apierrors.NewTooManyRequests("later", 3), deletes: true, again: 3 * time.Second},
		"somebody was faster":       {change: func(*batchv1.Job) {}, after: time.Minute, answer: apierrors.NewConflict(batchv1.Resource("jobs"), "done", errors.New("no")), deletes: true, fails: true, conflict: true},
		"it went meanwhile":         {change: func(*batchv1.Job) {}, after: time.Minute, answer: apierrors.NewNotFound(batchv1.Resource("jobs"), "done"), deletes: true},
		"the server fails":          {change: func(*batchv1.Job) {}, after: time.Minute, answer: apierrors.NewInternalError(errors.New("no")), deletes: true, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &jobs{t: t, answer: tc.answer, mirror: tc.mirror}
			if tc.change != nil {
				s.job = ended(batchv1.JobComplete)
				tc.change(s.job)
			}
			clients, informers := clienttest.Serve(t, s)
			c, err := New(clients, informers, clocktesting.NewFakeClock(noon.Add(tc.after)))
			if err != nil {
				t.Fatal(err)
			}
			defer c.jobs.Stop()
			again, err := c.remove(t.Context(), client.Key{Cluster: "shop", Namespace: "default", Name: "done"})
			if (err != nil) != tc.fails || apierrors.IsConflict(err) != tc.conflict || again != tc.again {
				t.Errorf("again after %s, %v", again, err)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if (len(s.deleted) == 1) != tc.deletes || (len(s.told) == 1) != tc.tells {
				t.Errorf("deleted %+v, told %+v", s.deleted, s.told)
			}
			for _, o := range s.deleted {
				if *o.PropagationPolicy != metav1.DeletePropagationForeground || *o.Preconditions.UID != "u" || *o.Preconditions.ResourceVersion != "7" {
					t.Errorf("deleted by %+v", o)
				}
			}
			for _, e := range s.told {
				if e.Type != corev1.EventTypeWarning || e.Reason != "FailedDelete" || e.InvolvedObject.UID != "u" || !strings.Contains(e.Message, "keep.example.com") {
					t.Errorf("told %+v", e)
				}
			}
		})
	}
}
