package kinds

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// TestClaimContent: what goes down is what the user asks for, and nothing of what the volume controllers of another cluster did.
func TestClaimContent(t *testing.T) {
	size := corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}
	root := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data", Finalizers: []string{"kubernetes.io/pvc-protection"}, Annotations: map[string]string{
			"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes", "volume.kubernetes.io/selected-node": "n",
			"volume.kubernetes.io/storage-provisioner": "p", "volume.beta.kubernetes.io/storage-provisioner": "p", "volume.kubernetes.io/storage-resizer": "p",
			"volume.beta.kubernetes.io/storage-class": "fast", "example.com/mine": "yes",
		}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: size, StorageClassName: ptr.To("fast"), VolumeName: "theirs",
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	want := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: size, StorageClassName: ptr.To("fast"),
	}}
	if diff := cmp.Diff(want, claimContent(root)); diff != "" {
		t.Errorf("content (-want +got):\n%s", diff)
	}
	_, annotations := Metadata(root)
	if diff := cmp.Diff(map[string]string{"volume.beta.kubernetes.io/storage-class": "fast", "example.com/mine": "yes"}, annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	if dropped := claimDropped(root); len(dropped) != 1 {
		t.Errorf("of a volume that the user named is said %q", dropped)
	}
	if root.Status.Phase = corev1.ClaimBound; claimDropped(root) != nil || !claimBegun(root) {
		t.Error("of the volume that came up something is said")
	}
}

func TestClaimWithheld(t *testing.T) {
	of := func(spec corev1.PersistentVolumeClaimSpec) string {
		return claimWithheld(&corev1.PersistentVolumeClaim{Spec: spec})
	}
	if why := of(corev1.PersistentVolumeClaimSpec{}); why != "" {
		t.Errorf("an empty one is withheld: %s", why)
	}
	for _, why := range []string{
		of(corev1.PersistentVolumeClaimSpec{DataSource: &corev1.TypedLocalObjectReference{Kind: "VolumeSnapshot", Name: "monday"}}),
		of(corev1.PersistentVolumeClaimSpec{DataSourceRef: &corev1.TypedObjectReference{Kind: "VolumeSnapshot", Name: "monday"}}),
	} {
		if !strings.Contains(why, `VolumeSnapshot "monday"`) {
			t.Errorf("one that would be empty is withheld: %q", why)
		}
	}
}

// TestClaimsStay: what mounts a claim does not leave its cluster once it was there; whatever its kind.
func TestClaimsStay(t *testing.T) {
	there := map[string]string{workloadv1alpha1.AppliedAnnotation: "x"}
	draining := map[string]string{workloadv1alpha1.AppliedAnnotation: "x", workloadv1alpha1.DrainingAnnotation: "true"}
	claim := corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}
	ephemeral := corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}
	for name, tc := range map[string]struct {
		annotations map[string]string
		volumes     []corev1.Volume
		want        bool
	}{
		"there":         {there, []corev1.Volume{claim}, true},
		"not there yet": {nil, []corev1.Volume{claim}, false},
		"on its way":    {draining, []corev1.Volume{claim}, false},
		"no claim":      {there, []corev1.Volume{ephemeral}, false},
	} {
		for _, k := range All {
			if !k.MakesPods() || k.Goes == Bound {
				continue // a pod has no leaf, and TestPodsStay looks at it
			}
			leaf := k.New()
			leaf.SetAnnotations(tc.annotations)
			k.Template(leaf).Spec.Volumes = tc.volumes
			if k.GVK.Kind == "Job" && tc.annotations != nil {
				continue // has begun, which is a reason of its own
			}
			if got := k.WhyStays(leaf) != nil; got != tc.want {
				t.Errorf("%s, %s: stays %v, want %v", k.GVK.Kind, name, got, tc.want)
			}
		}
	}
	d := &appsv1.Deployment{}
	d.Spec.Template.Spec.Volumes = []corev1.Volume{claim, claim, ephemeral}
	if diff := cmp.Diff([]string{"data"}, ClaimsOf(d)); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
}

func TestSummariseClaim(t *testing.T) {
	status := func(phase corev1.PersistentVolumeClaimPhase) corev1.PersistentVolumeClaimStatus {
		return corev1.PersistentVolumeClaimStatus{Phase: phase}
	}
	leaf := func(phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{Status: status(phase)}
	}
	for name, tc := range map[string]struct {
		before corev1.PersistentVolumeClaimPhase
		view   View
		want   corev1.PersistentVolumeClaimPhase
	}{
		"bound":               {corev1.ClaimPending, View{Leaves: []Leaf{{Object: leaf(corev1.ClaimBound)}}}, corev1.ClaimBound},
		"lost below":          {corev1.ClaimBound, View{Leaves: []Leaf{{Object: leaf(corev1.ClaimLost)}}}, corev1.ClaimLost},
		"deleted below":       {corev1.ClaimBound, View{Leaves: []Leaf{{Object: leaf(corev1.ClaimBound), Refused: &workloadv1alpha1.Refusal{Reason: workloadv1alpha1.RefusedGone}}}}, corev1.ClaimLost},
		"refused":             {corev1.ClaimBound, View{Leaves: []Leaf{{Object: leaf(corev1.ClaimBound), Refused: &workloadv1alpha1.Refusal{Reason: "Forbidden"}}}}, corev1.ClaimBound},
		"nothing said yet":    {corev1.ClaimPending, View{Leaves: []Leaf{{Object: leaf("")}}}, corev1.ClaimPending},
		"gone with a cluster": {corev1.ClaimBound, View{Gone: "its cluster was removed"}, corev1.ClaimLost},
		"nowhere":             {corev1.ClaimPending, View{}, corev1.ClaimPending},
	} {
		root := leaf(tc.before)
		if summariseClaim(root, tc.view); root.Status.Phase != tc.want {
			t.Errorf("%s: %s, want %s", name, root.Status.Phase, tc.want)
		}
	}
}
