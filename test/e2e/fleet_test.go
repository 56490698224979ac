package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

// patience is how long a test waits for what takes a second or two on a machine with nothing else to do. No test is
// about speed.
const patience = 2 * time.Minute

// fleet is an Atoll with two physical clusters, east and west.
type fleet struct {
	*framework.Atoll
	clusters map[string]*framework.Physical
	// syncers of the clusters, where they do not run in the server.
	syncers map[string]*framework.Syncer
}

// inModes runs a test of a fleet that is the same for clusters that the server syncs (push) and for those that have syncers of their own
// (pull): once, with east of one kind and west of the other, and where ATOLL_SOAK=1 with both clusters of each. Where no syncer can
// be run as if in a Pod the server syncs both. The test gets the clusters that have syncers of their own.
func inModes(t *testing.T, test func(t *testing.T, pulled ...string)) {
	t.Parallel() // much of it is waiting
	if err := framework.CanRunSyncers(); err != nil {
		t.Logf("NOT TESTED with syncers outside the server: none can be run as if in a Pod: %v", err)
		test(t)
		return
	}
	if !soaking() {
		test(t, "east")
		return
	}
	t.Run("push", func(t *testing.T) { t.Parallel(); test(t) })
	t.Run("pull", func(t *testing.T) { t.Parallel(); test(t, "east", "west") })
}

// needsSyncersInPods skips a test on a machine where no mount namespaces can be made: in one a syncer sees what its Pod would.
func needsSyncersInPods(t *testing.T) {
	t.Helper()
	if err := framework.CanRunSyncers(); err != nil {
		t.Skipf("no syncer can be run as if in a Pod: %v", err)
	}
}

// newFleet starts a fleet in which the clusters that are named have their own syncers (pull); the server syncs the others (push).
func newFleet(t *testing.T, pulled ...string) *fleet {
	t.Helper()
	f := startFleet(t)
	for name, c := range f.clusters {
		if !slices.Contains(pulled, name) {
			f.MustRun("cluster", "add", name, "--kubeconfig", c.Kubeconfig)
			continue
		}
		manifest := f.MustStdout("cluster", "add", name, "--manifest", "--allow-loopback")
		f.syncers[name] = framework.StartSyncer(t, f.Atoll, c, manifest)
	}
	for name := range f.clusters {
		f.clusterReady(t, name)
	}
	return f
}

func startFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{Atoll: framework.StartAtoll(t), clusters: map[string]*framework.Physical{}, syncers: map[string]*framework.Syncer{}}
	for _, name := range []string{"east", "west"} {
		f.clusters[name] = framework.StartPhysical(t, name)
	}
	return f
}

// clusterReady waits until the SyncTarget of that name in root is Ready.
func (f *fleet) clusterReady(t *testing.T, name string) {
	t.Helper()
	framework.Eventually(t, patience, "cluster "+name+" is Ready", func() string {
		target := &workloadv1alpha1.SyncTarget{}
		if err := f.Clients().Objects.Get(client.In(t.Context(), "root"), ctrlclient.ObjectKey{Name: name}, target); err != nil {
			return err.Error()
		}
		if !meta.IsStatusConditionTrue(target.Status.Conditions, workloadv1alpha1.SyncTargetReady) {
			return fmt.Sprintf("its conditions are %+v", target.Status.Conditions)
		}
		return ""
	})
}

// part of a test that shares its fleet with others.
type part struct {
	name string
	test func(*testing.T, *fleet)
}

// run runs the parts that are to be alone one after the other, and then those that may run side by side; what fails fails its own part.
func (f *fleet) run(t *testing.T, alone []part, together ...part) {
	t.Helper()
	for _, p := range alone {
		t.Run(p.name, func(t *testing.T) {
			f.Use(t)
			for _, c := range f.clusters {
				c.Use(t)
			}
			for _, s := range f.syncers {
				s.Use(t)
			}
			p.test(t, f)
		})
	}
	for _, p := range together {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			p.test(t, f.sharedBy(t))
		})
	}
}

// sharedBy is the fleet for a part that runs beside others, and neither stops nor restarts anything.
func (f *fleet) sharedBy(t *testing.T) *fleet {
	shared := &fleet{Atoll: f.Atoll.SharedBy(t), clusters: map[string]*framework.Physical{}, syncers: map[string]*framework.Syncer{}}
	for name, c := range f.clusters {
		shared.clusters[name] = c.SharedBy(t)
	}
	for name, s := range f.syncers {
		shared.syncers[name] = s.SharedBy(t)
	}
	return shared
}

// workspace is a workspace of a test, used with kubectl as a person would.
type workspace struct {
	t *testing.T
	f *fleet
	// app names the workspace, its Deployment and the label of its pods.
	app string
	// namespace is that of kubectl, which has its own if it is empty.
	namespace string
	// cluster is the workspace's logical cluster.
	cluster logicalcluster.Name
}

