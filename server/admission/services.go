package admission

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/discovery"
	"k8s.io/utils/ptr"

	"atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/endpoints"
	"atoll.dev/atoll/server/webhooks"
)

// Services returns where the Services of a logical cluster are reached.
func Services(objects Objects) func(logicalcluster.Cluster) webhooks.Service {
	return func(cluster logicalcluster.Cluster) webhooks.Service { return scopeOf(cluster, objects).where }
}

// where is a webhooks.Service.
func (s scope) where(ctx context.Context, namespace, name string, port int32) (string, error) {
	ctx = logicalcluster.WithCluster(ctx, s.cluster())
	obj, err := get(ctx, s.objects, schema.GroupResource{Resource: "services"}, namespace, name)
	if apierrors.IsNotFound(err) {
		return "", errors.New("the workspace has no such Service")
	}
	if err != nil {
		return "", err
	}
	service, ok := obj.(*core.Service)
	if !ok {
		return "", fmt.Errorf("it is stored as a %T", obj)
	}
	addresses, err := addressesOf(service, port, func() ([]*discovery.EndpointSlice, error) { return s.endpoints(ctx, namespace, name) })
	if err != nil {
		return "", err
	}
	return addresses[rand.IntN(len(addresses))], nil
}

// endpoints returns the EndpointSlices of a Service.
func (s scope) endpoints(ctx context.Context, namespace, service string) ([]*discovery.EndpointSlice, error) {
	stored, err := s.objects.List(ctx, schema.GroupResource{Group: discovery.GroupName, Resource: "endpointslices"}, namespace, true)
	if err != nil {
		return nil, err
	}
	var own []*discovery.EndpointSlice
	for _, obj := range stored {
		if slice, ok := obj.(*discovery.EndpointSlice); ok && slice.Labels[discoveryv1.LabelServiceName] == service {
			own = append(own, slice)
		}
	}
	return own, nil
}

// addressesOf returns where a port of a Service is reached, one address at least: the name or the load balancer that it stands for, or
// what the EndpointSlices of one without selector say. What a selector finds runs in physical clusters, and where that is these say themselves: of one that
// had a selector nothing is dialed that was found by it.
func addressesOf(service *core.Service, port int32, slicesOf func() ([]*discovery.EndpointSlice, error)) ([]string, error) {
	at := func(host string, port int32) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) }
	if service.Spec.Type == core.ServiceTypeExternalName {
		return []string{at(service.Spec.ExternalName, port)}, nil
	}
	i := slices.IndexFunc(service.Spec.Ports, func(p core.ServicePort) bool { return p.Port == port && isTCP(p.Protocol) })
	if i < 0 {
		return nil, fmt.Errorf("it has no port %d", port)
	}
	var addresses []string
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		if host := ingress.Hostname; host != "" {
			addresses = append(addresses, at(host, port))
		} else if ingress.IP != "" {
			addresses = append(addresses, at(ingress.IP, port))
		}
	}
	if len(addresses) > 0 {
		return addresses, nil
	}
	if len(service.Spec.Selector) > 0 {
		return nil, errors.New("it runs in a physical cluster, where this server cannot reach it")
	}
	endpointSlices, err := slicesOf()
	if err != nil {
		return nil, err
	}
	for _, slice := range endpointSlices {
		if slice.Labels[discoveryv1.LabelManagedBy] == endpoints.ControllerName {
			continue
		}
		for _, p := range slice.Ports {
			if p.Port == nil || ptr.Deref(p.Name, "") != service.Spec.Ports[i].Name || !isTCP(ptr.Deref(p.Protocol, "")) {
				continue
			}
			for _, endpoint := range slice.Endpoints {
				if of := endpoint.TargetRef; of != nil && of.Kind == "Pod" {
					continue
				}
				if ready := endpoint.Conditions.Ready; (ready == nil || *ready) && len(endpoint.Addresses) > 0 {
					addresses = append(addresses, at(endpoint.Addresses[0], *p.Port))
				}
			}
		}
	}
	if len(addresses) == 0 {
		return nil, fmt.Errorf("it has no selector, and no EndpointSlice has a ready endpoint for its port %d", port)
	}
	return addresses, nil
}

// isTCP says whether a protocol, TCP where it is left out, is that of webhooks.
func isTCP(p core.Protocol) bool { return p == core.ProtocolTCP || p == "" }
