package syncer

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// TestCarried: what a syncer says it carries is what is asked of it. Of a kind that not all syncers carry, a refused list is no trouble
// where there are no leaves, and trouble as ever where there are.
func TestCarried(t *testing.T) {
	daemonSets := appsv1.SchemeGroupVersion.WithResource("daemonsets")
	denied := apierrors.NewForbidden(daemonSets.GroupResource(), "", errors.New("no role"))
	base := workloadv1alpha1.CarriedByAll
	all := append([]string{"daemonsets.apps"}, base...)
	slices.Sort(all)
	for name, tc := range map[string]struct {
		reason string
		before []string // what was told
		heard  []error  // of the physical cluster's list and watch, nil for one that has begun
		hub    error    // of the mirror's
		leaf   bool
		want   []string
		blind  bool
	}{
		"NotYet":        {reason: "nothing is known at the start", want: base},
		"NotYetAgain":   {reason: "after a restart, what was told holds", before: all, want: all},
		"Watched":       {reason: "both sides show it", heard: []error{nil}, want: all},
		"Denied":        {reason: "an older ClusterRole", heard: []error{denied}, want: base},
		"DeniedSince":   {reason: "and nothing of it is there", before: all, heard: []error{nil, denied}, want: base},
		"DeniedWithOne": {reason: "what is asked for cannot be seen", before: all, heard: []error{nil, denied}, leaf: true, want: all, blind: true},
		"AllowedSince":  {reason: "the role was renewed", heard: []error{denied, nil}, want: all},
		"Away":          {reason: "a cluster that does not answer may well serve it", before: all, heard: []error{nil, errors.New("timeout")}, want: all, blind: true},
		"EarlierHub":    {reason: "the hub has no leaves of it", heard: []error{nil}, hub: denied, want: base},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(Config{Name: "east", UID: "east", Mirror: &rest.Config{}, Physical: &rest.Config{}, Clock: clock.RealClock{}})
			if err != nil {
				t.Fatal(err)
			}
			if tc.leaf {
				leaf := &unstructured.Unstructured{Object: map[string]any{}}
				leaf.SetNamespace("front-1")
				leaf.SetName("agent")
				if err := s.mirror.informers[daemonSets].Add(leaf); err != nil {
					t.Fatal(err)
				}
			}
			for _, err := range tc.heard {
				s.heard(daemonSets)(err)
			}
			if tc.hub != nil {
				s.denied(daemonSets)(tc.hub)
			}
			if got := carriedResources(tc.before, s.carried()); !slices.Equal(got, tc.want) {
				t.Errorf("%s: carries %v, want %v", tc.reason, got, tc.want)
			}
			if blind := s.blind(); len(blind) > 0 != tc.blind {
				t.Errorf("%s: blind are %v, want some: %v", tc.reason, blind, tc.blind)
			}
		})
	}
}

// TestBaseIsNeverOptional: what every syncer carries is trouble if it cannot be listed, as ever.
func TestBaseIsNeverOptional(t *testing.T) {
	deployments := appsv1.SchemeGroupVersion.WithResource("deployments")
	s, err := New(Config{Name: "east", UID: "east", Mirror: &rest.Config{}, Physical: &rest.Config{}, Clock: clock.RealClock{}})
	if err != nil {
		t.Fatal(err)
	}
	denied := apierrors.NewForbidden(deployments.GroupResource(), "", errors.New("no role"))
	s.heard(deployments)(denied)
	s.denied(deployments)(denied)
	if len(s.blind()) != 1 || s.isDenied(deployments) || !slices.Equal(carriedResources(nil, s.carried()), workloadv1alpha1.CarriedByAll) {
		t.Errorf("blind are %v, and it carries %v", s.blind(), carriedResources(nil, s.carried()))
	}
}

