package syncer

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

// deed is what is to be done downstream for one object.
type deed int

// In the order in which a Difference names them.
const (
	deleteIt deed = iota
	createIt
	changeIt
	orphanIt // left there, and reported
	leaveIt  // as it should be
)

var deedNames = map[deed]string{deleteIt: "delete", createIt: "create", changeIt: "change", orphanIt: "orphan"}

// toApply says what makes live, nil if there is none, be what was rendered.
func toApply(rendered, live *unstructured.Unstructured) deed {
	switch {
	case live == nil:
		return createIt
	case !upToDate(rendered, live):
		return changeIt
	}
	return leaveIt
}

// toBury says what a tombstone demands where live, nil if there is none, is downstream.
func toBury(leaf, live *unstructured.Unstructured, target types.UID) deed {
	if live == nil || !owned(live, target) || !sameRoot(leaf, live) {
		return leaveIt
	}
	return deleteIt
}

// planned is an object of which something is to be made.
type planned struct {
	deed deed
	key  key
}

// difference says what the workers would do if they were let, as far as both sides show it: whose names somebody else
// has is found out only by trying. It is nil before both sides are known.
func (s *Syncer) difference() (*workloadv1alpha1.Difference, error) {
	twin := s.twinObject()
	if twin == nil || !s.physical.informers[networkPoliciesGVR].HasSynced() {
		return nil, nil
	}
	var plan []planned
	for gvr := range s.mirror.informers {
		mirror, physical := s.mirror.informers[gvr], s.physical.informers[gvr]
		if s.isDenied(gvr) || s.isRefused(gvr, s.unlisted(gvr)) {
			continue // not carried
		}
		if !mirror.HasSynced() || !physical.HasSynced() {
			return nil, nil
		}
		keys := map[string]struct{}{}
		for _, name := range slices.Concat(mirror.ListKeys(), physical.ListKeys()) {
			keys[name] = struct{}{}
		}
		for name := range keys {
			namespace, name, err := cache.SplitMetaNamespaceKey(name)
			if err != nil {
				return nil, fmt.Errorf("read a key of %s: %w", gvr, err)
			}
			k := key{gvr, namespace, name}
			d, err := s.plan(k, twin)
			if err != nil {
				return nil, err
			}
			plan = append(plan, planned{d, k})
		}
	}
	return summarise(append(plan, s.planPods()...)), nil
}

// planPods is what would be done for pods that are bound; nothing where pods are not seen.
func (s *Syncer) planPods() (plan []planned) {
	if !s.shownPods.HasSynced() || !s.pods.HasSynced() || !s.sees(podsGVR) {
		return nil
	}
	deeds := map[showing]deed{runIt: createIt, endIt: deleteIt, relabelIt: changeIt}
	for _, name := range s.shownPods.ListKeys() {
		namespace, name, _ := cache.SplitMetaNamespaceKey(name)
		k := key{podsGVR, namespace, name}
		shown := get(s.shownPods, k)
		if shown == nil || !kinds.IsBound(shown) {
			continue
		}
		if d, ok := deeds[s.deedFor(shown, get(s.pods, k))]; ok {
			plan = append(plan, planned{d, k})
		}
	}
	for _, name := range s.pods.ListKeys() {
		namespace, name, _ := cache.SplitMetaNamespaceKey(name)
		if k := (key{podsGVR, namespace, name}); s.isOrphanPod(get(s.shownPods, k), get(s.pods, k)) {
			plan = append(plan, planned{orphanIt, k})
		}
	}
	return plan
}

// plan says what reconcile would do for an object. Nothing is to be done for what is refused.
func (s *Syncer) plan(k key, twin *workloadv1alpha1.SyncTarget) (deed, error) {
	leaf, down := get(s.mirror.informers[k.resource], k), get(s.physical.informers[k.resource], k)
	target := types.UID(s.config.UID)
	switch {
	case s.isOrphan(k, leaf, down):
		return orphanIt, nil
	case leaf == nil:
		return leaveIt, nil
	case leaf.GetDeletionTimestamp() != nil && down != nil && down.GetDeletionTimestamp() != nil:
		return leaveIt, nil
	case leaf.GetDeletionTimestamp() != nil:
		return toBury(leaf, down, target), nil
	case down != nil && down.GetLabels()[workloadv1alpha1.WorkspaceLabel] != leaf.GetLabels()[workloadv1alpha1.WorkspaceLabel]:
		return leaveIt, nil // NameConflict
	case k.resource != namespacesGVR:
		if s.isReserved(k) {
			return leaveIt, nil // NameConflict
		}
		if gone, err := isGone(k, leaf, down); err != nil || gone {
			return leaveIt, err
		}
		want, err := s.rendered(k, leaf, down)
		return toApply(want, down), err
	case reserved(k.name):
		return leaveIt, nil // NameConflict
	}
	want, err := renderNamespace(leaf, target, twin.Spec.PodSecurity)
	if err != nil {
		return leaveIt, err
	}
	write, remove, err := s.floorOf(k.name, leaf.GetLabels()[workloadv1alpha1.WorkspaceLabel])
	if err != nil {
		return leaveIt, err
	}
	d := toApply(want, down)
	if d == leaveIt && len(write)+len(remove) > 0 {
		d = changeIt
	}
	return d, nil
}

// summarise counts a plan and names the first few objects of each kind of deed. It says the same for the same plan in any order.
func summarise(plan []planned) *workloadv1alpha1.Difference {
	slices.SortFunc(plan, func(a, b planned) int {
		return cmp.Or(cmp.Compare(a.deed, b.deed), cmp.Compare(a.key.String(), b.key.String()))
	})
	d := &workloadv1alpha1.Difference{}
	counts := map[deed]*int32{deleteIt: &d.Delete, createIt: &d.Create, changeIt: &d.Change, orphanIt: &d.Orphans}
	for _, p := range plan {
		n := counts[p.deed]
		if n == nil {
			continue
		}
		if *n++; *n <= named {
			d.Sample = append(d.Sample, deedNames[p.deed]+" "+p.key.String())
		}
	}
	return d
}
