package storage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/kcp-dev/logicalcluster/v3"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/klog/v2"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

// sharedResourceVersion is the resourceVersion of every shared object. It is older than any row, and stays the same when
// the process restarts.
const sharedResourceVersion = 1

// sharedSpace makes the UIDs of shared objects; it must never change.
var sharedSpace = uuid.MustParse("6f1d5a1c-2a9e-4f43-9b0e-6a5f9f0c7b21")

// sharedObjects lets every logical cluster have the same objects (the bootstrap roles) without a row each. A row, made
// on the first write, hides the shared object; deleting that shows it again. Names of shared objects cannot be
// created, and they are always there, from when there is the logical cluster. On the wildcard and in mirrors there are rows only.
//
// What was deleted leaves a row with a mark (reset.go), so that the resourceVersion does not go back to the shared object's: who knows the
// later one could change nothing until he has read all anew. Nothing else of that row counts: it shows the shared object as this version of
// the server has it, and where there are rows only, which is what decisions by roles read, there is none. If this version shares no such
// object, but others of the resource, there is none anywhere: who deleted it wanted what is shared, and no more. If it shares none of the
// resource, the row is one like others, with what was shared then.
type sharedObjects struct {
	storage.Interface

	resource       schema.GroupResource
	resourcePrefix string
	keyFunc        func(runtime.Object) (string, error)
	newFunc        func() runtime.Object
	newListFunc    func() runtime.Object
	attrs          storage.AttrFunc
	since          func(ctx context.Context, cluster logicalcluster.Name, cached bool) (metav1.Time, error)

	// objects are the templates by what follows the logical cluster in their keys; rests are those keys, sorted. Neither
	// changes after construction.
	objects map[string]runtime.Object
	rests   []string
}

// newSharedObjects returns a layer without the one below, which asks it which rows are marked.
func newSharedObjects(config *storagebackend.ConfigForResource, resourcePrefix string, keyFunc func(runtime.Object) (string, error),
	newFunc, newListFunc func() runtime.Object, attrs storage.AttrFunc, since func(context.Context, logicalcluster.Name, bool) (metav1.Time, error),
	objects []runtime.Object) (*sharedObjects, error) {
	s := &sharedObjects{
		resource:       config.GroupResource,
		resourcePrefix: resourcePrefix,
		keyFunc:        keyFunc,
		newFunc:        newFunc,
		newListFunc:    newListFunc,
		attrs:          attrs,
		since:          since,
		objects:        map[string]runtime.Object{},
	}
	for _, obj := range objects {
		template, err := internalCopy(obj, newFunc, config.Codec)
		if err != nil {
			return nil, err
		}
		object, err := meta.Accessor(template)
		if err != nil {
			return nil, fmt.Errorf("shared object %T: %w", obj, err)
		}
		key, err := keyFunc(template)
		if err != nil {
			return nil, fmt.Errorf("shared object %q: %w", object.GetName(), err)
		}
		rest, err := restOf(resourcePrefix, key)
		if err != nil {
			return nil, fmt.Errorf("shared object %q: %w", object.GetName(), err)
		}
		if err := (storage.APIObjectVersioner{}).UpdateObject(template, sharedResourceVersion); err != nil {
			return nil, fmt.Errorf("shared object %q: %w", object.GetName(), err)
		}
		if s.objects[rest] != nil {
			return nil, fmt.Errorf("shared object %q is given twice", rest)
		}
		if err := canMark(config.Codec, template); err != nil {
			return nil, fmt.Errorf("shared object %q: %w", rest, err)
		}
		s.objects[rest] = template
		s.rests = append(s.rests, rest)
	}
	slices.Sort(s.rests)
	return s, nil
}

// internalCopy is a copy of obj in the registry's internal type. An object of another type must say what it is.
func internalCopy(obj runtime.Object, newFunc func() runtime.Object, codec runtime.Codec) (runtime.Object, error) {
	if reflect.TypeOf(obj) == reflect.TypeOf(newFunc()) {
		return obj.DeepCopyObject(), nil
	}
	if obj.GetObjectKind().GroupVersionKind().Empty() {
		return nil, fmt.Errorf("shared object of type %T has no apiVersion and kind", obj)
	}
	data, err := json.Marshal(obj)
	if err != nil {
		return nil, fmt.Errorf("shared object of type %T: %w", obj, err)
	}
	internal, _, err := codec.Decode(data, nil, newFunc())
	if err != nil {
		return nil, fmt.Errorf("shared object of type %T: %w", obj, err)
	}
	return internal, nil
}

