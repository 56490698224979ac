package namespaces

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/atoll/client"
)

const (
	// firstLook to lastLook is how long a namespace that still holds something rests until it is looked at again, if no
	// event says so earlier: each look is dozens of reads, and a finalizer may never go.
	firstLook = 2 * time.Second
	lastLook  = time.Minute

	// parallel is how many resources of one namespace are looked at at a time: a consistent list may have to wait for
	// the watch cache, and there are dozens of resources.
	parallel = 16

	// listLimit bounds how many of the objects that remain are counted by finalizer.
	listLimit = 500

	metadataList = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// round is what a look at a namespace found that is being deleted, and when the next is due.
type round struct {
	uid                   types.UID
	remaining, finalizers map[string]int64
	rest                  time.Duration
}

// next is the round after r: the rest doubles as long as nothing happens.
func (r round) next(uid types.UID, found content) round {
	rest := firstLook
	if r.uid == uid && maps.Equal(r.remaining, found.remaining) && maps.Equal(r.finalizers, found.finalizers) {
		rest = min(2*r.rest, lastLook)
	}
	return round{uid: uid, remaining: found.remaining, finalizers: found.finalizers, rest: rest}
}

// takeRound looks at a namespace once, and forgets its rounds when there is nothing more to look at.
func (c *Controller) takeRound(ctx context.Context, key client.Key) (time.Duration, error) {
	again, err := c.deleteContent(ctx, key)
	if err == nil && again == 0 {
		c.mu.Lock()
		delete(c.waits, key)
		c.mu.Unlock()
	}
	return again, err
}

// rest notes what was found in a namespace, and returns when to look again.
func (c *Controller) rest(key client.Key, uid types.UID, found content) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waits[key] = c.waits[key].next(uid, found)
	return c.waits[key].rest
}

// deleteContent deletes what is in a namespace, and lets the namespace go if nothing is left. Upstream's deleter is not
// used: it takes one resource after the other, with two or three consistent lists for each, and ends the process if
// discovery finds nothing.
func (c *Controller) deleteContent(ctx context.Context, key client.Key) (time.Duration, error) {
	seen, ok := c.informers.Namespaces.Get(key)
	if !ok || seen.DeletionTimestamp == nil {
		return 0, nil
	}
	if importing, err := client.Importing(ctx, c.clients, c.informers, key.Cluster); importing || err != nil {
		return 0, err // what is in it may be on its way; OnImported brings it back
	}
	ctx = client.In(ctx, key.Cluster)
	// The informer may be behind, and what it shows gone, with another namespace of that name in its place. What this read
	// shows stays until we let it go.
	ns, err := c.clients.Kube.CoreV1().Namespaces().Get(ctx, key.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("read namespace %q of logical cluster %q before what is in it is deleted: %w", key.Name, key.Cluster, err)
	case ns.UID != seen.UID, !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes):
		return 0, nil
	}
	found := c.look(ctx, ns.Name)
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	if found.gone() {
		if found, err = c.hidden(ctx, key); err != nil {
			return 0, err
		}
	}
	if !found.gone() {
		if err := c.report(ctx, ns, found); err != nil {
			return 0, fmt.Errorf("report on namespace %q in logical cluster %q: %w", key.Name, key.Cluster, err)
		}
		if err := errors.Join(found.discovery, found.deletion); err != nil && !found.refused { // else the namespace says so
			return 0, fmt.Errorf("delete what is in namespace %q of logical cluster %q: %w", key.Name, key.Cluster, err)
		}
		return c.rest(key, ns.UID, found), nil
	}
	ns.Spec.Finalizers = slices.DeleteFunc(ns.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
	if _, err := c.clients.Kube.CoreV1().Namespaces().Finalize(ctx, ns, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("let namespace %q of logical cluster %q go: %w", key.Name, key.Cluster, err)
	}
	return 0, nil
}

