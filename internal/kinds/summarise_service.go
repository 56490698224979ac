package kinds

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

func summariseService(obj ctrlclient.Object, view View) {
	all, known := addresses(view,
		func(leaf ctrlclient.Object) []corev1.LoadBalancerIngress {
			return leaf.(*corev1.Service).Status.LoadBalancer.Ingress
		},
		func(a, b corev1.LoadBalancerIngress) int {
			return cmp.Or(cmp.Compare(a.IP, b.IP), cmp.Compare(a.Hostname, b.Hostname))
		})
	if known {
		obj.(*corev1.Service).Status.LoadBalancer.Ingress = all
	}
}

// addresses are the load balancers' of all assigned clusters that are heard of, each once, sorted. They are not known if none of
// them is heard of, and then what was known before stays: an address that may work is better than none.
func addresses[A any](view View, of func(leaf ctrlclient.Object) []A, compare func(a, b A) int) (all []A, known bool) {
	heard, assigned := false, false
	for _, l := range view.Leaves {
		assigned = assigned || l.Assigned
		if !l.Assigned || l.Lost || l.Object == nil || l.Object.GetDeletionTimestamp() != nil {
			continue
		}
		heard = true
		for _, a := range of(l.Object) {
			if !slices.ContainsFunc(all, func(have A) bool { return equality.Semantic.DeepEqual(have, a) }) {
				all = append(all, a)
			}
		}
	}
	slices.SortStableFunc(all, compare)
	return all, heard || !assigned
}
