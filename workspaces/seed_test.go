package workspaces_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/workspaces"
)

// newRows are those of a new workspace, without its name.
var newRows = []string{
	"/registry/clusterrolebindings/workspace-admin",
	"/registry/configmaps/default/kube-root-ca.crt",
	"/registry/configmaps/kube-system/kube-root-ca.crt",
	"/registry/core.kcp.io/logicalclusters/cluster",
	"/registry/namespaces/default",
	"/registry/namespaces/kube-system",
	"/registry/serviceaccounts/default/default",
	"/registry/serviceaccounts/kube-system/default",
}

// newRowsProblem is empty if a logical cluster holds what a new workspace does and nothing else.
func (h *hub) newRowsProblem(cluster logicalcluster.Name) string {
	rows := h.rows(cluster)
	for i := range rows {
		rows[i] = strings.Replace(rows[i], "/"+string(cluster)+"/", "/", 1)
	}
	slices.Sort(rows)
	return cmp.Diff(newRows, rows)
}

func (h *hub) revision() int64 {
	h.t.Helper()
	got, err := h.etcd.Get(h.ctx, "/none")
	must(h.t, err)
	return got.Header.Revision
}

// A new workspace is three writes: its Workspace, and two transactions. Nobody adds to it afterwards.
func TestNewWorkspaceIsThreeWrites(t *testing.T) {
	const n = 20
	h := startHub(t)
	eventually(t, "what the server itself has is complete", func() (problem string) {
		for _, cluster := range []logicalcluster.Name{workspaces.Root, workspaces.SystemAdmin} {
			for _, ns := range []string{"default", "kube-system"} { // the ConfigMap is the last that a namespace gets
				if _, err := h.clients.Kube.CoreV1().ConfigMaps(ns).Get(client.In(h.ctx, cluster), "kube-root-ca.crt", metav1.GetOptions{}); err != nil {
					problem += err.Error() + "; "
				}
			}
		}
		return problem
	})
	before := h.revision()
	var last logicalcluster.Name
	for i := range n {
		last = logicalcluster.Name(h.create(h.clients, workspaces.Root, fmt.Sprintf("w%d", i)).Spec.Cluster)
	}
	if writes := h.revision() - before; writes != 3*n {
		t.Errorf("%d workspaces took %d writes, want three for each", n, writes)
	}
	if diff := h.newRowsProblem(last); diff != "" {
		t.Errorf("rows of a new workspace (-want +got):\n%s", diff)
	}
}

// What a workspace consists of is the same whether it was made by transactions or by requests, but for who is noted to
// have written it.
func TestSeedIsAsRequests(t *testing.T) {
	h := startHub(t)
	ann := h.person("ann")
	never := func(context.Context, ctrlclient.Object, ...ctrlclient.Object) (bool, error) { return false, nil }
	read := func(w *tenancyv1alpha1.Workspace, name string) []string {
		cluster := logicalcluster.Name(w.Spec.Cluster)
		eventually(t, name+" is complete", func() string { return h.newRowsProblem(cluster) })
		objects := []ctrlclient.Object{
			&tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}},
			&corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: "cluster"}},
			&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "workspace-admin"}},
		}
		for _, ns := range []string{"default", "kube-system"} {
			objects = append(objects,
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}},
				&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "default"}},
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "kube-root-ca.crt"}})
		}
		var out []string
		for i, o := range objects {
			in := cluster
			if i == 0 {
				in = workspaces.Root
			}
			must(t, h.clients.Objects.Get(client.In(h.ctx, in), ctrlclient.ObjectKeyFromObject(o), o))
			if lcctx.NameFrom(o) != in || o.GetUID() == "" || o.GetCreationTimestamp() == (metav1.Time{}) || o.GetResourceVersion() == "" {
				t.Errorf("%T %q of %s: %+v", o, o.GetName(), in, o)
			}
			o.SetUID("")
			o.SetResourceVersion("")
			o.SetCreationTimestamp(metav1.Time{})
			o.SetManagedFields(nil)
			switch o := o.(type) {
			case *tenancyv1alpha1.Workspace:
				for i := range o.Status.Conditions {
					o.Status.Conditions[i].LastTransitionTime = metav1.Time{}
				}
			case *corev1alpha1.LogicalCluster:
				if o.Spec.Owner == nil || o.Spec.Owner.UID != w.UID {
					t.Fatalf("owner of %s: %+v, want UID %q", name, o.Spec.Owner, w.UID)
				}
				o.Spec.Owner.UID = ""
			}
			text, err := json.MarshalIndent(o, "", " ")
			must(t, err)
			out = append(out, strings.NewReplacer(string(cluster), "CLUSTER", name, "NAME").Replace(fmt.Sprintf("%T %s", o, text)))
		}
		return out
	}
	seeded := read(h.create(ann, workspaces.Root, "seeded"), "seeded")
	h.onWriteTogether(never)
	requested := read(h.create(ann, workspaces.Root, "requested"), "requested")
	if diff := cmp.Diff(requested, seeded); diff != "" {
		t.Errorf("(-by requests +seeded)\n%s", diff)
	}
}

