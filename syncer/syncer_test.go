package syncer

import (
	"bytes"
	stdcmp "cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

// patience is for a busy machine; everything here takes a second or less on an idle one, but for back-offs.
const patience = 2 * time.Minute

const (
	workspace = "c1"
	ns        = "shop-1a"
)

// world is a server, a physical cluster, and the syncer between them, which runs in the test so that it can be
// stopped at any point.
type world struct {
	*testing.T
	hub      *framework.Atoll
	physical *framework.Physical
	clients  *client.Clients
	target   *workloadv1alpha1.SyncTarget
	// mirror and east are the two sides.
	mirror, east kubernetes.Interface
	mirrorConfig *rest.Config

	syncer *Syncer
	stop   func()
	clock  *skewed
	// between, if set, is called with every answer of the physical cluster to the syncer, and may replace it.
	between func(*http.Request, *http.Response) *http.Response
	// before, if set, is called before every request of the syncer to the physical cluster.
	before func(*http.Request)
}

// skewed is a clock that can be ahead.
type skewed struct {
	clock.RealClock
	ahead atomic.Int64
}

func (c *skewed) Now() time.Time                  { return c.RealClock.Now().Add(time.Duration(c.ahead.Load())) }
func (c *skewed) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// TestSyncer follows one physical cluster from its registration to its removal. The steps build on each other.
func TestSyncer(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server and a physical cluster")
	}
	w := newWorld(t)
	defer func() { w.stop() }()
	for _, step := range []struct {
		name string
		run  func(*world)
	}{
		{"connects", (*world).connects},
		{"applies and reports", (*world).applies},
		{"second pass writes nothing", (*world).secondPass},
		{"drift is put back", (*world).drift},
		{"floor under a user's policies", (*world).floorStands},
		{"changes go down", (*world).changes},
		{"foreign object is refused", (*world).foreignObject},
		{"foreign object at the last moment", (*world).lateForeignObject},
		{"every kind is refused", (*world).everyKind},
		{"foreign namespace is refused", (*world).foreignNamespace},
		{"refusal by the cluster", (*world).quota},
		{"absence deletes nothing", (*world).absence},
		{"tombstone waits until it is gone", (*world).tombstone},
		{"tombstone waits for pods that were left", (*world).podsLeft},
		{"cut connection", (*world).cut},
		{"rights taken away", (*world).blindness},
		{"restored hub", (*world).restored},
		{"namespace goes with its leaves", (*world).namespaceGoes},
		{"namespace with somebody else's objects stays", (*world).namespaceStays},
		{"namespace with an orphan stays", (*world).orphanStays},
		{"SyncTarget goes", (*world).targetGoes},
		{"server runs the syncer", (*world).push},
		{"duplicate recovers", (*world).duplicateRecovers},
		{"mirror of another", (*world).anothersMirror},
		{"lost cluster is abandoned", (*world).abandon},
	} {
		began := time.Now()
		if !t.Run(step.name, func(t *testing.T) {
			outer := w.T
			w.T = t
			defer func() { w.T = outer }()
			step.run(w)
		}) {
			t.Fatalf("step %q failed, the others need it", step.name)
		}
		t.Logf("%-35s %s", step.name, time.Since(began).Round(time.Millisecond))
	}
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, hub: framework.StartAtoll(t), physical: framework.StartPhysical(t, "east", framework.PhysicalNodes(2))}
	w.clients = w.hub.Clients()
	w.east = w.physical.Clientset()

	home := client.In(t.Context(), "root")
	w.target = &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: "east"}}
	w.must(w.clients.Objects.Create(home, w.target))
	w.eventually("the SyncTarget has a mirror with a twin", func() string {
		if err := w.clients.Objects.Get(home, ctrlclient.ObjectKeyFromObject(w.target), w.target); err != nil {
			return err.Error()
		}
		if w.target.Status.Mirror == "" {
			return "no mirror"
		}
		return problemOf(w.clients.Objects.Get(w.inMirror(), ctrlclient.ObjectKeyFromObject(w.target), &workloadv1alpha1.SyncTarget{}))
	})
	w.mirrorConfig = w.hub.Config()
	w.mirrorConfig.Host += "/clusters/" + w.target.Status.Mirror
	var err error
	w.mirror, err = kubernetes.NewForConfig(w.mirrorConfig)
	w.must(err)
	w.start()
	return w
}

func (w *world) inMirror() context.Context {
	return client.In(w.Context(), logicalcluster.Name(w.target.Status.Mirror))
}

func (w *world) start() {
	w.clock = &skewed{}
	physical, between, before := w.physical.RESTConfig(), w.between, w.before
	physical.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if before != nil {
				before(req)
			}
			resp, err := next.RoundTrip(req)
			if err == nil && between != nil {
				resp = between(req, resp)
			}
			return resp, err
		})
	})
	s, err := New(Config{Name: w.target.Name, UID: string(w.target.UID), Mirror: w.mirrorConfig, Physical: physical, Clock: w.clock})
	w.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	w.syncer = s
	stopped := false
	w.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				w.Errorf("syncer: %v", err)
			}
		case <-time.After(patience):
			w.Errorf("the syncer did not stop")
		}
	}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) eventually(what string, check func() string) {
	w.Helper()
	framework.Eventually(w.T, patience, what, check)
}

func problemOf(err error) string {
	if err != nil {
		return err.Error()
	}
	return ""
}

// leafMeta is the metadata that the splitter gives a leaf.
func leafMeta(name, namespace, root, rendered string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, Namespace: namespace,
		Labels:      map[string]string{workloadv1alpha1.WorkspaceLabel: workspace, workloadv1alpha1.RootUIDLabel: root},
		Annotations: map[string]string{workloadv1alpha1.RenderedAnnotation: rendered, workloadv1alpha1.RootAnnotation: "shop/" + name},
		Finalizers:  []string{workloadv1alpha1.SyncerFinalizer},
	}
}

func (w *world) makeNamespace(name string) {
	w.Helper()
	_, err := w.mirror.CoreV1().Namespaces().Create(w.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{workloadv1alpha1.WorkspaceLabel: workspace},
		Finalizers: []string{workloadv1alpha1.SyncerFinalizer},
	}}, metav1.CreateOptions{})
	w.must(err)
}

func (w *world) makeConfigMap(namespace, name, root, value string) {
	w.Helper()
	_, err := w.mirror.CoreV1().ConfigMaps(namespace).Create(w.Context(), &corev1.ConfigMap{
		ObjectMeta: leafMeta(name, namespace, root, "h-"+value), Data: map[string]string{"k": value},
	}, metav1.CreateOptions{})
	w.must(err)
}

