package server

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// ground is a server with SyncTargets.
type ground struct {
	*running
	objects ctrlclient.WithWatch
}

// newGround has a root and below it the workspaces shop and bank.
func newGround(t *testing.T) *ground {
	t.Helper()
	g := startServer(t, withTokens(t)).ground(t)
	g.cluster(t, "root", "root", "")
	g.cluster(t, shop, "root:shop", "root")
	g.cluster(t, bank, "root:bank", "root")
	return g
}

func (r *running) ground(t *testing.T) *ground {
	t.Helper()
	clients, err := client.New(r.LoopbackConfig())
	must(t, err)
	return &ground{r, clients.Objects}
}

func (g *ground) create(t *testing.T, in logicalcluster.Name, obj ctrlclient.Object) {
	t.Helper()
	must(t, g.objects.Create(client.In(t.Context(), in), obj))
}

func (g *ground) cluster(t *testing.T, name logicalcluster.Name, path string, parent logicalcluster.Name) {
	t.Helper()
	lc := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: corev1alpha1.LogicalClusterName, Annotations: map[string]string{lcctx.PathAnnotation: path}}}
	if parent != "" {
		lc.Spec.Owner = &corev1alpha1.LogicalClusterOwner{APIVersion: "tenancy.kcp.io/v1alpha1", Resource: "workspaces", Name: string(name), Cluster: string(parent), UID: types.UID(name)}
	}
	g.forgetCluster(t, name)
	g.create(t, name, lc)
}

// target registers a physical cluster that is ready.
func (g *ground) target(t *testing.T, in logicalcluster.Name, name string, labels map[string]string) *workloadv1alpha1.SyncTarget {
	t.Helper()
	target := &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	g.create(t, in, target)
	g.status(t, in, target, func(s *workloadv1alpha1.SyncTargetStatus) {
		s.Version, s.Capacity = "v1.36.3", corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse("64")}
		setReady(s, metav1.ConditionTrue, "Connected")
	})
	return target
}

func setReady(s *workloadv1alpha1.SyncTargetStatus, status metav1.ConditionStatus, reason string) {
	meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: workloadv1alpha1.SyncTargetReady, Status: status, Reason: reason, Message: "dial 10.0.0.1"})
}

func (g *ground) status(t *testing.T, in logicalcluster.Name, target *workloadv1alpha1.SyncTarget, change func(*workloadv1alpha1.SyncTargetStatus)) {
	t.Helper()
	change(&target.Status)
	must(t, g.objects.Status().Update(client.In(t.Context(), in), target))
}

func (g *ground) update(t *testing.T, in logicalcluster.Name, target *workloadv1alpha1.SyncTarget, change func()) {
	t.Helper()
	change()
	must(t, g.objects.Update(client.In(t.Context(), in), target))
}

func (g *ground) allow(t *testing.T, in logicalcluster.Name, name string, clusters ...string) *placementv1alpha1.PlacementPolicy {
	t.Helper()
	p := &placementv1alpha1.PlacementPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: placementv1alpha1.PlacementPolicySpec{
		Allow: &placementv1alpha1.ClusterSelection{Names: clusters}}}
	g.create(t, in, p)
	return p
}

// nodes are the names of a workspace's Nodes.
func (g *ground) nodes(t *testing.T, in logicalcluster.Name, o metav1.ListOptions) []string {
	t.Helper()
	list, err := g.in(t, in).CoreV1().Nodes().List(t.Context(), o)
	must(t, err)
	return namesOf(list)
}

func namesOf(list *corev1.NodeList) []string {
	names := []string{}
	for _, n := range list.Items {
		names = append(names, n.Name)
	}
	return names
}

