package admission

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	lc "github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"

	"atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/reflector"
)

// Everywhere reads a resource of all logical clusters, in the registries' internal types. What it returns is not changed.
type Everywhere interface {
	ListEverywhere(ctx context.Context, resource schema.GroupResource, o metav1.ListOptions) (runtime.Object, error)
	WatchEverywhere(ctx context.Context, resource schema.GroupResource, o metav1.ListOptions) (watch.Interface, error)
}

// What people configure admission of their logical cluster with.
var (
	mutatingWebhooks           = registration("mutatingwebhookconfigurations")
	validatingWebhooks         = registration("validatingwebhookconfigurations")
	mutatingPolicies           = registration("mutatingadmissionpolicies")
	mutatingPolicyBindings     = registration("mutatingadmissionpolicybindings")
	validatingPolicies         = registration("validatingadmissionpolicies")
	validatingPolicyBindings   = registration("validatingadmissionpolicybindings")
	configurationsOfAnyCluster = []schema.GroupResource{
		mutatingWebhooks, validatingWebhooks, mutatingPolicies, mutatingPolicyBindings, validatingPolicies, validatingPolicyBindings,
	}
)

func registration(resource string) schema.GroupResource {
	return schema.GroupResource{Group: "admissionregistration.k8s.io", Resource: resource}
}

// Configurations are the webhooks and policies of all logical clusters, by one watch for each resource. A logical cluster
// that has none is not in them.
type Configurations struct {
	from   Everywhere
	synced chan struct{}
	// policyChanged is told of each ValidatingAdmissionPolicy that is newer than its status; it must not block. Nil for nobody.
	policyChanged func(cluster lc.Name, name string)

	mu sync.RWMutex // guards what follows
	// none are told, under the lock, of a logical cluster that has nothing of a resource any more.
	none    map[schema.GroupResource][]func(lc.Name)
	of      map[schema.GroupResource]map[lc.Name]*configured
	filled  map[schema.GroupResource]bool
	version uint64 // of the last change, of any; never 0 for one
}

// configured are the configurations of one resource in one logical cluster. There is at least one.
type configured struct {
	version uint64
	byName  map[string]runtime.Object
}

// stamp says which configurations there were: of two resources, of which the second may be none. Two are equal only if
// nothing changed in between.
type stamp [2]uint64

// NewConfigurations returns an empty one; nothing is known before Run.
func NewConfigurations(from Everywhere) *Configurations {
	c := &Configurations{from: from, synced: make(chan struct{}), of: map[schema.GroupResource]map[lc.Name]*configured{}, filled: map[schema.GroupResource]bool{},
		none: map[schema.GroupResource][]func(lc.Name){}}
	for _, resource := range configurationsOfAnyCluster {
		c.of[resource] = map[lc.Name]*configured{}
	}
	return c
}

// whenNone has forget called, which must not block, when a logical cluster has nothing of a resource any more.
func (c *Configurations) whenNone(resource schema.GroupResource, forget func(lc.Name)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.none[resource] = append(c.none[resource], forget)
}

// lost tells that a logical cluster has nothing of a resource any more. The lock is held.
func (c *Configurations) lost(resource schema.GroupResource, cluster lc.Name) {
	for _, forget := range c.none[resource] {
		forget(cluster)
	}
}

// Run keeps them up to date until ctx ends.
func (c *Configurations) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	logger := klog.FromContext(ctx)
	for _, resource := range configurationsOfAnyCluster {
		r := cache.NewReflectorWithOptions(&configurationFeed{c, resource}, nil, &configurationStore{c, resource}, cache.ReflectorOptions{
			Logger: &logger, Name: "admission", TypeDescription: resource.Resource + " of all logical clusters", Backoff: reflector.Backoff(),
		})
		running.Go(func() { r.RunWithContext(ctx) })
	}
}

// WaitSynced blocks until those that were there at the start are known, or ctx ends.
func (c *Configurations) WaitSynced(ctx context.Context) error {
	select {
	case <-c.synced:
		return nil
	default:
	}
	select {
	case <-c.synced:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the webhooks and policies of all logical clusters: %w", context.Cause(ctx))
	}
}

// stamp says what a logical cluster has of the resources; it is zero where there is nothing of the last one.
func (c *Configurations) stamp(cluster lc.Name, resources []schema.GroupResource) (s stamp) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for i, resource := range resources {
		if has, ok := c.of[resource][cluster]; ok {
			s[i] = has.version
		} else if i == len(resources)-1 {
			return stamp{}
		}
	}
	return s
}