func (c *Controller) report(ctx context.Context, ns *corev1.Namespace, found content) error {
	if !setConditions(&ns.Status, found.conditions(), metav1.Now()) {
		return nil
	}
	_, err := c.clients.Kube.CoreV1().Namespaces().UpdateStatus(ctx, ns, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// look deletes what it finds and returns what is left. Pods go first, so that nothing they still use is taken from them.
func (c *Controller) look(ctx context.Context, namespace string) content {
	resources, err := c.clients.Deletables(ctx)
	if err != nil {
		return content{discovery: err}
	}
	isPods := func(r client.Deletable) bool { return r.Group == "" && r.Resource == "pods" }
	if i := slices.IndexFunc(resources, isPods); i >= 0 {
		if found := c.clear(ctx, namespace, resources[i:i+1]); !found.gone() {
			return found
		}
		resources = slices.DeleteFunc(resources, isPods)
	}
	return c.clear(ctx, namespace, resources)
}

// hidden is what a namespace has of custom resources that discovery does not name: no version of them is served, or another
// server has established them and this one has not heard of it. They would be in the next namespace of that name.
func (c *Controller) hidden(ctx context.Context, key client.Key) (content, error) {
	left, err := c.custom(ctx, key.Cluster, key.Name)
	if err != nil || len(left) == 0 {
		return content{}, err
	}
	found := content{remaining: map[string]int64{}, hidden: true}
	for resource, n := range left {
		found.remaining[resource.String()] = n
	}
	return found, nil
}

// clear deletes the objects of some resources and returns what is left of them.
func (c *Controller) clear(ctx context.Context, namespace string, resources []client.Deletable) content {
	found := content{remaining: map[string]int64{}, finalizers: map[string]int64{}}
	failed, ours := map[string]error{}, false
	var mu sync.Mutex
	var wg sync.WaitGroup
	turn := make(chan struct{}, parallel)
	for _, r := range resources {
		turn <- struct{}{}
		wg.Go(func() {
			defer func() { <-turn }()
			left, err := c.clearOne(ctx, namespace, r)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[r.GroupResource().String()], ours = err, ours || !client.Theirs(err)
				return
			}
			if n := count(left); n > 0 {
				found.remaining[r.GroupResource().String()] = n
			}
			for _, m := range left.Items {
				for _, f := range m.Finalizers {
					found.finalizers[f]++
				}
			}
		})
	}
	wg.Wait()
	for _, resource := range slices.Sorted(maps.Keys(failed)) { // in the same order each time: it becomes a condition
		found.deletion = errors.Join(found.deletion, fmt.Errorf("%s: %w", resource, failed[resource]))
	}
	found.refused = found.deletion != nil && !ours
	return found
}

// clearOne deletes the objects of one resource and lists what is left, after a first list that in most cases is all.
func (c *Controller) clearOne(ctx context.Context, namespace string, r client.Deletable) (*metav1.PartialObjectMetadataList, error) {
	list, err := c.list(ctx, namespace, r)
	if err != nil || count(list) == 0 {
		return list, err
	}
	going := func(m metav1.PartialObjectMetadata) bool { return m.DeletionTimestamp != nil }
	if list.Continue == "" && !slices.ContainsFunc(list.Items, func(m metav1.PartialObjectMetadata) bool { return !going(m) }) {
		return list, nil
	}
	objects := c.clients.Dynamic.Resource(r.GroupVersionResource).Namespace(namespace)
	background := metav1.DeletePropagationBackground
	options := metav1.DeleteOptions{PropagationPolicy: &background}
	if r.Collection {
		err = objects.DeleteCollection(ctx, options, metav1.ListOptions{})
	} else {
		for _, m := range list.Items {
			if e := objects.Delete(ctx, m.Name, options); e != nil && !apierrors.IsNotFound(e) {
				err = errors.Join(err, e)
			}
		}
	}
	if err != nil {
		return nil, err
	}
	return c.list(ctx, namespace, r)
}

// list returns the metadata of the first objects of a resource, by a consistent read. A resource that is not served any
// more has none.
func (c *Controller) list(ctx context.Context, namespace string, r client.Deletable) (*metav1.PartialObjectMetadataList, error) {
	prefix := []string{"/apis", r.Group, r.Version}
	if r.Group == "" {
		prefix = []string{"/api", r.Version}
	}
	raw, err := c.clients.Kube.Discovery().RESTClient().Get().
		AbsPath(append(prefix, "namespaces", namespace, r.Resource)...).
		Param("limit", fmt.Sprint(listLimit)).SetHeader("Accept", metadataList).Do(ctx).Raw()
	list := &metav1.PartialObjectMetadataList{}
	if apierrors.IsNotFound(err) {
		return list, nil
	}
	if err != nil {
		return nil, err
	}
	return list, json.Unmarshal(raw, list)
}

// count is the number of objects that a list stands for.
func count(list *metav1.PartialObjectMetadataList) int64 {
	n := int64(len(list.Items))
	if list.RemainingItemCount != nil {
		n += *list.RemainingItemCount
	}
	return n
}
