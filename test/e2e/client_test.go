package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

// TestClientKnowsEveryResource: clients name resources without discovery, so what they guess has to be what is served.
func TestClientKnowsEveryResource(t *testing.T) {
	t.Parallel()
	a := framework.StartAtoll(t)
	clients := a.Clients()
	served, err := discovery.NewDiscoveryClientForConfigOrDie(clients.ConfigFor("root")).ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	known := 0
	for _, list := range served {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			gvk := gv.WithKind(r.Kind)
			if !client.Scheme.Recognizes(gvk) || strings.HasSuffix(r.Kind, "Review") || r.Name == "bindings" {
				continue
			}
			known++
			mapping, err := clients.Objects.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
			if err != nil {
				t.Errorf("%s: %v", gvk, err)
				continue
			}
			if mapping.Resource.Resource != r.Name || (mapping.Scope.Name() == "namespace") != r.Namespaced {
				t.Errorf("%s is taken for %s (%s), served is %s (namespaced %v)", gvk, mapping.Resource.Resource, mapping.Scope.Name(), r.Name, r.Namespaced)
			}
		}
	}
	if known < 50 {
		t.Errorf("only %d resources were compared", known)
	}
}

// TestP5_InformerOfAllLogicalClusters: equal names stay apart, and what went while the server was away is told as Missed.
func TestP5_InformerOfAllLogicalClusters(t *testing.T) {
	t.Parallel()
	a := framework.StartAtoll(t)
	clients := a.Clients()
	names := []string{"root", "system:admin"}
	for _, cluster := range names {
		for _, name := range []string{"same", "goes"} {
			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string]string{"in": cluster}}
			if err := clients.Objects.Create(client.In(t.Context(), logicalcluster.Name(cluster)), cm); err != nil {
				t.Fatal(err)
			}
		}
	}
	informer, err := client.NewInformer(clients, &corev1.ConfigMap{}, client.InformerOptions[*corev1.ConfigMap]{FieldSelector: "metadata.name!=kube-root-ca.crt"})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var events []string
	informer.OnEvent(func(e client.Event[*corev1.ConfigMap]) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, fmt.Sprintf("%s deleted=%v missed=%v initial=%v", client.KeyOf(e.Object()), e.Deleted(), e.Missed, e.Initial))
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { informer.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	if err := informer.WaitSynced(ctx); err != nil {
		t.Fatal(err)
	}
	for _, cluster := range names {
		// Its first list is what the server's cache has.
		framework.Eventually(t, patience, "the informer has the ConfigMaps of "+cluster, func() string {
			if n := len(informer.List(logicalcluster.Name(cluster), "")); n != 2 {
				return fmt.Sprintf("%d, want 2", n)
			}
			return ""
		})
		got, ok := informer.Get(client.Key{Cluster: logicalcluster.Name(cluster), Namespace: "default", Name: "same"})
		if !ok || got.Data["in"] != cluster {
			t.Errorf("default/same of %s is %v, %v", cluster, got, ok)
		}
	}
	seen := func(want string) func() string {
		return func() string {
			mu.Lock()
			defer mu.Unlock()
			for _, e := range events {
				if strings.HasPrefix(e, want) {
					return ""
				}
			}
			return strings.Join(events, "\n")
		}
	}
	// A deletion that is seen.
	if err := clients.Objects.Delete(client.In(t.Context(), "root"), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "goes"}}); err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, patience, "the deletion is seen", seen("root|default/goes deleted=true missed=false"))
	// One more name, and the same informer goes on after the server was away.
	a.Kill()
	a.Restart()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "later"}}
	if err := clients.Objects.Create(client.In(t.Context(), "root"), cm); err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, patience, "the informer goes on after a restart", seen("root|default/later deleted=false"))
	if _, ok := informer.Get(client.Key{Cluster: "system:admin", Namespace: "default", Name: "goes"}); !ok {
		t.Error("what nobody deleted is gone from the informer after a restart of the server")
	}
}

// TestShellCompletion: a TAB finds what a person can name, also through the kubectl that is built in, and where the server
// does not answer it finds nothing, in time.
func TestShellCompletion(t *testing.T) {
	t.Parallel()
	a := framework.StartAtoll(t)
	a.MustRun("workspace", "create", "shop")
	a.MustRun("workspace", "create", "root:shop:team")
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "prices"}}
	if err := a.Clients().Objects.Create(client.In(t.Context(), "root"), cm); err != nil {
		t.Fatal(err)
	}
	for words, want := range map[string]string{
		"workspace use s":            "shop",
		"workspace delete root:":     "root:shop",
		"workspace use root:shop:":   "root:shop:team",
		"kubectl get configmaps pri": "prices",
		"kubectl rollout sta":        "status",
		"kubectl get configm":        "configmaps",
		"kubectl get pods --namesp":  "--namespace",
	} {
		out := a.MustRun(append([]string{"__complete"}, strings.Split(words, " ")...)...)
		if !strings.HasPrefix(out, want+"\n") && !strings.HasPrefix(out, want+"\t") {
			t.Errorf("%q completes to:\n%s\nwant %s", words, out, want)
		}
	}
	a.Pause() // connections are made, and nothing comes
	for _, words := range []string{"workspace use s", "cluster status e", "kubectl get configmaps pri"} {
		if out := a.MustRun(append([]string{"__complete"}, strings.Split(words, " ")...)...); !strings.HasPrefix(out, ":") {
			t.Errorf("%q of a server that does not answer completes to:\n%s", words, out)
		}
	}
}

