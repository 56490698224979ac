package kinds

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// namespaceLabelPrefix is that of labels which a namespace has downstream for those of its workspace's.
const namespaceLabelPrefix = "namespace.workload.atoll.dev/"

// NamespaceLabel is the label that a namespace has downstream for one that it has in its workspace, its name included
// (kubernetes.io/metadata.name). It is another one, since a physical cluster gives labels of namespaces a meaning of its own: what is
// exempt from its policies, for instance. It is a hash, since keys are longer than what is left of one.
func NamespaceLabel(key string) string {
	sum := sha256.Sum256([]byte(key))
	return namespaceLabelPrefix + hex.EncodeToString(sum[:8])
}

// NamespaceLabels are the labels that a namespace has downstream for those of its workspace's, so that NetworkPolicies select by them.
func NamespaceLabels(labels map[string]string) map[string]string {
	down := make(map[string]string, len(labels))
	for key, value := range labels {
		down[NamespaceLabel(key)] = value
	}
	return down
}

// IsNamespaceLabel says whether a label is a NamespaceLabel.
func IsNamespaceLabel(key string) bool { return strings.HasPrefix(key, namespaceLabelPrefix) }

// networkPolicyContent: wherever the user names namespaces, those of the workspace are meant, and those of no workspace, which the physical
// cluster has for itself (ingress controllers, monitoring, DNS); no other tenant's, whatever labels it gives them. From everywhere means
// from those, too. Addresses go as they are written.
func networkPolicyContent(root ctrlclient.Object) ctrlclient.Object {
	p := root.(*networkingv1.NetworkPolicy)
	out := &networkingv1.NetworkPolicy{Spec: *p.Spec.DeepCopy()}
	workspace := p.Annotations[lcctx.Annotation]
	for i := range out.Spec.Ingress {
		rule := &out.Spec.Ingress[i]
		if len(rule.From) == 0 {
			rule.From = []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}}}
		}
		rule.From = withoutOtherTenants(rule.From, workspace)
	}
	for i := range out.Spec.Egress {
		rule := &out.Spec.Egress[i]
		rule.To = withoutOtherTenants(rule.To, workspace) // to everywhere stays: who is there, is guarded there
	}
	return out
}

// withoutOtherTenants makes two of each peer that selects namespaces: the workspace's, by the labels they have there, and the physical
// cluster's own, by theirs. There are as many peers or more, so what lets in some does not come to let in all.
func withoutOtherTenants(peers []networkingv1.NetworkPolicyPeer, workspace string) (within []networkingv1.NetworkPolicyPeer) {
	for _, peer := range peers {
		if peer.NamespaceSelector == nil {
			within = append(within, peer)
			continue
		}
		ours, clusters := *peer.DeepCopy(), *peer.DeepCopy()
		ours.NamespaceSelector = &metav1.LabelSelector{MatchLabels: NamespaceLabels(peer.NamespaceSelector.MatchLabels)}
		ours.NamespaceSelector.MatchLabels[workloadv1alpha1.WorkspaceLabel] = workspace
		for _, e := range peer.NamespaceSelector.MatchExpressions {
			e.Key = NamespaceLabel(e.Key)
			ours.NamespaceSelector.MatchExpressions = append(ours.NamespaceSelector.MatchExpressions, e)
		}
		clusters.NamespaceSelector.MatchExpressions = append(clusters.NamespaceSelector.MatchExpressions,
			metav1.LabelSelectorRequirement{Key: workloadv1alpha1.WorkspaceLabel, Operator: metav1.LabelSelectorOpDoesNotExist})
		within = append(within, ours, clusters)
	}
	return within
}
