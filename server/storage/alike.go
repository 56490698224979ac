package storage

import (
	"context"
	"sync"
	"time"
	"unique"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"
	api "k8s.io/kubernetes/pkg/apis/core"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

// Much is alike in the objects of all logical clusters that a watch cache holds: most of one logical cluster have the one
// annotation that names it, and each namespace has a ConfigMap with the same root CA. On the way to a watch cache objects
// get such parts from those before them. What a cache holds nobody may change, the parts of objects as little as objects:
// upstream's caches give out shallow copies.

const (
	// alikeFor is how long annotations are remembered to give them to further objects: as long as it takes to make a
	// workspace, or to fill the caches of a server that starts. Who comes later gets others.
	alikeFor = time.Minute
	// leastAlike is the length of data, in bytes, from which it is looked up.
	leastAlike = 256
)

// alike remembers parts of objects.
type alike struct {
	mu          sync.Mutex
	annotations map[string]map[string]string // by the logical cluster that they name and nothing else
}

// of is the annotation of a logical cluster.
func (a *alike) of(cluster string) map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.annotations == nil {
		a.annotations = map[string]map[string]string{}
		time.AfterFunc(alikeFor, a.forget)
	}
	annotations, ok := a.annotations[cluster]
	if !ok {
		annotations = map[string]string{lc.Annotation: cluster}
		a.annotations[cluster] = annotations
	}
	return annotations
}

func (a *alike) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.annotations = nil
}

// share gives an object that nobody has seen yet what others have.
func (a *alike) share(obj runtime.Object) error {
	object, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	if annotations := object.GetAnnotations(); len(annotations) == 1 && annotations[lc.Annotation] != "" {
		object.SetAnnotations(a.of(annotations[lc.Annotation]))
	}
	if configMap, ok := obj.(*api.ConfigMap); ok {
		for name, value := range configMap.Data {
			if len(value) >= leastAlike {
				configMap.Data[name] = unique.Make(value).Value()
			}
		}
	}
	return nil
}

// GetList is what a cacher fills itself with.
func (f *feed) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	if err := f.Interface.GetList(ctx, key, opts, list); err != nil {
		return err
	}
	if err := meta.EachListItem(list, f.alike.share); err != nil {
		// They are as good without it.
		klog.FromContext(ctx).Error(err, "Parts of objects that are alike cannot be held once", "resource", f.resource)
	}
	return nil
}
