package realnodes

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/test/framework"
)

// dnsNeeds is what the plugin of contrib/dns needs besides what CoreDNS has, and a Service by which pods reach the server.
const dnsNeeds = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: coredns-workspaces}
rules: [{apiGroups: [""], resources: [pods, namespaces], verbs: [list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: coredns-workspaces}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: coredns-workspaces}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: coredns}]
---
apiVersion: v1
kind: Service
metadata: {name: atoll, namespace: atoll-system}
spec: {ports: [{name: https, port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: atoll, namespace: atoll-system, labels: {kubernetes.io/service-name: atoll}}
addressType: IPv4
endpoints: [{addresses: [%s]}]
ports: [{name: https, port: %d}]
`

// TestNames: pods of two workspaces in one cluster find what is theirs, by the names that it has in their workspace, and nothing else.
func TestNames(t *testing.T) {
	needsRealNodes(t)
	hub, port := hubForPods(t)
	east := framework.StartPhysical(t, "east", framework.PhysicalRealNode([]string{imageOfApp(t)}, port), framework.PhysicalWorkspaceNames())
	mustKubectl(t, east, "", "create", "namespace", "atoll-system")
	mustKubectl(t, east, fmt.Sprintf(dnsNeeds, framework.RealNodeAddress, port), "apply", "-f", "-")
	hub.MustRun("cluster", "add", "east", "--kubeconfig", east.Kubeconfig, "--dns-knows-workspaces")
	workspaces := map[string]*workspace{}
	for _, name := range []string{"shop", "bank"} {
		w := &workspace{T: t, hub: hub, east: east}
		w.clusterReady("east")
		w.cluster = framework.MakeWorkspace(t, hub.Clients(), "root", name)
		w.kubeconfig = hub.KubeconfigOf(t, "root:"+name)
		w.kubectl("", "create", "namespace", "back")
		w.kubectl(strings.ReplaceAll(talking, "from-the-workspace", "from-"+name), "apply", "-f", "-")
		w.kubectl(plain, "apply", "-n", "back", "-f", "-")
		workspaces[name] = w
	}
	workspaces["bank"].kubectl("", "create", "namespace", "vault")
	workspaces["bank"].kubectl(plain, "apply", "-n", "vault", "-f", "-")
	mustKubectl(t, east, plain, "apply", "-f", "-")
	for _, w := range workspaces {
		w.kubectl("", "rollout", "status", "deployment/web", "--timeout=3m")
		w.kubectl("", "-n", "back", "rollout", "status", "deployment/web", "--timeout=3m")
	}
	mustKubectl(t, east, "", "rollout", "status", "deployment/web", "--timeout=3m")

	// CoreDNS was there before it might list pods, and tries again after a while.
	framework.Eventually(t, patience, "names of the cluster are known", func() string {
		if got, err := workspaces["shop"].in("resolve", "web"); err != nil {
			return fmt.Sprint(got, err)
		}
		return ""
	})
	for name, w := range workspaces {
		own, ownIP := w.below("default")
		back, backIP := w.below("back")
		for question, want := range map[string]string{
			"web": ownIP, "web.default": ownIP, "web.default.svc": ownIP, "web.default.svc.cluster.local": ownIP, "web." + own: ownIP,
			"web.back": backIP, "web.back.svc": backIP, "web.back.svc.cluster.local": backIP, "web.back.svc.cluster.local.": backIP, "web." + back: backIP,
		} {
			if got, err := w.in("resolve", question); err != nil || strings.TrimSpace(got) != want {
				t.Errorf("%s, by a pod of %s, is %q %v, want %s", question, name, got, err, want)
			}
		}
		if got, err := w.in("get", "http://web.back/x"); err != nil || !strings.HasPrefix(got, "/x from web-") {
			t.Errorf("web.back answers %q %v", got, err)
		}
		for _, host := range []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc"} {
			if got, err := w.in("api", "https://"+host+"/api/v1/namespaces/default/configmaps/greeting"); err != nil || !strings.Contains(got, "from-"+name) {
				t.Errorf("the API is asked as %s, by a pod of %s: %q %v", host, name, got, err)
			}
		}
		// Aliases, of what is the workspace's and of what is not.
		for alias, of := range map[string]string{"ours": "web.back", "nobodys": "web.none"} {
			w.kubectl("", "create", "service", "externalname", alias, "--external-name="+of+".svc.cluster.local")
		}
		framework.Eventually(t, patience, "an alias is found", func() string {
			if got, err := w.in("resolve", "ours"); err != nil || strings.TrimSpace(got) != backIP {
				return fmt.Sprint(got, err)
			}
			return ""
		})
		// Nothing, and the physical cluster's own.
		for _, question := range []string{"nobodys.default.svc.cluster.local", "web.none.svc.cluster.local", "atoll.atoll-system.svc.cluster.local"} { // of what is not of the cluster a real node knows nothing
			if got, err := w.in("resolve", question); err == nil || !strings.Contains(got, "no such host") {
				t.Errorf("%s, by a pod of %s, is %q %v, want none", question, name, got, err)
			}
		}
	}
	shop, bank := workspaces["shop"], workspaces["bank"]
	for _, w := range workspaces {
		w.toldItsNamespace()
	}
	vault, _ := bank.below("vault")
	shop.kubectl("", "create", "service", "externalname", "theirs", "--external-name=web."+vault+".svc.cluster.local")
	back, _ := bank.below("back")
	for _, question := range []string{"theirs.default.svc.cluster.local", "web.vault.svc.cluster.local", "web." + vault + ".svc.cluster.local", "web." + back + ".svc.cluster.local"} {
		if got, err := shop.in("resolve", question); err == nil || !strings.Contains(got, "no such host") {
			t.Errorf("%s of another workspace is %q %v, want none", question, got, err)
		}
	}
	// Who is of no workspace is served as on any cluster.
	_, want := shop.below("back")
	back, _ = shop.below("back")
	if got := mustKubectl(t, east, "", "exec", "deployment/web", "--", "app", "resolve", "web."+back); strings.TrimSpace(got) != want {
		t.Errorf("web.%s, by a pod of the cluster's own, is %q, want %s", back, got, want)
	}
	if got := mustKubectl(t, east, "", "exec", "deployment/web", "--", "app", "resolve", "kubernetes.default.svc"); !strings.HasPrefix(got, "10.96.") {
		t.Errorf("the API, by a pod of the cluster's own, is %q", got)
	}
	t.Log("done: a pod finds the Services of its workspace as SERVICE, SERVICE.NAMESPACE, SERVICE.NAMESPACE.svc and by the whole name, with the plugin of contrib/dns")
	t.Log("done: it finds the API of its workspace as kubernetes.default.svc, by its token")
	t.Log("done: a pod that asks for its namespace is told what that is called in the workspace, in variables, in files and in arguments made of them, and finds its peers and itself by the names that it makes of it")
	t.Log("done: it finds nothing of another workspace in the same cluster, nor of the cluster itself, and the cluster's own pods find what they found before")
}

// peers are pods that find each other as those of a StatefulSet do, by names that they make of what they are told of themselves.
const peers = `
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, selector: {app: db}, ports: [{port: 8080}], publishNotReadyAddresses: true}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      initContainers:
      - {name: early, image: ` + appImage + `, args: [echo, "early in $(POD_NAMESPACE)"], env: [{name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}]}
      containers:
      - name: main
        image: ` + appImage + `
        args: [serve]
        env:
        - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
        - {name: SELF, value: $(POD_NAME).db.$(POD_NAMESPACE).svc.cluster.local}
        readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1}
        volumeMounts: [{name: pod, mountPath: /pod}]
      volumes:
      - {name: pod, projected: {sources: [{downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}}]}}
