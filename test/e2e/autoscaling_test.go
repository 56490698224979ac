package e2e

import (
	"fmt"
	"regexp"
	"testing"

	"atoll.dev/atoll/test/framework"
)

// TestT1_Autoscaled: a HorizontalPodAutoscaler has as many pods in both clusters together as what they use there needs.
func TestT1_Autoscaled(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	kubelets := map[string]*framework.Kubelet{}
	for name, c := range f.clusters {
		kubelets[name] = beKubelet(t, c, t.TempDir())
		framework.StartMetricsServer(t, c)
	}
	w := f.workspace(t, "scaled")
	w.place("*")
	w.apply(2, "")
	w.kubectl("set", "resources", "deployment", w.app, "--requests=cpu=100m")
	w.rolledOut()
	w.spread(map[string]int{"east": 1, "west": 1})
	w.shows()
	used := map[string]bool{}
	// reaches waits until the Deployment wants so many, while each pod that there is uses all that it asks for.
	reaches := func(want string) {
		t.Helper()
		framework.Eventually(t, 2*patience, "the Deployment wants "+want, func() string {
			for name, pod := range w.shownPods() {
				if !used[name] { // from when it began: what a kubelet says of it only grows
					used[name] = true
					kubelets[pod.Spec.NodeName].Uses(w.namespaceIn(pod.Spec.NodeName), name, pod.Spec.Containers[0].Name, 0.1, 20<<20)
				}
			}
			if got := w.stdout("get", "deployment", w.app, "-o", "jsonpath={.spec.replicas}"); got != want {
				return fmt.Sprintf("%s, %s", got, w.stdout("get", "hpa", w.app, "-o", "jsonpath={.status}"))
			}
			return ""
		})
	}
	w.kubectl("autoscale", "deployment", w.app, "--cpu=50%", "--min=2", "--max=6")
	reaches("6")
	w.spread(map[string]int{"east": 3, "west": 3})
	framework.Eventually(t, patience, "kubectl get hpa", func() string {
		out := w.stdout("get", "hpa", w.app)
		if !regexp.MustCompile(`(?m)^scaled +Deployment/scaled +cpu: 10[0-9]%/50% +2 +6 +6 `).MatchString(out) {
			return out
		}
		return ""
	})
	w.kubectl("patch", "hpa", w.app, "--type=json", `--patch=[{"op": "replace", "path": "/spec/metrics/0/resource/target/averageUtilization", "value": 400},
		{"op": "add", "path": "/spec/behavior", "value": {"scaleDown": {"stabilizationWindowSeconds": 0}}}]`)
	reaches("2")
	w.spread(map[string]int{"east": 1, "west": 1})
}
