package endpoints

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	endpointsutil "k8s.io/kubernetes/pkg/api/v1/endpoints"
	"k8s.io/kubernetes/pkg/controller/endpoint"
	"k8s.io/utils/ptr"
)

// kubernetesEndpoints are the Endpoints that Kubernetes' own controller makes of a Service.
func kubernetesEndpoints(t *testing.T, s *corev1.Service, pods []*corev1.Pod) *Endpoints {
	t.Helper()
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
	kube := fake.NewClientset(s)
	for _, p := range pods {
		if err := kube.Tracker().Add(p); err != nil {
			t.Fatal(err)
		}
	}
	made, err := kube.CoreV1().Endpoints(s.Namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all := informers.NewSharedInformerFactory(kube, 0)
	c := endpoint.NewEndpointController(ctx, all.Core().V1().Pods(), all.Core().V1().Services(), all.Core().V1().Endpoints(), kube, 0)
	all.Start(ctx.Done())
	var wg sync.WaitGroup
	wg.Go(func() { c.Run(ctx, 1) })
	defer func() { cancel(); wg.Wait(); all.Shutdown() }()
	return (<-made.ResultChan()).Object.(*Endpoints)
}

// TestEndpointsAsKubernetes: Endpoints say what those of Kubernetes' own controller say, and what is written once is not written again.
func TestEndpointsAsKubernetes(t *testing.T) {
	for seed := range uint64(25) {
		random := rand.New(rand.NewPCG(seed, 2))
		one := func(all ...string) string { return all[random.IntN(len(all))] }
		s := service(func(s *corev1.Service) {
			switch random.IntN(5) {
			case 0:
				s.Spec.ClusterIP = corev1.ClusterIPNone
			case 1:
				s.Spec.ClusterIP, s.Spec.Ports = corev1.ClusterIPNone, nil
			case 2:
				s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
			case 3:
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "named", Port: 81, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromString("a"), AppProtocol: ptr.To("h2c")})
			}
			s.Spec.PublishNotReadyAddresses = random.IntN(3) == 0
		})
		var pods []*corev1.Pod
		for i := range random.IntN(30) {
			pods = append(pods, pod(fmt.Sprintf("web-%d", i), fmt.Sprintf("10.1.1.%d", random.IntN(20)), func(p *corev1.Pod) {
				p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: fmt.Sprintf("2001:db8::%d", i)})
				p.Spec.NodeName = one("east", "west", "")
				p.Spec.Hostname, p.Spec.Subdomain = one("", "a"), one("", "web")
				p.Status.Phase = corev1.PodPhase(one("Running", "Running", "Failed"))
				if random.IntN(2) == 0 {
					notReady(p)
				}
				if random.IntN(5) == 0 {
					p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: noon}, []string{"example.com/stays"}
				}
				p.Spec.Containers = []corev1.Container{{Name: "c", Ports: []corev1.ContainerPort{{Name: one("a", "b"), ContainerPort: int32(random.IntN(3) + 1), Protocol: corev1.ProtocolTCP}}}}
			}))
		}
		w := newWorld()
		w.step(t, s, pods)
		// A pod without a Node is of none: there it has an empty name, of which Kubernetes' server would store none of the Endpoints.
		named := func(a corev1.EndpointAddress) *string {
			if ptr.Deref(a.NodeName, "") == "" {
				return nil
			}
			return a.NodeName
		}
		want := kubernetesEndpoints(t, s, pods)
		for i := range want.Subsets {
			for j, a := range want.Subsets[i].Addresses {
				want.Subsets[i].Addresses[j].NodeName = named(a)
			}
			for j, a := range want.Subsets[i].NotReadyAddresses {
				want.Subsets[i].NotReadyAddresses[j].NodeName = named(a)
			}
		}
		want.Subsets = endpointsutil.RepackSubsets(want.Subsets) // their order is by all that is in them
		if diff := cmp.Diff(want.Subsets, w.older.Subsets); diff != "" {
			t.Fatalf("seed %d, -Kubernetes +here:\n%s", seed, diff)
		}
		if diff := cmp.Diff(want.Labels, w.older.Labels); diff != "" {
			t.Fatalf("seed %d, -Kubernetes +here:\n%s", seed, diff)
		}
		if diff := cmp.Diff(want.Annotations, w.older.Annotations); diff != "" {
			t.Fatalf("seed %d, -Kubernetes +here:\n%s", seed, diff)
		}
		if p := w.step(t, s, pods); !p.empty() {
			t.Fatalf("seed %d: written again", seed)
		}
	}
}

