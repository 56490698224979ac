package storage

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

// everywhere is the context and options of a list or watch of a resource in all logical clusters.
func (r *Resource) everywhere(ctx context.Context, o metav1.ListOptions) (context.Context, storage.ListOptions, error) {
	if r.wait != nil {
		// A request would be answered 429 and try again half a second later.
		if err := r.wait(ctx); err != nil {
			return nil, storage.ListOptions{}, err
		}
	}
	label, err := labels.Parse(o.LabelSelector)
	if err != nil {
		return nil, storage.ListOptions{}, err
	}
	field, err := fields.ParseSelector(o.FieldSelector)
	if err != nil {
		return nil, storage.ListOptions{}, err
	}
	return lc.WithCluster(ctx, lc.Cluster{Wildcard: true}), storage.ListOptions{
		ResourceVersion:      o.ResourceVersion,
		ResourceVersionMatch: o.ResourceVersionMatch,
		SendInitialEvents:    o.SendInitialEvents,
		Recursive:            true,
		Predicate: storage.SelectionPredicate{
			Label: label, Field: field, Limit: o.Limit, Continue: o.Continue, AllowWatchBookmarks: o.AllowWatchBookmarks,
		},
	}, nil
}

// ListEverywhere reads the objects of all logical clusters into a list of the type that the registry stores, when the
// watch cache is filled. What the objects refer to is shared with the cache: copy before changing it.
func (r *Resource) ListEverywhere(ctx context.Context, o metav1.ListOptions, into runtime.Object) error {
	ctx, opts, err := r.everywhere(ctx, o)
	if err == nil {
		err = storeerr.InterpretListError(r.Storage.GetList(ctx, r.Prefix, opts, into), r.GroupResource)
	}
	if err != nil {
		return fmt.Errorf("list %s of all logical clusters: %w", r.GroupResource, err)
	}
	return nil
}

// WatchEverywhere watches the objects of all logical clusters, until ctx ends. convert turns what the registry stores, which
// is a copy, into what watchers get.
func (r *Resource) WatchEverywhere(ctx context.Context, o metav1.ListOptions, convert func(runtime.Object) (runtime.Object, error)) (watch.Interface, error) {
	ctx, opts, err := r.everywhere(ctx, o)
	var live watch.Interface
	if err == nil {
		live, err = r.Storage.Watch(ctx, r.Prefix, opts)
	}
	if err != nil {
		return nil, fmt.Errorf("watch %s of all logical clusters: %w", r.GroupResource, storeerr.InterpretWatchError(err, r.GroupResource, ""))
	}
	return newStream(ctx, nil, nil, live, func(event watch.Event) (watch.Event, bool) {
		if event.Type == watch.Error {
			return event, true
		}
		obj := event.Object
		if cached, ok := obj.(runtime.CacheableObject); ok {
			obj = cached.GetObject()
		}
		converted, err := convert(obj)
		if err != nil {
			return watch.Event{Type: watch.Error, Object: storageStatus(fmt.Errorf("watch %s: %w", r.GroupResource, err))}, true
		}
		event.Object = converted
		return event, true
	}), nil
}