// Whatever a process had written when it died or lost etcd, and whether it knew or not, the workspace is completed.
func TestSeedResumes(t *testing.T) {
	h := startHub(t)
	ann := h.person("ann")
	broken := errors.New("etcd went away")
	for i, tc := range []struct {
		reason string
		call   int // that goes wrong
		write  bool
		result bool
		err    error
	}{
		{"died before the first transaction", 1, false, false, broken},
		{"died after the first, whose answer was lost", 1, true, false, broken},
		{"died before the second", 2, false, false, broken},
		{"died after the second, whose answer was lost", 2, true, false, broken},
		{"found something in the way of the first", 1, false, false, nil},
		{"found something in the way of the second", 2, false, false, nil},
	} {
		name := fmt.Sprintf("w%d", i)
		calls := 0
		h.onWriteTogether(func(ctx context.Context, while ctrlclient.Object, objects ...ctrlclient.Object) (bool, error) {
			if calls++; calls != tc.call { // one workspace at a time
				return h.server.WriteTogether(ctx, while, objects...)
			}
			if tc.write {
				if written, err := h.server.WriteTogether(ctx, while, objects...); !written || err != nil {
					t.Errorf("%s: written %v, %v", tc.reason, written, err)
				}
			}
			return tc.result, tc.err
		})
		w := h.create(ann, workspaces.Root, name)
		cluster := logicalcluster.Name(w.Spec.Cluster)
		if err := ann.Objects.Create(client.In(h.ctx, cluster), configMap("cm")); err != nil {
			t.Errorf("%s: the owner cannot use what is Ready: %v", tc.reason, err)
		}
		must(t, ann.Objects.Delete(client.In(h.ctx, cluster), configMap("cm")))
		eventually(t, name+" is complete", func() string { return h.newRowsProblem(cluster) })
		if w.Spec.URL != h.server.URL()+"/clusters/root:"+name || w.Generation != meta.FindStatusCondition(w.Status.Conditions, tenancyv1alpha1.WorkspaceReady).ObservedGeneration {
			t.Errorf("%s: URL %q, generation %d, conditions %v", tc.reason, w.Spec.URL, w.Generation, w.Status.Conditions)
		}
		if calls < tc.call {
			t.Errorf("%s: %d transactions only", tc.reason, calls)
		}
		h.remove(workspaces.Root, name)
		h.gone(workspaces.Root, name)
		if rows := h.rows(cluster); len(rows) > 0 {
			t.Errorf("%s: rows left: %v", tc.reason, rows)
		}
	}
}

// Nothing that people do to a Workspace while it is made is lost, and nothing is made for one that is gone.
func TestSeedMeetsChanges(t *testing.T) {
	h := startHub(t)
	inRoot := client.In(h.ctx, workspaces.Root)
	for _, call := range []int{1, 2} {
		name := fmt.Sprintf("w%d", call)
		calls := 0
		h.onWriteTogether(func(ctx context.Context, while ctrlclient.Object, objects ...ctrlclient.Object) (bool, error) {
			if calls++; calls == call {
				w := &tenancyv1alpha1.Workspace{}
				must(t, h.clients.Objects.Get(inRoot, types.NamespacedName{Name: name}, w))
				metav1.SetMetaDataAnnotation(&w.ObjectMeta, "mine", "x")
				must(t, h.clients.Objects.Update(inRoot, w))
				written, err := h.server.WriteTogether(ctx, while, objects...)
				if written || err != nil {
					t.Errorf("transaction %d on an older Workspace: written %v, %v", call, written, err)
				}
				return written, err
			}
			return h.server.WriteTogether(ctx, while, objects...)
		})
		w := h.create(h.clients, workspaces.Root, name)
		if w.Annotations["mine"] != "x" {
			t.Errorf("what was annotated before transaction %d is lost: %v", call, w.Annotations)
		}
		eventually(t, name+" is complete", func() string { return h.newRowsProblem(logicalcluster.Name(w.Spec.Cluster)) })
	}

	// An informer that is behind shows a Workspace that is gone.
	var cluster logicalcluster.Name
	tried := make(chan struct{})
	h.onWriteTogether(func(ctx context.Context, while ctrlclient.Object, objects ...ctrlclient.Object) (bool, error) {
		w := &tenancyv1alpha1.Workspace{}
		must(t, h.clients.Objects.Get(inRoot, types.NamespacedName{Name: "vanishing"}, w))
		cluster = logicalcluster.Name(w.Spec.Cluster)
		w.Finalizers = nil
		must(t, h.clients.Objects.Update(inRoot, w))
		must(t, h.clients.Objects.Delete(inRoot, w))
		h.onWriteTogether(nil)
		written, err := h.server.WriteTogether(ctx, while, objects...)
		if written || err != nil {
			t.Errorf("for a Workspace that is gone: written %v, %v", written, err)
		}
		close(tried)
		return written, err
	})
	must(t, h.clients.Objects.Create(inRoot, &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "vanishing"}}))
	<-tried
	h.gone(workspaces.Root, "vanishing")
	h.create(h.clients, workspaces.Root, "next") // by then the other has been dealt with, or is about to
	if rows := h.rows(cluster); len(rows) > 0 {
		t.Errorf("rows of a Workspace that is gone: %v", rows)
	}
}

// Who applies a Workspace stays the manager of what was applied.
func TestSeedKeepsManagers(t *testing.T) {
	h := startHub(t)
	body := `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"shop","labels":{"team":"a"}}}`
	err := h.clients.Kube.CoreV1().RESTClient().Patch(types.ApplyPatchType).AbsPath("/apis/tenancy.kcp.io/v1alpha1/workspaces/shop").
		Param("fieldManager", "ann").SetHeader("Accept", "application/json").Body([]byte(body)).Do(client.In(h.ctx, workspaces.Root)).Error()
	must(t, err)
	w := h.ready(workspaces.Root, "shop")
	if !slices.ContainsFunc(w.ManagedFields, func(m metav1.ManagedFieldsEntry) bool {
		return m.Manager == "ann" && m.Operation == metav1.ManagedFieldsOperationApply && strings.Contains(string(m.FieldsV1.GetRawBytes()), "team")
	}) {
		t.Errorf("managers: %+v", w.ManagedFields)
	}
}
