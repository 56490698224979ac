package kinds

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// asking is a template whose pods ask for a field of theirs wherever a pod can, and for others beside it.
func asking(field string) corev1.PodTemplateSpec {
	at := func(path string) *corev1.ObjectFieldSelector {
		return &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}
	}
	env := func() []corev1.EnvVar {
		return []corev1.EnvVar{
			{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: at("metadata.name")}},
			{Name: "POD_NAMESPACE", ValueFrom: &corev1.EnvVarSource{FieldRef: at(field)}},
			{Name: "HOST", Value: "$(POD_NAME).db.$(POD_NAMESPACE).svc.cluster.local"},
			{Name: "CPUS", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}}},
			{Name: "NOTE", ValueFrom: &corev1.EnvVarSource{FieldRef: at("metadata.annotations['note']")}},
		}
	}
	files := func() []corev1.DownwardAPIVolumeFile {
		return []corev1.DownwardAPIVolumeFile{{Path: "labels", FieldRef: at("metadata.labels")}, {Path: "namespace", FieldRef: at(field)}, {Path: "cpus", ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}}}
	}
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "db"}, Annotations: map[string]string{"note": "mine"}},
		Spec: corev1.PodSpec{
			InitContainers:      []corev1.Container{{Name: "init", Env: env()}},
			Containers:          []corev1.Container{{Name: "main", Env: env()}, {Name: "side", Env: env()}},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Env: env()}}},
			Volumes: []corev1.Volume{
				{Name: "empty", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "pod", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: files()}}},
				{Name: "both", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}, {DownwardAPI: &corev1.DownwardAPIProjection{Items: files()}},
				}}}},
			},
		},
	}
}

// TestReadTold: wherever a pod asks for its namespace it is told the workspace's, and nothing else that it asks for is touched; it is shown as it was written.
func TestReadTold(t *testing.T) {
	if ToldNamespaceField != "metadata.annotations['workload.atoll.dev/namespace']" {
		t.Errorf("it is read from %s", ToldNamespaceField)
	}
	for reason, field := range map[string]string{"it asks for its namespace": "metadata.namespace", "it reads the annotation by itself": ToldNamespaceField} {
		template := asking(field)
		readTold(&template.Spec)
		if diff := cmp.Diff(asking(ToldNamespaceField).Spec, template.Spec); diff != "" {
			t.Errorf("%s (-want +got):\n%s", reason, diff)
		}
		ReadOwn(&template.Spec)
		if diff := cmp.Diff(asking("metadata.namespace").Spec, template.Spec); diff != "" {
			t.Errorf("%s, as it is shown (-want +got):\n%s", reason, diff)
		}
	}
}

// TestToldNamespaceOfEachKind: of every kind that makes pods a template says what their namespace is called in the workspace where they are told so, whatever
// its author wrote there, and is as it always was elsewhere.
func TestToldNamespaceOfEachKind(t *testing.T) {
	for _, k := range All {
		if !k.MakesPods() || !k.HasLeaves() {
			continue
		}
		root := func(annotation string, told bool) ctrlclient.Object {
			obj := k.New()
			obj.SetNamespace("shop")
			SetAPIAccess(obj, ProjectedAPIAccess)
			SetToldNamespace(obj, told)
			*k.Template(obj) = asking("metadata.namespace")
			if annotation != "" {
				k.Template(obj).Annotations[workloadv1alpha1.NamespaceAnnotation] = annotation
			}
			return obj
		}
		for reason, annotation := range map[string]string{"as most are": "", "with an annotation of that name": "kube-system"} {
			of := root(annotation, true)
			want := asking(ToldNamespaceField)
			want.Annotations[workloadv1alpha1.NamespaceAnnotation] = "shop"
			got := k.Template(k.Content(of))
			got.Spec.AutomountServiceAccountToken = nil
			if diff := cmp.Diff(want, *got); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", k.GVK.Kind, reason, diff)
			}
			if diff := cmp.Diff(root(annotation, true), of); diff != "" {
				t.Errorf("%s, %s: what it was made of was changed:\n%s", k.GVK.Kind, reason, diff)
			}
			untold := k.Template(k.Content(root(annotation, false)))
			untold.Spec.AutomountServiceAccountToken = nil
			if diff := cmp.Diff(*k.Template(root(annotation, false)), *untold); diff != "" {
				t.Errorf("%s, %s, where they are not told (-want +got):\n%s", k.GVK.Kind, reason, diff)
			}
			if dropped := len(k.WhatIsDropped(of)); (dropped == 1) != (annotation != "") {
				t.Errorf("%s, %s: who applies it is warned of %d things", k.GVK.Kind, reason, dropped)
			}
		}
	}
	pods, _ := ByKind("Pod")
	pod := &corev1.Pod{Spec: asking("metadata.namespace").Spec}
	for told, field := range map[bool]string{true: ToldNamespaceField, false: "metadata.namespace"} {
		SetAPIAccess(pod, ProjectedAPIAccess)
		SetToldNamespace(pod, told)
		got := pods.Content(pod).(*corev1.Pod).Spec
		got.AutomountServiceAccountToken = nil
		if diff := cmp.Diff(asking(field).Spec, got); diff != "" {
			t.Errorf("a pod that is told: %v (-want +got):\n%s", told, diff)
		}
	}
}

// TestNamespaceBesideTokens: in a volume with a token the namespace is the Secret's, which is the workspace's everywhere.
func TestNamespaceBesideTokens(t *testing.T) {
	k, _ := ByKind("Deployment")
	root := k.New()
	root.SetNamespace("shop")
	SetAPIAccess(root, MountedAPIAccess)
	SetToldNamespace(root, true)
	k.Template(root).Spec.Containers = []corev1.Container{{Name: "main"}}
	got := k.Template(k.Content(root)).Spec.Volumes
	if len(got) != 1 || got[0].Projected == nil {
		t.Fatalf("its volumes are %+v", got)
	}
	for _, s := range got[0].Projected.Sources {
		if s.Secret == nil || s.Secret.Name != TokenSecret(DefaultAccount) {
			t.Errorf("a source of the volume is %+v", s)
		}
	}
}

// TestToldNamespace: what an object says of that leaves what it says of its access as it is, and there is none of it without.
func TestToldNamespace(t *testing.T) {
	for _, access := range []APIAccess{NoAPIAccess, ProjectedAPIAccess, MountedAPIAccess} {
		obj := &corev1.Pod{}
		for _, told := range []bool{true, true, false} {
			SetAPIAccess(obj, access)
			SetToldNamespace(obj, told)
			if got := APIAccessOf(obj); got != access {
				t.Errorf("access %q, told: %v, is read as %q", access, told, got)
			}
			if got, want := IsToldNamespace(obj), told && access != NoAPIAccess; got != want {
				t.Errorf("access %q, told: %v, is read as told: %v, want %v", access, told, got, want)
			}
		}
	}
}
