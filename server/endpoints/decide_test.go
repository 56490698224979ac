package endpoints

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/endpointslice"
	endpointsliceutil "k8s.io/endpointslice/util"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/discovery"
	_ "k8s.io/kubernetes/pkg/apis/discovery/install"
	discoveryvalidation "k8s.io/kubernetes/pkg/apis/discovery/validation"
	"k8s.io/utils/ptr"
)

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func service(change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web", UID: "uid-of-web", Labels: map[string]string{"of": "web"}, CreationTimestamp: metav1.NewTime(noon.Add(-time.Hour))},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.0.0.1", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	if change != nil {
		change(s)
	}
	return s
}

func pod(name, ip string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("uid-of-" + name), Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: "east"},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(noon.Add(-time.Minute))}},
		},
	}
	if ip != "" {
		p.Status.PodIP, p.Status.PodIPs = ip, []corev1.PodIP{{IP: ip}}
	}
	if change != nil {
		change(p)
	}
	return p
}

func notReady(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }

// world is slices as they are stored. Writes that refuse says are refused.
type world struct {
	slices map[string]*discoveryv1.EndpointSlice
	older  *Endpoints
	made   int
	refuse func(verb string, slice *discoveryv1.EndpointSlice) error
	asked  []string
	// refuseOlder says which Endpoints are refused.
	refuseOlder func(*Endpoints) bool
}

func newWorld() *world { return &world{slices: map[string]*discoveryv1.EndpointSlice{}} }

func (w *world) all() (all []*discoveryv1.EndpointSlice) {
	for _, name := range slices.Sorted(maps.Keys(w.slices)) {
		all = append(all, w.slices[name].DeepCopy())
	}
	return all
}

// stored are the slices as a look finds them.
func (w *world) stored(t *testing.T) (all []*discovery.EndpointSlice) {
	t.Helper()
	for _, s := range w.all() {
		in := &discovery.EndpointSlice{}
		if err := legacyscheme.Scheme.Convert(s, in, nil); err != nil {
			t.Fatal(err)
		}
		all = append(all, in)
	}
	return all
}

func (w *world) store(s *discoveryv1.EndpointSlice) {
	s = s.DeepCopy()
	w.made++
	s.ResourceVersion = fmt.Sprint(w.made)
	if s.Name == "" {
		s.Name = fmt.Sprintf("%s%05d", s.GenerateName, w.made)
		s.UID = types.UID(s.Name)
	}
	w.slices[s.Name] = s
}

func (w *world) do(verb string, s *discoveryv1.EndpointSlice) error {
	w.asked = append(w.asked, verb)
	if w.refuse != nil {
		if err := w.refuse(verb, s); err != nil {
			return err
		}
	}
	switch was := w.slices[s.Name]; {
	case verb != "remove" && valid(s) != nil:
		return valid(s)
	case verb == "create":
		w.store(s)
	case was == nil || was.ResourceVersion != s.ResourceVersion || was.UID != s.UID:
		return fmt.Errorf("%s %s: there is %+v", verb, s.Name, was)
	case verb == "remove":
		delete(w.slices, s.Name)
	default:
		w.store(s)
	}
	return nil
}

func (w *world) create(_ context.Context, s *discoveryv1.EndpointSlice) error {
	return w.do("create", s)
}
func (w *world) update(_ context.Context, s *discoveryv1.EndpointSlice) error {
	return w.do("update", s)
}
func (w *world) remove(_ context.Context, s *discoveryv1.EndpointSlice) error {
	return w.do("remove", s)
}

// valid is why Kubernetes' server would not store a slice.
func valid(s *discoveryv1.EndpointSlice) error {
	in := &discovery.EndpointSlice{}
	if err := legacyscheme.Scheme.Convert(s.DeepCopy(), in, nil); err != nil {
		return err
	}
	if in.Name == "" {
		in.Name = in.GenerateName + "b4c6d"
	}
	return discoveryvalidation.ValidateEndpointSliceCreate(in).ToAggregate()
}