// TestNodesAreWhatAWorkspaceMayUse: at once, and nothing else.
func TestNodesAreWhatAWorkspaceMayUse(t *testing.T) {
	g := newGround(t)
	expect := func(reason string, in logicalcluster.Name, want ...string) {
		t.Helper()
		if got := g.nodes(t, in, metav1.ListOptions{}); !slices.Equal(got, want) {
			t.Errorf("%s: %s has the nodes %v, want %v", reason, in, got, want)
		}
	}
	expect("nothing is registered", shop)
	g.target(t, "root", "east", map[string]string{"topology.kubernetes.io/region": "eu"})
	west := g.target(t, "root", "west", nil)
	g.target(t, shop, "own", nil)
	expect("all above may be used, and what is its own", shop, "east", "own", "west")
	expect("what another has is not seen", bank, "east", "west")
	expect("nobody works in a mirror", east)

	if got := g.nodes(t, shop, metav1.ListOptions{LabelSelector: "topology.kubernetes.io/region=eu"}); !slices.Equal(got, []string{"east"}) {
		t.Errorf("by label: %v", got)
	}
	if got := g.nodes(t, shop, metav1.ListOptions{FieldSelector: "metadata.name=west"}); !slices.Equal(got, []string{"west"}) {
		t.Errorf("by name: %v", got)
	}
	if got := g.nodes(t, shop, metav1.ListOptions{FieldSelector: "spec.unschedulable=true"}); len(got) > 0 {
		t.Errorf("by field: %v", got)
	}
	if got := g.nodes(t, shop, metav1.ListOptions{Limit: 1}); !slices.Equal(got, []string{"east", "own", "west"}) {
		t.Errorf("with a limit, which need not be heeded: %v", got)
	}

	p := g.allow(t, shop, "narrow", "east")
	expect("a policy says so", shop, "east")
	expect("and says it there alone", bank, "east", "west")
	g.allow(t, "root", "narrower", "west")
	expect("every policy has to allow it", shop)
	expect("that of root does", bank, "west")
	must(t, g.objects.Delete(client.In(t.Context(), shop), p))
	expect("without its own", shop, "west")

	g.update(t, "root", west, func() { west.Spec.DedicatedTo = "root:bank" })
	expect("dedicated to another", shop)
	expect("dedicated to it", bank, "west")
	g.target(t, shop, "west", nil)
	g.update(t, "root", west, func() { west.Spec.DedicatedTo = "" })
	list, err := g.in(t, shop).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if names := namesOf(list); !slices.Equal(names, []string{"west"}) || list.Items[0].UID == west.UID {
		t.Errorf("the nearer one of a name counts: %v %v, not %v", names, list.Items, west.UID)
	}
	must(t, g.objects.Delete(client.In(t.Context(), "root"), west))
	expect("it is gone", bank)
}

