package splitter

import (
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

func policyOf(cluster, namespace string) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "guard", Namespace: namespace, UID: "guard", Annotations: map[string]string{lcctx.Annotation: cluster}}}
}

// TestPolicyGoesAlong: a NetworkPolicy goes where a Deployment goes that has a wish of its own, too: what it guards is there.
func TestPolicyGoesAlong(t *testing.T) {
	root := policyOf("shop", "front")
	m := newMirrored(t, root, placementOf("", "Placed", "mirror-west"), placementOf("web", "Placed", mirrorEast))
	m.look(t, key{"NetworkPolicy", client.KeyOf(root)})
	leaves := &networkingv1.NetworkPolicyList{}
	if err := m.objects.List(t.Context(), leaves, ctrlclient.MatchingLabels{workloadv1alpha1.WorkspaceLabel: "shop"}); err != nil || len(leaves.Items) != 1 {
		t.Errorf("leaves %v, %v; want one in the mirror of east", leaves.Items, err)
	}
}

// TestPolicyLeavesLast: and it is there until the last workload has left.
func TestPolicyLeavesLast(t *testing.T) {
	t.Parallel()
	_, web := pair("Deployment", "web")
	for name, tc := range map[string]struct {
		reason string
		stored []ctrlclient.Object
		want   bool
	}{
		"Placed":   {"something of its namespace may come", []ctrlclient.Object{placementOf("web", "Placed", mirrorEast)}, true},
		"Workload": {"a workload is there", []ctrlclient.Object{placementOf("web", "Placed", "mirror-west"), web}, true},
		"Left":     {"nothing is", []ctrlclient.Object{placementOf("web", "Placed", "mirror-west")}, false},
		"Nothing":  {"there is no Placement any more", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMirrored(t, tc.stored...)
			got, err := m.needed(t.Context(), m.sources["NetworkPolicy"], client.KeyOf(policyOf("shop", "front")), nil, policyOf(mirrorEast, "front-hash"))
			if err != nil || got != tc.want {
				t.Errorf("%s: needed is %v, %v", tc.reason, got, err)
			}
		})
	}
}
