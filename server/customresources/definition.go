package customresources

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Definition is a CustomResourceDefinition of one logical cluster. Who gets one shares it with others and copies before
// changing anything: the spec is one object in memory for all logical clusters that have it. Its managedFields, and the
// annotation in which kubectl keeps what was applied, are left out.
type Definition struct {
	*apiextensionsv1.CustomResourceDefinition
	// Hash is equal for definitions that are served alike, in whatever logical cluster: it is of the spec and the accepted
	// names.
	Hash string

	shared *sharedSpec
	weight Weight
}

// Definitions are the CustomResourceDefinitions of all logical clusters, kept up to date by one watch (Run).
type Definitions struct {
	feed  *feed
	specs specs
	// builtin says which resources are served by others; definitions of them never are.
	builtin Names
	// changed is told of every change, with the definition before and after, of which one may be nil, and whether it is only
	// anticipated; unheld of a handler that no definition has any more. They are set before Run.
	changed func(before, after *Definition, anticipated bool)
	unheld  func(handler string)

	synced chan struct{}

	mu       sync.Mutex // guards what follows
	clusters map[logicalcluster.Name]*definitionsOfCluster
	held     map[string]int // number of definitions by handler
	// resources has the number of definitions of each resource; news is closed when there are others, and may be nil.
	resources map[schema.GroupResource]int
	news      chan struct{}
	listeners map[*listener]struct{}
	// kindListeners are told of kinds that are served.
	kindListeners map[*kindListener]struct{}
	// position is the resourceVersion up to which the watch has told everything.
	position uint64
}

// source is where a definition comes from.
type source int

const (
	told    source = iota // by the watch
	read                  // from etcd, for a request that the watch has not caught up with
	decided               // it will be written so: what is to be served is, before anybody is told
)

// definitionsOfCluster are those of one logical cluster, by name.
type definitionsOfCluster struct {
	byName map[string]*held
	served []Definition // nil if it has to be made anew
	// byKind are those that are served; nil if it has to be made anew.
	byKind map[schema.GroupKind]*Definition
}

// held is a definition, and the watches of its objects that end with it.
type held struct {
	*Definition
	version uint64
	// anticipated says that it is what will be written, and nobody knows yet whether it was.
	anticipated bool

	watches context.Context // nil before there is one
	end     context.CancelCauseFunc
}

// Served returns the definitions of a logical cluster whose resources are served there, ordered by name. It costs no more
// than a look into a map; callers do not change the slice. Before WaitSynced some may be missing.
func (d *Definitions) Served(cluster logicalcluster.Name) []Definition {
	d.mu.Lock()
	defer d.mu.Unlock()
	of := d.clusters[cluster]
	if of == nil {
		return nil
	}
	if of.served == nil {
		of.served = make([]Definition, 0, len(of.byName))
		for _, h := range of.byName {
			if d.isServed(h.Definition) {
				of.served = append(of.served, *h.Definition)
			}
		}
		slices.SortFunc(of.served, func(a, b Definition) int { return strings.Compare(a.Name, b.Name) })
	}
	return of.served
}

// OfKind returns the definition of a logical cluster that serves a kind, in that version. It costs no more than a look into a
// map.
func (d *Definitions) OfKind(cluster logicalcluster.Name, kind schema.GroupVersionKind) (*Definition, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	of := d.clusters[cluster]
	if of == nil {
		return nil, false
	}
	if of.byKind == nil {
		of.byKind = map[schema.GroupKind]*Definition{}
		for _, h := range of.byName {
			kind := schema.GroupKind{Group: h.Spec.Group, Kind: h.Status.AcceptedNames.Kind}
			// Whoever may write statuses can have two accept one kind: it is that of the first by name.
			if other := of.byKind[kind]; d.isServed(h.Definition) && (other == nil || h.Name < other.Name) {
				of.byKind[kind] = h.Definition
			}
		}
	}
	def := of.byKind[kind.GroupKind()]
	return def, def != nil && serves(def, kind.Version)
}

// OfResource returns the definition of a logical cluster that serves a resource, in whatever version.
func (d *Definitions) OfResource(cluster logicalcluster.Name, resource schema.GroupResource) (*Definition, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.find(cluster, resource.String()) // their names are <resource>.<group>
	if h == nil || !d.isServed(h.Definition) {
		return nil, false
	}
	return h.Definition, true
}

// Resources returns the resources that any logical cluster defines, in no order, and a channel that is closed when these are
// others.
func (d *Definitions) Resources() ([]schema.GroupResource, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.news == nil {
		d.news = make(chan struct{})
	}
	return slices.Collect(maps.Keys(d.resources)), d.news
}

// Defined says whether any logical cluster defines a resource, served or not.
func (d *Definitions) Defined(resource schema.GroupResource) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.resources[resource] > 0
}

