package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

const (
	helmRelease = "demo"
	// helmPods selects what a release's workloads and their pods are labelled with in the chart of `helm create`.
	helmPods = "app.kubernetes.io/instance=" + helmRelease
	// helmRecords is the type of the Secrets in which Helm keeps what it installed, values included.
	helmRecords = "helm.sh/release.v1"
	// helmPatience is more than Helm's own --timeout, so that its error is the one that is seen.
	helmPatience = 3 * time.Minute
)

// TestT1_HelmInstallWait installs the chart that `helm create` makes, unchanged, into a workspace, and takes the release
// through its life: upgrade, the same upgrade again, rollback, uninstall.
//
// `helm test` is not part of it yet: the chart's test is a Pod without a controller, which goes down only once bare Pods do.
func TestT1_HelmInstallWait(t *testing.T) {
	t.Parallel()
	h := newHelm(t)
	before := h.settled(t)

	h.run("create", helmRelease)
	h.run("install", helmRelease, "./demo", "--wait", "--timeout", "2m")
	h.running(t, 1)

	upgrade := []string{"upgrade", helmRelease, "./demo", "--set", "replicaCount=3", "--wait", "--timeout", "2m"}
	h.run(upgrade...)
	h.running(t, 3)
	h.sameUpgradeChangesNothing(t, upgrade)

	h.run("rollback", helmRelease, "1", "--wait", "--timeout", "2m")
	h.running(t, 1)
	h.listed(t, 4)

	h.recordIsWithheld(t)

	h.run("uninstall", helmRelease, "--wait", "--timeout", "2m")
	framework.Eventually(t, patience, "nothing of the release is left", func() string {
		return cmp.Diff(names(before), names(h.everything(t)))
	})
	if out := h.run("list", "--short"); out != "" {
		t.Errorf("helm still lists %q", out)
	}
	h.noRecordBelow(t, 0)
}

// helm is the built helm with a workspace, whose Atoll has one physical cluster, east.
type helm struct {
	*workspace
	east       *framework.Physical
	upstream   *rest.Config // the administrator's access to the workspace
	bin, dir   string
	kubeconfig string
}

func newHelm(t *testing.T) *helm {
	t.Helper()
	bin := helmBinary(t)
	east := framework.StartPhysical(t, "east")
	f := &fleet{Atoll: framework.StartAtoll(t), clusters: map[string]*framework.Physical{"east": east}}
	f.MustRun("cluster", "add", "east", "--kubeconfig", east.Kubeconfig)
	h := &helm{workspace: f.workspace(t, "helm"), east: east, bin: bin, dir: t.TempDir()}

	config, err := clientcmd.LoadFromFile(f.Kubeconfig)
	if err != nil {
		t.Fatalf("read the administrator's kubeconfig: %v", err)
	}
	config.Clusters[config.Contexts[config.CurrentContext].Cluster].Server = f.URL + "/clusters/root:" + h.app
	h.kubeconfig = filepath.Join(h.dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, h.kubeconfig); err != nil {
		t.Fatalf("write the workspace's kubeconfig: %v", err)
	}
	if h.upstream, err = clientcmd.BuildConfigFromFlags("", h.kubeconfig); err != nil {
		t.Fatalf("read the workspace's kubeconfig: %v", err)
	}
	h.upstream.QPS = -1
	return h
}

// helmBinary is helm in ATOLL_BIN_DIR, else in the repository's bin after bringing it up to date.
func helmBinary(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("ATOLL_BIN_DIR"); dir != "" {
		bin := filepath.Join(dir, "helm")
		if _, err := os.Stat(bin); err != nil {
			t.Fatalf("find helm: %v; run `test/helm/build.sh %s` first", err, dir)
		}
		return bin
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatalf("find the repository: %v", err)
	}
	dir := filepath.Join(root, "bin")
	if out, err := exec.CommandContext(t.Context(), filepath.Join(root, "test", "helm", "build.sh"), dir).CombinedOutput(); err != nil {
		t.Fatalf("build helm: %v\n%s", err, out)
	}
	return filepath.Join(dir, "helm")
}

// run runs helm in the workspace and returns what it prints on standard output, trimmed.
func (h *helm) run(args ...string) string {
	h.t.Helper()
	began := time.Now()
	stdout, stderr, err := runHelm(h.t, h.bin, h.dir, h.kubeconfig, args...)
	if err != nil {
		h.t.Fatalf("helm %s: %v\n%s%s\n%s", strings.Join(args, " "), err, stdout, stderr, h.state())
	}
	h.t.Logf("helm %s: %s", strings.Join(args, " "), time.Since(began).Round(time.Millisecond))
	return strings.TrimSpace(stdout)
}

