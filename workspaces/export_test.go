package workspaces_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/workspacefile"
	"atoll.dev/atoll/server"
	"atoll.dev/atoll/server/garbage"
	"atoll.dev/atoll/workspaces"
)

// ask sends a request outside of all logical clusters, as somebody else if who is not "".
func (h *hub) ask(ctx context.Context, method, endpoint, workspace, who string, body []byte) (int, []byte, error) {
	h.t.Helper()
	cfg := rest.CopyConfig(h.server.LoopbackConfig())
	cfg.Impersonate = rest.ImpersonationConfig{UserName: "root", Groups: []string{"system:masters"}}
	if who != "" {
		cfg.Impersonate = rest.ImpersonationConfig{UserName: who, Groups: []string{"system:authenticated"}}
	}
	requests, err := rest.HTTPClientFor(cfg)
	must(h.t, err)
	req, err := http.NewRequestWithContext(ctx, method, cfg.Host+endpoint, bytes.NewReader(body))
	must(h.t, err)
	query := req.URL.Query()
	query.Set(server.WorkspaceParameter, workspace)
	req.URL.RawQuery = query.Encode()
	resp, err := requests.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if why := resp.Trailer.Get(server.BackupErrorTrailer); why != "" {
		h.t.Errorf("%s %s broke off: %s", method, endpoint, why)
	}
	return resp.StatusCode, answer, err
}

func (h *hub) export(workspace string) []byte {
	h.t.Helper()
	code, file, err := h.ask(h.ctx, http.MethodGet, server.ExportPath, workspace, "", nil)
	must(h.t, err)
	if code != http.StatusOK {
		h.t.Fatalf("export %s: %d %s", workspace, code, file)
	}
	return file
}

// file is an export of the given rows.
func (h *hub) file(change func(*workspacefile.Header), rows ...workspacefile.Row) []byte {
	h.t.Helper()
	var b bytes.Buffer
	header := workspacefile.Header{Path: "root:x", Kubernetes: "1.36"}
	if change != nil {
		change(&header)
	}
	w, err := workspacefile.NewWriter(&b, header)
	must(h.t, err)
	for _, r := range rows {
		must(h.t, w.Add(r))
	}
	must(h.t, w.Close())
	return b.Bytes()
}

func (h *hub) imports(workspace string, file []byte) logicalcluster.Name {
	h.t.Helper()
	code, answer, err := h.ask(h.ctx, http.MethodPost, server.ImportPath, workspace, "", file)
	must(h.t, err)
	if code != http.StatusOK {
		h.t.Fatalf("import %s: %d %s", workspace, code, answer)
	}
	return logicalcluster.Name(h.ready(workspaces.Root, strings.TrimPrefix(workspace, "root:")).Spec.Cluster)
}

// collect runs the garbage collector.
func (h *hub) collect() {
	h.t.Helper()
	informers, err := client.NewInformers(h.clients)
	must(h.t, err)
	collector, err := garbage.New(h.clients, informers, garbage.Options{Kinds: h.server.Kinds(), Read: h.server.Read})
	must(h.t, err)
	ctx, cancel := context.WithCancel(h.ctx)
	done := make(chan struct{}, 2)
	go func() { informers.Run(ctx); done <- struct{}{} }()
	go func() { _ = collector.Run(ctx); done <- struct{}{} }()
	h.t.Cleanup(func() { cancel(); <-done; <-done })
}

// furnish fills a logical cluster with what people have.
func (h *hub) furnish(cluster logicalcluster.Name) {
	h.t.Helper()
	ctx := client.In(h.ctx, cluster)
	h.define(cluster)
	w := widget("gear", "shop.example/guard")
	w.Object["spec"] = map[string]any{"teeth": int64(12)}
	_, err := h.clients.Dynamic.Resource(widgets).Create(ctx, w, metav1.CreateOptions{})
	must(h.t, err)
	make := func(obj ctrlclient.Object) { h.t.Helper(); must(h.t, h.clients.Objects.Create(ctx, obj)) }
	make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "web"}})
	// Before its owner in the order of the store, and in an earlier stage of an import.
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "front", Namespace: "web", Annotations: map[string]string{"placement.atoll.dev/clusters": "east", "workload.atoll.dev/root": "stale"}},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](3), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
		},
	}
	make(deployment)
	deployment.Status.Replicas, deployment.Status.ReadyReplicas, deployment.Status.ObservedGeneration = 3, 3, 1
	must(h.t, h.clients.Objects.Status().Update(ctx, deployment))
	make(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "a-owned", Namespace: "web", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "Deployment", Name: "front", UID: deployment.UID},
		}},
	})
	make(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "key", Namespace: "web"}, Data: map[string][]byte{"k": {0, 1, 255}}})
	make(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "front", Namespace: "web"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Selector: map[string]string{"a": "b"}, Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}}},
	})
	make(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "viewer"}, Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"list"}, APIGroups: []string{""}, Resources: []string{"configmaps"}},
		{Verbs: []string{"access"}, NonResourceURLs: []string{"/"}},
	}})
	make(&rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "viewers"},
		Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "vera"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "viewer"},
	})
}