func (w *world) put(_ context.Context, e *Endpoints) error {
	in := &core.Endpoints{}
	if err := legacyscheme.Scheme.Convert(e, in, nil); err != nil {
		return err
	}
	switch invalid := validation.ValidateEndpointsCreate(in); {
	case len(invalid) > 0:
		return invalid.ToAggregate()
	case w.refuseOlder != nil && w.refuseOlder(e):
		return forbidden
	case (w.older == nil) != (e.ResourceVersion == "") || w.older != nil && w.older.ResourceVersion != e.ResourceVersion:
		return fmt.Errorf("put %+v: there is %+v", e.ObjectMeta, w.older)
	}
	w.made++
	w.older = e.DeepCopy()
	w.older.ResourceVersion = fmt.Sprint(w.made)
	return nil
}

func (w *world) drop(context.Context, *Endpoints) error {
	w.older = nil
	return nil
}

// say is each endpoint of slices, with what its slice says, sorted.
func say(all []*discoveryv1.EndpointSlice) (said []string) {
	for _, s := range all {
		var ports []string
		for _, p := range s.Ports {
			ports = append(ports, fmt.Sprintf("%s=%d/%s/%s", ptr.Deref(p.Name, "-"), ptr.Deref(p.Port, 0), ptr.Deref(p.Protocol, "-"), ptr.Deref(p.AppProtocol, "")))
		}
		slices.Sort(ports)
		head := fmt.Sprintf("%s %v %v", s.AddressType, ports, s.Labels)
		if len(s.Endpoints) == 0 {
			said = append(said, head+" nobody")
		}
		for _, e := range s.Endpoints {
			hints := ""
			if e.Hints != nil {
				hints = fmt.Sprintf(" %v %v", e.Hints.ForZones, e.Hints.ForNodes)
			}
			said = append(said, fmt.Sprintf("%s %v %s on %s in %s called %q: ready %v serving %v terminating %v%s", head, e.Addresses, e.TargetRef.UID, ptr.Deref(e.NodeName, ""), ptr.Deref(e.Zone, ""),
				ptr.Deref(e.Hostname, ""), *e.Conditions.Ready, *e.Conditions.Serving, *e.Conditions.Terminating, hints))
		}
	}
	slices.Sort(said)
	return said
}

// stored is a pod as it is stored, without what is not read of it.
func stored(t *testing.T, p *corev1.Pod, s *corev1.Service) *corev1.Pod {
	t.Helper()
	in := &core.Pod{}
	if err := legacyscheme.Scheme.Convert(p, in, nil); err != nil {
		t.Fatal(err)
	}
	return slim(in, named(s))
}

// step makes slices of pods, as the controller does, and returns what is said.
func (w *world) step(t *testing.T, s *corev1.Service, pods []*corev1.Pod) *plan {
	t.Helper()
	f := facts{service: s, zones: map[string]string{"east": "zone-a", "west": "zone-b"}, slices: w.stored(t), endpoints: w.older.DeepCopy()}
	for _, p := range pods {
		f.pods = append(f.pods, stored(t, p, s))
	}
	p, err := decide(f, noon)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.carryOut(t.Context(), w); err != nil && w.refuse == nil && w.refuseOlder == nil {
		t.Fatal(err)
	}
	return p
}

// upstreams makes slices of pods as Kubernetes' own Reconciler writes them.
func upstreams(t *testing.T, kube *fake.Clientset, s *corev1.Service, pods []*corev1.Pod) []*discoveryv1.EndpointSlice {
	t.Helper()
	list := func() (all []*discoveryv1.EndpointSlice) {
		found, err := kube.DiscoveryV1().EndpointSlices(s.Namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range found.Items {
			all = append(all, &found.Items[i])
		}
		return all
	}
	there := lister{nodes{}}
	for name, zone := range map[string]string{"east": "zone-a", "west": "zone-b"} {
		there.nodes[name] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}}}
	}
	r := endpointslice.NewReconciler(kube, there, mostInSlice, endpointsliceutil.NewEndpointSliceTracker(), nil, record.NewFakeRecorder(10), ControllerName, endpointslice.WithPreferSameTrafficDistributionEnabled(true))
	if err := r.Reconcile(klog.Logger{}, s, pods, list(), time.Time{}); err != nil && !strings.Contains(err.Error(), "Not Found") { // a Node: it is looked again later
		t.Fatal(err)
	}
	return list()
}

