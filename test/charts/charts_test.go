package charts

import (
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	"atoll.dev/atoll/test/framework"
	"atoll.dev/atoll/test/host"
)

var (
	chartsFlag = flag.String("charts", "^(api-with-migrations|queue|tiers)$", "run the charts whose names this `regexp` matches")
	write      = flag.Bool("write", false, "write "+documentFile+": its tables, and a run of all charts in which nothing fails")
)

const (
	// patience is how long a test waits for what takes a second or two on a machine with nothing else to do.
	patience = 10 * time.Minute
	// helmTime is Helm's --timeout.
	helmTime = "10m"
	// steady is how long what is the same stays so, and unchanged after how much time what differs is taken as it is.
	steady, unchanged = 5 * time.Second, time.Minute
	// quiet is in how much time nothing changes before a second apply, and after it.
	quiet = 30 * time.Second
	// nodes of a physical cluster; the plain cluster has those of both.
	nodes = 3
)

// TestT9_Charts takes a release of each chart through its life, in a workspace over two physical clusters and in a plain one, and compares
// what a user sees.
func TestT9_Charts(t *testing.T) {
	all, err := parse(differencesText)
	if err != nil {
		t.Fatalf("differences.tsv: %v", err)
	}
	matches, err := regexp.Compile(*chartsFlag)
	if err != nil {
		t.Fatalf("--charts: %v", err)
	}
	charts := allCharts(t)
	chosen := slices.DeleteFunc(slices.Clone(charts), func(c chart) bool { return !matches.MatchString(c.name) })
	if len(chosen) == 0 {
		t.Fatalf("no chart is called like %s", *chartsFlag)
	}
	var this host.Run
	if *write {
		if this, err = host.ThisRun(".", "make charts"); err != nil {
			t.Fatal(err)
		}
	}

	w := newWorld(t)
	f := &findings{listed: all}
	t.Run("release", func(t *testing.T) {
		for _, c := range chosen {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				w.release(t, c, f).lives(t)
			})
		}
	})

	if more := unlisted(all, f.differences); len(more) > 0 {
		t.Logf("What is not listed in differences.tsv:\n%s", propose(more))
	}
	for _, problem := range settled(all, f.differences, f.lived) {
		t.Error(problem)
	}
	if *write && len(f.lived) == len(charts) && !t.Failed() {
		inDocument(t, runSection, fmt.Sprintf("%s UTC, commit %s: %d charts passed, with %d listed differences.\n", this.Began, this.Commit, len(charts), len(all)))
	}
}

// findings are those of all releases.
type findings struct {
	listed []listed
	// mu guards what follows.
	mu          sync.Mutex
	differences []difference
	lived       []string // charts that came to their end
}

// world is an Atoll with two physical clusters, and a plain cluster that it knows nothing of.
type world struct {
	*framework.Atoll
	below map[string]*framework.Physical
	plain *framework.Physical
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Atoll: framework.StartAtoll(t), below: map[string]*framework.Physical{}}
	for name, flags := range map[string][]string{"east": nil, "west": {"--dns-knows-workspaces"}} { // of which a user sees nothing
		w.below[name] = framework.StartPhysical(t, name, framework.PhysicalNodes(nodes))
		provide(t, w.below[name])
		w.MustRun(append([]string{"cluster", "add", name, "--kubeconfig", w.below[name].Kubeconfig}, flags...)...)
	}
	// What is compared with must be true before it is taken as it is.
	w.plain = framework.StartPhysical(t, "plain", framework.PhysicalNodes(nodes*len(w.below)), framework.PhysicalQuotaPeriod(unchanged/6))
	provide(t, w.plain)
	for name := range w.below {
		w.MustRun("kubectl", "--context=root", "label", "synctarget/"+name, corev1.LabelTopologyZone+"="+name+"-a") // as the plain cluster's nodes have zones
		w.MustRun("kubectl", "--context=root", "wait", "--for=condition=Ready", "synctarget/"+name, "--timeout=100s")
	}
	return w
}

// classes are those of each cluster: whoever runs one makes them, and charts name them.
const classes = `
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: important}
value: 1000
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: sandboxed}
handler: sandboxed
---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: public}
spec: {controller: example.com/ingress}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: standard, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: kubernetes.io/no-provisioner
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: shared}
provisioner: kubernetes.io/no-provisioner
`

