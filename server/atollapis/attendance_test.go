package atollapis

import (
	"crypto/sha256"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/internal/attendance"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

const testURL = "https://atoll.example:6443"

type attendantNames = []attendance.Attendant

func TestAttendantsOfALogicalCluster(t *testing.T) {
	const initializing, ready, terminating = corev1alpha1.LogicalClusterPhaseInitializing, corev1alpha1.LogicalClusterPhaseReady, corev1alpha1.LogicalClusterPhaseTerminating
	type status = corev1alpha1.LogicalClusterStatus
	both := attendantNames{"root:a", "root:b"}
	initializes, terminates := attendance.As{Attendance: attendance.Initialization, Name: "root:a"}, attendance.As{Attendance: attendance.Termination, Name: "root:a"}
	for _, tc := range []struct {
		reason  string
		system  bool
		by      attendance.As // by whose path it comes
		before  status
		sent    status
		refused string
		want    status
	}{
		{"it removes itself", false, initializes, status{Phase: initializing, Initializers: both}, status{Phase: initializing, Initializers: attendantNames{"root:b"}}, "",
			status{Phase: initializing, Initializers: attendantNames{"root:b"}}},
		{"the last one ends it", false, initializes, status{Phase: initializing, Initializers: attendantNames{"root:a"}}, status{Phase: initializing}, "", status{Phase: ready}},
		{"not another", false, initializes, status{Phase: initializing, Initializers: both}, status{Phase: initializing, Initializers: attendantNames{"root:a"}}, "root:b removes itself", status{}},
		{"not all", false, initializes, status{Phase: initializing, Initializers: both}, status{Phase: initializing}, "root:b removes itself", status{}},
		{"none is added", false, initializes, status{Phase: initializing, Initializers: both}, status{Phase: initializing, Initializers: attendantNames{"root:b", "root:c"}}, "must not grow", status{}},
		{"nor one twice", false, initializes, status{Phase: initializing, Initializers: both}, status{Phase: initializing, Initializers: attendantNames{"root:b", "root:b"}}, "status.initializers[1]: Duplicate", status{}},
		{"nor by the system", true, attendance.As{}, status{Phase: ready}, status{Phase: ready, Initializers: both}, "must not grow", status{}},
		{"who comes by no path removes none", false, attendance.As{}, status{Phase: initializing, Initializers: both}, status{Phase: initializing, Initializers: attendantNames{"root:b"}}, "root:a removes itself", status{}},
		{"it changes nothing else", false, initializes, status{Phase: initializing, Initializers: both, URL: "x"}, status{Phase: ready, Initializers: both, URL: "y"}, "",
			status{Phase: initializing, Initializers: both, URL: "x"}},
		{"ready has no initializers", true, attendance.As{}, status{Phase: initializing, Initializers: both}, status{Phase: ready, Initializers: both}, "status.phase", status{}},
		{"a terminator removes itself", false, terminates, status{Phase: terminating, Terminators: both}, status{Phase: terminating, Terminators: attendantNames{"root:b"}}, "",
			status{Phase: terminating, Terminators: attendantNames{"root:b"}}},
		{"the last one ends nothing by itself", false, terminates, status{Phase: terminating, Terminators: attendantNames{"root:a"}}, status{Phase: terminating}, "", status{Phase: terminating}},
		{"not another terminator", false, terminates, status{Phase: terminating, Terminators: both}, status{Phase: terminating, Terminators: attendantNames{"root:a"}}, "root:b removes itself", status{}},
		{"no terminator is added", false, terminates, status{Phase: terminating, Terminators: both}, status{Phase: terminating, Terminators: attendantNames{"root:b", "root:c"}}, "must not grow", status{}},
		{"nor by the system", true, attendance.As{}, status{Phase: ready}, status{Phase: ready, Terminators: both}, "must not grow", status{}},
		{"an initializer removes no terminator of its name", false, initializes, status{Phase: initializing, Initializers: both, Terminators: both},
			status{Phase: initializing, Initializers: both, Terminators: attendantNames{"root:b"}}, "status.terminators: Forbidden: root:a removes itself", status{}},
		{"nor a terminator the initializer that never came", false, terminates, status{Phase: terminating, Initializers: both, Terminators: both},
			status{Phase: terminating, Initializers: attendantNames{"root:b"}, Terminators: both}, "status.initializers: Forbidden: root:a removes itself", status{}},
		{"what is deleted does not become ready", true, attendance.As{}, status{Phase: terminating, Initializers: both}, status{Phase: ready, Initializers: both}, "status.phase", status{}},
		{"a deletion waits for none", true, attendance.As{}, status{Phase: initializing, Initializers: both}, status{Phase: terminating, Initializers: both}, "", status{Phase: terminating, Initializers: both}},
	} {
		ctx := ann
		if tc.system {
			ctx = system
		}
		old := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: "cluster", ResourceVersion: "1", Labels: map[string]string{"mine": "x"}}, Status: tc.before}
		labelWaiting(old)
		obj := old.DeepCopy()
		obj.Status = tc.sent
		if tc.by.Attendance != nil {
			ctx = attendance.With(ctx, tc.by)
		}
		got, err := update(ctx, statusStrategy[*corev1alpha1.LogicalCluster]{strategyOf(logicalClusters())}, obj, old)
		wantError(t, tc.reason, err, tc.refused)
		if err != nil {
			continue
		}
		if diff := cmp.Diff(tc.want, got.Status); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
		}
		want := map[string]string{"mine": "x"}
		for phase, prefix := range map[corev1alpha1.LogicalClusterPhase]string{initializing: "initializer.internal.kcp.io/", terminating: "terminator.internal.kcp.io/"} {
			waitsFor := tc.want.Initializers
			if phase == terminating {
				waitsFor = tc.want.Terminators
			}
			for _, name := range waitsFor {
				if tc.want.Phase == phase {
					hash := fmt.Sprintf("%x", sha256.Sum224([]byte(name)))
					want["tenancy.kcp.io/phase"], want[(prefix + hash)[:63]] = string(phase), hash
				}
			}
		}
		if diff := cmp.Diff(want, got.Labels); diff != "" {
			t.Errorf("%s: labels (-want +got):\n%s", tc.reason, diff)
		}
	}
}

