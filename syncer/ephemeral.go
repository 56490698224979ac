package syncer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

// reasonEphemeralRefused is the reason of the event by which who adds an ephemeral container learns that the physical cluster refuses it.
const reasonEphemeralRefused = "EphemeralContainerRefused"

// addedContainers returns the ephemeral containers that were added to a pod in its workspace, by kubectl debug or otherwise, and that the pod
// below has not: its spec is otherwise left as it is. They are never taken out of a pod again, nor those that somebody adds below.
func addedContainers(shown, below *unstructured.Unstructured) (added []any) {
	if shown == nil || below == nil || shown.GetDeletionTimestamp() != nil || below.GetDeletionTimestamp() != nil ||
		shown.GetAnnotations()[workloadv1alpha1.PodUIDAnnotation] != string(below.GetUID()) {
		return nil
	}
	has := map[any]bool{}
	for _, c := range ephemeralContainers(below) {
		has[nameOf(c)] = true
	}
	for _, c := range ephemeralContainers(shown) {
		if !has[nameOf(c)] {
			added = append(added, c)
		}
	}
	return added
}

// thinShown is what is kept of a pod that is shown: of its spec, which we wrote, what others add; of one that is bound also which tokens it wants.
func thinShown(pod *unstructured.Unstructured) *unstructured.Unstructured {
	added, spec := ephemeralContainers(pod), map[string]any{}
	if len(added) > 0 {
		spec["ephemeralContainers"] = added
	}
	if kinds.APIAccessOf(pod) != kinds.NoAPIAccess { // it says which tokens it wants
		for _, field := range []string{"serviceAccountName", "volumes"} {
			if value, ok, _ := unstructured.NestedFieldNoCopy(pod.Object, "spec", field); ok {
				spec[field] = value
			}
		}
	}
	delete(pod.Object, "spec")
	if len(spec) > 0 {
		pod.Object["spec"] = spec
	}
	return pod
}

func ephemeralContainers(pod *unstructured.Unstructured) []any {
	all, _, _ := unstructured.NestedFieldNoCopy(pod.Object, "spec", "ephemeralContainers")
	list, _ := all.([]any)
	return list
}

func nameOf(container any) any {
	fields, _ := container.(map[string]any)
	return fields["name"]
}

// change gives the pod below what it lacks of all that is asked for of it in its workspace. Nothing of that keeps the rest back.
func (s *Syncer) change(ctx context.Context, k key, shown, below *unstructured.Unstructured) error {
	var failed []error
	if kinds.IsBound(shown) && s.lacks(shown, below) {
		failed = append(failed, s.relabel(ctx, k, shown))
	}
	if lacksWhatWasAdded(shown, below) {
		if wait := s.waitsForResize(shown, below); wait > 0 { // not even read, whatever else happens to the pod
			s.queue.AddAfter(k, wait)
		} else {
			failed = append(failed, s.addToPod(ctx, k, shown))
		}
	}
	return errors.Join(failed...)
}

// addToPod gives the pod below what it lacks of what was added to it, and changed of it, in its workspace.
func (s *Syncer) addToPod(ctx context.Context, k key, shown *unstructured.Unstructured) error {
	// No write goes down without a fresh read of what asks for it, and of what is there.
	asks, err := s.mirror.dynamic.Resource(podsGVR).Namespace(k.namespace).Get(ctx, k.name, metav1.GetOptions{})
	if err != nil || asks.GetUID() != shown.GetUID() {
		return notFoundIsFine(err)
	}
	now, err := s.podBelow(ctx, k)
	if err != nil {
		return err
	}
	// One that is refused keeps the other from nothing.
	return errors.Join(s.addContainers(ctx, k, asks, now), s.resize(ctx, k, asks, now))
}

