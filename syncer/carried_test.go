package syncer

import (
	"errors"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

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