// runHelm runs helm in dir, which is its home, too: neither this person's plugins and settings, nor traces in his caches.
func runHelm(t *testing.T, bin, dir, kubeconfig string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), helmPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Dir = dir
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "HELM_") || strings.HasPrefix(v, "XDG_") || strings.HasPrefix(v, "KUBE")
	}), "HOME="+dir, "KUBECONFIG="+kubeconfig)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// running checks that the release has n Ready pods in east and no others, and that the workspace says so, now: Helm has
// waited. Pods that a scale-down took out of service may still be on their way out.
func (h *helm) running(t *testing.T, n int) {
	t.Helper()
	ns := h.namespaceIn("east")
	if ns == "" {
		t.Fatalf("east has no namespace for the workspace\n%s", h.state())
	}
	pods, err := h.east.Clientset().CoreV1().Pods("").List(t.Context(), metav1.ListOptions{LabelSelector: helmPods})
	if err != nil {
		t.Fatalf("list the pods of east: %v", err)
	}
	var ready, other []string
	for i := range pods.Items {
		switch pod := &pods.Items[i]; {
		case pod.Namespace == ns && isReady(pod):
			ready = append(ready, pod.Name)
		case pod.DeletionTimestamp == nil:
			other = append(other, fmt.Sprintf("%s/%s %s", pod.Namespace, pod.Name, pod.Status.Phase))
		}
	}
	if len(ready) != n || len(other) > 0 {
		t.Errorf("Ready pods in east are %v and others %v, want %d Ready and no others\n%s", ready, other, n, h.state())
	}
	d, err := h.f.Clients().Kube.AppsV1().Deployments("default").Get(h.ctx(), helmRelease, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("read the Deployment in the workspace: %v", err)
	}
	if s := d.Status; s.ObservedGeneration != d.Generation || int(s.Replicas) != n || int(s.ReadyReplicas) != n || int(s.UpdatedReplicas) != n {
		t.Errorf("status of the Deployment is %+v at generation %d, want %d replicas, ready and updated", s, d.Generation, n)
	}
}

// listed checks helm list: one release, deployed, at the revision.
func (h *helm) listed(t *testing.T, revision int) {
	t.Helper()
	var releases []struct{ Name, Revision, Status, Namespace string }
	out := h.run("list", "-o", "json")
	if err := json.Unmarshal([]byte(out), &releases); err != nil {
		t.Fatalf("parse what helm list prints: %v\n%s", err, out)
	}
	if len(releases) != 1 || releases[0].Name != helmRelease || releases[0].Status != "deployed" ||
		releases[0].Revision != strconv.Itoa(revision) || releases[0].Namespace != "default" {
		t.Errorf("helm lists %+v, want %s deployed at revision %d in default", releases, helmRelease, revision)
	}
}

// sameUpgradeChangesNothing runs an upgrade whose outcome is there already. What Helm writes is its next record, and
// the old one's status.
func (h *helm) sameUpgradeChangesNothing(t *testing.T, upgrade []string) {
	t.Helper()
	withoutRecords := func(all map[string]string) map[string]string {
		maps.DeleteFunc(all, func(key, _ string) bool { return strings.Contains(key, "/sh.helm.release.v1.") })
		return all
	}
	before := withoutRecords(h.settled(t))
	for _, kind := range []string{"deployments.apps", "services", "serviceaccounts"} {
		for where, namespace := range map[string]string{"workspace": "default", "east": h.namespaceIn("east")} {
			// What is compared is there at all.
			if key := where + " " + kind + " " + namespace + "/demo"; before[key] == "" {
				t.Errorf("no %s", key)
			}
		}
	}
	h.run(upgrade...)
	time.Sleep(10 * time.Second) // the test is that nothing happens in this time
	if diff := cmp.Diff(before, withoutRecords(h.everything(t))); diff != "" {
		t.Errorf("the same upgrade again changed versions (-before +after):\n%s", diff)
	}
}

// recordIsWithheld lets the pods ask for the release's first record by name: what is referenced goes down, records do not.
func (h *helm) recordIsWithheld(t *testing.T) {
	t.Helper()
	const (
		record  = "sh.helm.release.v1.demo.v1"
		volumes = `volumes=[{"name":"record","secret":{"secretName":"` + record + `","optional":true}}]`
	)
	h.run("upgrade", helmRelease, "./demo", "--set-json", volumes, "--wait", "--timeout", "2m")
	deployments, err := h.east.Clientset().AppsV1().Deployments(h.namespaceIn("east")).List(t.Context(), metav1.ListOptions{LabelSelector: helmPods})
	if err != nil || len(deployments.Items) != 1 || !slices.ContainsFunc(deployments.Items[0].Spec.Template.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "record" }) {
		t.Fatalf("Deployments in east: %v, %v, want one with the volume", deployments, err)
	}
	h.running(t, 1)
	h.noRecordBelow(t, 5)
	framework.Eventually(t, patience, "an Event says that the record stays", func() string {
		out := h.kubectl("get", "events", "--field-selector=involvedObject.kind=Secret,involvedObject.name="+record, "-o", "jsonpath={.items[*].message}")
		if !strings.Contains(out, "not copied") {
			return "Events say " + strconv.Quote(out)
		}
		return ""
	})
}

