package quota

import (
	"slices"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"atoll.dev/atoll/client"
)

// limits has which ResourceQuota limits which resources. It is made out once for each spec: to look for it at each change of an
// object would let who has many ResourceQuotas, with many limits, hold up those of all others, whose changes come by the same
// watch.
type limits struct {
	mu sync.Mutex // guards what follows
	of map[client.Key][]schema.GroupResource
	by map[schema.GroupResource]map[logicalcluster.Name]map[client.Key][]string // by namespace, names of ResourceQuotas; none is empty
}

func newLimits() *limits {
	return &limits{
		of: map[client.Key][]schema.GroupResource{},
		by: map[schema.GroupResource]map[logicalcluster.Name]map[client.Key][]string{},
	}
}

// set says what a ResourceQuota limits from now on, each resource once, and returns those that it did not, or does not any more.
func (l *limits) set(quota client.Key, now []schema.GroupResource) (changed []schema.GroupResource) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was, is := sets.New(l.of[quota]...), sets.New(now...)
	for resource := range was.Difference(is) {
		changed = append(changed, resource)
		l.remove(resource, quota)
	}
	for resource := range is.Difference(was) {
		changed = append(changed, resource)
		l.add(resource, quota)
	}
	if l.of[quota] = now; len(now) == 0 {
		delete(l.of, quota)
	}
	return changed
}

func (l *limits) add(resource schema.GroupResource, quota client.Key) {
	clusters := l.by[resource]
	if clusters == nil {
		clusters = map[logicalcluster.Name]map[client.Key][]string{}
		l.by[resource] = clusters
	}
	spaces := clusters[quota.Cluster]
	if spaces == nil {
		spaces = map[client.Key][]string{}
		clusters[quota.Cluster] = spaces
	}
	spaces[quota.Space()] = append(spaces[quota.Space()], quota.Name)
}

func (l *limits) remove(resource schema.GroupResource, quota client.Key) {
	clusters := l.by[resource]
	spaces := clusters[quota.Cluster]
	left := slices.DeleteFunc(spaces[quota.Space()], func(name string) bool { return name == quota.Name })
	if spaces[quota.Space()] = left; len(left) == 0 {
		delete(spaces, quota.Space())
	}
	if len(spaces) == 0 {
		delete(clusters, quota.Cluster)
	}
	if len(clusters) == 0 {
		delete(l.by, resource)
	}
}

// in returns the ResourceQuotas of a namespace that limit a resource.
func (l *limits) in(space client.Key, resource schema.GroupResource) []client.Key {
	l.mu.Lock()
	defer l.mu.Unlock()
	return named(space, l.by[resource][space.Cluster][space])
}

// everywhere returns the ResourceQuotas that limit a resource, of all logical clusters or of one.
func (l *limits) everywhere(resource schema.GroupResource, of logicalcluster.Name) (all []client.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	add := func(spaces map[client.Key][]string) {
		for space, names := range spaces {
			all = append(all, named(space, names)...)
		}
	}
	if of != "" {
		add(l.by[resource][of])
		return all
	}
	for _, spaces := range l.by[resource] {
		add(spaces)
	}
	return all
}

// clusters returns logical clusters, so many at most, that have ResourceQuotas which limit a resource: each once, in however many
// of its namespaces they are.
func (l *limits) clusters(resource schema.GroupResource, most int) (all []logicalcluster.Name) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for cluster := range l.by[resource] {
		if len(all) == most {
			break
		}
		all = append(all, cluster)
	}
	return all
}

func named(space client.Key, names []string) []client.Key {
	keys := make([]client.Key, 0, len(names))
	for _, name := range names {
		space.Name = name
		keys = append(keys, space)
	}
	return keys
}
