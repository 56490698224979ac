package splitter

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// FuzzLeafAnnotations: what a leaf says of its root is about the workspace in its label, whatever the rest is; and what it says of
// a refusal is one of what it is rendered to, or unreadable, which is told.
func FuzzLeafAnnotations(f *testing.F) {
	for _, root := range []string{"", "default/web", "/default", "web", "a/b/c", "|", "other|default/web", "\x00"} {
		for _, refused := range []string{"", "{}", "null", "[]", `{"reason":"Invalid","message":"no","rendered":"r"}`, `{"rendered":1}`, "{", "no JSON"} {
			f.Add("abcdefghijklmnop", root, refused, "r")
		}
	}
	f.Fuzz(func(t *testing.T, workspace, root, refused, rendered string) {
		if len(validation.IsValidLabelValue(workspace)) > 0 {
			return // not stored
		}
		leaf := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
			Labels: map[string]string{workloadv1alpha1.WorkspaceLabel: workspace},
			Annotations: map[string]string{
				workloadv1alpha1.RootAnnotation: root, workloadv1alpha1.RefusedAnnotation: refused, workloadv1alpha1.RenderedAnnotation: rendered,
			},
		}}
		if key, ok := rootOf(leaf); ok != (workspace != "" && root != "") || ok && string(key.Cluster) != workspace {
			t.Errorf("a leaf of %q with root %q is of %v, %v", workspace, root, key, ok)
		}
		switch r := workloadv1alpha1.RefusalOf(leaf); {
		case refused == "" && r != nil:
			t.Errorf("nothing was refused, and yet %+v", r)
		case r != nil && r.Rendered != rendered && (r.Reason != "Refused" || r.Message != refused):
			t.Errorf("%q of a leaf rendered to %q is told as %+v", refused, rendered, r)
		}
	})
}
