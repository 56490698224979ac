package syncer

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

var (
	eventsGVR         = corev1.SchemeGroupVersion.WithResource("events")
	deploymentKind, _ = kinds.ByKind("Deployment")
	replicaSetKind, _ = kinds.ByKind("ReplicaSet")
)

const (
	// eventWorkers is how many events are told at once, beside the workers of all else: nothing else waits for them.
	eventWorkers = 2
	// eventsPerSecond and eventsAtOnce bound how many are told. The hub refuses twice as many.
	eventsPerSecond, eventsAtOnce = 50, 500
	// eventTries is how often one is tried to be told, for some two minutes: what it is about may not be shown yet.
	eventTries = 8
	// newsFor is how long what was there before us is news: who was here before us has told the rest. What he had told of this too is not
	// written again.
	newsFor = 10 * time.Minute
	// eventsRoom is the part of a physical cluster's room that its events have besides: they take none of what the rest needs.
	eventsRoom = 8
)

// Events of the physical cluster are told: those about pods that are shown, and about what was made of leaves, are put into the mirror,
// by the UIDs that they have below, and the server makes each an event of the workspace (docs/design/0010-events.md). What is kept of
// them is a name, and what they are about: each is read when it is told, so that one that counts up meanwhile is told once.

// errNotShown says of an event that the workspace has nothing that it is about, and errNotKnown that it has not, or not any more.
var (
	errNotShown = errors.New("it is about nothing that is shown")
	errNotKnown = errors.New("what it is about is not known")
)

// watchEvents makes the informer of events and its handler.
func (s *Syncer) watchEvents() {
	s.events = newInformer(s.physical, eventsGVR, nil, nil, s.eventsRoom)
	s.events.isPast = func(event *unstructured.Unstructured) bool {
		return s.config.Clock.Since(lastOf(event)) > newsFor
	}
	s.events.handle = func(_, now *unstructured.Unstructured) {
		if now != nil && s.physical.hasNamespace(now.GetNamespace()) {
			s.eventQueue.Add(key{eventsGVR, now.GetNamespace(), now.GetName()})
		}
	}
}

// runEvents runs it, when it is known which namespaces are ours.
func (s *Syncer) runEvents(ctx context.Context) {
	if cache.WaitForCacheSync(ctx.Done(), s.physical.informers[namespacesGVR].HasSynced) {
		s.events.run(ctx)
	}
}

// enqueueEvents adds the events of a namespace that is found to be ours.
func (s *Syncer) enqueueEvents(namespace string) {
	events, _ := s.events.ByIndex(cache.NamespaceIndex, namespace) // fails only for an index that does not exist
	for _, o := range events {
		if event := o.(*unstructured.Unstructured); !s.events.isPast(event) {
			s.events.handle(nil, event)
		}
	}
}

// involvedObject is the field that says what an event is about.
const involvedObject = "involvedObject"

// thinEvent is what is kept of an event, of one in a namespace of ours with what it is about.
func thinEvent(event *unstructured.Unstructured, ours bool) *unstructured.Unstructured {
	thin := &unstructured.Unstructured{Object: map[string]any{"lastTimestamp": lastOf(event).UTC().Format(time.RFC3339)}}
	if ours {
		about := map[string]any{}
		for _, name := range []string{"apiVersion", "kind", "namespace", "name", "uid"} {
			if text, ok, _ := unstructured.NestedString(event.Object, involvedObject, name); ok {
				about[name] = text
			}
		}
		if len(about) > 0 { // what is trimmed may be trimmed once more, when its namespace has been found to be ours
			thin.Object[involvedObject] = about
		}
	}
	thin.SetNamespace(event.GetNamespace())
	thin.SetName(event.GetName())
	thin.SetResourceVersion(event.GetResourceVersion())
	return thin
}

// lastOf is when an event was last recorded. Which field says so depends on who records it.
func lastOf(event *unstructured.Unstructured) time.Time {
	var last time.Time
	for _, path := range [][]string{{"metadata", "creationTimestamp"}, {"eventTime"}, {"lastTimestamp"}, {"series", "lastObservedTime"}} {
		text, _, _ := unstructured.NestedString(event.Object, path...)
		if at, err := time.Parse(time.RFC3339, text); err == nil && at.After(last) {
			last = at
		}
	}
	return last
}

// reconcileEvent tells one event. Nothing rests on it: what cannot be told after some tries is not.
func (s *Syncer) reconcileEvent(ctx context.Context, k key) (time.Duration, error) {
	if k.resource != eventsGVR {
		return s.tellDrift(ctx, k)
	}
	kept := get(s.events, k)
	if kept == nil {
		s.backoff.Forget(k)
		return 0, nil
	}
	if wait, err := s.mayShow(ctx); wait > 0 || err != nil {
		return wait, err
	}
	var err error
	if _, ok := kept.Object[involvedObject]; ok { // else its namespace was found to be ours later
		_, err = s.about(ctx, k.namespace, kept)
	}
	if err == nil {
		if err := s.eventPace.Wait(ctx); err != nil {
			return 0, err
		}
		err = s.tellEvent(ctx, k)
	}
	switch {
	case err == nil:
	case isFinal(err), s.backoff.NumRequeues(k)+1 >= eventTries:
		klog.FromContext(ctx).V(2).Info("An event is not told", "event", k.String(), "err", err)
	default:
		return s.backoff.When(k), nil
	}
	s.backoff.Forget(k)
	return 0, nil
}