var compared = []schema.GroupVersionResource{
	widgets,
	{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
	{Version: "v1", Resource: "namespaces"},
	{Version: "v1", Resource: "configmaps"},
	{Version: "v1", Resource: "secrets"},
	{Version: "v1", Resource: "services"},
	{Version: "v1", Resource: "serviceaccounts"},
	{Group: "networking.k8s.io", Version: "v1", Resource: "ipaddresses"},
	{Group: "apps", Version: "v1", Resource: "deployments"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
}

// content is what a logical cluster holds of the compared resources, without what an import does not keep.
func (h *hub) content(cluster logicalcluster.Name) map[string]map[string]any {
	h.t.Helper()
	all := map[string]map[string]any{}
	for _, gvr := range compared {
		list, err := h.clients.Dynamic.Resource(gvr).List(client.In(h.ctx, cluster), metav1.ListOptions{})
		if err != nil {
			h.t.Fatalf("list %s in %s: %v", gvr.Resource, cluster, err)
		}
		for _, o := range list.Items {
			if gvr.Resource == "configmaps" && o.GetName() == "kube-root-ca.crt" {
				continue // of the installation
			}
			if o.GetResourceVersion() == "1" || o.GetLabels()["kubernetes.io/bootstrapping"] != "" {
				continue // has no row: every workspace has it
			}
			o.SetResourceVersion("")
			annotations := o.GetAnnotations()
			delete(annotations, logicalcluster.AnnotationKey)
			delete(annotations, "workload.atoll.dev/root")
			o.SetAnnotations(annotations)
			if gvr.Resource == "deployments" || gvr.Resource == "services" {
				unstructured.RemoveNestedField(o.Object, "status")
			}
			all[gvr.Resource+" "+o.GetNamespace()+"/"+o.GetName()] = o.Object
		}
	}
	return all
}

// An import is the workspace that was exported: in the same installation, where UIDs are there twice, and in another.
func TestExportAndImport(t *testing.T) {
	from, to := startHub(t), startHub(t)
	from.collect()
	to.collect()
	shop := logicalcluster.Name(from.create(from.person("ann"), workspaces.Root, "shop").Spec.Cluster)
	from.furnish(shop)
	want := from.content(shop)
	// Of a resource that is not served any more, and of a definition that went before these were on record.
	for _, prefix := range []string{"/olds", "/gone.example/things"} {
		for _, key := range []string{"/atoll/prefixes" + prefix, "/registry" + prefix + "/" + string(shop) + "/default/a", "/registry" + prefix + "/" + string(shop) + "/default/b"} {
			_, err := from.etcd.Put(from.ctx, key, "{}")
			must(t, err)
		}
	}
	file := from.export("root:shop")
	if header, _, _ := bytes.Cut(file, []byte("\n")); !bytes.Contains(header, []byte(`"leftOut":["things.gone.example (2)","olds (2)"]`)) {
		t.Errorf("the export does not say what it leaves out: %s", header)
	}

	for _, h := range []*hub{from, to} {
		again := h.imports("root:again", file)
		if diff := cmp.Diff(want, h.content(again)); diff != "" {
			t.Errorf("imported (-want +got):\n%s", diff)
		}
		ctx := client.In(h.ctx, again)
		d := &appsv1.Deployment{}
		must(t, h.clients.Objects.Get(ctx, types.NamespacedName{Namespace: "web", Name: "front"}, d))
		if d.Status.Replicas != 0 || d.Annotations["workload.atoll.dev/root"] != "" || d.Annotations["placement.atoll.dev/clusters"] != "east" {
			t.Errorf("the Deployment tells of another installation, or lost a wish: %+v %+v", d.Status, d.Annotations)
		}
		ca := &corev1.ConfigMap{}
		eventually(t, "the namespace has the authority of its own installation", func() string {
			if err := h.clients.Objects.Get(ctx, types.NamespacedName{Namespace: "web", Name: "kube-root-ca.crt"}, ca); err != nil {
				return err.Error()
			}
			return cmp.Diff(string(h.server.CACertificate()), ca.Data["ca.crt"])
		})
		second := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "second", Namespace: "web"},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}}},
		}
		if err := h.clients.Objects.Create(ctx, second); !apierrors.IsInvalid(err) {
			t.Errorf("a node port that is in use: %v", err)
		}
		if _, err := h.clients.Dynamic.Resource(widgets).Create(ctx, widget("second"), metav1.CreateOptions{}); err != nil {
			t.Errorf("the resource that was defined takes nothing: %v", err)
		}
		if code, answer, err := h.ask(h.ctx, http.MethodPost, server.ImportPath, "root:again", "", file); code != http.StatusConflict || err != nil {
			t.Errorf("imported over what is there: %d %s %v", code, answer, err)
		}
	}

	// One's owner goes: what the same UID owns elsewhere stays, and here it goes.
	again := logicalcluster.Name(from.ready(workspaces.Root, "again").Spec.Cluster)
	owned := types.NamespacedName{Namespace: "web", Name: "a-owned"}
	background := metav1.DeletePropagationBackground
	must(t, from.clients.Kube.AppsV1().Deployments("web").Delete(client.In(from.ctx, again), "front", metav1.DeleteOptions{PropagationPolicy: &background}))
	eventually(t, "what it owned is collected", func() string {
		err := from.clients.Objects.Get(client.In(from.ctx, again), owned, &corev1.ConfigMap{})
		if apierrors.IsNotFound(err) {
			return ""
		}
		return fmt.Sprint(err)
	})
	must(t, from.clients.Objects.Get(client.In(from.ctx, shop), owned, &corev1.ConfigMap{}))
	must(t, to.clients.Objects.Get(client.In(to.ctx, logicalcluster.Name(to.ready(workspaces.Root, "again").Spec.Cluster)), owned, &corev1.ConfigMap{}))

	// Deleting it leaves nothing, the record of its custom resources neither.
	must(t, from.clients.Dynamic.Resource(widgets).Delete(client.In(from.ctx, again), "second", metav1.DeleteOptions{}))
	_, err := from.clients.Dynamic.Resource(widgets).Patch(client.In(from.ctx, again), "gear", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	must(t, err)
	from.remove(workspaces.Root, "again")
	from.gone(workspaces.Root, "again")
	if rows := from.rows(again); len(rows) > 0 {
		t.Errorf("left are %q", rows)
	}
}

