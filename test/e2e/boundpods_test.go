package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
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
		if v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool { return s.ServiceAccountToken != nil }) {
			t.Errorf("a token of the physical cluster is mounted below: %+v", v)
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
	w.kubectl("label", "pod", "solo", "more-")
	framework.Eventually(t, patience, "the label is gone below", func() string {
		if down, err := w.podIn("west", "solo"); err != nil || down.Labels["more"] != "" || down.Labels["app"] != w.app {
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

	// An export has it, since nobody makes it again.
	file := filepath.Join(t.TempDir(), "bare.atoll")
	f.MustRun("workspace", "export", "root:bare", "--output", file)
	f.MustRun("workspace", "import", "root:bare-again", "--input", file)
	imported := &tenancyv1alpha1.Workspace{}
	if err := f.Clients().Objects.Get(client.In(t.Context(), "root"), ctrlclient.ObjectKey{Name: "bare-again"}, imported); err != nil {
		t.Fatal(err)
	}
	elsewhere := &workspace{t: t, f: f, app: "bare-again", cluster: logicalcluster.Name(imported.Spec.Cluster)}
	elsewhere.runsIn("west", "solo")

	w.kubectl("delete", "pod", "solo", "--grace-period=0", "--force")
	w.podGone("west", "solo")

	// What a cluster refuses, the pod says, in the cluster's words; and it goes all the same.
	w.kubectlWithInput(strings.Replace(w.bare("host"), "spec:", "spec:\n  hostNetwork: true", 1), "apply", "-f", "-")
	framework.Eventually(t, patience, "host says why it is refused", func() string {
		pod, err := w.pod("host")
		if err != nil {
			return err.Error()
		}
		for _, is := range pod.Status.Conditions {
			if is.Type == workloadv1alpha1.PodSynced && is.Status == corev1.ConditionFalse && strings.Contains(is.Message, "PodSecurity") {
				return ""
			}
		}
		return fmt.Sprintf("its conditions are %+v", pod.Status.Conditions)
	})
	framework.Eventually(t, patience, "an Event says so, too", func() string {
		if out := w.kubectl("events", "--for=pod/host"); !strings.Contains(out, "PodSecurity") {
			return out
		}
		return ""
	})
	w.kubectl("delete", "pod", "host")
	w.kubectl("delete", "configmap", "solo-config", "host-config")
	w.gone("west")
}

// operate is an operator as there are many: for each Member of a workspace's namespace default it keeps as many pods as that says, by
// their names, which it owns. It knows nothing of Atoll.
func (w *workspace) operate(ctx context.Context) {
	of := schema.GroupVersionResource{Group: "db.example.com", Version: "v1", Resource: "members"}
	config := w.f.Config()
	config.Host += "/clusters/" + string(w.cluster)
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		w.t.Error(err)
		return
	}
	pods, members := objects.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).Namespace("default"), objects.Resource(of).Namespace("default")
	_ = wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		list, err := members.List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, nil // not served yet
		}
		for _, member := range list.Items {
			if member.GetDeletionTimestamp() != nil {
				continue
			}
			size, _, _ := unstructured.NestedInt64(member.Object, "spec", "size")
			for i := range size {
				pod := &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": "v1", "kind": "Pod",
					"metadata": map[string]any{"name": fmt.Sprintf("%s-%d", member.GetName(), i), "labels": map[string]any{"app": w.app}, "ownerReferences": []any{map[string]any{
						"apiVersion": member.GetAPIVersion(), "kind": member.GetKind(), "name": member.GetName(), "uid": string(member.GetUID()), "controller": true, "blockOwnerDeletion": true,
					}}},
					"spec": map[string]any{"terminationGracePeriodSeconds": int64(1), "containers": []any{map[string]any{"name": "db", "image": "registry.example/db:1"}}},
				}}
				if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) && ctx.Err() == nil {
					w.t.Logf("the operator cannot make %s: %v", pod.GetName(), err)
				}
			}
		}
		return false, nil
	})
}

// operatorMakesPods: what an unmodified operator makes of a custom resource runs, is made anew by it when it is gone, follows its namespace, and goes
// with what owns it.
func operatorMakesPods(t *testing.T, f *fleet) {
	w := f.workspace(t, "operated")
	w.place("east,west")
	w.kubectlWithInput(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: members.db.example.com}
spec:
  group: db.example.com
  scope: Namespaced
  names: {plural: members, singular: member, kind: Member, listKind: MemberList}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, "apply", "-f", "-")
	w.kubectl("wait", "--for=condition=Established", "crd/members.db.example.com", "--timeout=60s")
	w.kubectlWithInput(`
apiVersion: db.example.com/v1
kind: Member
metadata: {name: db}
spec: {size: 2}
`, "apply", "-f", "-")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.operate(ctx) }()
	defer func() { stop(); <-done }()

	var cluster string
	framework.Eventually(t, patience, "the operator's pods are bound to one cluster", func() string {
		first, err := w.pod("db-0")
		second, other := w.pod("db-1")
		if err != nil || other != nil || first.Spec.NodeName == "" || second.Spec.NodeName == "" {
			return fmt.Sprintf("%v %v", err, other)
		}
		if cluster = first.Spec.NodeName; second.Spec.NodeName != cluster {
			t.Fatalf("pods of one namespace are in %s and in %s", cluster, second.Spec.NodeName)
		}
		return ""
	})
	_, before := w.runsIn(cluster, "db-0")
	w.runsIn(cluster, "db-1")

	w.kubectl("delete", "pod", "db-0", "--wait=false")
	framework.Eventually(t, patience, "there is another db-0", func() string {
		if up, err := w.pod("db-0"); err != nil || up.DeletionTimestamp != nil || up.Annotations[workloadv1alpha1.PodUIDAnnotation] == string(before.UID) {
			return fmt.Sprintf("%v %v", up, err)
		}
		return ""
	})
	w.runsIn(cluster, "db-0")

	// What nobody makes again does not move, and says so.
	w.kubectlWithInput(w.bare("solo"), "apply", "-f", "-")
	_, solo := w.runsIn(cluster, "solo")
	other := map[string]string{"east": "west", "west": "east"}[cluster]
	w.place(other)
	w.runsIn(other, "db-0")
	w.runsIn(other, "db-1")
	for _, name := range []string{"db-0", "db-1"} {
		if pod, err := w.podIn(cluster, name); !apierrors.IsNotFound(err) {
			t.Errorf("%s runs in %s, and is in %s still: %v %v", name, other, cluster, pod, err)
		}
	}
	framework.Eventually(t, patience, "solo says that it stays", func() string {
		if out := w.kubectl("events", "--for=pod/solo"); !strings.Contains(out, "NoOwner") {
			return out
		}
		return ""
	})
	if _, down := w.runsIn(cluster, "solo"); down.UID != solo.UID {
		t.Errorf("solo was made anew")
	}
	w.kubectl("delete", "pod", "solo")
	w.gone(cluster)

	w.kubectl("delete", "member", "db")
	w.podGone(other, "db-0")
	w.podGone(other, "db-1")
}
