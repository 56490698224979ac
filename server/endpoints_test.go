package server

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	kubestorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/endpoints"
)

func startEndpoints(t *testing.T, modify func(*Options)) *showing {
	t.Helper()
	s := startShowingWith(t, modify)
	runController(t, s.running, func(c *client.Clients, i *client.Informers) (*endpoints.Controller, error) {
		return endpoints.New(c, i, s.EndpointRows(), clock.RealClock{})
	})
	return s
}

func webService(change func(*corev1.Service)) *corev1.Service {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"of": "web"}}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}},
	}}
	if change != nil {
		change(service)
	}
	return service
}

// serves has a syncer show a pod with that address, which is Ready or not.
func serves(t *testing.T, syncer kubernetes.Interface, pod *corev1.Pod, ip string, ready bool) {
	t.Helper()
	pods := syncer.CoreV1().Pods(inEast)
	made, err := pods.Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil {
		made, err = pods.Create(t.Context(), pod, metav1.CreateOptions{})
		must(t, err)
	}
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	made.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.NewTime(time.Now().Truncate(time.Second))}},
	}
	_, err = pods.UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
	must(t, err)
}

// slicesOf are those that name a Service.
func slicesOf(t *testing.T, kube kubernetes.Interface, namespace, service string) []discoveryv1.EndpointSlice {
	t.Helper()
	list, err := kube.DiscoveryV1().EndpointSlices(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	must(t, err)
	return list.Items
}

// leadsTo waits until the slices of a Service that the server makes say that, an endpoint each, and nothing else.
func leadsTo(t *testing.T, kube kubernetes.Interface, namespace, service string, want ...string) {
	t.Helper()
	slices.Sort(want)
	waitFor(t, time.Minute, fmt.Sprintf("Service %s leads to %v", service, want), func() (string, bool) {
		var got []string
		made := 0
		for _, slice := range slicesOf(t, kube, namespace, service) {
			if slice.Labels[discoveryv1.LabelManagedBy] != endpoints.ControllerName {
				continue
			}
			made++
			for _, e := range slice.Endpoints {
				got = append(got, fmt.Sprintf("%s %s on %s %v", ptr.Deref(e.TargetRef, corev1.ObjectReference{}).Name, strings.Join(e.Addresses, ","), ptr.Deref(e.NodeName, "none"), ptr.Deref(e.Conditions.Ready, true)))
			}
		}
		slices.Sort(got)
		return fmt.Sprintf("%d slices, %v", made, got), slices.Equal(got, want) && made == 1
	})
}

// TestEndpointSlices: a Service leads to the pods that all physical clusters show, in its workspace and no other, whatever somebody does to its slices.
func TestEndpointSlices(t *testing.T) {
	s := startEndpoints(t, func(*Options) {})
	s.makeNamespace(t, bank, team)
	ofBank, inMirror := s.in(t, bank), s.in(t, east)
	for _, in := range []struct {
		kube      kubernetes.Interface
		namespace string
	}{{s.shop, team}, {ofBank, team}, {inMirror, inEast}} {
		_, err := in.kube.CoreV1().Services(in.namespace).Create(t.Context(), webService(nil), metav1.CreateOptions{})
		must(t, err)
	}
	leadsTo(t, s.shop, team, "web")
	one, two := s.below("web-1", nil), s.below("web-2", func(p *corev1.Pod) { p.OwnerReferences[0].UID = s.leafIn(t, west) })
	serves(t, s.east, one, "10.1.1.1", true)
	serves(t, s.west, two, "10.1.1.1", false)
	leadsTo(t, s.shop, team, "web", "web-1 10.1.1.1 on us-east-1 true", "web-2 10.1.1.1 on us-west-1 false")
	serves(t, s.west, two, "10.1.1.2", true)
	serves(t, s.east, one, "10.1.1.1", false)
	leadsTo(t, s.shop, team, "web", "web-1 10.1.1.1 on us-east-1 false", "web-2 10.1.1.2 on us-west-1 true")
	leadsTo(t, ofBank, team, "web")
	if made := slicesOf(t, inMirror, inEast, "web"); len(made) > 0 {
		t.Errorf("in a mirror there are %+v", made)
	}
	slice := slicesOf(t, s.shop, team, "web")[0]
	service, err := s.shop.CoreV1().Services(team).Get(t.Context(), "web", metav1.GetOptions{})
	must(t, err)
	if !metav1.IsControlledBy(&slice, service) || slice.Labels["of"] != "web" || len(slice.Ports) != 1 || *slice.Ports[0].Port != 8080 || slice.AddressType != discoveryv1.AddressTypeIPv4 {
		t.Errorf("its slice is %+v", slice)
	}

	must(t, s.east.CoreV1().Pods(inEast).Delete(t.Context(), "web-1", metav1.DeleteOptions{}))
	leadsTo(t, s.shop, team, "web", "web-2 10.1.1.2 on us-west-1 true")

	// Whatever somebody does to slices. The last is nobody's then, and stays.
	all := s.shop.DiscoveryV1().EndpointSlices(team)
	for what, patch := range map[string]string{
		"its endpoints are taken out":     `{"endpoints":[]}`,
		"another address is put in":       `{"endpoints":[{"addresses":["192.0.2.1"]}]}`,
		"its Service's name is taken out": `{"metadata":{"labels":{"kubernetes.io/service-name":null}}}`,
		"its owner is taken out":          `{"metadata":{"ownerReferences":null}}`,
	} {
		t.Log(what)
		managed := slices.DeleteFunc(slicesOf(t, s.shop, team, "web"), func(s discoveryv1.EndpointSlice) bool {
			return s.Labels[discoveryv1.LabelManagedBy] != endpoints.ControllerName
		})
		_, err := all.Patch(t.Context(), managed[0].Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		must(t, err)
		leadsTo(t, s.shop, team, "web", "web-2 10.1.1.2 on us-west-1 true")
	}
	must(t, all.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	leadsTo(t, s.shop, team, "web", "web-2 10.1.1.2 on us-west-1 true")

	// A pod that is labelled otherwise, as to look at it apart.
	lone := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "lone", Labels: map[string]string{"app": "web"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	lone, err = s.shop.CoreV1().Pods(team).Create(t.Context(), lone, metav1.CreateOptions{})
	must(t, err)
	lone.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.1.3", PodIPs: []corev1.PodIP{{IP: "10.1.1.3"}}}
	_, err = s.shop.CoreV1().Pods(team).UpdateStatus(t.Context(), lone, metav1.UpdateOptions{})
	must(t, err)
	leadsTo(t, s.shop, team, "web", "web-2 10.1.1.2 on us-west-1 true", "lone 10.1.1.3 on none false")
	_, err = s.shop.CoreV1().Pods(team).Patch(t.Context(), "lone", types.MergePatchType, []byte(`{"metadata":{"labels":{"app":"looked-at"}}}`), metav1.PatchOptions{})
	must(t, err)
	leadsTo(t, s.shop, team, "web", "web-2 10.1.1.2 on us-west-1 true")

	// The zone is that of the Node, by which the workspace is shown a physical cluster that it may use. A label is anybody's.
	mirror := "zonedmirror00000"
	g := s.ground(t)
	target := g.target(t, shop, "zoned", map[string]string{corev1.LabelTopologyZone: "zone-a"})
	g.status(t, shop, target, func(s *workloadv1alpha1.SyncTargetStatus) { s.Mirror = mirror })
	for name, in := range map[string]struct{ node, address, mirror string }{"zoned": {"zoned", "10.1.1.4", ""}, "elsewhere": {"us-north-1", "10.1.1.5", mirror}} {
		made := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web", workloadv1alpha1.MirrorLabel: in.mirror}}, Spec: corev1.PodSpec{NodeName: in.node, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		made, err = s.shop.CoreV1().Pods(team).Create(t.Context(), made, metav1.CreateOptions{})
		must(t, err)
		made.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: in.address, PodIPs: []corev1.PodIP{{IP: in.address}}}
		_, err = s.shop.CoreV1().Pods(team).UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
		must(t, err)
	}
	leadsTo(t, s.shop, team, "web", "web-2 10.1.1.2 on us-west-1 true", "zoned 10.1.1.4 on zoned false", "elsewhere 10.1.1.5 on us-north-1 false")
	for _, e := range slicesOf(t, s.shop, team, "web")[0].Endpoints {
		if want := map[string]string{"zoned": "zone-a"}[e.TargetRef.Name]; ptr.Deref(e.Zone, "") != want {
			t.Errorf("pod %s is in zone %q, want %q", e.TargetRef.Name, ptr.Deref(e.Zone, ""), want)
		}
	}

	// What was made by a selector goes with it, and what somebody wrote does not.
	_, err = all.Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "theirs", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}},
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = s.shop.CoreV1().Services(team).Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"selector":null}}`), metav1.PatchOptions{})
	must(t, err)
	waitFor(t, time.Minute, "what was made by the selector is gone", func() (string, bool) {
		left := slicesOf(t, s.shop, team, "web")
		return fmt.Sprintf("%+v", left), len(left) == 1 && left[0].Name == "theirs"
	})
}

// TestPodsAreReadInPart: a watch cache lists so many pods as it is asked for, and says that there are more.
func TestPodsAreReadInPart(t *testing.T) {
	s := startShowing(t)
	for i := range 3 {
		_, err := s.shop.CoreV1().Pods(team).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("web-", i)}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{})
		must(t, err)
	}
	rows := s.EndpointRows().Pods
	waitFor(t, time.Minute, "two pods of three are listed", func() (string, bool) {
		list := &core.PodList{}
		must(t, rows.Storage.GetList(lcctx.WithCluster(t.Context(), lcctx.Cluster{Name: shop}), rows.Key(team, ""), kubestorage.ListOptions{
			ResourceVersion: "1", ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, Recursive: true,
			Predicate: kubestorage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything(), Limit: 2},
		}, list))
		return fmt.Sprintf("%d, %q", len(list.Items), list.Continue), len(list.Items) == 2 && list.Continue != "" && list.Items[0].Name == "web-0"
	})
}

// leafIn is the UID of the leaf in a mirror.
func (s *showing) leafIn(t *testing.T, mirror logicalcluster.Name) types.UID {
	t.Helper()
	leaf, err := s.in(t, mirror).AppsV1().Deployments(inEast).Get(t.Context(), "web", metav1.GetOptions{})
	must(t, err)
	return leaf.UID
}

// TestEndpointSlicesAreLimited: what is made because somebody made a Service counts among what he may have, which an Event on it says.
func TestEndpointSlicesAreLimited(t *testing.T) {
	s := startEndpoints(t, func(o *Options) { o.MaxObjectsPerWorkspace = 16 })
	s.makeAdmin(t, shop, "alice")
	user := s.MirrorConfig(west)
	user.Host, user.BearerToken = s.LoopbackConfig().Host+clustersPrefix+string(shop), alice
	ofAlice := s.as(t, user, "").CoreV1()
	for err := error(nil); err == nil; {
		_, err = ofAlice.Services(team).Create(t.Context(), webService(func(s *corev1.Service) { s.Name, s.GenerateName, s.Spec.ClusterIP = "", "web-", corev1.ClusterIPNone }), metav1.CreateOptions{})
		if err != nil && !strings.Contains(err.Error(), "has 16 objects, and may have 16") {
			t.Fatal(err)
		}
	}
	waitFor(t, time.Minute, "an Event says that there is no room", func() (string, bool) {
		list, err := s.shop.CoreV1().Events(team).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=FailedToUpdateEndpointSlices"})
		if err != nil || len(list.Items) == 0 {
			return fmt.Sprint(err), false
		}
		e := list.Items[0]
		return fmt.Sprintf("%+v", e), e.InvolvedObject.Kind == "Service" && strings.Contains(e.Message, "has 16 objects, and may have 16")
	})
	made, err := s.shop.DiscoveryV1().EndpointSlices(team).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	services, err := s.shop.CoreV1().Services(team).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(made.Items) >= len(services.Items) {
		t.Errorf("%d Services have %d slices", len(services.Items), len(made.Items))
	}
}

// saidOf waits for an Event about a Service.
func saidOf(t *testing.T, kube kubernetes.Interface, service, reason, words string) (e corev1.Event) {
	t.Helper()
	waitFor(t, time.Minute, fmt.Sprintf("an Event of Service %s says %s, %q", service, reason, words), func() (string, bool) {
		list, err := kube.CoreV1().Events(team).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Service,involvedObject.name=" + service})
		must(t, err)
		for _, e = range list.Items {
			if e.Reason == reason && strings.Contains(e.Message, words) {
				return "", true
			}
		}
		return fmt.Sprintf("%+v", list.Items), false
	})
	return e
}

// TestAddressesComeBeforeEvents: what a Service leads to is written before anything is told of it.
func TestAddressesComeBeforeEvents(t *testing.T) {
	s := startEndpoints(t, func(*Options) {})
	_, err := s.shop.CoreV1().Services(team).Create(t.Context(), webService(func(s *corev1.Service) {
		for i := range int32(100) {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: 1000 + i})
		}
	}), metav1.CreateOptions{})
	must(t, err)
	said := saidOf(t, s.shop, "web", "EndpointsLeftOut", "Of its 101 ports")
	leadsTo(t, s.shop, team, "web")
	endpointsSay(t, s.shop, "web", []string{})
	for what, version := range map[string]func() (string, error){
		"slice": func() (string, error) { return slicesOf(t, s.shop, team, "web")[0].ResourceVersion, nil },
		"Endpoints": func() (string, error) {
			e, err := s.shop.CoreV1().Endpoints(team).Get(t.Context(), "web", metav1.GetOptions{})
			return e.ResourceVersion, err
		},
	} {
		written, err := version()
		must(t, err)
		if order, err := resourceversion.CompareResourceVersion(written, said.ResourceVersion); err != nil || order >= 0 {
			t.Errorf("its %s is of version %s, and the Event, of %s, came before it: %v", what, written, said.ResourceVersion, err)
		}
	}
}

// TestEndpointSlicesAndWebhooks: a webhook of the workspace that does not answer is its people's to mend: an Event on the Service says so, and the Service leads to its pods once it is mended.
func TestEndpointSlicesAndWebhooks(t *testing.T) {
	s := startEndpoints(t, func(*Options) {})
	webhooks := s.shop.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err := webhooks.Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "away"}, Webhooks: []admissionregistrationv1.ValidatingWebhook{{
		Name: "slices.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: new(admissionregistrationv1.SideEffectClassNone), TimeoutSeconds: new(int32(1)),
		ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: new("https://127.0.0.1:1/")},
		Rules: []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{discoveryv1.GroupName}, APIVersions: []string{"v1"}, Resources: []string{"endpointslices"}},
		}},
	}}}, metav1.CreateOptions{})
	must(t, err)
	waitFor(t, time.Minute, "the webhook is known", func() (string, bool) {
		_, err := s.shop.DiscoveryV1().EndpointSlices(team).Create(t.Context(), &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "try-"}, AddressType: discoveryv1.AddressTypeIPv4,
		}, metav1.CreateOptions{})
		return fmt.Sprint(err), err != nil && strings.Contains(err.Error(), "failed calling webhook")
	})
	_, err = s.shop.CoreV1().Services(team).Create(t.Context(), webService(nil), metav1.CreateOptions{})
	must(t, err)
	saidOf(t, s.shop, "web", "FailedToUpdateEndpointSlices", `failed calling webhook "slices.example.com"`)
	endpointsSay(t, s.shop, "web", []string{})
	must(t, webhooks.Delete(t.Context(), "away", metav1.DeleteOptions{}))
	waitFor(t, time.Minute, "the webhook is not known any more", func() (string, bool) {
		_, err := s.shop.DiscoveryV1().EndpointSlices(team).Create(t.Context(), &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "try-"}, AddressType: discoveryv1.AddressTypeIPv4,
		}, metav1.CreateOptions{})
		return fmt.Sprint(err), err == nil
	})
	serves(t, s.east, s.below("web-1", nil), "10.1.1.1", true)
	leadsTo(t, s.shop, team, "web", "web-1 10.1.1.1 on us-east-1 true")
}

// TestEndpointSlicesAfterAStart: a server that starts finds what has changed meanwhile.
func TestEndpointSlicesAfterAStart(t *testing.T) {
	s := startShowing(t)
	_, err := s.shop.CoreV1().Services(team).Create(t.Context(), webService(nil), metav1.CreateOptions{})
	must(t, err)
	owned := func(name string, change func(*discoveryv1.EndpointSlice)) {
		service, err := s.shop.CoreV1().Services(team).Get(t.Context(), "web", metav1.GetOptions{})
		must(t, err)
		slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: endpoints.ControllerName},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(service, corev1.SchemeGroupVersion.WithKind("Service"))},
		}, AddressType: discoveryv1.AddressTypeIPv4}
		change(slice)
		_, err = s.shop.DiscoveryV1().EndpointSlices(team).Create(t.Context(), slice, metav1.CreateOptions{})
		must(t, err)
	}
	gone := discoveryv1.Endpoint{Addresses: []string{"10.1.1.9"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: team, Name: "gone"}}
	owned("web", func(s *discoveryv1.EndpointSlice) { s.Endpoints = []discoveryv1.Endpoint{gone} })
	_, err = s.shop.CoreV1().Services(team).Create(t.Context(), webService(func(s *corev1.Service) { s.Name, s.Spec.Selector = "bare", nil }), metav1.CreateOptions{})
	must(t, err)
	bare, err := s.shop.CoreV1().Services(team).Get(t.Context(), "bare", metav1.GetOptions{})
	must(t, err)
	owned("bare", func(s *discoveryv1.EndpointSlice) {
		s.Endpoints = []discoveryv1.Endpoint{gone}
		s.OwnerReferences[0].Name, s.OwnerReferences[0].UID = "bare", bare.UID
	})
	serves(t, s.east, s.below("web-1", nil), "10.1.1.1", true)
	runController(t, s.running, func(c *client.Clients, i *client.Informers) (*endpoints.Controller, error) {
		return endpoints.New(c, i, s.EndpointRows(), clock.RealClock{})
	})
	leadsTo(t, s.shop, team, "web", "web-1 10.1.1.1 on us-east-1 true")
	waitFor(t, time.Minute, "nothing is left of a selector that is not there", func() (string, bool) {
		left := slicesOf(t, s.shop, team, "bare")
		return fmt.Sprintf("%+v", left), len(left) == 0
	})
}

// endpointsSay waits until the Endpoints of a Service have those addresses, ready or not; nil for none at all.
func endpointsSay(t *testing.T, kube kubernetes.Interface, name string, want []string) {
	t.Helper()
	waitFor(t, time.Minute, fmt.Sprintf("Endpoints %s say %v", name, want), func() (string, bool) {
		e, err := kube.CoreV1().Endpoints(team).Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "there are none", want == nil
		}
		must(t, err)
		got := []string{}
		for _, s := range e.Subsets {
			for _, a := range s.Addresses {
				got = append(got, a.IP)
			}
			for _, a := range s.NotReadyAddresses {
				got = append(got, a.IP+" not ready")
			}
		}
		slices.Sort(got)
		return fmt.Sprintf("%+v", e), want != nil && slices.Equal(got, want)
	})
}

// TestEndpoints: Endpoints are as the slices of their Service, and go with it, also if somebody made them once more, or while nobody looked.
func TestEndpoints(t *testing.T) {
	s := startShowing(t)
	made := func(name string) *endpoints.Endpoints {
		return &endpoints.Endpoints{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"endpoints.kubernetes.io/managed-by": "endpoint-controller"}},
			Subsets:    []endpoints.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: "10.1.1.9", TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "gone"}}}}},
		}
	}
	theirs := &endpoints.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}, Subsets: []endpoints.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: "192.0.2.1"}}}}}
	for _, e := range []*endpoints.Endpoints{made("left"), theirs} {
		_, err := s.shop.CoreV1().Endpoints(team).Create(t.Context(), e, metav1.CreateOptions{})
		must(t, err)
	}
	runController(t, s.running, func(c *client.Clients, i *client.Informers) (*endpoints.Controller, error) {
		return endpoints.New(c, i, s.EndpointRows(), clock.RealClock{})
	})
	endpointsSay(t, s.shop, "left", nil)
	_, err := s.shop.CoreV1().Services(team).Create(t.Context(), webService(nil), metav1.CreateOptions{})
	must(t, err)
	endpointsSay(t, s.shop, "web", []string{})
	serves(t, s.east, s.below("web-1", nil), "10.1.1.1", true)
	serves(t, s.west, s.below("web-2", func(p *corev1.Pod) { p.OwnerReferences[0].UID = s.leafIn(t, west) }), "10.1.1.2", false)
	want := []string{"10.1.1.1", "10.1.1.2 not ready"}
	endpointsSay(t, s.shop, "web", want)
	must(t, s.shop.CoreV1().Endpoints(team).Delete(t.Context(), "web", metav1.DeleteOptions{}))
	endpointsSay(t, s.shop, "web", want)
	_, err = s.shop.CoreV1().Endpoints(team).Patch(t.Context(), "web", types.MergePatchType, []byte(`{"subsets":null}`), metav1.PatchOptions{})
	must(t, err)
	endpointsSay(t, s.shop, "web", want)
	must(t, s.shop.CoreV1().Services(team).Delete(t.Context(), "web", metav1.DeleteOptions{}))
	endpointsSay(t, s.shop, "web", nil)
	_, err = s.shop.CoreV1().Endpoints(team).Create(t.Context(), made("web"), metav1.CreateOptions{})
	must(t, err)
	endpointsSay(t, s.shop, "web", nil)
	endpointsSay(t, s.shop, "theirs", []string{"192.0.2.1"})
}

// TestMirroredEndpoints: of what somebody writes into Endpoints for a Service without a selector there are slices, whichever of both is first.
func TestMirroredEndpoints(t *testing.T) {
	s := startEndpoints(t, func(*Options) {})
	bare := webService(func(s *corev1.Service) { s.Spec.Selector = nil })
	written := &endpoints.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Subsets: []endpoints.EndpointSubset{{
		Addresses: []corev1.EndpointAddress{{IP: "192.0.2.1"}}, Ports: []corev1.EndpointPort{{Name: "http", Port: 8080}},
	}}}
	leads := func(want ...string) {
		t.Helper()
		waitFor(t, time.Minute, fmt.Sprintf("the slices lead to %v", want), func() (string, bool) {
			var got []string
			for _, slice := range slicesOf(t, s.shop, team, "web") {
				for _, e := range slice.Endpoints {
					got = append(got, slice.Labels[discoveryv1.LabelManagedBy]+" "+e.Addresses[0])
				}
			}
			return fmt.Sprint(got), slices.Equal(got, want)
		})
	}
	all := s.shop.CoreV1().Endpoints(team)
	_, err := all.Create(t.Context(), written, metav1.CreateOptions{})
	must(t, err)
	_, err = s.shop.CoreV1().Services(team).Create(t.Context(), bare, metav1.CreateOptions{})
	must(t, err)
	leads(endpoints.MirroringControllerName + " 192.0.2.1")
	_, err = all.Patch(t.Context(), "web", types.MergePatchType, []byte(`{"subsets":[{"addresses":[{"ip":"192.0.2.2"}],"ports":[{"name":"http","port":8080}]}]}`), metav1.PatchOptions{})
	must(t, err)
	leads(endpoints.MirroringControllerName + " 192.0.2.2")
	must(t, s.shop.DiscoveryV1().EndpointSlices(team).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	leads(endpoints.MirroringControllerName + " 192.0.2.2")
	serves(t, s.east, s.below("web-1", nil), "10.1.1.1", true)
	_, err = s.shop.CoreV1().Services(team).Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"selector":{"app":"web"}}}`), metav1.PatchOptions{})
	must(t, err)
	leads(endpoints.ControllerName + " 10.1.1.1")
}