// Defines returns the resources that a logical cluster defines, served or not, in no order. It waits for WaitSynced, so that those of
// before this process began are among them.
func (d *Definitions) Defines(ctx context.Context, cluster logicalcluster.Name) ([]schema.GroupResource, error) {
	if err := d.WaitSynced(ctx); err != nil {
		return nil, err
	}
	all := d.of(cluster)
	resources := make([]schema.GroupResource, 0, len(all))
	for _, def := range all {
		resources = append(resources, resourceOf(def))
	}
	return resources, nil
}

// HasNamespaced says whether a logical cluster serves a resource that it defines to be in namespaces.
func (d *Definitions) HasNamespaced(cluster logicalcluster.Name, resource schema.GroupResource) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.find(cluster, resource.String()) // their names are <resource>.<group>
	return h != nil && d.isNamespaced(h.Definition)
}

// isNamespaced wants a definition or nil.
func (d *Definitions) isNamespaced(def *Definition) bool {
	return def != nil && def.Spec.Scope == apiextensionsv1.NamespaceScoped && d.isServed(def)
}

// listener is told of a resource of a logical cluster.
type listener func(logicalcluster.Name, schema.GroupResource)

// OnNamespaced tells, until ctx ends, whenever HasNamespaced has become true or false. It is told while the definition changes, so
// tell must not block.
func (d *Definitions) OnNamespaced(ctx context.Context, tell func(logicalcluster.Name, schema.GroupResource)) {
	l := listener(tell)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listeners[&l] = struct{}{}
	context.AfterFunc(ctx, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.listeners, &l)
	})
}

// kindListener is told of a kind of a logical cluster.
type kindListener func(logicalcluster.Name, schema.GroupVersionKind)

// OnServed tells, until ctx ends, of each kind in a version that a logical cluster serves and did not before, or as another
// resource. It is told while the definition changes, so tell must not block.
func (d *Definitions) OnServed(ctx context.Context, tell func(logicalcluster.Name, schema.GroupVersionKind)) {
	l := kindListener(tell)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.kindListeners[&l] = struct{}{}
	context.AfterFunc(ctx, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.kindListeners, &l)
	})
}

// newKinds are the kinds that after serves and before, of that name, did not, or in another scope. Either may be nil.
func (d *Definitions) newKinds(before, after *Definition) []schema.GroupVersionKind {
	if after == nil || !d.isServed(after) {
		return nil
	}
	kind := after.Status.AcceptedNames.Kind
	same := before != nil && d.isServed(before) && before.Status.AcceptedNames.Kind == kind && before.Spec.Scope == after.Spec.Scope
	var all []schema.GroupVersionKind
	for _, v := range after.Spec.Versions {
		if v.Served && !(same && serves(before, v.Name)) {
			all = append(all, schema.GroupVersionKind{Group: after.Spec.Group, Version: v.Name, Kind: kind})
		}
	}
	return all
}

func resourceOf(def *Definition) schema.GroupResource {
	return schema.GroupResource{Group: def.Spec.Group, Resource: def.Spec.Names.Plural}
}

// WaitSynced blocks until the definitions that etcd held at the start are known, or ctx ends.
func (d *Definitions) WaitSynced(ctx context.Context) error {
	select {
	case <-d.synced:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the CustomResourceDefinitions of all logical clusters: %w", context.Cause(ctx))
	}
}

// get returns a definition and whether it is known.
func (d *Definitions) get(cluster logicalcluster.Name, name string) (*Definition, bool) {
	def, _, ok := d.look(cluster, name)
	return def, ok
}

// look returns also whether the definition is only what it will be once it is written.
func (d *Definitions) look(cluster logicalcluster.Name, name string) (_ *Definition, anticipated, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.find(cluster, name)
	if h == nil {
		return nil, false, false
	}
	return h.Definition, h.anticipated, true
}

// ofGroup returns the definitions of a logical cluster that define resources of an API group, in no order.
func (d *Definitions) ofGroup(cluster logicalcluster.Name, group string) []*Definition {
	return slices.DeleteFunc(d.of(cluster), func(def *Definition) bool { return def.Spec.Group != group })
}

// of returns the definitions of a logical cluster, in no order.
func (d *Definitions) of(cluster logicalcluster.Name) []*Definition {
	d.mu.Lock()
	defer d.mu.Unlock()
	of := d.clusters[cluster]
	if of == nil {
		return nil
	}
	all := make([]*Definition, 0, len(of.byName))
	for _, h := range of.byName {
		all = append(all, h.Definition)
	}
	return all
}

// Count is the number of definitions that a logical cluster has, served or not.
func (d *Definitions) Count(cluster logicalcluster.Name) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	of := d.clusters[cluster]
	if of == nil {
		return 0
	}
	return len(of.byName)
}

// Weight is what the definitions of a logical cluster take together, their specs as if nobody else had the same.
func (d *Definitions) Weight(cluster logicalcluster.Name) Weight {
	d.mu.Lock()
	defer d.mu.Unlock()
	sum := Weight{}
	if of := d.clusters[cluster]; of != nil {
		for _, h := range of.byName {
			sum.add(1, h.weight)
		}
	}
	return sum
}

