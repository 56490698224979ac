package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// custom are clients of one logical cluster.
type custom struct {
	definitions apiextensionsclient.Interface
	objects     dynamic.Interface
}

func (r *running) custom(t *testing.T, cluster logicalcluster.Name) custom {
	t.Helper()
	config := rest.CopyConfig(r.LoopbackConfig())
	config.Host += clustersPrefix + string(cluster)
	definitions, err := apiextensionsclient.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return custom{definitions, objects}
}

// widgets is a definition of namespaced widgets.shop.example, with one version, whose spec has the given properties.
func widgets(properties string) *apiextensionsv1.CustomResourceDefinition {
	var spec apiextensionsv1.JSONSchemaProps
	if err := json.Unmarshal([]byte(`{"type":"object","properties":`+properties+`}`), &spec); err != nil {
		panic(err)
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.shop.example"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "shop.example", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget", ShortNames: []string{"wd"}},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
						"spec": spec, "status": {Type: "object", XPreserveUnknownFields: new(true)},
					},
				}},
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
			}},
		},
	}
}

var widgetsV1 = schema.GroupVersionResource{Group: "shop.example", Version: "v1", Resource: "widgets"}

func widget(name string, spec map[string]any) *unstructured.Unstructured {
	w := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	w.SetAPIVersion("shop.example/v1")
	w.SetKind("Widget")
	w.SetName(name)
	return w
}

// define creates a definition, and returns it once it says that it is established.
func (c custom) define(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	made, err := c.definitions.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), crd, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c.await(t, made, apiextensionsv1.Established, apiextensionsv1.ConditionTrue)
}

// await watches a definition until a condition has a status.
func (c custom) await(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition, condition apiextensionsv1.CustomResourceDefinitionConditionType, status apiextensionsv1.ConditionStatus) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	var found *apiextensionsv1.CustomResourceDefinition
	c.watch(t, crd, func(event watch.Event) bool {
		var ok bool
		if found, ok = event.Object.(*apiextensionsv1.CustomResourceDefinition); !ok {
			return false
		}
		for _, has := range found.Status.Conditions {
			if has.Type == condition && has.Status == status {
				return true
			}
		}
		return false
	})
	return found
}

// awaitGone watches a definition until it is gone.
func (c custom) awaitGone(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	c.watch(t, crd, func(event watch.Event) bool { return event.Type == watch.Deleted })
}

