package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/atoll/test/framework"
)

// drifts are the events of what was put back in a physical cluster, by what they are about, of a workspace's namespace default.
func (w *workspace) drifts() (map[string]corev1.Event, error) {
	list, err := w.f.Clients().Kube.CoreV1().Events("default").List(w.ctx(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	told := map[string]corev1.Event{}
	for _, e := range list.Items {
		if e.Reason == "DriftCorrected" {
			told[e.InvolvedObject.Kind+" "+e.InvolvedObject.Name+" "+string(e.InvolvedObject.UID)] = e
		}
	}
	return told, nil
}

// tellsDrift waits until a workspace tells what was put back of an object, with all these words.
func (w *workspace) tellsDrift(kind, name string, uid types.UID, words ...string) corev1.Event {
	w.t.Helper()
	var event corev1.Event
	framework.Eventually(w.t, patience, "it is told that "+kind+" "+name+" was put back", func() string {
		told, err := w.drifts()
		if err != nil {
			return err.Error()
		}
		var ok bool
		if event, ok = told[kind+" "+name+" "+string(uid)]; !ok {
			return fmt.Sprintf("there is %v", told)
		}
		for _, word := range words {
			if !strings.Contains(event.Message, word) {
				return fmt.Sprintf("%q does not say %q", event.Message, word)
			}
		}
		return ""
	})
	if event.Type != corev1.EventTypeWarning || event.ReportingInstance != "east" || event.InvolvedObject.Namespace != "default" || event.Count < 1 {
		w.t.Errorf("the event is %+v", event)
	}
	return event
}

// driftIsPutBack: what somebody changes or deletes in a physical cluster of what a workspace runs there is put back, and the
// workspace is told; what that cluster owns, and what its own autoscaler decides, stays and is told to nobody.
func driftIsPutBack(t *testing.T, f *fleet) {
	w := f.workspace(t, "drift")
	w.place("east")
	w.apply(2, "")
	w.kubectlWithInput(`
apiVersion: v1
kind: Service
metadata: {name: door}
spec: {type: NodePort, selector: {app: drift}, ports: [{name: http, port: 80}, {name: https, port: 443}]}
`, "apply", "-f", "-")
	w.rolledOut()
	w.kubectl("autoscale", "deployment", w.app, "--cpu=80%", "--min=3", "--max=5")
	w.spread(map[string]int{"east": 3})
	w.rolledOut()
	quiet(t, w) // whatever was still on its way

	ns, east, up := w.namespaceIn("east"), f.clusters["east"].Clientset(), f.Clients().Kube
	door, err := east.CoreV1().Services(ns).Get(t.Context(), "door", metav1.GetOptions{})
	if err != nil || door.Spec.ClusterIP == "" || door.Spec.Ports[0].NodePort == 0 {
		t.Fatalf("%v: the Service has %+v", err, door)
	}
	before, err := east.AppsV1().Deployments(ns).Get(t.Context(), w.app, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if told, err := w.drifts(); err != nil || len(told) > 0 {
		t.Fatalf("before anybody has changed anything: %v %v", told, err)
	}
	deployment, err := up.AppsV1().Deployments("default").Get(w.ctx(), w.app, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	configMap, err := up.CoreV1().ConfigMaps("default").Get(w.ctx(), w.app, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	secret, err := up.CoreV1().Secrets("default").Get(w.ctx(), w.app, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}

	// Somebody changes an image, and what nobody in the workspace has set, which stays.
	if _, err := east.AppsV1().Deployments(ns).Patch(t.Context(), w.app, types.StrategicMergePatchType,
		[]byte(`{"metadata":{"annotations":{"theirs":"stays"}},"spec":{"template":{"spec":{"containers":[{"name":"web","image":"registry.example/evil:1"}]}}}}`),
		metav1.PatchOptions{FieldManager: "kubectl-edit"}); err != nil {
		t.Fatal(err)
	}
	putBack := func() string {
		now, err := east.AppsV1().Deployments(ns).Get(t.Context(), w.app, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if image, label := now.Spec.Template.Spec.Containers[0].Image, now.Labels["app"]; image != "registry.example/web:1" || label != w.app || now.UID != before.UID || now.Annotations["theirs"] != "stays" {
			return fmt.Sprintf("it has the image %s, the label %q and the annotations %v", image, label, now.Annotations)
		}
		return ""
	}
	framework.Eventually(t, patience, "the image is put back", putBack)
	w.tellsDrift("Deployment", w.app, deployment.UID, `Changed in physical cluster "east" by "kubectl-edit"; put back: spec.template.spec.containers[web].image`)

	// And a label.
	if _, err := east.AppsV1().Deployments(ns).Patch(t.Context(), w.app, types.MergePatchType, []byte(`{"metadata":{"labels":{"app":"theirs"}}}`),
		metav1.PatchOptions{FieldManager: "kubectl-label"}); err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, patience, "the label is put back", putBack)
	event := w.tellsDrift("Deployment", w.app, deployment.UID, "kubectl-label", "metadata.labels.app")
	if event.Count != 2 || strings.Contains(event.Message, "theirs") {
		t.Errorf("it is told %d times, want two: %s", event.Count, event.Message)
	}

	// A ConfigMap is deleted.
	if err := east.CoreV1().ConfigMaps(ns).Delete(t.Context(), w.app, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, patience, "the ConfigMap is made again", func() string {
		now, err := east.CoreV1().ConfigMaps(ns).Get(t.Context(), w.app, metav1.GetOptions{})
		if err != nil || now.Data["greeting"] != "hello" {
			return fmt.Sprintf("%v %v", now.Data, err)
		}
		return ""
	})
	w.tellsDrift("ConfigMap", w.app, configMap.UID, `Deleted in physical cluster "east"; made again`)

	// Of a Secret neither a value is told nor what it is called.
	if _, err := east.CoreV1().Secrets(ns).Patch(t.Context(), w.app, types.MergePatchType, []byte(`{"data":{"key":"dGhlaXJz"}}`),
		metav1.PatchOptions{FieldManager: "vault-sync"}); err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, patience, "the Secret is put back", func() string {
		now, err := east.CoreV1().Secrets(ns).Get(t.Context(), w.app, metav1.GetOptions{})
		if err != nil || string(now.Data["key"]) != "opensesame" {
			return fmt.Sprintf("%d values, %v", len(now.Data), err)
		}
		return ""
	})
	if event := w.tellsDrift("Secret", w.app, secret.UID, "vault-sync"); event.Message != `Changed in physical cluster "east" by "vault-sync"; put back: data` {
		t.Errorf("of the Secret is told %q", event.Message)
	}

	// What is the cluster's, and the workspace's autoscaler's, is as it was, and nothing else is told.
	w.rolledOut()
	quiet(t, w)
	now, err := east.CoreV1().Services(ns).Get(t.Context(), "door", metav1.GetOptions{})
	if err != nil || now.UID != door.UID || now.Spec.ClusterIP != door.Spec.ClusterIP || now.Spec.Ports[0].NodePort != door.Spec.Ports[0].NodePort || now.Spec.Ports[1].NodePort != door.Spec.Ports[1].NodePort {
		t.Errorf("%v: the Service has %+v, and had %+v", err, now.Spec, door.Spec)
	}
	w.spread(map[string]int{"east": 3})
	told, err := w.drifts()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"Deployment " + w.app + " " + string(deployment.UID), "ConfigMap " + w.app + " " + string(configMap.UID), "Secret " + w.app + " " + string(secret.UID)}
	for _, of := range want {
		if _, ok := told[of]; !ok {
			t.Errorf("of %s is not told any more", of)
		}
		delete(told, of)
	}
	if len(told) > 0 {
		t.Errorf("it is told, too, of what nobody has changed: %v", told)
	}
	if out := w.kubectl("describe", "deployment/"+w.app); !strings.Contains(out, "DriftCorrected") {
		t.Errorf("kubectl describe does not tell:\n%s", out)
	}
	if got := w.stdout("get", "events", "-o", "yaml"); strings.Contains(got, ns) {
		t.Errorf("an event names the namespace in east, %s", ns)
	}
}
