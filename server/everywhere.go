package server

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/storage"
)

// Everywhere returns a client of this server that lists and watches the objects of all logical clusters without a request
// where a workspace consists of them, and is requests otherwise. For an informer of each, a server that starts would
// encode what it has just decoded and decode it again, and hold it twice: what a list returns refers to what the watch
// cache holds, so copy before changing it. Nobody is asked who this is and what they may do.
func (s *Server) Everywhere(requests ctrlclient.WithWatch) ctrlclient.WithWatch {
	return &everywhere{WithWatch: requests, server: s}
}

type everywhere struct {
	ctrlclient.WithWatch // requests
	server               *Server
}

// listed is what a list of all logical clusters is read from.
type listed struct {
	store   *storage.Resource
	options metav1.ListOptions
	// kind of the objects; metadata says that only their metadata is wanted.
	kind     schema.GroupVersionKind
	metadata bool
}

// direct says what a list is read from, unless it takes a request.
func (e *everywhere) direct(ctx context.Context, list ctrlclient.ObjectList, opts []ctrlclient.ListOption) (l listed, ok bool) {
	if c, known := lcctx.ClusterFrom(ctx); !known || !c.Wildcard {
		return l, false
	}
	_, l.metadata = list.(*metav1.PartialObjectMetadataList)
	if l.metadata {
		l.kind = list.GetObjectKind().GroupVersionKind()
	} else {
		kinds, _, err := legacyscheme.Scheme.ObjectKinds(list)
		if err != nil {
			return l, false
		}
		l.kind = kinds[0]
	}
	l.kind.Kind = strings.TrimSuffix(l.kind.Kind, "List")
	kind, ok := directKinds[l.kind.GroupKind()]
	if !ok {
		return l, false
	}
	options := (&ctrlclient.ListOptions{}).ApplyOptions(opts)
	if options.Namespace != "" {
		return l, false
	}
	l.options = *options.AsListOptions()
	l.store, ok = e.server.backend.Resource(kind.resource)
	return l, ok
}

func (e *everywhere) List(ctx context.Context, list ctrlclient.ObjectList, opts ...ctrlclient.ListOption) error {
	l, ok := e.direct(ctx, list, opts)
	if !ok {
		return e.WithWatch.List(ctx, list, opts...)
	}
	stored := l.store.NewList()
	if reflect.TypeOf(stored) == reflect.TypeOf(list) { // ours
		return l.store.ListEverywhere(ctx, l.options, list)
	}
	if err := l.store.ListEverywhere(ctx, l.options, stored); err != nil {
		return err
	}
	if !l.metadata {
		return legacyscheme.Scheme.Convert(stored, list, nil)
	}
	from, err := meta.ListAccessor(stored)
	if err != nil {
		return err
	}
	list.SetResourceVersion(from.GetResourceVersion())
	list.SetContinue(from.GetContinue())
	list.SetRemainingItemCount(from.GetRemainingItemCount())
	into := list.(*metav1.PartialObjectMetadataList)
	into.Items = make([]metav1.PartialObjectMetadata, 0, meta.LenList(stored))
	return meta.EachListItem(stored, func(obj runtime.Object) error {
		m, err := l.convert(obj)
		if err == nil {
			into.Items = append(into.Items, *m.(*metav1.PartialObjectMetadata))
		}
		return err
	})
}

func (e *everywhere) Watch(ctx context.Context, list ctrlclient.ObjectList, opts ...ctrlclient.ListOption) (watch.Interface, error) {
	l, ok := e.direct(ctx, list, opts)
	if !ok {
		return e.WithWatch.Watch(ctx, list, opts...)
	}
	return l.store.WatchEverywhere(ctx, l.options, l.convert)
}

// convert makes of what is stored what a client gets. What it refers to is shared.
func (l listed) convert(obj runtime.Object) (runtime.Object, error) {
	if l.metadata {
		object, err := meta.Accessor(obj)
		if err != nil {
			return nil, err
		}
		m := meta.AsPartialObjectMetadata(object)
		m.SetGroupVersionKind(l.kind)
		return m, nil
	}
	into, err := legacyscheme.Scheme.New(l.kind)
	if err != nil {
		return nil, err
	}
	if reflect.TypeOf(into) == reflect.TypeOf(obj) { // ours
		return obj, nil
	}
	if err := legacyscheme.Scheme.Convert(obj, into, nil); err != nil {
		return nil, fmt.Errorf("convert %T to %s: %w", obj, l.kind, err)
	}
	return into, nil
}