// applies says whether the request sees shared objects, and in which logical cluster.
func (s *sharedObjects) applies(ctx context.Context) (lc.Cluster, bool) {
	c, ok := lc.ClusterFrom(ctx)
	return c, ok && !c.Wildcard && !c.Mirror
}

// rest is what follows the logical cluster in a key.
func (s *sharedObjects) rest(c lc.Cluster, key string) (string, error) {
	return restOf(ClusterKey(s.resourcePrefix, c.Name, ""), key)
}

// in returns the shared object at rest as the logical cluster, which is there since a time, sees it, or nil. The copy is the caller's.
func (s *sharedObjects) in(c lc.Cluster, since metav1.Time, rest string) runtime.Object {
	template := s.objects[rest]
	if template == nil {
		return nil
	}
	obj := template.DeepCopyObject()
	// Templates were accessible when they were taken in.
	object, _ := meta.Accessor(obj)
	setCluster(object, c.Name.String())
	object.SetCreationTimestamp(since)
	object.SetUID(s.uid(c, rest))
	return obj
}

// uid is that of a shared object in a logical cluster, and of the row that is made of it.
func (s *sharedObjects) uid(c lc.Cluster, rest string) types.UID {
	id := s.resource.String() + "\x00" + rest + "\x00" + c.Name.String()
	return types.UID(uuid.NewSHA1(sharedSpace, []byte(id)).String())
}

// sharedAt is in for a key; it returns nil where the request sees no shared object.
func (s *sharedObjects) sharedAt(ctx context.Context, key string) (runtime.Object, error) {
	c, ok := s.applies(ctx)
	if !ok {
		return nil, nil
	}
	rest, err := s.rest(c, key)
	if err != nil {
		return nil, storage.NewInternalError(err)
	}
	if s.objects[rest] == nil {
		return nil, nil
	}
	return s.in(c, s.known(ctx, c.Name), rest), nil
}

// atVersionOf puts what is shared at the resourceVersion of the row in its place.
func (s *sharedObjects) atVersionOf(obj, row runtime.Object) error {
	version, err := s.Versioner().ObjectResourceVersion(row)
	if err != nil {
		return storage.NewInternalError(err)
	}
	return s.Versioner().UpdateObject(obj, version)
}

// shown is a copy of a shared object as an update meets it, or nil if a row hides it.
func (s *sharedObjects) shown(shared, row runtime.Object, res storage.ResponseMeta) (runtime.Object, error) {
	switch {
	case res.ResourceVersion == 0: // no row
		return shared.DeepCopyObject(), nil
	case !isReset(row):
		return nil, nil
	}
	shared = shared.DeepCopyObject()
	return shared, s.atVersionOf(shared, row)
}

// known is since when a logical cluster is there, or the zero time. It is an age for people to see: no read fails for want of it.
func (s *sharedObjects) known(ctx context.Context, cluster logicalcluster.Name) metav1.Time {
	since, err := s.since(ctx, cluster, true)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("What every workspace has is shown without its age", "cluster", cluster, "reason", err)
		return metav1.Time{}
	}
	return since
}

func (s *sharedObjects) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	shared, err := s.sharedAt(ctx, key)
	if err != nil {
		return err
	}
	strict := opts
	strict.IgnoreNotFound = false
	err = s.Interface.Get(ctx, key, strict, out)
	if err == nil && isReset(out) {
		err = storage.NewKeyNotFoundError(key, 0)
		if shared != nil {
			if err := s.atVersionOf(shared, out); err != nil {
				return err
			}
		}
	}
	switch {
	case !storage.IsNotFound(err):
		return err
	case shared != nil:
		return set(out, shared)
	case opts.IgnoreNotFound:
		return runtime.SetZeroValue(out)
	}
	return err
}

func (s *sharedObjects) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	shared, err := s.sharedAt(ctx, key)
	if err != nil {
		return err
	}
	if shared != nil {
		return storage.NewKeyExistsError(key, sharedResourceVersion)
	}
	// Where the name is not shared any more, a row with the mark is none. To write over it is an update for the layers below: what they look
	// for when something is created, such as the namespace, was there when it was.
	exists := s.Interface.Create(ctx, key, obj, out, ttl)
	if !storage.IsExist(exists) {
		return exists
	}
	return s.Interface.GuaranteedUpdate(ctx, key, out, true, nil, func(row runtime.Object, res storage.ResponseMeta) (runtime.Object, *uint64, error) {
		if res.ResourceVersion != 0 && !isReset(row) {
			return nil, nil, exists
		}
		return obj, &ttl, nil
	}, nil)
}