func TestExportAndImportRefuse(t *testing.T) {
	h := startHub(t)
	ann := h.person("ann")
	shop := logicalcluster.Name(h.create(ann, workspaces.Root, "shop").Spec.Cluster)
	h.create(h.clients, shop, "inner")
	plant := logicalcluster.Name(h.create(h.clients, workspaces.Root, "plant").Spec.Cluster)
	must(t, h.clients.Objects.Create(client.In(h.ctx, plant), &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: "east"}}))
	h.create(h.clients, workspaces.Root, "plain")
	file := h.export("root:plain")

	row := h.file
	configMap := []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default","uid":"u"}}`)
	for _, tc := range []struct {
		method, endpoint, workspace, who string
		body                             []byte
		code                             int
		says, reason                     string
	}{
		{"GET", server.ExportPath, "root:plain", "ann", nil, 403, "only administrators of the server", "an administrator of root is none of the server"},
		{"POST", server.ImportPath, "root:new", "ann", file, 403, "only administrators of the server", "nor may he import"},
		{"POST", server.ExportPath, "root:plain", "", nil, 405, "", "an export changes nothing"},
		{"GET", server.ImportPath, "root:plain", "", nil, 405, "", "an import does"},
		{"GET", server.ExportPath, "root:none", "", nil, 404, "no workspace", "there is none"},
		{"GET", server.ExportPath, "root", "", nil, 400, "no path", "root is in no workspace"},
		{"GET", server.ExportPath, "root:shop", "", nil, 409, "holds workspaces", "children would be lost"},
		{"GET", server.ExportPath, "root:plant", "", nil, 409, "holds SyncTargets", "mirrors are of this installation"},
		{"POST", server.ImportPath, "root:none:new", "", file, 404, "no workspace", "there is nothing to hold it"},
		{"POST", server.ImportPath, "root:plain", "", file, 409, "overwrites none", "it is there"},
		{"POST", server.ImportPath, "root:new", "", file[:len(file)/2], 400, "cut off", "half a file"},
		{"POST", server.ImportPath, "root:new", "", []byte("apiVersion: v1"), 400, "no export", "no file of ours"},
		{"POST", server.ImportPath, "root:new", "", row(func(h *workspacefile.Header) { h.Kubernetes = "1.99" }), 400, "as new as", "a newer API"},
		{"POST", server.ImportPath, "root:new", "", row(nil, workspacefile.Row{Prefix: "/configmaps", Key: "default/a", Value: []byte("no")}), 400, "cannot read", "no object"},
		{"POST", server.ImportPath, "root:new", "", row(nil, workspacefile.Row{Prefix: "/configmaps", Key: "default/b", Value: configMap}), 400, "the name \"a\"", "another key"},
		{"POST", server.ImportPath, "root:new", "", row(nil, workspacefile.Row{Prefix: "/configmaps", Key: "../../x/default/a", Value: configMap}), 400, "no key", "elsewhere"},
		{"POST", server.ImportPath, "root:new", "", row(nil, workspacefile.Row{Prefix: "/unknown", Key: "default/a", Value: configMap}), 400, "does not serve", "of another version"},
		{"POST", server.ImportPath, "root:new", "", row(nil, workspacefile.Row{Prefix: "/configmaps", Key: "default/a", Custom: true, Value: configMap}), 400, "no custom resource", "built in"},
		{"POST", server.ImportPath, "root:new", "", row(nil, workspacefile.Row{Prefix: "/core.kcp.io/logicalclusters", Key: "cluster", Value: []byte(`{"apiVersion":"core.kcp.io/v1alpha1","kind":"LogicalCluster","metadata":{"name":"cluster"}}`)}), 400, "cannot be imported", "the server's own"},
	} {
		code, answer, err := h.ask(h.ctx, tc.method, tc.endpoint, tc.workspace, tc.who, tc.body)
		must(t, err)
		// Messages are JSON.
		if says := strings.ReplaceAll(string(answer), `\"`, `"`); code != tc.code || !strings.Contains(says, tc.says) {
			t.Errorf("%s %s of %s as %q: %d %.300s, want %d and %q: %s", tc.method, tc.endpoint, tc.workspace, tc.who, code, says, tc.code, tc.says, tc.reason)
		}
	}
	if err := h.clients.Objects.Get(client.In(h.ctx, workspaces.Root), types.NamespacedName{Name: "new"}, &tenancyv1alpha1.Workspace{}); !apierrors.IsNotFound(err) {
		t.Errorf("a refused import left a workspace: %v", err)
	}
}

