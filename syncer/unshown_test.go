package syncer

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// TestUnshownReachesTheLeaf: that a pod cannot be shown is told to its leaf after a few tries, and taken back when it is over, once a
// minute at most.
func TestUnshownReachesTheLeaf(t *testing.T) {
	full := apierrors.NewForbidden(podsGVR.GroupResource(), "web-abc-1", errors.New("26 pods are shown"))
	for name, tc := range map[string]struct {
		err    error
		reason string // "" if it passes by itself
	}{
		"full":       {full, refusedForbidden},
		"taken":      {apierrors.NewAlreadyExists(podsGVR.GroupResource(), "web-abc-1"), refusedNameConflict},
		"too large":  {apierrors.NewRequestEntityTooLargeError("it is long"), refusedInvalid},
		"no owner":   {apierrors.NewNotFound(deploymentsGVR.GroupResource(), "web"), ""},
		"not served": {apierrors.NewInternalError(errors.New("etcd")), ""},
		"too many":   {apierrors.NewTooManyRequests("later", 0), ""},
	} {
		t.Run(name, func(t *testing.T) {
			refused := tc.err
			mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				var answer any = &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "web-abc-1"}}}
				if refused != nil {
					status := refused.(apierrors.APIStatus).Status()
					w.WriteHeader(int(status.Code))
					answer = status
				}
				if err := json.NewEncoder(w).Encode(answer); err != nil {
					t.Error(err)
				}
			}))
			defer mirror.Close()
			clk := clocktesting.NewFakeClock(time.Unix(1000, 0))
			s, err := New(Config{Name: "east", UID: "u", Mirror: &rest.Config{Host: mirror.URL}, Physical: &rest.Config{}, Clock: clk})
			if err != nil {
				t.Fatal(err)
			}
			s.gate.open(s.gate.begin(), fine)
			s.heardUnlessRefused(podsGVR)(nil)
			for _, i := range []*informer{s.pods, s.shownPods} {
				if err := i.queue.Replace(nil, "1"); err != nil {
					t.Fatal(err)
				}
			}
			pod, leaf := testPod("a", "Pending", "False"), &unstructured.Unstructured{Object: map[string]any{}}
			pod.SetLabels(map[string]string{"pod-template-hash": "abc"})
			pod.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-abc", UID: "o", Controller: ptr.To(true)}})
			leaf.SetNamespace("shop-1a")
			leaf.SetName("web")
			if err := errors.Join(s.pods.Add(pod), s.mirror.informers[deploymentsGVR].Add(leaf)); err != nil {
				t.Fatal(err)
			}
			s.sets.Add(types.UID("o"), &setBelow{revision: "5d8c"})
			of := key{deploymentsGVR, "shop-1a", "web"}
			try := func() {
				t.Helper()
				if _, err := s.reconcilePod(t.Context(), keyOfPod(pod)); err != nil {
					t.Fatal(err)
				}
			}
			told := func() string {
				why, _ := s.unshown.why(of, nil, clk.Now())
				if why == nil {
					return ""
				}
				return why.reason
			}
			for i := range unshownTries + 1 {
				try()
				want := ""
				if i+1 >= unshownTries {
					want = tc.reason
				}
				if got := told(); got != want {
					t.Errorf("after try %d it is told %q, want %q", i+1, got, want)
				}
			}
			if queued := s.queue.Len() == 1; queued != (tc.reason != "") {
				t.Errorf("the leaf waits to be told: %v", queued)
			}
			refused = nil
			try()
			if got := told(); got != tc.reason {
				t.Errorf("within a minute it is told %q, want %q", got, tc.reason)
			}
			clk.Step(unshownFor)
			if got := told(); got != "" {
				t.Errorf("it is told %q of pods that are shown", got)
			}
			if len(s.unshown.of)+len(s.unshown.leafOf) > 0 {
				t.Errorf("%v and %v are left", s.unshown.of, s.unshown.leafOf)
			}
		})
	}
}

// TestUnshownForgets: what is known of the pods of a leaf goes with it.
func TestUnshownForgets(t *testing.T) {
	var u unshown
	pod, leaf, now := key{podsGVR, "shop-1a", "web-1"}, key{deploymentsGVR, "shop-1a", "web"}, time.Unix(1000, 0)
	u.add(pod, leaf, &refusal{refusedForbidden, "full"}, now)
	u.forget(leaf)
	if why, _ := u.why(leaf, nil, now); why != nil || len(u.leafOf) > 0 {
		t.Errorf("%v, %v", why, u.leafOf)
	}
	if _, news := u.remove(pod); news {
		t.Error("a leaf that is gone is told")
	}
}

