package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	lc "github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/customresources"
)

const (
	// maxKept is how many bytes, by estimate, of what is made of configurations are kept for each of the plugins: clients,
	// compiled expressions, and the compiler that upstream's webhook plugins have each, which takes 20 ms to make. Of the logical
	// clusters beyond, the ones whose last request is longest ago make theirs anew.
	maxKept = 128 << 20
	// The estimates: of what an instance has but for webhooks and policies; of upstream's webhook plugin; of one webhook; and of a
	// compiled expression. A policy, which takes 0.2 to 0.5 MB, counts as leastExpressions at least.
	instanceBytes    = 16 << 10
	pluginBytes      = 400 << 10
	webhookBytes     = 4 << 10
	expressionBytes  = customresources.ExpressionBytes
	leastExpressions = 10
	// maxPolicies is how many policies a logical cluster may have bound for a plugin, and maxExpressions how many expressions there
	// may be in them, or in the match conditions of its webhooks.
	maxPolicies    = 100
	maxExpressions = leastExpressions * maxPolicies
	// maxBindings is how many bindings a logical cluster may have for a plugin, and maxBindingsOfPolicy how many of them may be of one
	// policy: all its expressions are evaluated for each.
	maxBindings         = 10 * maxPolicies
	maxBindingsOfPolicy = 100
	// maxWebhooks is how many webhooks a logical cluster may have for a plugin: upstream calls all that match at once.
	maxWebhooks = 100
	// idleFor is how long one is kept that no request needs; it may be twice that.
	idleFor = 5 * time.Minute
	// tryAgain is how long what could not be made whole is used: a kind may come to be defined.
	tryAgain = time.Second
	// readTimeout bounds what upstream's plugins read with contexts of their own.
	readTimeout = 10 * time.Second
)

// dynamic is one of the plugins that people configure: each logical cluster that has such configurations has an instance,
// made for the first request that needs it, of the configurations there are at that moment. It has no goroutine, never changes
// and is made anew when they have changed.
type dynamic struct {
	*admission.Handler
	name           string
	resources      []schema.GroupResource // without any of the last one nothing is done
	configurations *Configurations
	terminating    func(lc.Name) bool
	exempt         []schema.GroupResource // what it has no say in
	own            *ownCalls              // nil if it makes no calls
	// make makes an instance from the objects of resources, of parts that are kept where there are some.
	make func(cluster logicalcluster.Cluster, objects [][]runtime.Object, kept func(content string) any) (made, error)

	most      int        // bytes that are kept: maxKept
	mu        sync.Mutex // guards what follows
	instances map[lc.Name]*instanceOf
	parts     map[string]*shared // by content; each has a user
	bytes     int                // of instances and parts, by estimate
	sweeps    bool               // a timer will look for those that are idle
}

// made is what is made of configurations.
type made struct {
	plugin admission.Interface
	// whole is false if something that the configurations name is missing, which may come to be defined.
	whole bool
	bytes int // of what is not in parts
	parts []part
}

// part is what instances share that need the same, whichever logical cluster they are of: nothing of one is in it.
type part struct {
	content string // what it is made of, all of it
	made    any
	bytes   int
}

// shared is a part that instances have.
type shared struct {
	part
	users int
}

// instanceOf is what is made of the configurations of one logical cluster.
type instanceOf struct {
	stamp stamp
	used  time.Time // by the last request; guarded by dynamic.mu
	until time.Time // zero for one that only a change makes another; guarded by dynamic.mu
	// What it has that counts: that of the configurations before until it is filled, so that what has not changed is not made
	// anew. Guarded by dynamic.mu.
	bytes int
	parts []part

	once   sync.Once
	plugin admission.Interface
	err    error
}

func newDynamic(c Config, name string, operations []admission.Operation, resources ...schema.GroupResource) *dynamic {
	d := &dynamic{
		Handler: admission.NewHandler(operations...), name: name, resources: resources,
		configurations: c.Configurations, terminating: c.Terminating, most: maxKept, instances: map[lc.Name]*instanceOf{}, parts: map[string]*shared{},
	}
	c.Configurations.whenNone(resources[len(resources)-1], d.forget) // nobody would ask for it again
	return d
}

// Admit lets what people configured change the object.
func (d *dynamic) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if isAdministration(a) {
		return nil
	}
	plugin, err := d.instance(ctx, a)
	if err != nil {
		return err
	}
	mutating, ok := plugin.(admission.MutationInterface)
	if !ok {
		return nil
	}
	return d.calling(ctx, a, func(ctx context.Context) error { return mutating.Admit(ctx, a, o) })
}

