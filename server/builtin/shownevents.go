package builtin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	api "k8s.io/kubernetes/pkg/apis/core"
	eventstore "k8s.io/kubernetes/pkg/registry/core/event/storage"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

// How long what an event says may be, in bytes. Upstream has these limits for events of events.k8s.io, and none for those of the core
// group; a path names a container at most.
const (
	mostEventMessage   = 1024
	mostEventWord      = 128
	mostEventFieldPath = 256
)

// eventsElsewhere are the events of a workspace. Those of a mirror nobody reads: what is put there becomes the workspace's.
type eventsElsewhere struct {
	*eventstore.REST
	shown shownEvents
}

func (e eventsElsewhere) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	if inMirror(ctx) {
		return nil, apierrors.NewMethodNotSupported(api.Resource("events"), "create")
	}
	return e.REST.Create(ctx, obj, validate, options)
}

func (e eventsElsewhere) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, validate rest.ValidateObjectUpdateFunc, force bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	if inMirror(ctx) {
		return e.shown.put(ctx, name, info, create, options)
	}
	return e.REST.Update(ctx, name, info, create, validate, force, options)
}

// shownEvents are what a physical cluster says goes on with what it runs. The server makes each an event of the workspace's object,
// whatever the cluster says whose it is (docs/design/0010-events.md).
type shownEvents struct {
	pods   shownPods
	events *eventstore.REST
	pace   *eventPace
}

// put writes an event of a mirror's physical cluster into the workspace that it is for. The name is whatever the syncer calls it by: one
// that was put before is written over, so what is put again is neither twice there nor, where it says the same, written.
func (s shownEvents) put(ctx context.Context, name string, info rest.UpdatedObjectInfo, validate rest.ValidateObjectFunc, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	at, err := s.pods.space(ctx)
	if err != nil {
		return nil, false, err
	}
	obj, err := info.UpdatedObject(ctx, &api.Event{}) // it is always new: of what is there, the mirror sees nothing
	if err != nil {
		return nil, false, err
	}
	told, ok := obj.(*api.Event)
	if !ok {
		return nil, false, apierrors.NewBadRequest("this is no event")
	}
	if err := validate(ctx, told.DeepCopy()); err != nil {
		return nil, false, err
	}
	if err := wellFormed(told); err != nil {
		return nil, false, err
	}
	if !s.pace.takeOfMirror(at.cluster) {
		return nil, false, tooManyEvents("the physical cluster")
	}
	if err := s.open(at); err != nil {
		return nil, false, err
	}
	about, err := s.about(at, told)
	if err != nil {
		return nil, false, err
	}
	if !s.pace.takeOfObject(at.cluster, about.UID) {
		return nil, false, tooManyEvents("one object")
	}
	owner, err := s.pods.owner(at)
	if err != nil {
		return nil, false, err
	}
	event := at.event(name, told, about, owner.Name)
	written, created, err := s.events.Update(at.inWorkspace("", "events"), event.Name, rest.DefaultUpdatedObjectInfo(event),
		rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, options)
	if err != nil {
		return nil, false, untold("events", err, name)
	}
	stored, err := meta.Accessor(written)
	if err != nil {
		return nil, false, apierrors.NewInternalError(err)
	}
	told = told.DeepCopy()
	told.UID, told.ResourceVersion = stored.GetUID(), stored.GetResourceVersion()
	return told, created, nil
}

// tooManyEvents is without a time to wait: a client of ours would hold a worker for as long.
func tooManyEvents(of string) error {
	return apierrors.NewTooManyRequests("there are too many events of "+of+": those that go on are told later", 0)
}

// wellFormed refuses what no event needs to be.
func wellFormed(told *api.Event) error {
	refuse := func(format string, args ...any) error {
		return apierrors.NewBadRequest("an event of a physical cluster " + fmt.Sprintf(format, args...))
	}
	if told.Type != corev1.EventTypeNormal && told.Type != corev1.EventTypeWarning {
		return refuse("has the type Normal or Warning, not %.32q", told.Type)
	}
	for _, word := range []string{told.Reason, told.Action, told.ReportingController, told.Source.Component} {
		if len(word) > mostEventWord {
			return refuse("has a reason, action and source of at most %d bytes, not %d", mostEventWord, len(word))
		}
	}
	if n := len(told.InvolvedObject.FieldPath); n > mostEventFieldPath {
		return refuse("has a fieldPath of at most %d bytes, not %d", mostEventFieldPath, n)
	}
	return nil
}

