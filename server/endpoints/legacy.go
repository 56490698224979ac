package endpoints

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/endpointslice"
	endpointsliceutil "k8s.io/endpointslice/util"
	endpointsutil "k8s.io/kubernetes/pkg/api/v1/endpoints"
	netutils "k8s.io/utils/net"
)

const (
	// endpointsManagedBy is the label of Endpoints that are made here, and endpointsControllerName what it says, as in Kubernetes.
	endpointsManagedBy      = "endpoints.kubernetes.io/managed-by"
	endpointsControllerName = "endpoint-controller"
	// mostAddresses is how many addresses Endpoints have at most, in all subsets together, as in Kubernetes; truncated is what their annotation says of more.
	mostAddresses = 1000
	truncated     = "truncated"
)

// Endpoints, and the EndpointSubset of which they have several, are deprecated, and here as long as Kubernetes serves them: older clients read nothing else.
type (
	//lint:ignore SA1019 older clients read it
	Endpoints = corev1.Endpoints
	//lint:ignore SA1019 older clients read it
	EndpointSubset = corev1.EndpointSubset
)

// IsOfPods says whether Endpoints are made here, of pods alone. Who takes such ones for a Service without selector, and writes addresses into them, has made them his.
func IsOfPods(e *Endpoints) bool {
	if !isManagedEndpoints(e) {
		return false
	}
	isPod := func(a corev1.EndpointAddress) bool { return a.TargetRef != nil && a.TargetRef.Kind == "Pod" }
	return !slices.ContainsFunc(e.Subsets, func(s EndpointSubset) bool {
		return slices.ContainsFunc(s.Addresses, func(a corev1.EndpointAddress) bool { return !isPod(a) }) ||
			slices.ContainsFunc(s.NotReadyAddresses, func(a corev1.EndpointAddress) bool { return !isPod(a) })
	})
}

func isManagedEndpoints(o metav1.Object) bool {
	return o.GetLabels()[endpointsManagedBy] == endpointsControllerName
}

// older is what is to be written of the Endpoints of a Service.
type older struct {
	is     *Endpoints        // nil if there are none
	next   *Endpoints        // nil if nothing is to be written
	less   func() *Endpoints // in the place of next, without what comes; nil if nothing goes
	remove bool
}

func (o *older) empty() bool { return o.next == nil && !o.remove }

// decideOlder returns what to write for the Endpoints of a Service to have those pods, which can be endpoints, the first first; more says that others are left out already. What follows it is due since at.
func decideOlder(service *corev1.Service, pods []*corev1.Pod, more bool, is *Endpoints, at time.Time) older {
	o := older{is: is}
	if !hasEndpoints(service) {
		o.remove = is != nil && IsOfPods(is)
		return o
	}
	pods = slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool {
		return !endpointsliceutil.ShouldPodBeInEndpoints(pod, service.Spec.PublishNotReadyAddresses)
	})
	subsets, over := subsetsOf(service, pods)
	capacity := ""
	if over || more {
		capacity = truncated
	}
	labels := labelsOf(service)
	if is != nil && sameSubsets(is.Subsets, subsets) && maps.Equal(is.Labels, labels) {
		if said, says := is.Annotations[corev1.EndpointsOverCapacity]; said == capacity && says == (capacity != "") {
			return o
		}
	}
	next := &Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: service.Namespace, Name: service.Name}}
	if is != nil {
		next = is.DeepCopy()
	}
	next.Subsets, next.Labels = subsets, labels
	annotate := func(key, value string) {
		switch {
		case value == "":
			delete(next.Annotations, key)
		case next.Annotations == nil:
			next.Annotations = map[string]string{key: value}
		default:
			next.Annotations[key] = value
		}
	}
	due := ""
	if !at.IsZero() {
		due = at.UTC().Format(time.RFC3339Nano)
	}
	annotate(corev1.EndpointsLastChangeTriggerTime, due)
	annotate(corev1.EndpointsOverCapacity, capacity)
	o.next = next
	o.less = func() *Endpoints {
		if is == nil {
			return nil
		}
		known := sets.New[types.UID]()
		for _, s := range is.Subsets {
			for _, a := range slices.Concat(s.Addresses, s.NotReadyAddresses) {
				if a.TargetRef != nil {
					known.Insert(a.TargetRef.UID)
				}
			}
		}
		less := is.DeepCopy()
		less.Subsets, _ = subsetsOf(service, slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool { return !known.Has(pod.UID) }))
		if sameSubsets(is.Subsets, less.Subsets) {
			return nil
		}
		return less
	}
	return o
}