// addressesIn are how many addresses Endpoints have.
func addressesIn(t *testing.T, e *Endpoints) (ready, notReady int) {
	t.Helper()
	for _, s := range e.Subsets {
		if len(s.Addresses)+len(s.NotReadyAddresses) == 0 {
			t.Error("a subset is empty, which nobody may write")
		}
		ready, notReady = ready+len(s.Addresses), notReady+len(s.NotReadyAddresses)
	}
	return ready, notReady
}

// TestOverCapacity: of more addresses than Endpoints may have there are those that are ready, in no empty subset, and it is said.
func TestOverCapacity(t *testing.T) {
	for name, tc := range map[string]struct {
		pods, ready int
		ports       int
		min         int
		over        bool
	}{
		"as many as may be":          {mostAddresses, 500, 1, mostAddresses, false},
		"one more":                   {mostAddresses + 1, 500, 1, mostAddresses, true},
		"many more":                  {3000, 1200, 1, mostAddresses, true},
		"each port is of other pods": {900, 900, 3, mostAddresses * 9 / 10, true},
	} {
		s := service(nil)
		for i := 1; i < tc.ports; i++ {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(i), Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromString(fmt.Sprint("p", i))})
		}
		var pods []*corev1.Pod
		for i := range tc.pods {
			pods = append(pods, pod(fmt.Sprintf("web-%04d", i), fmt.Sprintf("10.1.%d.%d", i/250, i%250), func(p *corev1.Pod) {
				if i >= tc.ready {
					notReady(p)
				}
				p.Spec.Containers = []corev1.Container{{Name: "c", Ports: []corev1.ContainerPort{{Name: fmt.Sprint("p", i%tc.ports), ContainerPort: 1, Protocol: corev1.ProtocolTCP}}}}
			}))
		}
		w := newWorld()
		w.step(t, s, pods)
		ready, not := addressesIn(t, w.older)
		if n := ready + not; n > mostAddresses || n < tc.min || ready < min(tc.ready, tc.min) || (w.older.Annotations[corev1.EndpointsOverCapacity] == truncated) != tc.over {
			t.Errorf("%s: %d addresses are ready and %d are not, annotated %v; want at least %d, ready ones first, and that it says so: %v", name, ready, not, w.older.Annotations, tc.min, tc.over)
		}
		if p := w.step(t, s, pods); !p.empty() {
			t.Errorf("%s: written again", name)
		}
		w.step(t, s, pods[:3])
		if ready, not := addressesIn(t, w.older); ready+not > 3*tc.ports || w.older.Annotations[corev1.EndpointsOverCapacity] != "" {
			t.Errorf("%s, and then three pods: %d, annotated %v", name, ready+not, w.older.Annotations)
		}
	}
}

// TestSaidCapacity: what Endpoints say of their capacity is made right, whoever wrote it; and so it is said where pods were left out before.
func TestSaidCapacity(t *testing.T) {
	says := func(w *world, want string, there bool) {
		t.Helper()
		if got, ok := w.older.Annotations[corev1.EndpointsOverCapacity]; got != want || ok != there {
			t.Errorf("it is said %q, %v, want %q, %v", got, ok, want, there)
		}
	}
	w, pods := newWorld(), []*corev1.Pod{pod("a", "10.1.1.1", nil)}
	w.step(t, service(nil), pods)
	for _, said := range []string{"warning", truncated, ""} {
		w.older.Annotations[corev1.EndpointsOverCapacity] = said
		w.step(t, service(nil), pods)
		says(w, "", false)
	}
	s := service(func(s *corev1.Service) {
		for i := 1; i < mostPorts; i++ {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(i), Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(int32(i))})
		}
	})
	for i := range mostPodPorts / mostPorts {
		pods = append(pods, pod(fmt.Sprint("web-", i), fmt.Sprintf("10.2.%d.1", i), nil))
	}
	w = newWorld()
	w.step(t, s, pods)
	says(w, truncated, true)
	w.older.Annotations[corev1.EndpointsOverCapacity] = "warning"
	w.step(t, s, pods)
	says(w, truncated, true)
	w.step(t, s, pods[1:])
	says(w, "", false)
}

