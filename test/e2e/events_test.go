package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"atoll.dev/atoll/test/framework"
)

// eventsIn are the events of a namespace that were recorded in a physical cluster, those of the workspace if it is "default", by what
// they say, sorted. ReplicaSets have names of their own there, and namespaces.
func (w *workspace) eventsIn(kube kubernetes.Interface, namespace string) (says []string, events []corev1.Event, err error) {
	list, err := kube.CoreV1().Events(namespace).List(w.ctx(), metav1.ListOptions{})
	if err != nil {
		return nil, nil, err
	}
	for _, e := range list.Items {
		if namespace == "default" && e.ReportingInstance != "east" {
			continue
		}
		message, about := strings.ReplaceAll(e.Message, namespace, "default"), e.InvolvedObject.Name
		if e.Reason == "ScalingReplicaSet" {
			message = strings.Join(strings.Fields(message)[5:], " ")
		}
		if e.InvolvedObject.Kind == "ReplicaSet" {
			about = "of " + w.app
		}
		count := e.Count
		if e.Series != nil {
			count = e.Series.Count
		}
		says = append(says, fmt.Sprintf("%s %s %s of %s %s %s, %d times, by %s: %s", e.Type, e.Reason, e.InvolvedObject.FieldPath, e.InvolvedObject.APIVersion, e.InvolvedObject.Kind, about, count, e.ReportingController, message))
		events = append(events, e)
	}
	slices.Sort(says)
	return says, events, nil
}

// tellsWhatIsBelow waits until the workspace has the events of its namespace in east, and no others, and returns them.
func (w *workspace) tellsWhatIsBelow() (events []corev1.Event) {
	w.t.Helper()
	framework.Eventually(w.t, patience, "the workspace has the events of "+w.app, func() string {
		want, _, err := w.eventsIn(w.f.clusters["east"].Clientset(), w.namespaceIn("east"))
		if err != nil {
			return err.Error()
		}
		var got []string
		if got, events, err = w.eventsIn(w.f.Clients().Kube, "default"); err != nil {
			return err.Error()
		}
		if len(want) == 0 {
			return "there are none below"
		}
		return cmp.Diff(want, got)
	})
	return events
}

// eventsComeUp: who asks a workspace what went on with his objects is told what his clusters recorded.
func eventsComeUp(t *testing.T, f *fleet) {
	w := f.workspace(t, "events")
	w.place("east")
	w.apply(2, "")
	w.spread(map[string]int{"east": 2})
	w.rolledOut()
	before := w.tellsWhatIsBelow()

	sets, err := f.Clients().Kube.AppsV1().ReplicaSets("default").List(w.ctx(), metav1.ListOptions{})
	if err != nil || len(sets.Items) != 1 {
		t.Fatalf("%v: %d ReplicaSets, want one", err, len(sets.Items))
	}
	set, pod := sets.Items[0].Name, anyOf(w.shownPods())
	service, err := f.Clients().Kube.CoreV1().Services("default").Get(w.ctx(), w.app, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	uids := map[string]string{"Deployment": string(w.deployment().UID), "ReplicaSet": string(sets.Items[0].UID), "Service": string(service.UID)}
	for name, p := range w.shownPods() {
		uids["Pod "+name] = string(p.UID)
	}
	for _, e := range before {
		of := e.InvolvedObject.Kind
		if of == "Pod" {
			of += " " + e.InvolvedObject.Name
		}
		if uids[of] == "" || uids[of] != string(e.InvolvedObject.UID) || e.InvolvedObject.Namespace != "default" {
			t.Errorf("event %s is about %+v, want %v", e.Name, e.InvolvedObject, uids)
		}
	}
	for _, c := range []struct{ args, want string }{
		{"describe deployment/" + w.app, "Scaled up replica set " + set + " from 0 to 2"},
		{"describe replicaset/" + set, "Created pod: " + pod},
		{"describe pod/" + pod, "Successfully assigned default/" + pod + " to "},
		{"events --for=pod/" + pod, "Successfully assigned default/" + pod + " to "},
		{"get events -o wide", "default-scheduler, east"},
	} {
		if out := w.kubectl(strings.Fields(c.args)...); !strings.Contains(out, c.want) {
			t.Errorf("kubectl %s does not say %q:\n%s", c.args, c.want, out)
		}
	}

	// Whoever begins anew tells nothing twice.
	if syncer := f.syncers["east"]; syncer != nil {
		syncer.Restart()
	} else {
		f.Restart()
	}
	w.kubectl("scale", "deployment/"+w.app, "--replicas=3")
	w.spread(map[string]int{"east": 3})
	now := map[string]string{}
	for _, e := range w.tellsWhatIsBelow() {
		now[e.Name] = e.ResourceVersion
	}
	for _, e := range before {
		if now[e.Name] != e.ResourceVersion {
			t.Errorf("event %s %s of %s was written again", e.Reason, e.Name, e.InvolvedObject.Name)
		}
	}

	// What does not run says why, where the user looks.
	w.kubectlWithInput(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: large}
spec:
  selector: {matchLabels: {app: large}}
  template:
    metadata: {labels: {app: large}}
    spec: {containers: [{name: c, image: registry.example/large:1, resources: {requests: {cpu: "100000"}}}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      containers: [{name: c, image: registry.example/agent:1}]
      volumes: [{name: logs, hostPath: {path: /var/log}}]
`, "apply", "-f", "-")
	for _, c := range []struct{ args, want string }{
		{"describe pods --selector=app=large", "Insufficient cpu"},
		{"describe daemonset/agent", "violates PodSecurity"},
	} {
		framework.Eventually(t, patience, "kubectl "+c.args+" says "+c.want, func() string {
			if out := w.kubectl(strings.Fields(c.args)...); !strings.Contains(out, c.want) {
				return out
			}
			return ""
		})
	}
	_, told, err := w.eventsIn(f.Clients().Kube, "default")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range told {
		if strings.Contains(e.String(), w.namespaceIn("east")) {
			t.Errorf("an event names the namespace in east: %+v", e)
		}
	}
	w.kubectl("delete", "deployment,daemonset", "--all")
}
