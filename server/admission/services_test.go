package admission

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/discovery"

	"atoll.dev/atoll/internal/logicalcluster"
)

// TestAddressesOf: a Service is called where it says that it is outside of physical clusters, at the port that is asked for.
func TestAddressesOf(t *testing.T) {
	ports := []core.ServicePort{{Name: "metrics", Port: 8080}, {Name: "quic", Port: 443, Protocol: core.ProtocolUDP}, {Name: "hook", Port: 443, Protocol: core.ProtocolTCP}}
	at := func(name string, port int32, endpoints ...discovery.Endpoint) *discovery.EndpointSlice {
		return &discovery.EndpointSlice{Ports: []discovery.EndpointPort{{Name: new("metrics"), Port: new(int32(9))}, {Name: &name, Port: new(int32(8)), Protocol: new(core.ProtocolUDP)}, {Name: &name, Port: &port}}, Endpoints: endpoints}
	}
	endpoint := func(ready *bool, addresses ...string) discovery.Endpoint {
		return discovery.Endpoint{Addresses: addresses, Conditions: discovery.EndpointConditions{Ready: ready}}
	}
	pod := func(address string) discovery.Endpoint {
		return discovery.Endpoint{Addresses: []string{address}, TargetRef: &core.ObjectReference{Kind: "Pod", Name: "web"}}
	}
	made := at("hook", 9443, endpoint(nil, "192.0.2.3"))
	made.Labels = map[string]string{discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}
	balanced := core.LoadBalancerStatus{Ingress: []core.LoadBalancerIngress{{IP: "192.0.2.1"}, {Hostname: "lb.example", IP: "192.0.2.2"}, {}}}
	for name, tc := range map[string]struct {
		spec     core.ServiceSpec
		balancer core.LoadBalancerStatus
		slices   []*discovery.EndpointSlice
		want     []string
		selects  string // name of the port
		refusal  string
	}{
		"external name":           {spec: core.ServiceSpec{Type: core.ServiceTypeExternalName, ExternalName: "hooks.example"}, want: []string{"hooks.example:443"}},
		"load balancer of pods":   {spec: core.ServiceSpec{Ports: ports, Selector: map[string]string{"a": "b"}}, balancer: balanced, selects: "hook"},
		"load balancer":           {spec: core.ServiceSpec{Ports: ports}, balancer: balanced, want: []string{"192.0.2.1:443", "lb.example:443"}},
		"selector":                {spec: core.ServiceSpec{Ports: ports, Selector: map[string]string{"a": "b"}}, slices: []*discovery.EndpointSlice{at("hook", 9443, endpoint(nil, "192.0.2.3"))}, selects: "hook"},
		"selector, another port":  {spec: core.ServiceSpec{Ports: ports[:2], Selector: map[string]string{"a": "b"}}, refusal: "no port 443"},
		"another port":            {spec: core.ServiceSpec{Ports: ports[:1]}, balancer: balanced, refusal: "no port 443"},
		"endpoints":               {spec: core.ServiceSpec{Ports: ports}, slices: []*discovery.EndpointSlice{at("hook", 9443, endpoint(nil, "2001:db8::1", "2001:db8::2")), at("hook", 9444, endpoint(new(true), "hooks.example"))}, want: []string{"[2001:db8::1]:9443", "hooks.example:9444"}},
		"endpoints not ready":     {spec: core.ServiceSpec{Ports: ports}, slices: []*discovery.EndpointSlice{at("hook", 9443, endpoint(new(false), "192.0.2.3"), endpoint(nil))}, refusal: "no EndpointSlice has a ready endpoint for its port 443"},
		"endpoints of other port": {spec: core.ServiceSpec{Ports: ports}, slices: []*discovery.EndpointSlice{at("other", 9443, endpoint(nil, "192.0.2.3"))}, refusal: "no EndpointSlice"},
		"endpoints of a selector": {spec: core.ServiceSpec{Ports: ports}, slices: []*discovery.EndpointSlice{made}, refusal: "no EndpointSlice has a ready endpoint for its port 443"},
		"endpoints that are pods": {spec: core.ServiceSpec{Ports: ports}, slices: []*discovery.EndpointSlice{at("hook", 9443, pod("192.0.2.3"), endpoint(nil, "192.0.2.4"), pod("192.0.2.5"))}, want: []string{"192.0.2.4:9443"}},
		"port without name":       {spec: core.ServiceSpec{Ports: []core.ServicePort{{Port: 443}}}, slices: []*discovery.EndpointSlice{{Ports: []discovery.EndpointPort{{Port: new(int32(9443))}, {}}, Endpoints: []discovery.Endpoint{endpoint(nil, "192.0.2.3")}}}, want: []string{"192.0.2.3:9443"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, selects, err := addressesOf(&core.Service{Spec: tc.spec, Status: core.ServiceStatus{LoadBalancer: tc.balancer}}, 443, func() ([]*discovery.EndpointSlice, error) { return tc.slices, nil })
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if (selects != nil) != (tc.selects != "") || selects != nil && selects.Name != tc.selects {
				t.Errorf("the port of the pods it selects is %+v, want %q", selects, tc.selects)
			}
			if tc.refusal == "" && err != nil || tc.refusal != "" && (err == nil || !strings.Contains(err.Error(), tc.refusal)) {
				t.Errorf("%v, want %q", err, tc.refusal)
			}
		})
	}
}

