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
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

// A pod that is bound to this cluster is run as a kubelet runs what is bound to its Node: it is made once, by its name; what it is below
// is told with its first status, and holds from then on. It is not made again when it is gone. Its end below is asked for by its row alone,
// which stays until it is gone: docs/design/0007-pods.md.

// toRun says what makes right a pod that is bound, given the pod below of its name, nil if there is none, and whose is ours. What carries no
// label of ours, or another pod's, is not touched.
func toRun(bound, below *unstructured.Unstructured, target types.UID) showing {
	uid := bound.GetAnnotations()[workloadv1alpha1.PodUIDAnnotation]
	ends := bound.GetDeletionTimestamp() != nil
	is := below != nil && owned(below, target) && isSameBound(bound, below) && (uid == "" || uid == string(below.GetUID()))
	switch {
	case !is && uid == "" && ends:
		return tellItEnded // it was not run
	case !is && uid == "" && below != nil:
		return giveUp
	case !is && uid == "":
		return runIt
	case !is && !ends && hasEnded(bound):
		return showNothing // how it ended is what is left to know of it
	case !is:
		return tellItEnded
	case ends && (below.GetDeletionTimestamp() == nil || isSooner(bound, below)):
		return endIt
	case !ends && below.GetDeletionTimestamp() != nil && uid != "":
		return tellItEnds
	case uid == "":
		return adoptIt
	case !apiequality.Semantic.DeepEqual(bound.Object["status"], statusOf(bound, below)):
		return tellStatus
	}
	return showNothing
}

// isSooner says that a pod that ends is to have less time for that than it was given below.
func isSooner(bound, below *unstructured.Unstructured) bool {
	want, has := bound.GetDeletionGracePeriodSeconds(), below.GetDeletionGracePeriodSeconds()
	return want != nil && has != nil && *want < *has
}

// deedFor is what is to be done with a pod: toShow, or toRun where it is bound; and what the pod below lacks, when all that is known of it is told.
func (s *Syncer) deedFor(shown, below *unstructured.Unstructured) showing {
	deed := toShow(shown, below)
	if bound := shown != nil && kinds.IsBound(shown); bound {
		deed = toRun(shown, below, types.UID(s.config.UID))
		if deed == showNothing && s.lacks(shown, below) {
			return relabelIt
		}
	}
	if deed == showNothing && lacksWhatWasAdded(shown, below) {
		return addTo
	}
	return deed
}

// isOrphanPod says that a pod below was made of one that was bound, and that no row asks for it. It is reported, and left.
func (s *Syncer) isOrphanPod(shown, below *unstructured.Unstructured) bool {
	return shown == nil && below != nil && owned(below, types.UID(s.config.UID)) && below.GetLabels()[workloadv1alpha1.RootUIDLabel] != "" &&
		metav1.GetControllerOfNoCopy(below) == nil // a template may have any labels
}

// isSameBound says that a pod below was made of the one that is bound: somebody else's has no such label.
func isSameBound(bound, below *unstructured.Unstructured) bool {
	return below.GetLabels()[workloadv1alpha1.RootUIDLabel] == string(bound.GetUID()) &&
		below.GetLabels()[workloadv1alpha1.WorkspaceLabel] == bound.GetLabels()[workloadv1alpha1.WorkspaceLabel]
}

// isBoundPod says that a pod below is one that is bound, and ours.
func (s *Syncer) isBoundPod(bound, below *unstructured.Unstructured) bool {
	return kinds.IsBound(bound) && owned(below, types.UID(s.config.UID)) && isSameBound(bound, below)
}

func hasEnded(pod *unstructured.Unstructured) bool {
	phase, _, _ := unstructured.NestedString(pod.Object, "status", "phase")
	return phase == string(corev1.PodSucceeded) || phase == string(corev1.PodFailed)
}

// lacks says that a pod below has not all labels and annotations of the one that is bound.
func (s *Syncer) lacks(bound, below *unstructured.Unstructured) bool {
	if below == nil || below.GetDeletionTimestamp() != nil || !s.isBoundPod(bound, below) {
		return false
	}
	want := s.renderBound(bound)
	return !coversMap(want.GetLabels(), below.GetLabels()) || !coversMap(want.GetAnnotations(), below.GetAnnotations())
}

