package e2e

import (
	"context"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/atoll/test/framework"
)

// classesOf is the name of the classes that are made in a physical cluster.
const classesOf = "e2e-below"

// classesAreShown: what classes a physical cluster has, the workspaces see that may use it, and no others; what names one runs, and what
// names one that is missing is told so.
func classesAreShown(t *testing.T, f *fleet) {
	w := f.workspace(t, "classes")
	other := f.workspace(t, "classless")
	other.kubectlWithInput("apiVersion: placement.atoll.dev/v1alpha1\nkind: PlacementPolicy\nmetadata: {name: only}\nspec: {allow: {names: [west]}}\n", "apply", "-f", "-")
	names := func(w *workspace) string {
		return w.kubectl("get", "sc,ingressclass,priorityclass,runtimeclass", "-o", "jsonpath={range .items[*]}{.kind}/{.metadata.name} {end}")
	}
	east := f.clusters["east"].Clientset()
	meta := metav1.ObjectMeta{Name: classesOf}
	t.Cleanup(func() {
		ctx, gone := context.WithoutCancel(t.Context()), metav1.DeleteOptions{}
		for _, err := range []error{
			east.StorageV1().StorageClasses().Delete(ctx, classesOf, gone), east.NetworkingV1().IngressClasses().Delete(ctx, classesOf, gone),
			east.SchedulingV1().PriorityClasses().Delete(ctx, classesOf, gone), east.NodeV1().RuntimeClasses().Delete(ctx, classesOf, gone),
		} {
			if err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
	})
	manifest := `
apiVersion: apps/v1
kind: Deployment
metadata: {name: classed}
spec:
  replicas: 2
  selector: {matchLabels: {app: classed}}
  template:
    metadata: {labels: {app: classed}}
    spec:
      priorityClassName: ` + classesOf + `
      containers: [{name: c, image: nginx}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: classed}
spec: {ingressClassName: ` + classesOf + `, defaultBackend: {service: {name: classed, port: {number: 80}}}}
`
	w.place("east")
	framework.Eventually(t, patience, "it is known which classes east has, and who makes the objects is warned", func() string {
		// Each time anew: kubectl sends nothing of what is as it was.
		out := w.kubectlWithInput(manifest, "create", "--dry-run=server", "-f", "-")
		for _, want := range []string{`priorityClassName "e2e-below" names no PriorityClass of "east"`, `ingressClassName "e2e-below" names no IngressClass of "east"`} {
			if !strings.Contains(out, want) {
				return out
			}
		}
		return ""
	})
	w.kubectlWithInput(manifest, "apply", "-f", "-")
	framework.Eventually(t, patience, "Events on the objects say what is missing where", func() string {
		out := w.kubectl("get", "events", "--field-selector=reason=ClassMissing", "-o", "jsonpath={.items[*].message}")
		for _, want := range []string{`no PriorityClass of "east"`, `no IngressClass of "east"`} {
			if !strings.Contains(out, want) {
				return out
			}
		}
		return ""
	})

	_, err := east.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{ObjectMeta: meta, Provisioner: "e2e.example/p", Parameters: map[string]string{"secret": "hush"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = east.NetworkingV1().IngressClasses().Create(t.Context(), &networkingv1.IngressClass{ObjectMeta: meta, Spec: networkingv1.IngressClassSpec{Controller: "e2e.example/c"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err = east.SchedulingV1().PriorityClasses().Create(t.Context(), &schedulingv1.PriorityClass{ObjectMeta: meta, Value: 1234}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err = east.NodeV1().RuntimeClasses().Create(t.Context(), &nodev1.RuntimeClass{ObjectMeta: meta, Handler: "e2e"}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	all := []string{"StorageClass/" + classesOf, "IngressClass/" + classesOf, "PriorityClass/" + classesOf, "RuntimeClass/" + classesOf}
	framework.Eventually(t, patience, "the workspace sees them", func() string {
		out := names(w)
		for _, want := range all {
			if !strings.Contains(out, want) {
				return out
			}
		}
		return ""
	})
	if out := w.kubectl("get", "sc,priorityclass", classesOf, "-o", "yaml"); strings.Contains(out, "hush") || !strings.Contains(out, "workload.atoll.dev/clusters: east") ||
		!strings.Contains(out, "provisioner: e2e.example/p") || !strings.Contains(out, "value: 1234") {
		t.Errorf("it sees %s", out)
	}
	if out := names(other); strings.Contains(out, classesOf) {
		t.Errorf("a workspace that may not use east sees its classes: %s", out)
	}
	w.kubectl("rollout", "status", "deployment/classed", "--timeout=2m")
	pods, err := east.CoreV1().Pods(w.namespaceIn("east")).List(t.Context(), metav1.ListOptions{LabelSelector: "app=classed"})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		if p.Spec.PriorityClassName != classesOf || p.Spec.Priority == nil || *p.Spec.Priority != 1234 {
			t.Errorf("a pod runs with the priority %v of class %q", p.Spec.Priority, p.Spec.PriorityClassName)
		}
	}
	another := strings.ReplaceAll(manifest, "metadata: {name: classed}", "metadata: {name: another}")
	if out := w.kubectlWithInput(another, "create", "--dry-run=server", "-f", "-"); strings.Contains(out, "names no") {
		t.Errorf("what is there is called missing: %s", out)
	}
	out, err := f.Run("kubectl", "--server="+f.URL+"/clusters/root:"+w.app, "delete", "sc", classesOf)
	if err == nil || !strings.Contains(out, "create a StorageClass of that name") {
		t.Errorf("what is shown is deleted: %v, %s", err, out)
	}

	// A watch tells of changes, and that they are gone.
	client := at(t, f.Config(), f.Atoll, string(w.cluster))
	list, err := client.SchedulingV1().PriorityClasses().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	watch, err := client.SchedulingV1().PriorityClasses().Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion, FieldSelector: "metadata.name=" + classesOf})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	if err := east.SchedulingV1().PriorityClasses().Delete(t.Context(), classesOf, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for event := range watch.ResultChan() {
		if event.Type == "DELETED" {
			break
		}
		if event.Type == "ERROR" {
			t.Fatalf("the watch ended: %v", event.Object)
		}
	}
	framework.Eventually(t, patience, "it is gone", func() string {
		if out := names(w); strings.Contains(out, "PriorityClass/"+classesOf) {
			return out
		}
		return ""
	})
}