// open refuses where the workspace's namespace is on its way out: what is added then would outlive it. What the mirror's admission sees of
// that is the mirror's own namespace. In the moment before the watch cache knows, one may get in, and ends as events do.
func (s shownEvents) open(at *space) error {
	_, err := s.lookUp(at.inWorkspace("", "namespaces"), corev1.Resource("namespaces"), "", at.workspaceNamespace, func(o metav1.Object) bool {
		return o.GetDeletionTimestamp() == nil
	})
	return err
}

// about returns which object of the workspace an event is about: the pod that is shown of the one with that UID below; else the root of
// the leaf with that name and UID, or the root's ReplicaSet that the syncer says it means.
func (s shownEvents) about(at *space, told *api.Event) (*api.ObjectReference, error) {
	ref := told.InvolvedObject
	if ref.Kind == "Pod" && ref.APIVersion == corev1.SchemeGroupVersion.String() {
		pod, err := s.pod(at, ref)
		if err != nil {
			return nil, err
		}
		return &api.ObjectReference{APIVersion: ref.APIVersion, Kind: ref.Kind, Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, FieldPath: ref.FieldPath}, nil
	}
	kind, ok := kinds.ByKind(ref.Kind)
	if !ok || kind.GVK.GroupVersion().String() != ref.APIVersion {
		return nil, apierrors.NewForbidden(api.Resource("events"), told.Name, fmt.Errorf("it is about a %.64s of %.64s, and events of those are not shown", ref.Kind, ref.APIVersion))
	}
	leaf, err := s.leaf(at, kind, ref)
	if err != nil {
		return nil, err
	}
	root, err := s.root(at, kind, leaf)
	if err != nil {
		return nil, err
	}
	if hash := told.Annotations[workloadv1alpha1.RevisionAnnotation]; hash != "" {
		set, err := s.pods.replicaSet(at, root, hash)
		if err != nil {
			return nil, err
		}
		if set != nil {
			return &api.ObjectReference{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "ReplicaSet", Namespace: set.Namespace, Name: set.Name, UID: set.UID}, nil
		}
	}
	return &api.ObjectReference{APIVersion: ref.APIVersion, Kind: ref.Kind, Namespace: root.GetNamespace(), Name: root.GetName(), UID: root.GetUID(), FieldPath: ref.FieldPath}, nil
}

// pod returns the pod that is shown of the one below which ref names.
func (s shownEvents) pod(at *space, ref api.ObjectReference) (*api.Pod, error) {
	missing := apierrors.NewNotFound(api.Resource("pods"), ref.Name)
	found, err := s.lookUp(at.inWorkspace("", "pods"), corev1.Resource("pods"), at.workspaceNamespace, ref.Name, func(o metav1.Object) bool {
		pod, ok := o.(*api.Pod)
		return ok && at.shows(pod) && ref.UID != "" && pod.Annotations[workloadv1alpha1.PodUIDAnnotation] == string(ref.UID)
	})
	if apierrors.IsNotFound(err) {
		return nil, missing
	} else if err != nil {
		return nil, err
	}
	return found.(*api.Pod), nil
}

// leaf returns the one that ref names, in the space.
func (s shownEvents) leaf(at *space, kind kinds.Kind, ref api.ObjectReference) (metav1.Object, error) {
	return s.lookUp(at.mirror, kind.GVR.GroupResource(), at.namespace, ref.Name, func(o metav1.Object) bool {
		return o.GetUID() == ref.UID && at.isLeaf(o)
	})
}

// root returns that of a leaf.
func (s shownEvents) root(at *space, kind kinds.Kind, leaf metav1.Object) (metav1.Object, error) {
	resource := kind.GVR.GroupResource()
	_, name, _ := strings.Cut(leaf.GetAnnotations()[workloadv1alpha1.RootAnnotation], "/")
	uid := types.UID(leaf.GetLabels()[workloadv1alpha1.RootUIDLabel])
	return s.lookUp(at.inWorkspace(resource.Group, resource.Resource), resource, at.workspaceNamespace, name, func(o metav1.Object) bool { return o.GetUID() == uid })
}