// errUnchanged ends an update that would copy a shared object without changing it, and a deletion of one that no row hides.
var errUnchanged = errors.New("unchanged")

func (s *sharedObjects) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, cachedExistingObject runtime.Object) error {
	shared, err := s.sharedAt(ctx, key)
	if err != nil {
		return err
	}
	if shared == nil {
		return s.Interface.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, nil,
			func(input runtime.Object, res storage.ResponseMeta) (runtime.Object, *uint64, error) {
				if isReset(input) {
					if !ignoreNotFound {
						return nil, nil, storage.NewKeyNotFoundError(key, 0)
					}
					input, res = s.newFunc(), storage.ResponseMeta{}
				}
				if err := preconditions.Check(key, input); err != nil {
					return nil, nil, err
				}
				return tryUpdate(input, res)
			}, cachedExistingObject)
	}
	var seen runtime.Object // by the last attempt; nil if a row
	// Below, a missing row is an empty object. Preconditions are about what the client saw, so they are checked here.
	err = s.Interface.GuaranteedUpdate(ctx, key, destination, true, nil,
		func(input runtime.Object, res storage.ResponseMeta) (runtime.Object, *uint64, error) {
			var err error
			if seen, err = s.shown(shared, input, res); err != nil {
				return nil, nil, err
			}
			if seen != nil {
				input = seen.DeepCopyObject()
				res.ResourceVersion = max(res.ResourceVersion, sharedResourceVersion)
			}
			if err := preconditions.Check(key, input); err != nil {
				return nil, nil, err
			}
			output, ttl, err := tryUpdate(input, res)
			if err != nil || seen == nil {
				return output, ttl, err
			}
			same, err := s.sameBut(output, seen)
			if err != nil {
				return nil, nil, err
			}
			if same {
				return nil, nil, errUnchanged
			}
			return output, ttl, s.date(ctx, output)
		}, cachedExistingObject)
	if errors.Is(err, errUnchanged) {
		return set(destination, seen)
	}
	return err
}

// date puts down for good since when an object is there that was shared until now.
func (s *sharedObjects) date(ctx context.Context, output runtime.Object) error {
	c, _ := s.applies(ctx)
	since, err := s.since(ctx, c.Name, false)
	if err != nil {
		return err
	}
	object, err := meta.Accessor(output)
	if err != nil {
		return storage.NewInternalError(err)
	}
	object.SetCreationTimestamp(since)
	return nil
}

// sameBut says whether two objects are equal but for the resourceVersion, which updates clear.
func (s *sharedObjects) sameBut(a, b runtime.Object) (bool, error) {
	a, b = a.DeepCopyObject(), b.DeepCopyObject()
	for _, obj := range []runtime.Object{a, b} {
		if err := s.Versioner().PrepareObjectForStorage(obj); err != nil {
			return false, storage.NewInternalError(err)
		}
	}
	return apiequality.Semantic.DeepEqual(a, b), nil
}

// Delete marks the row of a shared object, which shows the shared one again. Without a row there is nothing to do:
// the shared object cannot go, and saying so would fail clients that delete what they once made.
//
// What was deleted is returned without its UID: that one is there again, or still. Who waits until it is gone, as kubectl
// does until there is none or one of another UID than the answer names, would wait for ever.
func (s *sharedObjects) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validateDeletion storage.ValidateObjectFunc, cachedExistingObject runtime.Object, opts storage.DeleteOptions) error {
	shared, err := s.sharedAt(ctx, key)
	if err != nil {
		return err
	}
	if shared == nil {
		gone := func(runtime.Object) error { return storage.NewKeyNotFoundError(key, 0) }
		return s.Interface.Delete(ctx, key, out, nil, unlessReset(key, preconditions, validateDeletion, gone), cachedExistingObject, opts)
	}
	var was runtime.Object // as the last attempt saw it
	written := s.newFunc()
	err = s.Interface.GuaranteedUpdate(deleting(ctx), key, written, true, nil,
		func(input runtime.Object, res storage.ResponseMeta) (runtime.Object, *uint64, error) {
			seen, err := s.shown(shared, input, res)
			if err != nil {
				return nil, nil, err
			}
			if was = seen; seen == nil {
				was = input
			}
			if err := preconditions.Check(key, was); err != nil {
				return nil, nil, err
			}
			if err := validateDeletion(ctx, was); err != nil {
				return nil, nil, err
			}
			if seen != nil {
				return nil, nil, errUnchanged
			}
			row := shared.DeepCopyObject()
			return row, nil, setReset(row)
		}, cachedExistingObject)
	switch {
	case err == nil:
		err = s.atVersionOf(was, written)
	case errors.Is(err, errUnchanged):
		err = nil
	case isNoSpace(err):
		// A row can go from a full etcd, and none can be written. The resourceVersion goes back, then.
		was = out
		reset := func(row runtime.Object) error {
			if err := s.atVersionOf(shared, row); err != nil {
				return err
			}
			return errUnchanged
		}
		err = s.Interface.Delete(ctx, key, out, nil, unlessReset(key, preconditions, validateDeletion, reset), cachedExistingObject, opts)
		if storage.IsNotFound(err) || errors.Is(err, errUnchanged) {
			was, err = shared, nil // it went, or was reset, meanwhile
		}
	}
	if err != nil {
		return err
	}
	if err := set(out, was); err != nil {
		return err
	}
	deleted, err := meta.Accessor(out)
	if err != nil {
		return storage.NewInternalError(err)
	}
	deleted.SetUID("")
	warning.AddWarning(ctx, "", fmt.Sprintf("%s %q is one that every workspace has: it is there again as it was at first", s.resource.Resource, deleted.GetName()))
	return nil
}