// configMapDown says what keeps the ConfigMap below from having the value, and its leaf from saying so.
func (w *world) configMapDown(namespace, name, value string) func() string {
	return func() string {
		down, err := w.east.CoreV1().ConfigMaps(namespace).Get(w.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if down.Data["k"] != value {
			return fmt.Sprintf("below it is %v", down.Data)
		}
		leaf, err := w.mirror.CoreV1().ConfigMaps(namespace).Get(w.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if a := leaf.Annotations; a[workloadv1alpha1.AppliedAnnotation] != "h-"+value || a[workloadv1alpha1.RefusedAnnotation] != "" {
			return fmt.Sprintf("the leaf says %v", a)
		}
		return ""
	}
}

func (w *world) refused(what string, annotations func() (map[string]string, error), reason string) {
	w.Helper()
	w.eventually(what+" is refused: "+reason, func() string {
		a, err := annotations()
		if err != nil {
			return err.Error()
		}
		var r workloadv1alpha1.Refusal
		if err := json.Unmarshal([]byte(a[workloadv1alpha1.RefusedAnnotation]), &r); err != nil || r.Reason != reason || r.Message == "" {
			return fmt.Sprintf("%v", a)
		}
		return ""
	})
}

func (w *world) configMapAnnotations(namespace, name string) func() (map[string]string, error) {
	return func() (map[string]string, error) {
		leaf, err := w.mirror.CoreV1().ConfigMaps(namespace).Get(w.Context(), name, metav1.GetOptions{})
		return leaf.GetAnnotations(), err
	}
}

// condition waits for a condition of the SyncTarget in its workspace.
func (w *world) condition(kind string, status metav1.ConditionStatus, reason string) *metav1.Condition {
	w.Helper()
	var c *metav1.Condition
	w.eventually(fmt.Sprintf("SyncTarget is %s=%s", kind, status), func() string {
		if err := w.clients.Objects.Get(client.In(w.Context(), "root"), ctrlclient.ObjectKeyFromObject(w.target), w.target); err != nil {
			return err.Error()
		}
		c = meta.FindStatusCondition(w.target.Status.Conditions, kind)
		if c == nil || c.Status != status || c.Reason != reason {
			return fmt.Sprintf("conditions %+v", w.target.Status.Conditions)
		}
		return ""
	})
	return c
}

func (w *world) connects() {
	w.condition(workloadv1alpha1.SyncTargetReady, metav1.ConditionTrue, ReasonConnected)
	w.condition(workloadv1alpha1.SyncTargetObserveOnly, metav1.ConditionFalse, ReasonInStep)
	w.eventually("version, identity and capacity are known", func() string {
		w.must(w.clients.Objects.Get(client.In(w.Context(), "root"), ctrlclient.ObjectKeyFromObject(w.target), w.target))
		s := w.target.Status
		system, err := w.east.CoreV1().Namespaces().Get(w.Context(), "kube-system", metav1.GetOptions{})
		w.must(err)
		if s.Nodes != 2 || s.Capacity.Cpu().Value() == 0 || !strings.HasPrefix(s.Version, "v1.") || s.ClusterUID != string(system.UID) {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
}

func (w *world) applies() {
	w.makeNamespace(ns)
	w.makeConfigMap(ns, "settings", "root-settings", "one")
	pods := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web:1"}}},
	}
	_, err := w.mirror.AppsV1().Deployments(ns).Create(w.Context(), &appsv1.Deployment{
		ObjectMeta: leafMeta("web", ns, "root-web", "h-2"),
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{MatchLabels: pods.Labels}, Template: pods,
		},
	}, metav1.CreateOptions{})
	w.must(err)
	_, err = w.mirror.CoreV1().Services(ns).Create(w.Context(), &corev1.Service{
		ObjectMeta: leafMeta("web", ns, "root-service", "h-s"),
		Spec:       corev1.ServiceSpec{Selector: pods.Labels, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}},
	}, metav1.CreateOptions{})
	w.must(err)

	w.eventually("the Deployment runs and says so", w.deployed(2, "h-2"))
	w.eventually("the ConfigMap is there", w.configMapDown(ns, "settings", "one"))
	w.eventually("the Service is there", func() string {
		service, err := w.mirror.CoreV1().Services(ns).Get(w.Context(), "web", metav1.GetOptions{})
		if err != nil || service.Annotations[workloadv1alpha1.AppliedAnnotation] != "h-s" {
			return fmt.Sprintf("%v %v", service.GetAnnotations(), err)
		}
		_, err = w.east.CoreV1().Services(ns).Get(w.Context(), "web", metav1.GetOptions{})
		return problemOf(err)
	})
	down, err := w.east.CoreV1().Namespaces().Get(w.Context(), ns, metav1.GetOptions{})
	w.must(err)
	for label, want := range map[string]string{
		podSecurityEnforce: "baseline", podSecurityVersion: "latest",
		workloadv1alpha1.WorkspaceLabel: workspace, workloadv1alpha1.SyncTargetLabel: string(w.target.UID),
	} {
		if down.Labels[label] != want {
			w.Errorf("namespace label %s is %q, want %q", label, down.Labels[label], want)
		}
	}
	policy, err := w.east.NetworkingV1().NetworkPolicies(ns).Get(w.Context(), isolationPolicy, metav1.GetOptions{})
	w.must(err)
	if len(policy.Spec.Ingress) != 1 || policy.Spec.Ingress[0].From[0].NamespaceSelector.MatchLabels[workloadv1alpha1.WorkspaceLabel] != workspace {
		w.Errorf("the policy lets in %+v", policy.Spec.Ingress)
	}
}

func (w *world) deployed(replicas int32, rendered string) func() string {
	return func() string {
		leaf, err := w.mirror.AppsV1().Deployments(ns).Get(w.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if leaf.Status.ReadyReplicas != replicas || leaf.Status.Replicas != replicas || leaf.Status.ObservedGeneration != leaf.Generation ||
			leaf.Annotations[workloadv1alpha1.AppliedAnnotation] != rendered || leaf.Annotations[workloadv1alpha1.RefusedAnnotation] != "" {
			return fmt.Sprintf("generation %d, status %+v, annotations %v", leaf.Generation, leaf.Status, leaf.Annotations)
		}
		return ""
	}
}

// versions returns the resource versions of everything that both sides hold for the workspace.
func (w *world) versions() map[string]string {
	all := map[string]string{}
	selector := metav1.ListOptions{LabelSelector: workloadv1alpha1.WorkspaceLabel}
	for name, kube := range map[string]kubernetes.Interface{"mirror": w.mirror, "east": w.east} {
		add := func(kind string, o metav1.Object) {
			all[fmt.Sprintf("%s %s %s/%s", name, kind, o.GetNamespace(), o.GetName())] = o.GetResourceVersion()
		}
		namespaces, err := kube.CoreV1().Namespaces().List(w.Context(), selector)
		w.must(err)
		for i := range namespaces.Items {
			add("namespace", &namespaces.Items[i])
		}
		deployments, err := kube.AppsV1().Deployments(ns).List(w.Context(), selector)
		w.must(err)
		for i := range deployments.Items {
			add("deployment", &deployments.Items[i])
		}
		configMaps, err := kube.CoreV1().ConfigMaps(ns).List(w.Context(), selector)
		w.must(err)
		for i := range configMaps.Items {
			add("configmap", &configMaps.Items[i])
		}
		services, err := kube.CoreV1().Services(ns).List(w.Context(), selector)
		w.must(err)
		for i := range services.Items {
			add("service", &services.Items[i])
		}
		policies, err := kube.NetworkingV1().NetworkPolicies(ns).List(w.Context(), selector)
		w.must(err)
		for i := range policies.Items {
			add("networkpolicy", &policies.Items[i])
		}
	}
	return all
}

// settled waits until the running syncer has seen both sides and has nothing left to do.
func (w *world) settled() {
	w.Helper()
	w.eventually("the syncer has nothing to do", func() string {
		for gvr := range w.syncer.mirror.informers {
			if !w.syncer.mirror.informers[gvr].HasSynced() || !w.syncer.physical.informers[gvr].HasSynced() {
				return gvr.Resource + " not listed yet"
			}
		}
		if !w.syncer.physical.informers[networkPoliciesGVR].HasSynced() {
			return "policies not listed yet"
		}
		if n := w.syncer.queue.Len(); n > 0 {
			return fmt.Sprintf("%d wait", n)
		}
		return ""
	})
}

func (w *world) secondPass() {
	w.settled()
	var before map[string]string
	since := time.Now()
	w.eventually("nothing is written for a second, nor is in a worker's hands", func() string {
		last := before
		before = w.versions()
		if diff := cmp.Diff(last, before); diff != "" {
			since = time.Now()
			return diff
		}
		if quiet := time.Since(since); quiet < time.Second {
			return fmt.Sprintf("for %s only", quiet)
		}
		return ""
	})
	if len(before) < 9 {
		w.Fatalf("too little to compare: %v", before)
	}
	w.stop()
	w.start()
	w.settled()
	// Something new goes all the way after everything old was looked at.
	w.makeConfigMap(ns, "marker", "root-marker", "x")
	w.eventually("the marker is there", w.configMapDown(ns, "marker", "x"))
	w.settled()
	after := w.versions()
	delete(after, "mirror configmap "+ns+"/marker")
	delete(after, "east configmap "+ns+"/marker")
	if diff := cmp.Diff(before, after); diff != "" {
		w.Errorf("a second pass wrote (-before +after):\n%s", diff)
	}
}

func (w *world) drift() {
	_, err := w.east.AppsV1().Deployments(ns).Patch(w.Context(), "web", types.MergePatchType,
		[]byte(`{"spec":{"replicas":5},"metadata":{"labels":{"workload.atoll.dev/root-uid":"stolen"}}}`), metav1.PatchOptions{})
	w.must(err)
	w.eventually("drift is put back", func() string {
		down, err := w.east.AppsV1().Deployments(ns).Get(w.Context(), "web", metav1.GetOptions{})
		if err != nil || *down.Spec.Replicas != 2 || down.Labels[workloadv1alpha1.RootUIDLabel] != "root-web" {
			return fmt.Sprintf("%d replicas, labels %v, %v", *down.Spec.Replicas, down.Labels, err)
		}
		return ""
	})
	w.eventually("and reported", w.deployed(2, "h-2"))
	// With the managedFields of a real API server. That it is told cannot be seen here, where the leaf has no root: the hub refuses it.
	tells := func(k key, want string) {
		w.eventually("it is told that "+want, func() string {
			if told := w.syncer.drifts.newest(k); told != want {
				return fmt.Sprintf("it is told that %q", told)
			}
			return ""
		})
	}
	tells(key{deploymentsGVR, ns, "web"}, `Changed in physical cluster "east" by "syncer.test"; put back: spec.replicas, metadata.labels[workload.atoll.dev/root-uid]`)
	w.must(w.east.CoreV1().ConfigMaps(ns).Delete(w.Context(), "settings", metav1.DeleteOptions{}))
	w.eventually("what is deleted is made again", w.configMapDown(ns, "settings", "one"))
	tells(key{configMapsGVR, ns, "settings"}, `Deleted in physical cluster "east"; made again`)
	if told := w.syncer.drifts.newest(key{schema.GroupVersionResource{Version: "v1", Resource: "services"}, ns, "web"}); told != "" {
		w.Errorf("of what nobody changed it is told that %q", told)
	}
	w.must(w.east.NetworkingV1().NetworkPolicies(ns).Delete(w.Context(), isolationPolicy, metav1.DeleteOptions{}))
	w.eventually("the policy is made again", func() string {
		_, err := w.east.NetworkingV1().NetworkPolicies(ns).Get(w.Context(), isolationPolicy, metav1.GetOptions{})
		return problemOf(err)
	})
	_, err = w.east.CoreV1().Namespaces().Patch(w.Context(), ns, types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"privileged"}}}`), metav1.PatchOptions{})
	w.must(err)
	w.eventually("the floor is put back", func() string {
		down, err := w.east.CoreV1().Namespaces().Get(w.Context(), ns, metav1.GetOptions{})
		if err != nil || down.Labels[podSecurityEnforce] != "baseline" {
			return fmt.Sprintf("%v %v", down.GetLabels(), err)
		}
		return ""
	})
}

// newest is what is to be told, or was told last or could not be, of an object.
func (d *drifts) newest(k key) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.of[k]; s != nil && s.fight != nil {
		return stdcmp.Or(s.fight.news, s.fight.told)
	}
	return ""
}

// floorStands: a policy of the user's decides alone who is let in to the pods it selects, all others are let in to as before, and another
// tenant is never let in, whatever is there at the moment.
func (w *world) floorStands() {
	web, db := labels.Set{"app": "web"}, labels.Set{"app": "db"}
	ours, others := labels.Set{workloadv1alpha1.WorkspaceLabel: workspace}, labels.Set{workloadv1alpha1.WorkspaceLabel: "another"}
	letIn := func(web, db bool) func() string {
		return func() string {
			list, err := w.east.NetworkingV1().NetworkPolicies(ns).List(w.Context(), metav1.ListOptions{})
			if err != nil {
				return err.Error()
			}
			for _, pod := range []labels.Set{{"app": "web"}, {"app": "db"}, {}} {
				if w.letsIn(list.Items, pod, others) {
					w.Errorf("pods %v let in another tenant by %+v", pod, list.Items)
				}
			}
			if gotWeb, gotDB := w.letsIn(list.Items, labels.Set{"app": "web"}, ours), w.letsIn(list.Items, labels.Set{"app": "db"}, ours); gotWeb != web || gotDB != db {
				return fmt.Sprintf("web is let in to: %v, want %v; db: %v, want %v; by %d policies", gotWeb, web, gotDB, db, len(list.Items))
			}
			return ""
		}
	}
	create := func(name string, pods labels.Set) {
		_, err := w.mirror.NetworkingV1().NetworkPolicies(ns).Create(w.Context(), &networkingv1.NetworkPolicy{
			ObjectMeta: leafMeta(name, ns, "root-"+name, "h-"+name),
			Spec:       networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: pods}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}},
		}, metav1.CreateOptions{})
		w.must(err)
	}
	w.eventually("all are let in to by default", letIn(true, true))
	create("web", web)
	w.eventually("to web nobody is let in", letIn(false, true))
	create("db", db)
	w.eventually("nor to db", letIn(false, false))
	create(isolationPolicy+"-mine", nil)
	w.refused("NetworkPolicy", func() (map[string]string, error) {
		leaf, err := w.mirror.NetworkingV1().NetworkPolicies(ns).Get(w.Context(), isolationPolicy+"-mine", metav1.GetOptions{})
		return leaf.GetAnnotations(), err
	}, refusedNameConflict)
	for _, name := range []string{"web", "db", isolationPolicy + "-mine"} {
		w.must(w.mirror.NetworkingV1().NetworkPolicies(ns).Delete(w.Context(), name, metav1.DeleteOptions{}))
	}
	w.eventually("all are let in to by default again", letIn(true, true))
	w.eventually("one policy is left, and no leaf", func() string {
		below, err := w.east.NetworkingV1().NetworkPolicies(ns).List(w.Context(), metav1.ListOptions{})
		w.must(err)
		leaves, err := w.mirror.NetworkingV1().NetworkPolicies(ns).List(w.Context(), metav1.ListOptions{})
		w.must(err)
		if len(below.Items) != 1 || len(leaves.Items) > 0 {
			return fmt.Sprintf("%d policies, %d leaves", len(below.Items), len(leaves.Items))
		}
		return ""
	})
}

// letsIn says whether policies of one namespace let in pods of another one.
func (w *world) letsIn(policies []networkingv1.NetworkPolicy, pod, namespace labels.Set) bool {
	matches := func(s *metav1.LabelSelector, set labels.Set) bool {
		selector, err := metav1.LabelSelectorAsSelector(s)
		w.must(err)
		return selector.Matches(set)
	}
	isolated := false
	for _, p := range policies {
		if !matches(&p.Spec.PodSelector, pod) || !slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress) {
			continue
		}
		isolated = true
		for _, rule := range p.Spec.Ingress {
			if len(rule.From) == 0 || slices.ContainsFunc(rule.From, func(peer networkingv1.NetworkPolicyPeer) bool {
				return peer.NamespaceSelector != nil && matches(peer.NamespaceSelector, namespace)
			}) {
				return true
			}
		}
	}
	return !isolated
}

func (w *world) changes() {
	_, err := w.mirror.AppsV1().Deployments(ns).Patch(w.Context(), "web", types.MergePatchType,
		[]byte(`{"spec":{"replicas":3},"metadata":{"annotations":{"workload.atoll.dev/rendered":"h-3"}}}`), metav1.PatchOptions{})
	w.must(err)
	w.eventually("the new number runs", w.deployed(3, "h-3"))

	// What is taken out above goes below, and what others added below stays.
	_, err = w.east.CoreV1().ConfigMaps(ns).Patch(w.Context(), "settings", types.MergePatchType, []byte(`{"data":{"theirs":"1"}}`), metav1.PatchOptions{})
	w.must(err)
	_, err = w.mirror.CoreV1().ConfigMaps(ns).Patch(w.Context(), "settings", types.MergePatchType,
		[]byte(`{"data":{"k":null,"l":"2"},"metadata":{"annotations":{"workload.atoll.dev/rendered":"h-l"}}}`), metav1.PatchOptions{})
	w.must(err)
	w.eventually("the ConfigMap follows", func() string {
		down, err := w.east.CoreV1().ConfigMaps(ns).Get(w.Context(), "settings", metav1.GetOptions{})
		if err != nil || !cmp.Equal(down.Data, map[string]string{"l": "2", "theirs": "1"}) {
			return fmt.Sprintf("%v %v", down.Data, err)
		}
		for _, m := range down.ManagedFields {
			if m.Manager == workloadv1alpha1.FieldManager && m.Operation != metav1.ManagedFieldsOperationApply {
				return fmt.Sprintf("fields are still the create's: %s", m.FieldsV1)
			}
		}
		return ""
	})

	// A label of the namespace, too, although it was created and not applied.
	for _, patch := range []string{`{"metadata":{"labels":{"team":"a"}}}`, `{"metadata":{"labels":{"team":null}}}`} {
		_, err = w.mirror.CoreV1().Namespaces().Patch(w.Context(), ns, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		w.must(err)
		w.eventually("the namespace follows "+patch, func() string {
			down, err := w.east.CoreV1().Namespaces().Get(w.Context(), ns, metav1.GetOptions{})
			if _, has := down.GetLabels()["team"]; err != nil || has == strings.Contains(patch, "null") {
				return fmt.Sprintf("%v %v", down.GetLabels(), err)
			}
			return ""
		})
	}
}

func (w *world) foreignObject() {
	foreign, err := w.east.CoreV1().ConfigMaps(ns).Create(w.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "theirs", Namespace: ns}, Data: map[string]string{"mine": "yes"},
	}, metav1.CreateOptions{})
	w.must(err)
	w.makeConfigMap(ns, "theirs", "root-theirs", "ours")
	w.refused("the leaf", w.configMapAnnotations(ns, "theirs"), refusedNameConflict)
	now, err := w.east.CoreV1().ConfigMaps(ns).Get(w.Context(), "theirs", metav1.GetOptions{})
	w.must(err)
	if now.ResourceVersion != foreign.ResourceVersion {
		w.Errorf("somebody else's object was touched: %+v", now)
	}
	// A tombstone does not touch it either, and lets the leaf go.
	w.must(w.mirror.CoreV1().ConfigMaps(ns).Delete(w.Context(), "theirs", metav1.DeleteOptions{}))
	w.eventually("the leaf goes", func() string {
		_, err := w.mirror.CoreV1().ConfigMaps(ns).Get(w.Context(), "theirs", metav1.GetOptions{})
		return notGone(err)
	})
	now, err = w.east.CoreV1().ConfigMaps(ns).Get(w.Context(), "theirs", metav1.GetOptions{})
	w.must(err)
	if now.ResourceVersion != foreign.ResourceVersion || now.DeletionTimestamp != nil {
		w.Errorf("somebody else's object was touched by a tombstone: %+v", now)
	}
	// Once the name is free, the next try takes it.
	w.makeConfigMap(ns, "theirs", "root-theirs", "ours")
	w.refused("the new leaf", w.configMapAnnotations(ns, "theirs"), refusedNameConflict)
	w.must(w.east.CoreV1().ConfigMaps(ns).Delete(w.Context(), "theirs", metav1.DeleteOptions{}))
	w.eventually("the refusal ends", w.configMapDown(ns, "theirs", "ours"))
}

// lateForeignObject makes an object right before the syncer writes, which takes the name for free.
func (w *world) lateForeignObject() {
	var once sync.Once
	var foreign *corev1.ConfigMap
	w.stop()
	w.before = func(req *http.Request) {
		if req.Method != http.MethodGet && strings.Contains(req.URL.Path, "/configmaps") {
			once.Do(func() {
				var err error
				foreign, err = w.east.CoreV1().ConfigMaps(ns).Create(w.Context(), &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Name: "late-theirs", Namespace: ns}, Data: map[string]string{"mine": "yes"}, // an apply would succeed
				}, metav1.CreateOptions{})
				if err != nil {
					w.Error(err)
				}
			})
		}
	}
	w.start()
	w.makeConfigMap(ns, "late-theirs", "root-late-theirs", "ours")
	w.refused("the leaf", w.configMapAnnotations(ns, "late-theirs"), refusedNameConflict)
	now, err := w.east.CoreV1().ConfigMaps(ns).Get(w.Context(), "late-theirs", metav1.GetOptions{})
	w.must(err)
	if now.ResourceVersion != foreign.ResourceVersion {
		w.Errorf("somebody else's object was touched: %+v", now)
	}
	w.stop()
	w.before = nil
	w.start()
	w.must(w.mirror.CoreV1().ConfigMaps(ns).Delete(w.Context(), "late-theirs", metav1.DeleteOptions{}))
	w.must(w.east.CoreV1().ConfigMaps(ns).Delete(w.Context(), "late-theirs", metav1.DeleteOptions{}))
}

// everyKind: what a cluster will not take of what goes along with a workload is told as well.
func (w *world) everyKind() {
	const name = "along"
	ports := []corev1.ServicePort{{Port: 80}}
	fill := func(kube kubernetes.Interface, m metav1.ObjectMeta) {
		w.Helper()
		_, err := kube.CoreV1().ConfigMaps(ns).Create(w.Context(), &corev1.ConfigMap{ObjectMeta: m}, metav1.CreateOptions{})
		w.must(err)
		_, err = kube.CoreV1().Secrets(ns).Create(w.Context(), &corev1.Secret{ObjectMeta: m}, metav1.CreateOptions{})
		w.must(err)
		_, err = kube.CoreV1().ServiceAccounts(ns).Create(w.Context(), &corev1.ServiceAccount{ObjectMeta: m}, metav1.CreateOptions{})
		w.must(err)
		_, err = kube.CoreV1().Services(ns).Create(w.Context(), &corev1.Service{ObjectMeta: m, Spec: corev1.ServiceSpec{Ports: ports}}, metav1.CreateOptions{})
		w.must(err)
	}
	fill(w.east, metav1.ObjectMeta{Name: name, Namespace: ns})
	fill(w.mirror, leafMeta(name, ns, "root-along", "h-along"))
	leaves := w.mirror.CoreV1()
	for kind, get := range map[string]func() (metav1.Object, error){
		"ConfigMap": func() (metav1.Object, error) {
			return leaves.ConfigMaps(ns).Get(w.Context(), name, metav1.GetOptions{})
		},
		"Secret": func() (metav1.Object, error) { return leaves.Secrets(ns).Get(w.Context(), name, metav1.GetOptions{}) },
		"ServiceAccount": func() (metav1.Object, error) {
			return leaves.ServiceAccounts(ns).Get(w.Context(), name, metav1.GetOptions{})
		},
		"Service": func() (metav1.Object, error) { return leaves.Services(ns).Get(w.Context(), name, metav1.GetOptions{}) },
	} {
		w.refused(kind, func() (map[string]string, error) {
			leaf, err := get()
			if err != nil {
				return nil, err
			}
			return leaf.GetAnnotations(), nil
		}, refusedNameConflict)
	}
	for _, kube := range []kubernetes.Interface{w.mirror, w.east} {
		w.must(kube.CoreV1().ConfigMaps(ns).Delete(w.Context(), name, metav1.DeleteOptions{}))
		w.must(kube.CoreV1().Secrets(ns).Delete(w.Context(), name, metav1.DeleteOptions{}))
		w.must(kube.CoreV1().ServiceAccounts(ns).Delete(w.Context(), name, metav1.DeleteOptions{}))
		w.must(kube.CoreV1().Services(ns).Delete(w.Context(), name, metav1.DeleteOptions{}))
	}
}

// blindness: the cluster answers, and does not show us one kind any more.
func (w *world) blindness() {
	w.condition(workloadv1alpha1.SyncTargetReady, metav1.ConditionTrue, ReasonConnected)
	var denied atomic.Bool
	watches := make(chan io.Closer, 10)
	w.stop()
	w.between = func(req *http.Request, resp *http.Response) *http.Response {
		if !strings.HasSuffix(req.URL.Path, "/services") {
			return resp
		}
		if !denied.Load() {
			if req.URL.Query().Has("watch") {
				watches <- resp.Body
			}
			return resp
		}
		_ = resp.Body.Close()
		status := apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "", errors.New("rights were taken away")).Status()
		status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		text, err := json.Marshal(status)
		if err != nil {
			w.Error(err)
		}
		return &http.Response{StatusCode: http.StatusForbidden, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: req,
			Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(text))}
	}
	w.start()
	w.settled()
	denied.Store(true)
	for range len(watches) {
		_ = (<-watches).Close()
	}
	w.eventually("the syncer notices", func() string {
		if len(w.syncer.blind()) == 0 {
			return "it sees everything"
		}
		return ""
	})
	w.clock.ahead.Store(int64(silence + time.Second))
	w.syncer.beatSoon()
	c := w.condition(workloadv1alpha1.SyncTargetReady, metav1.ConditionFalse, ReasonCannotWatch)
	if !strings.Contains(c.Message, "services") || !strings.Contains(c.Message, "rights were taken away") {
		w.Errorf("it says %q", c.Message)
	}
	denied.Store(false)
	framework.Eventually(w.T, 3*patience, "it recovers by itself", func() string {
		w.must(w.clients.Objects.Get(client.In(w.Context(), "root"), ctrlclient.ObjectKeyFromObject(w.target), w.target))
		if !meta.IsStatusConditionTrue(w.target.Status.Conditions, workloadv1alpha1.SyncTargetReady) {
			return fmt.Sprintf("conditions %+v", w.target.Status.Conditions)
		}
		return ""
	})
	w.stop()
	w.between = nil
	w.start()
}

func notGone(err error) string {
	if err == nil {
		return "it is still there"
	}
	if apierrors.IsNotFound(err) {
		return ""
	}
	return err.Error()
}

func (w *world) foreignNamespace() {
	for _, name := range []string{"taken", "default"} {
		foreign, err := w.east.CoreV1().Namespaces().Create(w.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if name == "default" {
			foreign, err = w.east.CoreV1().Namespaces().Get(w.Context(), name, metav1.GetOptions{})
		}
		w.must(err)
		_, err = w.mirror.CoreV1().Namespaces().Get(w.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			w.makeNamespace(name)
		} else {
			_, err := w.mirror.CoreV1().Namespaces().Patch(w.Context(), name, types.MergePatchType,
				[]byte(`{"metadata":{"labels":{"workload.atoll.dev/workspace":"c1"},"finalizers":["workload.atoll.dev/syncer"]}}`), metav1.PatchOptions{})
			w.must(err)
		}
		w.makeConfigMap(name, "guest", "root-guest", "x")
		w.refused("namespace "+name, func() (map[string]string, error) {
			leaf, err := w.mirror.CoreV1().Namespaces().Get(w.Context(), name, metav1.GetOptions{})
			return leaf.GetAnnotations(), err
		}, refusedNameConflict)
		w.refused("what is in "+name, w.configMapAnnotations(name, "guest"), refusedNameConflict)

		w.must(w.mirror.CoreV1().ConfigMaps(name).Delete(w.Context(), "guest", metav1.DeleteOptions{}))
		w.must(w.mirror.CoreV1().Namespaces().Delete(w.Context(), name, metav1.DeleteOptions{}))
		w.eventually("namespace "+name+" of the mirror goes", func() string {
			left, err := w.mirror.CoreV1().Namespaces().Get(w.Context(), name, metav1.GetOptions{})
			if err == nil {
				return fmt.Sprintf("metadata finalizers %v, spec %v, status %+v", left.Finalizers, left.Spec, left.Status)
			}
			return notGone(err)
		})
		now, err := w.east.CoreV1().Namespaces().Get(w.Context(), name, metav1.GetOptions{})
		w.must(err)
		if now.ResourceVersion != foreign.ResourceVersion || now.DeletionTimestamp != nil {
			w.Errorf("namespace %s was touched: %+v", name, now)
		}
		_, err = w.east.CoreV1().ConfigMaps(name).Get(w.Context(), "guest", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			w.Errorf("something was written into namespace %s: %v", name, err)
		}
	}
}

func (w *world) quota() {
	_, err := w.east.CoreV1().ResourceQuotas(ns).Create(w.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "small", Namespace: ns},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/configmaps": resource.MustParse("1")}},
	}, metav1.CreateOptions{})
	w.must(err)
	w.eventually("the quota counts", func() string {
		quota, err := w.east.CoreV1().ResourceQuotas(ns).Get(w.Context(), "small", metav1.GetOptions{})
		if err != nil || len(quota.Status.Used) == 0 {
			return fmt.Sprintf("%+v %v", quota, err)
		}
		return ""
	})
	w.makeConfigMap(ns, "toomany", "root-toomany", "x")
	w.refused("one too many", w.configMapAnnotations(ns, "toomany"), refusedQuota)
	w.must(w.east.CoreV1().ResourceQuotas(ns).Delete(w.Context(), "small", metav1.DeleteOptions{}))
	w.eventually("without quota it is taken", w.configMapDown(ns, "toomany", "x"))
}

func (w *world) absence() {
	w.stop()
	_, err := w.mirror.CoreV1().ConfigMaps(ns).Patch(w.Context(), "settings", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	w.must(err)
	w.must(w.mirror.CoreV1().ConfigMaps(ns).Delete(w.Context(), "settings", metav1.DeleteOptions{}))
	before, err := w.east.CoreV1().ConfigMaps(ns).Get(w.Context(), "settings", metav1.GetOptions{})
	w.must(err)
	w.start()
	if c := w.condition(ConditionOrphans, metav1.ConditionTrue, ReasonNoLeaf); !strings.Contains(c.Message, "configmaps "+ns+"/settings") {
		w.Errorf("the orphan is not named: %s", c.Message)
	}
	now, err := w.east.CoreV1().ConfigMaps(ns).Get(w.Context(), "settings", metav1.GetOptions{})
	w.must(err)
	if now.ResourceVersion != before.ResourceVersion || now.DeletionTimestamp != nil {
		w.Errorf("the orphan was touched: %+v", now)
	}
	// A leaf of another root, but of the same workspace, takes it over.
	w.makeConfigMap(ns, "settings", "root-settings-2", "three")
	w.eventually("the orphan has a leaf again", w.configMapDown(ns, "settings", "three"))
	w.syncer.beatSoon()
	w.condition(ConditionOrphans, metav1.ConditionFalse, ReasonNone)
}

func (w *world) tombstone() {
	_, err := w.east.AppsV1().Deployments(ns).Patch(w.Context(), "web", types.MergePatchType, []byte(`{"metadata":{"finalizers":["test.example/hold"]}}`), metav1.PatchOptions{})
	w.must(err)
	w.must(w.mirror.AppsV1().Deployments(ns).Delete(w.Context(), "web", metav1.DeleteOptions{}))
	w.eventually("the Deployment is being deleted, with its pods", func() string {
		down, err := w.east.AppsV1().Deployments(ns).Get(w.Context(), "web", metav1.GetOptions{})
		if err != nil || down.DeletionTimestamp == nil {
			return fmt.Sprintf("%v %v", down.GetDeletionTimestamp(), err)
		}
		pods, err := w.east.CoreV1().Pods(ns).List(w.Context(), metav1.ListOptions{})
		if err != nil || len(pods.Items) > 0 {
			return fmt.Sprintf("%d pods, %v", len(pods.Items), err)
		}
		return ""
	})
	w.settled()
	leaf, err := w.mirror.AppsV1().Deployments(ns).Get(w.Context(), "web", metav1.GetOptions{})
	if err != nil || len(leaf.Finalizers) == 0 {
		w.Fatalf("the leaf went before what it stands for: %v %v", leaf.GetFinalizers(), err)
	}
	// In the middle of it, the syncer is replaced by another.
	w.stop()
	_, err = w.east.AppsV1().Deployments(ns).Patch(w.Context(), "web", types.JSONPatchType,
		[]byte(`[{"op":"remove","path":"/metadata/finalizers"}]`), metav1.PatchOptions{})
	w.must(err)
	w.start()
	w.eventually("both are gone", func() string {
		if _, err := w.east.AppsV1().Deployments(ns).Get(w.Context(), "web", metav1.GetOptions{}); notGone(err) != "" {
			return "below: " + notGone(err)
		}
		_, err := w.mirror.AppsV1().Deployments(ns).Get(w.Context(), "web", metav1.GetOptions{})
		return notGone(err)
	})
}

// podsLeft: somebody below deleted what runs in one cluster at a time, and not its pods: it may not run elsewhere before they are gone.
func (w *world) podsLeft() {
	const name = "db"
	labels := map[string]string{"app": name}
	leaf := &appsv1.StatefulSet{ObjectMeta: leafMeta(name, ns, "root-db", "h-db"), Spec: appsv1.StatefulSetSpec{
		Replicas: ptr.To[int32](1), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels, Finalizers: []string{"test.example/hold"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: name, Image: "registry.example/db"}}},
		},
	}}
	_, err := w.mirror.AppsV1().StatefulSets(ns).Create(w.Context(), leaf, metav1.CreateOptions{})
	w.must(err)
	w.eventually("its pod runs, and is reported", func() string {
		now, err := w.mirror.AppsV1().StatefulSets(ns).Get(w.Context(), name, metav1.GetOptions{})
		if err != nil || now.Status.ReadyReplicas != 1 {
			return fmt.Sprintf("%+v %v", now.Status, err)
		}
		return ""
	})
	w.stop()
	w.must(w.mirror.AppsV1().StatefulSets(ns).Delete(w.Context(), name, metav1.DeleteOptions{}))
	w.must(w.east.AppsV1().StatefulSets(ns).Delete(w.Context(), name, metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}))
	w.eventually("it is gone below, and its pod is about to", func() string {
		if _, err := w.east.AppsV1().StatefulSets(ns).Get(w.Context(), name, metav1.GetOptions{}); notGone(err) != "" {
			return notGone(err)
		}
		pod, err := w.east.CoreV1().Pods(ns).Get(w.Context(), name+"-0", metav1.GetOptions{})
		if err != nil || pod.DeletionTimestamp == nil {
			return fmt.Sprintf("%v %v", pod.DeletionTimestamp, err)
		}
		return ""
	})
	var looks atomic.Int32
	w.before = func(req *http.Request) {
		if strings.HasSuffix(req.URL.Path, "/namespaces/"+ns+"/pods") {
			looks.Add(1)
		}
	}
	w.start()
	w.eventually("the syncer looks for pods once and again", func() string {
		if n := looks.Load(); n < 2 {
			return fmt.Sprintf("%d times", n)
		}
		return ""
	})
	if now, err := w.mirror.AppsV1().StatefulSets(ns).Get(w.Context(), name, metav1.GetOptions{}); err != nil || len(now.Finalizers) == 0 {
		w.Fatalf("the leaf went before its pod: %v %v", now.GetFinalizers(), err)
	}
	_, err = w.east.CoreV1().Pods(ns).Patch(w.Context(), name+"-0", types.JSONPatchType, []byte(`[{"op":"remove","path":"/metadata/finalizers"}]`), metav1.PatchOptions{})
	w.must(err)
	w.eventually("the leaf goes after its pod", func() string {
		_, err := w.mirror.AppsV1().StatefulSets(ns).Get(w.Context(), name, metav1.GetOptions{})
		return notGone(err)
	})
	w.stop()
	w.before = nil
	w.start()
}

func (w *world) cut() {
	w.physical.Kill()
	_, err := w.mirror.CoreV1().ConfigMaps(ns).Patch(w.Context(), "marker", types.MergePatchType,
		[]byte(`{"data":{"k":"y"},"metadata":{"annotations":{"workload.atoll.dev/rendered":"h-y"}}}`), metav1.PatchOptions{})
	w.must(err)
	w.must(w.mirror.CoreV1().ConfigMaps(ns).Delete(w.Context(), "toomany", metav1.DeleteOptions{}))
	w.refused("what waits for the cluster", w.configMapAnnotations(ns, "marker"), refusedUnreachable)
	w.refused("the tombstone", w.configMapAnnotations(ns, "toomany"), refusedUnreachable)
	w.physical.Restart()
	w.eventually("the change arrives", w.configMapDown(ns, "marker", "y"))
	w.eventually("the tombstone is carried out", func() string {
		_, err := w.mirror.CoreV1().ConfigMaps(ns).Get(w.Context(), "toomany", metav1.GetOptions{})
		return notGone(err)
	})
	w.eventually("nothing else is lost", w.configMapDown(ns, "settings", "three"))
}

func (w *world) restored() {
	heartbeat, err := w.mirror.CoordinationV1().Leases(workloadv1alpha1.HeartbeatNamespace).Get(w.Context(), workloadv1alpha1.HeartbeatName, metav1.GetOptions{})
	w.must(err)
	w.stop()
	_, err = w.mirror.CoordinationV1().Leases(workloadv1alpha1.HeartbeatNamespace).Patch(w.Context(), workloadv1alpha1.HeartbeatName, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"workload.atoll.dev/heartbeat":"1","workload.atoll.dev/heartbeat-written":"0"}}}`), metav1.PatchOptions{})
	w.must(err)
	w.makeConfigMap(ns, "late", "root-late", "x")
	w.must(w.mirror.CoreV1().ConfigMaps(ns).Delete(w.Context(), "settings", metav1.DeleteOptions{}))
	w.start()
	w.condition(workloadv1alpha1.SyncTargetObserveOnly, metav1.ConditionTrue, ReasonHubRestored)
	w.settled()
	if _, err := w.east.CoreV1().ConfigMaps(ns).Get(w.Context(), "late", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		w.Errorf("a restored hub wrote: %v", err)
	}
	if down, err := w.east.CoreV1().ConfigMaps(ns).Get(w.Context(), "settings", metav1.GetOptions{}); err != nil || down.DeletionTimestamp != nil {
		w.Errorf("a restored hub deleted: %v %v", down.GetDeletionTimestamp(), err)
	}

	confirm := func() {
		w.must(w.clients.Objects.Patch(client.In(w.Context(), "root"), w.target, ctrlclient.RawPatch(types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"workload.atoll.dev/confirm":"restored"}}}`))))
	}
	// A confirmation that was restored as well.
	w.stop()
	_, err = w.mirror.CoordinationV1().Leases(workloadv1alpha1.HeartbeatNamespace).Patch(w.Context(), workloadv1alpha1.HeartbeatName, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"workload.atoll.dev/heartbeat-asked":"1"}}}`), metav1.PatchOptions{})
	w.must(err)
	confirm()
	w.start()
	w.eventually("the confirmation is taken away, and asked for anew", func() string {
		w.must(w.clients.Objects.Get(client.In(w.Context(), "root"), ctrlclient.ObjectKeyFromObject(w.target), w.target))
		if word := w.target.Annotations[workloadv1alpha1.ConfirmAnnotation]; word != "" {
			return word
		}
		hub, err := w.mirror.CoordinationV1().Leases(workloadv1alpha1.HeartbeatNamespace).Get(w.Context(), workloadv1alpha1.HeartbeatName, metav1.GetOptions{})
		if asked := hub.Annotations[workloadv1alpha1.HeartbeatAskedAnnotation]; err != nil || asked == "1" || asksNothing(hub) {
			return fmt.Sprintf("asked at %q: %v", asked, err)
		}
		return ""
	})
	w.condition(workloadv1alpha1.SyncTargetObserveOnly, metav1.ConditionTrue, ReasonHubRestored)
	if _, err := w.east.CoreV1().ConfigMaps(ns).Get(w.Context(), "late", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		w.Errorf("a restored hub wrote: %v", err)
	}

	confirm()
	w.condition(workloadv1alpha1.SyncTargetObserveOnly, metav1.ConditionFalse, ReasonInStep)
	w.eventually("writing goes on", w.configMapDown(ns, "late", "x"))
	w.eventually("the confirmation is used up", func() string {
		w.must(w.clients.Objects.Get(client.In(w.Context(), "root"), ctrlclient.ObjectKeyFromObject(w.target), w.target))
		return w.target.Annotations[workloadv1alpha1.ConfirmAnnotation]
	})
	now, err := w.mirror.CoordinationV1().Leases(workloadv1alpha1.HeartbeatNamespace).Get(w.Context(), workloadv1alpha1.HeartbeatName, metav1.GetOptions{})
	w.must(err)
	before, _ := count(heartbeat, workloadv1alpha1.HeartbeatCounterAnnotation)
	if after, _ := count(now, workloadv1alpha1.HeartbeatCounterAnnotation); after <= before {
		w.Errorf("the counter is %d after the restore and was %d before", after, before)
	}
}