// provide makes what whoever runs a cluster provides: classes, and volumes, more than all charts together claim.
func provide(t *testing.T, cluster *framework.Physical) {
	t.Helper()
	manifest := classes
	for class, count := range map[string]int{"standard": 40, "shared": 5} {
		for i := range count {
			manifest += fmt.Sprintf(`---
apiVersion: v1
kind: PersistentVolume
metadata: {name: %s-%d}
spec: {storageClassName: %[1]s, capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce, ReadWriteMany], hostPath: {path: /nowhere}}
`, class, i)
		}
	}
	objects, err := decode(manifest)
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(cluster.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		gvr, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
		if _, err := client.Resource(gvr).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatalf("make %s %s in %s: %v", o.GetKind(), o.GetName(), cluster.Name, err)
		}
	}
}

// side is where a release is: a workspace, or the plain cluster.
type side struct {
	name       string
	namespace  string
	kubeconfig string
	config     *rest.Config
	dynamic    dynamic.Interface
	helm       *framework.Helm
	// installed is what the chart says of each object that Helm has installed, by idOf.
	installed map[string]*unstructured.Unstructured
}

// release is one of a chart, on both sides.
type release struct {
	atoll            *framework.Atoll
	chart            chart
	cluster          logicalcluster.Name // of the workspace
	workspace, plain *side
	found            *findings
	below            map[string]*framework.Physical
	namespaces       map[string][]string // of the workspace, in each physical cluster and its mirror
}

func (w *world) release(t *testing.T, c chart, found *findings) *release {
	t.Helper()
	r := &release{atoll: w.SharedBy(t), chart: c, found: found, below: map[string]*framework.Physical{}, namespaces: map[string][]string{}}
	for name, cluster := range w.below {
		r.below[name] = cluster.SharedBy(t)
	}
	r.cluster = framework.MakeWorkspace(t, r.atoll.Clients(), "root", c.name)
	r.workspace = newSide(t, "workspace", r.atoll.KubeconfigOf(t, "root:"+c.name), c.name, map[string]string{"placement.atoll.dev/clusters": "*"})
	r.plain = newSide(t, "plain", w.plain.Kubeconfig, c.name, nil)
	framework.Eventually(t, patience, "the workspace knows the classes of its clusters", func() string {
		out, err := r.kubectl(r.workspace, "get", "storageclass/standard", "storageclass/shared", "priorityclass/important", "runtimeclass/sandboxed", "ingressclass/public")
		if err != nil {
			return out
		}
		return ""
	})
	return r
}

// given is what each namespace is given: "RESOURCE NAME".
var given = []string{"serviceaccounts default", "configmaps kube-root-ca.crt"}

// newSide makes the namespace of a release, and waits for what it is given.
func newSide(t *testing.T, name, kubeconfig, namespace string, annotations map[string]string) *side {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatalf("%s: read its kubeconfig: %v", name, err)
	}
	s := &side{name: name, namespace: namespace, kubeconfig: kubeconfig, config: config, dynamic: objectsOf(t, config), helm: framework.NewHelm(t, kubeconfig)}
	made := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace"}}
	made.SetName(namespace)
	made.SetAnnotations(annotations)
	if _, err := s.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
		t.Fatalf("%s: make namespace %s: %v", name, namespace, err)
	}
	framework.Eventually(t, patience, name+": the namespace has what each is given", func() string {
		for _, what := range given {
			resource, name, _ := strings.Cut(what, " ")
			if _, err := s.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: resource}).Namespace(namespace).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
				return err.Error()
			}
		}
		return ""
	})
	return s
}

// objectsOf is a client for whatever there is.
func objectsOf(t *testing.T, config *rest.Config) dynamic.Interface {
	t.Helper()
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{} // some of what is listed is deprecated
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatalf("make a client for %s: %v", config.Host, err)
	}
	return objects
}

// lives takes the release through its life.
func (r *release) lives(t *testing.T) {
	name := r.chart.name
	values := func(file string) []string { return []string{name, r.chart.dir, "--values", r.chart.dir + "/" + file} }
	waiting := []string{"--wait", "--timeout", helmTime}
	step := func(step string, args ...string) {
		t.Helper()
		for _, s := range []*side{r.workspace, r.plain} {
			r.helm(t, s, slices.Concat([]string{step}, args)...)
		}
		r.alike(t, step)
	}

	step("install", slices.Concat(values("values.yaml"), waiting)...)
	step("test", name, "--timeout", helmTime)
	r.runsCronJobs(t)
	step("upgrade", slices.Concat(values(upgradeValues), waiting)...)
	step("rollback", slices.Concat([]string{name, "1"}, waiting)...)
	r.secondApplyChangesNothing(t, slices.Concat([]string{"upgrade", "--no-hooks"}, values("values.yaml"), waiting)) // hooks run each time
	step("uninstall", slices.Concat([]string{name}, waiting)...)
	r.leavesNothingBelow(t)

	r.found.mu.Lock()
	defer r.found.mu.Unlock()
	r.found.lived = append(r.found.lived, name)
}

