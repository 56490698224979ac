package storage

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"
	api "k8s.io/kubernetes/pkg/apis/core"

	"atoll.dev/atoll/internal/alike"
)

// shareParts gives an object on its way to a watch cache, which nobody has seen yet, what others there have (internal/alike).
func shareParts(obj runtime.Object) error {
	object, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	alike.Share(object)
	if configMap, ok := obj.(*api.ConfigMap); ok {
		configMap.Data = alike.Data(configMap.Data)
	}
	return nil
}

// GetList is what a cacher fills itself with.
func (f *feed) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	if err := f.Interface.GetList(ctx, key, opts, list); err != nil {
		return err
	}
	if err := meta.EachListItem(list, shareParts); err != nil {
		// They are as good without it.
		klog.FromContext(ctx).Error(err, "Parts of objects that are alike cannot be held once", "resource", f.resource)
	}
	return nil
}
