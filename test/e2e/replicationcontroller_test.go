package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/atoll/test/framework"
)

// hands is the name of a ReplicationController, in whatever workspace.
const hands = "hands"

// handsManifest is a ReplicationController as short as it may be, with the ConfigMap that its pods need.
func (w *workspace) handsManifest(replicas int) string {
	return strings.NewReplacer("NAME", hands, "APP", w.app, "REPLICAS", fmt.Sprint(replicas)).Replace(`
apiVersion: v1
kind: ReplicationController
metadata: {name: NAME}
spec:
  replicas: REPLICAS
  template:
    metadata:
      labels: {app: APP}
      annotations: {simulate.atoll.dev/ready-after: 2s}
    spec:
      containers:
      - name: hand
        image: registry.example/hand:1
        envFrom: [{configMapRef: {name: NAME}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: NAME}
data: {greeting: hello}
`)
}

// hands reads the root.
func (w *workspace) hands() *corev1.ReplicationController {
	w.t.Helper()
	rc, err := w.f.Clients().Kube.CoreV1().ReplicationControllers("default").Get(w.ctx(), hands, metav1.GetOptions{})
	if err != nil {
		w.t.Fatalf("read the ReplicationController: %v", err)
	}
	return rc
}

// handsSum waits until the ReplicationController says that so many pods are there and serve, and nothing else.
func (w *workspace) handsSum(n int32) {
	w.t.Helper()
	framework.Eventually(w.t, patience, fmt.Sprintf("the ReplicationController says %d", n), func() string {
		rc := w.hands()
		s := rc.Status
		if *rc.Spec.Replicas != n || s.Replicas != n || s.FullyLabeledReplicas != n || s.ReadyReplicas != n || s.AvailableReplicas != n || s.ObservedGeneration != rc.Generation || len(s.Conditions) > 0 {
			return fmt.Sprintf("at generation %d it asks for %d and says %+v", rc.Generation, *rc.Spec.Replicas, s)
		}
		return ""
	}, w.state)
}

// replicationControllerRuns: as a ReplicaSet its replicas are divided, its pods shown, counted by budgets, scaled by hand and by an autoscaler, moved
// without a dip and deleted, with or without a word of what is to become of them.
func replicationControllerRuns(t *testing.T, f *fleet) {
	w := f.workspace(t, "hands")
	w.place("east,west")
	manifest := w.handsManifest(4)
	if out := w.kubectlWithInput(manifest, "apply", "-f", "-"); strings.Contains(out, "Warning") {
		t.Errorf("who applies it is warned: %s", out)
	}
	w.spread(map[string]int{"east": 2, "west": 2})
	w.handsSum(4)
	w.show().ends("east 2/2,west 2/2")
	if out := strings.Fields(w.kubectl("get", "rc", hands, "--no-headers")); len(out) < 4 || strings.Join(out[:4], " ") != hands+" 4 4 4" {
		t.Errorf("kubectl get rc shows %q", out)
	}
	root := w.hands()
	w.showsPodsOf(root)
	all := w.kubectl("get", "all", "-o", "name")
	if !strings.Contains(all, "replicationcontroller/"+hands+"\n") {
		t.Errorf("kubectl get all shows %q", all)
	}
	for name, pod := range w.shownPods() {
		if !metav1.IsControlledBy(pod, root) || len(pod.OwnerReferences) != 1 || !strings.Contains(all, "pod/"+name+"\n") {
			t.Errorf("pod %s has owners %v, of %q", name, pod.OwnerReferences, all)
		}
	}
	w.kubectlWithInput(manifest, "apply", "-f", "-")
	if now := w.hands().ResourceVersion; now != root.ResourceVersion {
		t.Errorf("a second apply changed the ReplicationController from version %s to %s", root.ResourceVersion, now)
	}
	// below is what a cluster made of it.
	below := func(cluster string) (*corev1.ReplicationController, error) {
		return f.clusters[cluster].Clientset().CoreV1().ReplicationControllers(w.namespaceIn(cluster)).Get(t.Context(), hands, metav1.GetOptions{})
	}
	for _, cluster := range []string{"east", "west"} {
		made, err := below(cluster)
		if err != nil || made.Labels["app"] != "" || len(made.OwnerReferences) > 0 || root.Labels["app"] != w.app {
			t.Errorf("%s: %v, labels %v, owners %v", cluster, err, made.Labels, made.OwnerReferences)
		}
	}

	// What runs stays with another template, and what takes its place has that.
	before := w.shownPods()
	w.kubectl("patch", "rc", hands, "-p", `{"spec": {"template": {"spec": {"containers": [{"name": "hand", "image": "registry.example/hand:2"}]}}}}`)
	framework.Eventually(t, patience, "its clusters have the new template", func() string {
		for _, cluster := range []string{"east", "west"} {
			if made, err := below(cluster); err != nil || made.Spec.Template.Spec.Containers[0].Image != "registry.example/hand:2" {
				return fmt.Sprintf("%s: %v, %v", cluster, made, err)
			}
		}
		return ""
	})
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
	w.showsPodsOf(root)
	for name, pod := range w.shownPods() {
		was, image := before[name], pod.Spec.Containers[0].Image
		if was != nil && (was.UID != pod.UID || image != "registry.example/hand:1") || was == nil && image != "registry.example/hand:2" {
			t.Errorf("pod %s runs %s; was it there before: %v", name, image, was != nil)
		}
	}

	w.kubectl("scale", "rc", hands, "--replicas=5")
	w.spread(map[string]int{"east": 3, "west": 2})
	w.handsSum(5)
	w.kubectl("autoscale", "rc", hands, "--min=6", "--max=6")
	w.spread(map[string]int{"east": 3, "west": 3})
	w.handsSum(6)
	w.kubectl("delete", "hpa", hands)
	o := w.observe()
	w.place("west")
	w.spread(map[string]int{"west": 6})
	w.gone("east")
	o.neverBelow(t, 6)
	w.handsSum(6)
	w.showsPodsOf(root)

	if out, err := w.try("delete", "rc", hands, "--cascade=orphan"); err == nil || !strings.Contains(out, "cannot be kept") {
		t.Errorf("to delete it and keep its pods: %v, %s", err, out)
	}
	w.kubectl("patch", "rc", hands, "--type=merge", "-p", `{"metadata": {"finalizers": ["example.com/held"]}}`)
	controllers := f.Clients().Kube.CoreV1().ReplicationControllers("default")
	for range 2 { // the second is not refused
		if err := controllers.Delete(w.ctx(), hands, metav1.DeleteOptions{}); err != nil {
			t.Fatalf("delete it without a word of its pods: %v", err)
		}
	}
	w.spread(map[string]int{})
	if held := w.hands(); !slices.Equal(held.Finalizers, []string{"example.com/held"}) {
		t.Errorf("it is held by %v", held.Finalizers)
	}
	w.kubectl("patch", "rc", hands, "--type=merge", "-p", `{"metadata": {"finalizers": null}}`)
	w.gone("west")
	framework.Eventually(t, patience, "it is gone, and no pod is shown", func() string {
		if _, err := controllers.Get(w.ctx(), hands, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("it is there: %v", err)
		}
		if pods := w.shownPods(); len(pods) > 0 {
			return fmt.Sprintf("%d are", len(pods))
		}
		return ""
	})
}
