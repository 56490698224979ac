package kinds

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// A pod that asks the downward API for its namespace uses the answer in the API of its workspace, which knows no other name, and in the names of
// its peers, which are the workspace's only where the cluster's DNS knows workspaces. There the pod has the name in an annotation, and reads that
// instead. Why is in docs/design/0014-api-access.md.

const (
	// NamespaceField is where a pod reads what its namespace is called where it runs.
	NamespaceField = "metadata.namespace"
	// toldNamespace stands after an APIAccess in APIAccessAnnotation: the pods have NamespaceAnnotation.
	toldNamespace = ",Namespace"
)

// ToldNamespaceField is where a pod reads what its namespace is called in its workspace, if it has NamespaceAnnotation.
var ToldNamespaceField = fmt.Sprintf("metadata.annotations['%s']", workloadv1alpha1.NamespaceAnnotation)

// IsToldNamespace says of what pods are rendered to, or from, that they have NamespaceAnnotation, and read it.
func IsToldNamespace(obj metav1.Object) bool {
	return strings.HasSuffix(obj.GetAnnotations()[workloadv1alpha1.APIAccessAnnotation], toldNamespace)
}

// SetToldNamespace says so of an object, which the caller does not share, after SetAPIAccess. Pods without access to the API of their workspace
// are of a version before, and have no such annotation.
func SetToldNamespace(obj ctrlclient.Object, told bool) {
	access := string(APIAccessOf(obj))
	if told && access != string(NoAPIAccess) {
		access += toldNamespace
	}
	SetAnnotation(obj, workloadv1alpha1.APIAccessAnnotation, access)
}

// readTold has a pod read, in place, NamespaceAnnotation wherever it asks for its namespace.
func readTold(spec *corev1.PodSpec) { readFrom(spec, NamespaceField, ToldNamespaceField) }

// ReadOwn undoes readTold. Who has written himself what that writes is taken for one who asks for his namespace.
func ReadOwn(spec *corev1.PodSpec) { readFrom(spec, ToldNamespaceField, NamespaceField) }

// readFrom has a pod that reads one of its fields read another one instead.
func readFrom(spec *corev1.PodSpec, field, instead string) {
	change := func(ref *corev1.ObjectFieldSelector) {
		if ref != nil && ref.FieldPath == field {
			ref.FieldPath = instead
		}
	}
	variables := func(env []corev1.EnvVar) {
		for i := range env {
			if from := env[i].ValueFrom; from != nil {
				change(from.FieldRef)
			}
		}
	}
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			variables(containers[i].Env)
		}
	}
	for i := range spec.EphemeralContainers {
		variables(spec.EphemeralContainers[i].Env)
	}
	files := func(items []corev1.DownwardAPIVolumeFile) {
		for i := range items {
			change(items[i].FieldRef)
		}
	}
	for i := range spec.Volumes {
		v := &spec.Volumes[i]
		if v.DownwardAPI != nil {
			files(v.DownwardAPI.Items)
		}
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			if s.DownwardAPI != nil {
				files(s.DownwardAPI.Items)
			}
		}
	}
}
