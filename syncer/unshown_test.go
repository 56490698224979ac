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
			s.revisions.Add(types.UID("o"), "5d8c")
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