// isHeld says whether any definition has that handler.
func (d *Definitions) isHeld(handler string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.held[handler] > 0
}

// isServed says whether requests for the resource are answered: it was established, and its objects are stored under its own
// name, which is nobody else's. Whoever may write statuses could accept any name, and would be authorised for another.
func (d *Definitions) isServed(def *Definition) bool {
	return isTrue(def.Status.Conditions, apiextensionsv1.Established) &&
		def.Status.AcceptedNames.Plural == def.Spec.Names.Plural && !d.builtin.resource(def.Spec.Group, def.Spec.Names.Plural)
}

// whileAlike returns a context that ends with ctx, or as soon as the logical cluster's definition is gone or has another
// hash. Watches get it: they would go on to show objects as the schema of their beginning has them, and clients begin anew.
func (d *Definitions) whileAlike(ctx context.Context, cluster logicalcluster.Name, def *Definition) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	d.mu.Lock()
	h := d.find(cluster, def.Name)
	if h == nil || h.Hash != def.Hash {
		d.mu.Unlock()
		cancel()
		return ctx, cancel
	}
	if h.watches == nil {
		h.watches, h.end = context.WithCancelCause(context.Background())
	}
	watches := h.watches
	d.mu.Unlock()
	stop := context.AfterFunc(watches, cancel)
	return ctx, func() { stop(); cancel() }
}

// find wants the lock.
func (d *Definitions) find(cluster logicalcluster.Name, name string) *held {
	if of := d.clusters[cluster]; of != nil {
		return of.byName[name]
	}
	return nil
}

// put takes over a definition, unless what is known is as new. A definition that somebody read, and that the watch has not
// told of, is taken over too; one from before what the watch has told is not, since it may be gone.
func (d *Definitions) put(def *Definition, source source) {
	version := versionOf(def)
	cluster := clusterOf(def)
	d.mu.Lock()
	old := d.find(cluster, def.Name)
	skip := old != nil && old.version > version || old == nil && source != told && version <= d.position
	switch source {
	case told:
		d.position = max(d.position, version)
		skip = skip || old != nil && old.version == version
	case read: // whether what was anticipated has been written, the watch has not told
		skip = skip || old != nil && old.version == version && !old.anticipated
	case decided:
	}
	if skip {
		d.mu.Unlock()
		return
	}
	of := d.clusters[cluster]
	if of == nil {
		of = &definitionsOfCluster{byName: map[string]*held{}}
		d.clusters[cluster] = of
	}
	next := &held{Definition: def, version: version, anticipated: source == decided}
	of.byName[def.Name], of.served, of.byKind = next, nil, nil
	d.held[def.handler()]++
	d.resources[resourceOf(def)]++
	if old != nil && old.Hash == def.Hash {
		next.watches, next.end = old.watches, old.end
	}
	d.release(old, next)
}

// drop forgets a definition that is gone since version.
func (d *Definitions) drop(cluster logicalcluster.Name, name string, version uint64) {
	d.mu.Lock()
	d.position = max(d.position, version)
	old := d.find(cluster, name)
	if old == nil || old.version > version {
		d.mu.Unlock()
		return
	}
	of := d.clusters[cluster]
	delete(of.byName, name)
	of.served, of.byKind = nil, nil
	if len(of.byName) == 0 {
		delete(d.clusters, cluster)
	}
	d.release(old, nil)
}

// release ends what went with old, gives the lock back, and tells who wants to know.
func (d *Definitions) release(old, next *held) {
	unheld := ""
	others := next != nil && d.resources[resourceOf(next.Definition)] == 1 // old counts still
	if old != nil {
		if resource := resourceOf(old.Definition); d.resources[resource] > 1 {
			d.resources[resource]--
		} else {
			delete(d.resources, resource)
			others = true
		}
		name := old.handler()
		if d.held[name]--; d.held[name] == 0 {
			delete(d.held, name)
			unheld = name
		}
		if old.end != nil && (next == nil || next.Hash != old.Hash) {
			old.end(nil)
		}
	}
	var before, after *Definition
	if old != nil {
		before = old.Definition
	}
	if next != nil {
		after = next.Definition
	}
	if others && d.news != nil {
		close(d.news)
		d.news = nil
	}
	var told []*listener
	if d.isNamespaced(before) != d.isNamespaced(after) {
		told = slices.Collect(maps.Keys(d.listeners))
	}
	kinds, toldOfKinds := d.newKinds(before, after), slices.Collect(maps.Keys(d.kindListeners))
	d.mu.Unlock()
	for _, l := range toldOfKinds {
		for _, kind := range kinds {
			(*l)(clusterOf(after), kind)
		}
	}
	for _, l := range told {
		one := cmp.Or(after, before)
		(*l)(clusterOf(one), resourceOf(one))
	}
	if unheld != "" && d.unheld != nil {
		d.unheld(unheld)
	}
	if d.changed != nil {
		d.changed(before, after, next != nil && next.anticipated)
	}
}
