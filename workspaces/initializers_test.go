package workspaces_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/attendance"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/workspacefile"
	"atoll.dev/atoll/server"
	"atoll.dev/atoll/workspaces"
)

// tokens are those of olga, who owns workspaces, pat, who initializes them, and eve, who initializes for another type.
const tokens = "olgatoken,olga,1\npattoken,pat,2\nevetoken,eve,3\n"

// by returns a client with somebody's token, below a path of the server.
func (h *hub) by(name, path string) dynamic.Interface {
	h.t.Helper()
	return h.byAs(name, "", path)
}

// byAs returns one that impersonates another.
func (h *hub) byAs(name, other, path string) dynamic.Interface {
	h.t.Helper()
	d, err := dynamic.NewForConfig(&rest.Config{Host: h.server.URL() + path, BearerToken: name + "token",
		Impersonate: rest.ImpersonationConfig{UserName: other}, TLSClientConfig: rest.TLSClientConfig{CAData: h.server.CACertificate()}})
	must(h.t, err)
	return d
}

// allow gives a user verbs on types of root, and lets him make workspaces there.
func (h *hub) allow(name string, verbs, types []string) {
	h.t.Helper()
	h.allowIn(workspaces.Root, rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: name}, verbs, types)
}

func (h *hub) allowIn(cluster logicalcluster.Name, who rbacv1.Subject, verbs, types []string) {
	h.t.Helper()
	rbac := h.clients.Kube.RbacV1()
	in, name := client.In(h.ctx, cluster), "of-"+who.Name
	_, err := rbac.ClusterRoles().Create(in, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		{Verbs: verbs, APIGroups: []string{"tenancy.kcp.io"}, Resources: []string{"workspacetypes"}, ResourceNames: types},
		{Verbs: []string{"create", "get", "list", "delete"}, APIGroups: []string{"tenancy.kcp.io"}, Resources: []string{"workspaces"}},
	}}, metav1.CreateOptions{})
	must(h.t, err)
	_, err = rbac.ClusterRoleBindings().Create(in, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
		Subjects: []rbacv1.Subject{who},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}}, metav1.CreateOptions{})
	must(h.t, err)
}

var (
	clustersGVR   = corev1alpha1.GroupVersion.WithResource("logicalclusters")
	workspacesGVR = tenancyv1alpha1.GroupVersion.WithResource("workspaces")
	configMaps    = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
)

// asOlga makes a workspace of hers in root, of a type of the workspace at a path, and returns its logical cluster when the
// workspace is in a phase.
func (h *hub) asOlga(name, path, kind string, phase corev1alpha1.LogicalClusterPhase) logicalcluster.Name {
	h.t.Helper()
	w := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": tenancyv1alpha1.GroupVersion.String(), "kind": "Workspace", "metadata": map[string]any{"name": name, "annotations": map[string]any{
			tenancyv1alpha1.ImportingAnnotation: "", tenancyv1alpha1.InitializersAnnotation: "root:none", tenancyv1alpha1.TerminatorsAnnotation: "root:none"}},
		"spec": map[string]any{"type": map[string]any{"name": kind, "path": path}},
	}}
	eventually(h.t, "olga makes "+name, func() string { // when her rights are known
		_, err := h.by("olga", "/clusters/root").Resource(workspacesGVR).Create(h.ctx, w, metav1.CreateOptions{})
		return problem(err)
	})
	var got tenancyv1alpha1.Workspace
	eventually(h.t, name+" is "+string(phase), func() string {
		must(h.t, h.clients.Objects.Get(client.In(h.ctx, workspaces.Root), types.NamespacedName{Name: name}, &got))
		if got.Status.Phase != phase {
			return fmt.Sprintf("%+v", got.Status)
		}
		return ""
	})
	return logicalcluster.Name(got.Spec.Cluster)
}

func problem(err error) string {
	if err != nil {
		return err.Error()
	}
	return ""
}

