package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	embeddedetcd "atoll.dev/atoll/embedded-etcd"
	"atoll.dev/atoll/internal/kinds"
	"atoll.dev/atoll/test/framework"
)

// TestInvariants breaks into what a fleet stands on, its store and its clusters, and looks whether what must always hold
// (docs/invariants.md) still does. Each part has a workspace of its own; parts that wait for long come last.
func TestInvariants(t *testing.T) {
	inModes(t, func(t *testing.T, pulled ...string) { newFleet(t, pulled...).run(t, invariants) })
}

// invariants hold whatever is done, or seen to be done.
var invariants = []part{
	{"I3_RecreateIsBreakBeforeMake", breakBeforeMake},
	{"I2_ForeignObjectsAreNeverTouched", foreignObjects},
	{"I2_ForeignNamespacesAreNeverTouched", foreignNamespace},
	{"I2_AbsenceNeverDeletes", absence},
	{"I2_RootsFoundMissingFreezeTheMirror", manyMissing},
	{"I2_PolicyThatExcludesAllIsBraked", policyExcludesAll},
	{"I2_MistakesOnAnObjectTakeNothing", mistakes},
	{"I2_FewMissingRootsGoAfterAMinute", fewMissing},
	{"I4_ObservedGenerationWaitsForEveryCluster", observedGeneration},
}

// row is an object in the store: "<resource>/<logical cluster>/<namespace>/<name>". Services are "services/specs".
func row(resource string, cluster logicalcluster.Name, namespace, name string) string {
	return strings.Join([]string{resource, cluster.String(), namespace, name}, "/")
}

// inStoppedStore opens the store of a server that is stopped, and closes it again. The test ends if it has failed by then.
func inStoppedStore(t *testing.T, atoll *framework.Atoll, do func(store *clientv3.Client)) {
	t.Helper()
	etcd, err := embeddedetcd.Start(t.Context(), embeddedetcd.Options{Dir: filepath.Join(atoll.Dir, "etcd")})
	if err != nil {
		t.Fatalf("open the store of the stopped server: %v", err)
	}
	do(etcd.Client)
	if err := etcd.Stop(); err != nil {
		t.Fatalf("close the store of the stopped server: %v", err)
	}
	if t.Failed() {
		t.FailNow()
	}
}

// vanish takes rows out of the store while the server is stopped, so that nobody sees them deleted, and starts the
// server again.
func (f *fleet) vanish(t *testing.T, rows ...string) {
	t.Helper()
	f.Stop()
	inStoppedStore(t, f.Atoll, func(store *clientv3.Client) {
		for _, r := range rows {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			resp, err := store.Delete(ctx, "/registry/"+r)
			cancel()
			if err != nil || resp.Deleted != 1 {
				t.Errorf("delete row %s: %v, %v, want one deleted", r, resp, err)
			}
		}
	})
	f.Restart()
}

func (f *fleet) syncTarget(t *testing.T, name string) *workloadv1alpha1.SyncTarget {
	t.Helper()
	target := &workloadv1alpha1.SyncTarget{}
	if err := f.Clients().Objects.Get(client.In(t.Context(), "root"), ctrlclient.ObjectKey{Name: name}, target); err != nil {
		t.Fatalf("read SyncTarget %s: %v", name, err)
	}
	return target
}

// condition waits until a SyncTarget has a condition with that status whose message has all the words.
func (f *fleet) condition(t *testing.T, target, condition string, status metav1.ConditionStatus, words ...string) {
	t.Helper()
	framework.Eventually(t, patience, fmt.Sprintf("%s of SyncTarget %s is %s", condition, target, status), func() string {
		conditions := f.syncTarget(t, target).Status.Conditions
		c := meta.FindStatusCondition(conditions, condition)
		if c == nil || c.Status != status {
			return fmt.Sprintf("conditions are %+v", conditions)
		}
		for _, w := range words {
			if !strings.Contains(c.Message, w) {
				return fmt.Sprintf("its message lacks %q: %s", w, c.Message)
			}
		}
		return ""
	})
}

