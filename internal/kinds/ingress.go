package kinds

import (
	"cmp"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// ingressContent: the class is the physical cluster's of that name.
func ingressContent(root ctrlclient.Object) ctrlclient.Object {
	return &networkingv1.Ingress{Spec: *root.(*networkingv1.Ingress).Spec.DeepCopy()}
}

// ingressReferences are the certificates. Services, its backends, go where the namespace goes in any case.
func ingressReferences(obj ctrlclient.Object) []Reference {
	var refs []Reference
	for _, tls := range obj.(*networkingv1.Ingress).Spec.TLS {
		if tls.SecretName != "" {
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