// shows fails unless a Workspace of root comes to be in a phase, by its status and its label, with these attendants left.
func (h *hub) shows(name string, phase corev1alpha1.LogicalClusterPhase, initializers, terminators []attendance.Attendant) {
	h.t.Helper()
	eventually(h.t, name+" shows what it waits for", func() string {
		w := &tenancyv1alpha1.Workspace{}
		must(h.t, h.clients.Objects.Get(client.In(h.ctx, workspaces.Root), types.NamespacedName{Name: name}, w))
		initialized := meta.FindStatusCondition(w.Status.Conditions, tenancyv1alpha1.WorkspaceInitialized)
		if w.Status.Phase != phase || w.Labels[tenancyv1alpha1.PhaseLabel] != string(phase) || !slices.Equal(w.Status.Initializers, initializers) ||
			!slices.Equal(w.Status.Terminators, terminators) || initialized == nil || (initialized.Status == metav1.ConditionTrue) != (len(initializers) == 0) ||
			!meta.IsStatusConditionTrue(w.Status.Conditions, tenancyv1alpha1.WorkspaceScheduled) {
			return fmt.Sprintf("%v, %+v", w.Labels, w.Status)
		}
		return ""
	})
}

// next is the next event of a watch.
func (h *hub) next(w watch.Interface) (e watch.Event, open bool) {
	h.t.Helper()
	select {
	case e, open = <-w.ResultChan():
		return e, open
	case <-time.After(patience):
		h.t.Fatal("a watch neither says anything nor ends")
		return e, false
	}
}