func (w *world) namespaceGoes() {
	w.must(w.mirror.CoreV1().Namespaces().Delete(w.Context(), ns, metav1.DeleteOptions{}))
	w.eventually("the namespace is gone on both sides", func() string {
		if _, err := w.mirror.CoreV1().Namespaces().Get(w.Context(), ns, metav1.GetOptions{}); notGone(err) != "" {
			return "mirror: " + notGone(err)
		}
		_, err := w.east.CoreV1().Namespaces().Get(w.Context(), ns, metav1.GetOptions{})
		return notGone(err)
	})
}

// below waits for a namespace in the physical cluster.
func (w *world) below(name string) {
	w.Helper()
	w.eventually("namespace "+name+" is below", func() string {
		_, err := w.east.CoreV1().Namespaces().Get(w.Context(), name, metav1.GetOptions{})
		return problemOf(err)
	})
}

// namespaceIsLeft leaves an object, with labels, in a namespace of ours that is not asked for any more, and asks for the
// namespace again: neither is touched, both are reported, and a ConfigMap "ours" goes down.
func (w *world) namespaceIsLeft(name, object string, labels map[string]string) *corev1.ConfigMap {
	w.Helper()
	w.makeNamespace(name)
	w.below(name)
	left, err := w.east.CoreV1().ConfigMaps(name).Create(w.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: object, Labels: labels}}, metav1.CreateOptions{})
	w.must(err)
	w.must(w.mirror.CoreV1().Namespaces().Delete(w.Context(), name, metav1.DeleteOptions{}))
	w.eventually("the mirror's namespace goes", func() string {
		ns, err := w.mirror.CoreV1().Namespaces().Get(w.Context(), name, metav1.GetOptions{})
		if err == nil {
			return fmt.Sprintf("it is there, with annotations %v", ns.Annotations)
		}
		return notGone(err)
	})
	w.orphansAre("namespaces " + name + " (kept for configmaps " + object + ")")
	down, err := w.east.CoreV1().Namespaces().Get(w.Context(), name, metav1.GetOptions{})
	w.must(err)
	w.makeNamespace(name)
	w.makeConfigMap(name, "ours", "root-ours", "x")
	w.eventually("it is used again", w.configMapDown(name, "ours", "x"))
	again, err := w.east.CoreV1().Namespaces().Get(w.Context(), name, metav1.GetOptions{})
	w.must(err)
	now, err := w.east.CoreV1().ConfigMaps(name).Get(w.Context(), object, metav1.GetOptions{})
	w.must(err)
	if down.DeletionTimestamp != nil || again.UID != down.UID || now.ResourceVersion != left.ResourceVersion {
		w.Errorf("it was touched: namespace %+v, then %+v, object %+v", down, again, now)
	}
	return left
}