// noRecordBelow checks that the workspace has so many records of releases, and that none is, or ever was, in east, nor is
// in its mirror.
func (h *helm) noRecordBelow(t *testing.T, records int) {
	t.Helper()
	for _, e := range h.east.AuditEvents(framework.AuditFilter{Resource: "secrets"}) {
		if strings.HasPrefix(e.Name, "sh.helm.") {
			t.Errorf("%s wrote a record of the release to east: %s %s/%s", e.User, e.Verb, e.Namespace, e.Name)
		}
	}
	ofType := metav1.ListOptions{FieldSelector: "type=" + helmRecords}
	below, err := h.east.Clientset().CoreV1().Secrets("").List(t.Context(), ofType)
	if err != nil {
		t.Fatalf("list the Secrets of east: %v", err)
	}
	for _, s := range below.Items {
		t.Errorf("east has the record %s/%s", s.Namespace, s.Name)
	}
	all, err := h.f.Clients().Kube.CoreV1().Secrets("").List(client.Everywhere(t.Context()), ofType)
	if err != nil {
		t.Fatalf("list the Secrets of all logical clusters: %v", err)
	}
	if len(all.Items) != records {
		t.Errorf("there are %d records, want %d", len(all.Items), records)
	}
	for _, s := range all.Items {
		if s.Annotations["kcp.io/cluster"] != string(h.cluster) {
			t.Errorf("logical cluster %s has the record %s/%s, want it in the workspace alone", s.Annotations["kcp.io/cluster"], s.Namespace, s.Name)
		}
	}
}

// settled is everything, once nothing has changed for three seconds.
func (h *helm) settled(t *testing.T) map[string]string {
	t.Helper()
	last, since := h.everything(t), time.Now()
	framework.Eventually(t, patience, "nothing changes any more", func() string {
		now := h.everything(t)
		if diff := cmp.Diff(last, now); diff != "" {
			last, since = now, time.Now()
			return diff
		}
		if quiet := time.Since(since); quiet < 3*time.Second {
			return fmt.Sprintf("last change %s ago", quiet)
		}
		return ""
	})
	return last
}

// everything maps "WHERE RESOURCE NAMESPACE/NAME" to the resourceVersion and generation, for all that the workspace and
// east serve, except for what changes by itself.
func (h *helm) everything(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for where, config := range map[string]*rest.Config{"workspace": h.upstream, "east": h.east.RESTConfig()} {
		config = rest.CopyConfig(config)
		config.WarningHandler = rest.NoWarnings{} // some are deprecated
		objects, err := metadata.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		for _, gvr := range listable(t, config) {
			list, err := objects.Resource(gvr).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatalf("%s: list %s: %v", where, gvr.GroupResource(), err)
			}
			for _, o := range list.Items {
				if o.Namespace == "atoll-system" {
					continue // the syncer's heartbeat
				}
				all[fmt.Sprintf("%s %s %s/%s", where, gvr.GroupResource(), o.Namespace, o.Name)] =
					fmt.Sprintf("resourceVersion %s, generation %d", o.ResourceVersion, o.Generation)
			}
		}
	}
	return all
}

// names forgets the versions of everything.
func names(all map[string]string) map[string]bool {
	set := map[string]bool{}
	for name := range all {
		set[name] = true
	}
	return set
}

// listable are the resources that a cluster serves and lists, each in one version, without those that change by themselves.
func listable(t *testing.T, config *rest.Config) []schema.GroupVersionResource {
	t.Helper()
	d, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	lists, err := d.ServerPreferredResources()
	if err != nil {
		t.Fatalf("discover what %s serves: %v", config.Host, err)
	}
	byItself := []string{"events", "leases", "nodes", "componentstatuses"}
	var all []schema.GroupVersionResource
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "get"}}, lists) {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			if !slices.Contains(byItself, r.Name) && gv.Group != "metrics.k8s.io" {
				all = append(all, gv.WithResource(r.Name))
			}
		}
	}
	return all
}

// state is what a person would look at after a failure.
func (h *helm) state() string {
	var out strings.Builder
	for _, args := range [][]string{
		{"--server=" + h.f.URL + "/clusters/root:" + h.app, "get", "deployments,services,placements", "-o", "wide"},
		{"--server=" + h.f.URL + "/clusters/root:" + h.app, "get", "events"},
		{"--kubeconfig=" + h.east.Kubeconfig, "get", "deployments,replicasets,pods,services", "-A", "-l", helmPods},
	} {
		said, err := h.f.Run(append([]string{"kubectl"}, args...)...)
		fmt.Fprintf(&out, "$ kubectl %s\n%s", strings.Join(args, " "), said)
		if err != nil {
			fmt.Fprintf(&out, "%v\n", err)
		}
	}
	return out.String()
}
