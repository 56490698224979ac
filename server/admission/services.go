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

// Pods connects to what runs in physical clusters.
type Pods interface {
	// DialService connects to a port of one of the Ready pods that a Service of ctx's logical cluster selects, for as long as the connection is not closed. Its errors are for people.
	DialService(ctx context.Context, service *core.Service, port *core.ServicePort) (net.Conn, error)
}

// Services returns how the Services of a logical cluster are reached.
func Services(objects Objects, pods Pods) func(logicalcluster.Cluster) webhooks.Service {
	return func(cluster logicalcluster.Cluster) webhooks.Service {
		s := scopeOf(cluster, objects)
		return func(ctx context.Context, namespace, name string, port int32) (webhooks.Way, error) {
			return s.way(ctx, pods, namespace, name, port)
		}
	}
}

// way is a webhooks.Service.
func (s scope) way(ctx context.Context, pods Pods, namespace, name string, port int32) (webhooks.Way, error) {
	ctx = logicalcluster.WithCluster(ctx, s.cluster())
	obj, err := get(ctx, s.objects, schema.GroupResource{Resource: "services"}, namespace, name)
	if apierrors.IsNotFound(err) {
		return webhooks.Way{}, errors.New("the workspace has no such Service; make it, or give the webhook a url instead of a service")
	}
	if err != nil {
		return webhooks.Way{}, err
	}
	service, ok := obj.(*core.Service)
	if !ok {
		return webhooks.Way{}, fmt.Errorf("it is stored as a %T", obj)
	}
	addresses, ofPods, err := addressesOf(service, port, func() ([]*discovery.EndpointSlice, error) { return s.endpoints(ctx, namespace, name) })
	switch {
	case err != nil:
		return webhooks.Way{}, err
	case ofPods != nil:
		return webhooks.Way{Dial: func(ctx context.Context) (net.Conn, error) {
			return pods.DialService(logicalcluster.WithCluster(ctx, s.cluster()), service, ofPods)
		}}, nil
	}
	return webhooks.Way{Address: addresses[rand.IntN(len(addresses))]}, nil
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

// addressesOf returns where a port of a Service is reached, one address at least: the name that it stands for, or, of one without selector, its load balancer or what its EndpointSlices
// say. Of one with a selector it returns the port instead: what that finds runs in physical clusters, and where that is, or which balancer leads there, these say themselves. Of one that had a selector nothing is
// dialed that was found by it.
func addressesOf(service *core.Service, port int32, slicesOf func() ([]*discovery.EndpointSlice, error)) (addresses []string, ofPods *core.ServicePort, err error) {
	at := func(host string, port int32) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) }
	if service.Spec.Type == core.ServiceTypeExternalName {
		return []string{at(service.Spec.ExternalName, port)}, nil, nil
	}
	i := slices.IndexFunc(service.Spec.Ports, func(p core.ServicePort) bool { return p.Port == port && isTCP(p.Protocol) })
	if i < 0 {
		return nil, nil, fmt.Errorf("it has no port %d", port)
	}
	if len(service.Spec.Selector) > 0 {
		return nil, &service.Spec.Ports[i], nil
	}
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		if host := ingress.Hostname; host != "" {
			addresses = append(addresses, at(host, port))
		} else if ingress.IP != "" {
			addresses = append(addresses, at(ingress.IP, port))
		}
	}
	if len(addresses) > 0 {
		return addresses, nil, nil
	}
	endpointSlices, err := slicesOf()
	if err != nil {
		return nil, nil, err
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
		return nil, nil, fmt.Errorf("it has no selector, and no EndpointSlice has a ready endpoint for its port %d; write one, or give the webhook a url instead of a service", port)
	}
	return addresses, nil, nil
}

// isTCP says whether a protocol, TCP where it is left out, is that of webhooks.
func isTCP(p core.Protocol) bool { return p == core.ProtocolTCP || p == "" }
