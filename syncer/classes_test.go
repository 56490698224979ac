package syncer

import (
	"errors"
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/classes"
)

// TestClassesTold: what was told holds while a physical cluster is away, and not when it takes the right to see it back. That is never trouble.
func TestClassesTold(t *testing.T) {
	storage := classes.All[0].GVR
	denied := apierrors.NewForbidden(storage.GroupResource(), "", errors.New("no role"))
	before := []workloadv1alpha1.ClassesOf{{Resource: "storageclasses.storage.k8s.io", Items: []workloadv1alpha1.Class{{Name: "fast"}}}}
	for name, tc := range map[string]struct {
		before []workloadv1alpha1.ClassesOf
		heard  []error
		want   int
	}{
		"nothing known":       {},
		"nothing known again": {before: before, want: 1},
		"an earlier role":     {heard: []error{denied}},
		"taken back":          {before: before, heard: []error{denied}},
		"away":                {before: before, heard: []error{errors.New("timeout")}, want: 1},
		"too much":            {before: before, heard: []error{tooMuch("too much")}},
		"not listed yet":      {before: before, heard: []error{nil}, want: 1},
	} {
		s, err := New(Config{Name: "east", UID: "east", Mirror: &rest.Config{}, Physical: &rest.Config{}, Clock: clock.RealClock{}})
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range tc.heard {
			s.heardClasses(storage)(err)
		}
		if got := s.classesSeen().status(tc.before); len(got) != tc.want {
			t.Errorf("%s: %v is told, want %d", name, got, tc.want)
		}
		if blind := s.blind(); len(blind) > 0 {
			t.Errorf("%s: it is trouble: %v", name, blind)
		}
	}
	for _, k := range classes.All {
		if !slices.ContainsFunc(ClusterRules(), func(r rbacv1.PolicyRule) bool {
			return slices.Contains(r.APIGroups, k.GVR.Group) && slices.Contains(r.Resources, k.GVR.Resource) && slices.Equal(r.Verbs, []string{"list", "watch"})
		}) {
			t.Errorf("no right to read %s", k.GVR)
		}
	}
}
