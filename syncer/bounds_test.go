package syncer

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

var limitRangesGVR = corev1.SchemeGroupVersion.WithResource("limitranges")

// bound is a leaf of a LimitRange or NetworkPolicy that is to be as it was rendered the second time, with those annotations.
func bound(gvr schema.GroupVersionResource, annotations map[string]string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": gvr.GroupVersion().String(), "kind": "Bound"}}
	o.SetNamespace("shop-1a")
	o.SetName("bounds")
	o.SetLabels(map[string]string{workloadv1alpha1.WorkspaceLabel: "shop"})
	o.SetAnnotations(map[string]string{workloadv1alpha1.RenderedAnnotation: "2"})
	for a, value := range annotations {
		setAnnotation(o, a, value)
	}
	return o
}

func setAnnotation(o *unstructured.Unstructured, name, value string) {
	annotations := o.GetAnnotations()
	annotations[name] = value
	o.SetAnnotations(annotations)
}

// TestBoundsFirst: what makes pods is written when what bounds them is there, or will not be.
func TestBoundsFirst(t *testing.T) {
	refused := func(reason, rendered string) map[string]string {
		return map[string]string{workloadv1alpha1.RefusedAnnotation: fmt.Sprintf(`{"reason":%q,"message":"no","rendered":%q}`, reason, rendered)}
	}
	applied := func(rendered string) map[string]string {
		return map[string]string{workloadv1alpha1.AppliedAnnotation: rendered}
	}
	const (
		first   = "nothing is there yet" // what the write changes; more replicas, unless it is said
		other   = "the template is another"
		fewer   = "fewer replicas"
		behind  = "our watch shows none"
		fails   = "our watch shows none, and the mirror does not list them"
		denied  = "the hub has no leaves of LimitRanges"
		broken  = "a row of the mirror cannot be read"
		refuses = "the hub lets us list none any more"
	)
	for name, tc := range map[string]struct {
		is        map[string]string // annotations
		of        string            // a NetworkPolicy is meant, if it is so called
		how       []string
		below     string // rendered as, below
		deleted   bool
		elsewhere bool // in another namespace
		want      bool
		err       bool
	}{
		"OnItsWay":            {how: []string{first}},
		"PolicyOnItsWay":      {of: "NetworkPolicy", how: []string{first}},
		"OnItsWayAndMore":     {},
		"OnItsWayAndOther":    {how: []string{fewer, other}},
		"OnItsWayAndFewer":    {how: []string{fewer}, want: true}, // which makes no pod
		"Taken":               {is: applied("2"), below: "2", how: []string{first}, want: true},
		"TakenAndGone":        {is: applied("2"), how: []string{first}}, // somebody deletes it there
		"TakenAndNotTold":     {below: "2", how: []string{first}, want: true},
		"Changed":             {is: applied("1"), how: []string{first}},
		"ChangedBelowAsItWas": {is: applied("1"), below: "1", how: []string{first}},
		"Refused":             {is: refused("Invalid", "2"), how: []string{first}, want: true},
		"RefusedAsItWas":      {is: refused("Invalid", "1"), how: []string{first}},
		"RefusedInOtherWords": {is: map[string]string{workloadv1alpha1.RefusedAnnotation: "no"}, how: []string{first}, want: true},
		"DoesNotAnswer":       {is: refused("Unreachable", "2"), how: []string{first}},
		"EarlierHub":          {how: []string{first, fails, denied}, want: true},
		"Going":               {deleted: true, how: []string{first}, want: true},
		"Elsewhere":           {elsewhere: true, how: []string{first}, want: true},
		"NotSeen":             {how: []string{first, behind}},
		"NotSeenAndMore":      {how: []string{behind}},
		"NotSeenAndTaken":     {below: "2", how: []string{first, behind}, want: true},
		"NotListed":           {how: []string{first, fails}, err: true},
		"Unreadable":          {how: []string{first, broken}},
		"Denied":              {how: []string{first, refuses}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			is := func(how string) bool { return slices.Contains(tc.how, how) }
			gvr := limitRangesGVR
			if tc.of == "NetworkPolicy" {
				gvr = networkPoliciesGVR
			}
			limits := bound(gvr, tc.is)
			if tc.deleted {
				now := metav1.Now()
				limits.SetDeletionTimestamp(&now)
			}
			if tc.elsewhere {
				limits.SetNamespace("shop-2b")
			}
			s, k, leaf, down, writes := setBeside(t, false, func(w http.ResponseWriter, req *http.Request) {
				if is(fails) {
					answer(t, w, http.StatusServiceUnavailable, apierrors.NewServiceUnavailable("away").ErrStatus)
					return
				}
				if is(refuses) {
					answer(t, w, http.StatusForbidden, apierrors.NewForbidden(limitRangesGVR.GroupResource(), "", errors.New("no role")).ErrStatus)
					return
				}
				if is(broken) {
					answer(t, w, http.StatusInternalServerError, apierrors.NewInternalError(errors.New("cannot decode")).ErrStatus)
					return
				}
				if got := req.URL.Query().Get("labelSelector"); got != workloadv1alpha1.WorkspaceLabel {
					t.Errorf("what is listed has labels %q", got)
				}
				if !strings.Contains(req.URL.Path, "/namespaces/shop-1a/") {
					t.Errorf("what is listed is all of %s", req.URL.Path)
				}
				var items []any
				if !tc.elsewhere && gvr == limitRangesGVR {
					items = append(items, limits.Object)
				}
				answer(t, w, http.StatusOK, map[string]any{"apiVersion": "v1", "kind": "LimitRangeList", "metadata": map[string]any{}, "items": items})
			})
			clock := clocktesting.NewFakeClock(time.Unix(1000, 0))
			s.config.Clock = clock
			if is(denied) {
				s.denied(limitRangesGVR)(apierrors.NewForbidden(limitRangesGVR.GroupResource(), "", errors.New("no role")))
			}
			if !is(behind) && !is(fails) && !is(broken) && !is(refuses) {
				if err := s.mirror.informers[gvr].Add(limits); err != nil {
					t.Fatal(err)
				}
			}
			if tc.below != "" {
				there := limits.DeepCopy()
				there.SetAnnotations(map[string]string{workloadv1alpha1.RenderedAnnotation: tc.below})
				if err := s.physical.informers[gvr].Add(there); err != nil {
					t.Fatal(err)
				}
			}
			switch {
			case is(first):
				down = nil
			case is(fewer):
				down.Object["spec"] = map[string]any{"replicas": int64(5)}
			}
			if is(other) {
				leaf.Object["spec"].(map[string]any)["template"] = map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "web"}}}
			}
			o, err := s.applyLeaf(t.Context(), k, leaf, down)
			if (err != nil) != tc.err {
				t.Fatal(err)
			}
			var ofMirror *mirrorError
			if tc.err && !errors.As(err, &ofMirror) {
				t.Errorf("what the mirror answers is not told of the physical cluster: %v", err)
			}
			if got := *writes > 0; got != tc.want || o.undecided == tc.want {
				t.Errorf("written: %v, want %v; undecided: %v", got, tc.want, o.undecided)
			}
			if tc.want {
				if s.unbounded.has(k.namespace) || len(s.unbounded.onTheirWay) > 0 {
					t.Error("something waits")
				}
				return
			}
			if tc.err {
				return
			}
			if o.again != holdTime {
				t.Errorf("it is looked at again after %s", o.again)
			}
			clock.Step(holdTime)
			if _, err := s.applyLeaf(t.Context(), k, leaf, down); err != nil || *writes == 0 {
				t.Errorf("nothing was written after %s: %v", holdTime, err)
			}
		})
	}
}