// lookUp returns the object of that name if it is the one. The watch cache may be behind: what it does not have, etcd is asked for. An
// object that is gone since may still be told of.
func (s shownEvents) lookUp(ctx context.Context, resource schema.GroupResource, namespace, name string, isIt func(metav1.Object) bool) (metav1.Object, error) {
	for _, cached := range []bool{true, false} {
		found, err := s.pods.objects.Get(ctx, resource, namespace, name, cached)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
		if err != nil {
			continue
		}
		object, err := meta.Accessor(found)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		if isIt(object) {
			return object, nil
		}
	}
	return nil, apierrors.NewNotFound(resource, name)
}

// event returns what the workspace has of an event that a physical cluster tells: what it is about, where it comes from and what it is
// called is what the server knows.
func (at *space) event(name string, told *api.Event, about *api.ObjectReference, node string) *api.Event {
	event := &api.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: at.workspaceNamespace, Name: at.eventName(name, about.Name)},
		InvolvedObject: *about,
		Reason:         told.Reason, Type: told.Type, Action: told.Action,
		Message:        shortened(inWords(told.Message, at.namespace, at.workspaceNamespace), mostEventMessage),
		FirstTimestamp: told.FirstTimestamp, LastTimestamp: told.LastTimestamp, EventTime: told.EventTime,
		Count: told.Count, Series: told.Series.DeepCopy(),
		ReportingController: told.ReportingController, ReportingInstance: node,
		Source: api.EventSource{Component: told.Source.Component},
	}
	if event.Source.Component != "" {
		event.Source.Host = node
	}
	return event
}

// eventName is by what an event goes in the workspace that its mirror calls by name. No other mirror's event goes by it.
func (at *space) eventName(name, object string) string {
	sum := sha256.Sum256([]byte(string(at.cluster) + "/" + at.namespace + "/" + name))
	const mostOfObject = 200
	return strings.TrimRight(object[:min(len(object), mostOfObject)], ".-") + "." + hex.EncodeToString(sum[:12])
}

// inWords returns a message in which a namespace goes by another name, wherever it stands for itself.
func inWords(message, from, to string) string {
	if from == "" || from == to {
		return message
	}
	var b strings.Builder
	for at := 0; ; {
		i := strings.Index(message[at:], from)
		if i < 0 {
			return b.String() + message[at:]
		}
		begin, end := at+i, at+i+len(from)
		b.WriteString(message[at:begin])
		if begin > 0 && isOfName(message[begin-1]) || end < len(message) && isOfName(message[end]) {
			b.WriteString(from)
		} else {
			b.WriteString(to)
		}
		at = end
	}
}

// isOfName says whether a byte is of one name with those next to it.
func isOfName(c byte) bool {
	return c == '-' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// shortened returns as much of a text as is most bytes long.
func shortened(text string, most int) string {
	if len(text) <= most {
		return text
	}
	const end = "..."
	cut := most - len(end)
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + end
}

const (
	// A physical cluster may tell so many events of one object at once, and so many a minute after that: more than those who record
	// events there let through by default, 25 and one in five minutes for each of them.
	burstOfObject, objectPerSecond = 50, 1.0 / 60
	// And so many of all: a syncer tells half as many a second (syncer, eventsPerSecond).
	burstOfMirror, mirrorPerSecond = 1000, 100
	// pacedObjects is how many objects are remembered.
	pacedObjects = 65536
)

// eventPace bounds how many events physical clusters put: how many they have, they say themselves.
type eventPace struct {
	mirrors *pace
	objects *pace // by tallyKey
}

func newEventPace(clk clock.PassiveClock) *eventPace {
	return &eventPace{newPace(clk, pacedMirrors, mirrorPerSecond, burstOfMirror), newPace(clk, pacedObjects, objectPerSecond, burstOfObject)}
}

func (p *eventPace) takeOfMirror(mirror logicalcluster.Name) bool { return p.mirrors.take(mirror) }

func (p *eventPace) takeOfObject(mirror logicalcluster.Name, object types.UID) bool {
	return p.objects.take(tallyKey{mirror, object})
}