// The tenant of a workspace labels its LogicalCluster, but not so that attendants take it for one that waits for them.
func TestAttendantsAreNotForged(t *testing.T) {
	key, value := attendance.Initialization.Label("root:a")
	old := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: "cluster", ResourceVersion: "1"},
		Spec: corev1alpha1.LogicalClusterSpec{Use: corev1alpha1.LogicalClusterUseWorkspace}, Status: corev1alpha1.LogicalClusterStatus{Phase: corev1alpha1.LogicalClusterPhaseReady}}
	obj := old.DeepCopy()
	terminator, hash := attendance.Termination.Label("root:a")
	obj.Labels = map[string]string{key: value, terminator: hash, tenancyv1alpha1.PhaseLabel: "Initializing", "mine": "x"}
	obj.Annotations = map[string]string{tenancyv1alpha1.OwnerAnnotation: tenancyv1alpha1.OwnerValue("bob")}
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
	obj.Annotations[tenancyv1alpha1.OwnerAnnotation] = "bob"
	_, err = update(system, strategyOf(logicalClusters()), obj, old)
	wantError(t, "an administrator writes what cannot be read", err, tenancyv1alpha1.OwnerAnnotation)
	obj = old.DeepCopy()
	obj.Spec.Initializers = attendantNames{"root:a"}
	_, err = update(ann, strategyOf(logicalClusters()), obj, old)
	wantError(t, "initializers of birth stay", err, "spec.initializers")
	obj = old.DeepCopy()
	obj.Spec.Terminators = attendantNames{"root:a"}
	_, err = update(ann, strategyOf(logicalClusters()), obj, old)
	wantError(t, "and terminators", err, "spec.terminators")
}

func TestWhereAttendantsWork(t *testing.T) {
	ctx := lcctx.WithCluster(ann, lcctx.Cluster{Name: "shopname"})
	made, err := create(ctx, workspaceTypes(testURL), &tenancyv1alpha1.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: "team"}, Spec: tenancyv1alpha1.WorkspaceTypeSpec{Initializer: true, Terminator: true}})
	if err != nil {
		t.Fatal(err)
	}
	want := []tenancyv1alpha1.VirtualWorkspace{
		{URL: testURL + "/services/initializingworkspaces/shopname:team", Type: "initializing"},
		{URL: testURL + "/services/terminatingworkspaces/shopname:team", Type: "terminating"},
	}
	if diff := cmp.Diff(want, made.Status.VirtualWorkspaces); diff != "" {
		t.Errorf("of a type with an initializer (-want +got):\n%s", diff)
	}
	without := made.DeepCopy()
	without.Spec.Initializer, without.Spec.Terminator, without.ResourceVersion = false, false, "1"
	got, err := update(ctx, strategyOf(workspaceTypes(testURL)), without, made)
	if err != nil || got.Status.VirtualWorkspaces != nil {
		t.Errorf("of one without: %v, %v", got.Status.VirtualWorkspaces, err)
	}
}
