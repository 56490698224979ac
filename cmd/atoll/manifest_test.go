package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/cli"
)

func TestManifestIsWhatASyncerNeeds(t *testing.T) {
	target := &workloadv1alpha1.SyncTarget{}
	target.Name, target.UID = "west", "01234567-89ab-cdef-0123-456789abcdef"
	bootstrap, err := bootstrapKubeconfig("https://atoll.example:6443/clusters/2abcdefghijklmno", []byte("ca"), "abcdef.0123456789abcdef")
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := (&clusterManifest{image: "atoll:test"}).render(target, bootstrap)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, document := range strings.Split(string(manifest), "\n---\n")[1:] {
		var object struct {
			Kind     string
			Metadata struct {
				Name, Namespace string
				Labels          map[string]string
			}
			Rules []struct{ APIGroups, Resources, ResourceNames, Verbs []string }
			Spec  struct {
				Selector metav1.LabelSelector
				Template corev1.PodTemplateSpec
			}
			Status any
		}
		if err := yaml.UnmarshalStrict([]byte(document), &object, yaml.DisallowUnknownFields); err != nil && !strings.Contains(err.Error(), "unknown field") {
			t.Fatalf("%v in\n%s", err, document)
		}
		kinds[object.Kind]++
		const instance = "west-01234567"
		if object.Kind == "Namespace" {
			if len(object.Metadata.Labels) > 0 {
				t.Errorf("the Namespace, which others use too, has labels %v, by which the rest is deleted", object.Metadata.Labels)
			}
			continue
		}
		if got := object.Metadata.Labels[instanceLabel]; got != instance {
			t.Errorf("%s is of instance %q: it would stay when the rest is deleted", object.Kind, got)
		}
		if pods := object.Spec; object.Kind == "Deployment" && (pods.Selector.MatchLabels[instanceLabel] != instance || pods.Template.Labels[instanceLabel] != instance) {
			t.Errorf("the Deployment selects %v and its pods have %v: those of another registration would be its own", pods.Selector.MatchLabels, pods.Template.Labels)
		}
		if !strings.HasPrefix(object.Metadata.Name, "atoll-syncer-west-01234567") {
			t.Errorf("%s is called %q: two Atolls that sync one cluster would share it", object.Kind, object.Metadata.Name)
		}
		if cluster := strings.HasPrefix(object.Kind, "ClusterRole"); cluster == (object.Metadata.Namespace != "") {
			t.Errorf("%s is in namespace %q", object.Kind, object.Metadata.Namespace)
		}
		if object.Kind == "Deployment" {
			// What a Secret's volume holds belongs to root; its mode lets the group of the volume read.
			pod := object.Spec.Template.Spec
			security := ptr.Deref(pod.SecurityContext, corev1.PodSecurityContext{})
			for _, volume := range pod.Volumes {
				mode := ptr.Deref(volume.Secret.DefaultMode, 0)
				if mode&0o007 != 0 || mode&0o040 == 0 || security.FSGroup == nil {
					t.Errorf("volume %s has mode %#o and fsGroup %v: not the Pod's user %v alone can read it", volume.Name, mode, security.FSGroup, *security.RunAsUser)
				}
			}
			if len(pod.Volumes) != 1 || ptr.Deref(security.RunAsGroup, 0) == 0 {
				t.Errorf("%d volumes and group %v, want 1 and not root's", len(pod.Volumes), security.RunAsGroup)
			}
		}
		for _, rule := range object.Rules {
			if object.Kind == "Role" && strings.Join(rule.Verbs, " ") != "create" && len(rule.ResourceNames) == 0 {
				t.Errorf("the Role gives the right to %v every one of %v", rule.Verbs, rule.Resources)
			}
			for _, verb := range rule.Verbs {
				if verb == "*" || verb == "escalate" || verb == "impersonate" || verb == "bind" {
					t.Errorf("%s gives the right to %s %v", object.Kind, verb, rule.Resources)
				}
			}
			if len(rule.Resources) == 1 && rule.Resources[0] == "*" && strings.Join(rule.Verbs, " ") != "list" {
				t.Errorf("%s gives the right to %v everything", object.Kind, rule.Verbs)
			}
		}
	}
	for kind, want := range map[string]int{
		"Namespace": 1, "ServiceAccount": 1, "ClusterRole": 1, "ClusterRoleBinding": 1, "Role": 1, "RoleBinding": 1, "Secret": 2, "Deployment": 1,
	} {
		if kinds[kind] != want {
			t.Errorf("the manifest has %d of kind %s, want %d:\n%s", kinds[kind], kind, want, manifest)
		}
	}
	if want := "#   kubectl delete -f FILE -l app.kubernetes.io/instance=west-01234567\n"; !strings.Contains(string(manifest), want) {
		t.Errorf("the manifest does not say how to take it away, %q", want)
	}
	if strings.Contains(string(manifest), "status:") || strings.Contains(string(manifest), "creationTimestamp") {
		t.Errorf("the manifest has fields that are the server's:\n%s", manifest)
	}
}

