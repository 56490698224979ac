package server

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubestorage "k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"

	"atoll.dev/atoll/server/storage"
)

// storedObjects reads for admission what the stores show of the logical cluster in ctx, the shared objects laid over them
// too. What it returns is shared with the watch caches.
type storedObjects struct{ backend *storage.Backend }

func (o storedObjects) Get(ctx context.Context, resource schema.GroupResource, namespace, name string, cached bool) (runtime.Object, error) {
	r, err := o.of(resource)
	if err != nil {
		return nil, err
	}
	found := r.New()
	if err := r.Storage.Get(ctx, r.Key(namespace, name), kubestorage.GetOptions{ResourceVersion: versionFrom(cached)}, found); err != nil {
		return nil, storeerr.InterpretGetError(err, resource, name)
	}
	return found, nil
}

func (o storedObjects) List(ctx context.Context, resource schema.GroupResource, namespace string, cached bool) ([]runtime.Object, error) {
	r, err := o.of(resource)
	if err != nil {
		return nil, err
	}
	list := r.NewList()
	options := kubestorage.ListOptions{ResourceVersion: versionFrom(cached), Recursive: true, Predicate: kubestorage.Everything}
	if err := r.Storage.GetList(ctx, r.Key(namespace, ""), options, list); err != nil {
		return nil, storeerr.InterpretListError(err, resource)
	}
	found, err := meta.ExtractList(list)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", resource, err)
	}
	return found, nil
}

func (o storedObjects) of(resource schema.GroupResource) (*storage.Resource, error) {
	r, ok := o.backend.Resource(resource)
	if !ok {
		return nil, fmt.Errorf("read %s: they are not served", resource)
	}
	return r, nil
}

// versionFrom is the resourceVersion of a read: "0" is what the watch cache happens to hold, "" what etcd holds now.
func versionFrom(cached bool) string {
	if cached {
		return "0"
	}
	return ""
}