// services makes plain Services in the workspace's namespace default and waits until a cluster has them.
func (w *workspace) services(cluster string, names ...string) {
	w.t.Helper()
	var manifest strings.Builder
	for _, name := range names {
		fmt.Fprintf(&manifest, "---\napiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {ports: [{port: 80}]}\n", name)
	}
	w.kubectlWithInput(manifest.String(), "apply", "-f", "-")
	framework.Eventually(w.t, patience, fmt.Sprintf("%d Services are in %s", len(names), cluster), func() string {
		there := w.servicesIn(cluster)
		for _, name := range names {
			if !slices.Contains(there, name) {
				return fmt.Sprintf("%s is not among %v", name, there)
			}
		}
		return ""
	})
}

func (w *workspace) servicesIn(cluster string) []string {
	w.t.Helper()
	list, err := w.f.clusters[cluster].Clientset().CoreV1().Services("").List(w.t.Context(), metav1.ListOptions{
		LabelSelector: workloadv1alpha1.WorkspaceLabel + "=" + string(w.cluster),
	})
	if err != nil {
		w.t.Fatalf("list the Services of %s: %v", cluster, err)
	}
	var names []string
	for _, s := range list.Items {
		names = append(names, s.Name)
	}
	return names
}

// manyMissing: more than max(20, 10 %) of a mirror's roots vanish unseen.
func manyMissing(t *testing.T, f *fleet) {
	const many = 25
	w := placed(t, f, "frozen", "")
	ns := w.namespaceIn("east")
	var lost, rows, deletes []string
	for i := range many {
		name := fmt.Sprintf("lost-%02d", i)
		lost = append(lost, name)
		rows = append(rows, row("services/specs", w.cluster, "default", name))
		deletes = append(deletes, "services/"+name)
	}
	w.services("east", append([]string{"unwanted"}, lost...)...)
	rows = append(rows, row("deployments", w.cluster, "default", w.app))
	deletes = append(deletes, "deployments/"+w.app)

	f.vanish(t, rows...)
	f.condition(t, "east", workloadv1alpha1.SyncTargetFrozen, metav1.ConditionTrue, "deletions")
	nothingGoes := func(when, marker string) {
		t.Helper()
		// What comes later comes down, so the syncer had its chance.
		w.services("east", marker)
		if got := w.syncerDeletes("east", ns); len(got) > 0 {
			t.Fatalf("the syncer deleted %v in a frozen mirror (%s)", got, when)
		}
		if n := w.ready("east"); n != 6 {
			t.Errorf("%d pods are Ready (%s), want all 6 of a Deployment whose root vanished", n, when)
		}
	}
	nothingGoes("after the roots vanished", "marker-1")
	// Nothing at all: what is deleted before everybody's eyes waits as well.
	w.kubectl("delete", "service", "unwanted")
	nothingGoes("after a delete that was seen", "marker-2")
	f.Restart()
	nothingGoes("after a restart", "marker-3")
	f.condition(t, "east", workloadv1alpha1.SyncTargetFrozen, metav1.ConditionTrue)

	f.MustRun("cluster", "confirm", "east", "deletions")
	f.condition(t, "east", workloadv1alpha1.SyncTargetFrozen, metav1.ConditionFalse)
	// The Deployment's companions are wanted by nobody once its leaf is gone.
	deletes = append(deletes, "services/unwanted", "configmaps/"+w.app, "secrets/"+w.app, "serviceaccounts/"+w.app)
	slices.Sort(deletes)
	framework.Eventually(t, patience, "what was confirmed goes", func() string {
		if got := w.syncerDeletes("east", ns); !slices.Equal(got, deletes) {
			return fmt.Sprintf("the syncer deleted %v, want %v", got, deletes)
		}
		return ""
	})
	want := []string{w.app, "marker-1", "marker-2", "marker-3"}
	if got := w.servicesIn("east"); !slices.Equal(got, want) {
		t.Errorf("Services left in east are %v, want %v", got, want)
	}
}