// orphansAre waits until the condition Orphans has all the words.
func (w *world) orphansAre(words ...string) {
	w.Helper()
	w.syncer.beatSoon()
	for _, word := range words {
		w.eventually("the condition names "+word, func() string {
			if c := w.condition(ConditionOrphans, metav1.ConditionTrue, ReasonNoLeaf); !strings.Contains(c.Message, word) {
				return c.Message
			}
			return ""
		})
	}
}

// namespaceEnds gives up a namespace and the leaves in it: nothing is left below.
func (w *world) namespaceEnds(name string, configMaps ...string) {
	w.Helper()
	for _, c := range configMaps {
		w.must(w.mirror.CoreV1().ConfigMaps(name).Delete(w.Context(), c, metav1.DeleteOptions{}))
	}
	w.must(w.mirror.CoreV1().Namespaces().Delete(w.Context(), name, metav1.DeleteOptions{}))
	w.eventually("it goes", func() string {
		_, err := w.east.CoreV1().Namespaces().Get(w.Context(), name, metav1.GetOptions{})
		return notGone(err)
	})
	w.syncer.beatSoon()
	w.condition(ConditionOrphans, metav1.ConditionFalse, ReasonNone)
}

// namespaceStays: what an administrator of the physical cluster put into our namespace does not go with it.
func (w *world) namespaceStays() {
	theirs := w.namespaceIsLeft("shared", "theirs", nil)
	w.must(w.east.CoreV1().ConfigMaps("shared").Delete(w.Context(), theirs.Name, metav1.DeleteOptions{}))
	w.namespaceEnds("shared", "ours")
}