// A workspace waits for the initializers of its type and of what that extends. Each finds it, works in it as its owner, and
// removes itself; nobody else gets in until it is ready, and they do not afterwards.
func TestInitializers(t *testing.T) {
	h := startHub(t)
	inRoot := client.In(h.ctx, workspaces.Root)
	for name, spec := range map[string]tenancyv1alpha1.WorkspaceTypeSpec{
		"base": {Initializer: true},
		"team": {Initializer: true, Extend: tenancyv1alpha1.WorkspaceTypeExtension{With: []tenancyv1alpha1.WorkspaceTypeReference{{Name: "base"}}}},
	} {
		must(t, h.clients.Objects.Create(inRoot, &tenancyv1alpha1.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}))
	}
	var base tenancyv1alpha1.WorkspaceType
	must(t, h.clients.Objects.Get(inRoot, types.NamespacedName{Name: "base"}, &base))
	path := tenancyv1alpha1.InitializingPath + "root:base"
	if got := base.Status.VirtualWorkspaces; len(got) != 1 || got[0].URL != h.server.URL()+path {
		t.Fatalf("the type says that its initializer finds workspaces at %v", got)
	}
	h.allow("olga", []string{"use"}, []string{"base", "team"})
	h.allow("pat", []string{"initialize"}, []string{"base"})
	h.allow("eve", []string{"initialize"}, []string{"team"})
	everywhere := path + "/clusters/*"
	eventually(t, "pat and eve have their verbs", func() string {
		_, err := h.by("pat", everywhere).Resource(clustersGVR).List(h.ctx, metav1.ListOptions{})
		if err == nil {
			_, err = h.by("eve", tenancyv1alpha1.InitializingPath+"root:team/clusters/*").Resource(clustersGVR).List(h.ctx, metav1.ListOptions{})
		}
		return problem(err)
	})
	waiting, err := h.by("pat", everywhere).Resource(clustersGVR).Watch(h.ctx, metav1.ListOptions{})
	must(t, err)
	defer waiting.Stop()

	h.create(h.clients, workspaces.Root, "plain")
	one, both := h.asOlga("one", "root", "base", corev1alpha1.LogicalClusterPhaseInitializing), h.asOlga("both", "root", "team", corev1alpha1.LogicalClusterPhaseInitializing)
	h.shows("plain", corev1alpha1.LogicalClusterPhaseReady, nil, nil)
	h.shows("both", corev1alpha1.LogicalClusterPhaseInitializing, []attendance.Attendant{"root:team", "root:base"}, nil)
	listed, err := h.by("pat", everywhere).Resource(clustersGVR).List(h.ctx, metav1.ListOptions{LabelSelector: "!none"})
	must(t, err)
	found := map[logicalcluster.Name]bool{}
	for i := range listed.Items {
		found[lcctx.NameFrom(&listed.Items[i])] = true
	}
	if len(found) != 2 || !found[one] || !found[both] {
		t.Errorf("pat is shown %v, want %s and %s", found, one, both)
	}
	for range 2 {
		if e, _ := h.next(waiting); e.Type != watch.Added {
			t.Errorf("pat is told %v", e)
		}
	}

	in := func(who, service string, cluster logicalcluster.Name) dynamic.ResourceInterface {
		return h.by(who, service+"/clusters/"+string(cluster)).Resource(configMaps).Namespace("default")
	}
	cm := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "policy"}}}
	refused := func(reason string, err error) {
		t.Helper()
		if !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
			t.Errorf("%s: %v", reason, err)
		}
	}
	_, err = in("pat", path, both).Create(h.ctx, cm, metav1.CreateOptions{})
	must(t, err)
	_, err = in("olga", "", both).List(h.ctx, metav1.ListOptions{})
	refused("the owner uses it already", err)
	_, err = in("pat", "", both).List(h.ctx, metav1.ListOptions{})
	refused("who initializes comes in by the front door", err)
	_, err = in("eve", path, both).List(h.ctx, metav1.ListOptions{})
	refused("who may initialize another type", err)
	_, err = in("olga", path, both).List(h.ctx, metav1.ListOptions{})
	refused("who may not initialize", err)
	_, err = h.byAs("pat", "olga", path+"/clusters/"+string(both)).Resource(configMaps).Namespace("default").List(h.ctx, metav1.ListOptions{})
	refused("who says that he is the owner, as the owner may", err)
	_, err = in("eve", tenancyv1alpha1.InitializingPath+"root:team", one).List(h.ctx, metav1.ListOptions{})
	refused("an initializer that this one does not wait for", err)
	for _, other := range []logicalcluster.Name{workspaces.Root, workspaces.SystemAdmin, "nothere0"} {
		_, err = in("pat", path, other).List(h.ctx, metav1.ListOptions{})
		refused("one that waits for nothing, "+string(other), err)
	}
	_, err = h.by("pat", everywhere).Resource(configMaps).List(h.ctx, metav1.ListOptions{})
	refused("what all of them hold", err)
	_, err = h.by("pat", everywhere).Resource(workspacesGVR).List(h.ctx, metav1.ListOptions{})
	refused("Workspaces", err)

	inside, err := in("pat", path, both).Watch(h.ctx, metav1.ListOptions{})
	must(t, err)
	defer inside.Stop()
	named, err := in("pat", path, both).Watch(h.ctx, metav1.ListOptions{FieldSelector: "metadata.name=policy"})
	must(t, err)
	defer named.Stop()
	remove := func(who, service string, cluster logicalcluster.Name, left ...string) error {
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"initializers": left}})
		must(t, err)
		_, err = h.by(who, service+"/clusters/"+string(cluster)).Resource(clustersGVR).Patch(h.ctx, "cluster", types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	}
	refused("the owner removes it", remove("olga", "", both))
	if err := remove("pat", path, both); !apierrors.IsInvalid(err) {
		t.Errorf("pat removes eve's too: %v", err)
	}
	if err := remove("pat", path, both, "root:base", "root:team", "root:more"); !apierrors.IsInvalid(err) {
		t.Errorf("pat adds one: %v", err)
	}
	must(t, remove("pat", path, both, "root:team"))
	h.shows("both", corev1alpha1.LogicalClusterPhaseInitializing, []attendance.Attendant{"root:team"}, nil)
	for _, w := range []watch.Interface{inside, named} {
		for open := true; open; _, open = h.next(w) {
			// what is shown before it is noticed; then the watch ends
		}
	}
	for {
		if e, open := h.next(waiting); !open {
			t.Fatal("the watch of what waits ended")
		} else if e.Type == watch.Deleted && lcctx.NameFrom(e.Object.(*unstructured.Unstructured)) == both {
			break
		}
	}
	_, err = in("pat", path, both).List(h.ctx, metav1.ListOptions{})
	refused("who is done", err)
	_, err = in("olga", "", both).List(h.ctx, metav1.ListOptions{})
	refused("the owner uses it while one is left", err)
	must(t, remove("eve", tenancyv1alpha1.InitializingPath+"root:team", both))
	h.ready(workspaces.Root, "both")
	h.shows("both", corev1alpha1.LogicalClusterPhaseReady, nil, nil)
	if _, err = in("olga", "", both).Get(h.ctx, "policy", metav1.GetOptions{}); err != nil {
		t.Errorf("the owner of a workspace that is ready: %v", err)
	}
	_, err = in("eve", tenancyv1alpha1.InitializingPath+"root:team", both).List(h.ctx, metav1.ListOptions{})
	refused("who was the last", err)

	// One that waits can be deleted. Whatever holds it up, nobody uses what never was initialized.
	cm.SetFinalizers([]string{"example.com/held"})
	_, err = in("pat", path, one).Create(h.ctx, cm, metav1.CreateOptions{})
	must(t, err)
	must(t, h.by("olga", "/clusters/root").Resource(workspacesGVR).Delete(h.ctx, "one", metav1.DeleteOptions{}))
	eventually(t, "it is terminating", func() string {
		if !h.directory.Terminating(one) {
			return "not yet"
		}
		return ""
	})
	_, err = in("pat", path, one).List(h.ctx, metav1.ListOptions{})
	refused("the initializer of what is deleted", err)
	_, err = in("olga", "", one).List(h.ctx, metav1.ListOptions{})
	refused("the owner of what is deleted, and never was initialized", err)
	_, err = h.clients.Kube.CoreV1().ConfigMaps("default").Patch(client.In(h.ctx, one), "policy", types.JSONPatchType, []byte(`[{"op": "remove", "path": "/metadata/finalizers"}]`), metav1.PatchOptions{})
	must(t, err)
	h.gone(workspaces.Root, "one")
}

