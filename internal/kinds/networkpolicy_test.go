package kinds

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// TestNetworkPolicyLetsInNoOtherTenant: who is let in by what a user writes, of namespaces that a physical cluster has.
func TestNetworkPolicyLetsInNoOtherTenant(t *testing.T) {
	downstream := func(workspace string, upstream labels.Set) labels.Set {
		return labels.Merge(NamespaceLabels(upstream), labels.Set{
			workloadv1alpha1.WorkspaceLabel: workspace, "kubernetes.io/metadata.name": upstream["kubernetes.io/metadata.name"] + "-hash"})
	}
	namespaces := map[string]labels.Set{
		"front":       downstream("shop", labels.Set{"kubernetes.io/metadata.name": "front", "team": "a"}),
		"back":        downstream("shop", labels.Set{"kubernetes.io/metadata.name": "back", "team": "b"}),
		"other":       downstream("bank", labels.Set{"kubernetes.io/metadata.name": "front", "team": "a"}),
		"kube-system": {"kubernetes.io/metadata.name": "kube-system"},
		"monitoring":  {"kubernetes.io/metadata.name": "monitoring", "team": "a"},
	}
	named := func(name string) []networkingv1.NetworkPolicyPeer {
		return []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{MatchLabels: labels.Set{"kubernetes.io/metadata.name": name}}}}
	}
	matching := func(e ...metav1.LabelSelectorRequirement) []networkingv1.NetworkPolicyPeer {
		return []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{MatchExpressions: e}}}
	}
	for name, tc := range map[string]struct {
		reason string
		from   []networkingv1.NetworkPolicyPeer
		want   []string
	}{
		"Everywhere": {"another tenant is not where the user may let in from", nil, []string{"back", "front", "kube-system", "monitoring"}},
		"All":        {"the same", []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}}}, []string{"back", "front", "kube-system", "monitoring"}},
		"Name":       {"the workspace's names are meant", named("front"), []string{"front"}},
		"Clusters":   {"and the physical cluster's own", named("kube-system"), []string{"kube-system"}},
		"Below":      {"but not the name that a namespace has below", named("front-hash"), nil},
		"Label":      {"another tenant with the same label is not", matching(metav1.LabelSelectorRequirement{Key: "team", Operator: metav1.LabelSelectorOpIn, Values: []string{"a"}}), []string{"front", "monitoring"}},
		"NotLabel":   {"nor one without", matching(metav1.LabelSelectorRequirement{Key: "team", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"a"}}), []string{"back", "kube-system"}},
		"Ours":       {"nor by the label that tells tenants apart", matching(metav1.LabelSelectorRequirement{Key: workloadv1alpha1.WorkspaceLabel, Operator: metav1.LabelSelectorOpIn, Values: []string{"bank"}}), nil},
		"Pods":       {"pods alone are of the same namespace", []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			root := &networkingv1.NetworkPolicy{
				ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: map[string]string{lcctx.Annotation: "shop"}},
				Spec: networkingv1.NetworkPolicySpec{
					Ingress: []networkingv1.NetworkPolicyIngressRule{{From: tc.from}},
					Egress:  []networkingv1.NetworkPolicyEgressRule{{To: tc.from}},
				},
			}
			before := root.DeepCopy()
			k, _ := ByKind("NetworkPolicy")
			spec := k.Content(root).(*networkingv1.NetworkPolicy).Spec
			if diff := cmp.Diff(before, root); diff != "" {
				t.Fatalf("the root is changed: %s", diff)
			}
			if len(spec.Ingress[0].From) == 0 {
				t.Fatal("lets in everybody")
			}
			if len(tc.from) > 0 && len(spec.Egress[0].To) == 0 || len(tc.from) == 0 && len(spec.Egress[0].To) > 0 {
				t.Errorf("lets out to %v, want as many as in %v", spec.Egress[0].To, tc.from)
			}
			for direction, peers := range map[string][]networkingv1.NetworkPolicyPeer{"in": spec.Ingress[0].From, "out": spec.Egress[0].To} {
				if direction == "out" && len(tc.from) == 0 {
					continue
				}
				var got []string
				for _, name := range []string{"back", "front", "kube-system", "monitoring", "other"} {
					for _, peer := range peers {
						if peer.NamespaceSelector == nil {
							continue
						}
						selector, err := metav1.LabelSelectorAsSelector(peer.NamespaceSelector)
						if err != nil {
							t.Fatal(err)
						}
						if selector.Matches(namespaces[name]) {
							got = append(got, name)
						}
					}
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("%s: who is let %s: -want, +got:\n%s", tc.reason, direction, diff)
				}
			}
		})
	}
}