// orphanStays: what is left of us does not go with its namespace, nor keep anybody from that, and goes once it is asked for again and
// given up.
func (w *world) orphanStays() {
	ghost := w.namespaceIsLeft("once", "ghost", map[string]string{
		workloadv1alpha1.SyncTargetLabel: string(w.target.UID), workloadv1alpha1.WorkspaceLabel: workspace,
	})
	w.orphansAre("configmaps once/ghost")
	w.makeConfigMap("once", "ghost", "root-ghost", "x")
	w.eventually("the orphan has a leaf again", w.configMapDown("once", "ghost", "x"))
	if now, err := w.east.CoreV1().ConfigMaps("once").Get(w.Context(), "ghost", metav1.GetOptions{}); err != nil || now.UID != ghost.UID {
		w.Errorf("it is another one than %s: %+v %v", ghost.UID, now, err)
	}
	w.namespaceEnds("once", "ghost", "ours")
}

func (w *world) targetGoes() {
	w.makeNamespace("left-over")
	w.below("left-over")
	w.makeNamespace("haunted")
	w.below("haunted")
	_, err := w.east.CoreV1().ConfigMaps("haunted").Create(w.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: "ghost", Labels: map[string]string{workloadv1alpha1.SyncTargetLabel: string(w.target.UID), workloadv1alpha1.WorkspaceLabel: workspace},
	}}, metav1.CreateOptions{})
	w.must(err)
	w.condition(ConditionOrphans, metav1.ConditionTrue, ReasonNoLeaf)
	home := client.In(w.Context(), "root")
	w.must(w.clients.Objects.Delete(home, w.target))
	w.eventually("the SyncTarget is gone", func() string {
		err := w.clients.Objects.Get(home, ctrlclient.ObjectKeyFromObject(w.target), w.target)
		if err == nil {
			return fmt.Sprintf("%+v", w.target.Status.Conditions)
		}
		return notGone(err)
	})
	w.eventually("what it ran is gone", func() string {
		_, err := w.east.CoreV1().Namespaces().Get(w.Context(), "left-over", metav1.GetOptions{})
		return notGone(err)
	})
	ghost, err := w.east.CoreV1().ConfigMaps("haunted").Get(w.Context(), "ghost", metav1.GetOptions{})
	if err != nil || ghost.DeletionTimestamp != nil {
		w.Errorf("an orphan went with its SyncTarget: %v %v", ghost.GetDeletionTimestamp(), err)
	}
	var lc corev1alpha1.LogicalCluster
	err = w.clients.Objects.Get(w.inMirror(), ctrlclient.ObjectKey{Name: corev1alpha1.LogicalClusterName}, &lc)
	if !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
		w.Errorf("the mirror is still there: %v", err)
	}
}

