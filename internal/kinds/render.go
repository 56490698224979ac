package kinds

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// ownDomains are the prefixes of labels and annotations that are the hub's business and never go down as the user's.
var ownDomains = []string{"placement.atoll.dev/", "workload.atoll.dev/", "kcp.io/"}

// OwnAnnotations are written by clients and controllers about the object where they find it: of another one, such as its rendering,
// they would be untrue.
var OwnAnnotations = []string{
	corev1.LastAppliedConfigAnnotation,
	"deployment.kubernetes.io/revision",
	appsv1.DeprecatedTemplateGeneration,
}

// Metadata returns the labels and annotations of a root that go down.
func Metadata(root ctrlclient.Object) (labels, annotations map[string]string) {
	labels, annotations = map[string]string{}, map[string]string{}
	for k, v := range root.GetLabels() {
		if !own(k) {
			labels[k] = v
		}
	}
	for k, v := range root.GetAnnotations() {
		if !own(k) && !isOfBinder(k) && !slices.Contains(OwnAnnotations, k) {
			annotations[k] = v
		}
	}
	return labels, annotations
}

// own says that a key belongs to the hub; subdomains of kcp.io count (tenancy.kcp.io and others).
func own(key string) bool {
	for _, d := range ownDomains {
		if strings.HasPrefix(key, d) {
			return true
		}
	}
	domain, _, ok := strings.Cut(key, "/")
	return ok && strings.HasSuffix(domain, ".kcp.io")
}

// Hash names a rendering: the first 16 hex digits of the SHA-256 of an object's spec or data, labels and annotations,
// ours left out. Objects whose hashes are equal need not be written again.
func Hash(rendered ctrlclient.Object) (string, error) {
	o := rendered.DeepCopyObject().(ctrlclient.Object)
	labels, annotations := Metadata(o)
	raw, err := json.Marshal(o) // encoding/json sorts keys of maps
	if err != nil {
		return "", fmt.Errorf("hash %T %s: %w", rendered, rendered.GetName(), err)
	}
	var content map[string]json.RawMessage
	if err := json.Unmarshal(raw, &content); err != nil {
		return "", fmt.Errorf("hash %T %s: %w", rendered, rendered.GetName(), err)
	}
	for _, k := range []string{"metadata", "kind", "apiVersion", "status"} {
		delete(content, k)
	}
	raw, err = json.Marshal(struct {
		Labels, Annotations map[string]string
		Content             map[string]json.RawMessage
	}{labels, annotations, content})
	if err != nil {
		return "", fmt.Errorf("hash %T %s: %w", rendered, rendered.GetName(), err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8]), nil
}

func deploymentContent(root ctrlclient.Object) ctrlclient.Object {
	d := root.(*appsv1.Deployment)
	out := &appsv1.Deployment{Spec: *d.Spec.DeepCopy()}
	templateContent(&out.Spec.Template, root)
	return out
}

// templateContent makes of the template of a root's pods, in place, what goes down of it.
func templateContent(template *corev1.PodTemplateSpec, root ctrlclient.Object) {
	podsContent(&template.Spec, APIAccessOf(root))
	if IsToldNamespace(root) {
		readTold(&template.Spec)
		SetAnnotation(template, workloadv1alpha1.NamespaceAnnotation, root.GetNamespace()) // whatever its author wrote there
	}
}

// podsContent makes of a pod's spec what goes down of it, and returns what it took out of it, for people.
func podsContent(spec *corev1.PodSpec, access APIAccess) (dropped []string) {
	// A token of the physical cluster would be a credential for the wrong API.
	no := false
	spec.AutomountServiceAccountToken = &no
	// What names a Secret with tokens below is there because it was rendered: the server issues by it.
	return append(giveAPIAccess(spec, access), withinFloor(spec)...)
}

// withinFloor takes out of a pod's spec what reaches past its tenant in a physical cluster that several share, and
// returns what it took, for people.
func withinFloor(spec *corev1.PodSpec) (dropped []string) {
	if spec.NodeName != "" {
		spec.NodeName = ""
		dropped = append(dropped, "nodeName: nodes of a physical cluster are chosen by its scheduler")
	}
	if strings.HasPrefix(spec.PriorityClassName, "system-") {
		spec.PriorityClassName, spec.Priority = "", nil
		dropped = append(dropped, "priorityClassName: system classes are the physical cluster's own, and would evict others' pods")
	}
	for i := range spec.Volumes {
		projected := spec.Volumes[i].Projected
		if projected == nil {
			continue
		}
		before := len(projected.Sources)
		projected.Sources = slices.DeleteFunc(projected.Sources, isToken)
		if len(projected.Sources) < before {
			dropped = append(dropped, "serviceAccountToken in volume "+spec.Volumes[i].Name+": it would be a token of the physical cluster, not of this workspace")
		}
	}
	return dropped
}

// serviceContent drops what a physical cluster allocates by itself. A node port that the user chose cannot be told
// from one that was allocated, so none goes down. A headless Service keeps that it is one.
func serviceContent(root ctrlclient.Object) ctrlclient.Object {
	s := root.(*corev1.Service)
	out := &corev1.Service{Spec: *s.Spec.DeepCopy()}
	spec := &out.Spec
	if spec.ClusterIP == corev1.ClusterIPNone {
		spec.ClusterIPs = []string{corev1.ClusterIPNone}
	} else {
		spec.ClusterIP, spec.ClusterIPs = "", nil
	}
	spec.IPFamilies = nil
	spec.HealthCheckNodePort = 0
	spec.ExternalIPs = nil
	for i := range spec.Ports {
		spec.Ports[i].NodePort = 0
	}
	return out
}

// serviceDropped: whoever sets an external IP takes the traffic that other tenants send there (CVE-2020-8554).
func serviceDropped(root ctrlclient.Object) []string {
	if len(root.(*corev1.Service).Spec.ExternalIPs) > 0 {
		return []string{"externalIPs: they would draw the traffic of others in a physical cluster that several share"}
	}
	return nil
}

func configMapContent(root ctrlclient.Object) ctrlclient.Object {
	c := root.(*corev1.ConfigMap).DeepCopy()
	return &corev1.ConfigMap{Data: c.Data, BinaryData: c.BinaryData, Immutable: c.Immutable}
}

func secretContent(root ctrlclient.Object) ctrlclient.Object {
	s := root.(*corev1.Secret).DeepCopy()
	return &corev1.Secret{Data: s.Data, Type: s.Type, Immutable: s.Immutable}
}

func secretWithheld(root ctrlclient.Object) string {
	if IsTokenSecret(root.GetName()) {
		return "names that begin with " + tokenSecretPrefix + " are of the tokens that pods there talk to the API with"
	}
	switch t := root.(*corev1.Secret).Type; t {
	case corev1.SecretTypeServiceAccountToken, corev1.SecretTypeBootstrapToken:
		return "credentials of the workspace do not leave it"
	case "helm.sh/release.v1":
		return "records of Helm releases stay in the workspace"
	}
	return ""
}

func serviceAccountContent(root ctrlclient.Object) ctrlclient.Object {
	no := false
	return &corev1.ServiceAccount{
		ImagePullSecrets:             slices.DeleteFunc(root.(*corev1.ServiceAccount).DeepCopy().ImagePullSecrets, func(r corev1.LocalObjectReference) bool { return IsTokenSecret(r.Name) }),
		AutomountServiceAccountToken: &no,
	}
}
