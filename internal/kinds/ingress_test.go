package kinds

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestIngressGoesDown(t *testing.T) {
	root := &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Name: "web", ResourceVersion: "7"},
		Spec: networkingv1.IngressSpec{
			IngressClassName: ptr.To("public"),
			DefaultBackend:   &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: "web"}},
			TLS:              []networkingv1.IngressTLS{{SecretName: "b"}, {Hosts: []string{"of.the.controllers.own"}}, {SecretName: "a"}, {SecretName: "b"}},
		},
		Status: networkingv1.IngressStatus{LoadBalancer: networkingv1.IngressLoadBalancerStatus{Ingress: []networkingv1.IngressLoadBalancerIngress{{IP: "10.0.0.1"}}}},
	}
	k, _ := ByKind("Ingress")
	if diff := cmp.Diff(&networkingv1.Ingress{Spec: root.Spec}, k.Content(root)); diff != "" {
		t.Errorf("its spec goes down whole, and nothing else: -want, +got:\n%s", diff)
	}
	if diff := cmp.Diff([]Reference{{"Secret", "a"}, {"Secret", "b"}}, k.ReferencesOf(root)); diff != "" {
		t.Errorf("its certificates follow it, each once: -want, +got:\n%s", diff)
	}
}

func TestSummariseIngress(t *testing.T) {
	leaf := func(cluster string, change func(*Leaf), ips ...string) Leaf {
		i := &networkingv1.Ingress{}
		for _, ip := range ips {
			i.Status.LoadBalancer.Ingress = append(i.Status.LoadBalancer.Ingress, networkingv1.IngressLoadBalancerIngress{IP: ip})
		}
		l := Leaf{Cluster: cluster, Assigned: true, Object: i}
		change(&l)
		return l
	}
	asIs, away, left := func(*Leaf) {}, func(l *Leaf) { l.Lost = true }, func(l *Leaf) { l.Assigned = false }
	tests := map[string]struct {
		reason string
		leaves []Leaf
		want   []string
	}{
		"Union":   {"each address once, sorted", []Leaf{leaf("east", asIs, "10.0.0.2", "10.0.0.1"), leaf("west", asIs, "10.0.0.1")}, []string{"10.0.0.1", "10.0.0.2"}},
		"Left":    {"a cluster that is being left takes no new connections", []Leaf{leaf("east", left, "10.0.0.1"), leaf("west", asIs, "10.0.0.2")}, []string{"10.0.0.2"}},
		"Away":    {"nor does one that is not heard of", []Leaf{leaf("east", away, "10.0.0.1"), leaf("west", asIs, "10.0.0.2")}, []string{"10.0.0.2"}},
		"AllAway": {"but an address that may work is better than none", []Leaf{leaf("east", away, "10.0.0.1")}, []string{"old"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			root := &networkingv1.Ingress{}
			root.Status.LoadBalancer.Ingress = []networkingv1.IngressLoadBalancerIngress{{IP: "old"}}
			summariseIngress(root, View{Leaves: tc.leaves})
			var got []string
			for _, i := range root.Status.LoadBalancer.Ingress {
				got = append(got, i.IP)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: addresses: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}