// fewMissing: what vanishes unseen, but not in large numbers, is kept for a minute and then goes.
func fewMissing(t *testing.T, f *fleet) {
	w := f.workspace(t, "few")
	w.place("east")
	w.services("east", "kept", "lost-1", "lost-2")
	ns := w.namespaceIn("east")
	began := time.Now()
	f.vanish(t, row("services/specs", w.cluster, "default", "lost-1"), row("services/specs", w.cluster, "default", "lost-2"))
	want := []string{"services/lost-1", "services/lost-2"}
	framework.Eventually(t, patience, "what vanished is deleted", func() string {
		if got := w.syncerDeletes("east", ns); !slices.Equal(got, want) {
			return fmt.Sprintf("the syncer deleted %v, want %v", got, want)
		}
		return ""
	})
	for _, e := range f.clusters["east"].AuditEvents(framework.AuditFilter{Verb: "delete", Resource: "services", Namespace: ns}) {
		if after := e.Time.Sub(began); after < time.Minute {
			t.Errorf("Service %s was deleted %s after its root vanished, want a minute for somebody to look", e.Name, after)
		}
	}
	if meta.IsStatusConditionTrue(f.syncTarget(t, "east").Status.Conditions, workloadv1alpha1.SyncTargetFrozen) {
		t.Error("two roots that vanished froze the mirror")
	}
}

// mistakes: a first annotation of an object that cannot be met leaves it where its namespace has it, for as long as it is there,
// and it goes on there as before.
func mistakes(t *testing.T, f *fleet) {
	w := f.workspace(t, "mistakes")
	w.place("east")
	var names []string
	for _, mistake := range []string{"clusters=esat", "selector=region=nowhere", "split=Capacity"} {
		name, _, _ := strings.Cut(mistake, "=")
		w.kubectl("create", "deployment", name, "--image=registry.example/web:1", "--replicas=2")
		w.kubectl("rollout", "status", "deployment/"+name, "--timeout=100s")
		if out := w.kubectl("annotate", "deployment", name, "placement.atoll.dev/"+mistake); !strings.Contains(out, `stays on "east"`) {
			t.Errorf("who wrote %s was told %q, want a warning that it stays on east", mistake, out)
		}
		w.kubectl("wait", "--for=create", "placement/default.deployments."+name, "--timeout=60s")
		w.kubectl("scale", "deployment", name, "--replicas=3")
		w.kubectl("rollout", "status", "deployment/"+name, "--timeout=100s")
		names = append(names, name)
	}
	ns := w.namespaceIn("east")
	// The brake lets things go after a minute.
	deadline := time.Now().Add(75 * time.Second)
	for time.Now().Before(deadline) {
		for _, name := range names {
			d, err := f.clusters["east"].Clientset().AppsV1().Deployments(ns).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || d.DeletionTimestamp != nil || ptr.Deref(d.Spec.Replicas, 0) != 3 {
				t.Fatalf("Deployment %s in east: %v, %+v", name, err, d.ObjectMeta)
			}
		}
		time.Sleep(time.Second)
	}
	for _, name := range names {
		w.kubectl("annotate", "deployment", name, "placement.atoll.dev/"+name+"-")
		w.kubectl("rollout", "status", "deployment/"+name, "--timeout=100s")
	}
	if deletes := w.syncerDeletes("east", ns); len(deletes) > 0 {
		t.Errorf("the syncer deleted %v, want nothing", deletes)
	}
}

// allow writes the workspace's only PlacementPolicy.
func (w *workspace) allow(cluster string) {
	w.t.Helper()
	w.kubectlWithInput("apiVersion: placement.atoll.dev/v1alpha1\nkind: PlacementPolicy\nmetadata: {name: only}\nspec: {allow: {names: ["+cluster+"]}}\n", "apply", "-f", "-")
}

