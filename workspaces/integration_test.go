package workspaces_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	embeddedetcd "atoll.dev/atoll/embedded-etcd"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server"
	"atoll.dev/atoll/server/namespaces"
	"atoll.dev/atoll/test/framework"
	"atoll.dev/atoll/workspaces"
)

const patience = 20 * time.Second

// hub is a server in this process with the controllers of workspaces and namespaces.
type hub struct {
	t         *testing.T
	dir       string // of the server
	ctx       context.Context
	etcd      *clientv3.Client
	server    *server.Server
	clients   *client.Clients
	informers *client.Informers // of the controllers
	directory *workspaces.Directory
	// deleteData is called by the controller instead of the server's own, if set before the deletion.
	mu         sync.Mutex
	deleteData deleteData
	// together is what the controller writes by, instead of the server's own, if set before.
	together writeTogether
}

type deleteData func(context.Context, logicalcluster.Name) (lcctx.Held, error)

type writeTogether func(ctx context.Context, while ctrlclient.Object, objects ...ctrlclient.Object) (bool, error)

// anywhere is a placer to which everything would run somewhere.
type anywhere struct{ framework.NoPods }

func (anywhere) WhyNowhere(logicalcluster.Name, schema.GroupResource, string, string, map[string]string) string {
	return ""
}

func (anywhere) RefusedPods(logicalcluster.Name, schema.GroupResource, string, ctrlclient.Object) ([]string, error) {
	return nil, nil
}

func (anywhere) MissingClasses(logicalcluster.Name, schema.GroupResource, string, ctrlclient.Object) []string {
	return nil
}

func (anywhere) PlacedOn(types.UID) (placements, workspaces int) { return 0, 0 }

// No syncer runs outside this process.
func (anywhere) Token(context.Context, logicalcluster.Name, string) (string, bool, error) {
	return "", false, nil
}

func (anywhere) Accepts(logicalcluster.Name, string) bool { return false }

func (anywhere) WaitSynced(context.Context) error { return nil }

func startHub(t *testing.T) *hub {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	dir := t.TempDir()
	etcd, err := embeddedetcd.Start(ctx, embeddedetcd.Options{Dir: dir + "/etcd"})
	must(t, err)
	o := server.NewOptions()
	o.RootDirectory, o.SecurePort, o.BindAddress = dir, 0, net.IPv4(127, 0, 0, 1)
	o.TokenAuthFile = dir + "/tokens.csv"
	must(t, os.WriteFile(o.TokenAuthFile, []byte(tokens), 0o600))
	s, err := server.New(ctx, o, etcd.Client)
	must(t, err)
	clients, err := client.New(s.LoopbackConfig())
	must(t, err)
	informers, err := client.NewInformers(clients)
	must(t, err)
	directory, err := workspaces.NewDirectory(clients, informers)
	must(t, err)
	s.Join(directory, anywhere{}, anywhere{}, anywhere{})
	h := &hub{t: t, dir: dir, ctx: ctx, etcd: etcd.Client, server: s, clients: clients, informers: informers, directory: directory}
	ns, err := namespaces.New(clients, informers, namespaces.Options{RootCA: s.CACertificate(), Read: s.Read, Custom: s.CustomIn})
	must(t, err)
	ws, err := workspaces.New(clients, informers, workspaces.Options{
		URLBase: s.URL(), DeleteData: h.delete, Held: s.Held, DeleteRest: s.DeleteCluster,
		WriteTogether: h.writeTogether, Read: s.Read, NamespaceContent: ns.Content,
	})
	must(t, err)

	serving, stopServing := context.WithCancel(context.Background())
	var servers, controllers sync.WaitGroup
	servers.Go(func() {
		if err := s.Run(serving); err != nil {
			t.Errorf("server: %v", err)
		}
	})
	controllers.Go(func() { informers.Run(ctx) })
	controllers.Go(func() { _ = ws.Run(ctx) })
	controllers.Go(func() { _ = ns.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		controllers.Wait()
		stopServing()
		servers.Wait()
		must(t, etcd.Stop())
	})
	must(t, s.WaitReady(ctx))
	must(t, workspaces.Bootstrap(ctx, clients, s.URL()))
	must(t, workspaces.Bootstrap(ctx, clients, s.URL())) // as at the next start
	must(t, informers.WaitSynced(ctx))
	return h
}