// lister has the Nodes that there are, as that of Kubernetes' controller.
type lister struct{ nodes }

func (l lister) Get(name string) (*corev1.Node, error) {
	if node, there := l.nodes[name]; there {
		return node, nil
	}
	return nil, apierrors.NewNotFound(core.Resource("nodes"), name)
}

// nameSlices gives slices that are made names, as servers do.
func nameSlices(kube *fake.Clientset) {
	n := 0
	kube.PrependReactor("create", "endpointslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		n++
		a.(clienttesting.CreateAction).GetObject().(*discoveryv1.EndpointSlice).Name = fmt.Sprintf("web-%05d", n)
		return false, nil, nil
	})
}

// TestAsKubernetes: whatever becomes of a Service and its pods, its slices say what Kubernetes' own would, and what is written once is not written again.
func TestAsKubernetes(t *testing.T) {
	for seed := range uint64(25) {
		random := rand.New(rand.NewPCG(seed, 1))
		one := func(all ...string) string { return all[random.IntN(len(all))] }
		ours, kube := newWorld(), fake.NewClientset()
		nameSlices(kube)
		s := service(func(s *corev1.Service) {
			switch random.IntN(4) {
			case 0:
				s.Spec.ClusterIP = corev1.ClusterIPNone
			case 1:
				s.Spec.ClusterIP, s.Spec.Ports = corev1.ClusterIPNone, nil
			case 2:
				s.Spec.IPFamilies = append(s.Spec.IPFamilies, corev1.IPv6Protocol)
			}
		})
		pods := map[string]*corev1.Pod{}
		for range 12 {
			switch random.IntN(8) {
			case 0:
				s.Spec.PublishNotReadyAddresses = !s.Spec.PublishNotReadyAddresses
			case 1:
				s.Labels = map[string]string{"of": "web", "is": one("a", "b"), discoveryv1.LabelManagedBy: "somebody"}
			case 2:
				if len(s.Spec.Ports) > 0 {
					s.Spec.Ports = []corev1.ServicePort{
						{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)},
						{Name: "named", Port: 81, Protocol: corev1.Protocol(one("TCP", "UDP")), TargetPort: intstr.FromString(one("a", "b", "nowhere")), AppProtocol: ptr.To("h2c")},
					}
				}
			case 3:
				s.Spec.TrafficDistribution = ptr.To(one("PreferClose", "PreferSameZone", "PreferSameNode"))
			}
			for range random.IntN(150) {
				name := fmt.Sprintf("web-%d", random.IntN(250))
				if pods[name] != nil && random.IntN(3) == 0 {
					delete(pods, name)
					continue
				}
				pods[name] = pod(name, one("", fmt.Sprintf("10.1.%d.%d", random.IntN(200), random.IntN(200)), fmt.Sprintf("10.1.1.%d", random.IntN(20))), func(p *corev1.Pod) {
					p.Spec.NodeName = one("east", "west")
					p.Spec.Hostname, p.Spec.Subdomain = one("", "a", "b"), one("", "web", "other")
					p.Status.Phase = corev1.PodPhase(one("Running", "Running", "Pending", "Failed", "Succeeded"))
					if random.IntN(2) == 0 {
						notReady(p)
					}
					if random.IntN(9) == 0 {
						p.DeletionTimestamp = &metav1.Time{Time: noon}
					}
					// What differs are pods of IPv6 alone, and those of Nodes that are not there: TestFamiliesOfPods and TestPodsOfUnknownNodes.
					if len(p.Status.PodIPs) > 0 && random.IntN(3) == 0 {
						p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: fmt.Sprintf("2001:db8::%d", random.IntN(99))})
					}
					port := func(number int32) corev1.ContainerPort {
						return corev1.ContainerPort{Name: one("a", "b", "c"), ContainerPort: number, Protocol: corev1.Protocol(one("TCP", "UDP"))}
					}
					p.Spec.Containers = []corev1.Container{{Name: "c", Ports: []corev1.ContainerPort{port(1), port(2)}}}
					p.Spec.InitContainers = []corev1.Container{
						{Name: "i", Ports: []corev1.ContainerPort{port(3)}}, {Name: "s", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), Ports: []corev1.ContainerPort{port(4)}},
					}
				})
			}
			var all []*corev1.Pod
			for _, name := range slices.Sorted(maps.Keys(pods)) {
				all = append(all, pods[name])
			}
			ours.step(t, s, all)
			if diff := cmp.Diff(say(upstreams(t, kube, s, all)), say(ours.all())); diff != "" {
				t.Fatalf("seed %d, -Kubernetes +here:\n%s", seed, diff)
			}
			for _, slice := range ours.slices {
				if len(slice.Endpoints) > mostInSlice || slice.GenerateName != "web-" || !metav1.IsControlledBy(slice, s) {
					t.Fatalf("seed %d: %+v", seed, slice.ObjectMeta)
				}
			}
			if p := ours.step(t, s, all); !p.empty() {
				t.Fatalf("seed %d: %d are made, %d changed and %d deleted though nothing has changed", seed, len(p.create), len(p.update), len(p.remove))
			}
		}
	}
}