// addContainers adds to the pod below what addedContainers says, as it is now: each by itself, since one that is refused stays
// in the workspace, and must not keep the next from being added.
func (s *Syncer) addContainers(ctx context.Context, k key, asks, now *unstructured.Unstructured) error {
	var failed []error
	for _, container := range addedContainers(asks, now) {
		if s.isTold(now) {
			container = readingTold(container)
		}
		switch err := s.addContainer(ctx, k, now.GetUID(), container); {
		case err == nil:
		case apierrors.IsNotFound(err):
			return nil // it is gone: its event brings us back
		default:
			// A conflict may be another pod of its name, which the next try sees, or a webhook's.
			s.tellContainerRefused(ctx, k, now.GetUID(), container, err)
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// isTold says that a pod below has what its namespace is called in its workspace, where those of its containers read it that ask for it. A template
// may have any annotation of that name, elsewhere.
func (s *Syncer) isTold(below *unstructured.Unstructured) bool {
	told, ok := below.GetAnnotations()[workloadv1alpha1.NamespaceAnnotation]
	leaf := get(s.mirror.informers[namespacesGVR], key{namespacesGVR, "", below.GetNamespace()})
	return ok && leaf != nil && leaf.GetAnnotations()[workloadv1alpha1.RootAnnotation] == "/"+told
}

// readingTold returns a container that reads what its namespace is called in its workspace, of one that asks for its namespace.
func readingTold(container any) any {
	fields, ok := container.(map[string]any)
	if !ok {
		return container
	}
	fields = runtime.DeepCopyJSON(fields)
	env, _, _ := unstructured.NestedFieldNoCopy(fields, "env")
	variables, _ := env.([]any)
	for _, v := range variables {
		variable, _ := v.(map[string]any)
		from, _, _ := unstructured.NestedFieldNoCopy(variable, "valueFrom", "fieldRef")
		if ref, ok := from.(map[string]any); ok && ref["fieldPath"] == kinds.NamespaceField {
			ref["fieldPath"] = kinds.ToldNamespaceField
		}
	}
	return fields
}

func (s *Syncer) addContainer(ctx context.Context, k key, uid types.UID, container any) error {
	data, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": uid},
		"spec":     map[string]any{"ephemeralContainers": []any{container}}, // merged by their names
	})
	if err != nil {
		return fmt.Errorf("write the ephemeral container %q of %s: %w", nameOf(container), k, err)
	}
	_, err = s.physical.dynamic.Resource(podsGVR).Namespace(k.namespace).Patch(ctx, k.name, types.StrategicMergePatchType, data,
		metav1.PatchOptions{FieldManager: workloadv1alpha1.FieldManager}, "ephemeralcontainers")
	if err != nil {
		return fmt.Errorf("add the ephemeral container %q to %s: %w", nameOf(container), k, err)
	}
	return nil
}

// tellContainerRefused tells who looks at a pod why an ephemeral container is not there.
func (s *Syncer) tellContainerRefused(ctx context.Context, k key, uid types.UID, container any, err error) {
	s.tellPodRefused(ctx, k, uid, fmt.Sprintf("%s-%v", uid, nameOf(container)), reasonEphemeralRefused, err)
}

// tellPodRefused tells who looks at a pod what of it is refused below, by an Event of that name, in the physical cluster's
// words: the status of a pod that is shown is what it is below, and has no room for that. What cannot be told now is told with
// the next try.
func (s *Syncer) tellPodRefused(ctx context.Context, k key, uid types.UID, name, reason string, err error) {
	why := s.refusalIn(k.namespace, err)
	if why == nil || why.reason == refusedUnreachable {
		// Nothing is known where nobody answers. An answer may be another in a moment, or go on, as while a webhook there is down.
		var answer apierrors.APIStatus
		if !errors.As(err, &answer) || s.backoff.NumRequeues(k)+1 < answerTries {
			return
		}
		why = &refusal{refusedUnreachable, s.wordsFor(k.namespace, err.Error())}
	}
	if told, ok := s.toldOfPods.Get(name); ok && told == why.text() {
		return // an Event of each try would be news to nobody
	}
	now := s.config.Clock.Now().UTC().Format(time.RFC3339)
	event := &unstructured.Unstructured{Object: map[string]any{
		"involvedObject": map[string]any{"apiVersion": "v1", "kind": "Pod", "namespace": k.namespace, "name": k.name, "uid": string(uid)},
		"type":           corev1.EventTypeWarning, "reason": reason, "message": why.text(),
		"source":         map[string]any{"component": workloadv1alpha1.FieldManager},
		"firstTimestamp": now, "lastTimestamp": now, "count": int64(1),
	}}
	event.SetAPIVersion("v1")
	event.SetKind("Event")
	event.SetNamespace(k.namespace)
	event.SetName(name)
	_, err = s.mirror.dynamic.Resource(eventsGVR).Namespace(k.namespace).Update(ctx, event, metav1.UpdateOptions{FieldManager: workloadv1alpha1.FieldManager})
	if err == nil {
		s.toldOfPods.Add(name, why.text())
	}
}

// answerTries is after how many tries what may pass by itself is told of.
const answerTries = 3

// mostToldOfPods bounds of how many ephemeral containers, and pods that are resized, it is kept what was told of them.
const mostToldOfPods = 1000