`

// toldItsNamespace: pods are told what their namespace is called in the workspace, and find each other by what they make of that.
func (w *workspace) toldItsNamespace() {
	w.Helper()
	w.kubectl(peers, "apply", "-f", "-")
	w.kubectl("", "rollout", "status", "statefulset/db", "--timeout=3m")
	if got := w.kubectl("", "logs", "db-0", "-c", "early"); got != "early in default\n" {
		w.Errorf("an init container is told %q", got)
	}
	in := func(pod string, args ...string) string {
		got, err := w.try("", append([]string{"exec", pod, "-c", "main", "--", "app"}, args...)...)
		if err != nil {
			return fmt.Sprint(got, err)
		}
		return strings.TrimSpace(got)
	}
	pods := w.pods("db")
	for i := range pods {
		self, other := &pods[i], &pods[len(pods)-1-i]
		for _, ask := range []struct {
			args []string
			want string
		}{
			{[]string{"env", "POD_NAMESPACE"}, "default"},
			{[]string{"read", "/pod/namespace"}, "default"},
			{[]string{"read", "/var/run/secrets/kubernetes.io/serviceaccount/namespace"}, "default"},
			{[]string{"env", "SELF"}, self.Name + ".db.default.svc.cluster.local"},
			{[]string{"resolve", self.Name + ".db.default.svc.cluster.local"}, self.Status.PodIP},
			{[]string{"resolve", other.Name + ".db.default.svc.cluster.local"}, other.Status.PodIP},
		} {
			// A name that was asked for before there was one is remembered as none for some seconds.
			framework.Eventually(w, patience, fmt.Sprintf("%s in %s is %q", strings.Join(ask.args, " "), self.Name, ask.want), func() string {
				if got := in(self.Name, ask.args...); got != ask.want {
					return got
				}
				return ""
			})
		}
	}
	if len(pods) != 2 {
		w.Errorf("there are %d pods", len(pods))
	}
}

// below is the namespace of the physical cluster that one of the workspace is, and the address of the Service web there.
func (w *workspace) below(namespace string) (name, address string) {
	w.Helper()
	list, err := w.east.Clientset().CoreV1().Namespaces().List(w.Context(), metav1.ListOptions{LabelSelector: fmt.Sprintf("%s=%s", workloadv1alpha1.WorkspaceLabel, w.cluster)})
	if err != nil {
		w.Fatal(err)
	}
	for _, ns := range list.Items {
		if ns.Annotations[workloadv1alpha1.RootAnnotation] != "/"+namespace {
			continue
		}
		service, err := w.east.Clientset().CoreV1().Services(ns.Name).Get(w.Context(), "web", metav1.GetOptions{})
		if err != nil {
			w.Fatal(err)
		}
		return ns.Name, service.Spec.ClusterIP
	}
	w.Fatalf("%s of %s is not in the physical cluster", namespace, w.cluster)
	return "", ""
}
