package client

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	eventrecord "k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/reference"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Events puts what a controller has to tell of objects, as Kubernetes' controllers do, into their logical clusters.
type Events struct {
	clients *Clients
	source  string
	clock   clock.PassiveClock
	known   *eventrecord.EventCorrelator
}

// NewEvents returns the Events of a controller that is called source in them.
func NewEvents(c *Clients, source string, clk clock.PassiveClock) *Events {
	return &Events{clients: c, source: source, clock: clk, known: eventrecord.NewEventCorrelator(clk)}
}

// Tell puts an Event about an object, of Kubernetes' types or a reference to one, into the logical cluster that ctx names; kind is
// corev1.EventTypeNormal or EventTypeWarning. What was told before is counted, and who causes many is heard less: the correlator
// knows objects by UID, a bounded number of them. An Event is news and no record: one that cannot be written is logged and not
// tried again.
func (e *Events) Tell(ctx context.Context, object runtime.Object, kind, reason, message string) {
	about, err := reference.GetReference(scheme.Scheme, object)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not tell of an object that has no kind", "type", fmt.Sprintf("%T", object), "reason", reason, "message", message)
		return
	}
	now := metav1.NewTime(e.clock.Now())
	told, err := e.known.EventCorrelate(&corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: about.Namespace, GenerateName: about.Name + "."},
		InvolvedObject: *about,
		Type:           kind, Reason: reason, Message: message,
		Source: corev1.EventSource{Component: e.source}, ReportingController: e.source,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	})
	if err == nil && told.Skip {
		return
	}
	var written *corev1.Event
	if err == nil {
		written, err = e.put(ctx, told.Event, told.Patch)
	}
	if err != nil {
		klog.FromContext(ctx).Info("Could not tell of an object", "kind", about.Kind, "object", klog.KRef(about.Namespace, about.Name), "reason", reason, "message", message, "err", err)
		return
	}
	e.known.UpdateState(written)
}

// put writes an Event that was told before by its patch, and else creates it.
func (e *Events) put(ctx context.Context, event *corev1.Event, patch []byte) (*corev1.Event, error) {
	events := e.clients.Kube.CoreV1().Events(event.Namespace)
	if event.Count > 1 {
		written, err := events.Patch(ctx, event.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		if !apierrors.IsNotFound(err) {
			return written, err
		}
	}
	event.ResourceVersion = "" // of the one that has ended
	return events.Create(ctx, event, metav1.CreateOptions{})
}
