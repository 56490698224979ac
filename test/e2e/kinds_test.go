package e2e

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

// applyDaemonSet applies a DaemonSet and the ConfigMap that its pods need.
func (w *workspace) applyDaemonSet(version, readyAfter string) {
	w.t.Helper()
	w.kubectlWithInput(strings.NewReplacer("APP", w.app, "VERSION", version, "AFTER", readyAfter).Replace(`
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: APP, labels: {app: APP}}
spec:
  selector: {matchLabels: {app: APP}}
  template:
    metadata:
      labels: {app: APP}
      annotations: {simulate.atoll.dev/ready-after: AFTER}
    spec:
      containers:
      - name: agent
        image: registry.example/agent:VERSION
        envFrom: [{configMapRef: {name: APP}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: APP, labels: {app: APP}}
data: {greeting: hello}
`), "apply", "-f", "-")
}

func (w *workspace) daemonSetRolledOut() {
	w.t.Helper()
	w.kubectl("rollout", "status", "daemonset/"+w.app, "--timeout=100s")
}

// daemonSet reads the root.
func (w *workspace) daemonSet() *appsv1.DaemonSet {
	w.t.Helper()
	d, err := w.f.Clients().Kube.AppsV1().DaemonSets("default").Get(w.ctx(), w.app, metav1.GetOptions{})
	if err != nil {
		w.t.Fatalf("read the DaemonSet: %v", err)
	}
	return d
}

// nodesOf is how many nodes a cluster has.
func (f *fleet) nodesOf(t *testing.T, cluster string) int {
	t.Helper()
	nodes, err := f.clusters[cluster].Clientset().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatalf("list the nodes of %s: %v", cluster, err)
	}
	return len(nodes.Items)
}

// daemonSetEverywhere: on every node of each cluster of its Placement, with one status.
func daemonSetEverywhere(t *testing.T, f *fleet) {
	w := f.workspace(t, "agent")
	east, west := f.nodesOf(t, "east"), f.nodesOf(t, "west")
	w.place("east,west")
	w.applyDaemonSet("1", "0s")
	w.spread(map[string]int{"east": east, "west": west})
	w.daemonSetRolledOut()
	framework.Eventually(t, patience, "the status sums both clusters up", func() string {
		d := w.daemonSet()
		n, s := int32(east+west), d.Status
		want := appsv1.DaemonSetStatus{
			CurrentNumberScheduled: n, DesiredNumberScheduled: n, NumberReady: n, ObservedGeneration: d.Generation,
			UpdatedNumberScheduled: n, NumberAvailable: n, CollisionCount: s.CollisionCount, Conditions: s.Conditions,
		}
		if fmt.Sprint(s) != fmt.Sprint(want) || len(s.Conditions) > 0 {
			return fmt.Sprintf("it is %+v, want %+v", s, want)
		}
		return ""
	})
	w.show().ends(fmt.Sprintf("east %d/%d,west %d/%d", east, east, west, west))

	version := w.daemonSet().ResourceVersion
	w.applyDaemonSet("1", "0s")
	if now := w.daemonSet().ResourceVersion; now != version {
		t.Errorf("a second apply changed the DaemonSet from version %s to %s", version, now)
	}

	w.applyDaemonSet("2", "0s")
	w.daemonSetRolledOut()
	for name := range f.clusters {
		pods, err := f.clusters[name].Clientset().CoreV1().Pods("").List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + w.app})
		if err != nil {
			t.Fatal(err)
		}
		for _, pod := range pods.Items {
			if image := pod.Spec.Containers[0].Image; pod.DeletionTimestamp == nil && !strings.HasSuffix(image, ":2") {
				t.Errorf("after the rollout pod %s of %s runs %s", pod.Name, name, image)
			}
		}
	}

	w.kubectl("delete", "daemonset,configmap", w.app)
	w.spread(map[string]int{})
}

// daemonSetMoves: it serves on every node of the next cluster before it leaves the one before.
func daemonSetMoves(t *testing.T, f *fleet) {
	w := f.workspace(t, "nomad")
	east, west := f.nodesOf(t, "east"), f.nodesOf(t, "west")
	w.place("east")
	w.applyDaemonSet("1", "3s")
	w.daemonSetRolledOut()
	w.spread(map[string]int{"east": east})
	o := w.observe()
	w.place("west")
	w.spread(map[string]int{"west": west})
	w.gone("east")
	o.neverBelow(t, min(east, west))
	w.daemonSetRolledOut()
	if s := w.daemonSet().Status; s.DesiredNumberScheduled != int32(west) || s.NumberReady != int32(west) {
		t.Errorf("after the move the status is %+v, want %d wanted and ready", s, west)
	}
}

// TestSyncerThatDoesNotCarryAKind: to the server, a syncer of an earlier version is one that says nothing of a kind, as one is that its
// physical cluster does not let see it. Nothing of the kind is placed there, the user is told why, all else runs, and it is made up for
// when the syncer carries it.
func TestSyncerThatDoesNotCarryAKind(t *testing.T) {
	t.Parallel()
	needsSyncersInPods(t)
	f := &fleet{Atoll: framework.StartAtoll(t), clusters: map[string]*framework.Physical{"east": framework.StartPhysical(t, "east")}, syncers: map[string]*framework.Syncer{}}
	manifest := f.MustStdout("cluster", "add", "east", "--manifest", "--allow-loopback")
	earlier := strings.ReplaceAll(manifest, "- daemonsets\n", "- daemonsets-of-later\n")
	if earlier == manifest {
		t.Fatalf("the manifest gives no rights on DaemonSets:\n%s", manifest)
	}
	f.syncers["east"] = framework.StartSyncer(t, f.Atoll, f.clusters["east"], earlier)
	f.clusterReady(t, "east")

	w := f.workspace(t, "mixed")
	w.apply(2, "")
	w.rolledOut()
	w.applyDaemonSet("1", "0s")
	framework.Eventually(t, patience, "the user is told", func() string {
		said := ""
		for _, c := range w.daemonSet().Status.Conditions {
			said += fmt.Sprintf("%s %s %s: %s", c.Type, c.Status, c.Reason, c.Message)
		}
		if !strings.Contains(said, `Placed False NotCarried: Not on "east"`) {
			return fmt.Sprintf("conditions are %q", said)
		}
		if out := w.kubectl("get", "placement", "default", "-o", "jsonpath={.status.conditions[*].message}"); !strings.Contains(out, "does not carry daemonsets.apps") {
			return fmt.Sprintf("the Placement says %q", out)
		}
		return ""
	})
	w.spread(map[string]int{"east": 2})
	target := &workloadv1alpha1.SyncTarget{}
	if err := f.Clients().Objects.Get(client.In(t.Context(), "root"), ctrlclient.ObjectKey{Name: "east"}, target); err != nil {
		t.Fatal(err)
	}
	if !meta.IsStatusConditionTrue(target.Status.Conditions, workloadv1alpha1.SyncTargetReady) {
		t.Errorf("a cluster whose syncer does not carry all is not Ready: %+v", target.Status.Conditions)
	}

	f.MustRunWithInput(manifest, "kubectl", "--kubeconfig="+f.clusters["east"].Kubeconfig, "apply", "-f", "-")
	w.spread(map[string]int{"east": 2 + f.nodesOf(t, "east")})
	w.daemonSetRolledOut()
}
