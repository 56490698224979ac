package splitter

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// TestNeededByWhatIsNew: a ConfigMap stays where a Deployment that refers to it is about to be, although no leaf of it is there
// yet, nor the informer may show it.
func TestNeededByWhatIsNew(t *testing.T) {
	t.Parallel()
	now := metav1.Now()
	for name, tc := range map[string]struct {
		change func(*appsv1.Deployment)
		mirror string
		want   bool
		reason string
	}{
		"New":     {func(*appsv1.Deployment) {}, mirrorEast, true, "its pods will want it"},
		"Else":    {func(*appsv1.Deployment) {}, "mirror-west", false, "it is placed elsewhere"},
		"Refers":  {func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers = nil }, mirrorEast, false, "it refers to nothing"},
		"Deleted": {func(d *appsv1.Deployment) { d.DeletionTimestamp, d.Finalizers = &now, []string{"held/held"} }, mirrorEast, false, "it goes"},
	} {
		t.Run(name, func(t *testing.T) {
			root, _ := pair("Deployment", "web")
			d := root.(*appsv1.Deployment)
			d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "web", EnvFrom: []corev1.EnvFromSource{{
				ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}},
			}}}}
			tc.change(d)
			p := placementOf("", "Placed", tc.mirror)
			m := newMirrored(t, d, p)
			leaf := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings", Namespace: "front-hash", UID: "leaf",
				Labels:      map[string]string{workloadv1alpha1.WorkspaceLabel: "shop", workloadv1alpha1.RootUIDLabel: "root"},
				Annotations: map[string]string{lcctx.Annotation: mirrorEast}}}
			got, err := m.needed(t.Context(), m.sources["ConfigMap"], client.Key{Cluster: "shop", Namespace: "front", Name: "settings"}, p, ctrlclient.Object(leaf))
			if err != nil || got != tc.want {
				t.Errorf("%s: needed is %v, %v", tc.reason, got, err)
			}
		})
	}
}
