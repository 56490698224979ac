package storage

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

// decorate opens the store of one registry. Upstream's trigger and indexers are left out: they span logical clusters, and a
// cacher takes one trigger only.
func (b *Backend) decorate(
	config *storagebackend.ConfigForResource,
	resourcePrefix string,
	keyFunc func(obj runtime.Object) (string, error),
	newFunc func() runtime.Object,
	newListFunc func() runtime.Object,
	attrs storage.AttrFunc,
	_ storage.IndexerFuncs,
	_ *cache.Indexers,
	from serving,
) (storage.Interface, factory.DestroyFunc, error) {
	entry, err := b.open(config, resourcePrefix, keyFunc, newFunc, newListFunc, attrs, from)
	if err != nil {
		return nil, nil, err
	}
	b.register(entry)
	return entry.Storage, entry.destroy, nil
}

// open builds the stack of one store; doc.go lists the layers.
func (b *Backend) open(
	config *storagebackend.ConfigForResource,
	resourcePrefix string,
	keyFunc func(obj runtime.Object) (string, error),
	newFunc func() runtime.Object,
	newListFunc func() runtime.Object,
	attrs storage.AttrFunc,
	from serving,
) (*Resource, error) {
	fail := func(err error) (*Resource, error) {
		return nil, fmt.Errorf("storage of %s: %w", config.GroupResource, err)
	}
	if !strings.HasPrefix(resourcePrefix, "/") {
		resourcePrefix = "/" + resourcePrefix
	}
	namespaced, err := isNamespaced(resourcePrefix, keyFunc, newFunc)
	if err != nil {
		return fail(err)
	}
	if from != customResources {
		if err := b.rememberPrefix(resourcePrefix); err != nil {
			return fail(err)
		}
	}

	var shared *sharedObjects // nil if there are none
	if b.shared != nil {
		if objects := b.shared(config.GroupResource); len(objects) > 0 {
			if from != fromCache {
				return fail(fmt.Errorf("%s has shared objects and no watch cache, which tells who is to hear that one was reset", config.GroupResource))
			}
			if shared, err = newSharedObjects(config, resourcePrefix, keyFunc, newFunc, newListFunc, attrs, b.since, objects); err != nil {
				return fail(err)
			}
		}
	}
	versioner := storage.APIObjectVersioner{}
	codec := newClusterCodec(config.Codec, shared != nil)
	transformer := &clusterTransformer{inner: config.Transformer, base: join(b.prefix, resourcePrefix)}
	kv := &besideKV{KV: b.client, resource: config.GroupResource, rows: b.rowsOf(config.GroupResource, transformer.base)}
	rows := clientv3.NewCtxClient(context.Background()) // of a client reads and writes of rows use nothing else
	rows.KV = kv
	client := &kubernetes.Client{Client: b.watches}
	client.Kubernetes = &guardedClient{
		Interface: kubernetes.Client{Client: rows}, kv: kv, homes: b.homesOf(config.GroupResource, transformer.base, namespaced),
	}
	if b.usage != nil {
		client.Kubernetes = &limitedClient{
			Interface: client.Kubernetes, kv: kv, usage: b.usage,
			resource: config.GroupResource, base: transformer.base, prefix: resourcePrefix,
		}
	}
	raw, err := etcd3.New(client, b.compactor, codec, newFunc, newListFunc, b.prefix, resourcePrefix, config.GroupResource,
		transformer, config.LeaseManagerConfig, etcd3.NewDefaultDecoder(codec, versioner), versioner)
	if err != nil {
		return fail(err)
	}
	placeholders := &atomic.Bool{}
	lenientCodec := lenientCodec{clusterCodec: codec, resource: config.GroupResource, newFunc: newFunc, met: placeholders}
	lenient, err := etcd3.New(client, b.compactor, lenientCodec, newFunc, newListFunc, b.prefix, resourcePrefix, config.GroupResource,
		lenientTransformer{transformer, &b.lost}, config.LeaseManagerConfig, etcd3.NewDefaultDecoder(lenientCodec, versioner), versioner)
	if err != nil {
		raw.Close()
		return fail(err)
	}
	closeStores := func() {
		lenient.Close()
		raw.Close()
	}

	entry := &Resource{
		GroupResource: config.GroupResource, Prefix: resourcePrefix, Namespaced: namespaced, New: newFunc, NewList: newListFunc,
		Custom: from == customResources, codec: codec, transformer: transformer, kv: b.client,
	}
	filedBy := ""
	if b.filedBy != nil {
		filedBy = b.filedBy(config.GroupResource)
	}
	var layer storage.Interface = &strictOrLenient{raw, lenient}
	destroy := closeStores
	if from == fromCache {
		window := config.EventsHistoryWindow
		if window == 0 {
			window = storagebackend.DefaultEventsHistoryWindow
		}
		feed := newFeed(lenient, config.GroupResource, newFunc, b.clock, window)
		c, err := cacher.NewCacherFromConfig(cacher.Config{
			Storage:             feed,
			Versioner:           versioner,
			GroupResource:       config.GroupResource,
			EventsHistoryWindow: window,
			ResourcePrefix:      resourcePrefix,
			KeyFunc:             cacheKey(resourcePrefix, keyFunc),
			GetAttrsFunc:        withClusterField(attrs, shared.resetAs),
			IndexerFuncs:        clusterIndex(),
			Indexers:            labelIndex(filedBy),
			NewFunc:             newFunc,
			NewListFunc:         newListFunc,
			Clock:               b.clock,
			// Only checked against the type; the store below has the codec that works.
			Codec: config.Codec,
		})
		if err != nil {
			closeStores()
			return fail(err)
		}
		syncedTo := func() (uint64, bool) {
			if !c.Ready() {
				return 0, false
			}
			seen, err := c.LastSyncResourceVersion()
			return seen, err == nil
		}
		feed.syncedTo.Store(&syncedTo)
		delegator := cacher.NewCacheDelegator(c, layer)
		entry.wait = c.Wait
		layer = &dispatch{delegator, filedBy}
		destroy = func() {
			delegator.Stop()
			feed.close()
			c.Stop()
			closeStores()
		}
	}
	if from != fromCache {
		layer = &bounded{layer, config.GroupResource, &b.backlogs}
	}
	layer = &noPlaceholders{
		Interface: layer, resource: config.GroupResource, met: placeholders, filedBy: filedBy, filterWatches: from != fromCache,
	}
	if from == fromFollowed {
		layer = newFollowed(layer, config.GroupResource, cacheKey(resourcePrefix, keyFunc))
	}
	layered := false
	if shared != nil {
		shared.Interface = layer
		layer, layered = shared, true
	}
	if b.overlay != nil {
		if over := b.overlay(config.GroupResource); over != nil {
			layer, layered = over(layer), true
		}
	}
	entry.Storage = &clusterStorage{
		Interface:        layer,
		resource:         config.GroupResource,
		resourcePrefix:   resourcePrefix,
		namespaced:       namespaced,
		newFunc:          newFunc,
		newListFunc:      newListFunc,
		attrs:            attrs,
		ownInitialEvents: from == fromCache || layered,
		followed:         from == fromFollowed,
		listed:           b.listed,
		deleted:          b.deleted,
		limited:          b.usage != nil,
	}

	var once sync.Once
	entry.destroy = func() {
		once.Do(func() {
			b.forget(entry)
			destroy()
		})
	}
	return entry, nil
}

