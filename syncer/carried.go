package syncer

import (
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

// Kinds are added from version to version, and hub, syncer and the rights that a physical cluster gives it do not change at one
// time. So a syncer says which kinds it carries there, and nothing else is asked of it. What it finds, for a kind that not all
// syncers carry:
//
//	the hub does not know the kind         it has no leaves of it: not waited for, not carried
//	the physical cluster refuses a list    not carried, and no trouble, unless there are leaves of it
//	both can be watched                    carried
//
// Pods are carried the other way, so that it is known whether what is shown of them is how they are.

func isCarriedByAll(gvr schema.GroupVersionResource) bool {
	kind, isKind := kinds.ByResource(gvr.GroupResource())
	return !isKind || !kind.HasLeaves() || slices.Contains(workloadv1alpha1.CarriedByAll, gvr.GroupResource().String())
}

// denied records that the hub does not let us list a resource that an earlier version does not know.
func (s *Syncer) denied(gvr schema.GroupVersionResource) func(error) {
	return func(err error) {
		if isDenial(err) && !isCarriedByAll(gvr) {
			s.state.mu.Lock()
			defer s.state.mu.Unlock()
			s.state.denied[gvr] = true
		}
	}
}

// isDenied says that the hub does not let us list a resource, and never has.
func (s *Syncer) isDenied(gvr schema.GroupVersionResource) bool {
	s.state.mu.Lock()
	denied := s.state.denied[gvr]
	s.state.mu.Unlock()
	return denied && !s.mirror.informers[gvr].HasSynced()
}

// isRefused says that a list or watch of the physical cluster failed with err since it does not serve the resource, or does not let
// us see it, and that nothing is asked of us there. NetworkPolicies are asked of us in every namespace.
func (s *Syncer) isRefused(gvr schema.GroupVersionResource, err error) bool {
	return isDenial(err) && gvr != networkPoliciesGVR && !isCarriedByAll(gvr) && len(s.mirror.informers[gvr].ListKeys()) == 0
}

func isDenial(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err)
}

// carried returns of each resource whether it is carried; nothing of one that is not known yet, or lacks its watch for a while.
func (s *Syncer) carried() map[string]bool {
	carried := map[string]bool{}
	for gvr := range s.resources {
		s.state.mu.Lock()
		watched, err := s.state.watched[gvr], s.state.unwatched[gvr].err
		s.state.mu.Unlock()
		resource := gvr.GroupResource().String()
		switch {
		case isCarriedByAll(gvr):
			carried[resource] = true
		case s.isRefused(gvr, err), s.isDenied(gvr):
			carried[resource] = false
		case watched && err == nil:
			carried[resource] = true
		}
	}
	switch pods := podsGVR.GroupResource().String(); {
	case s.sees(podsGVR):
		carried[pods], carried[workloadv1alpha1.CarriedBindings] = true, true
	case s.hides(podsGVR):
		carried[pods], carried[workloadv1alpha1.CarriedBindings] = false, false
	}
	return carried
}

// carriedResources returns what is carried, sorted, given what was told before: that holds for what is not known.
func carriedResources(before []string, carried map[string]bool) (resources []string) {
	all := []string{podsGVR.GroupResource().String()}
	for _, k := range kinds.All {
		all = append(all, k.Carried())
	}
	for _, resource := range all {
		is, known := carried[resource]
		if is || !known && slices.Contains(before, resource) {
			resources = append(resources, resource)
		}
	}
	slices.Sort(resources)
	return resources
}
