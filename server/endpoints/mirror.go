package endpoints

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apimachineryvalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	endpointsliceutil "k8s.io/endpointslice/util"
	"k8s.io/kubernetes/pkg/apis/discovery"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"

	"atoll.dev/atoll/internal/order"
)

// MirroringControllerName is what the label managed-by of a slice says that is made of somebody's Endpoints, as in Kubernetes.
const MirroringControllerName = "endpointslicemirroring-controller.k8s.io"

const (
	// Of what somebody has written into Endpoints there are slices, each with their labels and annotations, up to a size, in bytes, of all and of these, up to so many subsets, and up to as many ports of one. mostInMirror is of how many
	// addresses a slice is at most, Kubernetes' own.
	mostMirroredBytes    = 64 << 10
	mostMirroredMetadata = 4 << 10
	mostMirroredSubsets  = 20
	mostInMirror         = 1000
)

// isMirrored says whether a slice is one that is made here of somebody's Endpoints.
func isMirrored(slice metav1.Object) bool {
	return slice.GetLabels()[discoveryv1.LabelManagedBy] == MirroringControllerName
}

// isForMirrors says whether there are to be slices of somebody's Endpoints: those of a Service without a selector, unless he says no, or elects a leader by them.
func isForMirrors(service *corev1.Service, e *Endpoints) bool {
	if len(service.Spec.Selector) > 0 || e == nil || e.DeletionTimestamp != nil || IsOfPods(e) || e.Labels[discoveryv1.LabelSkipMirror] == "true" {
		return false
	}
	_, elects := e.Annotations[resourcelock.LeaderElectionRecordAnnotationKey]
	return !elects
}

