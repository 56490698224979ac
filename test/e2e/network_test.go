package e2e

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"atoll.dev/atoll/test/framework"
)

// ingressMoves: an Ingress is where its namespace is, with its certificate, and has the addresses of the clusters it is in.
func ingressMoves(t *testing.T, f *fleet) {
	w := f.workspace(t, "front")
	w.place("east,west")
	w.apply(2, "")
	w.kubectlWithInput(strings.NewReplacer("APP", w.app, "PEM", base64.StdEncoding.EncodeToString([]byte("a certificate"))).Replace(`
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: APP}
spec:
  tls: [{hosts: [shop.example], secretName: APP-tls}]
  defaultBackend: {service: {name: APP, port: {number: 80}}}
---
apiVersion: v1
kind: Secret
metadata: {name: APP-tls}
type: kubernetes.io/tls
data: {tls.crt: PEM, tls.key: PEM}
`), "apply", "-f", "-")

	// No ingress controller is there: this one says what it would.
	answers := func(cluster, address string) {
		t.Helper()
		framework.Eventually(t, patience, "the Ingress and its certificate are in "+cluster, func() string {
			ns := w.namespaceIn(cluster)
			if ns == "" {
				return "its namespace is not there"
			}
			kube := f.clusters[cluster].Clientset()
			if _, err := kube.CoreV1().Secrets(ns).Get(t.Context(), w.app+"-tls", metav1.GetOptions{}); err != nil {
				return err.Error()
			}
			ingress, err := kube.NetworkingV1().Ingresses(ns).Get(t.Context(), w.app, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			ingress.Status.LoadBalancer.Ingress = []networkingv1.IngressLoadBalancerIngress{{IP: address}}
			if _, err = kube.NetworkingV1().Ingresses(ns).UpdateStatus(t.Context(), ingress, metav1.UpdateOptions{}); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	reachedAt := func(want ...string) {
		t.Helper()
		framework.Eventually(t, patience, "its addresses come up", func() string {
			out := w.kubectl("get", "ingress", w.app, "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}")
			if got := strings.Fields(out); !slices.Equal(got, want) {
				return fmt.Sprintf("they are %v, want %v", got, want)
			}
			return ""
		})
	}
	answers("west", "192.0.2.2")
	answers("east", "192.0.2.1")
	reachedAt("192.0.2.1", "192.0.2.2")

	w.place("west")
	w.spread(map[string]int{"west": 2})
	w.gone("east")
	reachedAt("192.0.2.2")

	w.kubectl("delete", "ingress", w.app)
	framework.Eventually(t, patience, "the certificate goes after the Ingress", func() string {
		kube, ns := f.clusters["west"].Clientset(), w.namespaceIn("west")
		_, err := kube.NetworkingV1().Ingresses(ns).Get(t.Context(), w.app, metav1.GetOptions{})
		_, of := kube.CoreV1().Secrets(ns).Get(t.Context(), w.app+"-tls", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) || !apierrors.IsNotFound(of) {
			return fmt.Sprintf("Ingress: %v, Secret: %v", err, of)
		}
		return ""
	})
}

// policyGoesAlong: a NetworkPolicy is, as is a LimitRange, wherever something of its namespace is, means the workspace's namespaces by their labels, and
// lets in no other tenant; the one that keeps tenants apart cannot be replaced.
func policyGoesAlong(t *testing.T, f *fleet) {
	w := f.workspace(t, "guarded")
	w.place("east")
	w.apply(2, "")
	w.kubectl("annotate", "deployment", w.app, "placement.atoll.dev/clusters=west")
	w.kubectl("label", "namespace", "default", "team=a")
	w.kubectlWithInput(strings.ReplaceAll(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: APP}
spec:
  podSelector: {matchLabels: {app: APP}}
  ingress:
  - from: [{namespaceSelector: {matchLabels: {team: a}}}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: atoll-tenant-isolation}
spec: {podSelector: {}, ingress: [{}]}
---
apiVersion: v1
kind: LimitRange
metadata: {name: APP}
spec: {limits: [{type: Container, max: {cpu: "4"}}]}
`, "APP", w.app), "apply", "-f", "-")
	for _, cluster := range []string{"east", "west"} {
		framework.Eventually(t, patience, "the policy stands in "+cluster, func() string {
			ns := w.namespaceIn(cluster)
			if ns == "" {
				return "its namespace is not there"
			}
			kube := f.clusters[cluster].Clientset()
			namespace, err := kube.CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			if _, err := kube.CoreV1().LimitRanges(ns).Get(t.Context(), w.app, metav1.GetOptions{}); err != nil {
				return err.Error()
			}
			policies, err := kube.NetworkingV1().NetworkPolicies(ns).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err.Error()
			}
			if len(policies.Items) != 3 { // the floor's, what it lets in by default, and this one
				return fmt.Sprintf("there are %d policies", len(policies.Items))
			}
			for _, p := range policies.Items {
				switch p.Name {
				case w.app:
					own, err := metav1.LabelSelectorAsSelector(p.Spec.Ingress[0].From[0].NamespaceSelector)
					if err != nil {
						t.Fatal(err)
					}
					if !own.Matches(labels.Set(namespace.Labels)) {
						return fmt.Sprintf("namespace %v is not let in by %s", namespace.Labels, own)
					}
				case "atoll-tenant-isolation":
					if len(p.Spec.PodSelector.MatchLabels)+len(p.Spec.PodSelector.MatchExpressions)+len(p.Spec.Ingress) > 0 {
						return fmt.Sprintf("the policy that keeps tenants apart is %+v", p.Spec)
					}
				}
			}
			return ""
		})
	}
	framework.Eventually(t, patience, "who wants the name of the policy that keeps tenants apart is told", func() string {
		out := w.kubectl("get", "events", "--field-selector", "involvedObject.name=atoll-tenant-isolation", "-o", "jsonpath={.items[*].reason}")
		if !strings.Contains(out, "NameConflict") {
			return fmt.Sprintf("reasons are %q", out)
		}
		return ""
	})
	w.rolledOut()
	w.boundFromTheFirst()
	w.kubectl("delete", "networkpolicy", w.app, "atoll-tenant-isolation")
	w.kubectl("delete", "deployment,service", w.app)
	w.gone("east")
	w.gone("west")
}

// boundFromTheFirst: every pod of what is applied together with a LimitRange, in a namespace that is in its cluster already, has its defaults there.
// What an API server below makes of it when it is created, the workspace shows as it is.
func (w *workspace) boundFromTheFirst() {
	w.t.Helper()
	manifests := `
apiVersion: v1
kind: LimitRange
metadata: {name: defaults}
spec: {limits: [{type: Container, default: {memory: 96Mi}}]}
`
	const several = 5
	for i := range several {
		manifests += strings.NewReplacer("APP", w.app, "NAME", fmt.Sprint(w.app, "-", i)).Replace(`
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME, labels: {bound: APP}}
spec:
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME, bound: APP}}
    spec:
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: NAME}}, matchLabelKeys: [pod-template-hash]}
      containers: [{name: web, image: registry.k8s.io/pause:3.10}]
`)
	}
	w.kubectlWithInput(manifests, "apply", "-f", "-")
	of := metav1.ListOptions{LabelSelector: "bound=" + w.app}
	kube, ns := w.f.clusters["east"].Clientset(), w.namespaceIn("east")
	framework.Eventually(w.t, patience, "all are there, and shown", func() string {
		shown := strings.Fields(w.kubectl("get", "pods", "-l", of.LabelSelector, "-o", "name"))
		pods, err := kube.CoreV1().Pods(ns).List(w.t.Context(), of)
		if err != nil {
			return err.Error()
		}
		for _, p := range pods.Items {
			if limit := p.Spec.Containers[0].Resources.Limits.Memory(); limit.String() != "96Mi" {
				w.t.Fatalf("pod %s may use memory %s; want the default of its namespace, 96Mi", p.Name, limit)
			}
		}
		if len(pods.Items) != several || len(shown) != several {
			return fmt.Sprintf("%d pods are there, and shown are %v", len(pods.Items), shown)
		}
		return ""
	})
	w.kubectl("delete", "deployment", "-l", of.LabelSelector)
	w.kubectl("delete", "limitrange", "defaults")
}
