package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/test/framework"
)

// asking is what asks for its namespace as operators and charts do: a Deployment, in variables of its containers and in a file, and a pod of its own.
func (w *workspace) asking(replicas int) string {
	const ask = `[
        {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}},
        {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}},
        {name: PEER, value: $(POD_NAME).db.$(POD_NAMESPACE).svc.cluster.local}]`
	return strings.NewReplacer("APP", w.app, "REPLICAS", fmt.Sprint(replicas), "ASK", ask).Replace(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: APP}
spec:
  replicas: REPLICAS
  selector: {matchLabels: {app: APP}}
  template:
    metadata: {labels: {app: APP}}
    spec:
      initContainers: [{name: init, image: registry.example/db:1, env: ASK}]
      containers: [{name: main, image: registry.example/db:1, env: ASK}]
      volumes:
      - {name: pod, downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: solo}
spec:
  terminationGracePeriodSeconds: 2
  containers: [{name: main, image: registry.example/db:1, env: ASK}]
`)
}

// podsOfApp are the Ready pods of the app in the workspace.
func (w *workspace) podsOfApp() []corev1.Pod {
	w.t.Helper()
	list, err := w.f.Clients().Kube.CoreV1().Pods("default").List(w.ctx(), metav1.ListOptions{LabelSelector: "app=" + w.app})
	if err != nil {
		w.t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return !isReady(&p) })
}

// toldTheirNamespace wants all of so many pods of the app to be told that their namespace is called so, and to be shown as they were written; it returns their
// UIDs.
func (w *workspace) toldTheirNamespace(when string, pods int, namespace string) (uids []types.UID) {
	w.t.Helper()
	framework.Eventually(w.t, patience, fmt.Sprintf("%s, %d pods serve", when, pods), func() string {
		out := w.kubectl("get", "pods", "-l", "app="+w.app)
		if n := len(w.podsOfApp()); n != pods || strings.Count(out, w.app) != pods {
			return out
		}
		return ""
	})
	for _, pod := range w.podsOfApp() {
		w.isTold(when, pod.Name, namespace)
		uids = append(uids, pod.UID)
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			if got := c.Env[len(c.Env)-2].ValueFrom.FieldRef.FieldPath; got != "metadata.namespace" {
				w.t.Errorf("%s, pod %s is shown to read %s", when, pod.Name, got)
			}
		}
		if _, has := pod.Annotations[workloadv1alpha1.NamespaceAnnotation]; has || pod.Spec.Volumes[0].DownwardAPI.Items[0].FieldRef.FieldPath != "metadata.namespace" {
			w.t.Errorf("%s, pod %s is shown with annotations %v and volumes %+v", when, pod.Name, pod.Annotations, pod.Spec.Volumes)
		}
	}
	return uids
}

// isTold asks a command in a pod.
func (w *workspace) isTold(when, pod, namespace string) {
	w.t.Helper()
	want := fmt.Sprintf("%s %s.db.%s.svc.cluster.local\n", namespace, pod, namespace)
	if got := w.stdout("exec", pod, "--container=main", "--", "sh", "-c", "echo $POD_NAMESPACE $PEER"); got != want {
		w.t.Errorf("%s, pod %s is told %q, want %q", when, pod, got, want)
	}
}

// dnsKnows says of the DNS of a cluster that it knows workspaces, or that it does not any more.
func (w *workspace) dnsKnows(cluster string, known bool) {
	w.t.Helper()
	w.f.MustRun("kubectl", "--context=root", "patch", "synctarget", cluster, "--type=merge", "--patch", fmt.Sprintf(`{"spec":{"dnsKnowsWorkspaces":%v}}`, known))
}

// TestPodsAreToldTheirNamespace: where the administrator says that the DNS of a cluster knows workspaces, pods are told what their namespace is called in
// theirs, and elsewhere what it is called there. That this changes replaces nothing that runs.
func TestPodsAreToldTheirNamespace(t *testing.T) {
	inModes(t, func(t *testing.T, pulled ...string) {
		f := &fleet{Atoll: framework.StartAtoll(t), clusters: map[string]*framework.Physical{}, syncers: map[string]*framework.Syncer{}}
		for name, flags := range map[string][]string{"east": {"--dns-knows-workspaces"}, "west": nil} {
			c := framework.StartPhysical(t, name, framework.PhysicalExecOnHost())
			f.clusters[name] = c
			add := append([]string{"cluster", "add", name}, flags...)
			if !slices.Contains(pulled, name) {
				f.MustRun(append(add, "--kubeconfig", c.Kubeconfig)...)
				continue
			}
			f.syncers[name] = framework.StartSyncer(t, f.Atoll, c, f.MustStdout(append(add, "--manifest", "--allow-loopback")...))
		}
		for name := range f.clusters {
			f.clusterReady(t, name)
		}
		w := f.workspace(t, "told")
		w.place("east")
		w.kubectlWithInput(w.asking(2), "apply", "-f", "-")
		w.toldTheirNamespace("where the DNS knows", 2, "default")
		w.runsIn("east", "solo")
		w.isTold("where the DNS knows", "solo", "default")
		solo, err := w.pod("solo")
		if err != nil {
			t.Fatal(err)
		}
		if _, has := solo.Annotations[workloadv1alpha1.NamespaceAnnotation]; has || solo.Spec.Containers[0].Env[1].ValueFrom.FieldRef.FieldPath != "metadata.namespace" {
			t.Errorf("a pod of its own is shown with annotations %v, and reads %+v", solo.Annotations, solo.Spec.Containers[0].Env)
		}
		w.debugsAsking("east", w.podsOfApp()[0].Name)
		w.debugsAsking("east", "solo")
		// Its labels are its owner's, and what it is told stays.
		w.kubectl("label", "pod", "solo", "more=yes")
		framework.Eventually(t, patience, "the label is below", func() string {
			down, err := w.podIn("east", "solo")
			if err != nil || down.Labels["more"] != "yes" || down.Annotations[workloadv1alpha1.NamespaceAnnotation] != "default" {
				return fmt.Sprintf("%+v %v", down.ObjectMeta, err)
			}
			return ""
		})

		w.place("west")
		w.spread(map[string]int{"west": 2})
		there := w.namespaceIn("west")
		before := w.toldTheirNamespace("where it does not", 2, there)
		// From here on it does, in west. What runs stays, also when it is scaled.
		w.dnsKnows("west", true)
		w.kubectl("scale", "deployment/"+w.app, "--replicas=3")
		w.spread(map[string]int{"west": 3})
		if now := w.toldTheirNamespace("since the DNS knows", 3, there); !slices.Contains(now, before[0]) || !slices.Contains(now, before[1]) {
			t.Errorf("pods %v were replaced, and are %v", before, now)
		}
		w.kubectl("rollout", "restart", "deployment/"+w.app)
		w.rolledOut()
		w.toldTheirNamespace("started again", 3, "default")
		w.kubectl("rollout", "undo", "deployment/"+w.app)
		w.rolledOut()
		before = w.toldTheirNamespace("with the template of before", 3, "default")
		w.dnsKnows("west", false)
		w.kubectl("scale", "deployment/"+w.app, "--replicas=4")
		w.spread(map[string]int{"west": 4})
		now := w.toldTheirNamespace("since the DNS does not any more", 4, "default")
		for _, uid := range before {
			if !slices.Contains(now, uid) {
				t.Errorf("pod %s was replaced", uid)
			}
		}
		// It is in two clusters, each with what its own DNS knows.
		w.kubectl("rollout", "restart", "deployment/"+w.app)
		w.rolledOut()
		w.toldTheirNamespace("started again", 4, there)
		w.place("east,west")
		w.spread(map[string]int{"east": 2, "west": 2})
		w.rolledOut()
		for _, pod := range w.podsOfApp() {
			w.isTold("beside each other", pod.Name, map[string]string{"east": "default", "west": there}[pod.Spec.NodeName])
		}
	})
}

// debugsAsking adds a container that asks for its namespace to a pod in a cluster whose DNS knows workspaces.
func (w *workspace) debugsAsking(cluster, pod string) {
	w.t.Helper()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"ephemeralContainers": []any{map[string]any{
		"name": "debug", "image": "registry.example/tools:1", "env": []any{map[string]any{"name": "N", "valueFrom": map[string]any{"fieldRef": map[string]any{"fieldPath": "metadata.namespace"}}}},
	}}}})
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.f.Clients().Kube.CoreV1().Pods("default").Patch(w.ctx(), pod, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "ephemeralcontainers"); err != nil {
		w.t.Fatal(err)
	}
	want := "metadata.annotations['" + workloadv1alpha1.NamespaceAnnotation + "']"
	framework.Eventually(w.t, patience, "the container is in pod "+pod+" below", func() string {
		down, err := w.podIn(cluster, pod)
		if err != nil || len(down.Spec.EphemeralContainers) == 0 {
			return fmt.Sprintf("%+v %v", down, err)
		}
		if got := down.Spec.EphemeralContainers[0].Env[0].ValueFrom.FieldRef.FieldPath; got != want || down.Annotations[workloadv1alpha1.NamespaceAnnotation] != "default" {
			return fmt.Sprintf("it reads %s, want %s; its annotations are %v", got, want, down.Annotations)
		}
		return ""
	})
}
