package garbage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"atoll.dev/atoll/client"
)

// tellWrongNamespace writes an Event about an object that names an owner which exists in another namespace: its author
// hardly meant what follows. It has upstream's reason and words. An event that cannot be written is not worth a retry.
func (c *Collector) tellWrongNamespace(ctx context.Context, live object, o owner) {
	err := c.tryTellWrongNamespace(ctx, live, o)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Event not written", "object", live.String(), "reason", wrongNamespace, "err", err)
	}
}

const wrongNamespace = "OwnerRefInvalidNamespace"

func (c *Collector) tryTellWrongNamespace(ctx context.Context, live object, o owner) error {
	store := c.store(o.resource)
	if store == nil {
		return nil
	}
	elsewhere := false
	ctx = client.In(ctx, live.cluster)
	_, err := each(ctx, store, "0", func(m metav1.Object) {
		elsewhere = elsewhere || m.GetUID() == o.UID && m.GetNamespace() != "" && m.GetNamespace() != live.namespace
	})
	if err != nil || !elsewhere {
		return err
	}
	kind, ok := c.kinds.Kind(live.cluster, live.resource)
	if !ok {
		return nil
	}
	message := fmt.Sprintf("ownerRef [%s/%s, namespace: %s, name: %s, uid: %s] does not exist in namespace %q",
		o.APIVersion, o.Kind, live.namespace, o.Name, o.UID, live.namespace)
	// What is said again of the same object has the same name, so that it is there once.
	sum := sha256.Sum256([]byte(string(live.uid) + "/" + message))
	name := live.name
	if most := 200; len(name) > most {
		name = name[:most]
	}
	namespace := live.namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	now := metav1.NewTime(time.Now())
	err = c.clients.Objects.Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "." + hex.EncodeToString(sum[:8])},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Namespace: live.namespace, Name: live.name, UID: live.uid,
		},
		Type: corev1.EventTypeWarning, Reason: wrongNamespace, Message: message, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: manager + "-controller"}, ReportingController: manager + "-controller",
	})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
