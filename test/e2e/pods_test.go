package e2e

import (
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/atoll/test/framework"
)

// shownPods are the pods in the workspace's namespace default, by name.
func (w *workspace) shownPods() map[string]*corev1.Pod {
	w.t.Helper()
	list, err := w.f.Clients().Kube.CoreV1().Pods("default").List(w.ctx(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatalf("list the pods of %s: %v", w.app, err)
	}
	pods := map[string]*corev1.Pod{}
	for i := range list.Items {
		pods[list.Items[i].Name] = &list.Items[i]
	}
	return pods
}

// shows waits until the workspace shows exactly the pods that its clusters run of the Deployment, each as its cluster does.
func (w *workspace) shows() {
	w.t.Helper()
	root := w.deployment()
	w.showsPodsOf(root)
	for name, pod := range w.shownPods() {
		set, err := w.f.Clients().Kube.AppsV1().ReplicaSets("default").Get(w.ctx(), metav1.GetControllerOf(pod).Name, metav1.GetOptions{})
		if err != nil || !metav1.IsControlledBy(pod, set) || !metav1.IsControlledBy(set, root) {
			w.t.Errorf("pod %s has owners %v: %v", name, pod.OwnerReferences, err)
			continue
		}
		if image := pod.Spec.Containers[0].Image; image != set.Spec.Template.Spec.Containers[0].Image || pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey] != set.Labels[appsv1.DefaultDeploymentUniqueLabelKey] {
			w.t.Errorf("pod %s with image %s and labels %v is of ReplicaSet %s", name, image, pod.Labels, set.Name)
		}
	}
}

// showsPodsOf is shows of another root.
func (w *workspace) showsPodsOf(root metav1.Object) {
	w.t.Helper()
	framework.Eventually(w.t, patience, "the workspace shows the pods of "+w.app, func() string {
		shown, below := w.shownPods(), 0
		for cluster, c := range w.f.clusters {
			pods, err := c.Clientset().CoreV1().Pods("").List(w.t.Context(), metav1.ListOptions{LabelSelector: "app=" + w.app})
			if err != nil {
				return err.Error()
			}
			below += len(pods.Items)
			for i := range pods.Items {
				pod := &pods.Items[i]
				up := shown[pod.Name]
				switch {
				case up == nil:
					return fmt.Sprintf("pod %s of %s is not shown", pod.Name, cluster)
				case up.Spec.NodeName != cluster || !apiequality.Semantic.DeepEqual(up.Status, pod.Status) || (up.DeletionTimestamp == nil) != (pod.DeletionTimestamp == nil):
					return fmt.Sprintf("pod %s of %s is shown on %s with status %+v, and has %+v", pod.Name, cluster, up.Spec.NodeName, up.Status, pod.Status)
				case !slices.ContainsFunc(up.OwnerReferences, func(ref metav1.OwnerReference) bool { return ref.UID == root.GetUID() }):
					return fmt.Sprintf("pod %s has owners %v", pod.Name, up.OwnerReferences)
				}
			}
		}
		if len(shown) != below {
			return fmt.Sprintf("%d pods are shown, and %d are there", len(shown), below)
		}
		return ""
	})
}

// anyOf is the name of one of the pods.
func anyOf(pods map[string]*corev1.Pod) string {
	for name := range pods {
		return name
	}
	return ""
}

// podsAreShown: who asks a workspace for its pods sees what runs in its clusters, and may delete one.
func podsAreShown(t *testing.T, f *fleet) {
	w := f.workspace(t, "pods-shown")
	w.place("east,west")
	w.apply(4, "")
	w.spread(map[string]int{"east": 2, "west": 2})
	w.rolledOut()
	w.shows()

	before := w.shownPods()
	w.apply(4, "")
	w.kubectl("annotate", "deployment", w.app, "note=changed") // goes the whole way, and changes no pod
	framework.Eventually(t, patience, "the annotation is below", func() string {
		d, err := f.clusters["east"].Clientset().AppsV1().Deployments(w.namespaceIn("east")).Get(t.Context(), w.app, metav1.GetOptions{})
		if err != nil || d.Annotations["note"] != "changed" {
			return fmt.Sprintf("%v %v", d.GetAnnotations(), err)
		}
		return ""
	})
	for name, pod := range w.shownPods() {
		if was := before[name]; was == nil || was.ResourceVersion != pod.ResourceVersion {
			t.Errorf("pod %s was written without a change of it", name)
		}
	}

	deleted := anyOf(before)
	w.kubectl("delete", "pod", deleted) // waits until it is gone
	w.spread(map[string]int{"east": 2, "west": 2})
	w.shows()
	if w.shownPods()[deleted] != nil {
		t.Errorf("pod %s is there after it was deleted", deleted)
	}
	forced := anyOf(w.shownPods())
	in := w.shownPods()[forced].Spec.NodeName
	w.kubectl("delete", "pod", forced, "--force", "--grace-period=0")
	framework.Eventually(t, patience, "what is deleted without grace has ended", func() string {
		now, err := f.clusters[in].Clientset().CoreV1().Pods(w.namespaceIn(in)).Get(t.Context(), forced, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Sprintf("%s: %v %v", in, now.Status.Phase, err)
		}
		return ""
	})
	w.spread(map[string]int{"east": 2, "west": 2})
	w.shows()

	w.place("west")
	w.spread(map[string]int{"west": 4})
	w.kubectl("set", "image", "deployment/"+w.app, "*=registry.example/web:2")
	w.rolledOut()
	w.spread(map[string]int{"west": 4})
	w.shows() // of another ReplicaSet

	// The deletion of one that has ended goes down, too.
	inWest := f.clusters["west"].Clientset().CoreV1().Pods(w.namespaceIn("west"))
	ended, err := inWest.Get(t.Context(), anyOf(w.shownPods()), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ended.Status.Phase = corev1.PodFailed
	if _, err := inWest.UpdateStatus(t.Context(), ended, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.shows()
	w.kubectl("delete", "pod", ended.Name)
	if now, err := inWest.Get(t.Context(), ended.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("pod %s is %+v below after it was deleted: %v", ended.Name, now.Status, err)
	}
	w.spread(map[string]int{"west": 4})
	w.shows()

	f.clusters["west"].Kill()
	framework.Eventually(t, patience, "the pods of a cluster that is lost are not Ready", func() string {
		for name, pod := range w.shownPods() {
			if isReady(pod) {
				return fmt.Sprintf("%s is: %+v", name, pod.Status.Conditions)
			}
		}
		return ""
	})
	f.clusters["west"].Start()
	f.clusterReady(t, "west")
	w.spread(map[string]int{"west": 4})
	w.shows()

	w.kubectl("delete", "deployment", w.app)
	framework.Eventually(t, patience, "the pods go with their Deployment", func() string {
		if pods := w.shownPods(); len(pods) > 0 {
			return fmt.Sprintf("%d are shown", len(pods))
		}
		return ""
	})
}