// TestNodeShowsItsSyncTarget: and nothing that concerns only who holds it.
func TestNodeShowsItsSyncTarget(t *testing.T) {
	g := newGround(t)
	target := g.target(t, "root", "east", map[string]string{"tier": "gold"})
	get := func() *corev1.Node {
		t.Helper()
		n, err := g.in(t, shop).CoreV1().Nodes().Get(t.Context(), "east", metav1.GetOptions{})
		must(t, err)
		return n
	}
	n := get()
	cpu := n.Status.Allocatable[corev1.ResourceCPU]
	switch {
	case n.UID != target.UID || n.ResourceVersion != target.ResourceVersion || !n.CreationTimestamp.Equal(&target.CreationTimestamp):
		t.Errorf("it is %v, of the SyncTarget %v", n.ObjectMeta, target.ObjectMeta)
	case n.Labels["tier"] != "gold" || n.Status.NodeInfo.KubeletVersion != "v1.36.3" || cpu.String() != "64":
		t.Errorf("it shows %v", n)
	case n.Annotations[lcctx.Annotation] != string(shop):
		t.Errorf("it is of %v", n.Annotations)
	case len(n.Spec.Taints) > 0 || n.Spec.Unschedulable:
		t.Errorf("it is tainted: %v", n.Spec)
	}
	// state is the status of Ready, its reason, and the taints.
	state := func(n *corev1.Node) string {
		out := []string{string(n.Status.Conditions[0].Status), n.Status.Conditions[0].Reason, strconv.FormatBool(n.Spec.Unschedulable)}
		for _, taint := range n.Spec.Taints {
			out = append(out, taint.ToString())
		}
		return strings.Join(out, " ")
	}
	expect := func(want string) {
		t.Helper()
		n := get()
		if got := state(n); got != want {
			t.Errorf("it is %q, want %q", got, want)
		}
		if text := fmt.Sprint(n); strings.Contains(text, "10.0.0.1") {
			t.Errorf("it tells tenants what the SyncTarget says: %s", text)
		}
	}
	expect("True Connected false")
	g.update(t, "root", target, func() { target.Spec.Unschedulable = true })
	expect("True Connected true node.kubernetes.io/unschedulable:NoSchedule")
	g.update(t, "root", target, func() { target.Spec.Unschedulable = false })
	g.status(t, "root", target, func(s *workloadv1alpha1.SyncTargetStatus) { setReady(s, metav1.ConditionUnknown, "HeartbeatLost") })
	expect("Unknown HeartbeatLost false node.kubernetes.io/unreachable:NoSchedule")
	g.status(t, "root", target, func(s *workloadv1alpha1.SyncTargetStatus) { setReady(s, metav1.ConditionFalse, "Unreachable") })
	expect("False Unreachable false node.kubernetes.io/not-ready:NoSchedule")
	g.status(t, "root", target, func(s *workloadv1alpha1.SyncTargetStatus) {
		setReady(s, metav1.ConditionFalse, workloadv1alpha1.ReasonDuplicate)
	})
	if names := g.nodes(t, shop, metav1.ListOptions{}); len(names) > 0 {
		t.Errorf("a duplicate that never ran anything is a node: %v", names)
	}

	g.status(t, "root", target, func(s *workloadv1alpha1.SyncTargetStatus) { setReady(s, metav1.ConditionTrue, "Connected") })
	table := g.ask(t, asked{path: clustersPrefix + string(shop) + "/api/v1/nodes", token: root,
		header: map[string]string{"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}})
	if !strings.Contains(table.body, `"cells":["east","Ready"`) {
		t.Errorf("the table is %v", table)
	}
}

// TestNodesAreNotWritten: by nobody, whatever his rights, and he is told what to do.
func TestNodesAreNotWritten(t *testing.T) {
	g := newGround(t)
	g.target(t, "root", "east", nil)
	at := clustersPrefix + string(shop) + "/api/v1/nodes"
	json := `{"apiVersion":"v1","kind":"Node","metadata":{"name":"east"}}`
	patch := func(kind string) map[string]string { return map[string]string{"Content-Type": kind} }
	for what, a := range map[string]asked{
		"create":            {method: http.MethodPost, path: at, body: json},
		"create, dry":       {method: http.MethodPost, path: at + "?dryRun=All", body: strings.Replace(json, "east", "new", 1)},
		"update":            {method: http.MethodPut, path: at + "/east", body: json},
		"update of another": {method: http.MethodPut, path: at + "/other", body: strings.Replace(json, "east", "other", 1)},
		"update, status":    {method: http.MethodPut, path: at + "/east/status", body: json},
		"cordon":            {method: http.MethodPatch, path: at + "/east", body: `{"spec":{"unschedulable":true}}`, header: patch("application/strategic-merge-patch+json")},
		"cordon, dry":       {method: http.MethodPatch, path: at + "/east?dryRun=All", body: `{"spec":{"unschedulable":true}}`, header: patch("application/merge-patch+json")},
		"apply":             {method: http.MethodPatch, path: at + "/east?fieldManager=me", body: json, header: patch("application/apply-patch+yaml")},
		"apply, status":     {method: http.MethodPatch, path: at + "/east/status?fieldManager=me", body: json, header: patch("application/apply-patch+yaml")},
		"delete":            {method: http.MethodDelete, path: at + "/east"},
		"delete, dry":       {method: http.MethodDelete, path: at + "/east?dryRun=All"},
		"delete all":        {method: http.MethodDelete, path: at},
	} {
		a.token = root
		got := g.ask(t, a)
		if got.code != http.StatusMethodNotAllowed || !strings.Contains(got.body, "SyncTarget") {
			t.Errorf("%s: %v", what, got)
		}
	}
	if names := g.nodes(t, shop, metav1.ListOptions{}); !slices.Equal(names, []string{"east"}) {
		t.Errorf("there are %v", names)
	}
}

// seen is what a watch has shown.
type seen struct {
	t    *testing.T
	w    watch.Interface
	last uint64
}

func (g *ground) watch(t *testing.T, in logicalcluster.Name, o metav1.ListOptions) *seen {
	t.Helper()
	w, err := g.in(t, in).CoreV1().Nodes().Watch(t.Context(), o)
	must(t, err)
	t.Cleanup(w.Stop)
	return &seen{t: t, w: w}
}

// next is the next event, bookmarks excepted: "MODIFIED east". Its revision is not before that of the one before.
func (s *seen) next() (string, *corev1.Node) {
	s.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case event, ok := <-s.w.ResultChan():
			if !ok {
				s.t.Fatal("the watch ended")
			}
			n, ok := event.Object.(*corev1.Node)
			if !ok {
				return fmt.Sprintf("%s %d", event.Type, apierrors.FromObject(event.Object).(apierrors.APIStatus).Status().Code), nil
			}
			revision, err := strconv.ParseUint(n.ResourceVersion, 10, 64)
			must(s.t, err)
			if revision < s.last {
				s.t.Errorf("%s %s has revision %d after %d", event.Type, n.Name, revision, s.last)
			}
			s.last = revision
			if event.Type != watch.Bookmark {
				return fmt.Sprintf("%s %s", event.Type, n.Name), n
			}
		case <-deadline:
			s.t.Fatal("nothing is heard")
		}
	}
}

func (s *seen) expect(want string) *corev1.Node {
	s.t.Helper()
	got, n := s.next()
	if got != want {
		s.t.Fatalf("heard %q, want %q", got, want)
	}
	return n
}

// TestNodesAreWatched: whatever changes which there are, or how they are, and nothing else.
func TestNodesAreWatched(t *testing.T) {
	g := newGround(t)
	target := g.target(t, "root", "east", nil)
	list, err := g.in(t, shop).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	from := list.ResourceVersion

	w := g.watch(t, shop, metav1.ListOptions{ResourceVersion: from, AllowWatchBookmarks: true})
	named := g.watch(t, shop, metav1.ListOptions{ResourceVersion: from, FieldSelector: "spec.unschedulable=true"})
	initial := g.watch(t, bank, metav1.ListOptions{SendInitialEvents: ptr.To(true), AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	initial.expect("ADDED east")
	old := g.watch(t, bank, metav1.ListOptions{ResourceVersion: "0"})
	old.expect("ADDED east")

	// What no Node shows is not told: the next events are of what comes after.
	g.status(t, "root", target, func(s *workloadv1alpha1.SyncTargetStatus) {
		now := metav1.Now()
		s.LastHeartbeat, s.CarriedResources = &now, []string{"deployments.apps"}
	})
	g.target(t, bank, "own", nil)
	initial.expect("ADDED own")
	g.update(t, "root", target, func() { target.Spec.Unschedulable = true })
	if n := w.expect("MODIFIED east"); n.ResourceVersion != target.ResourceVersion || !n.Spec.Unschedulable {
		t.Errorf("heard of %v, the SyncTarget is %v", n, target.ResourceVersion)
	}
	named.expect("ADDED east")
	p := g.allow(t, shop, "none", "west")
	w.expect("DELETED east")
	named.expect("DELETED east")
	must(t, g.objects.Delete(client.In(t.Context(), shop), p))
	back := w.expect("ADDED east")

	again := g.watch(t, shop, metav1.ListOptions{ResourceVersion: back.ResourceVersion})
	must(t, g.objects.Delete(client.In(t.Context(), "root"), target))
	gone := again.expect("DELETED east")
	w.expect("DELETED east")
	for _, since := range []string{from, back.ResourceVersion} {
		late, err := g.in(t, shop).CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{ResourceVersion: since})
		if err == nil {
			// Known a moment later at most.
			l := &seen{t: t, w: late}
			l.expect("ERROR 410")
			late.Stop()
		} else if !apierrors.IsResourceExpired(err) {
			t.Errorf("from %s, after which one was deleted: %v", since, err)
		}
	}
	after := g.watch(t, shop, metav1.ListOptions{ResourceVersion: gone.ResourceVersion})
	g.target(t, "root", "west", nil)
	after.expect("ADDED west")
}

// TestNodesOfThePastAreGone: pages and exact revisions are not had.
func TestNodesOfThePastAreGone(t *testing.T) {
	g := newGround(t)
	_, err := g.in(t, shop).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{ResourceVersion: "5", ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("an exact revision: %v", err)
	}
}

// TestNodesThatWereStored: those that an earlier version has kept are not seen, and nothing is lost by it.
func TestNodesThatWereStored(t *testing.T) {
	g := newGround(t)
	if _, err := g.data.Put(t.Context(), "/registry/minions/"+string(shop)+"/mine", `{"kind":"Node","apiVersion":"v1","metadata":{"name":"mine","uid":"u"}}`); err != nil {
		t.Fatal(err)
	}
	if names := g.nodes(t, shop, metav1.ListOptions{}); len(names) > 0 {
		t.Errorf("a row is a node: %v", names)
	}
	if _, err := g.in(t, shop).CoreV1().Nodes().Get(t.Context(), "mine", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a row is read: %v", err)
	}
}