func TestHubAddress(t *testing.T) {
	for _, tc := range []struct {
		reason, flag, hub string
		allow             bool
		want, problem     string
	}{
		{reason: "the kubeconfig's address", hub: "https://atoll.example:6443", want: "https://atoll.example:6443"},
		{reason: "the flag wins", flag: "https://10.0.0.1:6443/", hub: "https://127.0.0.1:6443", want: "https://10.0.0.1:6443"},
		{reason: "a syncer has its own identity", flag: "https://u:secret@atoll.example:6443", problem: "without a user"},
		{reason: "no Pod reaches a loopback address", hub: "https://127.0.0.1:6443", problem: "--bind-address"},
		{reason: "nor its name", hub: "https://localhost:6443", problem: "--bind-address"},
		{reason: "nor the other one's", hub: "https://[::1]:6443", problem: "--bind-address"},
		{reason: "nor every address", hub: "https://0.0.0.0:6443", problem: "--bind-address"},
		{reason: "unless somebody knows better", hub: "https://127.0.0.1:6443", allow: true, want: "https://127.0.0.1:6443"},
		{reason: "a path would be put before the mirror's", flag: "https://atoll.example/clusters/root", problem: "without a path"},
		{reason: "no token goes over a line that others read", flag: "http://atoll.example", problem: "want an address such as"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			hub := &cli.Hub{}
			hub.Base = tc.hub
			got, err := (&clusterManifest{hubURL: tc.flag, allowLoopback: tc.allow}).hubAddress(hub)
			if got != tc.want || (err == nil) != (tc.problem == "") || err != nil && !strings.Contains(err.Error(), tc.problem) {
				t.Errorf("hubAddress = %q, %v; want %q, %q", got, err, tc.want, tc.problem)
			}
		})
	}
}

func TestOthersMayRead(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "manifest"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for mode, want := range map[os.FileMode]bool{0o600: false, 0o644: true, 0o640: true} {
		if err := file.Chmod(mode); err != nil {
			t.Fatal(err)
		}
		if got := othersMayRead(file); got != want {
			t.Errorf("%o: %t, want %t", mode, got, want)
		}
	}
	if othersMayRead(&bytes.Buffer{}) {
		t.Error("a buffer is nobody else's")
	}
}

func TestIsLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "LOCALHOST": true, "localhost.": true, "atoll.localhost": true, "127.0.0.1": true, "127.1.2.3": true, "::1": true,
		"0.0.0.0": true, "::": true, "atoll.example": false, "notlocalhost": false, "192.0.2.1": false, "localhost.example": false,
	} {
		if got := isLoopback(host); got != want {
			t.Errorf("%s: %t, want %t", host, got, want)
		}
	}
}
