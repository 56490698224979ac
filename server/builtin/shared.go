package builtin

import (
	"net/netip"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"k8s.io/kubernetes/pkg/apis/networking"
	"k8s.io/kubernetes/pkg/apis/scheduling"
	schedulingv1 "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	"k8s.io/kubernetes/pkg/controlplane/controller/defaultservicecidr"

	"atoll.dev/atoll/server/rbac"
)

// SharedObjects are the objects that upstream writes into a cluster at its start, for the storage's overlay: the
// bootstrap RBAC policy, the system's PriorityClasses, and the ServiceCIDR that says where cluster IPs come from
// (serviceIPRange as in Config; invalid means the default). There is no flow control configuration: requests are
// limited for the whole server, not by objects of a logical cluster.
func SharedObjects(serviceIPRange netip.Prefix) (rbac.Objects, error) {
	if !serviceIPRange.IsValid() {
		serviceIPRange = DefaultServiceIPRange
	}
	objects, err := rbac.Bootstrap()
	if err != nil {
		return nil, err
	}
	for _, class := range schedulingv1.SystemPriorityClasses() {
		if err := objects.Add(scheduling.Resource("priorityclasses"), class, &scheduling.PriorityClass{}); err != nil {
			return nil, err
		}
	}
	cidr := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: defaultservicecidr.DefaultServiceCIDRName},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{serviceIPRange.Masked().String()}},
		Status: networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{{
			Type:    networkingv1.ServiceCIDRConditionReady,
			Status:  metav1.ConditionTrue,
			Reason:  "Shared",
			Message: "Cluster IPs of workspaces come from this range, and from no other ServiceCIDR",
		}}},
	}
	return objects, objects.Add(networking.Resource("servicecidrs"), cidr, &networking.ServiceCIDR{})
}
