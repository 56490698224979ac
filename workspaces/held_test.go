package workspaces_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/workspaces"
)

var widgets = schema.GroupVersionResource{Group: "shop.example", Version: "v1", Resource: "widgets"}

// define makes widgets known in a logical cluster.
func (h *hub) define(cluster logicalcluster.Name) {
	h.t.Helper()
	def := &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.shop.example"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: widgets.Group, Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
			}},
		},
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(def)
	must(h.t, err)
	definitions := h.clients.Dynamic.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	_, err = definitions.Create(client.In(h.ctx, cluster), &unstructured.Unstructured{Object: object}, metav1.CreateOptions{})
	must(h.t, err)
	eventually(h.t, "widgets are served", func() string {
		if _, err := h.clients.Dynamic.Resource(widgets).List(client.In(h.ctx, cluster), metav1.ListOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
}

func widget(name string, finalizers ...string) *unstructured.Unstructured {
	w := &unstructured.Unstructured{}
	w.SetAPIVersion("shop.example/v1")
	w.SetKind("Widget")
	w.SetName(name)
	w.SetFinalizers(finalizers)
	return w
}

// waitsFor waits until a Workspace of root says what its deletion waits for, and returns it.
func (h *hub) waitsFor(name string, parts ...string) string {
	h.t.Helper()
	var message string
	eventually(h.t, fmt.Sprintf("workspace %s says that it waits for %q", name, parts), func() string {
		w := &tenancyv1alpha1.Workspace{}
		must(h.t, h.clients.Objects.Get(client.In(h.ctx, workspaces.Root), types.NamespacedName{Name: name}, w))
		c := meta.FindStatusCondition(w.Status.Conditions, tenancyv1alpha1.WorkspaceContentDeleted)
		if c == nil {
			return fmt.Sprintf("%+v", w.Status)
		}
		for _, part := range parts {
			if !strings.Contains(c.Message, part) {
				return c.Message
			}
		}
		message = c.Message
		return ""
	})
	return message
}

// unfinalize removes all finalizers of an object that is being deleted.
func (h *hub) unfinalize(cluster logicalcluster.Name, object ctrlclient.Object) {
	h.t.Helper()
	ctx := client.In(h.ctx, cluster)
	eventually(h.t, fmt.Sprintf("%T %q is being deleted", object, object.GetName()), func() string {
		must(h.t, h.clients.Objects.Get(ctx, ctrlclient.ObjectKeyFromObject(object), object))
		if object.GetDeletionTimestamp() == nil {
			return fmt.Sprintf("finalizers %v, no deletionTimestamp", object.GetFinalizers())
		}
		return ""
	})
	object.SetFinalizers(nil)
	must(h.t, h.clients.Objects.Update(ctx, object))
}

// What finalizers hold in a workspace is deleted as by anybody, and everything else is still there for those who have to
// react. The workspace says what it waits for.
func TestDeleteHonoursFinalizers(t *testing.T) {
	const mine = "shop.example/clean-up"
	h := startHub(t)
	cluster := logicalcluster.Name(h.create(h.clients, workspaces.Root, "shop").Spec.Cluster)
	inShop := client.In(h.ctx, cluster)
	h.define(cluster)
	objects := h.clients.Dynamic.Resource(widgets)
	for _, w := range []*unstructured.Unstructured{widget("held", mine), widget("free")} {
		_, err := objects.Create(inShop, w, metav1.CreateOptions{})
		must(t, err)
	}
	held, going, system := configMap("held"), configMap("going"), configMap("system")
	held.Finalizers, going.Finalizers = []string{mine}, []string{mine}
	system.Namespace = metav1.NamespaceSystem
	system.Finalizers = []string{"kubernetes.io/pvc-protection"} // whose controller runs elsewhere
	for _, cm := range []*corev1.ConfigMap{held, going, system, configMap("free")} {
		must(t, h.clients.Objects.Create(inShop, cm))
	}
	must(t, h.clients.Objects.Delete(inShop, configMap("going")))
	ns := &corev1.Namespace{}
	must(t, h.clients.Objects.Get(inShop, types.NamespacedName{Name: "default"}, ns))
	ns.Spec.Finalizers = append(ns.Spec.Finalizers, "shop.example/namespace")
	_, err := h.clients.Kube.CoreV1().Namespaces().Finalize(inShop, ns, metav1.UpdateOptions{})
	must(t, err)

	h.remove(workspaces.Root, "shop")
	message := h.waitsFor("shop", "finalizers of configmaps (2), namespaces (1), widgets.shop.example (1)", mine+" (3)", "shop.example/namespace (1)")
	if strings.Contains(message, "pvc-protection") {
		t.Errorf("waits for what nobody removes: %s", message)
	}
	for _, what := range []string{"free", "held"} {
		if _, err := objects.Get(inShop, what, metav1.GetOptions{}); err != nil {
			t.Errorf("widget %q, while another is waited for: %v", what, err)
		}
	}
	// The namespace is emptied, because it was asked to go.
	h.unfinalize(cluster, held)
	h.unfinalize(cluster, going)
	h.waitsFor("shop", "finalizers of namespaces (1), widgets.shop.example (1)")
	eventually(t, "namespace default waits for the last finalizer", func() string {
		must(t, h.clients.Objects.Get(inShop, types.NamespacedName{Name: "default"}, ns))
		return cmp.Diff([]corev1.FinalizerName{"shop.example/namespace"}, ns.Spec.Finalizers)
	})
	ns.Spec.Finalizers = nil
	_, err = h.clients.Kube.CoreV1().Namespaces().Finalize(inShop, ns, metav1.UpdateOptions{})
	must(t, err)
	h.waitsFor("shop", "finalizers of widgets.shop.example (1): "+mine+" (1)")
	if _, err := objects.Get(inShop, "free", metav1.GetOptions{}); err != nil {
		t.Errorf("the other widget, while one is waited for: %v", err)
	}
	last, err := objects.Get(inShop, "held", metav1.GetOptions{})
	must(t, err)
	if last.GetDeletionTimestamp() == nil {
		t.Error("the widget that is waited for is not being deleted")
	}
	last.SetFinalizers(nil)
	_, err = objects.Update(inShop, last, metav1.UpdateOptions{})
	must(t, err)
	h.gone(workspaces.Root, "shop")
	if rows := h.rows(cluster); len(rows) > 0 {
		t.Errorf("rows left: %v", rows)
	}
}

// Nobody can remove the finalizers of an object whose definition is gone, and no request reaches it: it goes.
func TestDeleteTakesWhatNothingServes(t *testing.T) {
	h := startHub(t)
	cluster := logicalcluster.Name(h.create(h.clients, workspaces.Root, "shop").Spec.Cluster)
	h.define(cluster)
	_, err := h.clients.Dynamic.Resource(widgets).Create(client.In(h.ctx, cluster), widget("held", "shop.example/clean-up"), metav1.CreateOptions{})
	must(t, err)
	for _, row := range h.rows(cluster) {
		if strings.Contains(row, "customresourcedefinitions") {
			_, err := h.etcd.Delete(h.ctx, row)
			must(t, err)
		}
	}
	eventually(t, "widgets are not served", func() string {
		_, err := h.clients.Dynamic.Resource(widgets).List(client.In(h.ctx, cluster), metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			return ""
		}
		return fmt.Sprint(err)
	})
	h.remove(workspaces.Root, "shop")
	h.gone(workspaces.Root, "shop")
	if rows := h.rows(cluster); len(rows) > 0 {
		t.Errorf("rows left: %v", rows)
	}
}

// Who has a finalizer on the LogicalCluster sees it being deleted, and finds everything else until done.
func TestDeleteHonoursFinalizersOfTheLogicalCluster(t *testing.T) {
	for name, late := range map[string]bool{"shop": false, "late": true} {
		h := startHub(t)
		w := h.create(h.clients, workspaces.Root, name)
		cluster := logicalcluster.Name(w.Spec.Cluster)
		inShop := client.In(h.ctx, cluster)
		must(t, h.clients.Objects.Create(inShop, configMap("cm")))
		lc := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: corev1alpha1.LogicalClusterName}}
		finalize := func() {
			must(t, h.clients.Objects.Get(inShop, ctrlclient.ObjectKeyFromObject(lc), lc))
			lc.Finalizers = append(lc.Finalizers, "shop.example/clean-up")
			must(t, h.clients.Objects.Update(inShop, lc))
		}
		if late { // when the data is gone
			h.onDelete(func(ctx context.Context, c logicalcluster.Name) (lcctx.Held, error) {
				h.onDelete(nil)
				finalize()
				return h.server.DeleteClusterData(ctx, c)
			})
		} else {
			finalize()
		}
		h.remove(workspaces.Root, name)
		h.waitsFor(name, "finalizers of logicalclusters.core.kcp.io (1): shop.example/clean-up (1)")
		if err := h.clients.Objects.Get(inShop, types.NamespacedName{Namespace: "default", Name: "cm"}, &corev1.ConfigMap{}); !late && err != nil {
			t.Errorf("%s: data is gone before the LogicalCluster's finalizer: %v", name, err)
		}
		must(t, h.clients.Objects.Get(inShop, ctrlclient.ObjectKeyFromObject(lc), lc))
		if lc.DeletionTimestamp == nil {
			t.Errorf("%s: %+v, want a deletionTimestamp", name, lc.ObjectMeta)
		}
		lc.Finalizers = []string{corev1alpha1.LogicalClusterFinalizer}
		must(t, h.clients.Objects.Update(inShop, lc))
		h.gone(workspaces.Root, name)
		if rows := h.rows(cluster); len(rows) > 0 {
			t.Errorf("%s: rows left: %v", name, rows)
		}
	}
}

// What removes a finalizer may run in a physical cluster: it stays for a while.
func TestDeleteKeepsWhatRunsForFinalizers(t *testing.T) {
	h := startHub(t)
	cluster := logicalcluster.Name(h.create(h.clients, workspaces.Root, "shop").Spec.Cluster)
	inShop := client.In(h.ctx, cluster)
	held := configMap("held")
	held.Finalizers = []string{"shop.example/clean-up"}
	must(t, h.clients.Objects.Create(inShop, held))
	p := &placementv1alpha1.Placement{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: placementv1alpha1.PlacementSpec{
		Namespace: "default", Clusters: []placementv1alpha1.PlacedCluster{{Name: "west", UID: "v", Workspace: "root", Mirror: "other", Weight: 1}}}}
	must(t, h.clients.Objects.Create(inShop, p))
	h.remove(workspaces.Root, "shop")
	h.waitsFor("shop", "finalizers of configmaps (1)")
	must(t, h.clients.Objects.Get(inShop, types.NamespacedName{Name: "default"}, p))
	if len(p.Spec.Clusters) == 0 {
		t.Error("the placement is empty while a finalizer is waited for")
	}
	h.unfinalize(cluster, held)
	h.gone(workspaces.Root, "shop")
}
