package kinds

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// summariseService: the load balancer's addresses are those of all assigned clusters that are heard of, each once,
// sorted. If none of them is heard of, what was known stays: an address that may work is better than none.
func summariseService(obj ctrlclient.Object, view View) {
	root := obj.(*corev1.Service)
	var ingress []corev1.LoadBalancerIngress
	heard, assigned := false, false
	for _, l := range view.Leaves {
		assigned = assigned || l.Assigned
		if !l.Assigned || l.Lost || l.Object == nil || l.Object.GetDeletionTimestamp() != nil {
			continue
		}
		heard = true
		for _, i := range l.Object.(*corev1.Service).Status.LoadBalancer.Ingress {
			if !slices.ContainsFunc(ingress, func(have corev1.LoadBalancerIngress) bool { return equality.Semantic.DeepEqual(have, i) }) {
				ingress = append(ingress, *i.DeepCopy())
			}
		}
	}
	if assigned && !heard {
		return
	}
	slices.SortStableFunc(ingress, func(a, b corev1.LoadBalancerIngress) int {
		return cmp.Or(cmp.Compare(a.IP, b.IP), cmp.Compare(a.Hostname, b.Hostname))
	})
	root.Status.LoadBalancer.Ingress = ingress
}
