package kinds

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// TestWithoutContent: what informers hold of a revision says the same of its template as the workload that has it, and is little.
func TestWithoutContent(t *testing.T) {
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "1"}}},
	}
	want := TemplateDigest(&template)
	set := &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Template: *template.DeepCopy(), Selector: &metav1.LabelSelector{}}}
	set.Spec.Template.Labels[appsv1.DefaultDeploymentUniqueLabelKey] = "x"
	annotations := map[string]string{"a": "b"}
	set.Annotations = annotations
	for range 2 { // what is held is transformed again
		WithoutContent(set)
		if got := set.Annotations[DigestAnnotation]; got != want || set.Annotations["a"] != "b" {
			t.Errorf("a ReplicaSet says %v, want the digest %s", set.Annotations, want)
		}
	}
	if len(set.Spec.Template.Spec.Containers) > 0 || set.Spec.Selector != nil || len(annotations) != 1 {
		t.Errorf("it is %+v, and what it was made of has the annotations %v", set, annotations)
	}
	template.Spec.Containers[0].Image = "2"
	if TemplateDigest(&template) == want {
		t.Error("two templates have one digest")
	}

	patch := TemplatePatch(&template)
	revision := &appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: patch}}
	for range 2 {
		WithoutContent(revision)
		if got := revision.Annotations[DigestAnnotation]; got != PatchDigest(patch) || revision.Data.Raw != nil {
			t.Errorf("a ControllerRevision says %v and %s", revision.Annotations, revision.Data.Raw)
		}
	}
	if RevisionHash(want, nil) == RevisionHash(want, ptr.To[int32](1)) {
		t.Error("after a collision comes the same name")
	}
	if RevisionHash(want, nil) != RevisionHash(want, ptr.To[int32](0)) {
		t.Error("another name comes without a collision: a template has two revisions, if the first is not seen yet")
	}
}

// TestTemplatePatch: kubectl compares it byte by byte with one that it makes itself.
func TestTemplatePatch(t *testing.T) {
	got := string(TemplatePatch(&corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "<1>"}}},
	}))
	want := `{"spec":{"template":{"$patch":"replace","metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"image":"\u003c1\u003e","name":"web","resources":{}}]}}}}`
	if got != want {
		t.Errorf("it is\n%s, want\n%s", got, want)
	}
}
