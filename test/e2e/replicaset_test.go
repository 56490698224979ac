package e2e

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/atoll/test/framework"
)

// crew is the name of a ReplicaSet, in whatever workspace.
const crew = "crew"

// replicaSetManifest is one that no Deployment has, with the ConfigMap that its pods need.
func (w *workspace) replicaSetManifest(replicas int, version string) string {
	return strings.NewReplacer("SET", crew, "APP", w.app, "REPLICAS", fmt.Sprint(replicas), "VERSION", version).Replace(`
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: SET}
spec:
  replicas: REPLICAS
  selector: {matchLabels: {app: APP}}
  template:
    metadata:
      labels: {app: APP}
      annotations: {simulate.atoll.dev/ready-after: 2s}
    spec:
      containers:
      - name: hand
        image: registry.example/hand:VERSION
        envFrom: [{configMapRef: {name: SET}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: SET}
data: {greeting: hello}
`)
}

// replicaSet reads the root.
func (w *workspace) replicaSet() *appsv1.ReplicaSet {
	w.t.Helper()
	r, err := w.f.Clients().Kube.AppsV1().ReplicaSets("default").Get(w.ctx(), crew, metav1.GetOptions{})
	if err != nil {
		w.t.Fatalf("read the ReplicaSet: %v", err)
	}
	return r
}

// replicaSetIn reads what a cluster made of it.
func (w *workspace) replicaSetIn(cluster string) (*appsv1.ReplicaSet, error) {
	return w.f.clusters[cluster].Clientset().AppsV1().ReplicaSets(w.namespaceIn(cluster)).Get(w.t.Context(), crew, metav1.GetOptions{})
}

// sums waits until the ReplicaSet says that so many pods are there and serve, and nothing else.
func (w *workspace) sums(n int32) {
	w.t.Helper()
	framework.Eventually(w.t, patience, fmt.Sprintf("the ReplicaSet says %d", n), func() string {
		r := w.replicaSet()
		s := r.Status
		if s.Replicas != n || s.FullyLabeledReplicas != n || s.ReadyReplicas != n || s.AvailableReplicas != n || s.ObservedGeneration != r.Generation || len(s.Conditions) > 0 {
			return fmt.Sprintf("at generation %d it says %+v", r.Generation, s)
		}
		return ""
	}, w.state)
}

