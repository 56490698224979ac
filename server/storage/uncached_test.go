package storage

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/crdserverscheme"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/ptr"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

// widgetStore is upstream's registry of a custom resource over the Backend.
func widgetStore(t *testing.T, b *Backend) *genericregistry.Store {
	t.Helper()
	kind := schema.GroupVersionKind{Group: "shop.example", Version: "v1", Kind: "Widget"}
	listKind := kind
	listKind.Kind = "WidgetList"
	resource := schema.GroupResource{Group: "shop.example", Resource: "widgets"}
	validator, _, err := validation.NewSchemaValidator(&apiextensions.JSONSchemaProps{Type: "object"})
	if err != nil {
		t.Fatal(err)
	}
	table, err := tableconvertor.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	made, err := customresource.NewStorage(resource, resource, kind, listKind,
		customresource.NewStrategy(crdserverscheme.NewUnstructuredObjectTyper(), true, kind, validator, nil, nil, nil, nil, nil),
		b.Uncached(unstructured.UnstructuredJSONScheme), nil, table, nil)
	if err != nil {
		t.Fatal(err)
	}
	return made.CustomResource.Store
}

func widget(name, value string) *unstructured.Unstructured {
	w := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"v": value}}}
	w.SetAPIVersion("shop.example/v1")
	w.SetKind("Widget")
	w.SetNamespace("default")
	w.SetName(name)
	w.SetLabels(map[string]string{"name": name})
	return w
}

