package syncer

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// claimWith is a claim with a spec and a phase.
func claimWith(spec map[string]any, phase string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": map[string]any{"name": "data", "namespace": "front"},
		"spec": spec, "status": map[string]any{"phase": phase},
	}}
}

// TestClaimsVolumeIsReported: which volume a claim has stands in its spec below, which is no status.
func TestClaimsVolumeIsReported(t *testing.T) {
	leaf := claimWith(map[string]any{}, "Pending")
	for name, tc := range map[string]struct {
		down    *unstructured.Unstructured
		want    string
		changed bool
	}{
		"bound":         {claimWith(map[string]any{"volumeName": "pv", "storageClassName": "fast"}, "Bound"), `{"name":"pv","storageClassName":"fast"}`, true},
		"without class": {claimWith(map[string]any{"volumeName": "pv"}, "Bound"), `{"name":"pv"}`, true},
		"pending":       {claimWith(map[string]any{}, "Pending"), "", false},
	} {
		told, changed, err := report(leaf, outcome{down: tc.down}, true)
		if err != nil || changed != tc.changed {
			t.Fatalf("%s: changed %v, %v", name, changed, err)
		}
		if got := told.GetAnnotations()[workloadv1alpha1.VolumeAnnotation]; got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
		if tc.want == "" {
			continue
		}
		if kept, _, err := report(told, outcome{}, true); err != nil || kept.GetAnnotations()[workloadv1alpha1.VolumeAnnotation] != tc.want {
			t.Errorf("%s: gone below it is said to have had %v, %v", name, kept.GetAnnotations(), err)
		}
	}
}

// TestBoundClaimIsNotMadeAgain: an empty one would pass for it.
func TestBoundClaimIsNotMadeAgain(t *testing.T) {
	k := key{corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), "front", "data"}
	for phase, want := range map[string]bool{"Bound": true, "Lost": true, "Pending": false} {
		if got, err := isGone(k, claimWith(map[string]any{}, phase), nil); err != nil || got != want {
			t.Errorf("%s, and gone below: %v, %v; want %v", phase, got, err, want)
		}
	}
	if got, err := isGone(k, claimWith(map[string]any{}, "Bound"), claimWith(map[string]any{}, "Bound")); err != nil || got {
		t.Errorf("one that is there is gone: %v, %v", got, err)
	}
}