// TestEndpointsOfOthers: what somebody writes into the Endpoints of a Service with a selector is made right; what is his otherwise stays.
func TestEndpointsOfOthers(t *testing.T) {
	pods := []*corev1.Pod{pod("a", "10.1.1.1", nil)}
	theirs := func(labels map[string]string) *Endpoints {
		return &Endpoints{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web", UID: "uid-of-endpoints", ResourceVersion: "1", Labels: labels, Annotations: map[string]string{"note": "kept"}},
			Subsets:    []EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: "192.0.2.1"}}}},
		}
	}
	w := newWorld()
	w.older = theirs(nil)
	w.step(t, service(nil), pods)
	if s := w.older.Subsets; len(s) != 1 || len(s[0].Addresses) != 1 || s[0].Addresses[0].IP != "10.1.1.1" || w.older.Annotations["note"] != "kept" || !isManagedEndpoints(w.older) {
		t.Errorf("there is %+v", w.older)
	}
	without := func(s *corev1.Service) { s.Spec.Selector = nil }
	if w.step(t, service(without), pods); w.older != nil {
		t.Errorf("without a selector there is %+v", w.older)
	}
	for name, labels := range map[string]map[string]string{"his": nil, "made here, and changed": {endpointsManagedBy: endpointsControllerName}} {
		w.older = theirs(labels)
		w.slices = newWorld().slices
		if w.step(t, service(without), pods); w.older == nil {
			t.Errorf("Endpoints that are %s are deleted", name)
		}
	}
}

// TestEndpointsGoFirst: Endpoints that are refused as they are to be lose what is gone.
func TestEndpointsGoFirst(t *testing.T) {
	w := newWorld()
	w.step(t, service(nil), []*corev1.Pod{pod("a", "10.1.1.1", nil), pod("b", "10.1.1.2", nil)})
	w.refuseOlder = func(e *Endpoints) bool {
		return slices.ContainsFunc(e.Subsets[0].Addresses, func(a corev1.EndpointAddress) bool { return a.IP == "10.1.1.3" })
	}
	w.step(t, service(nil), []*corev1.Pod{pod("b", "10.1.1.2", nil), pod("c", "10.1.1.3", nil)})
	if a := w.older.Subsets[0].Addresses; len(a) != 1 || a[0].IP != "10.1.1.2" {
		t.Errorf("there is %+v, want what stays", a)
	}
	w.refuseOlder = nil
	w.step(t, service(nil), []*corev1.Pod{pod("b", "10.1.1.2", nil), pod("c", "10.1.1.3", nil)})
	if a := w.older.Subsets[0].Addresses; len(a) != 2 {
		t.Errorf("there is %+v", a)
	}
}

// TestHostileEndpoints: what somebody wrote into Endpoints is compared and not packed anew, which for those would take all memory.
func TestHostileEndpoints(t *testing.T) {
	w := newWorld()
	w.older = &Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web", ResourceVersion: "1"}}
	subset := EndpointSubset{}
	for i := range 20_000 {
		subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{IP: fmt.Sprintf("10.%d.%d.1", i/250, i%250)})
		subset.Ports = append(subset.Ports, corev1.EndpointPort{Name: fmt.Sprint(i), Port: int32(i + 1)})
	}
	w.older.Subsets = []EndpointSubset{subset}
	w.step(t, service(nil), []*corev1.Pod{pod("a", "10.1.1.1", nil)})
	if ready, _ := addressesIn(t, w.older); ready != 1 {
		t.Errorf("%d addresses are left", ready)
	}
}