func (h *hub) delete(ctx context.Context, cluster logicalcluster.Name) (lcctx.Held, error) {
	h.mu.Lock()
	f := h.deleteData
	h.mu.Unlock()
	if f != nil {
		return f(ctx, cluster)
	}
	return h.server.DeleteClusterData(ctx, cluster)
}

func (h *hub) onDelete(f deleteData) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deleteData = f
}

func (h *hub) writeTogether(ctx context.Context, while ctrlclient.Object, objects ...ctrlclient.Object) (bool, error) {
	h.mu.Lock()
	f := h.together
	h.mu.Unlock()
	if f != nil {
		return f(ctx, while, objects...)
	}
	return h.server.WriteTogether(ctx, while, objects...)
}

func (h *hub) onWriteTogether(f writeTogether) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.together = f
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually fails the test unless check returns no problem within patience.
func eventually(t testing.TB, what string, check func() (problem string)) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		problem := check()
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: still after %s: %s", what, patience, problem)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// create makes a Workspace and waits until it is Ready.
func (h *hub) create(clients *client.Clients, in logicalcluster.Name, name string) *tenancyv1alpha1.Workspace {
	h.t.Helper()
	w := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	must(h.t, clients.Objects.Create(client.In(h.ctx, in), w))
	return h.ready(in, name)
}

func (h *hub) ready(in logicalcluster.Name, name string) *tenancyv1alpha1.Workspace {
	h.t.Helper()
	w := &tenancyv1alpha1.Workspace{}
	eventually(h.t, "workspace "+name+" gets ready", func() string {
		must(h.t, h.clients.Objects.Get(client.In(h.ctx, in), types.NamespacedName{Name: name}, w))
		if w.Status.Phase != corev1alpha1.LogicalClusterPhaseReady {
			return fmt.Sprintf("%+v", w.Status)
		}
		return ""
	})
	return w
}

// empty takes from a logical cluster everything it was born with, and returns when the controllers have heard that its LogicalCluster
// went. They may have made another: one that sees the Workspace as it was before it got Ready does.
func (h *hub) empty(cluster logicalcluster.Name) {
	h.t.Helper()
	old := &corev1alpha1.LogicalCluster{}
	must(h.t, h.clients.Objects.Get(client.In(h.ctx, cluster), types.NamespacedName{Name: corev1alpha1.LogicalClusterName}, old))
	must(h.t, h.server.DeleteCluster(h.ctx, cluster))
	eventually(h.t, "the controllers see that logical cluster "+string(cluster)+" is gone", func() string {
		lc, ok := h.informers.LogicalClusters.Get(client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName})
		if ok && lc.UID == old.UID {
			return fmt.Sprintf("there is the one of resourceVersion %s", lc.ResourceVersion)
		}
		return ""
	})
}

func (h *hub) remove(in logicalcluster.Name, name string) {
	h.t.Helper()
	w := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	must(h.t, h.clients.Objects.Delete(client.In(h.ctx, in), w))
}

func (h *hub) gone(in logicalcluster.Name, name string) {
	h.t.Helper()
	eventually(h.t, "workspace "+name+" goes", func() string {
		w := &tenancyv1alpha1.Workspace{}
		err := h.clients.Objects.Get(client.In(h.ctx, in), types.NamespacedName{Name: name}, w)
		if apierrors.IsNotFound(err) {
			return ""
		}
		must(h.t, err)
		return fmt.Sprintf("%+v", w.Status)
	})
}

// coldDirectory is one whose informers have seen nothing yet, so that it has to read everything.
func (h *hub) coldDirectory() *workspaces.Directory {
	h.t.Helper()
	informers, err := client.NewInformers(h.clients)
	must(h.t, err)
	d, err := workspaces.NewDirectory(h.clients, informers)
	must(h.t, err)
	return d
}

