package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func fieldOf(path string) *corev1.EnvVarSource {
	return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
}

func TestContainerEnv(t *testing.T) {
	configMap := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", UID: "u", Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: "east-node-0", ServiceAccountName: "web", Containers: []corev1.Container{{Name: "main"}}},
		Status: corev1.PodStatus{
			PodIP: "10.1.0.1", PodIPs: []corev1.PodIP{{IP: "10.1.0.1"}, {IP: "fd00::1"}}, HostIP: "10.0.0.1", HostIPs: []corev1.HostIP{{IP: "10.0.0.1"}},
		},
	}
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m")}
	data := map[string]map[string]string{"ConfigMap/settings": {"COLOUR": "blue", "SIZE": "9"}, "Secret/keys": {"key": "opensesame"}}
	values := func(fill func(*corev1.Container)) ([]string, error) {
		pod := pod.DeepCopy()
		fill(&pod.Spec.Containers[0])
		env := containerEnv{
			pod: pod, container: &pod.Spec.Containers[0], allocatable: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Gi")},
			data: func(kind, name string) (map[string]string, error) { return data[kind+"/"+name], nil },
		}
		return env.values()
	}
	got, err := values(func(c *corev1.Container) {
		c.EnvFrom = []corev1.EnvFromSource{
			{Prefix: "P_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: configMap("settings")}},
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: configMap("keys")}},
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: configMap("none"), Optional: ptr.To(true)}},
		}
		c.Env = []corev1.EnvVar{
			{Name: "PLAIN", Value: "a=b"},
			{Name: "EXPANDED", Value: "$(PLAIN) $(P_COLOUR) $$(PLAIN) $(NONE)"},
			{Name: "EMPTY"},
			{Name: "NODE", ValueFrom: fieldOf("spec.nodeName")},
			{Name: "ACCOUNT", ValueFrom: fieldOf("spec.serviceAccountName")},
			{Name: "POD", ValueFrom: fieldOf("metadata.name")},
			{Name: "NAMESPACE", ValueFrom: fieldOf("metadata.namespace")},
			{Name: "UID", ValueFrom: fieldOf("metadata.uid")},
			{Name: "APP", ValueFrom: fieldOf("metadata.labels['app']")},
			{Name: "IP", ValueFrom: fieldOf("status.podIP")},
			{Name: "IPS", ValueFrom: fieldOf("status.podIPs")},
			{Name: "HOST", ValueFrom: fieldOf("status.hostIP")},
			{Name: "HOSTS", ValueFrom: fieldOf("status.hostIPs")},
			{Name: "CPUS", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}}},
			{Name: "MEMORY", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "main", Resource: "limits.memory", Divisor: resource.MustParse("1Gi")}}},
			{Name: "SIZE", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: configMap("settings"), Key: "SIZE"}}},
			{Name: "KEY", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: configMap("keys"), Key: "key"}}},
			{Name: "LEFT_OUT", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: configMap("none"), Key: "key", Optional: ptr.To(true)}}},
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"P_COLOUR=blue", "P_SIZE=9", "key=opensesame", "PLAIN=a=b", "EXPANDED=a=b blue $(PLAIN) $(NONE)", "EMPTY=", "NODE=east-node-0", "ACCOUNT=web", "POD=web-1",
		"NAMESPACE=shop", "UID=u", "APP=web", "IP=10.1.0.1", "IPS=10.1.0.1,fd00::1", "HOST=10.0.0.1", "HOSTS=10.0.0.1", "CPUS=2", "MEMORY=256", "SIZE=9", "KEY=opensesame",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	for want, fill := range map[string]func(*corev1.Container){
		`ConfigMap "none" is not there`: func(c *corev1.Container) {
			c.EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: configMap("none")}}}
		},
		`variable V: Secret "keys" has no key "none"`: func(c *corev1.Container) {
			c.Env = []corev1.EnvVar{{Name: "V", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: configMap("keys"), Key: "none"}}}}
		},
		"variable V: unsupported fieldPath: spec.none": func(c *corev1.Container) {
			c.Env = []corev1.EnvVar{{Name: "V", ValueFrom: fieldOf("spec.none")}}
		},
		"variable V: what it is made from is not known here": func(c *corev1.Container) {
			c.Env = []corev1.EnvVar{{Name: "V", ValueFrom: &corev1.EnvVarSource{}}}
		},
	} {
		if got, err := values(fill); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, %v, want %s", got, err, want)
		}
	}
}
