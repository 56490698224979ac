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
// on the first write, hides the shared object; deleting the row shows it again. Names of shared objects cannot be
// created, and they are always there, from when there is the logical cluster. On the wildcard and in mirrors there are rows only.
type sharedObjects struct {
	storage.Interface

	resource       schema.GroupResource
	resourcePrefix string
	keyFunc        func(runtime.Object) (string, error)
	newListFunc    func() runtime.Object
	attrs          storage.AttrFunc
	since          func(ctx context.Context, cluster logicalcluster.Name, cached bool) (metav1.Time, error)

	// objects are the templates by what follows the logical cluster in their keys; rests are those keys, sorted. Neither
	// changes after construction.
	objects map[string]runtime.Object
	rests   []string
}

func newSharedObjects(inner storage.Interface, config *storagebackend.ConfigForResource, resourcePrefix string, keyFunc func(runtime.Object) (string, error),
	newFunc, newListFunc func() runtime.Object, attrs storage.AttrFunc, since func(context.Context, logicalcluster.Name, bool) (metav1.Time, error),
	objects []runtime.Object) (*sharedObjects, error) {
	s := &sharedObjects{
		Interface:      inner,
		resource:       config.GroupResource,
		resourcePrefix: resourcePrefix,
		keyFunc:        keyFunc,
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
		if err := s.Versioner().UpdateObject(template, sharedResourceVersion); err != nil {
			return nil, fmt.Errorf("shared object %q: %w", object.GetName(), err)
		}
		if s.objects[rest] != nil {
			return nil, fmt.Errorf("shared object %q is given twice", rest)
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
	id := s.resource.String() + "\x00" + rest + "\x00" + c.Name.String()
	object.SetUID(types.UID(uuid.NewSHA1(sharedSpace, []byte(id)).String()))
	return obj
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
	if shared == nil {
		return s.Interface.Get(ctx, key, opts, out)
	}
	strict := opts
	strict.IgnoreNotFound = false
	err = s.Interface.Get(ctx, key, strict, out)
	if storage.IsNotFound(err) {
		return set(out, shared)
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
	return s.Interface.Create(ctx, key, obj, out, ttl)
}

// errUnchanged ends an update that would copy a shared object without changing it.
var errUnchanged = errors.New("unchanged")

func (s *sharedObjects) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, cachedExistingObject runtime.Object) error {
	shared, err := s.sharedAt(ctx, key)
	if err != nil {
		return err
	}
	if shared == nil {
		return s.Interface.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions, tryUpdate, cachedExistingObject)
	}
	// Below, a missing row is an empty object. Preconditions are about what the client saw, so they are checked here.
	err = s.Interface.GuaranteedUpdate(ctx, key, destination, true, nil,
		func(input runtime.Object, res storage.ResponseMeta) (runtime.Object, *uint64, error) {
			absent := res.ResourceVersion == 0
			if absent {
				input = shared.DeepCopyObject()
				res.ResourceVersion = sharedResourceVersion
			}
			if err := preconditions.Check(key, input); err != nil {
				return nil, nil, err
			}
			output, ttl, err := tryUpdate(input, res)
			if err != nil || !absent {
				return output, ttl, err
			}
			same, err := s.sameBut(output, shared)
			if err != nil {
				return nil, nil, err
			}
			if same {
				return nil, nil, errUnchanged
			}
			return output, ttl, s.date(ctx, output)
		}, cachedExistingObject)
	if errors.Is(err, errUnchanged) {
		return set(destination, shared)
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

// Delete removes the row of a shared object, which shows the shared one again. Without a row there is nothing to do:
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
	err = s.Interface.Delete(ctx, key, out, preconditions, validateDeletion, cachedExistingObject, opts)
	if shared == nil || err != nil && !storage.IsNotFound(err) {
		return err
	}
	if err != nil {
		if err := preconditions.Check(key, shared); err != nil {
			return err
		}
		if err := validateDeletion(ctx, shared); err != nil {
			return err
		}
		if err := set(out, shared); err != nil {
			return err
		}
	}
	deleted, err := meta.Accessor(out)
	if err != nil {
		return storage.NewInternalError(err)
	}
	deleted.SetUID("")
	warning.AddWarning(ctx, "", fmt.Sprintf("%s %q is one that every workspace has: it is there again as it was at first", s.resource.Resource, deleted.GetName()))
	return nil
}

// GetList merges the rows of one logical cluster with the shared objects that no row hides, in the order of keys. Rows
// are read whole and selected here: a row that a selector leaves out must still hide the shared object of its name.
func (s *sharedObjects) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	c, ok := s.applies(ctx)
	if !ok {
		return s.Interface.GetList(ctx, key, opts, list)
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