// rows returns the keys in etcd that belong to a logical cluster.
func (h *hub) rows(cluster logicalcluster.Name) []string {
	h.t.Helper()
	all, err := h.etcd.Get(h.ctx, "/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	must(h.t, err)
	var rows []string
	for _, kv := range all.Kvs {
		if strings.Contains(string(kv.Key), "/"+string(cluster)+"/") {
			rows = append(rows, string(kv.Key))
		}
	}
	return rows
}

// person returns clients of somebody who may do anything in root.
func (h *hub) person(name string, groups ...string) *client.Clients {
	h.t.Helper()
	_, err := h.clients.Kube.RbacV1().ClusterRoleBindings().Create(client.In(h.ctx, workspaces.Root), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: name}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}, metav1.CreateOptions{})
	must(h.t, err)
	cfg := rest.CopyConfig(h.server.LoopbackConfig())
	cfg.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: append(groups, "system:authenticated")}
	clients, err := client.New(cfg)
	must(h.t, err)
	eventually(h.t, name+" may use root", func() string {
		err := clients.Objects.List(client.In(h.ctx, workspaces.Root), &tenancyv1alpha1.WorkspaceList{})
		if err != nil {
			return err.Error()
		}
		return ""
	})
	return clients
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
}

// A workspace can be used by its owner, by name and by path, at the moment at which it is Ready, and by nobody else.
func TestReadyMeansUsable(t *testing.T) {
	h := startHub(t)
	ann, bob := h.person("ann"), h.person("bob")
	for i := range 20 {
		name := fmt.Sprintf("shop-%d", i)
		path := logicalcluster.NewPath("root:" + name)
		// Probing before must not hide the workspace afterwards.
		if _, err := h.directory.Resolve(h.ctx, path); !errors.Is(err, workspaces.ErrNotFound) {
			t.Fatalf("resolve %q before it exists: %v", path, err)
		}
		w := h.create(ann, workspaces.Root, name)
		cluster := logicalcluster.Name(w.Spec.Cluster)
		if got, err := h.directory.Resolve(h.ctx, path); err != nil || got != cluster {
			t.Fatalf("resolve %q: %q, %v, want %q", path, got, err, cluster)
		}
		must(t, ann.Objects.Create(client.In(h.ctx, cluster), configMap("cm")))
		if err := bob.Objects.Create(client.In(h.ctx, cluster), configMap("bobs")); !apierrors.IsForbidden(err) {
			t.Fatalf("create as somebody else: %v, want a refusal", err)
		}
		if w.Annotations[tenancyv1alpha1.OwnerAnnotation] != `{"username":"ann"}` || w.Spec.URL != h.server.URL()+"/clusters/root:"+name {
			t.Fatalf("owner %q, URL %q", w.Annotations[tenancyv1alpha1.OwnerAnnotation], w.Spec.URL)
		}
	}
}

// Deleting a workspace deletes those below it and leaves no row of any of them; its name and path can be used again.
func TestDeleteTree(t *testing.T) {
	h := startHub(t)
	var clusters []logicalcluster.Name
	for range 3 {
		at := workspaces.Root
		for _, name := range []string{"org", "team", "app"} {
			at = logicalcluster.Name(h.create(h.clients, at, name).Spec.Cluster)
			must(t, h.clients.Objects.Create(client.In(h.ctx, at), &corev1.ResourceQuota{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "q"},
				Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/configmaps": resource.MustParse("10")}},
			}))
			must(t, h.clients.Objects.Create(client.In(h.ctx, at), configMap("cm")))
			clusters = append(clusters, at)
		}
		path := logicalcluster.NewPath("root:org:team:app")
		if got, err := h.directory.Resolve(h.ctx, path); err != nil || got != at {
			t.Fatalf("resolve %q: %q, %v, want %q", path, got, err, at)
		}
		cold := h.coldDirectory()
		if got, err := cold.Resolve(h.ctx, path); err != nil || got != at {
			t.Fatalf("resolve %q from the store: %q, %v, want %q", path, got, err, at)
		}
		if _, err := cold.Resolve(h.ctx, logicalcluster.NewPath("root:org:nobody:app")); !errors.Is(err, workspaces.ErrNotFound) {
			t.Fatalf("resolve what does not exist from the store: %v", err)
		}
		if got, err := cold.Resolve(h.ctx, logicalcluster.NewPath(string(at))); !errors.Is(err, workspaces.ErrNotFound) {
			t.Fatalf("resolve a name, which is no path: %q, %v", got, err)
		}
		h.remove(workspaces.Root, "org")
		h.gone(workspaces.Root, "org")
		for _, cluster := range clusters {
			if rows := h.rows(cluster); len(rows) > 0 {
				t.Errorf("rows left of %q: %v", cluster, rows)
			}
			eventually(t, "directory forgets "+string(cluster), func() string {
				if _, ok := h.directory.Known(cluster); ok {
					return "it is still known"
				}
				return ""
			})
		}
	}
}

