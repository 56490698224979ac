package endpoints

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/endpointslicemirroring"
	"k8s.io/utils/ptr"
)

func selectorless() *corev1.Service {
	return service(func(s *corev1.Service) { s.Spec.Selector = nil })
}

func theirs(subsets ...EndpointSubset) *Endpoints {
	return &Endpoints{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web", UID: "uid-of-endpoints", ResourceVersion: "1", Labels: map[string]string{"of": "web"}, Annotations: map[string]string{"note": "kept", corev1.LastAppliedConfigAnnotation: "{}"}},
		Subsets:    subsets,
	}
}

func subset(port int32, addresses ...string) EndpointSubset {
	s := EndpointSubset{Ports: []corev1.EndpointPort{{Name: fmt.Sprint("p", port), Port: port, Protocol: corev1.ProtocolTCP}}}
	for _, ip := range addresses {
		s.Addresses = append(s.Addresses, corev1.EndpointAddress{IP: ip})
	}
	return s
}

// ofMirrors are the endpoints of slices with each of their ports, and what their slices say.
func ofMirrors(all []*discoveryv1.EndpointSlice) (said []string) {
	for _, s := range all {
		for _, e := range s.Endpoints {
			for _, p := range s.Ports {
				said = append(said, fmt.Sprintf("%s %v %v %s=%d/%s/%s %v %v on %q called %q of %v", s.AddressType, s.Labels, s.Annotations, *p.Name, *p.Port, *p.Protocol, ptr.Deref(p.AppProtocol, ""), e.Addresses, *e.Conditions.Ready,
					ptr.Deref(e.NodeName, ""), ptr.Deref(e.Hostname, ""), e.TargetRef))
			}
		}
	}
	slices.Sort(said)
	return said
}

// kubernetesMirrors are the slices that Kubernetes' own controller makes of Endpoints, so many writes of them.
func kubernetesMirrors(t *testing.T, s *corev1.Service, e *Endpoints, writes int) (all []*discoveryv1.EndpointSlice) {
	t.Helper()
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
	kube := fake.NewClientset(s, e)
	nameSlices(kube)
	made, err := kube.DiscoveryV1().EndpointSlices(s.Namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	shared := informers.NewSharedInformerFactory(kube, 0)
	c := endpointslicemirroring.NewController(ctx, shared.Core().V1().Endpoints(), shared.Discovery().V1().EndpointSlices(), shared.Core().V1().Services(), mostInMirror, kube, 0)
	shared.Start(ctx.Done())
	var wg sync.WaitGroup
	wg.Go(func() { c.Run(ctx, 1) })
	defer func() { cancel(); wg.Wait(); shared.Shutdown() }()
	for range writes {
		all = append(all, (<-made.ResultChan()).Object.(*discoveryv1.EndpointSlice))
	}
	return all
}

// TestMirrorsAsKubernetes: what somebody writes into Endpoints of a Service without a selector EndpointSlices say as those of Kubernetes' own controller.
func TestMirrorsAsKubernetes(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 3))
		one := func(all ...string) string { return all[random.IntN(len(all))] }
		var subsets []EndpointSubset
		for i := range random.IntN(3) + 1 {
			s := subset(int32(80 + i))
			s.Ports[0].AppProtocol = ptr.To(one("h2c", "http"))
			for j := range random.IntN(5) + 1 {
				a := corev1.EndpointAddress{IP: one(fmt.Sprintf("192.0.%d.%d", i, j), fmt.Sprintf("2001:db8::%d:%d", i+1, j+1)), Hostname: one("", "a"), NodeName: ptr.To("east")}
				if random.IntN(2) == 0 {
					a.TargetRef = &corev1.ObjectReference{Kind: "Machine", Name: one("m", "n")}
				}
				if random.IntN(3) == 0 {
					s.NotReadyAddresses = append(s.NotReadyAddresses, a)
				} else {
					s.Addresses = append(s.Addresses, a)
				}
			}
			subsets = append(subsets, s)
		}
		w := newWorld()
		w.older = theirs(subsets...)
		w.step(t, selectorless(), nil)
		for _, s := range w.all() {
			if !metav1.IsControlledBy(s, w.older) || s.GenerateName != "web-" {
				t.Errorf("seed %d: %+v", seed, s.ObjectMeta)
			}
		}
		if diff := cmp.Diff(ofMirrors(kubernetesMirrors(t, selectorless(), w.older, len(w.slices))), ofMirrors(w.all())); diff != "" {
			t.Fatalf("seed %d, -Kubernetes +here:\n%s", seed, diff)
		}
		if p := w.step(t, selectorless(), nil); !p.empty() {
			t.Fatalf("seed %d: written again", seed)
		}
	}
}