func (f *fleet) workspace(t *testing.T, name string) *workspace {
	t.Helper()
	ctx := client.In(t.Context(), "root")
	ws := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := f.Clients().Objects.Create(ctx, ws); err != nil {
		t.Fatalf("create workspace root:%s: %v", name, err)
	}
	framework.Eventually(t, patience, "workspace root:"+name+" is Ready", func() string {
		if err := f.Clients().Objects.Get(ctx, ctrlclient.ObjectKeyFromObject(ws), ws); err != nil {
			return err.Error()
		}
		if ws.Status.Phase != corev1alpha1.LogicalClusterPhaseReady {
			return fmt.Sprintf("phase is %q", ws.Status.Phase)
		}
		return ""
	})
	return &workspace{t: t, f: f, app: name, cluster: logicalcluster.Name(ws.Spec.Cluster)}
}

// kubectl runs atoll kubectl in the workspace.
func (w *workspace) kubectl(args ...string) string { return w.kubectlWithInput("", args...) }

func (w *workspace) kubectlWithInput(input string, args ...string) string {
	w.t.Helper()
	to := []string{"kubectl", "--server=" + w.f.URL + "/clusters/root:" + w.app}
	if w.namespace != "" {
		to = append(to, "--namespace="+w.namespace)
	}
	return w.f.MustRunWithInput(input, append(to, args...)...)
}

// ctx addresses the workspace for w.f.Clients().
func (w *workspace) ctx() context.Context { return client.In(w.t.Context(), w.cluster) }