// A workspace stays until what it runs is gone from all mirrors; meanwhile it says so and takes nothing new.
func TestDeleteWaitsForLeaves(t *testing.T) {
	h := startHub(t)
	admin := h.person("admin", "system:masters")
	cluster := logicalcluster.Name(h.create(h.clients, workspaces.Root, "shop").Spec.Cluster)
	mirror := lcctx.NewName()
	inMirror, inShop := client.In(h.ctx, mirror), client.In(h.ctx, cluster)
	must(t, h.clients.Objects.Create(inMirror, &corev1alpha1.LogicalCluster{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster"}, Spec: corev1alpha1.LogicalClusterSpec{
			Use: corev1alpha1.LogicalClusterUseMirror,
			Owner: &corev1alpha1.LogicalClusterOwner{
				APIVersion: workloadv1alpha1.GroupVersion.String(), Resource: "synctargets", Name: "east", Cluster: "root", UID: "u"},
		}}))
	labels := map[string]string{workloadv1alpha1.WorkspaceLabel: string(cluster)}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default-0123456789", Labels: labels}}
	must(t, h.clients.Objects.Create(inMirror, ns))
	leaf := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "leaf", Namespace: ns.Name, Labels: labels, Finalizers: []string{workloadv1alpha1.SyncerFinalizer}}}
	must(t, h.clients.Objects.Create(inMirror, leaf))
	// A label is no leaf: neither the workspace's own nor another tenant's objects are waited for.
	for _, workspace := range []logicalcluster.Name{cluster, workspaces.Root} {
		claims := configMap("claims")
		claims.Labels = labels
		must(t, h.clients.Objects.Create(client.In(h.ctx, workspace), claims))
	}
	p := &placementv1alpha1.Placement{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: placementv1alpha1.PlacementSpec{
		Namespace: "default", Clusters: []placementv1alpha1.PlacedCluster{{Name: "west", UID: "v", Workspace: "root", Mirror: "other", Weight: 1}}}}
	must(t, h.clients.Objects.Create(inShop, p))

	h.remove(workspaces.Root, "shop")
	eventually(t, "the workspace says what it waits for and has emptied the placement", func() string {
		w := &tenancyv1alpha1.Workspace{}
		must(t, h.clients.Objects.Get(client.In(h.ctx, workspaces.Root), types.NamespacedName{Name: "shop"}, w))
		must(t, h.clients.Objects.Get(inShop, types.NamespacedName{Name: "default"}, p))
		c := meta.FindStatusCondition(w.Status.Conditions, tenancyv1alpha1.WorkspaceContentDeleted)
		if w.Status.Phase != corev1alpha1.LogicalClusterPhaseDeleting || w.Labels[tenancyv1alpha1.PhaseLabel] != "Deleting" || c == nil || !strings.HasSuffix(c.Message, "physical clusters to remove what runs there: east") || len(p.Spec.Clusters) > 0 {
			return fmt.Sprintf("%+v, %+v", w.Status, p.Spec)
		}
		return ""
	})
	if !h.directory.Terminating(cluster) {
		t.Error("the directory does not call it terminating")
	}
	if _, err := h.directory.Resolve(h.ctx, logicalcluster.NewPath("root:shop")); err != nil {
		t.Errorf("a workspace that is going can not be found any more: %v", err)
	}
	if err := admin.Objects.Create(inShop, configMap("late")); !apierrors.IsForbidden(err) {
		t.Errorf("a workspace that is going was asked to take a new object: %v, want a refusal", err)
	}
	if err := h.clients.Objects.Delete(inShop, &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: "cluster"}}, ctrlclient.DryRunAll); err != nil {
		t.Errorf("the system may delete the LogicalCluster at the end: %v", err)
	}

	// What splitter and syncer do.
	must(t, h.clients.Objects.Delete(inMirror, ns))
	eventually(t, "the mirror's namespace waits for the leaf and says so", func() string {
		must(t, h.clients.Objects.Get(inMirror, types.NamespacedName{Name: ns.Name}, ns))
		for _, c := range ns.Status.Conditions {
			if c.Type == corev1.NamespaceFinalizersRemaining && strings.Contains(c.Message, workloadv1alpha1.SyncerFinalizer) {
				return ""
			}
		}
		return fmt.Sprintf("%+v", ns.Status)
	})
	must(t, h.clients.Objects.Get(inMirror, types.NamespacedName{Namespace: ns.Name, Name: leaf.Name}, leaf))
	leaf.Finalizers = nil
	must(t, h.clients.Objects.Update(inMirror, leaf))
	h.gone(workspaces.Root, "shop")
	if rows := h.rows(cluster); len(rows) > 0 {
		t.Errorf("rows left: %v", rows)
	}
}