// A server that starts has no events of what has waited since before: who initializes watches there all the same.
func TestInitializersAfterARestart(t *testing.T) {
	h := startHub(t)
	must(t, h.clients.Objects.Create(client.In(h.ctx, workspaces.Root), &tenancyv1alpha1.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: "team"},
		Spec: tenancyv1alpha1.WorkspaceTypeSpec{Initializer: true}}))
	h.allow("olga", []string{"use"}, []string{"team"})
	h.allow("pat", []string{"initialize"}, []string{"team"})
	waits := h.asOlga("waits", "root", "team", corev1alpha1.LogicalClusterPhaseInitializing)
	h.create(h.clients, workspaces.Root, "plain") // which is later than that

	path := tenancyv1alpha1.InitializingPath + "root:team/clusters/" + string(waits)
	again := rest.Config{Host: h.another().URL() + path, BearerToken: "pattoken", TLSClientConfig: rest.TLSClientConfig{CAData: h.server.CACertificate()}}
	d, err := dynamic.NewForConfig(&again)
	must(t, err)
	var inside watch.Interface
	eventually(t, "pat is known", func() string {
		inside, err = d.Resource(configMaps).Namespace("default").Watch(h.ctx, metav1.ListOptions{})
		return problem(err)
	})
	defer inside.Stop()
	cm := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "policy"}}}
	_, err = h.by("pat", path).Resource(configMaps).Namespace("default").Create(h.ctx, cm, metav1.CreateOptions{})
	must(t, err)
	for {
		if e, open := h.next(inside); !open {
			t.Fatal("a watch in what waits ended")
		} else if got, ok := e.Object.(*unstructured.Unstructured); ok && got.GetName() == "policy" {
			break
		}
	}
	_, err = h.by("pat", path).Resource(clustersGVR).Patch(h.ctx, "cluster", types.MergePatchType, []byte(`{"status": {"initializers": null}}`), metav1.PatchOptions{}, "status")
	must(t, err)
	for open := true; open; _, open = h.next(inside) {
		// what there is; then the watch ends
	}
}

