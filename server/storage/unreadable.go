package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"unique"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/klog/v2"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

// A row that cannot be decrypted or decoded fails every list that meets it. In one logical cluster that is right: a list
// must not pretend that the object is gone. But a watch cache, and a list on the wildcard, read the rows of all logical
// clusters, and one row would take the resource away from all of them. So these read through a second store, the lenient
// one, in which a placeholder stands for such a row:
//
//   - reads and lists of its own logical cluster fail and name it, as they do without a cache;
//   - updates and deletions of it are refused: nobody knows what they would destroy;
//   - watches do not show it; a watcher that saw it before sees DELETED, so who acts on that reads the object first;
//   - on the wildcard it is left out, and the log says so; but a list by one value of the label that its resource is filed by fails: who asks
//     so acts on what is not there, and nobody knows of which value the row is.

const (
	// unreadableUID marks placeholders. Clients cannot choose or change the UID of an object.
	unreadableUID types.UID = "unreadable"
	// unreadableCause is the annotation of a placeholder that says why its row cannot be read.
	unreadableCause = "storage.atoll.dev/unreadable"

	// failureMark starts what the lenient transformer hands on instead of a value. No encoding of an object does.
	failureMark = '!'
)

func isUnreadable(obj runtime.Object) bool {
	object, err := meta.Accessor(obj)
	return err == nil && object.GetUID() == unreadableUID
}

func unreadableError(resource schema.GroupResource, obj runtime.Object) error {
	object, err := meta.Accessor(obj)
	if err != nil {
		return storage.NewInternalError(err)
	}
	name := object.GetName()
	if ns := object.GetNamespace(); ns != "" {
		name = ns + "/" + name
	}
	return storage.NewInternalError(fmt.Errorf("%s %q of logical cluster %q cannot be read from etcd: %s; if its encryption key was removed bring it back, else restore the row or delete it",
		resource, name, lc.NameFrom(object), object.GetAnnotations()[unreadableCause]))
}

// lenientTransformer hands failures on as values, and tells the codec the whole of the key below the resource:
// "lc:root/default/a\n" where clusterTransformer writes "lc:root\n". It only reads.
type lenientTransformer struct {
	*clusterTransformer
	lost *lostRows
}

func (t lenientTransformer) TransformFromStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, bool, error) {
	key := string(dataCtx.AuthenticatedData())
	if _, err := clusterOf(t.base, key); err != nil {
		return nil, false, err
	}
	plain, stale, err := t.inner.TransformFromStorage(ctx, data, dataCtx)
	if err != nil {
		plain = append([]byte{failureMark}, err.Error()...)
		t.lost.add(key, t.inner)
	} else {
		t.lost.found(key)
	}
	rest := key[len(t.base)+1:]
	out := make([]byte, 0, len(headerStart)+len(rest)+1+len(plain))
	return append(appendHeader(out, rest), plain...), stale, nil
}

func (lenientTransformer) TransformToStorage(context.Context, []byte, value.Context) ([]byte, error) {
	return nil, errors.New("the lenient store only reads")
}

// lenientCodec decodes what lenientTransformer returns. It only reads.
type lenientCodec struct {
	*clusterCodec
	resource schema.GroupResource
	newFunc  func() runtime.Object
	// met is set, for good, when the first placeholder was made: until then nobody has to look for them.
	met *atomic.Bool
}

func (c lenientCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	header, plain, err := splitHeader(data)
	if err != nil {
		return nil, nil, fmt.Errorf("decode from storage: %w", err)
	}
	cluster, rest, _ := bytes.Cut(header, []byte{'/'})
	obj, gvk, err := c.decode(string(cluster), plain, defaults, into)
	if err == nil {
		return obj, gvk, nil
	}
	klog.ErrorS(err, "A row cannot be read; its object is left out of what spans logical clusters", "resource", c.resource, "row", string(header))
	c.met.Store(true)
	obj = c.newFunc()
	object, accessErr := meta.Accessor(obj)
	if accessErr != nil {
		return nil, nil, errors.Join(err, accessErr)
	}
	namespace, name, namespaced := strings.Cut(string(rest), "/")
	if !namespaced {
		namespace, name = "", namespace
	}
	object.SetNamespace(namespace)
	object.SetName(name)
	object.SetUID(unreadableUID)
	object.SetAnnotations(map[string]string{lc.Annotation: unique.Make(string(cluster)).Value(), unreadableCause: err.Error()})
	return obj, nil, nil
}

func (c lenientCodec) decode(cluster string, plain []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if cause, failed := bytes.CutPrefix(plain, []byte{failureMark}); failed {
		return nil, nil, errors.New(string(cause))
	}
	return c.decodePlain(cluster, plain, defaults, into)
}