// replicaSetRuns: as a Deployment its replicas are divided, its pods shown, counted by budgets, scaled, moved without a dip and deleted; and pods that run
// stay when its template changes.
func replicaSetRuns(t *testing.T, f *fleet) {
	w, other := f.workspace(t, "set"), f.workspace(t, "set-too")
	w.place("east,west")
	other.place("east")
	manifest := w.replicaSetManifest(4, "1")
	if out := w.kubectlWithInput(manifest, "apply", "-f", "-"); strings.Contains(out, "Warning") {
		t.Errorf("who applies it is warned: %s", out)
	}
	other.kubectlWithInput(other.replicaSetManifest(2, "other"), "apply", "-f", "-")
	w.spread(map[string]int{"east": 2, "west": 2})
	other.spread(map[string]int{"east": 2})
	w.sums(4)
	other.sums(2)
	w.show().ends("east 2/2,west 2/2")
	if out := strings.Fields(w.kubectl("get", "rs", crew, "--no-headers")); len(out) < 4 || strings.Join(out[:4], " ") != crew+" 4 4 4" {
		t.Errorf("kubectl get rs shows %q", out)
	}
	for _, of := range []*workspace{w, other} {
		root := of.replicaSet()
		of.showsPodsOf(root)
		for name, pod := range of.shownPods() {
			if !metav1.IsControlledBy(pod, root) || len(pod.OwnerReferences) != 1 {
				t.Errorf("pod %s of %s has owners %v", name, of.app, pod.OwnerReferences)
			}
		}
	}
	version := w.replicaSet().ResourceVersion
	w.kubectlWithInput(manifest, "apply", "-f", "-")
	if now := w.replicaSet().ResourceVersion; now != version {
		t.Errorf("a second apply changed the ReplicaSet from version %s to %s", version, now)
	}

	// What runs stays with another template, and what takes its place has that. What the earlier one refers to stays until nothing runs of it.
	before := w.shownPods()
	w.kubectl("create", "configmap", crew+"-2", "--from-literal=greeting=hello again")
	w.kubectl("patch", "rs", crew, "-p", `{"spec": {"template": {"spec": {"containers": [{"name": "hand", "image": "registry.example/hand:2", "envFrom": [{"configMapRef": {"name": "`+crew+`-2"}}]}]}}}}`)
	framework.Eventually(t, patience, "its clusters have the new template", func() string {
		for _, cluster := range []string{"east", "west"} {
			below, err := w.replicaSetIn(cluster)
			if err != nil || below.Spec.Template.Spec.Containers[0].Image != "registry.example/hand:2" {
				return fmt.Sprintf("%s: %v, %v", cluster, below, err)
			}
		}
		return ""
	})
	w.sums(4)
	w.kubectl("create", "poddisruptionbudget", w.app, "--selector=app="+w.app, "--max-unavailable=1")
	w.allows(4, 1)
	evicted := anyOf(before)
	if err := w.evict(evicted); err != nil {
		t.Fatalf("evict %s: %v", evicted, err)
	}
	w.podGone(before[evicted].Spec.NodeName, evicted)
	delete(before, evicted)
	w.spread(map[string]int{"east": 2, "west": 2})
	w.allows(4, 1)
	w.showsPodsOf(w.replicaSet())
	for name, pod := range w.shownPods() {
		was, image := before[name], pod.Spec.Containers[0].Image
		if was != nil && (was.UID != pod.UID || image != "registry.example/hand:1") || was == nil && image != "registry.example/hand:2" {
			t.Errorf("pod %s runs %s; was it there before: %v", name, image, was != nil)
		}
	}

	settings := func(cluster, name string) error {
		_, err := w.f.clusters[cluster].Clientset().CoreV1().ConfigMaps(w.namespaceIn(cluster)).Get(t.Context(), name, metav1.GetOptions{})
		return err
	}
	for _, cluster := range []string{"east", "west"} {
		if err := settings(cluster, crew); err != nil {
			t.Errorf("what pods of the earlier template refer to in %s: %v", cluster, err)
		}
	}
	w.kubectl("scale", "rs", crew, "--replicas=5")
	w.spread(map[string]int{"east": 3, "west": 2})
	w.sums(5)
	o := w.observe()
	w.place("west")
	w.spread(map[string]int{"west": 5})
	w.gone("east")
	o.neverBelow(t, 5)
	w.sums(5)
	w.showsPodsOf(w.replicaSet())

	w.kubectl("scale", "rs", crew, "--replicas=0")
	w.spread(map[string]int{})
	w.sums(0)
	framework.Eventually(t, patience, "what nothing refers to any more is gone, and the rest is not", func() string {
		if err := settings("west", crew); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("that of the earlier template: %v", err)
		}
		if err := settings("west", crew+"-2"); err != nil {
			return err.Error()
		}
		return ""
	})
	w.kubectl("scale", "rs", crew, "--replicas=1")
	w.spread(map[string]int{"west": 1})
	if out, err := w.try("delete", "rs", crew, "--cascade=orphan"); err == nil || !strings.Contains(out, "cannot be kept") {
		t.Errorf("to delete it and keep its pods: %v, %s", err, out)
	}
	w.kubectl("delete", "rs", crew, "--cascade=foreground", "--wait")
	w.spread(map[string]int{})
	w.gone("west")
	framework.Eventually(t, patience, "no pod is shown", func() string {
		if pods := w.shownPods(); len(pods) > 0 {
			return fmt.Sprintf("%d are", len(pods))
		}
		return ""
	})
	other.sums(2)
	other.kubectl("delete", "rs,configmap", crew)
	other.spread(map[string]int{})
}

// replicaSetBeside: a Deployment that selects its labels does not take it over, neither here nor in the physical cluster.
func replicaSetBeside(t *testing.T, f *fleet) {
	w := f.workspace(t, "beside")
	w.place("east")
	w.apply(2, "")
	w.rolledOut()
	w.kubectlWithInput(strings.Replace(w.replicaSetManifest(3, "1"), "{name: "+crew+"}", "{name: "+crew+", labels: {app: "+w.app+"}}", 1), "apply", "-f", "-")
	w.spread(map[string]int{"east": 5})
	w.sums(3)
	below, err := w.replicaSetIn("east")
	if err != nil || len(below.OwnerReferences) > 0 || below.Labels["app"] != "" {
		t.Errorf("the physical cluster has it with labels %v and owners %v, %v", below.Labels, below.OwnerReferences, err)
	}
	w.kubectl("delete", "rs", crew)
	w.spread(map[string]int{"east": 2})
	w.rolledOut()
}
