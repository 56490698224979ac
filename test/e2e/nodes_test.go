package e2e

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"atoll.dev/atoll/test/framework"
)

// TestNodes: the physical clusters that a workspace may use are its Nodes, from when they are added until they are gone, wherever
// their syncers run.
func TestNodes(t *testing.T) {
	t.Parallel()
	needsSyncersInPods(t)
	f := startFleet(t)
	w := f.workspace(t, "nodes")
	if out := w.kubectl("get", "nodes"); !strings.Contains(out, "No resources found") {
		t.Errorf("before there are clusters: %s", out)
	}
	heard := w.informed(t)

	f.MustRun("cluster", "add", "east", "--kubeconfig", f.clusters["east"].Kubeconfig)
	manifest := f.MustStdout("cluster", "add", "west", "--manifest", "--allow-loopback")
	w.nodesAre(t, "added, and one has no syncer yet", heard, "east Ready,west NotReady")
	west := framework.StartSyncer(t, f.Atoll, f.clusters["west"], manifest)
	w.nodesAre(t, "both have one", heard, "east Ready,west Ready")
	version, err := f.clusters["east"].Clientset().Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if out := w.kubectl("get", "nodes", "-o", "wide"); strings.Count(out, version.GitVersion) != 2 {
		t.Errorf("nodes do not show the version %s: %s", version.GitVersion, out)
	}
	if out := w.kubectl("describe", "node", "east"); !strings.Contains(out, "Allocatable:") || !strings.Contains(out, "Kubelet Version:            "+version.GitVersion) {
		t.Errorf("kubectl describe node: %s", out)
	}

	f.MustRun("cluster", "cordon", "east")
	w.nodesAre(t, "cordoned", heard, "east Ready,SchedulingDisabled,west Ready")
	f.MustRun("cluster", "uncordon", "east")
	w.nodesAre(t, "uncordoned", heard, "east Ready,west Ready")
	for _, verb := range [][]string{{"cordon", "east"}, {"drain", "east"}, {"delete", "node", "east"}, {"label", "node", "east", "tier=gold"}, {"delete", "nodes", "--all"}} {
		// kubectl cordon and drain say what was refused, and end well.
		out, err := f.Run(append([]string{"kubectl", "--server=" + f.URL + "/clusters/root:" + w.app}, verb...)...)
		if !strings.Contains(out, `SyncTarget "east"`) {
			t.Errorf("kubectl %v: %v, %s", verb, err, out)
		}
	}
	w.nodesAre(t, "nobody wrote them", heard, "east Ready,west Ready")
	w.isNotDrained(t, "east")

	before := heard.of("east")
	west.Kill()
	w.nodesAre(t, "its syncer is killed", heard, "east Ready,west NotReady")
	if after := heard.of("east"); after != before {
		t.Errorf("heartbeats changed the node of east %d times", after-before)
	}
	west.Start()
	w.nodesAre(t, "its syncer is back", heard, "east Ready,west Ready")

	policy := "apiVersion: placement.atoll.dev/v1alpha1\nkind: PlacementPolicy\nmetadata: {name: only}\nspec: {allow: {names: [west]}}\n"
	f.MustRunWithInput(policy, "kubectl", "apply", "-f", "-")
	w.nodesAre(t, "a policy above does not allow one", heard, "west Ready")
	f.MustRun("kubectl", "delete", "placementpolicy", "only")
	w.nodesAre(t, "nor is there one", heard, "east Ready,west Ready")
	f.MustRun("cluster", "remove", "west")
	west.Kill() // it may have found out by itself, and ended with an error
	w.nodesAre(t, "removed", heard, "east Ready")
	f.Kill()
	f.Start()
	w.nodesAre(t, "the server was killed", heard, "east Ready")
}

// nodesHeard is what an informer of a workspace's Nodes was told.
type nodesHeard struct {
	store cache.Store
	mu    sync.Mutex
	count map[string]int
}

func (h *nodesHeard) of(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count[name]
}

// informed starts an informer as any controller has, which lives as long as the test.
func (w *workspace) informed(t *testing.T) *nodesHeard {
	t.Helper()
	factory := informers.NewSharedInformerFactory(at(t, w.f.Config(), w.f.Atoll, string(w.cluster)), 0)
	informer := factory.Core().V1().Nodes().Informer()
	h := &nodesHeard{store: informer.GetStore(), count: map[string]int{}}
	told := func(obj any) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if n, ok := obj.(*corev1.Node); ok {
			h.count[n.Name]++
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: told, UpdateFunc: func(_, obj any) { told(obj) }}); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop); factory.Shutdown() })
	factory.Start(stop)
	factory.WaitForCacheSync(stop)
	return h
}

// isNotDrained: pods of a physical cluster that cannot be cordoned here, where they would start again, are not evicted.
func (w *workspace) isNotDrained(t *testing.T, cluster string) {
	t.Helper()
	w.place(cluster)
	w.apply(2, "")
	w.rolledOut()
	pods := func() string { return w.kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.uid}") }
	before := pods()
	for _, how := range [][]string{nil, {"--disable-eviction"}} {
		out, err := w.f.Run(append([]string{"kubectl", "--server=" + w.f.URL + "/clusters/root:" + w.app, "drain", cluster}, how...)...)
		if err == nil || !strings.Contains(out, "no pod is evicted") {
			t.Errorf("kubectl drain %v: %v, %s", how, err, out)
		}
	}
	if after := pods(); after != before {
		t.Errorf("the pods were %s, and are %s", before, after)
	}
	w.kubectl("delete", "deployment", w.app)
}

// nodesAre waits until kubectl and an informer show a workspace's Nodes so: their names, and what STATUS says.
func (w *workspace) nodesAre(t *testing.T, reason string, heard *nodesHeard, want string) {
	t.Helper()
	framework.Eventually(t, patience, "nodes are "+want+": "+reason, func() string {
		out, err := w.f.Run("kubectl", "--server="+w.f.URL+"/clusters/root:"+w.app, "get", "nodes", "--no-headers")
		if err != nil {
			return out
		}
		var got []string
		for line := range strings.Lines(out) {
			if columns := strings.Fields(line); len(columns) > 1 {
				got = append(got, columns[0]+" "+columns[1])
			}
		}
		if strings.Join(got, ",") != want {
			return out
		}
		var names []string
		for _, obj := range heard.store.List() {
			n := obj.(*corev1.Node)
			status := " NotReady"
			if slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
			}) {
				status = " Ready"
			}
			if n.Spec.Unschedulable {
				status += ",SchedulingDisabled"
			}
			names = append(names, n.Name+status)
		}
		slices.Sort(names)
		if informed := strings.Join(names, ","); informed != want {
			return fmt.Sprintf("an informer has %q", informed)
		}
		return ""
	})
}