// Who initializes may be a ServiceAccount of the workspace that holds the type, or somebody by a certificate of that workspace.
// Of another workspace he is nobody there, whatever his name.
func TestInitializersOfTheTypesWorkspace(t *testing.T) {
	h := startHub(t)
	platform := logicalcluster.Name(h.create(h.clients, workspaces.Root, "platform").Spec.Cluster)
	other := logicalcluster.Name(h.create(h.clients, workspaces.Root, "other").Spec.Cluster)
	path := tenancyv1alpha1.InitializingPath + string(attendance.Name(platform.String(), "team"))
	robot := rbacv1.Subject{Kind: "ServiceAccount", Namespace: "default", Name: "robot"}
	carl := rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: "carl"}
	credentials := map[logicalcluster.Name][]*rest.Config{}
	for _, cluster := range []logicalcluster.Name{platform, other} {
		in := client.In(h.ctx, cluster)
		must(t, h.clients.Objects.Create(in, &tenancyv1alpha1.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: "team"}, Spec: tenancyv1alpha1.WorkspaceTypeSpec{Initializer: true}}))
		_, err := h.clients.Kube.CoreV1().ServiceAccounts("default").Create(in, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: robot.Name}}, metav1.CreateOptions{})
		must(t, err)
		h.allowIn(cluster, robot, []string{"initialize"}, []string{"team"})
		h.allowIn(cluster, carl, []string{"initialize"}, []string{"team"})
		token, err := h.clients.Kube.CoreV1().ServiceAccounts("default").CreateToken(in, robot.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		must(t, err)
		credentials[cluster] = []*rest.Config{
			{BearerToken: token.Status.Token, TLSClientConfig: rest.TLSClientConfig{CAData: h.server.CACertificate()}},
			{TLSClientConfig: h.certificate(cluster, carl.Name)},
		}
	}
	h.allowIn(platform, rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: "olga"}, []string{"use"}, []string{"team"})
	h.allow("olga", []string{"use"}, []string{"none"})
	by := func(who *rest.Config, below string) dynamic.Interface {
		config := rest.CopyConfig(who)
		config.Host = h.server.URL() + path + below
		d, err := dynamic.NewForConfig(config)
		must(t, err)
		return d
	}
	waits := h.asOlga("web", "root:platform", "team", corev1alpha1.LogicalClusterPhaseInitializing)
	for i, who := range []string{"a ServiceAccount", "somebody by a certificate"} {
		eventually(t, who+" of the type's workspace finds it", func() string {
			listed, err := by(credentials[platform][i], "/clusters/*").Resource(clustersGVR).List(h.ctx, metav1.ListOptions{})
			if err == nil && (len(listed.Items) != 1 || lcctx.NameFrom(&listed.Items[0]) != waits) {
				return fmt.Sprintf("is shown %v", listed.Items)
			}
			return problem(err)
		})
		if _, err := by(credentials[platform][i], "/clusters/"+string(waits)).Resource(configMaps).Namespace("default").List(h.ctx, metav1.ListOptions{}); err != nil {
			t.Errorf("%s of the type's workspace works in it: %v", who, err)
		}
		// He is somebody to the type of his own workspace, which nothing waits for.
		eventually(t, who+" of another workspace has his verb there", func() string {
			config := rest.CopyConfig(credentials[other][i])
			config.Host = h.server.URL() + tenancyv1alpha1.InitializingPath + string(attendance.Name(other.String(), "team")) + "/clusters/*"
			d, err := dynamic.NewForConfig(config)
			must(t, err)
			listed, err := d.Resource(clustersGVR).List(h.ctx, metav1.ListOptions{})
			if err == nil && len(listed.Items) > 0 {
				t.Errorf("%s of another workspace is shown %v", who, listed.Items)
			}
			return problem(err)
		})
		for _, below := range []string{"/clusters/*", "/clusters/" + string(waits)} {
			if listed, err := by(credentials[other][i], below).Resource(clustersGVR).List(h.ctx, metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
				t.Errorf("%s of another workspace lists %s: %v, %v", who, below, listed, err)
			}
		}
	}
}

// certificate returns that of a user of a workspace.
func (h *hub) certificate(cluster logicalcluster.Name, name string) rest.TLSClientConfig {
	h.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(h.t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, key)
	must(h.t, err)
	asks, err := x509.ParseCertificateRequest(der)
	must(h.t, err)
	signed, err := h.server.SignForWorkspace(cluster, asks, nil, time.Hour)
	must(h.t, err)
	raw, err := x509.MarshalECPrivateKey(key)
	must(h.t, err)
	return rest.TLSClientConfig{CAData: h.server.CACertificate(), CertData: signed, KeyData: pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})}
}

// What was exported was ready where it was, so an import is not initialized again; its terminators clean up after it.
func TestAttendantsOfImports(t *testing.T) {
	h := startHub(t)
	must(t, h.clients.Objects.Create(client.In(h.ctx, workspaces.Root), &tenancyv1alpha1.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: "team"},
		Spec: tenancyv1alpha1.WorkspaceTypeSpec{Initializer: true, Terminator: true}}))
	h.allow("olga", []string{"use"}, []string{"team"})
	h.asOlga("waits", "root", "team", corev1alpha1.LogicalClusterPhaseInitializing)
	if code, answer, err := h.ask(h.ctx, http.MethodGet, server.ExportPath, "root:waits", "", nil); err != nil || code != http.StatusConflict {
		t.Errorf("one that is not initialized is exported: %d %s, %v", code, answer, err)
	}
	cluster := h.imports("root:web", h.file(func(header *workspacefile.Header) { header.Type = "root:team" }))
	got := &corev1alpha1.LogicalCluster{}
	must(t, h.clients.Objects.Get(client.In(h.ctx, cluster), types.NamespacedName{Name: corev1alpha1.LogicalClusterName}, got))
	if len(got.Status.Initializers) > 0 || got.Status.Phase != corev1alpha1.LogicalClusterPhaseReady {
		t.Errorf("an import is %+v", got.Status)
	}
	if want := []attendance.Attendant{"root:team"}; !slices.Equal(got.Status.Terminators, want) {
		t.Errorf("an import has the terminators %v, want %v", got.Status.Terminators, want)
	}
}
