package atollapis_test

import (
	"context"
	"encoding/json"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/client"
	embeddedetcd "atoll.dev/atoll/embedded-etcd"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server"
	"atoll.dev/atoll/test/framework"
)

const shop = logicalcluster.Name("shop")

// everything is a directory in which all logical clusters exist, and a placer to which everything would run somewhere.
type everything struct{ framework.NoPods }

func (everything) Annotation(logicalcluster.Name, string) string { return "" }

func (everything) KnownPath(logicalcluster.Path) (logicalcluster.Name, bool) { return "", false }
func (everything) Resolve(context.Context, logicalcluster.Path) (logicalcluster.Name, error) {
	return "", lcctx.ErrNotFound
}
func (everything) Known(name logicalcluster.Name) (lcctx.Cluster, bool) {
	return lcctx.Cluster{Name: name}, true
}
func (everything) OnImported(func(logicalcluster.Name)) {}

func (everything) OnGone(func(logicalcluster.Name)) {}

func (everything) Terminating(logicalcluster.Name) bool { return false }

func (everything) Initialized(logicalcluster.Name) bool { return true }
func (everything) WhyNowhere(logicalcluster.Name, schema.GroupResource, string, string, map[string]string) string {
	return ""
}

func (everything) RefusedPods(logicalcluster.Name, schema.GroupResource, string, ctrlclient.Object) ([]string, error) {
	return nil, nil
}

func (everything) MissingClasses(logicalcluster.Name, schema.GroupResource, string, ctrlclient.Object) []string {
	return nil
}

func (everything) PlacedOn(types.UID) (placements, workspaces int) { return 0, 0 }

// No syncer runs outside this process.
func (everything) Token(context.Context, logicalcluster.Name, string) (string, bool, error) {
	return "", false, nil
}

func (everything) Accepts(logicalcluster.Name, string) bool { return false }

func (everything) WaitSynced(context.Context) error { return nil }

func start(t *testing.T) (*client.Clients, *clientv3.Client) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	dir := t.TempDir()
	etcd, err := embeddedetcd.Start(ctx, embeddedetcd.Options{Dir: dir + "/etcd"})
	must(t, err)
	o := server.NewOptions()
	o.RootDirectory, o.SecurePort, o.BindAddress = dir, 0, net.IPv4(127, 0, 0, 1)
	s, err := server.New(ctx, o, etcd.Client)
	must(t, err)
	s.Join(everything{}, everything{}, everything{}, everything{})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Errorf("server: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		must(t, etcd.Stop())
	})
	must(t, s.WaitReady(ctx))
	clients, err := client.New(s.LoopbackConfig())
	must(t, err)
	must(t, clients.Objects.Create(client.In(ctx, shop), &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: corev1alpha1.LogicalClusterName}}))
	return clients, etcd.Client
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Server-side apply works on both endpoints of our types, which needs their OpenAPI; what is applied again changes
// nothing; and what is stored is JSON under the group's and the resource's name.
func TestApply(t *testing.T) {
	clients, etcd := start(t)
	ctx := client.In(context.Background(), shop)
	targets := clients.Dynamic.Resource(schema.GroupVersionResource{Group: "workload.kcp.io", Version: "v1alpha1", Resource: "synctargets"})
	target := func(field, key string, value any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "workload.kcp.io/v1alpha1", "kind": "SyncTarget",
			"metadata": map[string]any{"name": "east"}, field: map[string]any{key: value},
		}}
	}
	made, err := targets.Apply(ctx, "east", target("spec", "podSecurity", "baseline"), metav1.ApplyOptions{FieldManager: "a"})
	must(t, err)
	again, err := targets.Apply(ctx, "east", target("spec", "podSecurity", "baseline"), metav1.ApplyOptions{FieldManager: "a"})
	must(t, err)
	if made.GetResourceVersion() != again.GetResourceVersion() {
		t.Errorf("the same again went from resource version %s to %s", made.GetResourceVersion(), again.GetResourceVersion())
	}
	if _, err := targets.Apply(ctx, "east", target("spec", "podSecurity", "restricted"), metav1.ApplyOptions{FieldManager: "b"}); !apierrors.IsConflict(err) {
		t.Errorf("another manager's value: %v, want a conflict", err)
	}
	reported, err := targets.ApplyStatus(ctx, "east", target("status", "version", "v1.36.3"), metav1.ApplyOptions{FieldManager: "c"})
	must(t, err)
	want := map[string]any{"spec": map[string]any{"podSecurity": "baseline"}, "status": map[string]any{"version": "v1.36.3"}, "generation": int64(1)}
	got := map[string]any{"spec": reported.Object["spec"], "status": reported.Object["status"], "generation": reported.GetGeneration()}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	rows, err := etcd.Get(ctx, "/registry/workload.kcp.io/synctargets/shop/east")
	must(t, err)
	if len(rows.Kvs) != 1 || !json.Valid(rows.Kvs[0].Value) {
		t.Errorf("rows: %v", rows.Kvs)
	}
}