// deployment is the plain manifest of a Deployment with a Service, ConfigMap, Secret and ServiceAccount that belong to it.
func (w *workspace) manifest(replicas int, readyAfter string) string {
	annotation := ""
	if readyAfter != "" {
		annotation = "\n      annotations: {simulate.atoll.dev/ready-after: " + strconv.Quote(readyAfter) + "}"
	}
	return strings.NewReplacer("APP", w.app, "REPLICAS", strconv.Itoa(replicas), "ANNOTATION", annotation).Replace(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: APP, labels: {app: APP}}
spec:
  replicas: REPLICAS
  selector: {matchLabels: {app: APP}}
  template:
    metadata:
      labels: {app: APP}ANNOTATION
    spec:
      serviceAccountName: APP
      containers:
      - name: web
        image: registry.example/web:1
        envFrom: [{configMapRef: {name: APP}}]
        volumeMounts: [{name: key, mountPath: /key}]
      volumes:
      - {name: key, secret: {secretName: APP}}
---
apiVersion: v1
kind: Service
metadata: {name: APP, labels: {app: APP}}
spec: {selector: {app: APP}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: APP, labels: {app: APP}}
data: {greeting: hello}
---
apiVersion: v1
kind: Secret
metadata: {name: APP, labels: {app: APP}}
stringData: {key: opensesame}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: APP, labels: {app: APP}}
`)
}

func (w *workspace) apply(replicas int, readyAfter string) {
	w.t.Helper()
	w.kubectlWithInput(w.manifest(replicas, readyAfter), "apply", "-f", "-")
}

// place annotates the namespace default.
func (w *workspace) place(clusters string) {
	w.t.Helper()
	w.kubectl("annotate", "namespace", "default", "placement.atoll.dev/clusters="+clusters, "--overwrite")
}

// rolledOut waits for kubectl rollout status.
func (w *workspace) rolledOut() {
	w.t.Helper()
	w.kubectl("rollout", "status", "deployment/"+w.app, "--timeout=100s")
}

// namespaceIn returns the downstream namespace of the workspace's namespace default in a cluster, or "".
func (w *workspace) namespaceIn(cluster string) string { return w.downstream(cluster, "default") }

func (w *workspace) downstream(cluster, namespace string) string {
	w.t.Helper()
	list, err := w.f.clusters[cluster].Clientset().CoreV1().Namespaces().List(w.t.Context(), metav1.ListOptions{
		LabelSelector: workloadv1alpha1.WorkspaceLabel + "=" + string(w.cluster),
	})
	if err != nil {
		w.t.Fatalf("list the namespaces of %s: %v", cluster, err)
	}
	for _, ns := range list.Items {
		if strings.HasPrefix(ns.Name, namespace+"-") {
			return ns.Name
		}
	}
	return ""
}

// ready is the number of Ready pods of the app in a cluster.
func (w *workspace) ready(cluster string) int {
	w.t.Helper()
	pods, err := w.f.clusters[cluster].Clientset().CoreV1().Pods("").List(w.t.Context(), metav1.ListOptions{LabelSelector: "app=" + w.app})
	if err != nil {
		w.t.Fatalf("list the pods of %s: %v", cluster, err)
	}
	n := 0
	for i := range pods.Items {
		if isReady(&pods.Items[i]) {
			n++
		}
	}
	return n
}

func isReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// spread waits until each cluster has exactly that many Ready pods of the app and no others.
func (w *workspace) spread(want map[string]int) {
	w.t.Helper()
	framework.Eventually(w.t, patience, fmt.Sprintf("pods of %s are %v", w.app, want), func() string {
		got := map[string]int{}
		for name, c := range w.f.clusters {
			pods, err := c.Clientset().CoreV1().Pods("").List(w.t.Context(), metav1.ListOptions{LabelSelector: "app=" + w.app})
			if err != nil {
				return err.Error()
			}
			if len(pods.Items) != w.ready(name) {
				return fmt.Sprintf("%s has %d pods, %d of them ready", name, len(pods.Items), w.ready(name))
			}
			got[name] = len(pods.Items)
		}
		for name := range w.f.clusters {
			if got[name] != want[name] {
				return fmt.Sprintf("pods are %v", got)
			}
		}
		return ""
	}, w.state)
}

// gone waits until a cluster holds nothing of the workspace.
func (w *workspace) gone(cluster string) {
	w.t.Helper()
	framework.Eventually(w.t, patience, "nothing of "+w.app+" is left in "+cluster, func() string {
		if ns := w.namespaceIn(cluster); ns != "" {
			return "namespace " + ns + " is there"
		}
		return ""
	}, w.state)
}

// state is what a person would look at.
func (w *workspace) state() string {
	out, _ := w.f.Run("kubectl", "--server="+w.f.URL+"/clusters/root:"+w.app, "get", "deployments,placements", "-o", "wide")
	return out
}

// syncerDeletes lists what the syncer of a cluster has deleted of the workspace's namespace ns there, from the cluster's
// own audit log: "<resource>/<name>", sorted.
func (w *workspace) syncerDeletes(cluster, ns string) []string {
	w.t.Helper()
	var deletes []string
	for _, verb := range []string{"delete", "deletecollection"} {
		for _, e := range w.f.clusters[cluster].AuditEvents(framework.AuditFilter{Verb: verb}) {
			if strings.HasPrefix(e.UserAgent, "atoll") && e.Code < 300 && (e.Namespace == ns || e.Resource == "namespaces" && e.Name == ns) {
				deletes = append(deletes, e.Resource+"/"+e.Name)
			}
		}
	}
	slices.Sort(deletes)
	return deletes
}

// deployment reads the root.
func (w *workspace) deployment() *appsv1.Deployment {
	w.t.Helper()
	d, err := w.f.Clients().Kube.AppsV1().Deployments("default").Get(w.ctx(), w.app, metav1.GetOptions{})
	if err != nil {
		w.t.Fatalf("read the Deployment: %v", err)
	}
	return d
}

// observer records the number of Ready pods of an app in all clusters, at every change.
type observer struct {
	mu     sync.Mutex
	ready  map[string]map[string]bool // cluster -> pod -> Ready
	least  int                        // since from()
	series []string
}

// observe starts to watch; it ends with the test. Counting starts with what is there.
func (w *workspace) observe() *observer {
	w.t.Helper()
	o := &observer{ready: map[string]map[string]bool{}, least: 1 << 30}
	ctx, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(cancel)
	for name, c := range w.f.clusters {
		o.ready[name] = map[string]bool{}
		factory := informers.NewSharedInformerFactoryWithOptions(c.Clientset(), 0, informers.WithTweakListOptions(func(lo *metav1.ListOptions) {
			lo.LabelSelector = "app=" + w.app
		}))
		informer := factory.Core().V1().Pods().Informer()
		see := func(obj any, there bool) {
			pod, ok := obj.(*corev1.Pod)
			if !ok {
				pod = obj.(cache.DeletedFinalStateUnknown).Obj.(*corev1.Pod)
			}
			o.see(name, pod.Namespace+"/"+pod.Name, there && isReady(pod))
		}
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { see(obj, true) },
			UpdateFunc: func(_, obj any) { see(obj, true) },
			DeleteFunc: func(obj any) { see(obj, false) },
		})
		if err != nil {
			w.t.Fatalf("observe the pods of %s: %v", name, err)
		}
		factory.Start(ctx.Done())
		if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			w.t.Fatalf("observe the pods of %s: no first list", name)
		}
	}
	o.mark()
	return o
}

func (o *observer) total() int {
	n := 0
	for _, pods := range o.ready {
		for _, ready := range pods {
			if ready {
				n++
			}
		}
	}
	return n
}

func (o *observer) see(cluster, pod string, ready bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ready[cluster][pod] == ready {
		return
	}
	o.ready[cluster][pod] = ready
	n := o.total()
	o.series = append(o.series, fmt.Sprintf("%s %s %s ready=%v total=%d", time.Now().Format("05.000"), cluster, pod, ready, n))
	o.least = min(o.least, n)
}

// mark starts counting anew.
func (o *observer) mark() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.least, o.series = o.total(), nil
}

// neverBelow fails the test if fewer than n pods were Ready at any time since mark.
func (o *observer) neverBelow(t *testing.T, n int) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.least < n {
		t.Errorf("%d pods were Ready at one time, want never below %d:\n%s", o.least, n, strings.Join(o.series, "\n"))
	}
}