// strictOrLenient reads one logical cluster from the strict store, and what spans them from the lenient one.
type strictOrLenient struct {
	storage.Interface // strict
	lenient           storage.Interface
}

func (s *strictOrLenient) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	return s.of(ctx).GetList(ctx, key, opts, list)
}

func (s *strictOrLenient) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	return s.of(ctx).Watch(ctx, key, opts)
}

// of is the store for the request. What comes here without a logical cluster is upstream's own, such as the comparison of
// a cache with etcd.
func (s *strictOrLenient) of(ctx context.Context) storage.Interface {
	if c, ok := lc.ClusterFrom(ctx); ok && !c.Wildcard {
		return s.Interface
	}
	return s.lenient
}

// Stats and the estimates below are those of the store that sees all rows.
func (s *strictOrLenient) Stats(ctx context.Context) (storage.Stats, error) {
	return s.lenient.Stats(ctx)
}

func (s *strictOrLenient) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	return s.lenient.EnableResourceSizeEstimation(keys)
}

// noPlaceholders lets no placeholder out of the layer below.
type noPlaceholders struct {
	storage.Interface
	resource schema.GroupResource
	met      *atomic.Bool
	filedBy  string // as Config.FiledBy has it
	// filterWatches says that watches below may deliver placeholders; a cacher's do not (dispatch.go).
	filterWatches bool
}

func (s *noPlaceholders) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	if err := s.Interface.Get(ctx, key, opts, out); err != nil || !s.met.Load() || !isUnreadable(out) {
		return err
	}
	return unreadableError(s.resource, out)
}

func (s *noPlaceholders) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	if err := s.Interface.GetList(ctx, key, opts, list); err != nil || !s.met.Load() {
		return err
	}
	c, _ := lc.ClusterFrom(ctx)
	selects := labels.Everything()
	filed := s.isFiled(c, opts.Predicate.Label)
	if filed {
		// Placeholders have names, but no labels: all is listed anew, and selected here, so that it is of one moment. That looks at the
		// whole resource, as a list that is not filed does, until the first start after the row was mended.
		selects, opts.Predicate.Label = opts.Predicate.Label, selects
		if err := meta.SetList(list, nil); err != nil {
			return storage.NewInternalError(err)
		}
		if err := s.Interface.GetList(ctx, key, opts, list); err != nil {
			return err
		}
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return storage.NewInternalError(err)
	}
	readable := make([]runtime.Object, 0, len(items))
	for _, item := range items {
		if isUnreadable(item) {
			if filed || !c.Wildcard {
				return unreadableError(s.resource, item)
			}
			continue
		}
		object, err := meta.Accessor(item)
		if err != nil {
			return storage.NewInternalError(err)
		}
		if selects.Matches(labels.Set(object.GetLabels())) {
			readable = append(readable, item)
		}
	}
	if len(readable) == len(items) {
		return nil
	}
	return meta.SetList(list, readable)
}

// isFiled says whether a list on the wildcard is by one value of the label that the resource is filed by.
func (s *noPlaceholders) isFiled(c lc.Cluster, selects labels.Selector) bool {
	if !c.Wildcard || s.filedBy == "" || selects == nil {
		return false
	}
	_, one := selects.RequiresExactMatch(s.filedBy)
	return one
}

func (s *noPlaceholders) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, cachedExistingObject runtime.Object) error {
	return s.Interface.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions,
		func(input runtime.Object, res storage.ResponseMeta) (runtime.Object, *uint64, error) {
			if isUnreadable(input) {
				return nil, nil, unreadableError(s.resource, input)
			}
			return tryUpdate(input, res)
		}, cachedExistingObject)
}

func (s *noPlaceholders) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validateDeletion storage.ValidateObjectFunc, cachedExistingObject runtime.Object, opts storage.DeleteOptions) error {
	return s.Interface.Delete(ctx, key, out, preconditions, func(ctx context.Context, obj runtime.Object) error {
		if isUnreadable(obj) {
			return unreadableError(s.resource, obj)
		}
		return validateDeletion(ctx, obj)
	}, cachedExistingObject, opts)
}

func (s *noPlaceholders) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	w, err := s.Interface.Watch(ctx, key, opts)
	if c, ok := lc.ClusterFrom(ctx); err != nil || !s.filterWatches || ok && !c.Wildcard || follows(ctx) {
		return w, err
	}
	return newStream(ctx, nil, nil, w, func(event watch.Event) (watch.Event, bool) {
		if _, isStatus := event.Object.(*metav1.Status); isStatus {
			return event, true
		}
		return event, !isUnreadable(event.Object)
	}), nil
}
