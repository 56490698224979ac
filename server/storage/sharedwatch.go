package storage

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

// Watch shows the first write to a shared object as MODIFIED, and its deletion as MODIFIED back to the shared
// object. Initial events are answered above (clusterStorage), from this layer's GetList.
func (s *sharedObjects) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	c, ok := s.applies(ctx)
	if !ok {
		return s.watchRows(ctx, key, opts, fields.OneTermEqualSelector(resetField, ""))
	}
	exist := fields.OneTermNotEqualSelector(resetField, resetGone)
	scope, err := s.rest(c, key)
	if err != nil {
		return nil, storage.NewInternalError(err)
	}
	any := false
	for _, rest := range s.rests {
		any = any || inScope(rest, scope, opts.Recursive)
	}
	if !any {
		return s.watchRows(ctx, key, opts, exist)
	}

	view := &sharedView{s: s, cluster: c, since: s.known(ctx, c.Name), pred: opts.Predicate}
	if !opts.Predicate.Empty() {
		// Whether a change makes an object appear, change or vanish behind a selector depends on whether it was visible
		// before, which the events below do not tell for shared objects. So take all events and keep what is visible.
		if opts, err = s.atPosition(ctx, opts); err != nil {
			return nil, err
		}
		if view.visible, err = s.visibleAt(ctx, key, opts); err != nil {
			return nil, err
		}
		bookmarks := opts.Predicate.AllowWatchBookmarks
		opts.Predicate = storage.Everything
		opts.Predicate.GetAttrs = s.attrs
		opts.Predicate.AllowWatchBookmarks = bookmarks
	}
	inner, err := s.watchRows(ctx, key, opts, exist)
	if err != nil {
		return nil, err
	}
	return newStream(ctx, nil, nil, inner, view.event), nil
}

// watchRows watches the rows that are, for who watches, by what resetField says of them: one that becomes another is deleted.
func (s *sharedObjects) watchRows(ctx context.Context, key string, opts storage.ListOptions, are fields.Selector) (watch.Interface, error) {
	opts.Predicate.Field = and(opts.Predicate.Field, are)
	return s.Interface.Watch(ctx, key, opts)
}

// atPosition gives a watch that starts at no particular position the current one.
func (s *sharedObjects) atPosition(ctx context.Context, opts storage.ListOptions) (storage.ListOptions, error) {
	if opts.ResourceVersion != "" && opts.ResourceVersion != "0" {
		return opts, nil
	}
	rv, err := s.GetCurrentResourceVersion(ctx)
	if err != nil {
		return opts, err
	}
	opts.ResourceVersion = fmt.Sprint(rv)
	return opts, nil
}

// visibleAt is the set of keys that the selector shows at the watch's start.
func (s *sharedObjects) visibleAt(ctx context.Context, key string, opts storage.ListOptions) (map[string]bool, error) {
	list := s.newListFunc()
	listOpts := opts
	listOpts.SendInitialEvents = nil
	listOpts.ResourceVersionMatch = metav1.ResourceVersionMatchExact
	listOpts.Predicate.Limit, listOpts.Predicate.Continue = 0, ""
	if err := s.GetList(ctx, key, listOpts, list); err != nil {
		return nil, err
	}
	visible := map[string]bool{}
	err := meta.EachListItem(list, func(obj runtime.Object) error {
		rest, err := s.restOfObject(obj)
		visible[rest] = true
		return err
	})
	if err != nil {
		return nil, storage.NewInternalError(err)
	}
	return visible, nil
}

// sharedView turns the events of rows into those of what a watcher sees.
type sharedView struct {
	s       *sharedObjects
	cluster lc.Cluster
	since   metav1.Time
	pred    storage.SelectionPredicate
	visible map[string]bool // nil if the predicate selects everything
}

func (v *sharedView) event(in watch.Event) (watch.Event, bool) {
	switch in.Type {
	case watch.Added, watch.Modified, watch.Deleted:
	default:
		return in, true
	}
	out, keep, err := v.translate(in)
	if err != nil {
		status := storageStatus(fmt.Errorf("watch %s: %w", v.s.resource, err))
		return watch.Event{Type: watch.Error, Object: status}, true
	}
	return out, keep
}

func (v *sharedView) translate(in watch.Event) (watch.Event, bool, error) {
	rest, err := v.s.restOfObject(in.Object)
	if err != nil {
		return in, false, err
	}
	shared := v.s.in(v.cluster, v.since, rest)
	now := in.Object
	if reset := isReset(now); reset || in.Type == watch.Deleted {
		now = shared
		if shared != nil {
			// The stream's position must not go back to the shared object's.
			if err := v.s.atVersionOf(now, in.Object); err != nil {
				return in, false, err
			}
			if reset { // else the row that goes is what a watcher saw
				in.Object = now
			}
		}
	}
	if v.visible == nil {
		if shared == nil {
			return in, true, nil
		}
		return watch.Event{Type: watch.Modified, Object: now}, true, nil
	}

	before := v.visible[rest]
	after := false
	if now != nil {
		plain := now
		if cached, ok := now.(runtime.CacheableObject); ok {
			plain = cached.GetObject() // attributes are taken from the type itself
		}
		if after, err = v.pred.Matches(plain); err != nil {
			return in, false, err
		}
	}
	delete(v.visible, rest)
	if after {
		v.visible[rest] = true
	}
	switch {
	case before && after:
		return watch.Event{Type: watch.Modified, Object: now}, true, nil
	case after:
		return watch.Event{Type: watch.Added, Object: now}, true, nil
	case before:
		return watch.Event{Type: watch.Deleted, Object: in.Object}, true, nil
	}
	return in, false, nil
}

// storageStatus is the status of an error event.
func storageStatus(err error) *metav1.Status {
	return &apierrors.NewInternalError(err).ErrStatus
}