// The server's own connection is whom the strategy lets decide: spec and status come in one write, at birth and later,
// under optimistic locking and untracked, whoever reports on the status endpoint in between.
func TestDecisionsOfTheServer(t *testing.T) {
	clients, _ := start(t)
	ctx := client.In(context.Background(), shop)
	decide := func(p *placementv1alpha1.Placement, cluster string, generation int64) {
		p.Spec.Clusters = []placementv1alpha1.PlacedCluster{{Name: cluster, UID: "1", Workspace: "root", Mirror: "m", Weight: 1}}
		meta.SetStatusCondition(&p.Status.Conditions, metav1.Condition{
			Type: placementv1alpha1.PlacementPlaced, Status: metav1.ConditionTrue, Reason: placementv1alpha1.ReasonPlaced,
			Message: "on " + cluster, ObservedGeneration: generation,
		})
	}
	check := func(when, cluster string, generation int64, phases int) *placementv1alpha1.Placement {
		t.Helper()
		p := &placementv1alpha1.Placement{}
		must(t, clients.Objects.Get(ctx, ctrlclient.ObjectKey{Name: "default"}, p))
		placed := meta.FindStatusCondition(p.Status.Conditions, placementv1alpha1.PlacementPlaced)
		if placed == nil || placed.Message != "on "+cluster || placed.ObservedGeneration != generation || p.Generation != generation ||
			p.Spec.Clusters[0].Name != cluster || len(p.Status.Clusters) != phases || len(p.ManagedFields) != 0 {
			t.Errorf("%s: %+v", when, p)
		}
		return p
	}
	p := &placementv1alpha1.Placement{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: placementv1alpha1.PlacementSpec{Namespace: "default"}}
	decide(p, "east", 1)
	must(t, clients.Objects.Create(ctx, p))
	stale := check("made", "east", 1, 0)

	reported := stale.DeepCopy()
	reported.Status.Clusters = []placementv1alpha1.PlacedClusterStatus{{Name: "east", Phase: placementv1alpha1.PhaseReady}}
	must(t, clients.Objects.Status().Patch(ctx, reported, ctrlclient.MergeFrom(stale)))
	now := check("reported", "east", 1, 1)

	decide(stale, "west", 2)
	if err := clients.Objects.Update(ctx, stale); !apierrors.IsConflict(err) {
		t.Errorf("a decision on an older view: %v, want a conflict", err)
	}
	check("refused", "east", 1, 1)
	decide(now, "west", 2)
	must(t, clients.Objects.Update(ctx, now))
	check("moved", "west", 2, 1)
}

// The OpenAPI of our types names the version that is served, and no other.
func TestOpenAPI(t *testing.T) {
	clients, _ := start(t)
	ctx := client.In(context.Background(), shop)
	for _, group := range []string{"core.kcp.io", "tenancy.kcp.io", "workload.kcp.io", "placement.atoll.dev"} {
		raw, err := clients.Kube.Discovery().RESTClient().Get().AbsPath("/openapi/v3/apis/", group, "v1alpha1").Do(ctx).Raw()
		must(t, err)
		if !strings.Contains(string(raw), `"group":"`+group+`"`) || strings.Contains(string(raw), "__internal") {
			t.Errorf("OpenAPI of %s: %.300s", group, raw)
		}
	}
}