// unlessReset lets a deletion validate a row, and look at its preconditions; of a row with the mark it says what reset does.
func unlessReset(key string, preconditions *storage.Preconditions, validate storage.ValidateObjectFunc, reset func(row runtime.Object) error) storage.ValidateObjectFunc {
	return func(ctx context.Context, row runtime.Object) error {
		if isReset(row) {
			return reset(row)
		}
		if err := preconditions.Check(key, row); err != nil {
			return err
		}
		return validate(ctx, row)
	}
}

// GetList merges the rows of one logical cluster with the shared objects that no row hides, in the order of keys. Rows
// are read whole and selected here: a row that a selector leaves out must still hide the shared object of its name.
func (s *sharedObjects) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	c, ok := s.applies(ctx)
	if !ok {
		if err := s.Interface.GetList(ctx, key, opts, list); err != nil {
			return err
		}
		return withoutReset(list)
	}
	scope, err := s.rest(c, key)
	if err != nil {
		return storage.NewInternalError(err)
	}
	keyPrefix := key
	if opts.Recursive && !strings.HasSuffix(keyPrefix, "/") {
		keyPrefix += "/"
	}
	rowOpts, after, err := s.wholeList(keyPrefix, opts)
	if err != nil {
		return err
	}
	if err := s.Interface.GetList(ctx, key, rowOpts, list); err != nil {
		return err
	}
	merged, err := s.merge(c, s.known(ctx, c.Name), scope, opts.Recursive, list)
	if err != nil {
		return err
	}
	page, more, err := choose(merged, opts, c, s.resourcePrefix, after)
	if err != nil {
		return err
	}
	return s.setPage(list, c, page, more, keyPrefix, opts)
}

// withoutReset takes the rows with the mark out of a list, or a page, which is shorter then. Most have none, and each decision by roles reads some.
func withoutReset(list runtime.Object) error {
	some := false
	if err := meta.EachListItem(list, func(row runtime.Object) error {
		some = some || isReset(row)
		return nil
	}); err != nil {
		return storage.NewInternalError(err)
	}
	if !some {
		return nil
	}
	rows, err := meta.ExtractList(list)
	if err != nil {
		return storage.NewInternalError(err)
	}
	return meta.SetList(list, slices.DeleteFunc(rows, isReset))
}

// keyed is an object with what follows the logical cluster in its key.
type keyed struct {
	rest string
	obj  runtime.Object
}

// wholeList turns the options of a page into those that list all rows at the page's resourceVersion, and returns the
// key that the page starts at.
func (s *sharedObjects) wholeList(keyPrefix string, opts storage.ListOptions) (storage.ListOptions, string, error) {
	whole := opts
	whole.Predicate = storage.Everything
	if !opts.Recursive || opts.Predicate.Continue == "" {
		if opts.ResourceVersionMatch == "" && opts.Predicate.Limit > 0 && opts.ResourceVersion != "" && opts.ResourceVersion != "0" {
			// With a limit, a resourceVersion without a match means exactly that one.
			whole.ResourceVersionMatch = metav1.ResourceVersionMatchExact
		}
		return whole, "", nil
	}
	// ValidateListOptions refuses tokens that leave the prefix.
	rv, after, err := storage.ValidateListOptions(keyPrefix, s.Versioner(), opts)
	if err != nil {
		return whole, "", err
	}
	whole.ResourceVersion, whole.ResourceVersionMatch = "", ""
	if rv > 0 {
		whole.ResourceVersion, whole.ResourceVersionMatch = fmt.Sprint(rv), metav1.ResourceVersionMatchExact
	}
	return whole, after, nil
}

