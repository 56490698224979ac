package workspaces

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

func TestWorthALook(t *testing.T) {
	const ready, scheduling, terminating = corev1alpha1.LogicalClusterPhaseReady, corev1alpha1.LogicalClusterPhaseScheduling, corev1alpha1.LogicalClusterPhaseTerminating
	in := func(phase corev1alpha1.LogicalClusterPhase) *tenancyv1alpha1.Workspace {
		return &tenancyv1alpha1.Workspace{Status: tenancyv1alpha1.WorkspaceStatus{Phase: phase}}
	}
	going := func(phase corev1alpha1.LogicalClusterPhase, finalizers ...string) *tenancyv1alpha1.Workspace {
		w := in(phase)
		w.DeletionTimestamp, w.Finalizers = &metav1.Time{}, finalizers
		return w
	}
	importing := func() *tenancyv1alpha1.Workspace {
		w := in(scheduling)
		w.Annotations = map[string]string{tenancyv1alpha1.ImportingAnnotation: "since"}
		return w
	}
	for _, tc := range []struct {
		reason   string
		old, new *tenancyv1alpha1.Workspace
		want     bool
	}{
		{"a new one has to be made", nil, in(scheduling), true},
		{"at start, what is ready needs nothing", nil, in(ready), false},
		{"at start, a deletion goes on", nil, going(terminating, "a"), true},
		{"our own write on the way", in(scheduling), in(scheduling), false},
		{"our last write", in(scheduling), in(ready), false},
		{"somebody took the phase away", in(ready), in(scheduling), true},
		{"a user deletes it", in(ready), going(ready, "a"), true},
		{"our report on the deletion", going(ready, "a"), going(terminating, "a"), false},
		{"somebody else's finalizer is gone", going(terminating, "a", "b"), going(terminating, "a"), true},
		{"it is gone", going(terminating), nil, false},
		{"an import is over", importing(), in(scheduling), true},
		{"an import goes on", importing(), importing(), false},
	} {
		if got := worthALook(client.Event[*tenancyv1alpha1.Workspace]{Old: tc.old, New: tc.new}); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.reason, got, tc.want)
		}
	}
}

func TestPathOf(t *testing.T) {
	parent := func(name, path string) *corev1alpha1.LogicalCluster {
		c := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{lcctx.Annotation: name}}}
		if path != "" {
			c.Annotations[lcctx.PathAnnotation] = path
		}
		return c
	}
	w := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}
	for _, tc := range []struct {
		reason string
		parent *corev1alpha1.LogicalCluster
		want   string
	}{
		{"below the root", parent("root", "root"), "root:team"},
		{"further below", parent("abc", "root:org"), "root:org:team"},
		{"outside the tree", parent("abc", ""), "abc:team"},
	} {
		if got := pathOf(tc.parent, w).String(); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.reason, got, tc.want)
		}
	}
}

func TestOwnerSubject(t *testing.T) {
	for _, tc := range []struct{ reason, owner, want string }{
		{"a person", "ann", "ann"},
		{"a name that looks like nothing special", "system:ann", "system:ann"},
		{"a service account is the parent's, not the workspace's own of that name",
			"system:serviceaccount:default:robot", "system:kcp:serviceaccount:abc:default:robot"},
	} {
		want := rbacv1.Subject{Kind: "User", APIGroup: "rbac.authorization.k8s.io", Name: tc.want}
		if diff := cmp.Diff(want, ownerSubject(tc.owner, logicalcluster.Name("abc"))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
		}
	}
}

func TestRemains(t *testing.T) {
	for _, tc := range []struct {
		reason          string
		remains         remains
		nothing         bool
		wantReason, msg string
	}{
		{"nothing is left", remains{}, true, "DeletingContent", "Deleting objects"},
		{"names are in order, whatever order they came in", remains{workspaces: []string{"b", "a"}}, false,
			"ContentRemains", "Waiting for workspaces a, b"},
		{"few names are enough", remains{workspaces: []string{"g", "f", "e", "d", "c", "b", "a"}}, false,
			"ContentRemains", "Waiting for workspaces a, b, c, d, e and 2 more"},
		{"everything at once", remains{workspaces: []string{"a"}, syncTargets: []string{"east"}, clusters: []string{"west"}}, false,
			"ContentRemains", "Waiting for workspaces a, SyncTargets east, physical clusters to remove what runs there: west"},
		{"each leaf that goes changes nothing", remains{clusters: []string{"west", "east", "west"}}, false,
			"ContentRemains", "Waiting for physical clusters to remove what runs there: east, west"},
	} {
		if got := tc.remains.nothing(); got != tc.nothing {
			t.Errorf("%s: nothing is %v", tc.reason, got)
		}
		c := tc.remains.condition(7)
		if c.Reason != tc.wantReason || c.Message != tc.msg || c.Status != metav1.ConditionFalse || c.ObservedGeneration != 7 {
			t.Errorf("%s: %+v, want %s: %s", tc.reason, c, tc.wantReason, tc.msg)
		}
	}
}