// policyExcludesAll: a policy moves what it excludes, but does not empty a cluster that nothing replaces.
func policyExcludesAll(t *testing.T, f *fleet) {
	const many = 25
	w, other := f.workspace(t, "excluded"), f.workspace(t, "bystander")
	other.place("west")
	w.allow("east")
	w.apply(6, "")
	w.spread(map[string]int{"east": 6})
	w.rolledOut()
	var names []string
	for i := range many {
		names = append(names, fmt.Sprintf("plain-%02d", i))
	}
	w.services("east", names...)

	// With a replacement it is a move like any other, however much moves.
	o := w.observe()
	w.allow("west")
	w.spread(map[string]int{"west": 6})
	w.gone("east")
	w.rolledOut()
	o.neverBelow(t, 6)
	if meta.IsStatusConditionTrue(f.syncTarget(t, "east").Status.Conditions, workloadv1alpha1.SyncTargetFrozen) {
		t.Error("a move froze the mirror that was left")
	}

	ns := w.namespaceIn("west")
	w.allow("nowhere-at-all")
	f.condition(t, "west", workloadv1alpha1.SyncTargetFrozen, metav1.ConditionTrue, "deletions")
	nothingGoes := func(when, marker string) {
		t.Helper()
		// What comes later comes down, so the syncer had its chance.
		other.services("west", marker)
		if got := w.syncerDeletes("west", ns); len(got) > 0 {
			t.Fatalf("the syncer deleted %v in a frozen mirror (%s)", got, when)
		}
		o.neverBelow(t, 6)
	}
	nothingGoes("after the policy", "marker-1")
	f.Restart()
	nothingGoes("after a restart", "marker-2")
	f.condition(t, "west", workloadv1alpha1.SyncTargetFrozen, metav1.ConditionTrue)

	f.MustRun("cluster", "confirm", "west", "deletions")
	f.condition(t, "west", workloadv1alpha1.SyncTargetFrozen, metav1.ConditionFalse)
	w.gone("west")
	if got := other.servicesIn("west"); !slices.Equal(got, []string{"marker-1", "marker-2"}) {
		t.Errorf("Services of another workspace left in west are %v", got)
	}
}

