package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"atoll.dev/atoll/test/framework"
)

// leadsToPods waits until the Service of the app leads to exactly the pods that the workspace shows, each as it is.
func (w *workspace) leadsToPods(n int) {
	w.t.Helper()
	framework.Eventually(w.t, patience, fmt.Sprintf("Service %s leads to its %d pods", w.app, n), func() string {
		var want, got []string
		for name, pod := range w.shownPods() {
			want = append(want, fmt.Sprintf("%s %s on %s %v", name, pod.Status.PodIP, pod.Spec.NodeName, isReady(pod)))
		}
		list, err := w.f.Clients().Kube.DiscoveryV1().EndpointSlices("default").List(w.ctx(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + w.app})
		if err != nil {
			return err.Error()
		}
		for _, slice := range list.Items {
			for _, e := range slice.Endpoints {
				got = append(got, fmt.Sprintf("%s %s on %s %v", e.TargetRef.Name, strings.Join(e.Addresses, ","), ptr.Deref(e.NodeName, ""), *e.Conditions.Ready))
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if len(want) != n || len(list.Items) != 1 || !slices.Equal(want, got) {
			return fmt.Sprintf("%d slices lead to %v, and the pods are %v", len(list.Items), got, want)
		}
		return ""
	}, w.state)
}

// fullSaysSo: where a quota is reached, who looks at his Service reads why it leads nowhere; the one that had its slices still leads where it did, and the other to the same pods once there is room.
func fullSaysSo(w *workspace) {
	w.t.Helper()
	w.kubectl("create", "quota", "full", "--hard=count/endpointslices.discovery.k8s.io=1")
	w.kubectl("wait", "quota/full", "--for=jsonpath={.status.used['count/endpointslices\\.discovery\\.k8s\\.io']}=1", "--timeout=60s")
	w.kubectl("expose", "deployment", w.app, "--name=second", "--port=80", "--target-port=8080")
	framework.Eventually(w.t, patience, "kubectl describe says that the quota is reached", func() string {
		described := w.stdout("describe", "service", "second")
		for _, word := range []string{"FailedToUpdateEndpointSlices", "Error updating Endpoint Slices for Service default/second", "exceeded quota: full"} {
			if !strings.Contains(described, word) {
				return described
			}
		}
		return ""
	}, w.state)
	w.leadsToPods(4)
	w.kubectl("delete", "quota", "full")
	w.kubectl("label", "service", "second", "room=there-is") // without it, it is tried after half a minute, or later
	w.kubectl("wait", "endpointslices", "--selector=kubernetes.io/service-name=second,room=there-is", "--for=jsonpath={.endpoints[3].conditions.ready}=true", "--timeout=60s")
	w.kubectl("delete", "service", "second")
}

// servicesLead: a Service of a workspace leads to its pods in all physical clusters, as they come, move and go; in each of these it leads to the pods there, as that cluster says.
func servicesLead(t *testing.T, f *fleet) {
	w := f.workspace(t, "leads")
	w.place("east,west")
	w.apply(4, "1s")
	w.spread(map[string]int{"east": 2, "west": 2})
	w.leadsToPods(4)
	w.kubectl("wait", "endpointslices", "--selector=kubernetes.io/service-name="+w.app, "--for=jsonpath={.endpoints[3].conditions.ready}=true", "--timeout=60s")
	if described := w.stdout("describe", "service", w.app); !strings.Contains(described, ":8080 + 1 more...") { // it says three
		t.Errorf("kubectl describe service says:\n%s", described)
	}
	for name, c := range f.clusters {
		below, err := c.Clientset().DiscoveryV1().EndpointSlices(w.namespaceIn(name)).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, slice := range below.Items {
			if len(slice.Endpoints) != 2 {
				t.Errorf("in %s there is %s, which leads to %d pods, want the two that are there", name, slice.Name, len(slice.Endpoints))
			}
		}
	}
	fullSaysSo(w)
	w.place("west")
	w.spread(map[string]int{"west": 4})
	w.gone("east")
	w.leadsToPods(4)
	w.kubectl("scale", "deployment/"+w.app, "--replicas=0")
	w.leadsToPods(0)
	w.kubectl("delete", "service", w.app)
	framework.Eventually(t, patience, "nothing is left of the Service's slices", func() string {
		list, err := f.Clients().Kube.DiscoveryV1().EndpointSlices("default").List(w.ctx(), metav1.ListOptions{})
		if err != nil || len(list.Items) > 0 {
			return fmt.Sprintf("%v, %+v", err, list.Items)
		}
		return ""
	})
}
