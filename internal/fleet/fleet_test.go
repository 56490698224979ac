package fleet

import (
	"slices"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

func workspace(name, parent string) *corev1alpha1.LogicalCluster {
	lc := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{lcctx.Annotation: name, lcctx.PathAnnotation: "root:" + name}}}
	if parent != "" {
		lc.Spec.Owner = &corev1alpha1.LogicalClusterOwner{Resource: "workspaces", Cluster: parent}
	}
	return lc
}

func target(name, uid, dedicatedTo string, labels map[string]string) *workloadv1alpha1.SyncTarget {
	return &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid), Labels: labels},
		Spec: workloadv1alpha1.SyncTargetSpec{DedicatedTo: dedicatedTo}}
}

func allows(selector *metav1.LabelSelector, names ...string) *placementv1alpha1.PlacementPolicy {
	return &placementv1alpha1.PlacementPolicy{Spec: placementv1alpha1.PlacementPolicySpec{Allow: &placementv1alpha1.ClusterSelection{Names: names, Selector: selector}}}
}

func TestUsable(t *testing.T) {
	eu := map[string]string{"region": "eu"}
	inEU := &metav1.LabelSelector{MatchLabels: eu}
	own, root := target("east", "own", "", nil), target("east", "root", "", eu)
	west := target("west", "west", "", eu)
	for name, tc := range map[string]struct {
		reason   string
		targets  [][]*workloadv1alpha1.SyncTarget
		policies [][]*placementv1alpha1.PlacementPolicy
		want     []*workloadv1alpha1.SyncTarget
		fails    bool
	}{
		"all levels": {
			reason:  "a cluster serves the workspace that holds it, and all below",
			targets: [][]*workloadv1alpha1.SyncTarget{{own}, {west}}, want: []*workloadv1alpha1.SyncTarget{own, west},
		},
		"nearer": {
			reason:  "of a name the nearest counts",
			targets: [][]*workloadv1alpha1.SyncTarget{{own}, {root, west}}, want: []*workloadv1alpha1.SyncTarget{own, west},
		},
		"nearer, dedicated to another": {
			reason:  "what does not exist here hides nothing",
			targets: [][]*workloadv1alpha1.SyncTarget{{target("east", "x", "root:bank", nil)}, {root}}, want: []*workloadv1alpha1.SyncTarget{root},
		},
		"dedicated": {
			reason:  "by path or by name",
			targets: [][]*workloadv1alpha1.SyncTarget{{target("a", "a", "root:shop", nil)}, {target("b", "b", "shop", nil), target("c", "c", "root", nil)}},
			want:    []*workloadv1alpha1.SyncTarget{target("a", "a", "root:shop", nil), target("b", "b", "shop", nil)},
		},
		"every policy": {
			reason:   "nobody below widens what is allowed above",
			targets:  [][]*workloadv1alpha1.SyncTarget{{own}, {west}},
			policies: [][]*placementv1alpha1.PlacementPolicy{{allows(nil, "east", "west")}, {allows(inEU)}}, want: []*workloadv1alpha1.SyncTarget{west},
		},
		"nearer, not allowed": {
			reason:   "the farther one is still hidden",
			targets:  [][]*workloadv1alpha1.SyncTarget{{own}, {root}},
			policies: [][]*placementv1alpha1.PlacementPolicy{{}, {allows(inEU)}},
		},
		"unreadable": {
			reason:   "nobody knows what it allows",
			targets:  [][]*workloadv1alpha1.SyncTarget{{own}},
			policies: [][]*placementv1alpha1.PlacementPolicy{{allows(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "?"}}})}}, fails: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Usable(workspace("shop", "root"), tc.targets, tc.policies)
			same := slices.EqualFunc(got, tc.want, func(a, b *workloadv1alpha1.SyncTarget) bool { return a.UID == b.UID })
			if !same || (err != nil) != tc.fails {
				t.Errorf("%s: got %v, %v, want %v", tc.reason, got, err, tc.want)
			}
		})
	}
}

func TestLineage(t *testing.T) {
	known := map[logicalcluster.Name]*corev1alpha1.LogicalCluster{"org": workspace("org", "root"), "root": workspace("root", ""), "a": workspace("a", "b"), "b": workspace("b", "a")}
	get := func(name logicalcluster.Name) (*corev1alpha1.LogicalCluster, bool) {
		lc, ok := known[name]
		return lc, ok
	}
	for _, tc := range []struct {
		of       *corev1alpha1.LogicalCluster
		want     []logicalcluster.Name
		complete bool
	}{
		{workspace("shop", "org"), []logicalcluster.Name{"shop", "org", "root"}, true},
		{workspace("shop", "unknown"), []logicalcluster.Name{"shop"}, false},
		{known["a"], []logicalcluster.Name{"a", "b"}, false},
	} {
		if got, complete := Lineage(tc.of, get); !slices.Equal(got, tc.want) || complete != tc.complete {
			t.Errorf("above %v are %v, complete %v", tc.want[0], got, complete)
		}
	}
}