// absence: rows of leaves vanish from the mirror, with and without their roots. What is downstream stays, comes back
// under its leaf where the root is there, and is reported where it is not.
func absence(t *testing.T, f *fleet) {
	w := placed(t, f, "absent", "")
	w.services("east", "ghost")
	alone := f.workspace(t, "alone") // nothing of it stays upstream
	alone.place("east")
	alone.services("east", "ghost")
	mirror := mirrorOf(t, f, "east")
	ns, aloneNS := w.namespaceIn("east"), alone.namespaceIn("east")
	uids := func() string {
		t.Helper()
		down := f.clusters["east"].Clientset()
		var all []string
		for _, where := range []string{ns, aloneNS} {
			n, err := down.CoreV1().Namespaces().Get(t.Context(), where, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			services, err := down.CoreV1().Services(where).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			deployments, err := down.AppsV1().Deployments(where).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, "namespace "+where+" "+string(n.UID)+" "+string(n.Status.Phase))
			for _, s := range services.Items {
				all = append(all, "service "+s.Name+" "+string(s.UID))
			}
			for _, d := range deployments.Items {
				all = append(all, "deployment "+d.Name+" "+string(d.UID))
			}
		}
		return strings.Join(all, "\n")
	}
	before := uids()
	o := w.observe()

	f.vanish(t,
		row("deployments", mirror, ns, w.app), // its root is there
		row("services/specs", mirror, ns, "ghost"), row("services/specs", w.cluster, "default", "ghost"),
		row("services/specs", mirror, aloneNS, "ghost"), row("services/specs", alone.cluster, "default", "ghost"),
	)
	f.condition(t, "east", "Orphans", metav1.ConditionTrue, ns+"/ghost", aloneNS+"/ghost")
	// The leaf is there again, and steers the same Deployment.
	w.kubectl("scale", "deployment/"+w.app, "--replicas=7")
	w.spread(map[string]int{"east": 7})
	w.rolledOut()
	o.neverBelow(t, 6)
	// The mirror lets the namespace go of which no leaf is left, and what is below stays. What comes later shows that the syncer
	// had its chance.
	framework.Eventually(t, patience, "the mirror lets namespace "+aloneNS+" go", func() string {
		_, err := f.Clients().Kube.CoreV1().Namespaces().Get(client.In(t.Context(), mirror), aloneNS, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Sprintf("it is there: %v", err)
		}
		return ""
	})
	f.condition(t, "east", "Orphans", metav1.ConditionTrue, "namespaces "+aloneNS+" (kept for services ghost)")
	w.services("east", "marker")
	w.kubectl("delete", "service", "marker")
	framework.Eventually(t, patience, "the marker goes", func() string {
		if got := w.servicesIn("east"); slices.Contains(got, "marker") {
			return fmt.Sprintf("Services are %v", got)
		}
		return ""
	})
	if after := uids(); after != before {
		t.Errorf("what had no leaf any more changed downstream:\nbefore %s\nafter  %s", before, after)
	}
	if got := w.syncerDeletes("east", ns); !slices.Equal(got, []string{"services/marker"}) {
		t.Errorf("the syncer deleted %v, want the marker alone", got)
	}
	if got := alone.syncerDeletes("east", aloneNS); len(got) > 0 {
		t.Errorf("the syncer deleted %v, want nothing", got)
	}

	// The orphan is in nobody's way: its namespace is used again.
	alone.services("east", "again")
	f.condition(t, "east", "Orphans", metav1.ConditionTrue, ns+"/ghost", aloneNS+"/ghost")
	// Whoever looked at the report and deletes the object by hand ends it.
	for _, where := range []string{ns, aloneNS} {
		if err := f.clusters["east"].Clientset().CoreV1().Services(where).Delete(t.Context(), "ghost", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	f.condition(t, "east", "Orphans", metav1.ConditionFalse)
	alone.kubectl("delete", "service", "again")
	alone.gone("east")
}

func mirrorOf(t *testing.T, f *fleet, cluster string) logicalcluster.Name {
	t.Helper()
	return logicalcluster.Name(f.syncTarget(t, cluster).Status.Mirror)
}

// refusedByName waits until an Event on an object tells the cluster's conflict.
func (w *workspace) refusedByName(cluster, namespace, name string) {
	w.t.Helper()
	framework.Eventually(w.t, patience, "an Event on "+name+" tells of the conflict", func() string {
		out := w.kubectl("get", "events", "-n", namespace, "--field-selector=involvedObject.name="+name,
			"-o", `jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}`)
		if !strings.Contains(out, "NameConflict: Cluster \""+cluster+"\"") {
			return out
		}
		return ""
	})
}

// foreignObjects: something of the same name is there already, without our label or with another SyncTarget's.
func foreignObjects(t *testing.T, f *fleet) {
	w := f.workspace(t, "foreign")
	w.place("east")
	w.services("east", "first") // makes the namespace
	ns := w.namespaceIn("east")
	down := f.clusters["east"].Clientset().CoreV1().Services(ns)
	labels := map[string]map[string]string{
		"plain": nil,
		// Everything but the SyncTarget's own label.
		"other": {
			workloadv1alpha1.WorkspaceLabel:  string(w.cluster),
			workloadv1alpha1.SyncTargetLabel: string(f.syncTarget(t, "west").UID),
		},
	}
	before := map[string]string{}
	for name, l := range labels {
		s, err := down.Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: l},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "80", Port: 80}}}, // an apply would succeed
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		before[name] = string(s.UID) + "/" + s.ResourceVersion
	}
	unchanged := func(when string) {
		t.Helper()
		for name := range labels {
			s, err := down.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatalf("Service %s of somebody else %s: %v", name, when, err)
			}
			if now := string(s.UID) + "/" + s.ResourceVersion; now != before[name] {
				t.Errorf("Service %s of somebody else was %s and is %s %s", name, before[name], now, when)
			}
		}
	}
	for name := range labels {
		w.kubectl("create", "service", "clusterip", name, "--tcp=80")
		w.refusedByName("east", "default", name)
	}
	unchanged("after its name was asked for")
	for name := range labels {
		w.kubectl("delete", "service", name)
		framework.Eventually(t, patience, "the leaf of "+name+" is let go", func() string {
			return w.leaf("east", ns, name)
		})
	}
	unchanged("after the root of its name was deleted")
	if got := w.syncerDeletes("east", ns); len(got) > 0 {
		t.Errorf("the syncer deleted %v, want nothing", got)
	}
}