// kubectl gets the columns of workspaces, in the order that kcp shows.
func TestWorkspaceTable(t *testing.T) {
	clients, _ := start(t)
	ctx := client.In(context.Background(), shop)
	get := func(path string) *metav1.Table {
		t.Helper()
		raw, err := clients.Kube.Discovery().RESTClient().Get().AbsPath(path).
			SetHeader("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1").Do(ctx).Raw()
		must(t, err)
		table := &metav1.Table{}
		must(t, json.Unmarshal(raw, table))
		return table
	}
	workspaces := clients.Dynamic.Resource(schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspaces"})
	_, err := workspaces.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace", "metadata": map[string]any{"name": "team"},
	}}, metav1.CreateOptions{})
	must(t, err)
	table := get("/apis/tenancy.kcp.io/v1alpha1/workspaces")
	var columns []string
	for _, c := range table.ColumnDefinitions {
		if c.Priority == 0 {
			columns = append(columns, c.Name)
		}
	}
	if diff := cmp.Diff([]string{"Name", "Type", "Region", "Phase", "URL", "Age"}, columns); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
	if len(table.Rows) != 1 || table.Rows[0].Cells[0] != "team" || table.Rows[0].Cells[1] != "universal" || table.Rows[0].Cells[3] != "Scheduling" {
		t.Errorf("rows: %+v", table.Rows)
	}
}

// An administrator's slip of the hand does not take a live logical cluster away, alone or with a whole collection.
func TestLiveLogicalClusterStays(t *testing.T) {
	clients, _ := start(t)
	ctx := client.In(context.Background(), shop)
	logicalClusters := clients.Dynamic.Resource(schema.GroupVersionResource{Group: "core.kcp.io", Version: "v1alpha1", Resource: "logicalclusters"})
	if err := logicalClusters.Delete(ctx, "cluster", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("delete: %v, want a refusal", err)
	}
	if err := logicalClusters.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("delete the collection: %v, want a refusal", err)
	}
}

// A Workspace that a version before stored is served in kcp's words, found by its phase, and stored as before when it changes,
// so that such a version may serve or lead again.
func TestRowsOfEarlierVersions(t *testing.T) {
	clients, etcd := start(t)
	ctx := client.In(context.Background(), shop)
	const key = "/registry/tenancy.kcp.io/workspaces/shop/team"
	const row = `{"kind":"Workspace","apiVersion":"tenancy.kcp.io/v1alpha1","metadata":{"name":"team","uid":"1a3b02d8-7af9-4c8a-9a52-9d7f5cfb5d0f",` +
		`"generation":2,"creationTimestamp":"2026-01-02T03:04:05Z","annotations":{"experimental.tenancy.kcp.io/owner":"ann"},"finalizers":["tenancy.kcp.io/logicalcluster"]},` +
		`"spec":{"type":{"name":"universal","path":"root"},"cluster":"2x6qkfhw7d3mzpbl","URL":"https://127.0.0.1:6443/clusters/root:team"},` +
		`"status":{"phase":"Ready","conditions":[{"type":"Ready","status":"True","observedGeneration":2,"lastTransitionTime":"2026-01-02T03:04:06Z","reason":"Ready","message":""}]}}` + "\n"
	_, err := etcd.Put(ctx, key, row)
	must(t, err)

	found := &tenancyv1alpha1.WorkspaceList{}
	for found.Items == nil && ctx.Err() == nil { // until the watch cache has it
		must(t, clients.Objects.List(ctx, found, ctrlclient.MatchingLabels{tenancyv1alpha1.PhaseLabel: "Ready"}))
	}
	w := &found.Items[0]
	if tenancyv1alpha1.OwnerOf(w) != "ann" || w.Annotations[tenancyv1alpha1.OwnerAnnotation] != `{"username":"ann"}` || w.Labels[tenancyv1alpha1.PhaseLabel] != "Ready" ||
		!meta.IsStatusConditionTrue(w.Status.Conditions, tenancyv1alpha1.WorkspaceScheduled) || !meta.IsStatusConditionTrue(w.Status.Conditions, tenancyv1alpha1.WorkspaceInitialized) {
		t.Errorf("it is served as %+v", w)
	}
	version := w.ResourceVersion
	must(t, clients.Objects.Update(ctx, w))
	if w.ResourceVersion != version {
		t.Errorf("an update that changes nothing went from version %s to %s", version, w.ResourceVersion)
	}
	w.Labels["mine"] = "x"
	must(t, clients.Objects.Update(ctx, w))
	if w.Labels[tenancyv1alpha1.PhaseLabel] != "Ready" {
		t.Errorf("labels after an update: %v", w.Labels)
	}
	rows, err := etcd.Get(ctx, key)
	must(t, err)
	var stored, want tenancyv1alpha1.Workspace
	must(t, json.Unmarshal(rows.Kvs[0].Value, &stored))
	must(t, json.Unmarshal([]byte(row), &want))
	want.Labels, stored.ManagedFields = map[string]string{"mine": "x"}, nil
	if diff := cmp.Diff(want, stored); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
}