// TestPodsCarried: pods are said to be carried while what is shown of them is how they are; and while they are not, what was seen last
// is not told.
func TestPodsCarried(t *testing.T) {
	denied := apierrors.NewForbidden(podsGVR.GroupResource(), "", errors.New("no role"))
	expired := apierrors.NewResourceExpired("too old")
	carriedBefore := []string{"pods"}
	for name, tc := range map[string]struct {
		reason       string
		before       []string
		heard        []error // each two minutes after the one before
		soon         bool    // asked at once after that, not six minutes later
		carried, saw bool
	}{
		"NotYet":       {reason: "nothing is known at the start", soon: true},
		"NotYetAgain":  {reason: "after a restart, what was told holds", before: carriedBefore, soon: true, carried: true},
		"NeverYet":     {reason: "not for ever", before: carriedBefore},
		"Watched":      {reason: "they are seen", heard: []error{nil}, carried: true, saw: true},
		"Denied":       {reason: "an older ClusterRole", heard: []error{denied}},
		"DeniedSince":  {reason: "the right was taken back", before: carriedBefore, heard: []error{nil, denied}},
		"DeniedOnce":   {reason: "as when a role is written anew", before: carriedBefore, heard: []error{nil, denied}, soon: true, carried: true, saw: true},
		"DeniedAgain":  {reason: "it was allowed between", before: carriedBefore, heard: []error{nil, denied, nil, denied}, soon: true, carried: true, saw: true},
		"DeniedStill":  {reason: "no answer is no other one", before: carriedBefore, heard: []error{nil, denied, errors.New("timeout"), denied}, soon: true},
		"AllowedSince": {reason: "the role was renewed", heard: []error{denied, denied, nil}, carried: true, saw: true},
		"Expired":      {reason: "it is listed anew", before: carriedBefore, heard: []error{nil, expired}, soon: true, carried: true, saw: true},
		"Away":         {reason: "it may be back in a moment", before: carriedBefore, heard: []error{nil, errors.New("timeout")}, soon: true, carried: true, saw: true},
		"AwayLong":     {reason: "whatever it is, such as pods that it cannot decrypt", before: carriedBefore, heard: []error{nil, errors.New("timeout"), apierrors.NewInternalError(errors.New("no key"))}},
		"Back":         {reason: "they are seen again", before: carriedBefore, heard: []error{nil, errors.New("timeout"), nil}, carried: true, saw: true},
		"TooMany":      {reason: "there is no room for them", before: carriedBefore, heard: []error{nil, tooMuch("pods")}},
	} {
		t.Run(name, func(t *testing.T) {
			writes, clk := 0, clocktesting.NewFakeClock(time.Unix(1000, 0))
			mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				writes++
				w.WriteHeader(http.StatusNotFound)
			}))
			defer mirror.Close()
			s, err := New(Config{Name: "east", UID: "u", Mirror: &rest.Config{Host: mirror.URL}, Physical: &rest.Config{}, Clock: clk})
			if err != nil {
				t.Fatal(err)
			}
			s.gate.open(s.gate.begin(), fine)
			for _, i := range []*informer{s.pods, s.shownPods} {
				if err := i.queue.Replace(nil, "1"); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(s.pods.Add(testPod("a", "Running", "True")), s.shownPods.Add(shownOf("a", "Running", "False"))); err != nil {
				t.Fatal(err)
			}
			for i, err := range tc.heard {
				if i > 0 {
					clk.Step(2 * time.Minute)
				}
				s.heardUnlessRefused(podsGVR)(err)
			}
			if !tc.soon {
				clk.Step(6 * time.Minute)
			}
			if got := slices.Contains(carriedResources(tc.before, s.carried()), "pods"); got != tc.carried {
				t.Errorf("%s: carried is %v", tc.reason, got)
			}
			if _, err := s.reconcilePod(t.Context(), keyOfPod(testPod("a", "", ""))); err != nil {
				t.Fatal(err)
			}
			if told := writes > 0; told != tc.saw {
				t.Errorf("%s: what was seen last is told: %v", tc.reason, told)
			}
			if waits := len(s.waiting.take()) > 0; waits == tc.saw {
				t.Errorf("%s: it waits until they are seen: %v", tc.reason, waits)
			}
		})
	}
}

// TestPodsSeenFirst: the first list of pods may take long, until one fails; and when it is there, the pods that waited for it are looked at.
func TestPodsSeenFirst(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Unix(1000, 0))
	s, err := New(Config{Name: "east", UID: "u", Mirror: &rest.Config{}, Physical: &rest.Config{}, Clock: clk})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		after  time.Duration
		heard  error
		hidden bool
	}{
		{after: time.Minute, heard: errors.New("timeout")},
		{after: time.Minute},
		{after: time.Minute, hidden: true},
	} {
		clk.Step(step.after)
		if step.heard != nil {
			s.heardUnlessRefused(podsGVR)(step.heard)
		}
		if got := s.hides(podsGVR); got != step.hidden {
			t.Errorf("after %s and %v: hidden is %v", step.after, step.heard, got)
		}
	}
	if s, err = New(Config{Name: "east", UID: "u", Mirror: &rest.Config{}, Physical: &rest.Config{}, Clock: clk}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.pods.queue.Replace(nil, "1"), s.shownPods.queue.Replace(nil, "1")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.reconcilePod(t.Context(), keyOfPod(testPod("a", "", ""))); err != nil {
		t.Fatal(err)
	}
	if clk.Step(4 * time.Minute); s.hides(podsGVR) {
		t.Error("a first list of four minutes hides them")
	}
	s.heardUnlessRefused(podsGVR)(nil)
	if s.queue.Len() != 1 || len(s.kick) != 1 {
		t.Errorf("%d keys wait, and %d heartbeats are asked for; want one of each", s.queue.Len(), len(s.kick))
	}
}

// TestNoPodIsMissed: one that waits until pods are seen is there for whoever finds at that moment that they are.
func TestNoPodIsMissed(t *testing.T) {
	s, err := New(Config{Name: "east", UID: "u", Mirror: &rest.Config{}, Physical: &rest.Config{}, Clock: clock.RealClock{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.pods.queue.Replace(nil, "1"), s.shownPods.queue.Replace(nil, "1")); err != nil {
		t.Fatal(err)
	}
	var working sync.WaitGroup
	s.state.mu.Lock() // it has not asked yet whether they are seen
	working.Go(func() {
		if _, err := s.reconcilePod(t.Context(), keyOfPod(testPod("a", "", ""))); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "it waits before it asks", func() string {
		s.waiting.mu.Lock()
		defer s.waiting.mu.Unlock()
		return fmt.Sprint(len(s.waiting.keys))
	}, "1")
	s.state.mu.Unlock()
	working.Wait()
}
