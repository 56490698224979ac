package storage

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/ptr"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

// clusterStorage is the outermost layer: the only place where the logical cluster of a request becomes part of a key.
// Methods that are not overridden (Versioner, Stats, ReadinessCheck, ...) concern the resource as a whole.
type clusterStorage struct {
	storage.Interface // the layer below

	resource       schema.GroupResource
	resourcePrefix string
	namespaced     bool
	newFunc        func() runtime.Object
	newListFunc    func() runtime.Object
	attrs          storage.AttrFunc

	// ownInitialEvents says that the start of a watch is answered here: the layer below would walk all logical clusters
	// (a cacher) or does not know about shared objects.
	ownInitialEvents bool
	// followed says that watches of one logical cluster from a position cost little below: they start here, too. Those of all would be one
	// list in memory.
	followed bool

	listed  Listed
	deleted Deleted

	limited bool // by Limits, which let deletions pass
}

// cluster is the logical cluster of the request; verb is for the errors.
func (s *clusterStorage) cluster(ctx context.Context, verb string) (lc.Cluster, error) {
	c, ok := lc.ClusterFrom(ctx)
	if !ok {
		return c, apierrors.NewInternalError(fmt.Errorf("%s %s: the request's context has no logical cluster", verb, s.resource))
	}
	if c.Wildcard {
		return c, nil
	}
	if err := lc.ValidateName(c.Name.String()); err != nil {
		return c, apierrors.NewBadRequest(fmt.Sprintf("%s %s: %v", verb, s.resource, err))
	}
	return c, nil
}

// key is the key of one object or range in the request's logical cluster. Wildcard requests are refused: on them there
// is list and watch only.
func (s *clusterStorage) key(ctx context.Context, verb, key string) (string, lc.Cluster, error) {
	c, err := s.cluster(ctx, verb)
	if err != nil {
		return "", c, err
	}
	if c.Wildcard {
		return "", c, apierrors.NewMethodNotSupported(s.resource, verb)
	}
	full, err := s.clusterKey(c, key)
	return full, c, err
}

func (s *clusterStorage) clusterKey(c lc.Cluster, key string) (string, error) {
	rest, err := restOf(s.resourcePrefix, key)
	if err != nil {
		return "", apierrors.NewInternalError(err)
	}
	return ClusterKey(s.resourcePrefix, c.Name, rest), nil
}

func (s *clusterStorage) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	key, _, err := s.key(ctx, "get", key)
	if err != nil {
		return err
	}
	return s.Interface.Get(ctx, key, opts, out)
}

func (s *clusterStorage) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	key, c, err := s.key(ctx, "create", key)
	if err != nil {
		return err
	}
	if err := own(obj, c); err != nil {
		return err
	}
	return s.Interface.Create(ctx, key, obj, out, ttl)
}

func (s *clusterStorage) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, cachedExistingObject runtime.Object) error {
	key, c, err := s.key(ctx, "update", key)
	if err != nil {
		return err
	}
	if s.limited {
		unwatched, step := tryUpdate, &ending{}
		ctx = context.WithValue(ctx, endingKey{}, step)
		tryUpdate = func(input runtime.Object, res storage.ResponseMeta) (runtime.Object, *uint64, error) {
			return step.watched(ctx, input, func() (runtime.Object, *uint64, error) { return unwatched(input, res) })
		}
	}
	return s.Interface.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions,
		func(input runtime.Object, res storage.ResponseMeta) (runtime.Object, *uint64, error) {
			output, ttl, err := tryUpdate(input, res)
			if err != nil {
				return output, ttl, err
			}
			return output, ttl, own(output, c)
		}, cachedExistingObject)
}

func (s *clusterStorage) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validateDeletion storage.ValidateObjectFunc, cachedExistingObject runtime.Object, opts storage.DeleteOptions) error {
	key, c, err := s.key(ctx, "delete", key)
	if err != nil {
		return err
	}
	if err := s.Interface.Delete(ctx, key, out, preconditions, validateDeletion, cachedExistingObject, opts); err != nil {
		return err
	}
	if s.deleted != nil {
		s.deleted.Deleted(c.Name, s.resource)
	}
	return nil
}

func (s *clusterStorage) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	full, opts, err := s.scope(ctx, "list", key, opts)
	if err != nil {
		return err
	}
	if err := s.Interface.GetList(ctx, full, opts, list); err != nil {
		return err
	}
	// A list by selectors, and a further page, say too little of what there was to go through.
	if s.listed != nil && opts.Recursive && opts.Predicate.Empty() && opts.Predicate.Continue == "" {
		return s.tellListed(ctx, key, list)
	}
	return nil
}

// tellListed tells how many objects a list found, with what is left for further pages.
func (s *clusterStorage) tellListed(ctx context.Context, key string, list runtime.Object) error {
	c, _ := lc.ClusterFrom(ctx)
	if c.Wildcard {
		return nil
	}
	namespace, err := restOf(s.resourcePrefix, key)
	if err != nil {
		return storage.NewInternalError(err)
	}
	objects := int64(meta.LenList(list))
	if of, err := meta.ListAccessor(list); err == nil {
		objects += ptr.Deref(of.GetRemainingItemCount(), 0)
	}
	s.listed(c.Name, s.resource, namespace, objects)
	return nil
}

func (s *clusterStorage) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	key, opts, err := s.scope(ctx, "watch", key, opts)
	if err != nil {
		return nil, err
	}
	c, _ := lc.ClusterFrom(ctx)
	if (s.ownInitialEvents || s.followed && !c.Wildcard) && wantsInitialEvents(opts) {
		return s.watchFromList(ctx, key, opts)
	}
	return s.Interface.Watch(ctx, key, opts)
}

// scope turns the key and options of a list or watch into those of the layer below.
func (s *clusterStorage) scope(ctx context.Context, verb, key string, opts storage.ListOptions) (string, storage.ListOptions, error) {
	c, err := s.cluster(ctx, verb)
	if err != nil {
		return "", opts, err
	}
	if opts.Predicate.Label == nil {
		opts.Predicate.Label = labels.Everything()
	}
	if opts.Predicate.Field == nil {
		opts.Predicate.Field = fields.Everything()
	}
	if opts.Predicate.GetAttrs == nil {
		opts.Predicate.GetAttrs = s.attrs
	}
	// Upstream's per-resource indexes span logical clusters (all pods in "default" anywhere), so caches have none.
	opts.Predicate.IndexFields, opts.Predicate.IndexLabels = nil, nil
	if !c.Wildcard {
		key, err = s.clusterKey(c, key)
		return key, opts, err
	}
	rest, err := restOf(s.resourcePrefix, key)
	if err != nil {
		return "", opts, apierrors.NewInternalError(err)
	}
	// "/configmaps/x" would be the prefix of logical cluster x, so a namespace or name must not stay in the key.
	filter, err := wildcardFilter(rest, s.namespaced, opts.Recursive)
	if err != nil {
		return "", opts, apierrors.NewBadRequest(fmt.Sprintf("%s %s: %v", verb, s.resource, err))
	}
	if filter != nil {
		opts.Predicate.Field = fields.AndSelectors(opts.Predicate.Field, filter)
	}
	opts.Recursive = true
	return s.resourcePrefix, opts, nil
}

// own forces the annotation of the request's logical cluster on an object that is about to be written.
func own(obj runtime.Object, c lc.Cluster) error {
	object, err := meta.Accessor(obj)
	if err != nil {
		return storage.NewInternalError(fmt.Errorf("write %T: %w", obj, err))
	}
	setCluster(object, c.Name.String())
	return nil
}