// merge is the rows of list and the shared objects in scope that no row hides, sorted by key.
func (s *sharedObjects) merge(c lc.Cluster, since metav1.Time, scope string, recursive bool, list runtime.Object) ([]keyed, error) {
	rows, err := meta.ExtractList(list)
	if err != nil {
		return nil, storage.NewInternalError(err)
	}
	merged := make([]keyed, 0, len(rows)+len(s.rests))
	hidden := make(map[string]bool, len(rows))
	for _, row := range rows {
		rest, err := s.restOfObject(row)
		if err != nil {
			return nil, storage.NewInternalError(err)
		}
		hidden[rest] = true
		if marked := row; isReset(marked) {
			if row = s.in(c, since, rest); row == nil {
				continue
			}
			if err := s.atVersionOf(row, marked); err != nil {
				return nil, err
			}
		}
		merged = append(merged, keyed{rest, row})
	}
	for _, rest := range s.rests {
		if !hidden[rest] && inScope(rest, scope, recursive) {
			merged = append(merged, keyed{rest, s.in(c, since, rest)})
		}
	}
	slices.SortFunc(merged, func(a, b keyed) int { return strings.Compare(a.rest, b.rest) })
	return merged, nil
}

func (s *sharedObjects) restOfObject(obj runtime.Object) (string, error) {
	key, err := s.keyFunc(obj)
	if err != nil {
		return "", err
	}
	return restOf(s.resourcePrefix, key)
}

// inScope says whether an object at rest belongs to a list or watch of scope: all, a namespace, or one object.
func inScope(rest, scope string, recursive bool) bool {
	if !recursive || scope == "" {
		return scope == "" || rest == scope
	}
	return strings.HasPrefix(rest, scope+"/")
}

// choose is the page of merged that opts asks for, starting at the key after, and what would follow it.
func choose(merged []keyed, opts storage.ListOptions, c lc.Cluster, resourcePrefix, after string) (page, more []keyed, err error) {
	limit := opts.Predicate.Limit
	if opts.ResourceVersion == "0" && opts.Predicate.Continue == "" {
		limit = 0 // as upstream's cache: at 0 the list is whole
	}
	for i, k := range merged {
		if ClusterKey(resourcePrefix, c.Name, k.rest) < after {
			continue
		}
		matches, err := opts.Predicate.Matches(k.obj)
		if err != nil {
			return nil, nil, storage.NewInternalError(err)
		}
		if !matches {
			continue
		}
		if limit > 0 && int64(len(page)) == limit {
			return page, merged[i:], nil
		}
		page = append(page, k)
	}
	return page, nil, nil
}

// setPage makes list the page, with a token for what follows. list has the position of the rows already.
func (s *sharedObjects) setPage(list runtime.Object, c lc.Cluster, page, more []keyed, keyPrefix string, opts storage.ListOptions) error {
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return storage.NewInternalError(err)
	}
	rv, err := s.Versioner().ParseResourceVersion(accessor.GetResourceVersion())
	if err != nil {
		return err
	}
	objects := make([]runtime.Object, len(page))
	for i, k := range page {
		objects[i] = k.obj
	}
	if err := meta.SetList(list, objects); err != nil {
		return storage.NewInternalError(err)
	}
	var token string
	var remaining *int64
	if len(more) > 0 {
		last := ClusterKey(s.resourcePrefix, c.Name, page[len(page)-1].rest)
		// The same form as upstream's tokens: relative to the prefix, so that a token names no logical cluster.
		token, err = storage.EncodeContinue(last+"\x00", keyPrefix, int64(rv))
		if err != nil {
			return storage.NewInternalError(err)
		}
		if opts.Predicate.Empty() {
			n := int64(len(more))
			remaining = &n
		}
	}
	return s.Versioner().UpdateList(list, rv, token, remaining)
}

// set makes out a copy of obj, which is the caller's.
func set(out, obj runtime.Object) error {
	v, err := conversion.EnforcePtr(out)
	if err != nil {
		return storage.NewInternalError(err)
	}
	o := reflect.ValueOf(obj).Elem()
	if !o.Type().AssignableTo(v.Type()) {
		return apierrors.NewInternalError(fmt.Errorf("read a %T into a %T", obj, out))
	}
	v.Set(o)
	return nil
}
