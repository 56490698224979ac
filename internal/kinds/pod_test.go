package kinds

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// TestPodContent: of a pod goes down what its author wrote, and nothing that admission made of it in the workspace and a physical
// cluster's makes again, or refuses. One case for each plugin.
func TestPodContent(t *testing.T) {
	access := corev1.Volume{Name: "kube-api-access-x7k2p", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}, {ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}}},
	}}}}
	own := corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
	mounts := func(names ...string) (containers []corev1.Container) {
		c := corev1.Container{Name: "c", VolumeMounts: []corev1.VolumeMount{}}
		for _, name := range names {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
		}
		return []corev1.Container{c}
	}
	tolerates := func(key string, seconds int64) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds}
	}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}, MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "tier", Operator: metav1.LabelSelectorOpIn, Values: []string{"a"}}, {Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"b"}},
	}}
	spread := func(alike []string) []corev1.TopologySpreadConstraint {
		return []corev1.TopologySpreadConstraint{{TopologyKey: "zone", LabelSelector: selector, MatchLabelKeys: alike}, {TopologyKey: "rack"}}
	}
	affinity := func(alike, unlike []string) *corev1.Affinity {
		terms := []corev1.PodAffinityTerm{{LabelSelector: selector, MatchLabelKeys: alike, MismatchLabelKeys: unlike}}
		weighted := []corev1.WeightedPodAffinityTerm{{PodAffinityTerm: terms[0]}}
		return &corev1.Affinity{
			PodAffinity:     &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms, PreferredDuringSchedulingIgnoredDuringExecution: weighted},
			PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms, PreferredDuringSchedulingIgnoredDuringExecution: weighted},
		}
	}
	for name, tc := range map[string]struct{ above, want corev1.PodSpec }{
		"ServiceAccount": {
			corev1.PodSpec{ServiceAccountName: "bot", DeprecatedServiceAccount: "bot", ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}},
				Volumes: []corev1.Volume{own, access}, Containers: mounts("data", access.Name), InitContainers: mounts(access.Name)},
			corev1.PodSpec{ServiceAccountName: "bot", ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}},
				Volumes: []corev1.Volume{own}, Containers: mounts("data"), InitContainers: mounts()},
		},
		"Priority": {
			corev1.PodSpec{PriorityClassName: "high", Priority: ptr.To(int32(7)), PreemptionPolicy: ptr.To(corev1.PreemptLowerPriority)},
			corev1.PodSpec{PriorityClassName: "high"},
		},
		"Priority, of the system": {
			corev1.PodSpec{PriorityClassName: "system-node-critical", Priority: ptr.To(int32(2000001000))},
			corev1.PodSpec{},
		},
		"RuntimeClass": {
			corev1.PodSpec{RuntimeClassName: ptr.To("vm"), Overhead: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
			corev1.PodSpec{RuntimeClassName: ptr.To("vm")},
		},
		"DefaultTolerationSeconds": {
			corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}, tolerates(corev1.TaintNodeNotReady, 300), tolerates(corev1.TaintNodeUnreachable, 60)}},
			corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}, tolerates(corev1.TaintNodeUnreachable, 60)}},
		},
		"labels that are merged": {corev1.PodSpec{TopologySpreadConstraints: spread([]string{"tier", "none"}), Affinity: affinity([]string{"tier"}, []string{"app"})},
			corev1.PodSpec{TopologySpreadConstraints: spread([]string{"none"}), Affinity: affinity(nil, nil)}},
		"binding": {corev1.PodSpec{NodeName: "east", SchedulerName: "default-scheduler"}, corev1.PodSpec{SchedulerName: "default-scheduler"}},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}, Spec: tc.above, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		before := pod.DeepCopy()
		tc.want.AutomountServiceAccountToken = ptr.To(false)
		if diff := cmp.Diff(&corev1.Pod{Spec: tc.want}, content(t, "Pod", pod)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		k, _ := ByKind("Pod")
		k.ReferencesOf(pod)
		if diff := cmp.Diff(before, pod); diff != "" {
			t.Errorf("%s: the pod itself was changed (-want +got):\n%s", name, diff)
		}
	}
}

// TestPodHolds: whose pods the workspace runs, and whose a physical cluster makes.
func TestPodHolds(t *testing.T) {
	of := func(apiVersion, kind string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "o", UID: "u", Controller: ptr.To(true)}}
	}
	shown := map[string]string{workloadv1alpha1.MirrorLabel: "east"}
	for name, tc := range map[string]struct {
		meta metav1.ObjectMeta
		want bool
	}{
		"bare":                       {metav1.ObjectMeta{}, true},
		"of a custom resource":       {metav1.ObjectMeta{OwnerReferences: of("db.example.com/v1", "Cluster")}, true},
		"of another Deployment":      {metav1.ObjectMeta{OwnerReferences: of("other.example.com/v1", "Deployment")}, true},
		"of a ReplicaSet":            {metav1.ObjectMeta{OwnerReferences: of("apps/v1", "ReplicaSet")}, false},
		"of a Job":                   {metav1.ObjectMeta{OwnerReferences: of("batch/v1", "Job")}, false},
		"shown":                      {metav1.ObjectMeta{Labels: shown}, false},
		"bound":                      {metav1.ObjectMeta{Labels: shown, Finalizers: []string{workloadv1alpha1.SyncerFinalizer}}, true},
		"bound, of a ReplicaSet now": {metav1.ObjectMeta{Labels: shown, Finalizers: []string{workloadv1alpha1.SyncerFinalizer}, OwnerReferences: of("apps/v1", "ReplicaSet")}, true},
	} {
		k, _ := ByKind("Pod")
		if got := k.Holds(&tc.meta); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// TestPodsStay: a pod leaves its cluster if another one is made elsewhere, and can run there.
func TestPodsStay(t *testing.T) {
	owned := []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Widget", Name: "w", UID: "w", Controller: ptr.To(true)}}
	data := []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	pods, _ := ByKind("Pod")
	for name, tc := range map[string]struct {
		owners  []metav1.OwnerReference
		volumes []corev1.Volume
		want    string
	}{
		"nobody makes another one":           {nil, nil, "NoOwner"},
		"its controller does":                {owned, nil, ""},
		"its controller does, with its data": {owned, data, "VolumesStay"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: tc.owners}, Spec: corev1.PodSpec{Volumes: tc.volumes}}
		got := ""
		if why := pods.WhyStays(pod); why != nil {
			got = why.Reason
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
