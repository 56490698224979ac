package atollapis

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

const testURL = "https://atoll.example:6443"

type initializerNames = []corev1alpha1.LogicalClusterInitializer

func TestInitializersOfALogicalCluster(t *testing.T) {
	const initializing, ready, terminating = corev1alpha1.LogicalClusterPhaseInitializing, corev1alpha1.LogicalClusterPhaseReady, corev1alpha1.LogicalClusterPhaseTerminating
	type status = corev1alpha1.LogicalClusterStatus
	both := initializerNames{"root:a", "root:b"}
	for _, tc := range []struct {
		reason  string
		system  bool
		by      string // the initializer by whose path it comes
		before  status
		sent    status
		refused string
		want    status
	}{
		{"it removes itself", false, "root:a", status{Phase: initializing, Initializers: both}, status{Phase: initializing, Initializers: initializerNames{"root:b"}}, "",
			status{Phase: initializing, Initializers: initializerNames{"root:b"}}},
		{"the last one ends it", false, "root:a", status{Phase: initializing, Initializers: initializerNames{"root:a"}}, status{Phase: initializing}, "", status{Phase: ready}},
		{"not another", false, "root:a", status{Phase: initializing, Initializers: both}, status{Phase: initializing, Initializers: initializerNames{"root:a"}}, "only removing root:a", status{}},
		{"not all", false, "root:a", status{Phase: initializing, Initializers: both}, status{Phase: initializing}, "only removing root:a", status{}},
		{"none is added", false, "root:a", status{Phase: initializing, Initializers: both}, status{Phase: initializing, Initializers: initializerNames{"root:b", "root:c"}}, "must not grow", status{}},
		{"nor by the system", true, "", status{Phase: ready}, status{Phase: ready, Initializers: both}, "must not grow", status{}},
		{"who comes by no path removes none", false, "", status{Phase: initializing, Initializers: both}, status{Phase: initializing, Initializers: initializerNames{"root:b"}}, "only removing", status{}},
		{"it changes nothing else", false, "root:a", status{Phase: initializing, Initializers: both, URL: "x"}, status{Phase: ready, Initializers: both, URL: "y"}, "",
			status{Phase: initializing, Initializers: both, URL: "x"}},
		{"ready has no initializers", true, "", status{Phase: initializing, Initializers: both}, status{Phase: ready, Initializers: both}, "status.phase", status{}},
		{"a deletion waits for none", true, "", status{Phase: initializing, Initializers: both}, status{Phase: terminating, Initializers: both}, "", status{Phase: terminating, Initializers: both}},
	} {
		ctx := ann
		if tc.system {
			ctx = system
		}
		old := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: "cluster", ResourceVersion: "1", Labels: map[string]string{"mine": "x"}}, Status: tc.before}
		labelInitializing(old)
		obj := old.DeepCopy()
		obj.Status = tc.sent
		got, err := update(lcctx.WithInitializer(ctx, tc.by), statusStrategy[*corev1alpha1.LogicalCluster]{strategyOf(logicalClusters())}, obj, old)
		wantError(t, tc.reason, err, tc.refused)
		if err != nil {
			continue
		}
		if diff := cmp.Diff(tc.want, got.Status); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
		}
		want := map[string]string{"mine": "x"}
		if tc.want.Phase == initializing {
			want[tenancyv1alpha1.PhaseLabel] = "Initializing"
			for _, i := range tc.want.Initializers {
				key, value := tenancyv1alpha1.InitializerLabel(i)
				want[key] = value
			}
		}
		if diff := cmp.Diff(want, got.Labels); diff != "" {
			t.Errorf("%s: labels (-want +got):\n%s", tc.reason, diff)
		}
	}
}

// The tenant of a workspace labels its LogicalCluster, but not so that initializers take it for one that waits for them.
func TestInitializersAreNotForged(t *testing.T) {
	key, value := tenancyv1alpha1.InitializerLabel("root:a")
	old := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: "cluster", ResourceVersion: "1"},
		Spec: corev1alpha1.LogicalClusterSpec{Use: corev1alpha1.LogicalClusterUseWorkspace}, Status: corev1alpha1.LogicalClusterStatus{Phase: corev1alpha1.LogicalClusterPhaseReady}}
	obj := old.DeepCopy()
	obj.Labels = map[string]string{key: value, tenancyv1alpha1.PhaseLabel: "Initializing", "mine": "x"}
	obj.Annotations = map[string]string{tenancyv1alpha1.OwnerAnnotation: "bob"}
	got, err := update(ann, strategyOf(logicalClusters()), obj, old)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"mine": "x"}, got.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if owner, is := got.Annotations[tenancyv1alpha1.OwnerAnnotation]; is {
		t.Errorf("its owner is %q now", owner)
	}
	obj = old.DeepCopy()
	obj.Spec.Initializers = initializerNames{"root:a"}
	_, err = update(ann, strategyOf(logicalClusters()), obj, old)
	wantError(t, "initializers of birth stay", err, "spec.initializers")
}

func TestWhereInitializersWork(t *testing.T) {
	ctx := lcctx.WithCluster(ann, lcctx.Cluster{Name: "shopname"})
	made, err := create(ctx, workspaceTypes(testURL), &tenancyv1alpha1.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: "team"}, Spec: tenancyv1alpha1.WorkspaceTypeSpec{Initializer: true}})
	if err != nil {
		t.Fatal(err)
	}
	want := []tenancyv1alpha1.VirtualWorkspace{{URL: testURL + "/services/initializingworkspaces/shopname:team"}}
	if diff := cmp.Diff(want, made.Status.VirtualWorkspaces); diff != "" {
		t.Errorf("of a type with an initializer (-want +got):\n%s", diff)
	}
	without := made.DeepCopy()
	without.Spec.Initializer, without.ResourceVersion = false, "1"
	got, err := update(ctx, strategyOf(workspaceTypes(testURL)), without, made)
	if err != nil || got.Status.VirtualWorkspaces != nil {
		t.Errorf("of one without: %v, %v", got.Status.VirtualWorkspaces, err)
	}
}
