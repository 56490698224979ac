package realnodes

import (
	"context"
	"fmt"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

// TestMove moves what truly runs from one real node to another, both synced by the server.
func TestMove(t *testing.T) {
	needsRealNodes(t)
	const replicas = 2
	hub, app := framework.StartAtoll(t), imageOfApp(t)
	clusters := map[string]*framework.Physical{}
	for _, name := range []string{"east", "west"} {
		clusters[name] = framework.StartPhysical(t, name, framework.PhysicalRealNode([]string{app}))
		hub.MustRun("cluster", "add", name, "--kubeconfig", clusters[name].Kubeconfig)
	}
	w := &workspace{T: t, hub: hub, east: clusters["east"]}
	w.clusterReady("east")
	w.clusterReady("west")
	w.cluster = framework.MakeWorkspace(t, hub.Clients(), "root", "moves")
	w.kubeconfig = hub.KubeconfigOf(t, "root:moves")
	w.kubectl("", "annotate", "namespace", "default", "placement.atoll.dev/clusters=east")
	w.kubectl(plain, "apply", "-f", "-")
	w.kubectl("", "scale", "deployment/web", fmt.Sprintf("--replicas=%d", replicas))
	w.kubectl("", "rollout", "status", "deployment/web", "--timeout=3m")
	w.runsIn("east", replicas)

	least := w.leastAvailable("web")
	w.kubectl("", "annotate", "namespace", "default", "placement.atoll.dev/clusters=west", "--overwrite")
	w.runsIn("west", replicas)
	framework.Eventually(t, patience, "nothing of the workspace is left in east", func() string {
		pods, err := clusters["east"].Clientset().CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		namespaces, err := clusters["east"].Clientset().CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{LabelSelector: workloadv1alpha1.WorkspaceLabel})
		if err != nil {
			return err.Error()
		}
		if len(pods.Items)+len(namespaces.Items) > 0 {
			return fmt.Sprintf("%d pods, %d namespaces", len(pods.Items), len(namespaces.Items))
		}
		return ""
	})
	if got := least(); got < replicas {
		t.Errorf("during the move %d of %d were available", got, replicas)
	}
	w.logsAndExec()
	if !t.Failed() {
		t.Log("done: what runs moves from one node to the other, never fewer pods available than asked for, and leaves nothing; its logs are read there through a server that syncs both clusters itself")
	}
}

// runsIn waits until as many pods of web, and no others, are ready in a cluster.
func (w *workspace) runsIn(cluster string, replicas int) {
	w.Helper()
	framework.Eventually(w, patience, fmt.Sprintf("%d pods run in %s", replicas, cluster), func() string {
		pods, there := w.pods("web"), 0
		for i := range pods {
			if pods[i].Spec.NodeName == cluster && isReady(&pods[i]) && pods[i].DeletionTimestamp == nil {
				there++
			}
		}
		if there != replicas || len(pods) != replicas {
			return fmt.Sprintf("%d of %d pods: %+v", there, len(pods), pods)
		}
		return ""
	}, func() string {
		return w.hub.Says([]string{"explain", "--kubeconfig", w.kubeconfig, "deployment/web"})
	})
}

// leastAvailable watches a Deployment, and returns what says how few of its pods were available since.
func (w *workspace) leastAvailable(name string) func() int32 {
	w.Helper()
	ctx, cancel := context.WithCancel(client.In(w.Context(), w.cluster))
	deployments := w.hub.Clients().Kube.AppsV1().Deployments(corev1.NamespaceDefault)
	now, err := deployments.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	changes, err := deployments.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: now.ResourceVersion})
	if err != nil {
		w.Fatal(err)
	}
	least := now.Status.AvailableReplicas
	var ended error
	var watching sync.WaitGroup
	watching.Go(func() {
		for change := range changes.ResultChan() {
			d, ok := change.Object.(*appsv1.Deployment)
			switch {
			case ctx.Err() != nil: // which the watch says as an error
				return
			case !ok || change.Type == watch.Deleted:
				ended = fmt.Errorf("the watch says %s %v", change.Type, change.Object)
				return
			}
			least = min(least, d.Status.AvailableReplicas)
		}
		if ctx.Err() == nil {
			ended = fmt.Errorf("the watch has ended")
		}
	})
	w.Cleanup(cancel)
	return func() int32 {
		w.Helper()
		cancel()
		watching.Wait()
		if ended != nil {
			w.Errorf("watch Deployment %s: %v", name, ended)
		}
		return least
	}
}
