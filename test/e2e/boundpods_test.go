package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/atoll/test/framework"
)

// bare is the manifest of a pod that nothing makes but whoever applies it, with what it refers to.
func (w *workspace) bare(name string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: ConfigMap
metadata: {name: %[1]s-config}
data: {greeting: hello}
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: %[2]s}, annotations: {note: mine}}
spec:
  terminationGracePeriodSeconds: 2
  containers:
  - name: main
    image: registry.example/app:1
    envFrom: [{configMapRef: {name: %[1]s-config}}]
`, name, w.app)
}

// pod is one of the workspace's namespace default.
func (w *workspace) pod(name string) (*corev1.Pod, error) {
	return w.f.Clients().Kube.CoreV1().Pods("default").Get(w.ctx(), name, metav1.GetOptions{})
}

// podIn is one of that name in a physical cluster, which runs it for the workspace's namespace default.
func (w *workspace) podIn(cluster, name string) (*corev1.Pod, error) {
	return w.f.clusters[cluster].Clientset().CoreV1().Pods(w.namespaceIn(cluster)).Get(w.t.Context(), name, metav1.GetOptions{})
}

// runsIn waits until a pod of the workspace is Ready in a cluster, and shown as it is there.
func (w *workspace) runsIn(cluster, name string) (up, down *corev1.Pod) {
	w.t.Helper()
	framework.Eventually(w.t, patience, "pod "+name+" runs in "+cluster, func() string {
		var err error
		if up, err = w.pod(name); err != nil {
			return err.Error()
		}
		if up.Spec.NodeName != cluster || !isReady(up) {
			return fmt.Sprintf("it is on %q with status %+v", up.Spec.NodeName, up.Status)
		}
		if down, err = w.podIn(cluster, name); err != nil {
			return err.Error()
		}
		if !apiequality.Semantic.DeepEqual(up.Status, down.Status) {
			return fmt.Sprintf("its status is %+v, and below %+v", up.Status, down.Status)
		}
		return ""
	})
	return up, down
}

// podGone waits until a pod is neither in the workspace nor in a cluster.
func (w *workspace) podGone(cluster, name string) {
	w.t.Helper()
	framework.Eventually(w.t, patience, "pod "+name+" is gone", func() string {
		if pod, err := w.pod(name); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("in the workspace: %v %v", pod, err)
		}
		if pod, err := w.podIn(cluster, name); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("in %s: %v %v", cluster, pod, err)
		}
		return ""
	})
}

// barePodRuns: a pod that a person applies runs where its namespace is, with what it refers to, and goes when it is gone there.
func barePodRuns(t *testing.T, f *fleet) {
	w := f.workspace(t, "bare")
	w.place("west")
	w.kubectlWithInput(w.bare("solo"), "apply", "-f", "-")
	up, down := w.runsIn("west", "solo")
	if down.Labels["app"] != w.app || down.Annotations["note"] != "mine" {
		t.Errorf("below it has labels %v and annotations %v", down.Labels, down.Annotations)
	}
	for _, v := range down.Spec.Volumes {
		if strings.HasPrefix(v.Name, "kube-api-access-") {
			t.Errorf("a token of somebody's is mounted below: %+v", v)
		}
	}
	if up.Status.PodIP == "" || up.Status.HostIP == "" {
		t.Errorf("it has no addresses: %+v", up.Status)
	}
	if cm, err := f.clusters["west"].Clientset().CoreV1().ConfigMaps(w.namespaceIn("west")).Get(t.Context(), "solo-config", metav1.GetOptions{}); err != nil || cm.Data["greeting"] != "hello" {
		t.Errorf("what it refers to is not below: %v %v", cm, err)
	}
	w.kubectl("wait", "--for=condition=Ready", "pod/solo", "--timeout=60s")
	w.kubectl("label", "pod", "solo", "more=yes")
	framework.Eventually(t, patience, "the label is below", func() string {
		if down, err := w.podIn("west", "solo"); err != nil || down.Labels["more"] != "yes" {
			return fmt.Sprintf("%v %v", down, err)
		}
		return ""
	})
	if out, err := w.try("patch", "pod", "solo", "-p", `{"metadata":{"finalizers":null,"labels":{"workload.atoll.dev/mirror":null}}}`); err == nil {
		t.Errorf("what the server alone writes was taken off: %s", out)
	}

	w.kubectl("delete", "pod", "solo") // waits until it is gone
	if pod, err := w.podIn("west", "solo"); !apierrors.IsNotFound(err) {
		t.Errorf("gone in the workspace, it is in west: %v %v", pod, err)
	}
	w.podGone("west", "solo")
	w.kubectlWithInput(w.bare("solo"), "apply", "-f", "-")
	if _, again := w.runsIn("west", "solo"); again.UID == down.UID {
		t.Errorf("a pod that was made anew is the one from before")
	}
	w.kubectl("delete", "pod", "solo", "--grace-period=0", "--force")
	w.podGone("west", "solo")
	w.kubectl("delete", "configmap", "solo-config")
	w.gone("west")
}