// ready waits for the condition Ready of a SyncTarget in root.
func (w *world) ready(name string, status metav1.ConditionStatus, reason string) {
	w.Helper()
	w.target = &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: name}}
	w.condition(workloadv1alpha1.SyncTargetReady, status, reason)
}

// neverReady watches a SyncTarget in root from its registration until it is not Ready for a reason; it must not be Ready on the way.
func (w *world) neverReady(name, reason string, register func()) {
	w.Helper()
	ctx, cancel := context.WithTimeout(client.In(w.Context(), "root"), patience)
	defer cancel()
	events, err := w.clients.Dynamic.Resource(syncTargetsGVR).Watch(ctx, metav1.SingleObject(metav1.ObjectMeta{Name: name}))
	w.must(err)
	defer events.Stop()
	register()
	for e := range events.ResultChan() {
		target := &workloadv1alpha1.SyncTarget{}
		w.must(runtime.DefaultUnstructuredConverter.FromUnstructured(e.Object.(*unstructured.Unstructured).Object, target))
		c := meta.FindStatusCondition(target.Status.Conditions, workloadv1alpha1.SyncTargetReady)
		if c != nil && c.Status == metav1.ConditionTrue {
			w.Fatalf("SyncTarget %s is Ready before it is %s", name, reason)
		}
		if c != nil && c.Reason == reason {
			w.target = target
			return
		}
	}
	w.Fatalf("SyncTarget %s did not become %s", name, reason)
}

