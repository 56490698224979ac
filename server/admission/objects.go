package admission

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// Objects reads what the logical cluster in ctx has, in the registries' internal types. Where cached is true, what the watch
// cache holds will do; else it is what etcd holds now. What is read is shared with caches and must not be changed. An
// object that does not exist is an error that apierrors.IsNotFound knows. The namespace of what has none is empty.
type Objects interface {
	Get(ctx context.Context, resource schema.GroupResource, namespace, name string, cached bool) (runtime.Object, error)
	List(ctx context.Context, resource schema.GroupResource, namespace string, cached bool) ([]runtime.Object, error)
}

var namespaces = schema.GroupResource{Resource: "namespaces"}

// get reads from the watch cache and, what is not there, from etcd: somebody may have made it a moment ago.
func get(ctx context.Context, objects Objects, resource schema.GroupResource, namespace, name string) (runtime.Object, error) {
	found, err := objects.Get(ctx, resource, namespace, name, true)
	if apierrors.IsNotFound(err) {
		return objects.Get(ctx, resource, namespace, name, false)
	}
	return found, err
}

// scope is the logical cluster of one request. It lives no longer than the request, and so may hold its context, which
// upstream's plugins do not hand to listers and forget on the way to clients.
type scope struct {
	ctx     context.Context
	objects Objects
}

// object is a pointer to a type of an API version.
type object[V any] interface {
	*V
	runtime.Object
}

// lister is the generated listers of a kind, all of a logical cluster or those of a namespace. What it returns is the
// caller's.
type lister[V any, P object[V]] struct {
	scope
	resource  schema.GroupResource
	namespace string // empty for all of them
}

// Get sees what was made before, and changes as late as the watch cache does.
func (l lister[V, P]) Get(name string) (*V, error) {
	found, err := get(l.ctx, l.objects, l.resource, l.namespace, name)
	if err != nil {
		return nil, err
	}
	return l.versioned(found)
}

// List sees what was written before: unlike with the informers of kube-apiserver, a policy that was acknowledged holds for
// the next request. The store asks etcd how far it is, and answers from the watch cache.
func (l lister[V, P]) List(selector labels.Selector) ([]*V, error) {
	return l.list(selector, false, nil)
}

// list returns those which are listed, as they are stored; nil for all of them. Others are not copied.
func (l lister[V, P]) list(selector labels.Selector, cached bool, listed func(runtime.Object) bool) ([]*V, error) {
	found, err := l.objects.List(l.ctx, l.resource, l.namespace, cached)
	if err != nil {
		return nil, err
	}
	var chosen []*V
	for _, obj := range found {
		if listed != nil && !listed(obj) {
			continue
		}
		out, err := l.versioned(obj)
		if err != nil {
			return nil, err
		}
		if o, ok := any(out).(metav1.Object); !ok || !selector.Matches(labels.Set(o.GetLabels())) {
			continue
		}
		chosen = append(chosen, out)
	}
	return chosen, nil
}

// versioned copies: conversion alone shares maps and slices with the cache, and plugins put them into what they admit.
func (l lister[V, P]) versioned(stored runtime.Object) (*V, error) {
	out := new(V)
	if err := legacyscheme.Scheme.Convert(stored.DeepCopyObject(), out, nil); err != nil {
		return nil, fmt.Errorf("convert one of %s for admission: %w", l.resource, err)
	}
	return out, nil
}
