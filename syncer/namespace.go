package syncer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/podsecurity"
)

const (
	podSecurityPrefix  = "pod-security.kubernetes.io/"
	podSecurityEnforce = podSecurityPrefix + "enforce"
	podSecurityVersion = podSecurityPrefix + "enforce-version"
)

// reserved says whether a namespace belongs to the physical cluster, or to the syncer's own bookkeeping.
func reserved(name string) bool {
	return name == metav1.NamespaceDefault || name == workloadv1alpha1.HeartbeatNamespace || strings.HasPrefix(name, "kube-")
}

// renderNamespace returns the downstream namespace of a mirror's, with what the SyncTarget demands of every namespace.
// It has a RenderedAnnotation of its own if the mirror's has none, by which a label that was taken away is noticed.
func renderNamespace(leaf *unstructured.Unstructured, target types.UID, podSecurity string) (*unstructured.Unstructured, error) {
	down := render(leaf, target)
	delete(down.Object, "spec") // its finalizers are the physical cluster's business
	labels := down.GetLabels()
	delete(labels, corev1.LabelMetadataName) // every API server writes it itself
	labels[podSecurityEnforce] = podsecurity.Stricter(podSecurity, labels[podSecurityEnforce])
	// An older version of a level allows more.
	labels[podSecurityVersion] = "latest"
	down.SetLabels(labels)

	annotations := down.GetAnnotations()
	if annotations[workloadv1alpha1.RenderedAnnotation] == "" {
		text, err := json.Marshal(down) // maps are written sorted
		if err != nil {
			return nil, fmt.Errorf("hash namespace %s: %w", leaf.GetName(), err)
		}
		if annotations == nil {
			annotations = map[string]string{}
		}
		sum := sha256.Sum256(text)
		annotations[workloadv1alpha1.RenderedAnnotation] = hex.EncodeToString(sum[:8])
		down.SetAnnotations(annotations)
	}
	return down, nil
}

// applyNamespace makes the namespace and its floor downstream be what the mirror and the SyncTarget say.
func (s *Syncer) applyNamespace(ctx context.Context, k key, leaf, down *unstructured.Unstructured) (outcome, error) {
	if reserved(k.name) {
		return outcome{}, nameConflict("namespace %s belongs to the physical cluster", k.name)
	}
	if !s.physical.informers[namespacesGVR].HasSynced() {
		return s.unseen(namespacesGVR), nil
	}
	if !s.physical.informers[networkPoliciesGVR].HasSynced() {
		return s.unseen(networkPoliciesGVR), nil
	}
	twin := s.twinObject()
	if twin == nil {
		return outcome{unknown: true, undecided: true}, nil // no floor known yet; the twin's event brings us back
	}
	if down != nil && down.GetDeletionTimestamp() != nil {
		return outcome{down: down, undecided: true}, nil // made again when it is gone
	}
	workspace := leaf.GetLabels()[workloadv1alpha1.WorkspaceLabel]
	if down != nil && down.GetLabels()[workloadv1alpha1.WorkspaceLabel] != workspace {
		return outcome{}, nameConflict("namespace %s belongs to another workspace", k.name)
	}
	want, err := renderNamespace(leaf, types.UID(s.config.UID), twin.Spec.PodSecurity)
	if err != nil {
		return outcome{down: down}, err
	}
	write, remove, err := s.floorOf(k.name, workspace)
	if err != nil {
		return outcome{down: down}, err
	}
	namespaceDone := toApply(want, down) == leaveIt
	if namespaceDone && len(write) == 0 && len(remove) == 0 {
		return outcome{down: down}, nil
	}

	if done, err := s.ensureFinalizer(ctx, k, leaf); !done {
		return outcome{down: down, undecided: true}, err
	}
	switch ok, err := s.mayWrite(ctx, k, leaf); {
	case errors.Is(err, errUnchecked):
		return outcome{down: down, undecided: true, again: time.Second}, nil
	case err != nil || !ok:
		return outcome{down: down, undecided: true}, err
	}
	if !namespaceDone {
		s.writes.add(k, "")
		applied, err := s.apply(ctx, k, down, want)
		if err != nil {
			return outcome{down: down}, err
		}
		down = applied
		s.writes.add(k, down.GetResourceVersion())
	}
	if err := s.layFloor(ctx, write, remove); err != nil {
		return outcome{down: down}, err
	}
	klog.FromContext(ctx).V(2).Info("Applied", "object", k.String())
	return outcome{down: down}, nil
}