// push registers the physical cluster with a kubeconfig: the server's Manager runs the Syncer.
func (w *world) push() {
	w.stop()
	home := client.In(w.Context(), "root")
	kubeconfig, err := os.ReadFile(w.physical.Kubeconfig)
	w.must(err)
	secrets := w.clients.Kube.CoreV1().Secrets("default")
	secret, err := secrets.Create(home, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "east"}, Data: map[string][]byte{"kubeconfig": kubeconfig},
	}, metav1.CreateOptions{})
	w.must(err)
	register := func(name string) {
		w.Helper()
		w.must(w.clients.Objects.Create(home, &workloadv1alpha1.SyncTarget{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       workloadv1alpha1.SyncTargetSpec{KubeconfigSecretRef: &corev1.SecretReference{Name: "east", Namespace: "default"}},
		}))
	}
	register("pushed")
	w.ready("pushed", metav1.ConditionTrue, ReasonConnected)
	pushed := w.target
	w.mirrorConfig.Host = w.hub.URL + "/clusters/" + pushed.Status.Mirror
	w.mirror, err = kubernetes.NewForConfig(w.mirrorConfig)
	w.must(err)
	w.makeNamespace("pushed-1a")
	w.makeConfigMap("pushed-1a", "settings", "root-pushed", "one")
	w.eventually("it is applied", w.configMapDown("pushed-1a", "settings", "one"))

	// The second one of the same cluster has to be younger by the clock of the wire, in seconds, or by its UID.
	w.eventually("a second has passed", func() string {
		if time.Since(pushed.CreationTimestamp.Time) < 1100*time.Millisecond {
			return "not yet"
		}
		return ""
	})
	register("again")
	w.ready("again", metav1.ConditionFalse, ReasonDuplicate)
	w.must(w.clients.Objects.Delete(home, w.target))
	w.eventually("the duplicate goes", func() string {
		return notGone(w.clients.Objects.Get(home, ctrlclient.ObjectKeyFromObject(w.target), w.target))
	})

	// A kubeconfig that would run something on the server is not taken, and a good one is, again.
	bad := secret.DeepCopy()
	bad.Data["kubeconfig"] = []byte(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: "https://east"}}], users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: id, interactiveMode: Never}}}]}`)
	bad, err = secrets.Update(home, bad, metav1.UpdateOptions{})
	w.must(err)
	w.ready("pushed", metav1.ConditionFalse, ReasonKubeconfigInvalid)
	bad.Data = secret.Data
	_, err = secrets.Update(home, bad, metav1.UpdateOptions{})
	w.must(err)
	w.ready("pushed", metav1.ConditionTrue, ReasonConnected)
}

// alias is a way to the physical cluster on which it says that it is another.
type alias struct {
	*httptest.Server
	uid    atomic.Value // string
	asked  atomic.Int64 // how often it was asked who it is
	writes atomic.Int64
}

func (w *world) alias(uid string) *alias {
	config := w.physical.RESTConfig()
	transport, err := rest.TransportFor(config)
	w.must(err)
	address, err := url.Parse(config.Host)
	w.must(err)
	proxy := &httputil.ReverseProxy{Transport: transport, FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(address) }}
	a := &alias{}
	a.uid.Store(uid)
	a.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodGet {
			a.writes.Add(1)
		}
		if req.URL.Path != "/api/v1/namespaces/"+metav1.NamespaceSystem {
			proxy.ServeHTTP(rw, req)
			return
		}
		a.asked.Add(1)
		rw.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(rw, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":%q,"uid":%q}}`, metav1.NamespaceSystem, a.uid.Load())
	}))
	w.Cleanup(a.CloseClientConnections)
	return a
}

// duplicateRecovers: who is a duplicate is asked again who it is, nothing is written there meanwhile, and it is let in once
// it is another, or the other has gone.
func (w *world) duplicateRecovers() {
	home, pushed := client.In(w.Context(), "root"), w.target
	other := w.alias("another")
	secrets := w.clients.Kube.CoreV1().Secrets("default")
	kubeconfig := func(server *alias, token string) map[string][]byte {
		return map[string][]byte{"kubeconfig": []byte(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: "` + server.URL + `"}}], users: [{name: u, user: {token: "` + token + `"}}]}`)}
	}
	register := func(name string, server *alias) (*workloadv1alpha1.SyncTarget, *corev1.Secret) {
		w.Helper()
		secret, err := secrets.Create(home, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: kubeconfig(server, "zero")}, metav1.CreateOptions{})
		w.must(err)
		target := &workloadv1alpha1.SyncTarget{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       workloadv1alpha1.SyncTargetSpec{KubeconfigSecretRef: &corev1.SecretReference{Name: name, Namespace: "default"}},
		}
		w.must(w.clients.Objects.Create(home, target))
		return target, secret
	}
	remove := func(target *workloadv1alpha1.SyncTarget) {
		w.Helper()
		w.must(w.clients.Objects.Delete(home, target))
		w.eventually(target.Name+" goes", func() string {
			return notGone(w.clients.Objects.Get(home, ctrlclient.ObjectKeyFromObject(target), target))
		})
	}
	west, secret := register("west", other)
	w.ready("west", metav1.ConditionTrue, ReasonConnected)
	change := func(token, uid string) {
		w.Helper()
		other.uid.Store(uid)
		secret.Data = kubeconfig(other, token)
		var err error
		secret, err = secrets.Update(home, secret, metav1.UpdateOptions{})
		w.must(err)
	}

	change("one", pushed.Status.ClusterUID)
	w.ready("west", metav1.ConditionFalse, ReasonDuplicate)
	asked, writes := other.asked.Load(), other.writes.Load()
	w.eventually("the duplicate is asked who it is", func() string {
		if n := other.asked.Load(); n < asked+2 {
			return fmt.Sprintf("asked %d times", n-asked)
		}
		return ""
	})
	w.ready("west", metav1.ConditionFalse, ReasonDuplicate)
	w.ready("pushed", metav1.ConditionTrue, ReasonConnected)
	if n := other.writes.Load(); n != writes {
		w.Errorf("%d requests that write came from the duplicate", n-writes)
	}
	change("two", "another")
	w.ready("west", metav1.ConditionTrue, ReasonConnected)
	if uid := w.target.Status.ClusterUID; uid != "another" {
		w.Errorf("its clusterUID is %q", uid)
	}

	// Without a change of the Secret, too.
	change("three", pushed.Status.ClusterUID)
	w.ready("west", metav1.ConditionFalse, ReasonDuplicate)
	other.uid.Store("another")
	w.ready("west", metav1.ConditionTrue, ReasonConnected)

	// Nor is anything written for one that is being removed, and waits since something is to run there.
	ways := w.alias("another")
	leaving, _ := register("leaving", ways)
	w.ready("leaving", metav1.ConditionFalse, ReasonDuplicate)
	w.must(w.clients.Objects.Create(w.inMirror(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "leaving-1a", Labels: map[string]string{workloadv1alpha1.WorkspaceLabel: workspace}, Finalizers: []string{workloadv1alpha1.SyncerFinalizer},
		Annotations: map[string]string{workloadv1alpha1.AppliedAnnotation: "before"},
	}}))
	writes = ways.writes.Load()
	w.must(w.clients.Objects.Delete(home, leaving))
	w.eventually("it waits", func() string {
		if c := w.condition(workloadv1alpha1.SyncTargetReady, metav1.ConditionFalse, ReasonDuplicate); !strings.Contains(c.Message, "leaving-1a") {
			return c.Message
		}
		return ""
	})
	asked = ways.asked.Load()
	w.eventually("it is asked who it is", func() string {
		if n := ways.writes.Load(); n != writes {
			w.Fatalf("%d requests that write came from a duplicate that is being removed", n-writes)
		}
		if n := ways.asked.Load(); n < asked+2 {
			return fmt.Sprintf("asked %d times", n-asked)
		}
		return ""
	})
	w.must(w.clients.Objects.Patch(home, leaving, ctrlclient.RawPatch(types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"workload.atoll.dev/confirm":"abandon"}}}`))))
	w.eventually("it goes", func() string {
		return notGone(w.clients.Objects.Get(home, ctrlclient.ObjectKeyFromObject(leaving), leaving))
	})

	// It was never Ready, and what was never applied is not waited for.
	var named *workloadv1alpha1.SyncTarget
	w.neverReady("named", ReasonDuplicate, func() { named, _ = register("named", w.alias("another")) })
	w.must(w.clients.Objects.Create(w.inMirror(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "named-1a", Labels: map[string]string{workloadv1alpha1.WorkspaceLabel: workspace}, Finalizers: []string{workloadv1alpha1.SyncerFinalizer},
	}}))
	remove(named)

	// The other registration goes.
	third, _ := register("third", w.alias("another"))
	w.ready("third", metav1.ConditionFalse, ReasonDuplicate)
	w.eventually("what is registered next is younger", func() string {
		if !time.Now().Truncate(time.Second).After(third.CreationTimestamp.Time) {
			return "of two of one second, the UID decides who is let in first"
		}
		return ""
	})
	letIn, ends := w.outside("another")
	remove(west)
	w.ready("third", metav1.ConditionTrue, ReasonConnected)
	remove(third)
	letIn()
	var fourth *workloadv1alpha1.SyncTarget
	ends(func() string {
		fourth, _ = register("fourth", w.alias("another"))
		return fourth.Name
	})
	remove(fourth)
	w.target = pushed
}