// endpointsOf are the pods that slices have, by name.
func endpointsOf(all []*discoveryv1.EndpointSlice) (names []string) {
	for _, s := range all {
		for _, e := range s.Endpoints {
			names = append(names, fmt.Sprintf("%s %v", strings.TrimPrefix(string(e.TargetRef.UID), "uid-of-"), e.Addresses))
		}
	}
	slices.Sort(names)
	return names
}

// TestFamiliesOfPods: a pod is an endpoint by the addresses of its Service's families, or else by those that it has.
func TestFamiliesOfPods(t *testing.T) {
	w := newWorld()
	both := func(p *corev1.Pod) { p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: "2001:db8::2"}) }
	pods := []*corev1.Pod{pod("a", "10.1.1.1", nil), pod("b", "10.1.1.2", both), pod("c", "2001:db8::3", nil)}
	w.step(t, service(nil), pods)
	if diff := cmp.Diff([]string{"a [10.1.1.1]", "b [10.1.1.2]", "c [2001:db8::3]"}, endpointsOf(w.all())); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	w.step(t, service(nil), pods[:2])
	if all := w.all(); len(all) != 1 || all[0].AddressType != discoveryv1.AddressTypeIPv4 {
		t.Errorf("there are %v, want one of IPv4", say(all))
	}
}

// TestPodsOfUnknownNodes: a pod whose Node is not there, or that has none, is an endpoint as long as it is shown, without a zone. In Kubernetes it is left out, unless pods that are not ready are published.
func TestPodsOfUnknownNodes(t *testing.T) {
	on := func(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }
	pods := []*corev1.Pod{pod("a", "10.1.1.1", on("east")), pod("b", "10.1.1.2", on("north")), pod("c", "10.1.1.3", on(""))}
	for _, published := range []bool{false, true} {
		s := service(func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = published })
		ours, kube := newWorld(), fake.NewClientset()
		nameSlices(kube)
		ours.step(t, s, pods)
		theirs, want := endpointsOf(upstreams(t, kube, s, pods)), []string{"a [10.1.1.1]"}
		all := []string{"a [10.1.1.1]", "b [10.1.1.2]", "c [10.1.1.3]"}
		if published {
			want = all
		}
		if !slices.Equal(theirs, want) || !slices.Equal(endpointsOf(ours.all()), all) {
			t.Errorf("published: %v: Kubernetes has %v, want %v; here are %v, want all", published, theirs, want, endpointsOf(ours.all()))
		}
		for _, e := range ours.all()[0].Endpoints {
			if zone := map[string]string{"east": "zone-a"}[ptr.Deref(e.NodeName, "")]; ptr.Deref(e.Zone, "") != zone {
				t.Errorf("%+v is in a zone, want %q", e, zone)
			}
		}
		for _, subset := range ours.older.Subsets {
			for _, a := range subset.Addresses {
				if a.NodeName != nil && *a.NodeName == "" {
					t.Errorf("%+v is of a Node without a name", a)
				}
			}
		}
	}
}