// TestHintsCanBePasted: the server proposes commands as it was called itself.
func TestHintsCanBePasted(t *testing.T) {
	t.Parallel()
	a := framework.StartAtoll(t)
	log, err := os.ReadFile(filepath.Join(a.Dir, "atoll.log"))
	if err != nil {
		t.Fatal(err)
	}
	if hint := "\n  " + framework.Binary(t) + " workspace create shop"; !strings.Contains(string(log), hint) {
		t.Errorf("the server does not say%s, but:\n%s", hint, log)
	}
	if out, err := a.Run("workspace", "use", "nowhere"); err == nil || !strings.Contains(out, framework.Binary(t)+" workspace tree") {
		t.Errorf("a workspace that is not there: %v, %s", err, out)
	}
	a.MustRun("workspace", "create", "shop", "--enter")
	a.MustRun("workspace", "create", "team")
	if out, want := a.MustRun("workspace", "tree"), "root\n└── shop\n    └── team\n"; out != want {
		t.Errorf("the tree is\n%s\nwant\n%s", out, want)
	}
	a.MustRun("workspace", "use", "root")
	a.MustRun("workspace", "delete", "shop")
	if out, err := a.Run("workspace", "use", "-"); err == nil || !strings.Contains(out, `there is no workspace "root:shop"`) {
		t.Errorf("back to a workspace that is deleted: %v, %s", err, out)
	}
	if out := a.MustRun("workspace", "current", "--short"); out != "root\n" {
		t.Errorf("the current workspace is then %s", out)
	}
}

// TestWatchesEndWithTheirWorkspace: a watch tells the deletions of a workspace that is deleted, and ends then, so that who made it hears of a
// workspace that is made anew by that name. Those of other workspaces go on.
func TestWatchesEndWithTheirWorkspace(t *testing.T) {
	t.Parallel()
	a := framework.StartAtoll(t)
	clients := a.Clients()
	watches := map[string]watch.Interface{}
	for _, name := range []string{"shop", "bank"} {
		in := client.In(t.Context(), framework.MakeWorkspace(t, clients, "root", name))
		seen := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "seen"}}
		if _, err := clients.Kube.CoreV1().ConfigMaps("default").Create(in, seen, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		var err error
		if watches[name], err = clients.Kube.CoreV1().ConfigMaps("default").Watch(in, metav1.ListOptions{FieldSelector: "metadata.name=seen"}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(watches[name].Stop)
	}
	next := func(workspace string) watch.EventType {
		t.Helper()
		select {
		case event, open := <-watches[workspace].ResultChan():
			if !open {
				return "end"
			}
			return event.Type
		case <-time.After(patience):
			t.Fatalf("the watch of %s says nothing", workspace)
			return ""
		}
	}
	a.MustRun("workspace", "delete", "shop")
	for _, want := range []watch.EventType{watch.Added, watch.Deleted, "end"} {
		if got := next("shop"); got != want {
			t.Fatalf("the watch says %s, want %s", got, want)
		}
	}
	a.MustRun("kubectl", "--server="+a.URL+"/clusters/root:bank", "delete", "configmap", "seen")
	for _, want := range []watch.EventType{watch.Added, watch.Deleted} {
		if got := next("bank"); got != want {
			t.Errorf("the watch of another workspace says %s, want %s", got, want)
		}
	}
}

// TestClusterThatIsAway: who looks is told at once, also by a server that was just started, and a deletion names it.
func TestClusterThatIsAway(t *testing.T) {
	t.Parallel()
	a := framework.StartAtoll(t)
	east := framework.StartPhysical(t, "east")
	a.MustRun("cluster", "add", "east", "--kubeconfig", east.Kubeconfig)
	list := func(want ...string) {
		t.Helper()
		framework.Eventually(t, patience, fmt.Sprintf("the list says %q", want), func() string {
			out := a.MustRun("cluster", "list")
			fields := strings.Fields(strings.Split(out, "\n")[1])
			for _, w := range want {
				if !slices.Contains(fields, w) {
					return out
				}
			}
			return ""
		})
	}
	list("True")
	framework.Eventually(t, patience, "east has confirmed a heartbeat", func() string {
		out := a.MustRun("kubectl", "get", "leases", "-n", "atoll-system", "-o", "yaml", "--server="+a.URL+"/clusters/"+
			strings.TrimSpace(a.MustRun("kubectl", "get", "synctarget", "east", "-o", "jsonpath={.status.mirror}")))
		if !strings.Contains(out, `workload.atoll.dev/heartbeat-written: "`) || strings.Contains(out, `heartbeat-written: "0"`) {
			return out
		}
		return ""
	})
	a.MustRun("workspace", "create", "shop")
	a.MustRun("kubectl", "--server="+a.URL+"/clusters/root:shop", "create", "deployment", "web", "--image=registry.example/web:1")
	a.MustRun("kubectl", "--server="+a.URL+"/clusters/root:shop", "rollout", "status", "deployment/web", "--timeout=100s")

	east.Stop()
	a.Restart()
	list("Unknown", "unanswered", "HeartbeatUnanswered")
	a.MustRun("workspace", "delete", "shop", "--wait=false")
	framework.Eventually(t, patience, "the list of workspaces names east", func() string {
		if out := a.MustRun("workspace", "list"); !strings.Contains(out, "what runs there: east") {
			return out
		}
		return ""
	})
	east.Restart()
	list("True")
	framework.Eventually(t, patience, "the workspace goes", func() string {
		if out := a.MustRun("workspace", "list", "-o", "name"); out != "" && !strings.HasPrefix(out, "No workspaces") {
			return out
		}
		return ""
	})
}
