package garbage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	kubestorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"

	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/reflector"
	"atoll.dev/atoll/server/storage"
)

// pageSize of lists of what has no watch cache, in objects.
const pageSize = 2000

// feed tells of the objects of one resource in all logical clusters, and keeps none of them.
type feed struct {
	store *storage.Resource
	// wanted says whether an object of a list matters; listed takes all that do, changed one that is new or was changed, and
	// ended one that is gone.
	wanted         func(object) bool
	listed         func([]object)
	changed, ended func(object)
}

// run lists and watches until ctx ends. The store is asked without a request: the objects come as its watch cache has
// them, with neither encoding nor connection.
func (f *feed) run(ctx context.Context) {
	backoff := reflector.Backoff()
	var from string // where the watch goes on; empty to list
	for {
		var err error
		if from == "" {
			from, err = f.list(ctx)
		}
		if err == nil {
			var next string
			if next, err = f.watch(ctx, from); next != from {
				backoff = reflector.Backoff()
			}
			from = next
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil && !errors.Is(err, errExpired) {
			klog.FromContext(ctx).Error(err, "Cannot follow a resource: what its objects own, or what owns them, is not collected meanwhile", "resource", f.store.GroupResource.String())
		}
		select {
		case <-time.After(backoff.Step()):
		case <-ctx.Done():
			return
		}
	}
}

// list returns the position of what it tells.
func (f *feed) list(ctx context.Context) (string, error) {
	if err := f.store.WaitReady(ctx); err != nil {
		return "", fmt.Errorf("list %s: %w", f.store.GroupResource, err)
	}
	var all []object
	// What the watch cache holds is new enough: the watch goes on from there.
	position, err := each(client.Everywhere(ctx), f.store, "0", func(m metav1.Object) {
		if o, ok := objectOf(f.store, m); ok && f.wanted(o) {
			all = append(all, o)
		}
	})
	if err != nil {
		return "", fmt.Errorf("list %s: %w", f.store.GroupResource, err)
	}
	f.listed(all)
	return position, nil
}

// errExpired says that there is no watch from a position any more.
var errExpired = errors.New("the position of the watch has expired")

// watch returns the position at which it ended, empty if a list is needed.
func (f *feed) watch(ctx context.Context, from string) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	predicate := everything()
	predicate.AllowWatchBookmarks = true
	w, err := f.store.Storage.Watch(client.Everywhere(ctx), f.store.Key("", ""), kubestorage.ListOptions{
		ResourceVersion: from, Predicate: predicate, Recursive: true,
	})
	if err != nil {
		return f.ended410(from, err)
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return from, nil
		case event, ok := <-w.ResultChan():
			if !ok {
				return from, nil
			}
			if event.Type == watch.Error {
				return f.ended410(from, apierrors.FromObject(event.Object))
			}
			if from, err = f.take(event); err != nil {
				return "", err
			}
		}
	}
}

func (f *feed) ended410(from string, err error) (string, error) {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return "", errExpired
	}
	return from, fmt.Errorf("watch %s: %w", f.store.GroupResource, err)
}

// take tells of an event, and returns its position.
func (f *feed) take(event watch.Event) (string, error) {
	m, err := meta.Accessor(event.Object)
	if err != nil {
		return "", fmt.Errorf("watch %s: %w", f.store.GroupResource, err)
	}
	o, ok := objectOf(f.store, m)
	switch {
	case event.Type == watch.Bookmark:
	case !ok:
		return "", fmt.Errorf("watch %s: object %q has no logical cluster or no revision", f.store.GroupResource, m.GetName())
	case event.Type == watch.Deleted:
		f.ended(o)
	default:
		f.changed(o)
	}
	return m.GetResourceVersion(), nil
}

func everything() kubestorage.SelectionPredicate {
	return kubestorage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything()}
}

// each reads the objects of a resource, in the logical cluster of ctx or in all, at a resourceVersion as in a list, and
// returns the position of what it read.
func each(ctx context.Context, store *storage.Resource, resourceVersion string, do func(metav1.Object)) (position string, err error) {
	options := kubestorage.ListOptions{ResourceVersion: resourceVersion, Predicate: everything(), Recursive: true}
	options.Predicate.Limit = pageSize // a watch cache that is asked for what it has has no pages
	for {
		list := store.NewList()
		if err := store.Storage.GetList(ctx, store.Key("", ""), options, list); err != nil {
			return "", err
		}
		m, err := meta.ListAccessor(list)
		if err != nil {
			return "", err
		}
		err = meta.EachListItem(list, func(obj runtime.Object) error {
			item, err := meta.Accessor(obj)
			if err == nil {
				do(item)
			}
			return err
		})
		if err != nil {
			return "", err
		}
		if m.GetContinue() == "" {
			return m.GetResourceVersion(), nil
		}
		options.Predicate.Continue, options.ResourceVersion = m.GetContinue(), ""
	}
}

// read reads an object at a resourceVersion as in a get. It says whether there is one of that UID.
func read(ctx context.Context, store *storage.Resource, id identity, resourceVersion string) (object, bool, error) {
	into := store.New()
	err := store.Storage.Get(client.In(ctx, id.cluster), store.Key(id.namespace, id.name), kubestorage.GetOptions{ResourceVersion: resourceVersion}, into)
	if kubestorage.IsNotFound(err) {
		return object{}, false, nil
	}
	var m metav1.Object
	if err == nil {
		m, err = meta.Accessor(into)
	}
	if err != nil {
		return object{}, false, fmt.Errorf("read %s: %w", id, err)
	}
	o, ok := objectOf(store, m)
	if !ok {
		return object{}, false, fmt.Errorf("read %s: it has no logical cluster or no revision", id)
	}
	return o, o.uid == id.uid, nil
}

// objectOf is what the collector knows of an object, and false if it is not one that was stored.
func objectOf(store *storage.Resource, m metav1.Object) (object, bool) {
	revision, err := kubestorage.APIObjectVersioner{}.ParseResourceVersion(m.GetResourceVersion())
	o := object{
		identity: identity{
			cluster: lcctx.NameFrom(m), resource: store.GroupResource,
			namespace: m.GetNamespace(), name: m.GetName(), uid: m.GetUID(),
		},
		revision:   revision,
		owners:     m.GetOwnerReferences(),
		finalizers: m.GetFinalizers(),
		going:      m.GetDeletionTimestamp() != nil,
	}
	if o.going {
		o.foreground = slices.Contains(o.finalizers, metav1.FinalizerDeleteDependents)
		o.orphan = slices.Contains(o.finalizers, metav1.FinalizerOrphanDependents)
	}
	return o, err == nil && o.cluster != "" && o.uid != ""
}