// TestHeldUpForBounds: what waits for what bounds pods is looked at when all of that is taken or refused, and not before; what takes too long is not waited
// for again, and what comes later is.
func TestHeldUpForBounds(t *testing.T) {
	s, k, leaf, _, writes := setBeside(t, false, nil)
	clock := clocktesting.NewFakeClock(time.Unix(1000, 0))
	s.config.Clock = clock
	s.denied(limitRangesGVR)(apierrors.NewForbidden(limitRangesGVR.GroupResource(), "", errors.New("the hub starts")))
	above, below := s.mirror.informers, s.physical.informers
	version := 0
	// news: an informer is told, and how many of what waits are to be looked at since.
	news := func(i *informer, o *unstructured.Unstructured) int {
		t.Helper()
		version++
		o.SetResourceVersion(fmt.Sprint(version))
		told := make(chan error, 1)
		if err := i.queue.Update(o); err != nil {
			t.Fatal(err)
		}
		waits := len(s.unbounded.waits[k.namespace])
		go func() { // as a reflector does, with the queue's lock held
			_, err := i.queue.Pop(i.process)
			told <- err
		}()
		select {
		case err := <-told:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(time.Minute):
			t.Fatal("the informer waits for itself")
		}
		return waits - len(s.unbounded.waits[k.namespace])
	}
	looks := func() int {
		t.Helper()
		s.drifts.forget(k) // it is not there however often it is made, as if somebody deleted it each time
		if _, err := s.applyLeaf(t.Context(), k, leaf, nil); err != nil {
			t.Fatal(err)
		}
		return *writes
	}
	for _, i := range []*informer{above[limitRangesGVR], above[networkPoliciesGVR]} {
		if err := i.queue.Replace(nil, "1"); err != nil {
			t.Fatal(err)
		}
	}
	rendered := func(as string) map[string]string {
		return map[string]string{workloadv1alpha1.RenderedAnnotation: as}
	}
	news(above[limitRangesGVR], bound(limitRangesGVR, nil))
	news(above[networkPoliciesGVR], bound(networkPoliciesGVR, nil))
	if looks() > 0 {
		t.Fatal("it does not wait")
	}
	if n := news(below[limitRangesGVR], bound(limitRangesGVR, nil)); n > 0 {
		t.Errorf("%d keys are looked at, when a policy is still to come", n)
	}
	queued := s.queue.Len()
	if n := news(above[networkPoliciesGVR], bound(networkPoliciesGVR, map[string]string{workloadv1alpha1.RefusedAnnotation: "no"})); n != 1 || s.queue.Len() != queued+1 {
		t.Errorf("%d keys are looked at when all is there or refused, and %d more are queued", n, s.queue.Len()-queued)
	}
	if looks() != 1 {
		t.Error("it waits when all is there")
	}

	news(above[limitRangesGVR], bound(limitRangesGVR, rendered("3")))
	if looks() != 1 {
		t.Fatal("it does not wait for what has changed")
	}
	clock.Step(holdTime)
	if looks() != 2 || looks() != 3 {
		t.Error("it waits again, when that takes too long")
	}
	if n := len(s.unbounded.waits); n > 0 {
		t.Errorf("what waits no more is kept, in %d namespaces", n)
	}
	news(above[limitRangesGVR], bound(limitRangesGVR, rendered("4")))
	if looks() != 4 {
		t.Error("it waits again, when that is rendered anew")
	}
	news(below[limitRangesGVR], bound(limitRangesGVR, rendered("4")))
	news(above[limitRangesGVR], bound(limitRangesGVR, rendered("5")))
	if looks() != 4 {
		t.Error("it does not wait for what is on its way after it had arrived")
	}
	if _, err := s.reconcile(t.Context(), k); err != nil || len(s.unbounded.waits) > 0 {
		t.Errorf("its leaf is gone, and it waits: %v", err)
	}
	if looks() != 4 {
		t.Error("it does not wait any more")
	}
	gone := bound(limitRangesGVR, rendered("5"))
	now := metav1.Now()
	gone.SetDeletionTimestamp(&now)
	if n := news(above[limitRangesGVR], gone); n != 1 || len(s.unbounded.onTheirWay) > 0 {
		t.Errorf("%d keys are looked at when what is waited for goes; on their way are %v", n, s.unbounded.onTheirWay)
	}
}