// labelsOf are those of a Service's Endpoints.
func labelsOf(service *corev1.Service) map[string]string {
	all := maps.Clone(service.Labels)
	if all == nil {
		all = map[string]string{}
	}
	if ip := service.Spec.ClusterIP; ip == "" || ip == corev1.ClusterIPNone {
		all[corev1.IsHeadlessService] = ""
	} else {
		delete(all, corev1.IsHeadlessService)
	}
	all[endpointsManagedBy] = endpointsControllerName
	return all
}

// subsetsOf are those of the first of the pods, as many as may be, and whether that is not all.
func subsetsOf(service *corev1.Service, pods []*corev1.Pod) (subsets []EndpointSubset, over bool) {
	for n := min(len(pods), mostAddresses); ; {
		subsets = nil
		for _, pod := range pods[:n] {
			subsets = append(subsets, ofPod(service, pod)...)
		}
		// What it is called with is bounded: it holds each address of each port.
		subsets = endpointsutil.RepackSubsets(subsets)
		addresses := 0
		for _, s := range subsets {
			addresses += len(s.Addresses) + len(s.NotReadyAddresses)
		}
		if addresses <= mostAddresses {
			return subsets, n < len(pods)
		}
		n = n * mostAddresses / addresses // some are in several
	}
}

// ofPod is a pod with each port of a Service that it has.
func ofPod(service *corev1.Service, pod *corev1.Pod) (subsets []EndpointSubset) {
	address := corev1.EndpointAddress{
		IP:        addressOf(service, pod),
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
	}
	if pod.Spec.NodeName != "" { // Kubernetes' own controller has a name that is empty, of which its server would let nobody have any
		address.NodeName = &pod.Spec.NodeName
	}
	if endpointsliceutil.ShouldSetHostname(pod, service) {
		address.Hostname = pod.Spec.Hostname
	}
	add := func(ports ...corev1.EndpointPort) {
		s := EndpointSubset{Ports: ports}
		if service.Spec.PublishNotReadyAddresses || endpointsliceutil.IsPodReady(pod) {
			s.Addresses = []corev1.EndpointAddress{address}
		} else {
			s.NotReadyAddresses = []corev1.EndpointAddress{address}
		}
		subsets = append(subsets, s)
	}
	if len(service.Spec.Ports) == 0 && service.Spec.ClusterIP == corev1.ClusterIPNone {
		add()
	}
	for i := range service.Spec.Ports {
		port := &service.Spec.Ports[i]
		if number, err := endpointslice.FindPort(pod, port); err == nil {
			add(corev1.EndpointPort{Name: port.Name, Port: int32(number), Protocol: port.Protocol, AppProtocol: port.AppProtocol}) //nolint:gosec // ports of pods are valid
		}
	}
	return subsets
}

// addressOf is that of a pod of the first family of a Service, or else the first that it has.
func addressOf(service *corev1.Service, pod *corev1.Pod) string {
	ip := pod.Status.PodIPs[0].IP
	if len(service.Spec.IPFamilies) > 0 {
		if i := slices.IndexFunc(pod.Status.PodIPs, func(ip corev1.PodIP) bool { return familyOf(ip.IP) == service.Spec.IPFamilies[0] }); i >= 0 {
			ip = pod.Status.PodIPs[i].IP
		}
	}
	return netutils.ParseIPSloppy(ip).String() // as Kubernetes writes it
}

var withoutVersions = conversion.EqualitiesOrDie(func(a, b corev1.ObjectReference) bool {
	a.ResourceVersion, b.ResourceVersion = "", ""
	return a == b
})

func sameSubsets(a, b []EndpointSubset) bool { return withoutVersions.DeepEqual(a, b) }