// helm runs helm on a side, and reads what the release has installed then.
func (r *release) helm(t *testing.T, s *side, args ...string) {
	t.Helper()
	run := func(args ...string) string {
		args = append(args, "--namespace", s.namespace)
		stdout, stderr, err := s.helm.Run(t.Context(), args...)
		if err != nil {
			var looks [][]string
			for _, what := range []string{"pods", "events", "all,pvc,jobs"} {
				looks = append(looks, []string{"kubectl", "--kubeconfig=" + s.kubeconfig, "--namespace=" + s.namespace, "get", what})
			}
			t.Fatalf("%s: helm %s: %v\n%s%s\n%s", s.name, strings.Join(args, " "), err, stdout, stderr, r.atoll.Says(looks...))
		}
		return stdout
	}
	run(args...)
	if s.installed = map[string]*unstructured.Unstructured{}; args[0] == "uninstall" {
		return
	}
	objects, err := decode(run("get", "manifest", r.chart.name))
	if err != nil || len(objects) == 0 {
		t.Fatalf("%s: the release has %d objects, error %v", s.name, len(objects), err)
	}
	for _, o := range objects {
		s.installed[idOf(o)] = o
	}
}

// kubectl runs kubectl in the release's namespace.
func (r *release) kubectl(s *side, args ...string) (string, error) {
	return r.atoll.Run(append([]string{"kubectl", "--kubeconfig=" + s.kubeconfig, "--namespace=" + s.namespace}, args...)...)
}

// alike compares what a user sees on both sides once it differs in what is listed alone, and stays so, or does not change any more.
func (r *release) alike(t *testing.T, step string) {
	t.Helper()
	var differences []difference
	var rests still
	framework.Eventually(t, patience, "after "+step+" what a user sees comes to rest", func() string {
		var seen [2][]*unstructured.Unstructured
		var err error
		for i, s := range []*side{r.workspace, r.plain} {
			if seen[i], err = s.sees(t, r.chart); err != nil {
				rests = still{}
				return fmt.Sprintf("%s: %v", s.name, err)
			}
		}
		differences = compare(seen[0], seen[1])
		for i := range differences {
			differences[i].chart = r.chart.name
		}
		if now := propose(unlisted(r.found.listed, differences)); !rests.after(now, time.Now()) {
			return "it may still change; this is not listed:\n" + now
		}
		return ""
	})
	if rests.what != "" {
		t.Errorf("after %s this is not listed in differences.tsv:\n%s", step, rests.what)
	}
	r.found.mu.Lock()
	defer r.found.mu.Unlock()
	r.found.differences = append(r.found.differences, differences...)
}

// still is since when each look has found the same.
type still struct {
	what  string
	since time.Time
}

// after says, of another look, whether it has been the same for long enough to be taken as it is.
func (s *still) after(what string, now time.Time) bool {
	if what != s.what || s.since.IsZero() {
		s.what, s.since = what, now
	}
	if what == "" {
		return now.Sub(s.since) >= steady
	}
	return now.Sub(s.since) >= unchanged
}

// sees is all of the release that a user can list: what there is in its namespace but for what that is given, and what there is of it beside
// that. It is an error if something cannot be listed, or if what is installed is not there.
func (s *side) sees(t *testing.T, c chart) (all []*unstructured.Unstructured, _ error) {
	namespaced, others, err := framework.Listable(s.config)
	if err != nil {
		return nil, err
	}
	there := map[string]bool{}
	add := func(gvr schema.GroupVersionResource, of dynamic.ResourceInterface, isOf func(*unstructured.Unstructured) bool) error {
		items, err := of.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list %s: %w", gvr.GroupResource(), err)
		}
		for i := range items.Items {
			if o := &items.Items[i]; isOf(o) {
				there[idOf(o)] = true
				all = append(all, visible(o, s.installed[idOf(o)]))
			}
		}
		return nil
	}
	for _, gvr := range namespaced {
		isOf := func(o *unstructured.Unstructured) bool { return !slices.Contains(given, gvr.Resource+" "+o.GetName()) }
		if err := add(gvr, s.dynamic.Resource(gvr).Namespace(s.namespace), isOf); err != nil {
			return nil, err
		}
	}
	for _, gvr := range others {
		// Helm says so of what it installs, and a chart of its definitions.
		isOf := func(o *unstructured.Unstructured) bool {
			return o.GetAnnotations()["meta.helm.sh/release-namespace"] == c.name || o.GetLabels()["app.kubernetes.io/part-of"] == c.name
		}
		if err := add(gvr, s.dynamic.Resource(gvr), isOf); err != nil {
			return nil, err
		}
	}
	for id := range s.installed {
		if !there[id] {
			return nil, fmt.Errorf("%s is installed, and not there", id)
		}
	}
	return all, nil
}