// watch watches a definition from what is known of it.
func (c custom) watch(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition, until func(watch.Event) bool) {
	t.Helper()
	if crd.ResourceVersion == "" {
		t.Fatalf("%s is to be watched from no resourceVersion: what happened before would not be told", crd.Name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	w, err := c.definitions.ApiextensionsV1().CustomResourceDefinitions().Watch(ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + crd.Name, ResourceVersion: crd.ResourceVersion,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	var last watch.Event
	for last = range w.ResultChan() {
		if until(last) {
			return
		}
	}
	t.Fatalf("waited for a change of %s: last seen %s %+v", crd.Name, last.Type, last.Object)
}

func (r *running) makeNamespace(t *testing.T, cluster logicalcluster.Name, name string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := r.in(t, cluster).CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

func names(list *unstructured.UnstructuredList) []string {
	found := []string{}
	for _, item := range list.Items {
		found = append(found, item.GetNamespace()+"/"+item.GetName())
	}
	return found
}

// TestCustomResourcesKeepWorkspacesApart: two workspaces define a resource of one name, each as it likes.
func TestCustomResourcesKeepWorkspacesApart(t *testing.T) {
	r := startServer(t, nil)
	inShop, inBank := r.custom(t, shop), r.custom(t, bank)
	for _, cluster := range []logicalcluster.Name{shop, bank} {
		r.makeNamespace(t, cluster, "default")
	}
	inShop.define(t, widgets(`{"size":{"type":"integer","minimum":1,"default":3}}`))
	inBank.define(t, widgets(`{"size":{"type":"string","default":"big"},"owner":{"type":"string"}}`))

	create := func(c custom, w *unstructured.Unstructured) (*unstructured.Unstructured, error) {
		return c.objects.Resource(widgetsV1).Namespace("default").Create(t.Context(), w, metav1.CreateOptions{})
	}
	must := func(made *unstructured.Unstructured, err error) *unstructured.Unstructured {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	specOf := func(w *unstructured.Unstructured) map[string]any {
		spec, _, _ := unstructured.NestedMap(w.Object, "spec")
		return spec
	}

	// Defaults and pruning are those of the own definition.
	made := must(create(inShop, widget("same", map[string]any{"owner": "nobody knows this field here"})))
	if diff := cmp.Diff(map[string]any{"size": int64(3)}, specOf(made)); diff != "" {
		t.Errorf("spec in shop (-want +got):\n%s", diff)
	}
	if made.GetAnnotations()[lcctx.Annotation] != string(shop) {
		t.Errorf("annotations: %v", made.GetAnnotations())
	}
	made = must(create(inBank, widget("same", map[string]any{"owner": "bob"})))
	if diff := cmp.Diff(map[string]any{"size": "big", "owner": "bob"}, specOf(made)); diff != "" {
		t.Errorf("spec in bank (-want +got):\n%s", diff)
	}
	// So is validation.
	if _, err := create(inShop, widget("wrong", map[string]any{"size": "big"})); !apierrors.IsInvalid(err) {
		t.Errorf("a string as size in shop: %v, want Invalid", err)
	}
	if _, err := create(inShop, widget("wrong", map[string]any{"size": int64(0)})); !apierrors.IsInvalid(err) {
		t.Errorf("size 0 in shop: %v, want Invalid", err)
	}
	if _, err := create(inBank, widget("wrong", map[string]any{"size": int64(7)})); !apierrors.IsInvalid(err) {
		t.Errorf("a number as size in bank: %v, want Invalid", err)
	}

	// Lists, their pages and watches show the own objects.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	live, err := inShop.objects.Resource(widgetsV1).Watch(ctx, metav1.ListOptions{SendInitialEvents: new(true),
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true})
	if err != nil {
		t.Fatal(err)
	}
	defer live.Stop()
	for i := range 4 {
		must(create(inBank, widget(fmt.Sprintf("b%d", i), map[string]any{})))
		must(create(inShop, widget(fmt.Sprintf("s%d", i), map[string]any{})))
	}
	list := func(c custom, o metav1.ListOptions) *unstructured.UnstructuredList {
		t.Helper()
		found, err := c.objects.Resource(widgetsV1).List(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	ofShop := []string{"default/s0", "default/s1", "default/s2", "default/s3", "default/same"}
	ofBank := []string{"default/b0", "default/b1", "default/b2", "default/b3", "default/same"}
	if diff := cmp.Diff(ofShop, names(list(inShop, metav1.ListOptions{}))); diff != "" {
		t.Errorf("list in shop (-want +got):\n%s", diff)
	}
	first := list(inBank, metav1.ListOptions{Limit: 2})
	next := list(inBank, metav1.ListOptions{Limit: 10, Continue: first.GetContinue()})
	if diff := cmp.Diff(ofBank, append(names(first), names(next)...)); diff != "" {
		t.Errorf("pages in bank (-want +got):\n%s", diff)
	}
	foreign := list(inShop, metav1.ListOptions{Limit: 10, Continue: first.GetContinue()})
	for _, name := range names(foreign) {
		if strings.HasPrefix(name, "default/b") {
			t.Errorf("a continue token of bank shows %s in shop", name)
		}
	}
	var seen []string
	bookmarks := 0
	for len(seen) < len(ofShop) {
		event, ok := <-live.ResultChan()
		if !ok {
			t.Fatalf("the watch in shop ended after %v", seen)
		}
		if event.Type == watch.Bookmark {
			bookmarks++
			continue
		}
		seen = append(seen, string(event.Type)+" "+event.Object.(*unstructured.Unstructured).GetName())
	}
	if diff := cmp.Diff([]string{"ADDED same", "ADDED s0", "ADDED s1", "ADDED s2", "ADDED s3"}, seen); diff != "" || bookmarks == 0 {
		t.Errorf("watch in shop, with %d bookmarks (-want +got):\n%s", bookmarks, diff)
	}

	// Status and server-side apply.
	patched, err := inShop.objects.Resource(widgetsV1).Namespace("default").Patch(t.Context(), "same", types.MergePatchType, []byte(`{"status":{"phase":"Fine"},"spec":{"size":9}}`), metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	if phase, _, _ := unstructured.NestedString(patched.Object, "status", "phase"); phase != "Fine" || specOf(patched)["size"] != int64(3) {
		t.Errorf("after a patch of status: %v", patched.Object)
	}
	applied := widget("same", map[string]any{"size": int64(5)})
	for _, want := range []string{"", "Conflict"} {
		manager := "first" + want
		_, err := inShop.objects.Resource(widgetsV1).Namespace("default").Apply(t.Context(), "same", applied, metav1.ApplyOptions{FieldManager: manager, Force: want == ""})
		if reason := string(apierrors.ReasonForError(err)); err != nil && reason != want || err == nil && want != "" {
			t.Errorf("apply by %s: %v, want %q", manager, err, want)
		}
		applied = widget("same", map[string]any{"size": int64(6)})
	}
	if got := must(inBank.objects.Resource(widgetsV1).Namespace("default").Get(t.Context(), "same", metav1.GetOptions{})); specOf(got)["owner"] != "bob" || got.Object["status"] != nil {
		t.Errorf("in bank: %v", got.Object)
	}

	// Deleting all of them in one workspace, and the definition itself, leaves the other's.
	if err := inShop.objects.Resource(widgetsV1).Namespace("default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "absent"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ofShop, names(list(inShop, metav1.ListOptions{}))); diff != "" {
		t.Errorf("shop after deleting those with a label (-want +got):\n%s", diff)
	}
	if err := inShop.objects.Resource(widgetsV1).Namespace("default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := names(list(inShop, metav1.ListOptions{})); len(got) > 0 {
		t.Errorf("shop after deleting all: %v", got)
	}
	crd, err := inShop.definitions.ApiextensionsV1().CustomResourceDefinitions().Get(t.Context(), "widgets.shop.example", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := inShop.definitions.ApiextensionsV1().CustomResourceDefinitions().Delete(t.Context(), crd.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	inShop.awaitGone(t, crd)
	if _, err := inShop.objects.Resource(widgetsV1).List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("list in shop without the definition: %v, want NotFound", err)
	}
	if diff := cmp.Diff(ofBank, names(list(inBank, metav1.ListOptions{}))); diff != "" {
		t.Errorf("bank after all that (-want +got):\n%s", diff)
	}

	// On all logical clusters at once there is no schema to read them by.
	everywhere := r.custom(t, "*")
	_, err = everywhere.objects.Resource(widgetsV1).List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "/clusters/*") {
		t.Errorf("list everywhere: %v, want a refusal that says why", err)
	}
	if _, err = everywhere.objects.Resource(widgetsV1).Watch(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("watch everywhere: %v, want a refusal", err)
	}
}

// TestCustomResourcesAreServedByOneInstance: who has the same definition shares what serves it, and it goes with the last.
func TestCustomResourcesAreServedByOneInstance(t *testing.T) {
	const workspaces = 50
	r := startServer(t, nil)
	name := func(i int) logicalcluster.Name { return logicalcluster.Name(fmt.Sprintf("tenant%02d", i)) }
	definition := widgets(`{"size":{"type":"integer"}}`)
	definition.Spec.Scope = apiextensionsv1.ClusterScoped
	use := func(i int) {
		t.Helper()
		r.makeCluster(t, name(i))
		c := r.custom(t, name(i))
		c.define(t, definition.DeepCopy())
		if _, err := c.objects.Resource(widgetsV1).Create(t.Context(), widget("one", map[string]any{"size": int64(i)}), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	storesOpen := func() int {
		n := 0
		for _, open := range r.backend.Resources() {
			if open.GroupResource == widgetsV1.GroupResource() {
				n++
			}
		}
		return n
	}
	use(0)
	if n := storesOpen(); n != 1 {
		t.Fatalf("%d stores are open for one definition", n)
	}
	before := goroutines()
	for i := 1; i < workspaces; i++ {
		use(i)
	}
	if n := storesOpen(); n != 1 {
		t.Errorf("%d stores are open for one definition in %d workspaces", n, workspaces)
	}
	// What else goes on in this process comes and goes by a few; one for each workspace would be all of them.
	waitFor(t, 30*time.Second, "custom resources", func() (string, bool) {
		after := goroutines()
		return fmt.Sprintf("%d goroutines with one workspace, %d with %d", before, after, workspaces), after-before < workspaces/2
	})
	served := r.Definitions().Served(name(7))
	if len(served) != 1 || served[0].Hash != r.Definitions().Served(name(8))[0].Hash || &served[0].Spec.Versions[0] != &r.Definitions().Served(name(8))[0].Spec.Versions[0] {
		t.Errorf("definitions of two workspaces are not shared: %v", served)
	}
	for i := range workspaces {
		got, err := r.custom(t, name(i)).objects.Resource(widgetsV1).Get(t.Context(), "one", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if size, _, _ := unstructured.NestedInt64(got.Object, "spec", "size"); size != int64(i) {
			t.Errorf("the object of %s is %v", name(i), got.Object)
		}
	}
	// Each goes; the instance with the last.
	for i := range workspaces {
		c := r.custom(t, name(i))
		crd, err := c.definitions.ApiextensionsV1().CustomResourceDefinitions().Get(t.Context(), definition.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if n := storesOpen(); n != 1 {
			t.Errorf("%d stores are open while %d workspaces have the definition", n, workspaces-i)
		}
		if i%2 == 0 { // the workspace is deleted, or the definition in it
			if err := r.DeleteCluster(t.Context(), name(i)); err != nil {
				t.Fatal(err)
			}
		} else if err := c.definitions.ApiextensionsV1().CustomResourceDefinitions().Delete(t.Context(), definition.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.awaitGone(t, crd)
	}
	waitFor(t, 30*time.Second, "custom resources", func() (string, bool) {
		n := storesOpen()
		return fmt.Sprintf("%d stores are open that nobody needs", n), n == 0
	})
	rows, err := r.data.Get(t.Context(), "/registry/shop.example/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range rows.Kvs {
		t.Errorf("left behind: %s", kv.Key)
	}
}

// goroutines is the number of those that are not of connections, of which each client of a test has its own.
func goroutines() int {
	stacks := make([]byte, 64<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	n := 0
	for stack := range bytes.SplitSeq(stacks, []byte("\n\n")) {
		if !bytes.Contains(stack, []byte("net/http.")) {
			n++
		}
	}
	return n
}

// TestCustomResourcesOverARestart: what was defined and made before is there after, and is deleted with its workspace
// although nobody has asked for it since.
func TestCustomResourcesOverARestart(t *testing.T) {
	r := startServer(t, nil)
	for _, cluster := range []logicalcluster.Name{shop, bank} {
		r.makeNamespace(t, cluster, "default")
		c := r.custom(t, cluster)
		c.define(t, widgets(`{"size":{"type":"integer","default":`+map[logicalcluster.Name]string{shop: "1", bank: "2"}[cluster]+`}}`))
		if _, err := c.objects.Resource(widgetsV1).Namespace("default").Create(t.Context(), widget("w", map[string]any{}), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	r = r.restart(t)
	if err := r.DeleteCluster(t.Context(), shop); err != nil {
		t.Fatal(err)
	}
	// Another workspace of that name has none of it.
	r.makeCluster(t, shop)
	r.makeNamespace(t, shop, "default")
	inShop := r.custom(t, shop)
	waitFor(t, 30*time.Second, "a list without a definition is answered NotFound", func() (string, bool) {
		list, err := inShop.objects.Resource(widgetsV1).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			t.Fatalf("a new workspace has %v of the one before", list.Items)
		}
		return fmt.Sprint(err), apierrors.IsNotFound(err)
	})
	inShop.define(t, widgets(`{"size":{"type":"integer"}}`))
	list, err := inShop.objects.Resource(widgetsV1).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) > 0 {
		t.Errorf("a new workspace has %v of the one before (%v)", list, err)
	}
	got, err := r.custom(t, bank).objects.Resource(widgetsV1).Namespace("default").Get(t.Context(), "w", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if size, _, _ := unstructured.NestedInt64(got.Object, "spec", "size"); size != 2 {
		t.Errorf("after a restart: %v", got.Object)
	}
}

// TestCustomResourceDefinitionIsDeleted: its objects go first, and those with finalizers are waited for. Nothing new is made
// meanwhile.
func TestCustomResourceDefinitionIsDeleted(t *testing.T) {
	r := startServer(t, nil)
	r.makeNamespace(t, shop, "default")
	r.makeNamespace(t, shop, "other")
	c := r.custom(t, shop)
	crd := c.define(t, widgets(`{"size":{"type":"integer"}}`))
	held := widget("held", map[string]any{})
	held.SetFinalizers([]string{"shop.example/hold"})
	for namespace, w := range map[string]*unstructured.Unstructured{"default": held, "other": widget("free", map[string]any{})} {
		if _, err := c.objects.Resource(widgetsV1).Namespace(namespace).Create(t.Context(), w, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.definitions.ApiextensionsV1().CustomResourceDefinitions().Delete(t.Context(), crd.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.watch(t, crd, func(event watch.Event) bool {
		seen, ok := event.Object.(*apiextensionsv1.CustomResourceDefinition)
		return ok && slices.ContainsFunc(seen.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
			return c.Type == apiextensionsv1.Terminating && c.Status == apiextensionsv1.ConditionTrue && c.Reason == "InstanceDeletionInProgress"
		})
	})
	list, err := c.objects.Resource(widgetsV1).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"default/held"}, names(list)); diff != "" {
		t.Errorf("while the definition goes (-want +got):\n%s", diff)
	}
	_, err = c.objects.Resource(widgetsV1).Namespace("other").Create(t.Context(), widget("late", map[string]any{}), metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "terminating") {
		t.Errorf("create while the definition goes: %v, want Forbidden", err)
	}
	_, err = c.objects.Resource(widgetsV1).Namespace("other").Apply(t.Context(), "late", widget("late", map[string]any{}), metav1.ApplyOptions{FieldManager: "m"})
	if !apierrors.IsForbidden(err) {
		t.Errorf("apply of a new object while the definition goes: %v, want Forbidden", err)
	}
	if _, err := c.objects.Resource(widgetsV1).Namespace("default").Patch(t.Context(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaitGone(t, crd)
	again := c.define(t, widgets(`{"size":{"type":"integer"}}`))
	if list, err = c.objects.Resource(widgetsV1).List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 || again.UID == crd.UID {
		t.Errorf("a new definition of that name has %v of the one before (%v)", list, err)
	}
}

// TestCustomResourceNamesConflictInOneWorkspace: names are those of one logical cluster, built-in ones included, and are
// free again when their definition goes.
func TestCustomResourceNamesConflictInOneWorkspace(t *testing.T) {
	r := startServer(t, nil)
	inShop := r.custom(t, shop)
	first := inShop.define(t, widgets(`{}`))
	second := widgets(`{}`)
	second.Name, second.Spec.Names.Plural, second.Spec.Names.Singular, second.Spec.Names.Kind = "gadgets.shop.example", "gadgets", "gadget", "Gadget"
	r.custom(t, bank).define(t, second.DeepCopy())
	made, err := inShop.definitions.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), second, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	refused := inShop.await(t, made, apiextensionsv1.NamesAccepted, apiextensionsv1.ConditionFalse)
	if i := slices.IndexFunc(refused.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
		return c.Type == apiextensionsv1.NamesAccepted && c.Reason == "ShortNamesConflict" && c.Message == `"wd" is already in use`
	}); i < 0 {
		t.Errorf("conditions: %+v", refused.Status.Conditions)
	}
	if err := inShop.definitions.ApiextensionsV1().CustomResourceDefinitions().Delete(t.Context(), first.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	inShop.await(t, refused, apiextensionsv1.Established, apiextensionsv1.ConditionTrue)

	for _, own := range []string{"customresourcedefinitions.apiextensions.k8s.io", "deployments.placement.atoll.dev", "workspaces.tenancy.kcp.io"} {
		plural, group, _ := strings.Cut(own, ".")
		crd := widgets(`{}`)
		crd.Name, crd.Spec.Group = own, group
		crd.Annotations = map[string]string{apiextensionsv1.KubeAPIApprovedAnnotation: "unapproved, for a test"}
		crd.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: "Odd"}
		made, err := inShop.definitions.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), crd, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if own == "deployments.placement.atoll.dev" {
			inShop.await(t, made, apiextensionsv1.Established, apiextensionsv1.ConditionTrue)
			continue
		}
		made = inShop.await(t, made, apiextensionsv1.NamesAccepted, apiextensionsv1.ConditionFalse)
		if err := inShop.definitions.ApiextensionsV1().CustomResourceDefinitions().Delete(t.Context(), own, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		inShop.awaitGone(t, made)
	}
}

// TestCustomResourcesOfAnotherServer: what one server has said to be established, another one on the same etcd serves at
// once, in its newest version too, although it may not have heard of it.
func TestCustomResourcesOfAnotherServer(t *testing.T) {
	one := startServer(t, nil)
	options := *one.options
	other := startServerOver(t, one.data, one.credentials, &options)
	here, there := one.custom(t, shop), other.custom(t, shop)
	for i := range 20 {
		crd := clusterScoped(widgets(`{"size":{"type":"integer"}}`))
		gvr := widgetsV1
		gvr.Resource = fmt.Sprintf("widget%ds", i)
		crd.Name = gvr.Resource + ".shop.example"
		crd.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: gvr.Resource, Kind: fmt.Sprintf("Widget%d", i)}
		made := here.define(t, crd)
		if _, err := there.objects.Resource(gvr).List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Errorf("%s on the other server: %v", gvr.Resource, err)
		}
		version := `[{"op":"add","path":"/spec/versions/-","value":{"name":"v2","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object"}}}}]`
		if _, err := here.definitions.ApiextensionsV1().CustomResourceDefinitions().Patch(t.Context(), made.Name, types.JSONPatchType, []byte(version), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		gvr.Version = "v2"
		if _, err := there.objects.Resource(gvr).List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Errorf("%s in a new version on the other server: %v", gvr.Resource, err)
		}
	}
}
