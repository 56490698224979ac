package garbage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"atoll.dev/atoll/client"
)

const (
	wrongNamespace = "OwnerRefInvalidNamespace"
	// tooManyReferences is said of what is left out of the graph. Kubernetes knows no such thing.
	tooManyReferences = "TooManyOwnerReferences"
	// mostTold is of how many such objects of a logical cluster something is said before it is another one's turn.
	mostTold = 100
	// gather is how long what may be worth an Event waits for more of its resource and logical cluster: they share one search,
	// which takes as long as there are objects, however many name an owner that is not there.
	gather = 5 * time.Second
)

// resourceOf is a resource of a logical cluster.
type resourceOf struct {
	cluster  logicalcluster.Name
	resource schema.GroupResource
}

// Tenant is the logical cluster: one whose objects name owners of many kinds has no more searches than others.
func (r resourceOf) Tenant() string { return string(r.cluster) }

// suspect is an object and an owner that it names, which does not exist in the object's namespace.
type suspect struct {
	identity
	// apiVersion and kind are as the reference says.
	apiVersion, kind string
	owner            identity
}

// tellWrongNamespace has an Event written about an object if the owner that it names exists in another namespace: its
// author hardly meant what follows.
func (c *Collector) tellWrongNamespace(live object, o owner) {
	c.suspects.addAfter(resourceOf{live.cluster, o.resource}, suspect{live.identity, o.APIVersion, o.Kind, o.identity}, gather)
}

// tellSuspects looks for owners of a resource in other namespaces, for many objects at once, and writes the Events. One that
// cannot be written is not worth a retry.
func (c *Collector) tellSuspects(ctx context.Context, of resourceOf, suspects []suspect) ([]suspect, time.Duration, error) {
	store, err := c.store(of.resource)
	if err != nil {
		return suspects, 0, err
	}
	logger := klog.FromContext(ctx)
	ctx = client.In(ctx, of.cluster)
	namespaces := map[types.UID][]string{} // of owners
	for _, s := range suspects {
		namespaces[s.owner.uid] = nil
	}
	// As new as etcd: an owner in another namespace may be as young as the object that names it.
	_, err = each(ctx, store, "", func(m metav1.Object) {
		if _, ok := namespaces[m.GetUID()]; ok && m.GetNamespace() != "" {
			namespaces[m.GetUID()] = append(namespaces[m.GetUID()], m.GetNamespace())
		}
	})
	if err != nil {
		logger.V(2).Info("Events not written", "cluster", of.cluster, "resource", of.resource.String(), "reason", wrongNamespace, "err", err)
		return nil, 0, nil
	}
	for _, s := range suspects {
		if !slices.ContainsFunc(namespaces[s.owner.uid], func(namespace string) bool { return namespace != s.namespace }) {
			continue
		}
		if err := c.writeWrongNamespace(ctx, s); err != nil {
			logger.V(2).Info("Event not written", "object", s.String(), "reason", wrongNamespace, "err", err)
		}
	}
	return nil, 0, nil
}

// writeWrongNamespace writes the Event, which has upstream's reason and words.
func (c *Collector) writeWrongNamespace(ctx context.Context, s suspect) error {
	return c.warn(ctx, s.identity, wrongNamespace, fmt.Sprintf("ownerRef [%s/%s, namespace: %s, name: %s, uid: %s] does not exist in namespace %q",
		s.apiVersion, s.kind, s.namespace, s.owner.name, s.owner.uid, s.namespace))
}

// tellLeftOut writes Events about objects of whose owners the graph has none. They are kept, and somebody should know why.
func (c *Collector) tellLeftOut(ctx context.Context, cluster logicalcluster.Name, objects []identity) (left []identity, again time.Duration, err error) {
	if len(objects) > mostTold {
		objects, left, again = objects[:mostTold], objects[mostTold:], gather
	}
	ctx = client.In(ctx, cluster)
	for _, id := range objects {
		known, ok := c.graph.look(id)
		if !ok || known.leftOut == notLeftOut {
			continue
		}
		if err := c.warn(ctx, id, tooManyReferences, known.leftOut.String()); err != nil {
			klog.FromContext(ctx).V(2).Info("Event not written", "object", id.String(), "reason", tooManyReferences, "err", err)
		}
	}
	return left, again, nil
}

// String says what follows from it, and what to do.
func (l leftOut) String() string {
	const follows = "it is not deleted with its owners, and what waits for it in a foreground deletion does until it is gone or names fewer"
	switch l {
	case tooMany:
		return fmt.Sprintf("This has more than %d owner references: %s", mostOwners, follows)
	case noRoom:
		return fmt.Sprintf("The objects of this workspace have more than %d owner references, and more than %d for each that has or is an owner. Until there are half as many, nothing follows from those of this one: %s",
			mostReferences, referencesOfEach, follows)
	}
	return ""
}

// warn writes an Event about an object, in the logical cluster of ctx.
func (c *Collector) warn(ctx context.Context, s identity, reason, message string) error {
	kind, ok := c.kinds.Kind(s.cluster, s.resource)
	if !ok {
		return nil
	}
	// What is said again of the same object has the same name, so that it is there once.
	sum := sha256.Sum256([]byte(string(s.uid) + "/" + message))
	name := s.name
	if longest := 200; len(name) > longest {
		name = name[:longest]
	}
	namespace := s.namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	now := metav1.NewTime(time.Now())
	err := c.clients.Objects.Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "." + hex.EncodeToString(sum[:8])},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Namespace: s.namespace, Name: s.name, UID: s.uid,
		},
		Type: corev1.EventTypeWarning, Reason: reason, Message: message, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: manager + "-controller"}, ReportingController: manager + "-controller",
	})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