// runsCronJobs runs each CronJob of the release once, by hand: their schedules do not come round.
func (r *release) runsCronJobs(t *testing.T) {
	t.Helper()
	jobs := schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
	ran := false
	for _, o := range r.workspace.installed {
		if o.GetKind() != "CronJob" {
			continue
		}
		ran = true
		for _, s := range []*side{r.workspace, r.plain} {
			name := o.GetName() + "-now"
			if out, err := r.kubectl(s, "create", "job", name, "--from=cronjob/"+o.GetName()); err != nil {
				t.Fatalf("%s: run CronJob %s: %v\n%s", s.name, o.GetName(), err, out)
			}
			framework.Eventually(t, patience, s.name+": Job "+name+" is complete, or gone since it was", func() string {
				job, err := s.dynamic.Resource(jobs).Namespace(s.namespace).Get(t.Context(), name, metav1.GetOptions{})
				if apierrors.IsNotFound(err) || err == nil && some(both(is("Complete", "type"), is("True", "status")), "status", "conditions")(obj{job}) {
					return ""
				}
				return fmt.Sprintf("%v, error %v", job, err)
			})
		}
	}
	if ran {
		r.alike(t, "runs of CronJobs")
	}
}

// secondApplyChangesNothing applies what there is already, by a command of helm.
func (r *release) secondApplyChangesNothing(t *testing.T, again []string) {
	t.Helper()
	watched := framework.Watch(t, r.places(t)...)
	watched.Rests(t, patience, quiet)
	for _, problem := range r.missingBelow(watched.There()) {
		t.Error(problem) // what is watched is there at all
	}
	r.helm(t, r.workspace, again...)
	time.Sleep(quiet) // the test is that nothing happens in this time
	if changes := watched.Changes(); len(changes) > 0 {
		t.Errorf("a second apply changed something:\n%s", strings.Join(changes, "\n"))
	}
	r.helm(t, r.plain, again...)
	r.alike(t, "a second apply")
}

// places are the workspace, but for Helm's records, and its namespaces in physical clusters and their mirrors. Pods in a mirror are the
// workspace's.
func (r *release) places(t *testing.T) []framework.Place {
	t.Helper()
	clients := r.atoll.Clients()
	all := []framework.Place{{Name: "workspace", Config: r.workspace.config, Of: func(_ schema.GroupVersionResource, o metav1.Object) bool {
		return !strings.HasPrefix(o.GetName(), framework.HelmRecord)
	}}}
	for name, cluster := range r.below {
		target := &workloadv1alpha1.SyncTarget{}
		if err := clients.Objects.Get(client.In(t.Context(), "root"), ctrlclient.ObjectKey{Name: name}, target); err != nil {
			t.Fatalf("read SyncTarget %s: %v", name, err)
		}
		of := metav1.ListOptions{LabelSelector: workloadv1alpha1.WorkspaceLabel + "=" + string(r.cluster)}
		namespaces, err := cluster.Clientset().CoreV1().Namespaces().List(t.Context(), of)
		if err != nil {
			t.Fatalf("list the namespaces of %s: %v", name, err)
		}
		for _, namespace := range namespaces.Items {
			r.namespaces[name] = append(r.namespaces[name], namespace.Name)
		}
		isOf := func(gvr schema.GroupVersionResource, o metav1.Object) bool {
			if gvr.Resource == "namespaces" {
				return slices.Contains(r.namespaces[name], o.GetName())
			}
			return slices.Contains(r.namespaces[name], o.GetNamespace())
		}
		all = append(all, framework.Place{Name: name, Config: cluster.RESTConfig(), Of: isOf},
			framework.Place{Name: "mirror of " + name, Config: clients.ConfigFor(client.MirrorOf(target)), Of: func(gvr schema.GroupVersionResource, o metav1.Object) bool {
				return gvr.Resource != "pods" && isOf(gvr, o)
			}})
	}
	return all
}

