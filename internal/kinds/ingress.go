package kinds

import (
	"cmp"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// ingressContent: the class is the physical cluster's of that name. A certificate is never in a Secret with tokens.
func ingressContent(root ctrlclient.Object) ctrlclient.Object {
	out := &networkingv1.Ingress{Spec: *root.(*networkingv1.Ingress).Spec.DeepCopy()}
	for i := range out.Spec.TLS {
		if tls := &out.Spec.TLS[i]; IsTokenSecret(tls.SecretName) {
			tls.SecretName = ""
		}
	}
	return out
}

// ingressDropped says what of an Ingress does not go down.
func ingressDropped(root ctrlclient.Object) (dropped []string) {
	for _, tls := range root.(*networkingv1.Ingress).Spec.TLS {
		if IsTokenSecret(tls.SecretName) {
			dropped = append(dropped, tokenSecretDropped("tls", tls.SecretName))
		}
	}
	return dropped
}

// ingressReferences are the certificates. Services, its backends, go where the namespace goes in any case.
func ingressReferences(obj ctrlclient.Object) []Reference {
	var refs []Reference
	for _, tls := range obj.(*networkingv1.Ingress).Spec.TLS {
		if tls.SecretName != "" && !IsTokenSecret(tls.SecretName) {
			refs = append(refs, Reference{"Secret", tls.SecretName})
		}
	}
	slices.SortFunc(refs, func(a, b Reference) int { return cmp.Compare(a.Name, b.Name) })
	return slices.Compact(refs)
}

func summariseIngress(obj ctrlclient.Object, view View) {
	all, known := addresses(view,
		func(leaf ctrlclient.Object) []networkingv1.IngressLoadBalancerIngress {
			return leaf.(*networkingv1.Ingress).Status.LoadBalancer.Ingress
		},
		func(a, b networkingv1.IngressLoadBalancerIngress) int {
			return cmp.Or(cmp.Compare(a.IP, b.IP), cmp.Compare(a.Hostname, b.Hostname))
		})
	if known {
		obj.(*networkingv1.Ingress).Status.LoadBalancer.Ingress = all
	}
}
