package kinds

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

func TestContent(t *testing.T) {
	no := ptr.To(false)
	tests := map[string]struct {
		reason     string
		root, want ctrlclient.Object
	}{
		"ServiceAllocated": {"what a cluster allocates is left to it",
			&corev1.Service{Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.255.0.7", ClusterIPs: []string{"10.255.0.7"},
				IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, HealthCheckNodePort: 30001, LoadBalancerClass: ptr.To("fast"),
				Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}},
			}},
			&corev1.Service{Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: ptr.To("fast"), Ports: []corev1.ServicePort{{Port: 80}},
			}}},
		"Ingress": {"pods' tokens are no certificates",
			&networkingv1.Ingress{Spec: networkingv1.IngressSpec{TLS: []networkingv1.IngressTLS{{SecretName: "site"}, {Hosts: []string{"a"}, SecretName: "atoll-token-bot"}}}},
			&networkingv1.Ingress{Spec: networkingv1.IngressSpec{TLS: []networkingv1.IngressTLS{{SecretName: "site"}, {Hosts: []string{"a"}}}}}},
		"ServiceHeadless": {"headless is the user's word",
			&corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "None", ClusterIPs: []string{"None"}}},
			&corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "None", ClusterIPs: []string{"None"}}}},
		"Secret": {"data goes as it is",
			&corev1.Secret{Type: "x/y", Data: map[string][]byte{"a": {1}}, Immutable: no},
			&corev1.Secret{Type: "x/y", Data: map[string][]byte{"a": {1}}, Immutable: no}},
		"ConfigMap": {"data goes as it is",
			&corev1.ConfigMap{Data: map[string]string{"a": "b"}, BinaryData: map[string][]byte{"c": {1}}},
			&corev1.ConfigMap{Data: map[string]string{"a": "b"}, BinaryData: map[string][]byte{"c": {1}}}},
		"ServiceAccount": {"no token is made for it below, and none goes",
			&corev1.ServiceAccount{Secrets: []corev1.ObjectReference{{Name: "token"}}, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}, AutomountServiceAccountToken: ptr.To(true)},
			&corev1.ServiceAccount{ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}, AutomountServiceAccountToken: no}},
		"Deployment": {"the spec goes without status, its pods without token",
			&appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(3)), Paused: true}, Status: appsv1.DeploymentStatus{Replicas: 3}},
			&appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(3)), Paused: true,
				Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{AutomountServiceAccountToken: no}}}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.root.SetUID("uid")
			tc.root.SetResourceVersion("7")
			tc.root.SetFinalizers([]string{"x/y"})
			tc.root.SetOwnerReferences([]metav1.OwnerReference{{Name: "o"}})
			before := tc.root.DeepCopyObject()
			var got ctrlclient.Object
			switch tc.root.(type) {
			case *corev1.Service:
				got = content(t, "Service", tc.root)
			case *networkingv1.Ingress:
				got = content(t, "Ingress", tc.root)
			case *corev1.Secret:
				got = content(t, "Secret", tc.root)
			case *corev1.ConfigMap:
				got = content(t, "ConfigMap", tc.root)
			case *corev1.ServiceAccount:
				got = content(t, "ServiceAccount", tc.root)
			case *appsv1.Deployment:
				got = content(t, "Deployment", tc.root)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: Content: -want, +got:\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(before, tc.root); diff != "" {
				t.Errorf("%s: Content changed the root: -before, +after:\n%s", tc.reason, diff)
			}
		})
	}
}

func content(t *testing.T, kind string, root ctrlclient.Object) ctrlclient.Object {
	t.Helper()
	k, ok := ByKind(kind)
	if !ok {
		t.Fatalf("no kind %s", kind)
	}
	return k.Content(root)
}

func TestWithheld(t *testing.T) {
	named := func(o ctrlclient.Object, namespace, name string) ctrlclient.Object {
		o.SetNamespace(namespace)
		o.SetName(name)
		return o
	}
	tests := map[string]struct {
		reason string
		kind   string
		root   ctrlclient.Object
		goes   bool
	}{
		"Token":       {"a token of the workspace", "Secret", &corev1.Secret{Type: corev1.SecretTypeServiceAccountToken}, false},
		"Bootstrap":   {"a token as well", "Secret", &corev1.Secret{Type: corev1.SecretTypeBootstrapToken}, false},
		"Helm":        {"a record of a release", "Secret", &corev1.Secret{Type: "helm.sh/release.v1"}, false},
		"PodsTokens":  {"its name is of what pods there talk to the API with", "Secret", named(&corev1.Secret{Type: corev1.SecretTypeOpaque}, "shop", "atoll-token-bot"), false},
		"Opaque":      {"what an application needs", "Secret", &corev1.Secret{Type: corev1.SecretTypeOpaque}, true},
		"RootCA":      {"the CA of the hub", "ConfigMap", named(&corev1.ConfigMap{}, "shop", "kube-root-ca.crt"), false},
		"ConfigMap":   {"what an application needs", "ConfigMap", named(&corev1.ConfigMap{}, "shop", "settings"), true},
		"DefaultSA":   {"every namespace has one", "ServiceAccount", named(&corev1.ServiceAccount{}, "shop", "default"), false},
		"SA":          {"an application's own", "ServiceAccount", named(&corev1.ServiceAccount{}, "shop", "web"), true},
		"API":         {"the API server's own", "Service", named(&corev1.Service{}, "default", "kubernetes"), false},
		"SameNameApp": {"an application's Service of that name", "Service", named(&corev1.Service{}, "shop", "kubernetes"), true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			k, _ := ByKind(tc.kind)
			if why := k.WhyWithheld(tc.root); (why == "") != tc.goes {
				t.Errorf("%s: WhyWithheld = %q, want that it goes down: %v", tc.reason, why, tc.goes)
			}
		})
	}
}

