package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/atoll/test/framework"
)

// allows waits until the budget of the app's pods has counted so many, and lets so many of them go.
func (w *workspace) allows(pods, allowed int32) {
	w.t.Helper()
	framework.Eventually(w.t, patience, fmt.Sprintf("the budget allows %d of %d", allowed, pods), func() string {
		budget, err := w.f.Clients().Kube.PolicyV1().PodDisruptionBudgets("default").Get(w.ctx(), w.app, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if st := budget.Status; st.ObservedGeneration != budget.Generation || st.ExpectedPods != pods || st.DisruptionsAllowed != allowed {
			return fmt.Sprintf("%+v", st)
		}
		return ""
	}, w.state)
}

// evict asks for the eviction of a pod.
func (w *workspace) evict(pod string) error {
	return w.f.Clients().Kube.CoreV1().Pods("default").EvictV1(w.ctx(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod}})
}

// evicts: of a Deployment whose clusters run all its replicas each, a pod that is evicted ends where it runs, another takes its place there, and until then its
// budget lets no other go, of any cluster.
func evicts(t *testing.T, f *fleet) {
	w := f.workspace(t, "evicts")
	w.place("east,west")
	w.kubectl("annotate", "namespace", "default", "placement.atoll.dev/split=Duplicate")
	w.apply(2, "2s")
	w.spread(map[string]int{"east": 2, "west": 2})
	w.rolledOut()
	w.shows()
	w.kubectl("create", "poddisruptionbudget", w.app, "--selector=app="+w.app, "--max-unavailable=1")
	w.allows(4, 1)

	o := w.observe()
	for _, cluster := range []string{"east", "west"} { // which may be of the two kinds, push and pull
		var evicted, other string
		for name, pod := range w.shownPods() {
			if pod.Spec.NodeName == cluster {
				evicted = name
			} else {
				other = name
			}
		}
		if err := w.evict(evicted); err != nil {
			t.Errorf("evict a pod of %s: %v", cluster, err)
		}
		if err := w.evict(other); !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), "disruption budget") {
			t.Errorf("evict another pod: %v, want that its budget holds it", err)
		}
		w.podGone(cluster, evicted)
		w.spread(map[string]int{"east": 2, "west": 2})
		w.shows()
		w.allows(4, 1)
		if pods := w.shownPods(); pods[evicted] != nil || pods[other] == nil || len(pods) != 4 {
			t.Errorf("the workspace shows %v, want another one in the place of %s", slices.Sorted(maps.Keys(pods)), evicted)
		}
	}
	o.neverBelow(t, 3)

	// A budget that lets none go holds all of them, however many clusters run them.
	w.kubectl("patch", "poddisruptionbudget", w.app, "--type=merge", `--patch={"spec":{"maxUnavailable":0}}`)
	w.allows(4, 0)
	for name := range w.shownPods() {
		if err := w.evict(name); !apierrors.IsTooManyRequests(err) {
			t.Errorf("evict %s: %v, want that its budget holds it", name, err)
		}
	}
	w.kubectl("delete", "poddisruptionbudget", w.app)
	free := anyOf(w.shownPods())
	cluster := w.shownPods()[free].Spec.NodeName
	if err := w.evict(free); err != nil {
		t.Errorf("evict a pod that no budget holds any more: %v", err)
	}
	w.podGone(cluster, free)
	w.spread(map[string]int{"east": 2, "west": 2})
}