// isFinal says of an error that the same event cannot be told later either. A hub of an earlier version forbids it.
func isFinal(err error) bool {
	return errors.Is(err, errNotShown) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) || apierrors.IsInvalid(err) || apierrors.IsMethodNotSupported(err)
}

// tellEvent puts an event of the physical cluster, as it is now, into the mirror.
func (s *Syncer) tellEvent(ctx context.Context, k key) error {
	below, err := s.physical.dynamic.Resource(eventsGVR).Namespace(k.namespace).Get(ctx, k.name, metav1.GetOptions{})
	if gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", k, err)
	}
	about, err := s.about(ctx, k.namespace, below)
	if err != nil {
		return fmt.Errorf("tell %s: %w", k, err)
	}
	told, err := renderEvent(below, about, func(set string) (string, error) { return s.revisionBelow(ctx, k.namespace, set) })
	if err != nil {
		return fmt.Errorf("tell %s: %w", k, err)
	}
	if err := s.writeEvent(ctx, k.namespace, told); err != nil {
		return fmt.Errorf("tell %s: %w", k, err)
	}
	return nil
}

// writeEvent writes an event to a namespace of the mirror, in words that may be told there.
func (s *Syncer) writeEvent(ctx context.Context, namespace string, event *unstructured.Unstructured) error {
	if message, ok := event.Object["message"].(string); ok {
		event.Object["message"] = s.wordsFor(namespace, message)
	}
	_, err := s.mirror.dynamic.Resource(eventsGVR).Namespace(namespace).Update(ctx, event, metav1.UpdateOptions{FieldManager: workloadv1alpha1.FieldManager})
	return err
}

// subject is what an event is about, as the hub knows it: a pod by its UID below, all else by its leaf, and of that the ReplicaSet of a
// revision unless that is "".
type subject struct {
	gvk       schema.GroupVersionKind
	name, uid string
	revision  string
}

// about returns what an event is about, if that is what the mirror has, and not one of its name before.
func (s *Syncer) about(ctx context.Context, namespace string, below *unstructured.Unstructured) (*subject, error) {
	field := func(name string) string {
		text, _, _ := unstructured.NestedString(below.Object, involvedObject, name)
		return text
	}
	gvk, name, uid := schema.FromAPIVersionAndKind(field("apiVersion"), field("kind")), field("name"), field("uid")
	if field("namespace") != namespace || uid == "" {
		return nil, errNotShown
	}
	switch gvk {
	case corev1.SchemeGroupVersion.WithKind("Pod"):
		shown := get(s.shownPods, key{podsGVR, namespace, name})
		if shown == nil || shown.GetAnnotations()[workloadv1alpha1.PodUIDAnnotation] != uid {
			return nil, errNotKnown
		}
		return &subject{gvk: gvk, name: name, uid: uid}, nil
	case replicaSetKind.GVK:
		if of, err := s.subjectOf(replicaSetKind, namespace, name, uid); err == nil {
			return of, nil
		}
		if _, known := s.sets.Get(types.UID(uid)); !known {
			if err := s.eventPace.Wait(ctx); err != nil {
				return nil, err
			}
		}
		set, err := s.setBelow(ctx, namespace, name, types.UID(uid))
		if err != nil {
			return nil, err
		}
		if set != nil && set.owner == nil {
			return nil, errNotKnown // what was made of a leaf is seen soon
		}
		if set == nil || set.owner.Kind != deploymentKind.GVK.Kind || set.owner.APIVersion != deploymentKind.GVK.GroupVersion().String() {
			return nil, errNotShown
		}
		of, err := s.subjectOf(deploymentKind, namespace, set.owner.Name, string(set.owner.UID))
		if err != nil {
			s.sets.Remove(types.UID(uid)) // another Deployment may have adopted it since
			return nil, err
		}
		of.revision = set.revision
		return of, nil
	}
	kind, ok := kinds.ByKind(gvk.Kind)
	if !ok || kind.GVK != gvk {
		return nil, errNotShown
	}
	return s.subjectOf(kind, namespace, name, uid)
}