// list returns what a logical cluster has of the resources, each in the order of names, and its stamp.
func (c *Configurations) list(cluster lc.Name, resources []schema.GroupResource) (objects [][]runtime.Object, s stamp) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for i, resource := range resources {
		var these []runtime.Object
		if has, ok := c.of[resource][cluster]; ok {
			s[i] = has.version
			for _, name := range slices.SortedFunc(maps.Keys(has.byName), strings.Compare) {
				these = append(these, has.byName[name])
			}
		}
		objects = append(objects, these)
	}
	return objects, s
}

// get returns one object.
func (c *Configurations) get(resource schema.GroupResource, cluster lc.Name, name string) (runtime.Object, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	has, ok := c.of[resource][cluster]
	if !ok {
		return nil, false
	}
	obj, ok := has.byName[name]
	return obj, ok
}

// put takes over one object, or that it is gone. The lock is held.
func (c *Configurations) put(resource schema.GroupResource, obj runtime.Object, gone bool) error {
	object, err := meta.Accessor(obj)
	if err != nil {
		return fmt.Errorf("take over one of %s: %w", resource, err)
	}
	clusters, cluster := c.of[resource], logicalcluster.NameFrom(object)
	has := clusters[cluster]
	if has == nil {
		if gone {
			return nil
		}
		has = &configured{byName: map[string]runtime.Object{}}
		clusters[cluster] = has
	}
	if gone {
		delete(has.byName, object.GetName())
	} else {
		has.byName[object.GetName()] = obj
	}
	c.version++
	has.version = c.version
	if len(has.byName) == 0 {
		delete(clusters, cluster)
		c.lost(resource, cluster)
	}
	return nil
}

// configurationFeed lists and watches one resource.
type configurationFeed struct {
	*Configurations
	resource schema.GroupResource
}

// IsWatchListSemanticsUnSupported keeps client-go's reflector from collecting the first list in a store of its own, which
// would keep one of all objects of equal name (it is found by this method's name).
func (*configurationFeed) IsWatchListSemanticsUnSupported() bool { return true }

// ListWithContext lists all of them.
func (f *configurationFeed) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	return f.from.ListEverywhere(ctx, f.resource, o)
}

// WatchWithContext watches all of them.
func (f *configurationFeed) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return f.from.WatchEverywhere(ctx, f.resource, o)
}

// List is for the interface; the reflector prefers ListWithContext.
func (f *configurationFeed) List(o metav1.ListOptions) (runtime.Object, error) {
	return f.ListWithContext(context.Background(), o)
}

// Watch is for the interface; the reflector prefers WatchWithContext.
func (f *configurationFeed) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return f.WatchWithContext(context.Background(), o)
}

// configurationStore is what a reflector tells of one resource.
type configurationStore struct {
	*Configurations
	resource schema.GroupResource
}

func (s *configurationStore) take(obj any, gone bool) error {
	object, ok := obj.(runtime.Object)
	if !ok {
		return fmt.Errorf("take over one of %s: got a %T", s.resource, obj)
	}
	s.mu.Lock()
	err := s.put(s.resource, object, gone)
	s.mu.Unlock()
	if err == nil && !gone {
		s.tell(object)
	}
	return err
}

// tell tells of a policy that is newer than its status. The lock is not held: all requests need it, and there may be many policies.
func (s *configurationStore) tell(obj any) {
	policy, ok := obj.(*admissionregistration.ValidatingAdmissionPolicy)
	if ok && s.policyChanged != nil && policy.Generation > policy.Status.ObservedGeneration {
		s.policyChanged(logicalcluster.NameFrom(policy), policy.Name)
	}
}

// Add takes over an object that is new or has changed.
func (s *configurationStore) Add(obj any) error { return s.take(obj, false) }

// Update is Add.
func (s *configurationStore) Update(obj any) error { return s.take(obj, false) }

// Delete takes over that an object is gone.
func (s *configurationStore) Delete(obj any) error { return s.take(obj, true) }

// Replace takes over all there are.
func (s *configurationStore) Replace(objs []any, _ string) error {
	if err := s.replace(objs); err != nil {
		return err
	}
	for _, obj := range objs {
		s.tell(obj)
	}
	return nil
}

func (s *configurationStore) replace(objs []any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.of[s.resource]
	s.of[s.resource] = map[lc.Name]*configured{} // versions go on, so every stamp changes
	for _, obj := range objs {
		object, ok := obj.(runtime.Object)
		if !ok {
			return fmt.Errorf("take over a list of %s: got a %T", s.resource, obj)
		}
		if err := s.put(s.resource, object, false); err != nil {
			return err
		}
	}
	for cluster := range before {
		if _, has := s.of[s.resource][cluster]; !has {
			s.lost(s.resource, cluster)
		}
	}
	if s.filled[s.resource] = true; len(s.filled) == len(configurationsOfAnyCluster) {
		select {
		case <-s.synced:
		default:
			close(s.synced)
		}
	}
	return nil
}

// Resync does nothing.
func (s *configurationStore) Resync() error { return nil }
