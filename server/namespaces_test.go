package server

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/server/namespaces"
)

// TestNamespaceWaitsForWhatIsNotServed: of a definition without a served version discovery says nothing, and its objects would
// be in the next namespace of that name, as they are in Kubernetes. So a namespace waits for them, says so, and goes with them
// when they are served, or when their definition goes.
func TestNamespaceWaitsForWhatIsNotServed(t *testing.T) {
	r := startServer(t, nil)
	runController(t, r, func(c *client.Clients, i *client.Informers) (*namespaces.Controller, error) {
		return namespaces.New(c, i, namespaces.Options{RootCA: r.CACertificate(), Read: r.Read, Custom: r.CustomIn})
	})
	c := r.custom(t, shop)
	all := r.in(t, shop).CoreV1().Namespaces()
	definitions := c.definitions.ApiextensionsV1().CustomResourceDefinitions()
	made := c.define(t, widgets(`{"size":{"type":"integer"}}`))
	serve := func(served bool) {
		t.Helper()
		_, err := definitions.Patch(t.Context(), made.Name, types.JSONPatchType, fmt.Appendf(nil, `[{"op":"replace","path":"/spec/versions/0/served","value":%t}]`, served), metav1.PatchOptions{})
		must(t, err)
	}
	for _, tc := range []struct {
		name string
		end  func()
	}{
		{"served again", func() { serve(true) }},
		{"definition goes", func() { must(t, definitions.Delete(t.Context(), made.Name, metav1.DeleteOptions{})) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r.makeNamespace(t, shop, "team")
			r.makeNamespace(t, bank, "team")
			_, err := c.objects.Resource(widgetsV1).Namespace("team").Create(t.Context(), widget("kept", map[string]any{"size": int64(1)}), metav1.CreateOptions{})
			must(t, err)
			serve(false)
			waitFor(t, 30*time.Second, "discovery does not name it", func() (string, bool) {
				found, err := r.in(t, shop).Discovery().ServerResourcesForGroupVersion(widgetsV1.GroupVersion().String())
				return fmt.Sprint(found, err), apierrors.IsNotFound(err)
			})
			must(t, all.Delete(t.Context(), "team", metav1.DeleteOptions{}))
			waitFor(t, 30*time.Second, "the namespace says what it waits for", func() (string, bool) {
				ns, err := all.Get(t.Context(), "team", metav1.GetOptions{})
				if err != nil {
					t.Fatalf("read the namespace that holds an object which is not served: %v", err)
				}
				for _, condition := range ns.Status.Conditions {
					if condition.Type == corev1.NamespaceDeletionDiscoveryFailure && condition.Status == corev1.ConditionTrue {
						return "", true
					}
				}
				return fmt.Sprintf("%+v", ns.Status), false
			})
			must(t, r.in(t, bank).CoreV1().Namespaces().Delete(t.Context(), "team", metav1.DeleteOptions{}))
			waitFor(t, 30*time.Second, "another workspace's namespace of that name goes", func() (string, bool) {
				_, err := r.in(t, bank).CoreV1().Namespaces().Get(t.Context(), "team", metav1.GetOptions{})
				return fmt.Sprint(err), apierrors.IsNotFound(err)
			})
			tc.end()
			waitFor(t, time.Minute, "the namespace goes", func() (string, bool) {
				ns, err := all.Get(t.Context(), "team", metav1.GetOptions{})
				return fmt.Sprintf("%v %+v", err, ns.Status), apierrors.IsNotFound(err)
			})
			left, err := r.CustomIn(t.Context(), shop, "team")
			must(t, err)
			if len(left) > 0 {
				t.Errorf("left for the next namespace of that name: %v", left)
			}
		})
	}
}