// importTyped imports and returns the type of what was made, or how it was refused: the code and the answer.
func (h *hub) importTyped(in logicalcluster.Name, workspace, query string, file []byte) (int, string) {
	h.t.Helper()
	code, answer, err := h.ask(h.ctx, http.MethodPost, server.ImportPath+query, workspace, "", file)
	must(h.t, err)
	if code != http.StatusOK {
		return code, string(answer)
	}
	return code, server.TypeName(h.ready(in, workspace[strings.LastIndexByte(workspace, ':')+1:]).Spec.Type)
}

// An import is of the type of what was exported, or of the one that was asked for, or of the one that the workspace above
// gives to new ones, wherever that is; and what cannot be of it is refused, before the upload if the request names the type.
func TestTypeOfAnImport(t *testing.T) {
	h := startHub(t)
	root := client.In(h.ctx, workspaces.Root)
	team := &tenancyv1alpha1.WorkspaceTypeReference{Path: "root", Name: "team"}
	for name, spec := range map[string]tenancyv1alpha1.WorkspaceTypeSpec{
		"team": {}, "other": {},
		"org": {
			DefaultChildWorkspaceType: team,
			LimitAllowedChildren:      &tenancyv1alpha1.WorkspaceTypeSelector{Types: []tenancyv1alpha1.WorkspaceTypeReference{{Name: "team"}, {Name: "other"}}},
		},
	} {
		must(t, h.clients.Objects.Create(root, &tenancyv1alpha1.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}))
	}
	make := func(in logicalcluster.Name, name, kind string) logicalcluster.Name {
		w := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: tenancyv1alpha1.WorkspaceSpec{Type: server.TypeReference(kind)}}
		must(t, h.clients.Objects.Create(client.In(h.ctx, in), w))
		return logicalcluster.Name(h.ready(in, name).Spec.Cluster)
	}
	acme := make(workspaces.Root, "acme", "root:org")
	make(acme, "one", "root:other")
	make(workspaces.Root, "plain", "")
	typed, universal := h.export("root:acme:one"), h.export("root:plain")
	// Written before exports had types.
	untyped, err := os.ReadFile(filepath.Join("testdata", "untyped.atoll"))
	must(t, err)

	for _, tc := range []struct {
		reason      string
		name, query string
		file        []byte
		code        int
		want        string // the type, or a part of why not
	}{
		{"that of the exported", "same", "", typed, 200, "root:other"},
		{"another was asked for", "asked", "?type=root:team", typed, 200, "root:team"},
		{"by its name alone", "named", "?type=team", typed, 200, "root:team"},
		{"no matter which", "default", "?type=", typed, 200, "root:team"},
		{"an old file", "old", "", untyped, 200, "root:team"},
		{"not allowed here", "refused", "", universal, 403, "only allows [root:team root:other] child workspaces"},
		{"not there", "refused", "?type=root:nothere", typed, 403, "unable to use workspace type root:nothere"},
		{"before anything arrives", "refused", "?type=root:nothere", nil, 403, "unable to use workspace type root:nothere"},
		{"before anything arrives, by default", "refused", "?type=", nil, 400, "no export of a workspace"},
	} {
		code, got := h.importTyped(acme, "root:acme:"+tc.name, tc.query, tc.file)
		if code != tc.code || got != tc.want && !(code != http.StatusOK && strings.Contains(got, tc.want)) {
			t.Errorf("%s: imported with %q: %d %s, want %d %s", tc.reason, tc.query, code, got, tc.code, tc.want)
		}
	}
	if err := h.clients.Objects.Get(client.In(h.ctx, acme), types.NamespacedName{Name: "refused"}, &tenancyv1alpha1.Workspace{}); !apierrors.IsNotFound(err) {
		t.Errorf("a refused import left a workspace: %v", err)
	}
	greeting := &corev1.ConfigMap{}
	old := client.In(h.ctx, logicalcluster.Name(h.ready(acme, "old").Spec.Cluster))
	must(t, h.clients.Objects.Get(old, types.NamespacedName{Namespace: "default", Name: "greeting"}, greeting))
	if greeting.Data["word"] != "hello" {
		t.Errorf("of the old file came %v", greeting.Data)
	}
}