// Validate lets what people configured refuse the object.
func (d *dynamic) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	plugin, err := d.instance(ctx, a)
	if err != nil {
		return err
	}
	validating, ok := plugin.(admission.ValidationInterface)
	if !ok {
		return nil
	}
	return d.calling(ctx, a, func(ctx context.Context) error { return validating.Validate(ctx, a, o) })
}

// instance returns the one for a request, or nil if there is nothing to do.
func (d *dynamic) instance(ctx context.Context, a admission.Attributes) (admission.Interface, error) {
	cluster, ok := logicalcluster.ClusterFrom(ctx)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("%s of %s %s: the request names no logical cluster", d.name, a.GetOperation(), a.GetResource().Resource))
	}
	resource := a.GetResource().GroupResource()
	// What is exempt does not even wait for an instance: whatever it takes to make one, people can mend what it is made of.
	if cluster.Mirror || isSystemState(a) || resource == tokenReviews || slices.Contains(d.exempt, resource) {
		return nil, nil
	}
	if err := d.configurations.WaitSynced(ctx); err != nil {
		return nil, admission.NewForbidden(a, fmt.Errorf("not yet ready to handle request: %w", err))
	}
	now := d.configurations.stamp(cluster.Name, d.resources)
	if now == (stamp{}) || d.terminating(cluster.Name) {
		return nil, nil
	}
	i := d.of(cluster.Name, now)
	i.once.Do(func() { d.fill(i, cluster) })
	if i.err != nil {
		if resource.Group == mutatingWebhooks.Group {
			return nil, nil // or nobody could mend it
		}
		if many := tooMany(""); errors.As(i.err, &many) { // for who configured them to mend
			return nil, admission.NewForbidden(a, i.err)
		}
		return nil, apierrors.NewInternalError(i.err)
	}
	return i.plugin, nil
}

// calling runs a phase of a request. Where that calls webhooks, those of the server itself wait until few others are there.
func (d *dynamic) calling(ctx context.Context, a admission.Attributes, phase func(context.Context) error) error {
	if d.own == nil || a.GetUserInfo().GetName() != user.APIServerUser {
		return phase(ctx)
	}
	cluster, _ := logicalcluster.ClusterFrom(ctx) // there is one: it has an instance
	return d.own.with(ctx, cluster.Name, phase)
}

// of returns the instance of what a logical cluster has; it may have to be filled.
func (d *dynamic) of(cluster lc.Name, now stamp) *instanceOf {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := &instanceOf{stamp: now, used: time.Now()}
	if last, ok := d.instances[cluster]; ok {
		if last.stamp == now && (last.until.IsZero() || i.used.Before(last.until)) {
			last.used = i.used
			return last
		}
		i.bytes, i.parts, last.bytes, last.parts = last.bytes, last.parts, 0, nil
	}
	d.instances[cluster] = i
	if !d.sweeps {
		d.sweeps = true
		time.AfterFunc(idleFor, d.sweep)
	}
	return i
}

// dropOldest forgets the instance whose last request is longest ago. The lock is held.
func (d *dynamic) dropOldest() {
	var oldest lc.Name
	for name, i := range d.instances {
		if oldest == "" || i.used.Before(d.instances[oldest].used) {
			oldest = name
		}
	}
	d.count(d.instances[oldest], made{})
	delete(d.instances, oldest)
}

// count makes an instance count for what is made, and no longer for what it had. The lock is held.
func (d *dynamic) count(i *instanceOf, m made) {
	for _, p := range m.parts {
		if of, ok := d.parts[p.content]; ok {
			of.users++
		} else {
			d.parts[p.content] = &shared{p, 1}
			d.bytes += p.bytes
		}
	}
	for _, p := range i.parts {
		if of := d.parts[p.content]; of.users > 1 {
			of.users--
		} else {
			delete(d.parts, p.content)
			d.bytes -= of.bytes
		}
	}
	d.bytes += m.bytes - i.bytes
	i.bytes, i.parts = m.bytes, m.parts
}

// kept returns what was made of a content, nil if no instance has that.
func (d *dynamic) kept(content string) any {
	d.mu.Lock()
	defer d.mu.Unlock()
	if of, ok := d.parts[content]; ok {
		return of.made
	}
	return nil
}

// forget forgets the instance of a logical cluster.
func (d *dynamic) forget(cluster lc.Name) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i, ok := d.instances[cluster]; ok {
		d.count(i, made{})
		delete(d.instances, cluster)
	}
}

