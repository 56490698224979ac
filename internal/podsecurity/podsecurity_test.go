package podsecurity

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

func TestRefused(t *testing.T) {
	target := func(name, level string) *workloadv1alpha1.SyncTarget {
		return &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: workloadv1alpha1.SyncTargetSpec{PodSecurity: level}}
	}
	all := []*workloadv1alpha1.SyncTarget{target("west", ""), target("east", "baseline"), target("lab", "privileged"), target("vault", "restricted"), target("odd", "future")}
	container := corev1.Container{Name: "main", Image: "app"}
	onHost := corev1.PodSpec{Containers: []corev1.Container{container}, Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}}
	traced := corev1.PodSpec{Containers: []corev1.Container{container}, EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: "debugger", Image: "app", SecurityContext: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_PTRACE"}}}}}}}
	for reason, tc := range map[string]struct {
		spec corev1.PodSpec
		in   []*workloadv1alpha1.SyncTarget
		want []string // a part of each sentence, and whom it is of
	}{
		"what the default level takes":        {spec: corev1.PodSpec{Containers: []corev1.Container{container}}, in: all[:3]},
		"a volume of the node":                {spec: onHost, in: all[:3], want: []string{`"east", "west"|"baseline"|hostPath volumes (volume "data")`}},
		"what is added to a pod that runs":    {spec: traced, in: all[:1], want: []string{`"west"|"baseline"|container "debugger" must not include "SYS_PTRACE"`}},
		"a level that is not known is strict": {spec: corev1.PodSpec{Containers: []corev1.Container{container}}, in: all[3:], want: []string{`"odd", "vault"|"restricted"|runAsNonRoot`}},
		"nowhere":                             {spec: onHost},
	} {
		got, err := Refused(&corev1.PodTemplateSpec{Spec: tc.spec}, tc.in)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != len(tc.want) {
			t.Errorf("%s: %q, want %q", reason, got, tc.want)
			continue
		}
		for i, parts := range tc.want {
			for part := range strings.SplitSeq(parts, "|") {
				if !strings.Contains(got[i], part) {
					t.Errorf("%s: %q, want %q in it", reason, got[i], part)
				}
			}
		}
	}
}

func TestStricter(t *testing.T) {
	for _, tc := range []struct{ floor, own, want, reason string }{
		{"", "", "baseline", "the default"},
		{"", "privileged", "baseline", "no workspace lowers the floor"},
		{"", "restricted", "restricted", "it may ask for more"},
		{"privileged", "", "privileged", "the admin may lower it"},
		{"privileged", "baseline", "baseline", ""},
		{"restricted", "privileged", "restricted", ""},
		{"baseline", "whatever", "restricted", "what Kubernetes makes of a word it does not know"},
	} {
		if got := Stricter(tc.floor, tc.own); got != tc.want {
			t.Errorf("%s: Stricter(%q, %q) = %q, want %q", tc.reason, tc.floor, tc.own, got, tc.want)
		}
	}
}