// leaf says that a Service's leaf is in a mirror; "" if not.
func (w *workspace) leaf(cluster, ns, name string) string {
	w.t.Helper()
	ctx := client.In(w.t.Context(), mirrorOf(w.t, w.f, cluster))
	s, err := w.f.Clients().Kube.CoreV1().Services(ns).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ""
	}
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s/%s, deleted at %v, finalizers %v", ns, s.Name, s.DeletionTimestamp, s.Finalizers)
}

// foreignNamespace: the namespace that a workspace's would be mapped to is there already and is somebody else's.
func foreignNamespace(t *testing.T, f *fleet) {
	w := f.workspace(t, "foreignns")
	ns := kinds.DownstreamNamespace(w.cluster, "other", false)
	down := f.clusters["east"].Clientset().CoreV1()
	if _, err := down.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := down.ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: w.app}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, patience, "the cluster has furnished its namespace", func() string {
		if _, err := down.ServiceAccounts(ns).Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		if _, err := down.ConfigMaps(ns).Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
	before := dump(t, f, "east", ns, "")
	w.kubectl("create", "namespace", "other")
	w.kubectl("annotate", "namespace", "other", "placement.atoll.dev/clusters=east")
	w.kubectlWithInput(w.manifest(2, ""), "apply", "-n", "other", "-f", "-")
	w.refusedByName("east", "other", w.app)
	if after := dump(t, f, "east", ns, ""); after != before {
		t.Errorf("somebody else's namespace changed:\nbefore %s\nafter  %s", before, after)
	}
	w.kubectl("delete", "deployment,service,configmap,secret,serviceaccount", "-n", "other", "-l", "app="+w.app)
	framework.Eventually(t, patience, "the mirror has let go of the namespace", func() string {
		_, err := f.Clients().Kube.CoreV1().Namespaces().Get(client.In(t.Context(), mirrorOf(t, f, "east")), ns, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return ""
		}
		return fmt.Sprintf("it is there: %v", err)
	})
	if after := dump(t, f, "east", ns, ""); after != before {
		t.Errorf("somebody else's namespace changed when the roots were deleted:\nbefore %s\nafter  %s", before, after)
	}
}

// breakBeforeMake: with strategy Recreate, a move starts nothing before everything has ended.
func breakBeforeMake(t *testing.T, f *fleet) {
	w := f.workspace(t, "breaks")
	w.place("east")
	manifest := strings.Replace(w.manifest(4, ""), "  replicas:", "  strategy: {type: Recreate}\n  replicas:", 1)
	w.kubectlWithInput(manifest, "apply", "-f", "-")
	w.spread(map[string]int{"east": 4})
	w.rolledOut()
	ns := w.namespaceIn("east")
	for _, step := range []struct {
		from, to string
	}{{"east", "west"}, {"west", "east"}} {
		began := time.Now()
		w.place(step.to)
		w.spread(map[string]int{step.to: 4})
		w.gone(step.from)
		w.rolledOut()
		// Both clusters' clocks are this machine's.
		var ended, started time.Time
		var n int
		for _, e := range f.clusters[step.from].AuditEvents(framework.AuditFilter{Verb: "delete", Resource: "pods", Namespace: ns}) {
			if e.Code < 300 && e.Time.After(ended) {
				ended = e.Time
			}
		}
		for _, e := range f.clusters[step.to].AuditEvents(framework.AuditFilter{Verb: "create", Resource: "pods", Namespace: ns}) {
			if e.Code >= 300 || e.Subresource != "" || e.Time.Before(began) {
				continue
			}
			n++
			if started.IsZero() || e.Time.Before(started) {
				started = e.Time
			}
		}
		if ended.Before(began) || n < 4 {
			t.Fatalf("the audit logs tell of %d pods made in %s and of a last one deleted in %s at %s; the move began at %s", n, step.to, step.from, ended, began)
		}
		if !started.After(ended) {
			t.Errorf("the first pod in %s was made at %s, before the last one in %s was deleted at %s", step.to, started, step.from, ended)
		}
		out := w.kubectl("get", "events", "--field-selector=reason=BreakBeforeMake", "-o", "jsonpath={.items[*].message}")
		if !strings.Contains(out, `"`+step.from+`"`) {
			t.Errorf("no Event says that %s stops first: %s", step.from, out)
		}
	}
}