// An import that is cut leaves nothing, whatever it has written, and can be done again.
func TestImportThatIsCut(t *testing.T) {
	const rows = 4000
	h := startHub(t)
	path := filepath.Join(t.TempDir(), "file")
	out, err := os.Create(path)
	must(t, err)
	w, err := workspacefile.NewWriter(out, workspacefile.Header{Path: "root:x", Kubernetes: "1.36"})
	must(t, err)
	for i := range rows {
		must(t, w.Add(workspacefile.Row{Prefix: "/configmaps", Key: fmt.Sprintf("default/c%d", i), Value: fmt.Appendf(nil,
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c%d","namespace":"default","uid":"u%d","finalizers":["workload.atoll.dev/syncer"]}}`, i, i)}))
	}
	must(t, w.Add(workspacefile.Row{Prefix: "/clusterrolebindings", Key: "vera", Value: []byte(
		`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"vera"},"subjects":[{"kind":"User","name":"vera","apiGroup":"rbac.authorization.k8s.io"}],"roleRef":{"kind":"ClusterRole","name":"cluster-admin","apiGroup":"rbac.authorization.k8s.io"}}`)}))
	must(t, w.Close())
	must(t, out.Close())
	file, err := os.ReadFile(path)
	must(t, err)

	vera := h.person("vera")
	for _, cut := range []string{"the client goes", "somebody deletes it"} {
		ctx, cancel := context.WithCancel(h.ctx)
		ended := make(chan error, 1)
		go func() {
			code, answer, err := h.ask(ctx, http.MethodPost, server.ImportPath, "root:again", "", file)
			if err == nil {
				err = fmt.Errorf("%d %s", code, answer)
			}
			ended <- err
		}()
		ws := &tenancyv1alpha1.Workspace{}
		eventually(t, "the import is under way", func() string {
			if err := h.clients.Objects.Get(client.In(h.ctx, workspaces.Root), types.NamespacedName{Name: "again"}, ws); err != nil {
				return err.Error()
			}
			if n := len(h.rows(logicalcluster.Name(ws.Spec.Cluster))); n < 20 {
				return fmt.Sprintf("%d rows", n)
			}
			return ""
		})
		cluster := logicalcluster.Name(ws.Spec.Cluster)
		if ws.Status.Phase == corev1alpha1.LogicalClusterPhaseReady || ws.Annotations[tenancyv1alpha1.ImportingAnnotation] == "" {
			t.Errorf("%s: it is %s while it is filled", cut, ws.Status.Phase)
		}
		if err := vera.Objects.List(client.In(h.ctx, cluster), &corev1.ConfigMapList{}); !apierrors.IsForbidden(err) {
			t.Errorf("%s: entered while it is filled: %v", cut, err)
		}
		if cut == "the client goes" {
			cancel()
		} else {
			must(t, h.clients.Objects.Delete(client.In(h.ctx, workspaces.Root), ws))
		}
		select {
		case err := <-ended:
			if !strings.Contains(err.Error(), "cancel") && !strings.Contains(err.Error(), "deleted") {
				t.Errorf("%s: %v", cut, err)
			}
		case <-time.After(patience):
			t.Fatalf("%s: it goes on", cut)
		}
		cancel()
		h.gone(workspaces.Root, "again")
		if rows := h.rows(cluster); len(rows) > 0 {
			t.Errorf("%s: left are %d rows, such as %s", cut, len(rows), rows[0])
		}
	}
	cluster := h.imports("root:again", file)
	list, err := h.clients.Kube.CoreV1().ConfigMaps("default").List(client.In(h.ctx, cluster), metav1.ListOptions{})
	must(t, err)
	if n := len(list.Items); n < rows {
		t.Errorf("of %d objects %d came", rows, n)
	}
	left, err := filepath.Glob(filepath.Join(h.dir, "import-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("files are left: %q %v", left, err)
	}
}

// slowly is an export of the same rows, of which those with the given keys come long before the others: who deletes and does not wait has come to
// the end by then.
func (h *hub) slowly(file []byte, early ...string) []byte {
	h.t.Helper()
	path := filepath.Join(h.t.TempDir(), "file")
	must(h.t, os.WriteFile(path, file, 0o600))
	f, err := workspacefile.Open(path, path)
	must(h.t, err)
	defer f.Close()
	var rows, late []workspacefile.Row
	must(h.t, f.Rows(func(_ int64, r workspacefile.Row) error {
		if slices.Contains(early, r.Key) {
			rows = append(rows, r)
		} else {
			late = append(late, r)
		}
		return nil
	}))
	if len(rows) != len(early) {
		h.t.Fatalf("of %q there are %d rows", early, len(rows))
	}
	for i := range 4000 {
		rows = append(rows, workspacefile.Row{Prefix: "/configmaps", Key: fmt.Sprintf("default/c%d", i), Value: fmt.Appendf(nil,
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c%d","namespace":"default","uid":"u%d"}}`, i, i)})
	}
	return h.file(func(header *workspacefile.Header) { *header = f.Header }, append(rows, late...)...)
}

// What was being deleted when it was exported is where it is imported, whatever comes after it, and goes on from there.
func TestImportOfWhatIsBeingDeleted(t *testing.T) {
	const guard = "shop.example/guard"
	from, to := startHub(t), startHub(t)
	to.collect() // where it was exported, what waits for the collector waits
	definitions := apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")
	shop := logicalcluster.Name(from.create(from.clients, workspaces.Root, "shop").Spec.Cluster)
	ctx := client.In(from.ctx, shop)
	make := func(obj ctrlclient.Object) { t.Helper(); must(t, from.clients.Objects.Create(ctx, obj)) }
	make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "web"}})
	held := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "held", Finalizers: []string{guard}}}
	make(held)
	from.define(shop)
	_, err := from.clients.Dynamic.Resource(widgets).Create(ctx, widget("gear", guard), metav1.CreateOptions{})
	must(t, err)
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "owner"}}
	make(owner)
	kept := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kept", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: owner.UID},
	}}}
	make(kept)
	must(t, from.clients.Kube.CoreV1().Namespaces().Delete(ctx, "web", metav1.DeleteOptions{}))
	must(t, from.clients.Dynamic.Resource(definitions).Delete(ctx, "widgets.shop.example", metav1.DeleteOptions{}))
	must(t, from.clients.Objects.Delete(ctx, owner, ctrlclient.PropagationPolicy(metav1.DeletePropagationOrphan)))
	eventually(t, "finalizers hold the rest", func() string {
		gear, err := from.clients.Dynamic.Resource(widgets).Get(ctx, "gear", metav1.GetOptions{})
		must(t, err)
		must(t, from.clients.Objects.Get(ctx, ctrlclient.ObjectKeyFromObject(held), held))
		if gear.GetDeletionTimestamp() == nil || held.DeletionTimestamp == nil {
			return fmt.Sprintf("deleted %v and %v", gear.GetDeletionTimestamp(), held.DeletionTimestamp)
		}
		return ""
	})
	file := to.slowly(from.export("root:shop"), "web", "widgets.shop.example", "default/owner")
	again := to.imports("root:again", file)
	ctx = client.In(to.ctx, again)
	release := []byte(`{"metadata":{"finalizers":null}}`)

	t.Run("a namespace", func(t *testing.T) {
		namespaces, configMaps := to.clients.Kube.CoreV1().Namespaces(), to.clients.Kube.CoreV1().ConfigMaps("web")
		if ns, err := namespaces.Get(ctx, "web", metav1.GetOptions{}); err != nil || ns.Status.Phase != corev1.NamespaceTerminating {
			t.Errorf("it is %v, %v, want it to hold what it held", ns, err)
		}
		_, err := configMaps.Patch(ctx, "held", types.MergePatchType, release, metav1.PatchOptions{})
		must(t, err)
		eventually(t, "it goes with what it holds", func() string {
			_, inside := configMaps.Get(ctx, "held", metav1.GetOptions{})
			_, err := namespaces.Get(ctx, "web", metav1.GetOptions{})
			if apierrors.IsNotFound(inside) && apierrors.IsNotFound(err) {
				return ""
			}
			return fmt.Sprint(inside, err)
		})
	})
	t.Run("a definition", func(t *testing.T) {
		_, err := to.clients.Dynamic.Resource(definitions).Get(ctx, "widgets.shop.example", metav1.GetOptions{})
		must(t, err)
		_, err = to.clients.Dynamic.Resource(widgets).Patch(ctx, "gear", types.MergePatchType, release, metav1.PatchOptions{})
		must(t, err)
		eventually(t, "it goes with its objects", func() string {
			left := slices.DeleteFunc(to.rows(again), func(row string) bool { return !strings.Contains(row, "widgets") })
			return strings.Join(left, " ")
		})
	})
	t.Run("an owner that is to be orphaned", func(t *testing.T) {
		eventually(t, "it goes", func() string {
			err := to.clients.Objects.Get(ctx, ctrlclient.ObjectKeyFromObject(owner), &corev1.ConfigMap{})
			if apierrors.IsNotFound(err) {
				return ""
			}
			return fmt.Sprint(err)
		})
		must(t, to.clients.Objects.Get(ctx, ctrlclient.ObjectKeyFromObject(kept), kept))
		if len(kept.OwnerReferences) > 0 {
			t.Errorf("what it owned has the owners %v", kept.OwnerReferences)
		}
	})
	lc := &corev1alpha1.LogicalCluster{}
	must(t, to.clients.Objects.Get(ctx, types.NamespacedName{Name: corev1alpha1.LogicalClusterName}, lc))
	if importing, ok := lc.Annotations[tenancyv1alpha1.ImportingAnnotation]; ok {
		t.Errorf("it is being imported since %q", importing)
	}
}