// hooks are Objects: a Service, and EndpointSlices of two.
type hooks struct{}

func (hooks) Get(ctx context.Context, resource schema.GroupResource, namespace, name string, _ bool) (runtime.Object, error) {
	if cluster, _ := logicalcluster.ClusterFrom(ctx); cluster.Name != "shop" || resource != core.Resource("services") || namespace+"/"+name != "default/hook" {
		return nil, apierrors.NewNotFound(resource, name)
	}
	return &core.Service{Spec: core.ServiceSpec{Ports: []core.ServicePort{{Port: 443}}}}, nil
}

// selecting is hooks, whose Service has a selector.
type selecting struct{ hooks }

func (s selecting) Get(ctx context.Context, resource schema.GroupResource, namespace, name string, cached bool) (runtime.Object, error) {
	obj, err := s.hooks.Get(ctx, resource, namespace, name, cached)
	if service, ok := obj.(*core.Service); ok {
		service.Spec.Selector = map[string]string{"app": "hook"}
	}
	return obj, err
}

// dialing are Pods, which say what they are asked for.
type dialing struct{}

func (dialing) DialService(ctx context.Context, service *core.Service, port *core.ServicePort) (net.Conn, error) {
	cluster, _ := logicalcluster.ClusterFrom(ctx)
	return nil, fmt.Errorf("of %s, %v, %d", cluster.Name, service.Spec.Selector, port.Port)
}

func (hooks) List(_ context.Context, resource schema.GroupResource, namespace string, _ bool) ([]runtime.Object, error) {
	if resource != discovery.Resource("endpointslices") || namespace != "default" {
		return nil, nil
	}
	var all []runtime.Object
	for service, address := range map[string]string{"hook": "192.0.2.1", "other": "192.0.2.2"} {
		all = append(all, &discovery.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			Ports:      []discovery.EndpointPort{{Port: new(int32(9443))}}, Endpoints: []discovery.Endpoint{{Addresses: []string{address}}},
		})
	}
	return all, nil
}

// TestServices: a Service is looked for in its own logical cluster, and has its own EndpointSlices.
func TestServices(t *testing.T) {
	of := Services(hooks{}, dialing{})
	if got, err := of(logicalcluster.Cluster{Name: "shop"})(t.Context(), "default", "hook", 443); got.Address != "192.0.2.1:9443" || got.Dial != nil || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := of(logicalcluster.Cluster{Name: "bank"})(t.Context(), "default", "hook", 443); err == nil || !strings.HasPrefix(err.Error(), "the workspace has no such Service; ") {
		t.Errorf("in another workspace: %v", err)
	}
	// What a selector finds is in that logical cluster, too, whoever calls.
	got, err := Services(selecting{}, dialing{})(logicalcluster.Cluster{Name: "shop"})(t.Context(), "default", "hook", 443)
	if err != nil || got.Address != "" || got.Dial == nil {
		t.Fatalf("%+v, %v", got, err)
	}
	if _, err := got.Dial(t.Context()); err == nil || err.Error() != "of shop, map[app:hook], 443" {
		t.Errorf("it connects to what is %v", err)
	}
}