// Whatever a process had done when it died, the next one ends with the same workspace, in the logical cluster whose name
// was written first.
func TestCreateResumes(t *testing.T) {
	h := startHub(t)
	w := h.create(h.clients, workspaces.Root, "shop")
	cluster := logicalcluster.Name(w.Spec.Cluster)
	inShop, inRoot := client.In(h.ctx, cluster), client.In(h.ctx, workspaces.Root)
	for _, tc := range []struct {
		reason string
		undo   func()
	}{
		{"died before it said Ready", func() {}},
		{"died before it bound the owner", func() {
			must(t, h.clients.Kube.RbacV1().ClusterRoleBindings().Delete(inShop, "workspace-admin", metav1.DeleteOptions{}))
		}},
		{"died before it made anything", func() { h.empty(cluster) }},
	} {
		tc.undo()
		must(t, h.clients.Objects.Get(inRoot, types.NamespacedName{Name: "shop"}, w))
		w.Status.Phase = corev1alpha1.LogicalClusterPhaseScheduling
		must(t, h.clients.Objects.Status().Update(inRoot, w))
		w = h.ready(workspaces.Root, "shop")
		if w.Spec.Cluster != string(cluster) {
			t.Errorf("%s: logical cluster is %q, was %q", tc.reason, w.Spec.Cluster, cluster)
		}
		for _, ns := range []string{"default", "kube-system"} {
			if _, err := h.clients.Kube.CoreV1().Namespaces().Get(inShop, ns, metav1.GetOptions{}); err != nil {
				t.Errorf("%s: %v", tc.reason, err)
			}
		}
		if _, err := h.clients.Kube.RbacV1().ClusterRoleBindings().Get(inShop, "workspace-admin", metav1.GetOptions{}); err != nil {
			t.Errorf("%s: %v", tc.reason, err)
		}
	}
}

// A deletion that fails half-way, after the LogicalCluster went with a part of the data, still leaves nothing.
func TestDeleteResumes(t *testing.T) {
	h := startHub(t)
	cluster := logicalcluster.Name(h.create(h.clients, workspaces.Root, "shop").Spec.Cluster)
	calls := 0
	h.onDelete(func(ctx context.Context, c logicalcluster.Name) (lcctx.Held, error) {
		calls++
		if calls > 2 {
			return h.server.DeleteClusterData(ctx, c)
		}
		for _, row := range h.rows(c) {
			if strings.Contains(row, "logicalclusters") {
				if _, err := h.etcd.Delete(ctx, row); err != nil {
					return lcctx.Held{}, err
				}
			}
		}
		return lcctx.Held{}, errors.New("etcd went away")
	})
	h.remove(workspaces.Root, "shop")
	h.gone(workspaces.Root, "shop")
	if rows := h.rows(cluster); len(rows) > 0 || calls < 3 {
		t.Errorf("%d calls, rows left: %v", calls, rows)
	}
}

