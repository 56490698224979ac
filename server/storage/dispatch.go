package storage

import (
	"context"
	"maps"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

// clusterField is a field that only the cacher's attributes have: the logical cluster of an object. The cacher files a
// watcher that requires one value of it under that value and wakes it for events of that value alone.
const clusterField = "kcp.cluster"

// resetField is another such field, of rows that sharedObjects has marked (resetAs). Watches select by it, so that they are told of a row that
// does not exist for them any more as of one that is deleted. Whoever asks the original attributes takes it for any other.
const resetField = "atoll.reset"

// dispatch sits directly on a cacher and adds the requirement to watches of one logical cluster, and to those of all of
// them that there be one, which placeholders of unreadable rows do not have. Nothing but the cacher's Watch may see it:
// whoever else evaluates the predicate asks the original attributes, which do not have the field, and would filter
// everything out.
type dispatch struct {
	storage.Interface
	filedBy string // as Config.FiledBy has it
}

// GetList has the cacher look up what is filed by a label. It does so as of the revision that etcd has now, as for any list.
func (d *dispatch) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	if c, ok := lc.ClusterFrom(ctx); ok && c.Wildcard && d.filedBy != "" {
		opts.Predicate.IndexLabels = []string{d.filedBy}
	}
	return d.Interface.GetList(ctx, key, opts, list)
}

func (d *dispatch) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if c, ok := lc.ClusterFrom(ctx); ok && !c.Wildcard {
		opts.Predicate.IndexFields = []string{clusterField}
		opts.Predicate.Field = and(opts.Predicate.Field, fields.OneTermEqualSelector(clusterField, c.Name.String()))
	} else {
		opts.Predicate.Field = and(opts.Predicate.Field, fields.OneTermNotEqualSelector(clusterField, ""))
	}
	return d.Interface.Watch(ctx, key, opts)
}

// and is both of two selectors, of which the first may be empty.
func and(some, more fields.Selector) fields.Selector {
	if some.Empty() {
		return more
	}
	return fields.AndSelectors(some, more)
}

// clusterIndex is the cacher's one trigger.
func clusterIndex() storage.IndexerFuncs {
	return storage.IndexerFuncs{clusterField: clusterToWatch}
}

// labelIndex files objects that have a label by its value; nil without one.
func labelIndex(label string) *cache.Indexers {
	if label == "" {
		return nil
	}
	return &cache.Indexers{storage.LabelIndex(label): func(obj any) ([]string, error) {
		object, err := meta.Accessor(obj)
		if err != nil {
			return nil, err
		}
		if value, ok := object.GetLabels()[label]; ok {
			return []string{value}, nil
		}
		return nil, nil
	}}
}

// clusterToWatch is the logical cluster whose watchers see an object; placeholders and fillers have none.
func clusterToWatch(obj runtime.Object) string {
	if isUnreadable(obj) || isFiller(obj) {
		return ""
	}
	return clusterOfObject(obj)
}

func clusterOfObject(obj runtime.Object) string {
	object, err := meta.Accessor(obj)
	if err != nil {
		return ""
	}
	return lc.NameFrom(object).String()
}

// withClusterField adds the fields to the attributes of the cacher's objects.
func withClusterField(attrs storage.AttrFunc, resetAs func(runtime.Object) string) storage.AttrFunc {
	return func(obj runtime.Object) (labels.Set, fields.Set, error) {
		if isFiller(obj) {
			return nil, nil, nil // thousands may be kept for a while
		}
		l, f, err := attrs(obj)
		if err != nil {
			return nil, nil, err
		}
		// Attribute functions make a new set for each call, but none promises to.
		next := make(fields.Set, len(f)+1)
		maps.Copy(next, f)
		next[clusterField] = clusterToWatch(obj)
		if reset := resetAs(obj); reset != "" {
			next[resetField] = reset
		}
		return l, next, nil
	}
}
