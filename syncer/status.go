package syncer

import (
	"encoding/json"
	"fmt"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

// outcome is what a pass over one leaf found downstream.
type outcome struct {
	// unknown says that the physical cluster's side could not be seen, so that down says nothing.
	unknown bool
	// down is the object of ours downstream; nil if there is none.
	down *unstructured.Unstructured
	// refused is what the physical cluster would not take; nil if it took the leaf, or if undecided is set.
	refused *refusal
	// undecided says that nothing was tried: an earlier refusal stands.
	undecided bool
	// unshown is why pods of the leaf are not shown in its workspace; nil if all are, as far as is known.
	unshown *refusal
	// again is when to look again if nothing happens; 0 means never.
	again time.Duration
}

// report returns the leaf as it should stand in the mirror, and whether that differs from leaf. It changes nothing but
// status and the SyncerAnnotations.
func report(leaf *unstructured.Unstructured, o outcome, hasStatus bool) (*unstructured.Unstructured, bool, error) {
	want := leaf.DeepCopy()
	annotations := want.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}

	if !o.undecided {
		delete(annotations, workloadv1alpha1.RefusedAnnotation)
	}
	delete(annotations, workloadv1alpha1.UnshownAnnotation)
	for annotation, r := range map[string]*refusal{workloadv1alpha1.RefusedAnnotation: o.refused, workloadv1alpha1.UnshownAnnotation: o.unshown} {
		if r == nil {
			continue
		}
		text, err := json.Marshal(workloadv1alpha1.Refusal{Reason: r.reason, Message: r.text(), Rendered: annotations[workloadv1alpha1.RenderedAnnotation]})
		if err != nil {
			return nil, false, fmt.Errorf("write a refusal as JSON: %w", err)
		}
		annotations[annotation] = string(text)
	}

	switch down := o.down; {
	case o.unknown:
	case down == nil:
		// Gone, or not there yet: what was applied is not any more. The last status stays, as on a lost Node.
		delete(annotations, workloadv1alpha1.AppliedAnnotation)
	case !sameRoot(leaf, down):
		// It still is another root's: nothing it says is about this leaf.
	default:
		if applied := down.GetAnnotations()[workloadv1alpha1.RenderedAnnotation]; applied != "" {
			annotations[workloadv1alpha1.AppliedAnnotation] = applied
		}
		if down.GetKind() == kinds.ClaimKind {
			if err := showVolume(annotations, down); err != nil {
				return nil, false, err
			}
		}
		if hasStatus {
			copyStatus(want, leaf, down)
			if err := fit(leaf, want); err != nil {
				return nil, false, err
			}
		}
	}
	if len(annotations) == 0 {
		annotations = nil
	}
	want.SetAnnotations(annotations)

	changed := !apiequality.Semantic.DeepEqual(leaf.GetAnnotations(), want.GetAnnotations()) ||
		!apiequality.Semantic.DeepEqual(leaf.Object["status"], want.Object["status"])
	return want, changed, nil
}

// showVolume says in a claim's annotations which volume it has downstream. A claim keeps the one that it has once.
func showVolume(annotations map[string]string, down *unstructured.Unstructured) error {
	volume, _, _ := unstructured.NestedString(down.Object, "spec", "volumeName")
	if volume == "" {
		return nil
	}
	class, _, _ := unstructured.NestedString(down.Object, "spec", "storageClassName")
	text, err := json.Marshal(workloadv1alpha1.Volume{Name: volume, StorageClassName: class})
	if err != nil {
		return fmt.Errorf("write a volume as JSON: %w", err)
	}
	annotations[workloadv1alpha1.VolumeAnnotation] = string(text)
	return nil
}

// fit makes of the status of want one that the hub takes after that of leaf.
func fit(leaf, want *unstructured.Unstructured) error {
	kind, ok := kinds.ByKind(want.GetKind())
	if !ok || kind.Fit == nil || want.Object["status"] == nil {
		return nil
	}
	before, now := kind.New(), kind.New()
	for from, into := range map[*unstructured.Unstructured]any{leaf: before, want: now} {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(from.Object, into); err != nil {
			return fmt.Errorf("read the status of %s: %w", kind.GVK.Kind, err)
		}
	}
	kind.Fit(before, now)
	fitted, err := runtime.DefaultUnstructuredConverter.ToUnstructured(now)
	if err != nil {
		return fmt.Errorf("write the status of %s: %w", kind.GVK.Kind, err)
	}
	want.Object["status"] = fitted["status"]
	return nil
}

// copyStatus gives want the status of down, its observedGeneration translated into generations of the leaf.
func copyStatus(want, leaf, down *unstructured.Unstructured) {
	status, ok := down.Object["status"].(map[string]any)
	if !ok {
		return
	}
	status = runtime.DeepCopyJSON(status)
	if seen, ok, _ := unstructured.NestedInt64(status, "observedGeneration"); ok {
		current := down.GetAnnotations()[workloadv1alpha1.RenderedAnnotation] == leaf.GetAnnotations()[workloadv1alpha1.RenderedAnnotation]
		before, known, _ := unstructured.NestedInt64(leaf.Object, "status", "observedGeneration")
		switch {
		case current && seen >= down.GetGeneration():
			status["observedGeneration"] = leaf.GetGeneration()
		case known:
			status["observedGeneration"] = before
		default:
			delete(status, "observedGeneration")
		}
	}
	// The hub takes none whose count goes down, as it does with what is deleted below and made again.
	if was, known, _ := unstructured.NestedInt64(leaf.Object, "status", "collisionCount"); known {
		if now, ok, _ := unstructured.NestedInt64(status, "collisionCount"); !ok || now < was {
			status["collisionCount"] = was
		}
	}
	if len(status) == 0 && leaf.Object["status"] == nil {
		return
	}
	want.Object["status"] = status
}