// missingBelow says which workloads of the release are in no physical cluster, or not in its mirror.
func (r *release) missingBelow(there map[string]bool) (problems []string) {
	if len(r.namespaces) == 0 {
		problems = append(problems, "no physical cluster has a namespace of the workspace")
	}
	for id, o := range r.workspace.installed {
		for _, k := range kinds.All {
			if k.GVK.GroupKind() != o.GroupVersionKind().GroupKind() || k.Template == nil || k.Ended != nil {
				continue
			}
			found := false
			for name, namespaces := range r.namespaces {
				for _, namespace := range namespaces {
					key := fmt.Sprintf("%s %s %s/%s", name, k.GVR.GroupResource(), namespace, o.GetName())
					found = found || there[key] && there["mirror of "+key]
				}
			}
			if !found {
				problems = append(problems, id+" is in no physical cluster and its mirror")
			}
		}
	}
	return problems
}

// leavesNothingBelow waits until physical clusters have nothing that the workspace has no more, beside what each has for itself. It has still
// what Helm leaves: claims, and hooks.
func (r *release) leavesNothingBelow(t *testing.T) {
	t.Helper()
	below := map[string]dynamic.Interface{}
	for name, cluster := range r.below {
		below[name] = objectsOf(t, cluster.RESTConfig())
	}
	framework.Eventually(t, patience, "nothing of the release is left in physical clusters", func() string {
		var left []string
		for _, k := range kinds.All {
			kept, err := namesOf(t, r.workspace.dynamic.Resource(k.GVR).Namespace(r.workspace.namespace))
			if err != nil {
				return err.Error()
			}
			for name, namespaces := range r.namespaces {
				for _, namespace := range namespaces {
					there, err := namesOf(t, below[name].Resource(k.GVR).Namespace(namespace))
					if err != nil {
						return err.Error()
					}
					for _, o := range there {
						if !slices.Contains(kept, o) && !kinds.IsTokenSecret(o) && !strings.HasPrefix(o, "atoll-tenant-isolation") {
							left = append(left, fmt.Sprintf("%s %s %s/%s", name, k.GVR.Resource, namespace, o))
						}
					}
				}
			}
		}
		slices.Sort(left)
		return strings.Join(left, "\n")
	})
}

func namesOf(t *testing.T, of dynamic.ResourceInterface) (names []string, _ error) {
	items, err := of.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, o := range items.Items {
		names = append(names, o.GetName())
	}
	return names, nil
}

func TestMissingBelow(t *testing.T) {
	r := &release{namespaces: map[string][]string{}, workspace: &side{installed: map[string]*unstructured.Unstructured{}}}
	for _, o := range objects(t, "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}}\n---\n{apiVersion: batch/v1, kind: Job, metadata: {name: b}}\n---\n{apiVersion: v1, kind: Service, metadata: {name: c}}") {
		r.workspace.installed[idOf(o)] = o
	}
	lost := "Deployment.apps a is in no physical cluster and its mirror"
	if got := r.missingBelow(nil); !slices.Equal(got, []string{"no physical cluster has a namespace of the workspace", lost}) {
		t.Errorf("nothing is there, and it says %q", got)
	}
	r.namespaces["east"], r.namespaces["west"] = []string{"n"}, []string{"n"}
	if got := r.missingBelow(map[string]bool{"east deployments.apps n/a": true, "mirror of west deployments.apps n/a": true}); !slices.Equal(got, []string{lost}) {
		t.Errorf("one mirror has it, and the other cluster, and it says %q", got)
	}
	if got := r.missingBelow(map[string]bool{"west deployments.apps n/a": true, "mirror of west deployments.apps n/a": true}); got != nil {
		t.Errorf("west has it, and it says %q", got)
	}
}

func TestStill(t *testing.T) {
	var r still
	at := time.Now()
	for i, look := range []struct {
		later time.Duration
		what  string
		want  bool
	}{{0, "", false}, {steady - 1, "", false}, {1, "", true}, {0, "a", false}, {unchanged - 1, "a", false}, {0, "b", false}, {unchanged, "b", true}, {0, "", false}, {steady, "", true}} {
		at = at.Add(look.later)
		if got := r.after(look.what, at); got != look.want {
			t.Errorf("look %d: %t, want %t", i, got, look.want)
		}
	}
}
