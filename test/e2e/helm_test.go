package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
)

// TestT1_HelmInstallWait installs the chart that `helm create` makes, unchanged, into a workspace, and takes the release
// through its life: upgrade, the same upgrade again, rollback, uninstall.
//
// `helm test` is not part of it yet: the chart's test is a Pod without a controller, which goes down only once bare Pods do.
func TestT1_HelmInstallWait(t *testing.T) {
	t.Parallel()
	h := newHelm(t)
	watched := h.watch(t)
	watched.Rests(t, patience, still)
	before := watched.There()

	h.run("create", helmRelease)
	h.run("install", helmRelease, "./demo", "--wait", "--timeout", "2m")
	h.running(t, 1)

	upgrade := []string{"upgrade", helmRelease, "./demo", "--set", "replicaCount=3", "--wait", "--timeout", "2m"}
	h.run(upgrade...)
	h.running(t, 3)
	h.sameUpgradeChangesNothing(t, watched, upgrade)

	h.run("rollback", helmRelease, "1", "--wait", "--timeout", "2m")
	h.running(t, 1)
	h.listed(t, 4)

	h.recordIsWithheld(t)

	h.run("uninstall", helmRelease, "--wait", "--timeout", "2m")
	framework.Eventually(t, patience, "nothing of the release is left", func() string {
		return cmp.Diff(before, watched.There())
	})
	if out := h.run("list", "--short"); out != "" {
		t.Errorf("helm still lists %q", out)
	}
	h.noRecordBelow(t, 0)
}

// helm is the built helm with a workspace, whose Atoll has one physical cluster, east.
type helm struct {
	*workspace
	*framework.Helm
	east       *framework.Physical
	kubeconfig string // the administrator's access to the workspace
}

func newHelm(t *testing.T) *helm {
	t.Helper()
	east := framework.StartPhysical(t, "east")
	f := &fleet{Atoll: framework.StartAtoll(t), clusters: map[string]*framework.Physical{"east": east}}
	f.MustRun("cluster", "add", "east", "--kubeconfig", east.Kubeconfig)
	h := &helm{workspace: f.workspace(t, "helm"), east: east}
	h.kubeconfig = f.KubeconfigOf(t, "root:"+h.app)
	h.Helm = framework.NewHelm(t, h.kubeconfig)
	return h
}

// run runs helm in the workspace and returns what it prints on standard output, trimmed.
func (h *helm) run(args ...string) string {
	h.t.Helper()
	began := time.Now()
	stdout, stderr, err := h.Run(h.t.Context(), args...)
	if err != nil {
		h.t.Fatalf("helm %s: %v\n%s%s\n%s", strings.Join(args, " "), err, stdout, stderr, h.state())
	}
	h.t.Logf("helm %s: %s", strings.Join(args, " "), time.Since(began).Round(time.Millisecond))
	return strings.TrimSpace(stdout)
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

// sameUpgradeChangesNothing runs an upgrade whose outcome is there already.
func (h *helm) sameUpgradeChangesNothing(t *testing.T, watched *framework.Watched, upgrade []string) {
	t.Helper()
	watched.Rests(t, patience, still)
	there := watched.There()
	for _, kind := range []string{"deployments.apps", "services", "serviceaccounts"} {
		for where, namespace := range map[string]string{"workspace": "default", "east": h.namespaceIn("east")} {
			// What is watched is there at all.
			if key := where + " " + kind + " " + namespace + "/demo"; !there[key] {
				t.Errorf("no %s", key)
			}
		}
	}
	h.run(upgrade...)
	time.Sleep(10 * time.Second) // the test is that nothing happens in this time
	if changes := watched.Changes(); len(changes) > 0 {
		t.Errorf("the same upgrade again changed something:\n%s", strings.Join(changes, "\n"))
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

// still is in how much time nothing changes when all is done.
const still = 3 * time.Second

// watch watches all that the workspace and east serve, but for Helm's records.
func (h *helm) watch(t *testing.T) *framework.Watched {
	t.Helper()
	upstream, err := clientcmd.BuildConfigFromFlags("", h.kubeconfig)
	if err != nil {
		t.Fatalf("read the workspace's kubeconfig: %v", err)
	}
	of := func(_ schema.GroupVersionResource, o metav1.Object) bool {
		return o.GetNamespace() != "atoll-system" && !strings.HasPrefix(o.GetName(), framework.HelmRecord) // the syncer's heartbeat
	}
	return framework.Watch(t, framework.Place{Name: "workspace", Config: upstream, Of: of}, framework.Place{Name: "east", Config: h.east.RESTConfig(), Of: of})
}

// state is what a person would look at after a failure.
func (h *helm) state() string {
	return h.f.Says(
		[]string{"kubectl", "--kubeconfig=" + h.kubeconfig, "get", "deployments,services,placements", "-o", "wide"},
		[]string{"kubectl", "--kubeconfig=" + h.kubeconfig, "get", "events"},
		[]string{"kubectl", "--kubeconfig=" + h.east.Kubeconfig, "get", "deployments,replicasets,pods,services", "-A", "-l", helmPods},
	)
}