// TestBadPodsKeepNobody: a pod that can be no endpoint is left out, which is said, and the others are.
func TestBadPodsKeepNobody(t *testing.T) {
	w := newWorld()
	p := w.step(t, service(nil), []*corev1.Pod{
		pod("a", "127.0.0.1", nil), pod("b", "10.1.1.2", nil), pod("c", "no address", nil), pod("d", "169.254.1.1", func(p *corev1.Pod) {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: "10.1.1.4"})
		}),
	})
	if diff := cmp.Diff([]string{"b [10.1.1.2]", "d [10.1.1.4]"}, endpointsOf(w.all())); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if len(p.left) != 1 || p.left[0].reason != "AddressRefused" || !strings.Contains(p.left[0].message, `Pod a, on Node east, has the address "127.0.0.1"`) {
		t.Errorf("it is said %+v", p.left)
	}
	if w.step(t, service(nil), []*corev1.Pod{pod("b", "10.1.1.2", nil)}); len(w.slices) != 1 {
		t.Errorf("%v", say(w.all()))
	}
}

// TestBounds: of more pods, ports and groups of ports than there may be, some are endpoints, which are the same each time, those that are ready first; and it is said.
func TestBounds(t *testing.T) {
	ports := func(n int, target func(i int) intstr.IntOrString) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.Ports = nil
			for i := range n {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprintf("p%d", i), Port: int32(i + 1), Protocol: corev1.ProtocolTCP, TargetPort: target(i)})
			}
		}
	}
	byNumber := func(i int) intstr.IntOrString { return intstr.FromInt32(int32(i + 1)) }
	byName := func(int) intstr.IntOrString { return intstr.FromString("a") }
	const mostTaken = 100 // MiB, all told
	for name, tc := range map[string]struct {
		pods    int
		service func(*corev1.Service)
		want    int
		ports   int // of each slice
		left    int
	}{
		"as many pods as may be":   {mostPods, ports(1, byNumber), mostPods, 1, 0},
		"one more":                 {mostPods + 1, ports(1, byNumber), mostPods, 1, 1},
		"of ten ports":             {mostPodPorts/10 + 1, ports(10, byNumber), mostPodPorts / 10, 10, 1},
		"more ports than may be":   {5, ports(mostPorts+1, byNumber), 5, mostPorts, 1},
		"each has its own port":    {300, ports(1, byName), mostGroups, 1, 1},
		"as many as are read":      {mostRead, ports(mostPorts, byName), mostGroups, mostPorts, 1},
		"more of everything":       {400, ports(mostPorts+1, byNumber), mostPodPorts / mostPorts, mostPorts, 1},
		"headless, without a port": {mostPods + 7, func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.Ports = "None", nil }, mostPods, 0, 1},
	} {
		w := newWorld()
		var pods []*corev1.Pod
		for i := range tc.pods {
			pods = append(pods, pod(fmt.Sprintf("web-%05d", i), fmt.Sprintf("10.%d.%d.1", i/256, i%256), func(p *corev1.Pod) {
				if i%2 == 0 {
					notReady(p)
				}
				p.Spec.Containers = []corev1.Container{{Name: "c", Ports: []corev1.ContainerPort{{Name: "a", ContainerPort: int32(i + 1), Protocol: corev1.ProtocolTCP}}}}
			}))
		}
		s := service(tc.service)
		f := facts{service: s}
		for _, p := range pods {
			f.pods = append(f.pods, stored(t, p, s))
		}
		taken := allocated(func() {
			if _, err := decide(f, noon); err != nil {
				t.Fatal(err)
			}
		})
		p := w.step(t, s, pods)
		n, ready := 0, 0
		for _, slice := range w.slices {
			if len(slice.Ports) != tc.ports {
				t.Errorf("%s: a slice has %d ports, want %d", name, len(slice.Ports), tc.ports)
			}
			for _, e := range slice.Endpoints {
				if n++; *e.Conditions.Ready {
					ready++
				}
			}
		}
		if n != tc.want || ready < min(n, tc.pods/2) || len(p.left) != tc.left {
			t.Errorf("%s: %d endpoints, %d of them ready, and it is said %+v; want %d, those that are ready first, and that it is said %d times", name, n, ready, p.left, tc.want, tc.left)
		}
		slices.Reverse(pods)
		if p := w.step(t, s, pods); !p.empty() {
			t.Errorf("%s: once more %d are made, %d changed and %d deleted", name, len(p.create), len(p.update), len(p.remove))
		}
		if t.Logf("%s: %d KiB", name, taken>>10); taken > mostTaken<<20 {
			t.Errorf("%s: to decide takes %d MiB, want %d at most", name, taken>>20, mostTaken)
		}
	}
}