// sweep forgets the instances that are idle, and comes again as long as there are others.
func (d *dynamic) sweep() {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.instances, func(_ lc.Name, i *instanceOf) bool {
		if time.Since(i.used) < idleFor {
			return false
		}
		d.count(i, made{})
		return true
	})
	if d.sweeps = len(d.instances) > 0; d.sweeps {
		time.AfterFunc(idleFor, d.sweep)
	}
}

// fill makes the plugin. What the logical cluster has may be newer than the stamp by now: the next request makes it again.
func (d *dynamic) fill(i *instanceOf, cluster logicalcluster.Cluster) {
	objects, _ := d.configurations.list(cluster.Name, d.resources)
	// The server survives a panic of one request, and once.Do does not come here again: what stays then must not be an
	// instance that has no say.
	i.err = fmt.Errorf("set up %s of logical cluster %q: it panicked", d.name, cluster.Name)
	ended := false
	defer func() {
		if !ended {
			d.mu.Lock()
			defer d.mu.Unlock()
			i.until = time.Now().Add(tryAgain)
		}
	}()
	m, err := d.make(cluster, objects, d.kept)
	ended = true
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		i.err = fmt.Errorf("set up %s of logical cluster %q: %w", d.name, cluster.Name, err)
	} else {
		i.plugin, i.err = m.plugin, nil
	}
	if d.instances[cluster.Name] == i { // or it is used for this one request
		d.count(i, m)
	}
	for len(d.instances) > 1 && d.bytes > d.most {
		d.dropOldest()
	}
	if many := tooMany(""); !m.whole && !errors.As(err, &many) {
		i.until = time.Now().Add(tryAgain)
	}
}

// tooMany is the error of a logical cluster that has more configurations than it may: only a change of them mends it.
type tooMany string

func (e tooMany) Error() string { return string(e) }

// tokenReviews have tokens of people in them, who are the same in all workspaces: no webhook of one may see them.
var tokenReviews = schema.GroupResource{Group: "authentication.k8s.io", Resource: "tokenreviews"}

// isSystemState says whether a request is about what the server alone writes, and people may not: who cannot write it has no
// say in it either, or he could keep his workspace from being placed, or deleted, for ever.
func isSystemState(a admission.Attributes) bool {
	switch a.GetResource().Group {
	case placementv1alpha1.GroupVersion.Group:
		return a.GetResource().Resource == "placements" || a.GetSubresource() != ""
	case corev1alpha1.GroupVersion.Group:
		return true
	case tenancyv1alpha1.GroupVersion.Group, workloadv1alpha1.GroupVersion.Group:
		return a.GetSubresource() != ""
	}
	return false
}

// isAdministration says whether an administrator of the server, or one of its own controllers, writes an object of Atoll's own
// kinds: which workspaces there are, what physical clusters they may use, where things run. Nobody in the workspace may make
// something else of what he was told to write; to refuse it is not that, and stays possible.
func isAdministration(a admission.Attributes) bool {
	switch a.GetResource().Group {
	case tenancyv1alpha1.GroupVersion.Group, corev1alpha1.GroupVersion.Group, workloadv1alpha1.GroupVersion.Group, placementv1alpha1.GroupVersion.Group:
		return slices.Contains(a.GetUserInfo().GetGroups(), user.SystemPrivilegedGroup)
	}
	return false
}

// boundTo asks an authorizer about one logical cluster: upstream's expressions ask with contexts that name none.
type boundTo struct {
	cluster logicalcluster.Cluster
	next    authorizer.Authorizer
}

// Authorize implements authorizer.Authorizer.
func (b boundTo) Authorize(ctx context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	return b.next.Authorize(logicalcluster.WithCluster(ctx, b.cluster), attrs)
}

// inTime are Objects that answer soon or not at all, for reads whose contexts do not end.
type inTime struct{ Objects }

// Get implements Objects.
func (o inTime) Get(ctx context.Context, resource schema.GroupResource, namespace, name string, cached bool) (runtime.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return o.Objects.Get(ctx, resource, namespace, name, cached)
}

// List implements Objects.
func (o inTime) List(ctx context.Context, resource schema.GroupResource, namespace string, cached bool) ([]runtime.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return o.Objects.List(ctx, resource, namespace, cached)
}

// scopeOf is a scope that outlives a request.
func scopeOf(cluster logicalcluster.Cluster, objects Objects) scope {
	return scope{ctx: logicalcluster.WithCluster(context.Background(), cluster), objects: inTime{objects}}
}