// mirror adds to a plan what is to be written for the slices of somebody's Endpoints, of which there are those, to be as they are to.
func (p *plan) mirror(service *corev1.Service, e *Endpoints, existing []*discovery.EndpointSlice) error {
	var want []*discoveryv1.EndpointSlice
	if isForMirrors(service, e) {
		var left []event
		want, left = mirrors(e)
		p.say(left...)
	}
	slices.SortFunc(existing, func(a, b *discovery.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	there := map[string]*discoveryv1.EndpointSlice{}
	var others []*discovery.EndpointSlice
	for n, s := range existing {
		if n >= 2*mostMirroredSubsets+spareSlices || isLarge(s, mostInMirror) || e == nil || !metav1.IsControlledBy(s, e) {
			others = append(others, s)
			continue
		}
		own, err := whole(s)
		if err != nil {
			return err
		}
		if there[keyOf(own)] != nil {
			others = append(others, s)
			continue
		}
		there[keyOf(own)] = own
	}
	for _, next := range want {
		is := there[keyOf(next)]
		if is == nil {
			p.create = append(p.create, next)
			continue
		}
		delete(there, keyOf(next))
		if equality.Semantic.DeepEqual(is.Endpoints, next.Endpoints) && maps.Equal(is.Labels, next.Labels) && maps.Equal(is.Annotations, next.Annotations) {
			continue
		}
		p.before[is.Name] = is
		changed := is.DeepCopy()
		changed.GenerateName = "" // as Kubernetes' own controller leaves it
		changed.Labels, changed.Annotations, changed.Endpoints = next.Labels, next.Annotations, next.Endpoints
		p.update = append(p.update, changed)
	}
	for _, key := range slices.Sorted(maps.Keys(there)) {
		p.drop(there[key])
	}
	for _, s := range others {
		p.drop(s)
	}
	return nil
}

// keyOf tells the slices of one Endpoints apart. It is asked of few ports.
func keyOf(slice *discoveryv1.EndpointSlice) string {
	return string(slice.AddressType) + string(endpointsliceutil.NewPortMapKey(slices.Clone(slice.Ports)))
}

// mirrors are the slices of somebody's Endpoints, and what is said of what there is none of.
func mirrors(e *Endpoints) (all []*discoveryv1.EndpointSlice, left []event) {
	none := func(format string, args ...any) ([]*discoveryv1.EndpointSlice, []event) {
		return nil, []event{{"EndpointsNotMirrored", fmt.Sprintf(format, args...)}}
	}
	written := Endpoints{ObjectMeta: metav1.ObjectMeta{Labels: e.Labels, Annotations: e.Annotations}}
	metadata := written.Size()
	written.Subsets = e.Subsets
	switch size := written.Size(); {
	case size > mostMirroredBytes:
		return none("Its Endpoints have %d bytes, and of more than %d no EndpointSlices are made: write these.", size, mostMirroredBytes)
	case metadata > mostMirroredMetadata:
		return none("Its Endpoints have %d bytes of labels and annotations, which each of their EndpointSlices would have: of more than %d none are made.", metadata, mostMirroredMetadata)
	case len(e.Subsets) > mostMirroredSubsets:
		return none("Its Endpoints have %d subsets, and of more than %d no EndpointSlices are made: write these.", len(e.Subsets), mostMirroredSubsets)
	}
	known := map[string]*discoveryv1.EndpointSlice{}
	for i := range e.Subsets {
		subset := &e.Subsets[i]
		if len(subset.Ports) > mostPorts {
			return none("A subset of its Endpoints has %d ports, and of more than %d no EndpointSlices are made: write these.", len(subset.Ports), mostPorts)
		}
		into := map[discoveryv1.AddressType]*discoveryv1.EndpointSlice{}
		add := func(address *corev1.EndpointAddress, ready bool) {
			family := addressType(address.IP)
			if into[family] == nil {
				s := newMirror(e, subset, family)
				if key := keyOf(s); known[key] == nil {
					known[key] = s
					all = append(all, s)
				}
				into[family] = known[keyOf(s)]
			}
			mirrorAddress(into[family], address, ready)
		}
		for j := range subset.Addresses {
			add(&subset.Addresses[j], true)
		}
		for j := range subset.NotReadyAddresses {
			add(&subset.NotReadyAddresses[j], false)
		}
	}
	for _, s := range all {
		s.Endpoints = inOrder(s.Endpoints)
		if n := len(s.Endpoints); n > mostInMirror {
			s.Endpoints = s.Endpoints[:mostInMirror]
			left = []event{{"TooManyAddressesToMirror", fmt.Sprintf("A subset of its Endpoints has %d addresses, of which the first %d are in an EndpointSlice, as in Kubernetes: those that are ready.", n, mostInMirror)}}
		}
	}
	return all, left
}

// inOrder are the endpoints of a slice, those that are ready first, each once: one that is said to be both is not.
func inOrder(all []discoveryv1.Endpoint) []discoveryv1.Endpoint {
	type name struct {
		address string
		uid     types.UID
	}
	nameOf := func(e discoveryv1.Endpoint) name {
		return name{e.Addresses[0], ptr.Deref(e.TargetRef, corev1.ObjectReference{}).UID}
	}
	byName := map[name]discoveryv1.Endpoint{}
	for _, e := range all {
		if was, twice := byName[nameOf(e)]; twice && !*was.Conditions.Ready {
			continue
		}
		byName[nameOf(e)] = e
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b discoveryv1.Endpoint) int {
		return cmp.Or(order.First(*a.Conditions.Ready, *b.Conditions.Ready), cmp.Compare(a.Addresses[0], b.Addresses[0]), cmp.Compare(nameOf(a).uid, nameOf(b).uid))
	})
}

func addressType(ip string) discoveryv1.AddressType {
	if familyOf(ip) == corev1.IPv6Protocol {
		return discoveryv1.AddressTypeIPv6
	}
	return discoveryv1.AddressTypeIPv4
}

// newMirror is a slice of a subset's addresses of a family, without any.
func newMirror(e *Endpoints, subset *EndpointSubset, family discoveryv1.AddressType) *discoveryv1.EndpointSlice {
	prefix := e.Name + "-"
	if len(apimachineryvalidation.NameIsDNSSubdomain(prefix, true)) > 0 {
		prefix = e.Name
	}
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: e.Namespace, GenerateName: prefix, Labels: maps.Clone(e.Labels), Annotations: maps.Clone(e.Annotations),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(e, corev1.SchemeGroupVersion.WithKind("Endpoints"))},
		},
		AddressType: family, Ports: []discoveryv1.EndpointPort{}, Endpoints: []discoveryv1.Endpoint{},
	}
	if s.Labels == nil {
		s.Labels = map[string]string{}
	}
	s.Labels[discoveryv1.LabelServiceName], s.Labels[discoveryv1.LabelManagedBy] = e.Name, MirroringControllerName
	delete(s.Annotations, corev1.EndpointsLastChangeTriggerTime)
	delete(s.Annotations, corev1.LastAppliedConfigAnnotation)
	for _, port := range subset.Ports {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &port.Name, Port: &port.Port, Protocol: &port.Protocol, AppProtocol: port.AppProtocol})
	}
	return s
}

// mirrorAddress adds an address to a slice.
func mirrorAddress(s *discoveryv1.EndpointSlice, address *corev1.EndpointAddress, ready bool) {
	ip := netutils.ParseIPSloppy(address.IP) // as Kubernetes writes it
	if ip == nil {
		return
	}
	one := discoveryv1.Endpoint{Addresses: []string{ip.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}, TargetRef: address.TargetRef, NodeName: address.NodeName}
	if address.Hostname != "" {
		one.Hostname = &address.Hostname
	}
	s.Endpoints = append(s.Endpoints, one)
}