// observedGeneration: a cluster that does not answer holds the root's observedGeneration back, until it is lost.
func observedGeneration(t *testing.T, f *fleet) {
	w := f.workspace(t, "observed")
	w.place("*")
	w.apply(6, "")
	w.spread(map[string]int{"east": 3, "west": 3})
	w.rolledOut()
	west := f.clusters["west"]
	t.Cleanup(west.Resume)

	// change gives the pods another colour, and waits until east runs it.
	change := func(colour string) int64 {
		t.Helper()
		west.Pause()
		w.kubectl("set", "env", "deployment/"+w.app, "COLOUR="+colour)
		generation := w.deployment().Generation
		framework.Eventually(t, patience, "east runs the new template", func() string {
			d, err := f.clusters["east"].Clientset().AppsV1().Deployments(w.namespaceIn("east")).Get(t.Context(), w.app, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			env := d.Spec.Template.Spec.Containers[0].Env
			if len(env) == 0 || env[len(env)-1].Value != colour || d.Status.ObservedGeneration != d.Generation || d.Status.UpdatedReplicas != 3 || d.Status.AvailableReplicas != 3 {
				return fmt.Sprintf("env %v, status %+v", env, d.Status)
			}
			return ""
		})
		return generation
	}

	generation := change("blue")
	if d := w.deployment(); d.Status.ObservedGeneration >= generation && synced(d) == "" {
		t.Errorf("observedGeneration is %d of %d although west has not answered; conditions %+v", d.Status.ObservedGeneration, generation, d.Status.Conditions)
	}
	west.Resume()
	w.rolledOut()
	if d := w.deployment(); d.Status.ObservedGeneration != generation {
		t.Errorf("observedGeneration is %d of %d when the rollout is through", d.Status.ObservedGeneration, generation)
	}

	generation = change("green")
	framework.Eventually(t, patience, "west leaves the count and a condition names it", func() string {
		d := w.deployment()
		message := synced(d)
		if d.Status.ObservedGeneration >= generation && !strings.Contains(message, `"west"`) {
			t.Fatalf("observedGeneration is %d of %d before a condition names west: %+v", d.Status.ObservedGeneration, generation, d.Status.Conditions)
		}
		if d.Status.ObservedGeneration != generation {
			return fmt.Sprintf("observedGeneration is %d of %d, conditions %+v", d.Status.ObservedGeneration, generation, d.Status.Conditions)
		}
		return ""
	})
	if d := w.deployment(); d.Status.ReadyReplicas != 3 || d.Status.UnavailableReplicas == 0 {
		t.Errorf("status is %+v, want the 3 replicas of east Ready and those of west unavailable", d.Status)
	}
	west.Resume()
	w.spread(map[string]int{"east": 3, "west": 3})
	w.rolledOut()
	framework.Eventually(t, patience, "the condition goes", func() string { return synced(w.deployment()) })
}

// synced is the message of the condition Synced, which is there only while it is False.
func synced(d *appsv1.Deployment) string {
	for _, c := range d.Status.Conditions {
		if c.Type == kinds.ConditionSynced {
			return c.Message
		}
	}
	return ""
}
