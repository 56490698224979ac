package syncer

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// What bounds the pods of its namespace, as a LimitRange or a NetworkPolicy does (kinds.WithNamespace), is there before they are made. Nothing there waits
// for it, as a pod does for its ConfigMap: one that is made a moment too early lacks the defaults of the LimitRange for as long as it lives.

// holdTime is for how long something that bounds pods is waited for, from when it is first seen to be on its way, until it has arrived once. That a physical
// cluster does not take it, which its owner is told, is no reason to keep from running what it is about.
const holdTime = 15 * time.Second

// unbounded is what makes pods and waits for what bounds them, and what that is.
type unbounded struct {
	mu sync.Mutex // guards all below
	// waits has by its namespace what waits, and what is about to look whether it has to.
	waits map[string]sets.Set[key]
	// onTheirWay has since when what bounds pods is waited for, until it is there or will not be; and by a key without a name, since when that cannot be read.
	onTheirWay map[key]time.Time
}

func (u *unbounded) add(k key) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.waits == nil {
		u.waits = map[string]sets.Set[key]{}
	}
	if u.waits[k.namespace] == nil {
		u.waits[k.namespace] = sets.New[key]()
	}
	u.waits[k.namespace].Insert(k)
}

func (u *unbounded) remove(k key) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.waits[k.namespace].Delete(k); len(u.waits[k.namespace]) == 0 {
		delete(u.waits, k.namespace)
	}
}

func (u *unbounded) has(namespace string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.waits[namespace] != nil
}

// take removes and returns all that waits in a namespace.
func (u *unbounded) take(namespace string) []key {
	u.mu.Lock()
	defer u.mu.Unlock()
	waits := u.waits[namespace].UnsortedList()
	delete(u.waits, namespace)
	return waits
}

// wait says for how long something is waited for yet that is on its way. To become another meanwhile gives it no more time.
func (u *unbounded) wait(bound key, now time.Time) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	since, ok := u.onTheirWay[bound]
	if !ok {
		if u.onTheirWay == nil {
			u.onTheirWay = map[key]time.Time{}
		}
		since = now
		u.onTheirWay[bound] = since
	}
	return max(0, since.Add(holdTime).Sub(now))
}

// arrived says that something is on its way no more.
func (u *unbounded) arrived(bound key) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.onTheirWay, bound)
}

// areBounded says for how long k, which makes pods in its namespace, has to wait yet for what bounds them there; 0 if it does not.
func (s *Syncer) areBounded(ctx context.Context, k key) (wait time.Duration, err error) {
	s.unbounded.add(k) // before it looks: whatever becomes of what it waits for then brings it back
	if wait, err = s.waitForBounds(ctx, k.namespace); err != nil {
		return 0, err // it is tried again
	}
	if wait == 0 {
		s.unbounded.remove(k)
		return 0, nil
	}
	klog.FromContext(ctx).V(2).Info("Waits for what bounds the pods of its namespace", "object", k.String(), "atMost", wait)
	return wait, nil
}

// waitForBounds says for how long what bounds pods in a namespace is waited for yet. What is to be there is read from the mirror, unless we see enough: our
// watch of one kind may be behind that of another.
func (s *Syncer) waitForBounds(ctx context.Context, namespace string) (wait time.Duration, err error) {
	now := s.config.Clock.Now()
	look := func(gvr schema.GroupVersionResource, leaf *unstructured.Unstructured) {
		if s.isOnItsWay(gvr, leaf) { // that it has arrived, its event says: we may see it as it was
			wait = max(wait, s.unbounded.wait(key{gvr, namespace, leaf.GetName()}, now))
		}
	}
	for _, gvr := range s.bounds {
		for _, leaf := range s.boundsIn(gvr, namespace) {
			look(gvr, leaf)
		}
	}
	for _, gvr := range s.bounds {
		if wait > 0 || s.isDenied(gvr) {
			continue
		}
		list, err := s.mirror.dynamic.Resource(gvr).Namespace(namespace).List(ctx, metav1.ListOptions{LabelSelector: workloadv1alpha1.WorkspaceLabel})
		switch {
		case isDenial(err):
			continue // the hub has none of them
		case apierrors.IsInternalError(err): // as of a row that cannot be read, which keeps nothing from running
			wait = max(wait, s.unbounded.wait(key{gvr, namespace, ""}, now))
			continue
		case err != nil:
			return 0, &mirrorError{fmt.Errorf("list the %s that bound pods in namespace %s: %w", gvr.Resource, namespace, err)}
		}
		s.unbounded.arrived(key{gvr, namespace, ""})
		for i := range list.Items {
			look(gvr, &list.Items[i])
		}
	}
	return wait, nil
}

// boundSeen takes news of something that bounds pods. Handlers of informers call it, which hold the locks of their queues.
func (s *Syncer) boundSeen(k key) {
	if leaf := get(s.mirror.informers[k.resource], k); leaf == nil || !s.isOnItsWay(k.resource, leaf) {
		s.unbounded.arrived(k)
	}
	if !s.unbounded.has(k.namespace) {
		return
	}
	for _, gvr := range s.bounds {
		for _, leaf := range s.boundsIn(gvr, k.namespace) {
			if s.isOnItsWay(gvr, leaf) {
				return
			}
		}
	}
	for _, waits := range s.unbounded.take(k.namespace) {
		s.queue.Add(waits)
	}
}

// boundsIn returns the leaves of a resource in a namespace that we see, not to be changed.
func (s *Syncer) boundsIn(gvr schema.GroupVersionResource, namespace string) (leaves []*unstructured.Unstructured) {
	all, _ := s.mirror.informers[gvr].ByIndex(cache.NamespaceIndex, namespace) // fails only for an index that does not exist
	for _, o := range all {
		leaves = append(leaves, o.(*unstructured.Unstructured))
	}
	return leaves
}

// isOnItsWay says that a leaf is to be written as it is now, and that its cluster has neither taken nor refused it.
func (s *Syncer) isOnItsWay(gvr schema.GroupVersionResource, leaf *unstructured.Unstructured) bool {
	if leaf.GetDeletionTimestamp() != nil {
		return false
	}
	down, there, _ := s.physical.informers[gvr].GetByKey(key{gvr, leaf.GetNamespace(), leaf.GetName()}.cacheKey()) // a cache.Indexer never fails here
	if there && down.(*unstructured.Unstructured).GetAnnotations()[workloadv1alpha1.RenderedAnnotation] == leaf.GetAnnotations()[workloadv1alpha1.RenderedAnnotation] {
		return false
	}
	refused := workloadv1alpha1.RefusalOf(leaf)
	return refused == nil || refused.Reason == refusedUnreachable
}

// makesPods says whether pods may be made where live, nil if there is none, becomes what was rendered: not where none are asked for, or fewer of the same.
func makesPods(rendered, live *unstructured.Unstructured) bool {
	field := func(of *unstructured.Unstructured, name string) any {
		value, _, _ := unstructured.NestedFieldNoCopy(of.Object, "spec", name)
		return value
	}
	if suspended, _ := field(rendered, "suspend").(bool); suspended {
		return false
	}
	wanted, counted := field(rendered, "replicas").(int64)
	if counted && wanted == 0 {
		return false
	}
	if live == nil || !counted {
		return true
	}
	are, _ := field(live, "replicas").(int64)
	template, is := field(rendered, "template"), field(live, "template")
	return wanted >= are || !covers(template, is) || !covers(is, template)
}