// TestSlicesThatSomebodyMade: what is labelled as this controller's and is nothing that it makes goes, before anybody looks at it whole; there is a bound of both.
func TestSlicesThatSomebodyMade(t *testing.T) {
	w := newWorld()
	s := service(nil)
	pods := []*corev1.Pod{pod("a", "10.1.1.1", nil)}
	w.step(t, s, pods)
	like := w.all()[0]
	add := func(change func(*discoveryv1.EndpointSlice)) {
		other := like.DeepCopy()
		other.Name, other.GenerateName = "", "other-"
		change(other)
		w.store(other)
	}
	add(func(s *discoveryv1.EndpointSlice) {
		s.Endpoints = slices.Repeat([]discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}}, mostInSlice+1)
	})
	add(func(s *discoveryv1.EndpointSlice) { s.Ports = slices.Repeat(s.Ports, mostPorts+1) })
	add(func(s *discoveryv1.EndpointSlice) { s.OwnerReferences = nil })
	add(func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = []string{"192.0.2.1"} })
	w.step(t, s, pods)
	if diff := cmp.Diff([]string{"a [10.1.1.1]"}, endpointsOf(w.all())); diff != "" || len(w.slices) != 1 {
		t.Errorf("%d slices, -want +got:\n%s", len(w.slices), diff)
	}
	for range 1000 {
		add(func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = []string{"192.0.2.1"} })
	}
	for more, times := true, 0; more; times++ {
		before := len(w.slices)
		p := w.step(t, s, pods)
		if more = p.more; before-len(w.slices) > mostRemoved || times > 1000/mostRemoved+1 {
			t.Fatalf("%d of %d are deleted at the %dth look, want %d at a time", before-len(w.slices), before, times, mostRemoved)
		}
		if kept := p.before; len(kept) > 2*2+2*spareSlices {
			t.Fatalf("%d slices are looked at", len(kept))
		}
	}
	if diff := cmp.Diff([]string{"a [10.1.1.1]"}, endpointsOf(w.all())); diff != "" || len(w.slices) != 1 {
		t.Errorf("%d slices, -want +got:\n%s", len(w.slices), diff)
	}
}

// TestLabelsWithoutNumber: the labels of a Service are those of its slices and Endpoints, but for many, which each of these would have: it is said, and they have none.
func TestLabelsWithoutNumber(t *testing.T) {
	labelled := func(n int) func(*corev1.Service) {
		return func(s *corev1.Service) {
			for left := n - sizeOf(s.Labels); left >= 11; left = n - sizeOf(s.Labels) {
				s.Labels[fmt.Sprintf("label-%05d", len(s.Labels))] = strings.Repeat("x", min(50, left-11))
			}
		}
	}
	pods := []*corev1.Pod{pod("a", "10.1.1.1", nil)}
	w := newWorld()
	has := func(s *corev1.Service, all bool) {
		t.Helper()
		p := w.step(t, s, pods)
		for _, labels := range []map[string]string{w.all()[0].Labels, w.older.Labels} {
			if (labels["of"] == "web") != all || sizeOf(labels) > mostLabels+500 {
				t.Errorf("of %d bytes of labels there are %d, want all: %v", sizeOf(s.Labels), sizeOf(labels), all)
			}
		}
		if said := len(p.left) == 1 && p.left[0].reason == "LabelsLeftOut"; said == all {
			t.Errorf("of %d bytes it is said %+v", sizeOf(s.Labels), p.left)
		}
		if p := w.step(t, s, pods); !p.empty() {
			t.Errorf("of %d bytes of labels: written again", sizeOf(s.Labels))
		}
	}
	has(service(labelled(mostLabels)), true)
	has(service(labelled(mostLabels+11)), false)
	has(service(nil), true)
}