// TestUnshownOverARestart: what a leaf was told holds until there was time to try its pods.
func TestUnshownOverARestart(t *testing.T) {
	began := time.Unix(1000, 0)
	pod, of := key{podsGVR, "shop-1a", "web-1"}, key{deploymentsGVR, "shop-1a", "web"}
	leaf := &unstructured.Unstructured{Object: map[string]any{}}
	if toldUnshown(leaf) != nil {
		t.Error("a leaf that was told nothing was told something")
	}
	leaf.SetAnnotations(map[string]string{workloadv1alpha1.UnshownAnnotation: `{"reason":"Forbidden","message":"full"}`})
	for reason, tc := range map[string]struct {
		refused bool
		then    *refusal
	}{
		"all are shown now": {false, nil},
		"it still is so":    {true, &refusal{refusedForbidden, "full"}},
	} {
		u := unshown{began: began}
		if why, over := u.why(of, toldUnshown(leaf), began.Add(time.Second)); why == nil || over != unshownFor-time.Second {
			t.Errorf("%s: after a second it is told %v, for %s", reason, why, over)
		}
		if tc.refused && u.add(pod, of, &refusal{refusedForbidden, "another is too much"}, began.Add(2*time.Second)) {
			t.Errorf("%s: it is told anew", reason)
		}
		for range 2 {
			if why, _ := u.why(of, toldUnshown(leaf), began.Add(unshownFor)); !reflect.DeepEqual(why, tc.then) {
				t.Errorf("%s: after a minute it is told %v, want %v", reason, why, tc.then)
			}
		}
	}
}

// TestOnlyWhatIsNotShownIsUnshown: a pod that is shown, and that the physical cluster does not let us end, is not told of as one
// that is not shown.
func TestOnlyWhatIsNotShownIsUnshown(t *testing.T) {
	asked := ending(shownOf("a", "Running", "True"))
	asked.SetAPIVersion("v1")
	asked.SetKind("Pod")
	tries := 0
	s := newIdle(t, func(w http.ResponseWriter, _ *http.Request) {
		answer(t, w, http.StatusOK, asked.Object)
	}, func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodDelete {
			tries++
		}
		answer(t, w, http.StatusForbidden, apierrors.NewForbidden(podsGVR.GroupResource(), "web-abc-1", errors.New("no role")).Status())
	})
	s.gate.open(s.gate.begin(), fine)
	s.heardUnlessRefused(podsGVR)(nil)
	for _, i := range []*informer{s.pods, s.shownPods} {
		if err := i.queue.Replace(nil, "1"); err != nil {
			t.Fatal(err)
		}
	}
	pod := testPod("a", "Running", "True")
	pod.SetLabels(map[string]string{"pod-template-hash": "abc"})
	pod.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-abc", UID: "o", Controller: ptr.To(true)}})
	if err := errors.Join(s.pods.Add(pod), s.shownPods.Add(asked)); err != nil {
		t.Fatal(err)
	}
	for range unshownTries + 1 {
		if _, err := s.reconcilePod(t.Context(), keyOfPod(pod)); err != nil {
			t.Fatal(err)
		}
	}
	if why, _ := s.unshown.why(key{deploymentsGVR, "shop-1a", "web"}, nil, s.config.Clock.Now()); why != nil || tries != unshownTries+1 {
		t.Errorf("after %d refusals its leaf is told %v", tries, why)
	}
}

// TestUnshownOnAnEarlierHub: one that does not know the annotation, and refuses whatever has it, gets the status without.
func TestUnshownOnAnEarlierHub(t *testing.T) {
	leaf := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "status": map[string]any{"readyReplicas": int64(1)},
		"metadata": map[string]any{"namespace": "shop-1a", "name": "web", "uid": "leaf", "resourceVersion": "7", "labels": map[string]any{workloadv1alpha1.RootUIDLabel: "r"}},
	}}
	down := leaf.DeepCopy()
	down.Object["status"] = map[string]any{"readyReplicas": int64(2)}
	k, requests := key{deploymentsGVR, "shop-1a", "web"}, []string{}
	var stored *unstructured.Unstructured
	hub := func(w http.ResponseWriter, req *http.Request) {
		written := &unstructured.Unstructured{}
		if err := json.NewDecoder(req.Body).Decode(&written.Object); err != nil {
			t.Error(err)
		}
		requests = append(requests, req.Method)
		if _, unknown := written.GetAnnotations()[workloadv1alpha1.UnshownAnnotation]; unknown {
			answer(t, w, http.StatusForbidden, apierrors.NewForbidden(deploymentsGVR.GroupResource(), "web", errors.New("not a syncer's")).Status())
			return
		}
		stored = written
		answer(t, w, http.StatusOK, written.Object)
	}
	for reason, tc := range map[string]struct {
		unshown *refusal
		want    []string
	}{
		"all are shown": {nil, []string{"PUT"}},
		"one is not":    {&refusal{refusedForbidden, "full"}, []string{"PUT", "PUT"}},
	} {
		requests, stored = nil, nil
		s := newIdle(t, hub, func(http.ResponseWriter, *http.Request) {})
		if _, err := s.tell(t.Context(), k, leaf, outcome{down: down, unshown: tc.unshown}); err != nil {
			t.Errorf("%s: %v", reason, err)
		}
		if !reflect.DeepEqual(requests, tc.want) {
			t.Errorf("%s: requests %v, want %v", reason, requests, tc.want)
		}
		if stored == nil || !reflect.DeepEqual(stored.Object["status"], map[string]any{"readyReplicas": float64(2)}) {
			t.Errorf("%s: the leaf is told %v, want the status", reason, stored)
		}
	}
}