// outside registers a SyncTarget whose syncer runs outside the server, in a physical cluster with that UID, which another one
// holds, and sees that it writes nothing there, from the first moment on. letIn waits until it does. ends removes it, and while it
// drains the same cluster is registered again, by the name that again returns: that begins when what was there is gone.
func (w *world) outside(uid string) (letIn func(), ends func(again func() string)) {
	home := client.In(w.Context(), "root")
	target := &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: "outside"}}
	w.must(w.clients.Objects.Create(home, target))
	w.target = target
	w.eventually("it has a mirror with a twin", func() string {
		w.must(w.clients.Objects.Get(home, ctrlclient.ObjectKeyFromObject(target), target))
		if target.Status.Mirror == "" {
			return "no mirror"
		}
		return problemOf(w.clients.Objects.Get(w.inMirror(), ctrlclient.ObjectKeyFromObject(target), &workloadv1alpha1.SyncTarget{}))
	})
	before := *w
	w.mirrorConfig = w.hub.Config()
	w.mirrorConfig.Host += "/clusters/" + target.Status.Mirror
	var err error
	w.mirror, err = kubernetes.NewForConfig(w.mirrorConfig)
	w.must(err)
	w.makeNamespace("outside-1a")
	w.makeConfigMap("outside-1a", "settings", "root-outside", "one")
	var writes, looks atomic.Int64
	w.before = func(req *http.Request) {
		if req.Method != http.MethodGet {
			writes.Add(1)
		} else if strings.HasSuffix(req.URL.Path, "/leases/"+heartbeatBelow(string(target.UID))) {
			looks.Add(1)
		}
	}
	w.between = func(req *http.Request, resp *http.Response) *http.Response {
		if req.URL.Path == "/api/v1/namespaces/"+metav1.NamespaceSystem {
			_ = resp.Body.Close()
			resp.Header = http.Header{"Content-Type": {"application/json"}}
			resp.Body = io.NopCloser(strings.NewReader(fmt.Sprintf(`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":%q,"uid":%q}}`, metav1.NamespaceSystem, uid)))
		}
		return resp
	}
	w.start()
	mirror, stop := w.mirror, w.stop
	w.Cleanup(stop)
	w.mirrorConfig, w.mirror, w.stop, w.syncer, w.clock, w.before, w.between = before.mirrorConfig, before.mirror, before.stop, before.syncer, before.clock, before.before, before.between

	w.ready("outside", metav1.ConditionFalse, ReasonDuplicate)
	looked := looks.Load()
	w.eventually("it compares heartbeats", func() string {
		if n := looks.Load(); n < looked+2 {
			return fmt.Sprintf("%d times", n-looked)
		}
		return ""
	})
	if n := writes.Load(); n != 0 {
		w.Errorf("%d requests that write came from a duplicate outside the server", n)
	}
	letIn = func() {
		w.Helper()
		w.ready("outside", metav1.ConditionTrue, ReasonConnected)
		w.eventually("the leaf that it had is applied", func() string {
			_, err := w.east.CoreV1().ConfigMaps("outside-1a").Get(w.Context(), "settings", metav1.GetOptions{})
			return problemOf(err)
		})
	}
	ends = func(again func() string) {
		w.Helper()
		w.must(w.clients.Objects.Delete(home, target))
		w.ready("outside", metav1.ConditionTrue, ReasonTerminating)
		name := again()
		w.ready(name, metav1.ConditionFalse, ReasonDuplicate)
		w.ready("outside", metav1.ConditionTrue, ReasonTerminating)
		w.must(mirror.CoreV1().ConfigMaps("outside-1a").Delete(w.Context(), "settings", metav1.DeleteOptions{}))
		w.eventually("it goes", func() string {
			return notGone(w.clients.Objects.Get(home, ctrlclient.ObjectKeyFromObject(target), target))
		})
		if _, err := w.east.CoreV1().Namespaces().Get(w.Context(), "outside-1a", metav1.GetOptions{}); notGone(err) != "" {
			w.Errorf("it is gone, and what it ran is not: %s", notGone(err))
		}
		w.ready(name, metav1.ConditionTrue, ReasonConnected)
		stop()
	}
	return letIn, ends
}

// anothersMirror: whoever can write a SyncTarget's status gets nowhere with it.
func (w *world) anothersMirror() {
	home, pushed := client.In(w.Context(), "root"), w.target
	w.target = &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: "evil"}}
	w.must(w.clients.Objects.Create(home, w.target))
	w.condition(workloadv1alpha1.SyncTargetReady, metav1.ConditionUnknown, ReasonNotConnected)
	for mirror, reason := range map[string]string{"system:admin": ReasonMirrorInvalid, "brand-new": ReasonMirrorInvalid, pushed.Status.Mirror: ReasonMirrorTaken} {
		w.must(w.clients.Objects.Status().Patch(home, w.target, ctrlclient.RawPatch(types.MergePatchType, []byte(`{"status":{"mirror":"`+mirror+`"}}`))))
		w.condition(workloadv1alpha1.SyncTargetReady, metav1.ConditionFalse, reason)
	}
	var twins workloadv1alpha1.SyncTargetList
	w.must(w.clients.Objects.List(client.In(w.Context(), logicalcluster.Name(pushed.Status.Mirror)), &twins))
	if len(twins.Items) != 1 || twins.Items[0].Name != pushed.Name {
		w.Errorf("the mirror of another has twins %+v", twins.Items)
	}
	w.must(w.clients.Objects.Delete(home, w.target))
	w.eventually("it goes", func() string {
		return notGone(w.clients.Objects.Get(home, ctrlclient.ObjectKeyFromObject(w.target), w.target))
	})
	w.target = pushed
}

// abandon removes the SyncTarget of a cluster that is lost for good.
func (w *world) abandon() {
	w.physical.Kill()
	home := client.In(w.Context(), "root")
	w.must(w.clients.Objects.Delete(home, w.target))
	w.condition(workloadv1alpha1.SyncTargetReady, metav1.ConditionTrue, ReasonTerminating) // for 40 s it is not missed
	w.must(w.clients.Objects.Patch(home, w.target, ctrlclient.RawPatch(types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"workload.atoll.dev/confirm":"abandon"}}}`))))
	w.eventually("it is let go", func() string {
		return notGone(w.clients.Objects.Get(home, ctrlclient.ObjectKeyFromObject(w.target), w.target))
	})
}