// TestSlicesAreNotCopied: of slices that are labelled as made here, however many and large they are, those that could be needed are copied, and of the others a hundred names.
func TestSlicesAreNotCopied(t *testing.T) {
	w := newWorld()
	pods := []*corev1.Pod{pod("a", "10.1.1.1", nil)}
	w.step(t, service(nil), pods)
	f := facts{service: service(nil), slices: w.stored(t), endpoints: w.older}
	f.pods = []*corev1.Pod{stored(t, pods[0], f.service)}
	like := f.slices[0]
	add := func(n int, change func(*discovery.EndpointSlice)) {
		huge := like.DeepCopy()
		change(huge)
		for range n {
			one := *huge
			one.Name = fmt.Sprintf("other-%05d", len(f.slices))
			f.slices = append(f.slices, &one)
		}
	}
	many := map[string]string{}
	for i := range 20_000 {
		many[fmt.Sprint("label-", i)] = ""
	}
	add(500, func(s *discovery.EndpointSlice) { s.Endpoints = slices.Repeat(s.Endpoints, 1000) })
	add(500, func(s *discovery.EndpointSlice) { s.Ports = slices.Repeat(s.Ports, 10_000) })
	add(500, func(s *discovery.EndpointSlice) { s.Labels = many })
	add(500, func(s *discovery.EndpointSlice) { s.Annotations = many })
	add(500, func(s *discovery.EndpointSlice) { s.OwnerReferences = slices.Repeat(s.OwnerReferences, 10_000) })
	add(500, func(s *discovery.EndpointSlice) { s.Finalizers = slices.Repeat([]string{"example.com/a"}, 10_000) })
	add(500, func(s *discovery.EndpointSlice) {
		s.Endpoints[0].Addresses = slices.Repeat([]string{"10.1.1.1"}, 100_000)
	})
	add(500, func(s *discovery.EndpointSlice) { s.Endpoints[0].DeprecatedTopology = many })
	add(500, func(s *discovery.EndpointSlice) {
		s.ManagedFields = slices.Repeat([]metav1.ManagedFieldsEntry{{}}, 10_000)
	})
	for name, selector := range map[string]map[string]string{"a selector": f.service.Spec.Selector, "none": nil} {
		f.service.Spec.Selector = selector
		var p *plan
		bytes := allocated(func() {
			var err error
			if p, err = decide(f, noon); err != nil {
				t.Fatal(err)
			}
		})
		if len(p.remove) != mostRemoved || !p.more || bytes > 8<<20 {
			t.Errorf("with %s %d go, more: %v, for which %d bytes are taken", name, len(p.remove), p.more, bytes)
		}
		for _, s := range p.remove {
			if s.Name == "" || s.UID == "" || s.ResourceVersion == "" || s.Namespace == "" || len(s.Endpoints)+len(s.Labels)+len(s.OwnerReferences) > 0 {
				t.Fatalf("of what goes is kept %+v", s)
			}
		}
	}
}