// TestBehindBounds: while our watch shows what bounds pods as it was, and was taken, the time runs for which it is waited for as it is.
func TestBehindBounds(t *testing.T) {
	for name, annotations := range map[string]map[string]string{"Taken": nil, "Unreachable": {workloadv1alpha1.RefusedAnnotation: `{"reason":"Unreachable","message":"no","rendered":"2"}`}} {
		t.Run(name, func(t *testing.T) {
			now := bound(limitRangesGVR, map[string]string{workloadv1alpha1.RenderedAnnotation: "3"})
			s, k, leaf, _, writes := setBeside(t, false, func(w http.ResponseWriter, _ *http.Request) {
				answer(t, w, http.StatusOK, map[string]any{"apiVersion": "v1", "kind": "LimitRangeList", "metadata": map[string]any{}, "items": []any{now.Object}})
			})
			clock := clocktesting.NewFakeClock(time.Unix(1000, 0))
			s.config.Clock = clock
			err := s.mirror.informers[limitRangesGVR].Add(bound(limitRangesGVR, annotations))
			if annotations == nil {
				err = errors.Join(err, s.physical.informers[limitRangesGVR].Add(bound(limitRangesGVR, nil)))
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []int{0, 1} {
				if _, err := s.applyLeaf(t.Context(), k, leaf, nil); err != nil || *writes != want {
					t.Errorf("there were %d writes, want %d: %v", *writes, want, err)
				}
				clock.Step(holdTime)
			}
		})
	}
}

// TestBoundPodWaits: a pod that is bound to a cluster is made there after what bounds it, as those that a workload's controller makes.
func TestBoundPodWaits(t *testing.T) {
	s, _, _, _, writes := setBeside(t, false, nil)
	s.heardUnlessRefused(podsGVR)(nil)
	pod := boundOf("", "Pending", "False")
	pod.SetNamespace("shop-1a")
	pod.SetLabels(map[string]string{workloadv1alpha1.WorkspaceLabel: "shop", workloadv1alpha1.RootUIDLabel: "above"})
	if err := errors.Join(s.pods.queue.Replace(nil, "1"), s.shownPods.queue.Replace(nil, "1"), s.shownPods.Add(pod),
		s.mirror.informers[limitRangesGVR].Add(bound(limitRangesGVR, nil))); err != nil {
		t.Fatal(err)
	}
	again, err := s.reconcilePod(t.Context(), keyOfPod(pod))
	if err != nil || again <= 0 || again > holdTime || *writes > 0 {
		t.Errorf("it is looked at again after %s, and there were %d writes: %v", again, *writes, err)
	}
	if n := s.backoff.NumRequeues(keyOfPod(pod)); n > 0 {
		t.Errorf("to wait counts as %d failures", n)
	}
	if err := s.shownPods.Delete(pod); err != nil {
		t.Fatal(err)
	}
	if _, err := s.reconcilePod(t.Context(), keyOfPod(pod)); err != nil || s.unbounded.has("shop-1a") {
		t.Errorf("it waits although it is gone: %v", err)
	}
	if err := s.shownPods.Add(pod); err != nil {
		t.Fatal(err)
	}
	if again, err := s.reconcilePod(t.Context(), keyOfPod(pod)); again == 0 || err != nil {
		t.Errorf("it does not wait: %v", err)
	}
	if err := s.physical.informers[limitRangesGVR].Add(bound(limitRangesGVR, nil)); err != nil {
		t.Fatal(err)
	}
	before := s.queue.Len()
	if s.boundSeen(key{limitRangesGVR, "shop-1a", "bounds"}); s.queue.Len() != before+1 {
		t.Error("it is not looked at when all is there")
	}
}

// TestMakesPods: fewer of the same make no pods, nor does what is to have none.
func TestMakesPods(t *testing.T) {
	spec := func(replicas any, suspend bool, limits map[string]any) *unstructured.Unstructured {
		spec := map[string]any{"template": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "web", "resources": limits}}}}}
		if replicas != nil {
			spec["replicas"] = replicas
		}
		if suspend {
			spec["suspend"] = true
		}
		return &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	}
	none, some := map[string]any{}, map[string]any{"limits": map[string]any{"memory": "1Gi"}}
	for name, tc := range map[string]struct {
		rendered, live *unstructured.Unstructured
		want           bool
	}{
		"First":           {spec(int64(1), false, none), nil, true},
		"FirstOfNone":     {spec(int64(0), false, none), nil, false},
		"FirstSuspended":  {spec(nil, true, none), nil, false},
		"Resumed":         {spec(nil, false, none), spec(nil, true, none), true},
		"Agent":           {spec(nil, false, none), spec(nil, false, none), true},
		"More":            {spec(int64(3), false, none), spec(int64(2), false, none), true},
		"Fewer":           {spec(int64(1), false, none), spec(int64(2), false, none), false},
		"ToNone":          {spec(int64(0), false, some), spec(int64(2), false, none), false},
		"FewerOfOthers":   {spec(int64(1), false, some), spec(int64(2), false, none), true},
		"FewerOfLess":     {spec(int64(1), false, none), spec(int64(2), false, some), true},
		"AsManyOfTheSame": {spec(int64(2), false, none), spec(int64(2), false, none), true}, // as when a rollout goes on
		"AsMany":          {spec(int64(2), false, none), spec(int64(2), false, some), true},
	} {
		if got := makesPods(tc.rendered, tc.live); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
