package server

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
)

// TestPodsGoWhereNobodySaysSo: of Jobs and ReplicationControllers Kubernetes keeps the pods where their deletion says nothing. Here they go, in the
// background: to ask once more is as to ask once, and the garbage collector has nothing to do before. Who says nothing is warned.
func TestPodsGoWhereNobodySaysSo(t *testing.T) {
	const held, words = "example.com/held", "go with them, although the deletion does not say so"
	r := startServer(t, func(*Options) {})
	for _, cluster := range []logicalcluster.Name{shop, east} {
		r.makeNamespace(t, cluster, team)
	}
	for resource, kind := range map[schema.GroupVersionResource]schema.GroupVersionKind{
		batchv1.SchemeGroupVersion.WithResource("jobs"):                  batchv1.SchemeGroupVersion.WithKind("Job"),
		corev1.SchemeGroupVersion.WithResource("replicationcontrollers"): corev1.SchemeGroupVersion.WithKind("ReplicationController"),
	} {
		restarts := map[string]string{"Job": "Never", "ReplicationController": "Always"}[kind.Kind]
		for _, cluster := range []logicalcluster.Name{shop, east} { // a workspace, and a mirror
			t.Run(resource.Resource+" in "+string(cluster), func(t *testing.T) {
				p := r.place(t, cluster)
				objects := p.objects.Resource(resource).Namespace(team)
				// asks makes one that a finalizer holds, unless it is there, has it deleted, and returns its finalizers.
				asks := func(name string, ask func(name string) error) (finalizers []string) {
					t.Helper()
					if _, err := objects.Get(t.Context(), name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
						o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{
							"metadata": map[string]any{"labels": map[string]any{"app": name}},
							"spec":     map[string]any{"restartPolicy": restarts, "containers": []any{map[string]any{"name": "c", "image": "i"}}},
						}}}}
						o.SetGroupVersionKind(kind)
						o.SetName(name)
						o.SetFinalizers([]string{held})
						_, err := objects.Create(t.Context(), o, metav1.CreateOptions{})
						must(t, err)
					}
					p.told.take()
					must(t, ask(name))
					now, err := objects.Get(t.Context(), name, metav1.GetOptions{})
					must(t, err)
					if now.GetDeletionTimestamp() == nil {
						t.Errorf("%s is not deleted", name)
					}
					return now.GetFinalizers()
				}
				with := func(policy *metav1.DeletionPropagation) func(string) error {
					return func(name string) error {
						return objects.Delete(t.Context(), name, metav1.DeleteOptions{PropagationPolicy: policy})
					}
				}
				all := func(string) error {
					return objects.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
				}
				foreground := ptr.To(metav1.DeletePropagationForeground)
				for _, step := range []struct {
					name, reason string
					ask          func(string) error
					finalizers   []string
					silent       bool
				}{
					{"once", "nothing is said", with(nil), []string{held}, true},
					{"once", "once more", with(nil), []string{held}, true},
					{"said", "as kubectl does", with(ptr.To(metav1.DeletePropagationBackground)), []string{held}, false},
					{"all", "as one by one", all, []string{held}, true},
					{"waits", "it goes after them", with(foreground), []string{held, metav1.FinalizerDeleteDependents}, false},
					{"waits", "what was said holds on", with(nil), []string{held, metav1.FinalizerDeleteDependents}, false},
				} {
					if diff := cmp.Diff(step.finalizers, asks(step.name, step.ask)); diff != "" {
						t.Errorf("%s, %s: finalizers (-want +got):\n%s", step.name, step.reason, diff)
					}
					got := p.told.take()
					if warned := len(got) == 1 && strings.Contains(got[0], words); warned != (step.silent && cluster == shop) || len(got) > 0 && !warned {
						t.Errorf("%s, %s: warnings %q", step.name, step.reason, got)
					}
				}
				if err := with(ptr.To(metav1.DeletePropagationOrphan))("once"); apierrors.IsForbidden(err) != (cluster == shop) {
					t.Errorf("to keep the pods: %v", err)
				}
			})
		}
	}
}