// subjectOf returns what an event is about that is about the object below, of that kind, name and UID.
func (s *Syncer) subjectOf(kind kinds.Kind, namespace, name, uid string) (*subject, error) {
	k := key{kind.GVR, namespace, name}
	leaf, made := get(s.mirror.informers[kind.GVR], k), get(s.physical.informers[kind.GVR], k)
	if leaf == nil || made == nil || string(made.GetUID()) != uid {
		return nil, errNotKnown
	}
	return &subject{gvk: kind.GVK, name: name, uid: string(leaf.GetUID())}, nil
}

// eventFields are those that an event has in the mirror as below; who is behind source and reportingInstance the hub knows.
var eventFields = []string{"reason", "message", "type", "action", "count", "series", "firstTimestamp", "lastTimestamp", "eventTime", "reportingComponent", "reportingInstance"}

// renderEvent returns an event of the physical cluster as it is put. revision returns that of a ReplicaSet below, "" if it has none.
func renderEvent(below *unstructured.Unstructured, about *subject, revision func(set string) (string, error)) (*unstructured.Unstructured, error) {
	told := &unstructured.Unstructured{Object: map[string]any{}}
	for _, field := range eventFields {
		if value, ok := below.Object[field]; ok {
			told.Object[field] = value
		}
	}
	involved := map[string]any{
		"apiVersion": about.gvk.GroupVersion().String(), "kind": about.gvk.Kind, "namespace": below.GetNamespace(), "name": about.name, "uid": about.uid,
	}
	if path, ok, _ := unstructured.NestedString(below.Object, involvedObject, "fieldPath"); ok {
		involved["fieldPath"] = path
	}
	told.Object[involvedObject] = involved
	if component, ok, _ := unstructured.NestedString(below.Object, "source", "component"); ok {
		told.Object["source"] = map[string]any{"component": component}
	}
	told.SetAPIVersion("v1")
	told.SetKind("Event")
	told.SetNamespace(below.GetNamespace())
	told.SetName(string(below.GetUID()))
	if about.revision != "" {
		told.SetAnnotations(map[string]string{workloadv1alpha1.RevisionAnnotation: about.revision})
	}
	if message, _ := below.Object["message"].(string); about.gvk == deploymentKind.GVK {
		named, err := replicaSetsAbove(message, about.name, revision)
		if err != nil {
			return nil, err
		}
		told.Object["message"] = named
	}
	return told, nil
}

// replicaSetIn finds the ReplicaSet that a Deployment's controller scales, in what it says of that.
var replicaSetIn = regexp.MustCompile(`^(Scaled (?:up|down) replica set )([a-z0-9.-]+)( .*)?$`)

// replicaSetsAbove returns what the controller of a Deployment says, with the name that its ReplicaSet has in the workspace.
func replicaSetsAbove(message, deployment string, revision func(set string) (string, error)) (string, error) {
	parts := replicaSetIn.FindStringSubmatch(message)
	if parts == nil {
		return message, nil
	}
	hash, err := revision(parts[2])
	if err != nil || hash == "" {
		return message, err
	}
	return parts[1] + kinds.RevisionName(deployment, hash) + parts[3], nil
}

// revisionBelow returns which revision a ReplicaSet is of, "" if that is not known.
func (s *Syncer) revisionBelow(ctx context.Context, namespace, name string) (string, error) {
	set, err := s.replicaSetBelow(ctx, namespace, name)
	if set == nil {
		return "", err
	}
	return set.GetAnnotations()[workloadv1alpha1.RevisionAnnotation], nil
}

// setBelow is what is known of a ReplicaSet of the physical cluster.
type setBelow struct {
	owner    *metav1.OwnerReference // its controller, nil without one
	revision string                 // that of the leaf's template that it was made of, "" if that is not known
}

// setBelow returns what is known of a ReplicaSet; nil if there is none with that UID that we may see. One of which the revision is known is read once:
// each of its pods has it, and is told in an event.
func (s *Syncer) setBelow(ctx context.Context, namespace, name string, uid types.UID) (*setBelow, error) {
	if known, ok := s.sets.Get(uid); ok {
		return known.(*setBelow), nil
	}
	set, err := s.replicaSetBelow(ctx, namespace, name)
	if err != nil || set == nil || set.GetUID() != uid {
		return nil, err
	}
	known := &setBelow{metav1.GetControllerOf(set), set.GetAnnotations()[workloadv1alpha1.RevisionAnnotation]}
	if known.revision != "" && known.owner != nil {
		s.sets.Add(uid, known)
	}
	return known, nil
}

// replicaSetBelow reads a ReplicaSet of the physical cluster; nil if there is none that we may see.
func (s *Syncer) replicaSetBelow(ctx context.Context, namespace, name string) (*unstructured.Unstructured, error) {
	// A list is what every physical cluster allows its syncer.
	list, err := s.physical.dynamic.Resource(replicaSetsGVR).Namespace(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
	})
	if isDenial(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read ReplicaSet %s: %w", name, err)
	}
	for i := range list.Items {
		if set := &list.Items[i]; set.GetName() == name {
			return set, nil
		}
	}
	return nil, nil
}