// renderBound is what is made below of a pod that is bound.
func (s *Syncer) renderBound(bound *unstructured.Unstructured) *unstructured.Unstructured {
	want := render(bound, types.UID(s.config.UID))
	annotations := want.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	delete(annotations, workloadv1alpha1.PodUIDAnnotation)
	annotations[workloadv1alpha1.RenderedAnnotation] = hashOf(want.GetLabels(), annotations)
	want.SetAnnotations(annotations)
	want.SetAPIVersion("v1")
	want.SetKind("Pod")
	return want
}

// hashOf tells one set of labels and annotations from another: that one was taken out of them does not show below otherwise.
func hashOf(labels, annotations map[string]string) string {
	text, _ := json.Marshal([]map[string]string{labels, annotations}) // sorts keys, and fails for no text
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// relabelled is the merge patch that gives a pod below the labels and annotations that it is to have, and takes those away that we gave
// it earlier. Others are somebody else's. What its namespace is called it keeps, although a server of before shows no such annotation: its spec, which
// nobody changes, reads it, and a container that is started again would be told nothing.
func relabelled(want, below *unstructured.Unstructured) ([]byte, error) {
	metadata := map[string]any{"uid": below.GetUID()}
	for field, now := range map[string]map[string]string{"labels": want.GetLabels(), "annotations": want.GetAnnotations()} {
		values := map[string]any{}
		for _, managed := range below.GetManagedFields() {
			if managed.Manager != workloadv1alpha1.FieldManager || managed.FieldsV1 == nil {
				continue
			}
			var fields struct {
				Metadata map[string]map[string]any `json:"f:metadata"`
			}
			if err := json.Unmarshal(managed.FieldsV1.GetRawBytes(), &fields); err != nil {
				return nil, fmt.Errorf("read which fields are ours: %w", err)
			}
			for key := range fields.Metadata["f:"+field] {
				if key, is := strings.CutPrefix(key, "f:"); is && key != workloadv1alpha1.NamespaceAnnotation {
					values[key] = nil
				}
			}
		}
		for key, value := range now {
			values[key] = value
		}
		metadata[field] = values
	}
	return json.Marshal(map[string]any{"metadata": metadata})
}

// errNoNamespaceYet says that a pod waits for its namespace.
var errNoNamespaceYet = errors.New("its namespace is not ready yet")

// notBounded says that a pod waits for what bounds the pods of its namespace, and for how long yet.
type notBounded struct{ wait time.Duration }

func (*notBounded) Error() string { return "what bounds the pods of its namespace is not there yet" }

// reasonChangeRefused is the reason of the event by which who changes labels or annotations of a pod learns that the physical
// cluster refuses it.
const reasonChangeRefused = "ChangeRefused"

// relabel gives the pod below of one that is bound the labels and annotations that it lacks.
func (s *Syncer) relabel(ctx context.Context, k key, bound *unstructured.Unstructured) error {
	now, err := s.podBelow(ctx, k)
	if err != nil || now == nil || !s.isBoundPod(bound, now) {
		return err // its event brings us back
	}
	data, err := relabelled(s.renderBound(bound), now)
	if err != nil {
		return fmt.Errorf("write what changes of %s: %w", k, err)
	}
	_, err = s.physical.dynamic.Resource(podsGVR).Namespace(k.namespace).Patch(ctx, k.name, types.MergePatchType, data, metav1.PatchOptions{FieldManager: workloadv1alpha1.FieldManager})
	event := "change-" + string(now.GetUID())
	if err != nil {
		s.tellPodRefused(ctx, k, now.GetUID(), event, reasonChangeRefused, err)
		return fmt.Errorf("change the labels of %s: %w", k, err)
	}
	s.toldOfPods.Remove(event) // the next refusal is news
	return nil
}

// runPod makes the pod below of one that is bound, and tells which it is.
func (s *Syncer) runPod(ctx context.Context, k key, deed showing, bound, below *unstructured.Unstructured) error {
	target := s.physical.dynamic.Resource(podsGVR).Namespace(k.namespace)
	switch deed {
	case adoptIt:
		return s.tellWhich(ctx, k, bound, below)
	case giveUp:
		return nameConflict("%s exists and %s", k, ownerOf(below))
	}
	if wait, err := s.namespaceReady(k.namespace, bound.GetLabels()[workloadv1alpha1.WorkspaceLabel]); err != nil {
		return err
	} else if wait {
		return errNoNamespaceYet
	}
	if wait, err := s.areBounded(ctx, k); err != nil {
		return err
	} else if wait > 0 {
		return &notBounded{wait}
	}
	if err := s.ensureTokens(ctx, podsGVR, bound); errors.Is(err, errUnchecked) {
		return errNoNamespaceYet
	} else if err != nil {
		return err
	}
	// No write goes down without a fresh read of what asks for it, and of what is there.
	asks, err := s.mirror.dynamic.Resource(podsGVR).Namespace(k.namespace).Get(ctx, k.name, metav1.GetOptions{})
	if err != nil || asks.GetUID() != bound.GetUID() || toRun(asks, nil, "") != runIt {
		return notFoundIsFine(err) // its event brings us back
	}
	made, err := target.Create(ctx, s.renderBound(asks), metav1.CreateOptions{FieldManager: workloadv1alpha1.FieldManager, FieldValidation: metav1.FieldValidationStrict})
	if apierrors.IsAlreadyExists(err) {
		// Our watch is behind, perhaps behind another syncer, which we are in the place of.
		there, problem := s.podBelow(ctx, k)
		switch {
		case problem != nil:
			return problem
		case there == nil:
			return errNoNamespaceYet
		case !s.isBoundPod(bound, there):
			return nameConflict("%s exists and %s", k, ownerOf(there))
		}
		return s.tellWhich(ctx, k, asks, there)
	}
	if err != nil {
		return fmt.Errorf("make %s: %w", k, err)
	}
	return s.tellWhich(ctx, k, asks, made)
}

// tellWhich tells which pod below one that is bound is, with the status that it has.
func (s *Syncer) tellWhich(ctx context.Context, k key, bound, below *unstructured.Unstructured) error {
	if !s.isBoundPod(bound, below) {
		return nameConflict("%s exists and %s", k, ownerOf(below))
	}
	bound = bound.DeepCopy()
	annotations := bound.GetAnnotations()
	annotations[workloadv1alpha1.PodUIDAnnotation] = string(below.GetUID())
	bound.SetAnnotations(annotations)
	return s.tellPod(ctx, k, bound, below)
}

// refusalsAtLeast is the time between two refusals of one pod that differ in their words alone.
const refusalsAtLeast = time.Minute

// tellNotRun tells with a pod that is bound why it is not run, in the physical cluster's words.
func (s *Syncer) tellNotRun(ctx context.Context, k key, bound *unstructured.Unstructured, err error) {
	why := s.refusalIn(k.namespace, err)
	var ofMirror *mirrorError
	if why == nil || why.reason == refusedUnreachable || errors.As(err, &ofMirror) {
		return // nothing is known of it
	}
	var pod corev1.Pod
	if runtime.DefaultUnstructuredConverter.FromUnstructured(bound.Object, &pod) != nil {
		return // the server validates the type
	}
	now := metav1.NewTime(s.config.Clock.Now())
	want := corev1.PodCondition{Type: workloadv1alpha1.PodSynced, Status: corev1.ConditionFalse, Reason: why.reason, Message: why.text(), LastTransitionTime: now, LastProbeTime: now}
	for i, is := range pod.Status.Conditions {
		if is.Type != workloadv1alpha1.PodSynced {
			continue
		}
		// Words that are others each time, as with the number of a request, are not news, and telling them brings us back.
		if is.Reason == want.Reason && (is.Message == want.Message || s.config.Clock.Since(is.LastProbeTime.Time) < refusalsAtLeast) {
			return
		}
		pod.Status.Conditions = append(pod.Status.Conditions[:i], pod.Status.Conditions[i+1:]...)
		break
	}
	pod.Status.Conditions = append(pod.Status.Conditions, want)
	said, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&pod)
	if err != nil {
		return
	}
	// What cannot be told now is told with the next try.
	_, _ = s.mirror.dynamic.Resource(podsGVR).Namespace(k.namespace).UpdateStatus(ctx, &unstructured.Unstructured{Object: said}, metav1.UpdateOptions{FieldManager: workloadv1alpha1.FieldManager})
}
