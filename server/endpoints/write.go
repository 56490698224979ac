package endpoints

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"atoll.dev/atoll/client"
)

// changes says whether slices may be others by what was changed of a Service. The annotations are those beside which trafficDistribution gives no hints.
func changes(before, now *corev1.Service) bool {
	for _, hints := range []string{corev1.AnnotationTopologyMode, corev1.DeprecatedAnnotationTopologyAwareHints} {
		if before.Annotations[hints] != now.Annotations[hints] {
			return true
		}
	}
	return !equality.Semantic.DeepEqual(before.Spec, now.Spec) || !maps.Equal(before.Labels, now.Labels) || before.UID != now.UID ||
		(before.DeletionTimestamp == nil) != (now.DeletionTimestamp == nil)
}

// writer writes slices, and Endpoints.
type writer interface {
	put(ctx context.Context, endpoints *Endpoints) error // which are new without a resourceVersion
	drop(ctx context.Context, endpoints *Endpoints) error
	create(ctx context.Context, slice *discoveryv1.EndpointSlice) error
	update(ctx context.Context, slice *discoveryv1.EndpointSlice) error
	remove(ctx context.Context, slice *discoveryv1.EndpointSlice) error
}

// carryOut writes a plan: first what takes addresses away. What is refused keeps nothing else from being written, unless nothing is taken now: each of hundreds would wait for that, and a worker with them.
func (p *plan) carryOut(ctx context.Context, w writer) error {
	var all []error
	wrote := false
	for _, write := range p.writes() {
		err := write(ctx, w)
		late := err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded)
		if late && wrote && sortOut(err).ours != nil {
			err = errUnfinished
		}
		if all = append(all, err); late || takesNothing(err) {
			break
		}
		wrote = wrote || err == nil
	}
	return errors.Join(all...)
}

// errUnfinished says that some of a plan is written, and that there was no time for the rest, as where a webhook answers late: it goes on with that, and nobody has anything to mend.
var errUnfinished = errors.New("there was no time to write all of it")

// writes are those of a plan, in their order.
func (p *plan) writes() (all []func(context.Context, writer) error) {
	for _, s := range p.update {
		all = append(all, func(ctx context.Context, w writer) error {
			err := w.update(ctx, s)
			if client.Refuses(err) {
				if less := without(p.before[s.Name], s); less != nil {
					err = errors.Join(err, w.update(ctx, less))
				}
			}
			return err
		})
	}
	if !p.older.empty() {
		all = append(all, p.older.carryOut)
	}
	for _, s := range p.remove {
		all = append(all, func(ctx context.Context, w writer) error { return w.remove(ctx, s) })
	}
	for _, s := range p.create {
		all = append(all, func(ctx context.Context, w writer) error { return w.create(ctx, s) })
	}
	return all
}

// takesNothing says whether what comes next would wait for the same as what failed: for a webhook that cannot be called, for a turn at webhooks, or for whatever else lets nobody write for a moment.
func takesNothing(err error) bool {
	return slices.ContainsFunc(client.Each(err), func(one error) bool {
		return client.FailsToCall(one) || apierrors.IsTooManyRequests(one) && !client.Refuses(one)
	})
}

func (o *older) carryOut(ctx context.Context, w writer) error {
	switch {
	case o.remove:
		return w.drop(ctx, o.is)
	case o.next == nil:
		return nil
	}
	err := w.put(ctx, o.next)
	if client.Refuses(err) {
		if less := o.less(); less != nil {
			err = errors.Join(err, w.put(ctx, less))
		}
	}
	return err
}

// without is a slice as it is, without the endpoints that are to go, and with the conditions of those that are to stay; nil if that is no change. It is no larger than what there is.
func without(is, next *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	type name struct {
		address string
		pod     types.UID
	}
	of := func(e *discoveryv1.Endpoint) (n name) {
		if len(e.Addresses) > 0 {
			n.address = e.Addresses[0]
		}
		if e.TargetRef != nil {
			n.pod = e.TargetRef.UID
		}
		return n
	}
	stay := map[name]discoveryv1.EndpointConditions{}
	if slices.EqualFunc(is.Ports, next.Ports, func(a, b discoveryv1.EndpointPort) bool { return equality.Semantic.DeepEqual(a, b) }) {
		for i := range next.Endpoints {
			stay[of(&next.Endpoints[i])] = next.Endpoints[i].Conditions
		}
	}
	less := is.DeepCopy()
	less.Endpoints = []discoveryv1.Endpoint{}
	for _, e := range is.Endpoints {
		if conditions, ok := stay[of(&e)]; ok {
			e.Conditions = conditions
			less.Endpoints = append(less.Endpoints, e)
		}
	}
	if equality.Semantic.DeepEqual(is.Endpoints, less.Endpoints) {
		return nil
	}
	return less
}