// TestDeadAddressesAreDroppedFirst: where more slices are to go than may at a time, those are among the first whose pods are gone.
func TestDeadAddressesAreDroppedFirst(t *testing.T) {
	w := newWorld()
	var pods []*corev1.Pod
	for i := range 2*mostInSlice + 1 {
		pods = append(pods, pod(fmt.Sprintf("web-%d", i), fmt.Sprintf("10.1.%d.1", i), nil))
	}
	w.step(t, service(nil), pods)
	like := w.all()[0]
	for i := range 300 {
		other := like.DeepCopy()
		other.Name, other.GenerateName, other.UID = fmt.Sprintf("a-%03d", i), "", types.UID(fmt.Sprint("a-", i))
		other.Finalizers = slices.Repeat([]string{"example.com/a"}, 100)
		w.slices[other.Name] = other
	}
	p := w.step(t, service(nil), pods[:1])
	if left := slices.DeleteFunc(w.all(), func(s *discoveryv1.EndpointSlice) bool { return len(s.Finalizers) > 0 }); !p.more || len(endpointsOf(left)) != 1 {
		t.Errorf("there is more to go: %v, and what was made here leads to %d pods, of which one is there", p.more, len(endpointsOf(left)))
	}
}

// TestWithoutSelector: what was made for a Service goes with its selector, or when it becomes a name; what somebody else has made stays.
func TestWithoutSelector(t *testing.T) {
	for name, change := range map[string]func(*corev1.Service){
		"no selector": func(s *corev1.Service) { s.Spec.Selector = nil },
		"a name outside": func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
		},
		"an empty one": func(s *corev1.Service) { s.Spec.Selector = map[string]string{} },
	} {
		w := newWorld()
		w.step(t, service(nil), []*corev1.Pod{pod("a", "10.1.1.1", nil)})
		theirs := w.all()[0]
		theirs.Name, theirs.Endpoints[0].TargetRef = "theirs", nil
		w.store(theirs)
		others := w.all()[1]
		others.Name, others.OwnerReferences[0].UID = "others", "another Service"
		w.store(others)
		w.step(t, service(change), nil)
		if names := slices.Sorted(maps.Keys(w.slices)); !slices.Equal(names, []string{"others", "theirs"}) {
			t.Errorf("%s: there are %v, want what others made", name, names)
		}
	}
}

// TestChangedAt: a write says since when it is due, which is not after now.
func TestChangedAt(t *testing.T) {
	at := func(d time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(noon.Add(d)) }
	}
	of := func(uid string, serving bool) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{{TargetRef: &corev1.ObjectReference{UID: types.UID(uid)}, Conditions: discoveryv1.EndpointConditions{Serving: &serving}}}}
	}
	for name, tc := range map[string]struct {
		pods   []*corev1.Pod
		slices []*discoveryv1.EndpointSlice
		want   time.Time
	}{
		"a new Service":                   {[]*corev1.Pod{pod("a", "10.1.1.1", nil)}, nil, noon.Add(-time.Hour)},
		"a pod more":                      {[]*corev1.Pod{pod("a", "10.1.1.1", at(-3*time.Minute)), pod("b", "10.1.1.2", at(-time.Minute))}, []*discoveryv1.EndpointSlice{of("uid-of-a", true)}, noon.Add(-time.Minute)},
		"the first of two":                {[]*corev1.Pod{pod("a", "10.1.1.1", at(-3*time.Minute)), pod("b", "10.1.1.2", at(-time.Minute))}, []*discoveryv1.EndpointSlice{of("uid-of-a", false)}, noon.Add(-3 * time.Minute)},
		"a pod less":                      {nil, []*discoveryv1.EndpointSlice{of("uid-of-a", true)}, time.Time{}},
		"by a clock that is ahead":        {[]*corev1.Pod{pod("a", "10.1.1.1", at(time.Hour))}, []*discoveryv1.EndpointSlice{{}}, noon},
		"one of which nobody says it yet": {[]*corev1.Pod{pod("a", "10.1.1.1", func(p *corev1.Pod) { p.Status.Conditions = nil })}, []*discoveryv1.EndpointSlice{{}}, time.Time{}},
	} {
		if got := changedAt(service(nil), tc.pods, tc.slices, noon); !got.Equal(tc.want) {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
	w := newWorld()
	w.step(t, service(nil), nil)
	w.step(t, service(nil), []*corev1.Pod{pod("a", "10.1.1.1", at(time.Hour))})
	if got := w.all()[0].Annotations[corev1.EndpointsLastChangeTriggerTime]; got != noon.Format(time.RFC3339Nano) {
		t.Errorf("a slice is said to be due since %q", got)
	}
}