// TestMirrorsFollow: slices follow Endpoints, and there are none of those that are not to be mirrored.
func TestMirrorsFollow(t *testing.T) {
	w := newWorld()
	has := func(when string, want ...string) {
		t.Helper()
		var got []string
		for _, s := range w.slices {
			for _, e := range s.Endpoints {
				got = append(got, fmt.Sprintf("%s:%d", e.Addresses[0], *s.Ports[0].Port))
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s there are %v, want %v", when, got, want)
		}
	}
	w.older = theirs(subset(80, "192.0.2.1", "192.0.2.2"))
	w.step(t, selectorless(), nil)
	has("at first", "192.0.2.1:80", "192.0.2.2:80")
	w.older = theirs(subset(80, "192.0.2.2"), subset(81, "192.0.2.3"), subset(81, "192.0.2.4", "192.0.2.3"))
	w.step(t, selectorless(), nil)
	has("with other addresses", "192.0.2.2:80", "192.0.2.3:81", "192.0.2.4:81")
	if len(w.slices) != 2 {
		t.Errorf("there are %d slices, want one for the ports of each", len(w.slices))
	}
	for name, change := range map[string]func(*Endpoints){
		"that are skipped":         func(e *Endpoints) { e.Labels[discoveryv1.LabelSkipMirror] = "true" },
		"of an election":           func(e *Endpoints) { e.Annotations[resourcelock.LeaderElectionRecordAnnotationKey] = "{}" },
		"that are being deleted":   func(e *Endpoints) { e.DeletionTimestamp = &metav1.Time{Time: noon} },
		"of pods, without address": func(e *Endpoints) { e.Labels[endpointsManagedBy] = endpointsControllerName; e.Subsets = nil },
	} {
		before := maps.Clone(w.slices)
		older := w.older
		w.older = older.DeepCopy()
		change(w.older)
		w.step(t, selectorless(), nil)
		has("of Endpoints " + name)
		w.slices, w.older = before, older
	}
	before := maps.Clone(w.slices)
	w.step(t, service(nil), []*corev1.Pod{pod("a", "10.1.1.1", nil)})
	has("of a Service that has a selector now", "10.1.1.1:8080")
	w.slices = before
	w.older = nil
	w.step(t, selectorless(), nil)
	has("of no Endpoints")
}

// TestMirrorsAreBounded: of what is large there are no slices, which is said, and none of a slice's labels and annotations becomes many.
func TestMirrorsAreBounded(t *testing.T) {
	addresses := func(n int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf("192.0.%d.%d", i/250, i%250))
		}
		return all
	}
	ports := func(n int) EndpointSubset {
		s := subset(1, "192.0.2.1")
		for i := 1; i < n; i++ {
			s.Ports = append(s.Ports, corev1.EndpointPort{Name: fmt.Sprint("p", i+1), Port: int32(i + 1), Protocol: corev1.ProtocolTCP})
		}
		return s
	}
	subsets := func(n int) (all []EndpointSubset) {
		for i := range n {
			all = append(all, subset(int32(i+1), "192.0.2.1"))
		}
		return all
	}
	noted := func(n int) *Endpoints {
		e := theirs(subset(80, "192.0.2.1"))
		e.Annotations["note"] = strings.Repeat("x", n)
		return e
	}
	for name, tc := range map[string]struct {
		e         *Endpoints
		slices, n int
		said      string
	}{
		"as many addresses as a slice may have": {theirs(subset(80, addresses(mostInMirror)...)), 1, mostInMirror, ""},
		"one more":                              {theirs(subset(80, addresses(mostInMirror+1)...)), 1, mostInMirror, "TooManyAddressesToMirror"},
		"in two of the same ports":              {theirs(subset(80, addresses(mostInMirror)...), subset(80, "198.51.100.1")), 1, mostInMirror, "TooManyAddressesToMirror"},
		"too large":                             {theirs(subset(80, addresses(8000)...)), 0, 0, "EndpointsNotMirrored"},
		"as many subsets as may be":             {theirs(subsets(mostMirroredSubsets)...), mostMirroredSubsets, mostMirroredSubsets, ""},
		"one subset more":                       {theirs(subsets(mostMirroredSubsets + 1)...), 0, 0, "EndpointsNotMirrored"},
		"as many ports as may be":               {theirs(ports(mostPorts)), 1, 1, ""},
		"one port more":                         {theirs(ports(mostPorts + 1)), 0, 0, "EndpointsNotMirrored"},
		"a note":                                {noted(mostMirroredMetadata - 200), 1, 1, ""},
		"a long note":                           {noted(mostMirroredMetadata), 0, 0, "EndpointsNotMirrored"},
	} {
		w := newWorld()
		w.older = tc.e
		p := w.step(t, selectorless(), nil)
		n, said := 0, ""
		for _, s := range w.slices {
			n += len(s.Endpoints)
		}
		if len(p.left) > 0 {
			said = p.left[0].reason
		}
		if len(w.slices) != tc.slices || n != tc.n || said != tc.said || len(p.left) > 1 {
			t.Errorf("%s: %d slices of %d endpoints, and it is said %+v; want %d of %d, and %q", name, len(w.slices), n, p.left, tc.slices, tc.n, tc.said)
		}
		if p := w.step(t, selectorless(), nil); !p.empty() {
			t.Errorf("%s: written again", name)
		}
	}

	// What somebody labels as made here.
	w := newWorld()
	w.older = theirs(subset(80, "192.0.2.1"))
	w.step(t, selectorless(), nil)
	like := w.all()[0]
	for i := range 300 {
		other := like.DeepCopy()
		other.Name, other.GenerateName = "", "other-"
		switch i % 3 {
		case 0:
			other.OwnerReferences = nil
		case 1:
			other.Ports = slices.Repeat(other.Ports, mostPorts+1)
		}
		w.store(other)
	}
	for more := true; more; {
		more = w.step(t, selectorless(), nil).more
	}
	if left := w.all(); len(left) != 1 || len(left[0].Endpoints) != 1 || !metav1.IsControlledBy(left[0], w.older) {
		t.Errorf("%d slices are left, the first is %+v", len(left), left[0])
	}
}