// TestDeleteTakesWhatComesLast: of who has not heard yet that the workspace goes, when its data has gone.
func TestDeleteTakesWhatComesLast(t *testing.T) {
	h := startHub(t)
	cluster := logicalcluster.Name(h.create(h.clients, workspaces.Root, "shop").Spec.Cluster)
	late := 0
	h.onDelete(func(ctx context.Context, c logicalcluster.Name) (lcctx.Held, error) {
		held, err := h.server.DeleteClusterData(ctx, c)
		if err != nil || !held.Empty() {
			return held, err
		}
		if err := h.clients.Objects.Create(client.In(ctx, c), configMap("late")); !apierrors.IsNotFound(err) {
			t.Errorf("created in a namespace that has gone: %v", err)
		}
		late++
		return held, h.clients.Objects.Create(client.In(ctx, c), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "late"}})
	})
	h.remove(workspaces.Root, "shop")
	h.gone(workspaces.Root, "shop")
	if rows := h.rows(cluster); len(rows) > 0 || late == 0 {
		t.Errorf("%d came late, rows left: %v", late, rows)
	}
}

// What every namespace of a workspace has comes by itself and comes back; a mirror's has nothing.
func TestNamespaceDefaults(t *testing.T) {
	h := startHub(t)
	cluster := logicalcluster.Name(h.create(h.clients, workspaces.Root, "shop").Spec.Cluster)
	inShop := client.In(h.ctx, cluster)
	check := func(why string) {
		t.Helper()
		for _, ns := range []string{"default", "kube-system", "web"} {
			eventually(t, why+" in "+ns, func() string {
				if _, err := h.clients.Kube.CoreV1().ServiceAccounts(ns).Get(inShop, "default", metav1.GetOptions{}); err != nil {
					return err.Error()
				}
				cm, err := h.clients.Kube.CoreV1().ConfigMaps(ns).Get(inShop, "kube-root-ca.crt", metav1.GetOptions{})
				if err != nil {
					return err.Error()
				}
				return cmp.Diff(map[string]string{"ca.crt": string(h.server.CACertificate())}, cm.Data)
			})
		}
	}
	must(t, h.clients.Objects.Create(inShop, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "web"}}))
	check("they come")
	core := h.clients.Kube.CoreV1()
	must(t, core.ServiceAccounts("web").Delete(inShop, "default", metav1.DeleteOptions{}))
	must(t, core.ConfigMaps("default").Delete(inShop, "kube-root-ca.crt", metav1.DeleteOptions{}))
	check("they come back after they were deleted")
	cm, err := core.ConfigMaps("web").Get(inShop, "kube-root-ca.crt", metav1.GetOptions{})
	must(t, err)
	cm.Data["ca.crt"] = "mine"
	_, err = core.ConfigMaps("web").Update(inShop, cm, metav1.UpdateOptions{})
	must(t, err)
	check("they are put right")

	mirror := lcctx.NewName()
	inMirror := client.In(h.ctx, mirror)
	must(t, h.clients.Objects.Create(inMirror, &corev1alpha1.LogicalCluster{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster"}, Spec: corev1alpha1.LogicalClusterSpec{Use: corev1alpha1.LogicalClusterUseMirror}}))
	must(t, h.clients.Objects.Create(inMirror, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "web"}}))
	// A namespace that comes later and has its defaults proves that the mirror's was passed by.
	must(t, h.clients.Objects.Create(inShop, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "later"}}))
	eventually(t, "the later namespace has its defaults", func() string {
		if _, err := core.ConfigMaps("later").Get(inShop, "kube-root-ca.crt", metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
	accounts, err := core.ServiceAccounts("").List(inMirror, metav1.ListOptions{})
	must(t, err)
	configMaps, err := core.ConfigMaps("").List(inMirror, metav1.ListOptions{})
	must(t, err)
	if len(accounts.Items)+len(configMaps.Items) > 0 {
		t.Errorf("the mirror has %v and %v", accounts.Items, configMaps.Items)
	}

	must(t, core.Namespaces().Delete(inShop, "web", metav1.DeleteOptions{}))
	eventually(t, "the namespace goes with all it holds", func() string {
		ns, err := core.Namespaces().Get(inShop, "web", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return ""
		}
		must(t, err)
		return fmt.Sprintf("%+v", ns.Status)
	})
	for _, row := range h.rows(cluster) {
		if strings.Contains(row, "/web/") {
			t.Errorf("row left of the namespace: %s", row)
		}
	}
}

// A Workspace that names the logical cluster of another takes nothing of it along.
func TestDeleteLeavesWhatIsAnothers(t *testing.T) {
	h := startHub(t)
	shop := h.create(h.clients, workspaces.Root, "shop")
	cluster := logicalcluster.Name(shop.Spec.Cluster)
	inShop := client.In(h.ctx, cluster)
	must(t, h.clients.Objects.Create(inShop, configMap("cm")))
	for name, named := range map[string]string{"thief": shop.Spec.Cluster, "wrong": "root"} {
		own := h.create(h.clients, workspaces.Root, name).Spec.Cluster
		// The API lets nobody say so: it is immutable.
		all, err := h.etcd.Get(h.ctx, "/", clientv3.WithPrefix())
		must(t, err)
		for _, kv := range all.Kvs {
			if strings.Contains(string(kv.Key), "/workspaces/") && strings.HasSuffix(string(kv.Key), "/"+name) {
				_, err := h.etcd.Put(h.ctx, string(kv.Key), strings.Replace(string(kv.Value), `"cluster":"`+own+`"`, `"cluster":"`+named+`"`, 1))
				must(t, err)
			}
		}
		eventually(t, name+" names another's logical cluster", func() string {
			w := &tenancyv1alpha1.Workspace{}
			must(t, h.clients.Objects.Get(client.In(h.ctx, workspaces.Root), types.NamespacedName{Name: name}, w))
			if w.Spec.Cluster != named {
				return fmt.Sprintf("%+v", w.Spec)
			}
			return ""
		})
		h.remove(workspaces.Root, name)
		h.gone(workspaces.Root, name)
	}
	if _, err := h.clients.Kube.CoreV1().ConfigMaps("default").Get(inShop, "cm", metav1.GetOptions{}); err != nil {
		t.Errorf("what the other workspace holds: %v", err)
	}
	for _, whose := range []logicalcluster.Name{cluster, workspaces.Root} {
		lc := &corev1alpha1.LogicalCluster{}
		must(t, h.clients.Objects.Get(client.In(h.ctx, whose), types.NamespacedName{Name: corev1alpha1.LogicalClusterName}, lc))
		if lc.Status.Phase.Ends() {
			t.Errorf("logical cluster %q is being deleted", whose)
		}
	}
}

// Many come and go at once. How fast is for people to read.
func TestManyWorkspaces(t *testing.T) {
	const n, clients = 300, 16
	h := startHub(t)
	names := make(chan string)
	run := func(do func(name string)) time.Duration {
		began := time.Now()
		var wg sync.WaitGroup
		for range clients {
			wg.Go(func() {
				for name := range names {
					do(name)
				}
			})
		}
		for i := range n {
			names <- fmt.Sprintf("w%d", i)
		}
		close(names)
		wg.Wait()
		names = make(chan string)
		return time.Since(began)
	}
	made := run(func(name string) { h.create(h.clients, workspaces.Root, name) })
	deleted := run(func(name string) { h.remove(workspaces.Root, name); h.gone(workspaces.Root, name) })
	t.Logf("%d workspaces: %.0f/s until ready, %.0f/s until gone", n, n/made.Seconds(), n/deleted.Seconds())
}

// another is a server that starts now on what the hub's has stored. It has no controllers.
func (h *hub) another() *server.Server {
	h.t.Helper()
	o := server.NewOptions()
	o.RootDirectory, o.SecurePort, o.BindAddress, o.TokenAuthFile = h.dir, 0, net.IPv4(127, 0, 0, 1), h.dir+"/tokens.csv"
	s, err := server.New(h.ctx, o, h.etcd)
	must(h.t, err)
	s.Join(h.directory, anywhere{}, anywhere{}, anywhere{})
	serving, stop := context.WithCancel(context.Background())
	var servers sync.WaitGroup
	servers.Go(func() {
		if err := s.Run(serving); err != nil {
			h.t.Errorf("another server: %v", err)
		}
	})
	h.t.Cleanup(func() {
		stop()
		servers.Wait()
	})
	must(h.t, s.WaitReady(h.ctx))
	return s
}