// TestUncachedKeepsClustersApart runs every verb on a resource without a cache, of objects without a type, on names that
// exist in two logical clusters.
func TestUncachedKeepsClustersApart(t *testing.T) {
	b := serve(t, prefixOf(t), nil).Backend
	s := widgetStore(t, b)
	for _, cluster := range []string{"aa", "bb", "aabb"} {
		for _, name := range []string{"x", "y", "z"} {
			w := widget(name, cluster)
			w.SetAnnotations(map[string]string{lc.Annotation: "bb", "kept": "yes"})
			create(t, s, in(cluster, "default"), w)
		}
	}
	create(t, s, in("bb", "default"), widget("only-b", "bb"))
	ofA := []string{"aa/default/x", "aa/default/y", "aa/default/z"}
	ofB := []string{"bb/default/only-b", "bb/default/x", "bb/default/y", "bb/default/z"}

	got, err := s.Get(in("aa", "default"), "x", &metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	x := got.(*unstructured.Unstructured)
	if v, _, _ := unstructured.NestedString(x.Object, "spec", "v"); v != "aa" || lc.NameFrom(x) != "aa" || x.GetAnnotations()["kept"] != "yes" {
		t.Errorf("get in aa: %v", x.Object)
	}
	if _, err := s.Get(in("aa", "default"), "only-b", &metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get of a name of another cluster: %v, want NotFound", err)
	}
	for _, opts := range []*metainternalversion.ListOptions{nil, {ResourceVersion: "0"}, {Limit: 10}, {ResourceVersion: x.GetResourceVersion(), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}} {
		for where, ctx := range map[string]func() []string{
			"default":        func() []string { return names(t, s, in("aa", "default"), opts) },
			"all namespaces": func() []string { return names(t, s, in("aa"), opts) },
		} {
			if diff := cmp.Diff(ofA, ctx()); diff != "" {
				t.Errorf("list %+v of %s in aa (-want +got):\n%s", opts, where, diff)
			}
		}
	}
	first, token := page(t, s, in("bb"), &metainternalversion.ListOptions{Limit: 1})
	others, _ := page(t, s, in("bb"), &metainternalversion.ListOptions{Limit: 10, Continue: token})
	if diff := cmp.Diff(ofB, append(first, others...)); diff != "" {
		t.Errorf("pages of bb (-want +got):\n%s", diff)
	}
	for _, name := range names(t, s, in("aa"), &metainternalversion.ListOptions{Limit: 10, Continue: token}) {
		if !strings.HasPrefix(name, "aa/") {
			t.Errorf("the token of bb shows %s in aa", name)
		}
	}

	for start, opts := range map[string]*metainternalversion.ListOptions{
		"no position": {}, "position 0": {ResourceVersion: "0"},
		"stream": {SendInitialEvents: ptr.To(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true},
	} {
		w := startWatch(t, s, in("aa", "default"), opts)
		wantEvents(t, w, "ADDED aa/default/x", "ADDED aa/default/y", "ADDED aa/default/z")
		if opts.SendInitialEvents != nil {
			_, event := next(t, w)
			if ends, err := storage.HasInitialEventsEndBookmarkAnnotation(event.Object); event.Type != watch.Bookmark || !ends || err != nil {
				t.Errorf("%s: no bookmark after the initial events: %v (%v)", start, event, err)
			}
		}
		for _, cluster := range []string{"bb", "aabb", "aa"} {
			if _, _, err := s.Update(in(cluster, "default"), "x", changed(func(w *unstructured.Unstructured) {
				w.SetLabels(map[string]string{"since": strings.ReplaceAll(start, " ", "-")})
				w.SetAnnotations(map[string]string{lc.Annotation: "bb"})
			}), nil, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		wantEvents(t, w, "MODIFIED aa/default/x")
	}

	live := startWatch(t, s, in("aa"), &metainternalversion.ListOptions{ResourceVersion: x.GetResourceVersion(), LabelSelector: labels.SelectorFromSet(labels.Set{"name": "y"})})
	if _, _, err := s.Delete(in("aa", "default"), "only-b", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("delete of a name of another cluster: %v, want NotFound", err)
	}
	for _, cluster := range []string{"bb", "aa"} {
		if _, err := s.DeleteCollection(in(cluster, "default"), rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}, &metainternalversion.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{"name": "y"})}); err != nil {
			t.Fatal(err)
		}
	}
	for { // the one in aa, after what happened to it before
		if event, _ := next(t, live); event == "DELETED aa/default/y" {
			break
		} else if !strings.Contains(event, "aa/default/y") {
			t.Fatalf("event %s", event)
		}
	}
	if _, err := s.DeleteCollection(in("aa", "default"), rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}, &metainternalversion.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := names(t, s, in("aa"), nil); len(got) > 0 {
		t.Errorf("aa after deletecollection: %v", got)
	}
	if diff := cmp.Diff([]string{"bb/default/only-b", "bb/default/x", "bb/default/z"}, names(t, s, in("bb"), nil)); diff != "" {
		t.Errorf("bb after deletecollection in aa (-want +got):\n%s", diff)
	}

	lost := genericapirequest.WithNamespace(genericapirequest.NewContext(), "default")
	if _, err := s.List(lost, nil); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "widgets.shop.example") {
		t.Errorf("list without a logical cluster: %v, want an error that names the resource", err)
	}
	if _, err := s.Create(lost, widget("new", ""), rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); !apierrors.IsInternalError(err) {
		t.Errorf("create without a logical cluster: %v, want an internal error", err)
	}

	// Rows are plain, and are deleted with their logical cluster by a server that never opened the store.
	below := prefixOf(t) + "/shop.example/widgets/"
	want := []string{below + "aabb/default/x", below + "aabb/default/y", below + "aabb/default/z", below + "bb/default/only-b", below + "bb/default/x", below + "bb/default/z"}
	if diff := cmp.Diff(want, rowsBelow(t, below)); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	row, err := etcd.Client.Get(t.Context(), below+"bb/default/x")
	if err != nil || len(row.Kvs) != 1 {
		t.Fatal(row, err)
	}
	if plain := string(row.Kvs[0].Value); !strings.HasPrefix(plain, `{"apiVersion":"shop.example/v1"`) || strings.Contains(plain, lc.Annotation) {
		t.Errorf("the row is %s", plain)
	}
	b.Destroy()
	other := serve(t, prefixOf(t), nil)
	if err := other.DeleteClusterData(t.Context(), "bb", nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want[:3], rowsBelow(t, below)); diff != "" {
		t.Errorf("rows after bb was deleted (-want +got):\n%s", diff)
	}
}