// cacheKey gives the cacher the keys that clusterStorage asks for.
func cacheKey(resourcePrefix string, keyFunc func(runtime.Object) (string, error)) func(runtime.Object) (string, error) {
	return func(obj runtime.Object) (string, error) {
		object, err := meta.Accessor(obj)
		if err != nil {
			return "", err
		}
		if object.GetUID() == fillerUID {
			return fillerKey, nil
		}
		key, err := keyFunc(obj)
		if err != nil {
			return "", err
		}
		rest, err := restOf(resourcePrefix, key)
		if err != nil {
			return "", err
		}
		cluster := clusterOfObject(obj)
		if cluster == "" {
			return "", fmt.Errorf("object %q has no logical cluster", object.GetName())
		}
		return resourcePrefix + "/" + cluster + "/" + rest, nil
	}
}

// isNamespaced asks the registry's key function, the one place where all registries say it.
func isNamespaced(resourcePrefix string, keyFunc func(runtime.Object) (string, error), newFunc func() runtime.Object) (bool, error) {
	probe := newFunc()
	object, err := meta.Accessor(probe)
	if err != nil {
		return false, err
	}
	object.SetName("n")
	object.SetNamespace("ns")
	key, err := keyFunc(probe)
	if err != nil {
		return false, err
	}
	rest, err := restOf(resourcePrefix, key)
	if err != nil {
		return false, err
	}
	switch rest {
	case "n":
		return false, nil
	case "ns/n":
		return true, nil
	}
	return false, fmt.Errorf("keys of the form %q are neither namespaced nor cluster-scoped", key)
}