// outcome is what failed of a plan.
type outcome struct {
	// theirs is for the people of the workspace to mend, or is not taken for a moment, as wait says.
	theirs error
	wait   time.Duration
	// ours is what else failed: a conflict only if nothing worse did.
	ours error
	// unfinished says that there was no time for all of it.
	unfinished bool
}

// sortOut says for whom each is that failed. That a namespace is deleted is for nobody.
func sortOut(err error) (o outcome) {
	var theirs, ours, conflicts, late []error
	uncalled := false
	for _, one := range client.Each(err) {
		switch {
		case apierrors.HasStatusCause(one, corev1.NamespaceTerminatingCause):
		case errors.Is(one, errUnfinished):
			o.unfinished = true
		case client.Refuses(one):
			theirs = append(theirs, one)
		case client.FailsToCall(one):
			theirs, uncalled = append(theirs, one), true
		case apierrors.IsTooManyRequests(one):
			wait, _ := client.Held(one)
			theirs, o.wait = append(theirs, one), max(o.wait, wait)
		case apierrors.IsConflict(one):
			conflicts = append(conflicts, one)
		case errors.Is(one, context.DeadlineExceeded):
			late = append(late, one)
		default:
			ours = append(ours, one)
		}
	}
	if !uncalled { // else the time went by with them
		ours = append(ours, late...)
	}
	if len(ours) == 0 {
		ours = conflicts
	}
	o.theirs, o.ours = errors.Join(theirs...), errors.Join(ours...)
	return o
}

// inShort is an error with as many words as a line of a log may have.
type inShort struct{ error }

func (e inShort) Error() string { return short(e.error.Error(), mostSaid) }

func (e inShort) Unwrap() error { return e.error }

// requests is the writer that asks the server.
type requests struct {
	discovery, core rest.Interface
	own             *own
	of              client.Key // whose slices and Endpoints they are
}

const (
	resource = "endpointslices"
	// ofEndpoints is how Endpoints are called beside the slices of their Service, which have names.
	ofEndpoints = ""
)

// MaxRetries(0): it would sleep here, in a worker that all workspaces share.

func (r requests) create(ctx context.Context, slice *discoveryv1.EndpointSlice) error {
	now := &discoveryv1.EndpointSlice{}
	err := r.discovery.Post().Namespace(slice.Namespace).Resource(resource).MaxRetries(0).Body(slice).Do(ctx).Into(now)
	return r.wrote(now.Name, now.ResourceVersion, err, "create an EndpointSlice")
}

func (r requests) update(ctx context.Context, slice *discoveryv1.EndpointSlice) error {
	now := &discoveryv1.EndpointSlice{}
	err := r.discovery.Put().Namespace(slice.Namespace).Resource(resource).Name(slice.Name).MaxRetries(0).Body(slice).Do(ctx).Into(now)
	return r.wrote(slice.Name, now.ResourceVersion, err, "update EndpointSlice "+slice.Name)
}

func (r requests) remove(ctx context.Context, slice *discoveryv1.EndpointSlice) error {
	return r.removed(ctx, r.discovery.Delete().Resource(resource), slice, slice.Name, "delete EndpointSlice "+slice.Name)
}

func (r requests) put(ctx context.Context, e *Endpoints) error {
	now, ask := &Endpoints{}, r.core.Post()
	if e.ResourceVersion != "" {
		ask = r.core.Put().Name(e.Name)
	}
	err := ask.Namespace(e.Namespace).Resource("endpoints").MaxRetries(0).Body(e).Do(ctx).Into(now)
	return r.wrote(ofEndpoints, now.ResourceVersion, err, "write its Endpoints")
}

func (r requests) drop(ctx context.Context, e *Endpoints) error {
	return r.removed(ctx, r.core.Delete().Resource("endpoints"), e, ofEndpoints, "delete its Endpoints")
}

// wrote remembers which version came of a write, or says what failed.
func (r requests) wrote(name, version string, err error, what string) error {
	if !client.Denies(err) && (apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err)) { // somebody was faster: it is looked at again, as after any conflict
		err = apierrors.NewConflict(discoveryv1.Resource(resource), name, err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	r.own.wrote(r.of, name, version)
	return nil
}

func (r requests) removed(ctx context.Context, ask *rest.Request, o metav1.Object, name, what string) error {
	uid, version := o.GetUID(), o.GetResourceVersion()
	err := ask.Namespace(o.GetNamespace()).Name(o.GetName()).MaxRetries(0).Body(&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}}).Do(ctx).Error()
	if client.Denies(err) || err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s: %w", what, err)
	}
	r.own.removed(r.of, name)
	return nil
}