func TestMetadataAndHash(t *testing.T) {
	root := &corev1.ConfigMap{Data: map[string]string{"a": "b"}}
	root.Labels = map[string]string{"app": "web", "workload.atoll.dev/workspace": "forged", "kcp.io/x": "y"}
	root.Annotations = map[string]string{
		"note": "kept", "meta.helm.sh/release-name": "kept", "placement.atoll.dev/clusters": "east", "workload.atoll.dev/applied": "forged",
		"kcp.io/cluster": "c", "internal.tenancy.kcp.io/x": "y", corev1.LastAppliedConfigAnnotation: "{}", "deployment.kubernetes.io/revision": "3",
	}
	labels, annotations := Metadata(root)
	if diff := cmp.Diff(map[string]string{"app": "web"}, labels); diff != "" {
		t.Errorf("labels that go down: -want, +got:\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"note": "kept", "meta.helm.sh/release-name": "kept"}, annotations); diff != "" {
		t.Errorf("annotations that go down: -want, +got:\n%s", diff)
	}

	hash := func(change func(*corev1.ConfigMap)) string {
		c := root.DeepCopy()
		change(c)
		h, err := Hash(c)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	same := hash(func(*corev1.ConfigMap) {})
	for reason, tc := range map[string]struct {
		change func(*corev1.ConfigMap)
		equal  bool
	}{
		"data is part of it":             {func(c *corev1.ConfigMap) { c.Data["a"] = "c" }, false},
		"so are labels":                  {func(c *corev1.ConfigMap) { c.Labels["app"] = "db" }, false},
		"so are annotations":             {func(c *corev1.ConfigMap) { c.Annotations["note"] = "new" }, false},
		"our annotations are not":        {func(c *corev1.ConfigMap) { c.Annotations["workload.atoll.dev/applied"] = "other" }, true},
		"nor is what the store fills in": {func(c *corev1.ConfigMap) { c.UID, c.ResourceVersion, c.Generation = "u", "9", 4 }, true},
	} {
		if got := hash(tc.change); (got == same) != tc.equal {
			t.Errorf("%s: the hash is the same: %v, want %v", reason, got == same, tc.equal)
		}
	}
	d := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(1))}}
	before, _ := Hash(d)
	d.Status.Replicas = 5
	if after, _ := Hash(d); after != before {
		t.Error("the status of a Deployment is part of its hash")
	}
}

func TestReferences(t *testing.T) {
	local := func(name string) *corev1.LocalObjectReference { return &corev1.LocalObjectReference{Name: name} }
	ref := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	template := &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		ServiceAccountName: "account",
		ImagePullSecrets:   []corev1.LocalObjectReference{ref("pull"), ref("")},
		Volumes: []corev1.Volume{
			{VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref("volume")}}},
			{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "volume", Optional: ptr.To(true)}}},
			{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: ref("projected")}},
				{Secret: &corev1.SecretProjection{LocalObjectReference: ref("projected")}},
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}},
			}}}},
			{VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{NodePublishSecretRef: local("csi")}}},
			{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "atoll-token-bot"}}}, // which does not go down
		},
		InitContainers: []corev1.Container{{EnvFrom: []corev1.EnvFromSource{
			{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref("init")}},
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: ref("init")}},
		}}},
		Containers: []corev1.Container{{Env: []corev1.EnvVar{
			{Value: "plain"},
			{ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: ref("volume")}}},
			{ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: ref("env")}}},
			{ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
		}}},
	}}
	want := []Reference{
		{"ConfigMap", "init"}, {"ConfigMap", "projected"}, {"ConfigMap", "volume"},
		{"Secret", "csi"}, {"Secret", "env"}, {"Secret", "init"}, {"Secret", "projected"}, {"Secret", "pull"}, {"Secret", "volume"},
		{"ServiceAccount", "account"},
	}
	if diff := cmp.Diff(want, References(template)); diff != "" {
		t.Errorf("References: -want, +got:\n%s", diff)
	}
}

// TestNothingReachesPastItsTenant: what a tenant writes cannot take traffic, nodes or identities of others in a physical
// cluster that several share, and each thing that is taken out is told.
func TestNothingReachesPastItsTenant(t *testing.T) {
	d := &appsv1.Deployment{}
	pod := &d.Spec.Template.Spec
	pod.NodeName, pod.PriorityClassName = "node-0", "system-node-critical"
	pod.Volumes = []corev1.Volume{{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", Audience: strings.Repeat("a", mostAudienceBytes+1)}},
			{ConfigMap: &corev1.ConfigMapProjection{}},
		},
	}}}}
	out := deploymentContent(d).(*appsv1.Deployment).Spec.Template.Spec
	if out.NodeName != "" || out.PriorityClassName != "" || len(out.Volumes[0].Projected.Sources) != 1 {
		t.Errorf("goes down: nodeName %q, priorityClassName %q, sources %v", out.NodeName, out.PriorityClassName, out.Volumes[0].Projected.Sources)
	}
	deployments, _ := ByKind("Deployment")
	if told := deployments.WhatIsDropped(d); len(told) != 3 {
		t.Errorf("told are %q, want three things", told)
	}
	if pod.NodeName == "" {
		t.Error("the root itself was changed")
	}
	s := &corev1.Service{Spec: corev1.ServiceSpec{ExternalIPs: []string{"1.2.3.4"}}}
	if out := serviceContent(s).(*corev1.Service); len(out.Spec.ExternalIPs) > 0 {
		t.Errorf("external IPs %v go down", out.Spec.ExternalIPs)
	}
	if told := serviceDropped(s); len(told) != 1 {
		t.Errorf("told are %q, want the external IPs", told)
	}
}
