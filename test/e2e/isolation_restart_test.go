package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/test/framework"
)

// manyWorkspaces is how many more than a and b there are when the server restarts.
const manyWorkspaces = 200

// TestI1_NoBleed_CachesAfterRestart: caches that are filled anew hold every logical cluster's objects of one name, not
// one of them (trap X1).
func TestI1_NoBleed_CachesAfterRestart(t *testing.T) {
	t.Parallel()
	w := newIsoWorld(t)
	clusters := []logicalcluster.Name{w.a, w.b}
	for i := range manyWorkspaces {
		clusters = append(clusters, framework.MakeWorkspace(t, w.clients, "root", fmt.Sprintf("more-%d", i)))
	}
	var wait sync.WaitGroup
	for part := range 8 {
		wait.Go(func() {
			for i := part; i < len(clusters); i += 8 {
				cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "cm0"}, Data: map[string]string{"of": clusters[i].String()}}
				if err := w.clients.Objects.Create(client.In(t.Context(), clusters[i]), cm); err != nil && !apierrors.IsAlreadyExists(err) {
					t.Errorf("create cm0 in %s: %v", clusters[i], err)
				}
			}
		})
	}
	wait.Wait()
	before := map[logicalcluster.Name]map[string]string{w.a: w.settled(t, w.a), w.b: w.settled(t, w.b)}
	// A list that began before the restart goes on after it, and an exact one can be asked for: the caches of then have
	// neither, so the store answers (trap X5).
	inA := client.In(t.Context(), w.a)
	first, err := w.clients.Kube.CoreV1().ConfigMaps("").List(inA, metav1.ListOptions{Limit: 1})
	if err != nil || first.Continue == "" {
		t.Fatalf("first page of a: %v, %v", first, err)
	}
	w.Kill()
	w.Restart()

	rest, err := w.clients.Kube.CoreV1().ConfigMaps("").List(inA, metav1.ListOptions{Continue: first.Continue})
	if err != nil {
		t.Fatalf("the pages after the restart: %v", err)
	}
	exact, err := w.clients.Kube.CoreV1().ConfigMaps("").List(inA, metav1.ListOptions{ResourceVersion: first.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	if err != nil {
		t.Fatalf("list at a resourceVersion from before the restart: %v", err)
	}
	want := strings.Count(strings.Join(slices.Collect(maps.Keys(before[w.a])), "\n"), "configmaps. ")
	if got := len(rest.Items) + 1; got != want {
		t.Errorf("a list over the restart shows %d ConfigMaps of a, want %d", got, want)
	}
	if got := len(exact.Items); got != want {
		t.Errorf("a list at a resourceVersion from before the restart shows %d ConfigMaps of a, want %d", got, want)
	}

	for _, cluster := range []logicalcluster.Name{w.a, w.b} {
		if diff := cmp.Diff(keysOf(before[cluster]), keysOf(w.dump(t, cluster))); diff != "" {
			t.Errorf("a consistent list of %s differs after the restart (- before):\n%s", cluster, diff)
		}
		for _, r := range w.resources {
			cached := w.list(t, r, client.In(t.Context(), cluster), metav1.ListOptions{ResourceVersion: "0"})
			consistent := w.list(t, r, client.In(t.Context(), cluster), metav1.ListOptions{})
			if diff := cmp.Diff(consistent, cached); diff != "" {
				t.Errorf("list of %s in %s at resourceVersion 0 (- consistent):\n%s", r.Resource, cluster, diff)
			}
		}
	}
	for _, cluster := range clusters {
		for _, rv := range []string{"", "0"} {
			list, err := w.clients.Kube.CoreV1().ConfigMaps("default").List(client.In(t.Context(), cluster), metav1.ListOptions{ResourceVersion: rv})
			if err != nil {
				t.Fatal(err)
			}
			found := 0
			for _, cm := range list.Items {
				if got := lcctx.NameFrom(&cm); got != cluster {
					t.Errorf("list in %s shows an object of %s", cluster, got)
				}
				if cm.Name == "cm0" && cm.Data["of"] == cluster.String() {
					found++
				}
			}
			if found != 1 {
				t.Errorf("list in %s at resourceVersion %q shows its cm0 %d times", cluster, rv, found)
			}
		}
	}
	for _, rv := range []string{"", "0"} {
		everywhere, err := w.clients.Kube.CoreV1().ConfigMaps("default").List(client.Everywhere(t.Context()), metav1.ListOptions{ResourceVersion: rv, FieldSelector: "metadata.name=cm0"})
		if err != nil {
			t.Fatal(err)
		}
		if len(everywhere.Items) != len(clusters) {
			t.Errorf("list of all logical clusters at resourceVersion %q shows %d objects cm0, want %d", rv, len(everywhere.Items), len(clusters))
		}
	}
}

// list returns the UID by namespace and name.
func (w *isoWorld) list(t *testing.T, r isoResource, ctx context.Context, options metav1.ListOptions) map[string]string {
	t.Helper()
	found := map[string]string{}
	list, err := w.clients.Dynamic.Resource(r.GroupVersionResource).List(ctx, options)
	if err != nil {
		t.Fatalf("list %s: %v", r.Resource, err)
	}
	for i := range list.Items {
		found[list.Items[i].GetNamespace()+"/"+list.Items[i].GetName()] = string(list.Items[i].GetUID())
	}
	return found
}

func keysOf(dump map[string]string) map[string]bool {
	keys := map[string]bool{}
	for key := range dump {
		keys[key] = true
	}
	return keys
}
