package operators

import (
	"encoding/json"
	"fmt"
	"maps"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

var lws = manager{
	name: "lws", module: "sigs.k8s.io/lws", namespace: "lws-system", crd: "leaderworkersets.leaderworkerset.x-k8s.io",
	hooks: map[string][]string{
		"MutatingWebhookConfiguration mutating-webhook-configuration":     {"/mutate-leaderworkerset-x-k8s-io-v1-leaderworkerset", "/mutate--v1-pod"},
		"ValidatingWebhookConfiguration validating-webhook-configuration": {"/validate-leaderworkerset-x-k8s-io-v1-leaderworkerset", "/validate--v1-pod"},
	},
}

// A LeaderWorkerSet with everything that its webhook would default.
const server = `
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: serve-WORKSPACE, namespace: default}
spec:
  replicas: 2
  rolloutStrategy: {type: RollingUpdate, rollingUpdateConfiguration: {maxUnavailable: 1, maxSurge: 0, partition: 0}}
  networkConfig: {subdomainPolicy: Shared}
  leaderWorkerTemplate:
    size: 3
    restartPolicy: RecreateGroupOnPodRestart
    workerTemplate:
      spec:
        containers: [{name: main, image: registry.example/WORKSPACE:1}]
`

// TestLeaderWorkerSet: https://lws.sigs.k8s.io, of the API of StatefulSets.
func TestLeaderWorkerSet(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, ws := range w.workspaces {
		p := newPorts(t)
		lws.install(t, ws, p)
		lws.start(t, w, ws, p)
	}
	done(t, "installed from its own config/default by kustomize and a server-side apply; runs as its ServiceAccount, with its roles alone")
	w.led(t, lws.namespace, "b8b2488c.x-k8s.io")
	w.strangers(t, lws.namespace, "lws-controller-manager")

	w.both(t, "Sets", sets)
	done(t, "a LeaderWorkerSet becomes a StatefulSet, applied by server-side apply, a Service and a ControllerRevision; is scaled by its scale subresource; a leader's Pod gets a StatefulSet of workers; a new template is rolled out")
	w.apart(t)
	w.both(t, "Deleted", func(t *testing.T, ws *workspace) {
		ws.kubectl(t, "delete", "leaderworkerset", "serve-"+ws.name, "--cascade=foreground", "--wait", "--timeout=60s")
		ws.gone(t, "default", "leaderworkersets,statefulsets,pods,controllerrevisions,services", "--selector=leaderworkerset.sigs.k8s.io/name")
	})
	done(t, "its deletion in the foreground ends when StatefulSets, Pods, ControllerRevisions and the Service have gone, four levels deep")
}

func sets(t *testing.T, ws *workspace) {
	ws.apply(t, server)
	name := "serve-" + ws.name
	ws.shows(t, "2 "+name, "statefulset", name, "-o", "jsonpath={.spec.replicas} {.metadata.ownerReferences[0].name}")
	ws.shows(t, "None", "service", name, "-o", "jsonpath={.spec.clusterIP}")
	// Beside its own there is one of the StatefulSet, which has the labels of its template, as in Kubernetes.
	ws.shows(t, name, "controllerrevisions", "-l", "leaderworkerset.sigs.k8s.io/name="+name, "-o", `jsonpath={.items[?(@.metadata.ownerReferences[0].kind=="LeaderWorkerSet")].metadata.ownerReferences[0].name}`)
	ws.shows(t, "lws", "statefulset", name, "--show-managed-fields", "-o", `jsonpath={.metadata.managedFields[?(@.operation=="Apply")].manager}`)

	ws.kubectl(t, "scale", "leaderworkerset/"+name, "--replicas=3")
	ws.shows(t, "3", "statefulset", name, "-o", "jsonpath={.spec.replicas}")

	// What the controller of StatefulSets of a physical cluster would make, and the webhook for Pods would add.
	leader := leaderPod(t, ws, name)
	manifest, err := json.Marshal(leader)
	if err != nil {
		t.Fatal(err)
	}
	ws.kubectlWithInput(t, string(manifest), "create", "-f", "-")
	ws.shows(t, "2 Pod/"+leader.Name, "statefulset", leader.Name, "-o",
		"jsonpath={.spec.replicas} {.metadata.ownerReferences[0].kind}/{.metadata.ownerReferences[0].name}")

	ws.kubectl(t, "patch", "leaderworkerset", name, "--type=json", "-p",
		`[{"op":"replace","path":"/spec/leaderWorkerTemplate/workerTemplate/spec/containers/0/image","value":"registry.example/`+ws.name+`:2"}]`)
	ws.shows(t, "registry.example/"+ws.name+":2", "statefulset", name, "-o", "jsonpath={.spec.template.spec.containers[0].image}")
	ws.shows(t, "True", "leaderworkerset", name, "-o", `jsonpath={.status.conditions[?(@.type=="Progressing")].status}`)
}

// leaderPod is the first Pod of the StatefulSet of leaders.
func leaderPod(t *testing.T, ws *workspace, name string) *corev1.Pod {
	t.Helper()
	var set appsv1.StatefulSet
	if err := json.Unmarshal([]byte(ws.kubectl(t, "get", "statefulset", name, "-o", "json")), &set); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%d", name, 0), Namespace: set.Namespace,
			Labels: maps.Clone(set.Spec.Template.Labels), Annotations: set.Spec.Template.Annotations,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "StatefulSet", Name: set.Name, UID: set.UID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
			}},
		},
		Spec: set.Spec.Template.Spec,
	}
	pod.Labels["leaderworkerset.sigs.k8s.io/group-index"] = "0"
	pod.Labels["leaderworkerset.sigs.k8s.io/group-key"] = "key-of-" + name
	return pod
}
