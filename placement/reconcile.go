package placement

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/fleet"
	"atoll.dev/atoll/internal/kinds"
)

// lookAgain is how long to wait where an uncached read shows what informers do not show yet. Their event asks
// for the same sooner; this is for an event that was before.
const lookAgain = time.Second

// quietRetry is how long to wait after somebody else wrote first.
const quietRetry = 50 * time.Millisecond

// root is an object with a wish of its own.
type root struct {
	object      placementv1alpha1.PlacedObject
	source      string
	annotations map[string]string
}

// world is what reconciling reads and writes. Keys of namespaces are client.Key{Cluster, Name}.
type world interface {
	// What informers show. What they return is not changed.

	LogicalCluster(logicalcluster.Name) (*corev1alpha1.LogicalCluster, bool)
	Namespace(client.Key) (*corev1.Namespace, bool)
	// Roots returns the resources, "<resource>.<group>", of what a namespace holds to run that goes where the namespace goes, and what has
	// a wish of its own.
	Roots(namespace client.Key) (follows []string, own []root)
	// Runs says whether an object has a leaf in one of the mirrors.
	Runs(namespace client.Key, object placementv1alpha1.PlacedObject, mirrors []string) bool
	Placements(namespace client.Key) []*placementv1alpha1.Placement
	Policies(logicalcluster.Name) []*placementv1alpha1.PlacementPolicy
	SyncTargets(logicalcluster.Name) []*workloadv1alpha1.SyncTarget

	// Uncached reads.

	// ReadWishes returns a namespace and its LogicalCluster; an error that IsNotFound if either is gone.
	ReadWishes(ctx context.Context, namespace client.Key) (*corev1.Namespace, *corev1alpha1.LogicalCluster, error)
	// ReadHolds says whether a namespace holds anything to run, and whether some of it has no wish of its own.
	ReadHolds(ctx context.Context, namespace client.Key) (holds, follows bool, err error)
	// ReadOwnWish returns the annotations of an object; none if it is gone.
	ReadOwnWish(ctx context.Context, namespace client.Key, object placementv1alpha1.PlacedObject) (map[string]string, error)
	// ReadSyncTarget says whether the SyncTarget with this UID is there.
	ReadSyncTarget(ctx context.Context, key client.Key, uid types.UID) (bool, error)

	// Writes, in one logical cluster. They bring the Placement up to what was stored.

	// Create and Update write the spec and the status, and raise the generation if the spec changes.
	Create(context.Context, logicalcluster.Name, *placementv1alpha1.Placement) error
	Update(context.Context, logicalcluster.Name, *placementv1alpha1.Placement) error
	// Delete deletes this very Placement (its UID).
	Delete(context.Context, logicalcluster.Name, *placementv1alpha1.Placement) error
}

// reconciler makes the Placements of a namespace what they should be.
type reconciler struct {
	world world
	usage *usage
	clock clock.PassiveClock
}

// wanted is a Placement that should exist.
type wanted struct {
	name   string
	object *placementv1alpha1.PlacedObject
	levels []Level
	// needs are the resources of what goes there.
	needs []string
}

// scene is what all decisions of one namespace share.
type scene struct {
	candidates []Candidate
	allow      []placementv1alpha1.ClusterSelection
}

// reconcile is a queue.Reconcile; key names a namespace.
func (r *reconciler) reconcile(ctx context.Context, key client.Key) (again time.Duration, err error) {
	existing := r.world.Placements(key)
	lc, ok := r.world.LogicalCluster(key.Cluster)
	if !ok || !fleet.IsWorkspace(lc) {
		return 0, nil // of a workspace that is not seen yet, the event brings the namespace again
	}
	if isAttended(lc) {
		return 0, nil // as does its end
	}
	ns, hasNamespace := r.world.Namespace(key)
	if isTerminating(lc) || hasNamespace && ns.DeletionTimestamp != nil {
		return r.removeAll(ctx, key, existing)
	}
	follows, own := r.world.Roots(key)
	holds := len(follows) > 0 || len(own) > 0
	switch {
	case !holds && len(existing) == 0:
		return 0, nil
	case !holds:
		if holds, _, err := r.world.ReadHolds(ctx, key); err != nil || holds {
			return lookAgain, err
		}
		return r.removeAll(ctx, key, existing)
	case len(follows) > 0 && !slices.ContainsFunc(existing, func(p *placementv1alpha1.Placement) bool { return p.Name == key.Name }):
		// The namespace's or the workspace's wish may be younger than what its informer shows, and a first
		// placement elsewhere would be followed by a move.
		if ns, lc, err = r.world.ReadWishes(ctx, key); apierrors.IsNotFound(err) {
			return 0, nil
		} else if err != nil {
			return 0, err
		}
	case !hasNamespace:
		return 0, nil // its event brings it again
	}

	chain, complete := fleet.Lineage(lc, r.world.LogicalCluster)
	if !complete {
		klog.FromContext(ctx).V(4).Info("Wait for the logical clusters above", "namespace", key)
		return 0, nil
	}
	s, fallback := r.look(lc, chain)
	if settled, err := r.goneForSure(ctx, s, existing); err != nil || !settled {
		return lookAgain, err
	}

	levels := []Level{
		{Source: "namespace " + quote(key.Name), Annotations: ns.Annotations},
		{Source: "this workspace's LogicalCluster " + quote(corev1alpha1.LogicalClusterName), Annotations: lc.Annotations},
	}
	var wants []wanted
	if len(follows) > 0 { // else nobody would go there, and it would hold a cluster for nothing
		wants = append(wants, wanted{name: key.Name, levels: append(levels, fallback...), needs: follows})
	}
	for _, o := range own {
		wants = append(wants, wanted{name: placementv1alpha1.NameFor(key.Name, &o.object), object: &o.object, levels: []Level{{Source: o.source, Annotations: o.annotations}}, needs: []string{resourceOf(o.object)}})
	}
	return r.carryOut(ctx, key, s, wants, existing)
}

// resourceOf returns what a SyncTarget calls the resource of an object.
func resourceOf(o placementv1alpha1.PlacedObject) string {
	return kinds.CarriedAs(schema.GroupResource{Group: o.Group, Resource: o.Resource})
}

// look gathers what can be used, and the default of the policies above as the last level, if there is one.
func (r *reconciler) look(lc *corev1alpha1.LogicalCluster, chain []logicalcluster.Name) (scene, []Level) {
	targets, policies := held(r.world, chain)
	s := scene{candidates: candidatesOf(lc, targets)}
	var def *placementv1alpha1.PlacementDefault
	if s.allow, def = policiesOf(policies); def == nil {
		return s, nil
	}
	return s, []Level{defaultLevel(def)}
}

// held returns the SyncTargets and the PlacementPolicies that logical clusters hold, of each by itself.
func held(world world, chain []logicalcluster.Name) ([][]*workloadv1alpha1.SyncTarget, [][]*placementv1alpha1.PlacementPolicy) {
	targets := make([][]*workloadv1alpha1.SyncTarget, len(chain))
	policies := make([][]*placementv1alpha1.PlacementPolicy, len(chain))
	for i, cluster := range chain {
		targets[i], policies[i] = world.SyncTargets(cluster), world.Policies(cluster)
	}
	return targets, policies
}

// goneForSure says whether every assigned SyncTarget that the informer does not show is gone in the store as well. One
// that is shown and not a candidate was taken from this workspace on purpose.
func (r *reconciler) goneForSure(ctx context.Context, s scene, existing []*placementv1alpha1.Placement) (bool, error) {
	checked := map[types.UID]bool{}
	for _, c := range s.candidates {
		checked[c.UID] = true
	}
	for _, p := range existing {
		for _, c := range p.Spec.Clusters {
			if checked[c.UID] {
				continue
			}
			checked[c.UID] = true
			holder := logicalcluster.Name(c.Workspace)
			if slices.ContainsFunc(r.world.SyncTargets(holder), func(t *workloadv1alpha1.SyncTarget) bool { return t.UID == c.UID }) {
				continue
			}
			exists, err := r.world.ReadSyncTarget(ctx, client.Key{Cluster: holder, Name: c.Name}, c.UID)
			if err != nil || exists {
				return false, err
			}
		}
	}
	return true, nil
}

// carryOut decides and writes every wanted Placement, and deletes the others.
func (r *reconciler) carryOut(ctx context.Context, key client.Key, s scene, wants []wanted, existing []*placementv1alpha1.Placement) (again time.Duration, err error) {
	byName := make(map[string]*placementv1alpha1.Placement, len(existing))
	for _, p := range existing {
		byName[p.Name] = p
	}
	namespace := byName[key.Name]
	var errs []error
	for _, w := range wants {
		old := byName[w.name]
		delete(byName, w.name)
		if old != nil && old.DeletionTimestamp != nil {
			continue // its end brings the namespace again
		}
		now := standing(r.world, key, s, w.object, old, namespace)
		if old == nil && w.object == nil {
			now = left(wants, existing)
		}
		if err := r.place(ctx, key, s, w, old, now); err != nil {
			errs = append(errs, fmt.Errorf("place %s in namespace %s: %w", w.name, key, err))
		}
	}
	for _, name := range sortedKeys(byName) {
		p := byName[name]
		if p.Spec.Object != nil {
			if wish, err := r.world.ReadOwnWish(ctx, key, *p.Spec.Object); err != nil {
				errs = append(errs, err)
				continue
			} else if placementv1alpha1.HasWish(wish) && name == placementv1alpha1.NameFor(key.Name, p.Spec.Object) {
				again = lookAgain
				continue
			}
		} else if len(errs) > 0 {
			continue // what has no Placement of its own yet stands where this one says
		} else if _, follows, err := r.world.ReadHolds(ctx, key); err != nil || follows {
			again, errs = lookAgain, append(errs, err)
			continue
		}
		if err := r.remove(ctx, key.Cluster, p); err != nil {
			errs = append(errs, err)
		}
	}
	return settle(again, errs)
}

// settle sorts errors out: where somebody else wrote first, the newer state is not worth a word.
func settle(again time.Duration, errs []error) (time.Duration, error) {
	var loud []error
	for _, err := range errs {
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || errors.Is(err, errBehind) {
			again = quietRetry
		} else {
			loud = append(loud, err)
		}
	}
	return again, errors.Join(loud...)
}

// errBehind says that an informer shows an earlier wish than the one that is stored.
var errBehind = errors.New("the informers are behind")

// leaves says whether one of the clusters is not among those after it.
func leaves(before, after []placementv1alpha1.PlacedCluster) bool {
	return slices.ContainsFunc(before, func(b placementv1alpha1.PlacedCluster) bool {
		return !slices.ContainsFunc(after, func(a placementv1alpha1.PlacedCluster) bool { return a.UID == b.UID })
	})
}

// wishesAreCurrent returns errBehind unless the wishes that a decision rests on are those that are stored. An informer that
// begins with an older view would else move what it has just moved back to where it was.
func (r *reconciler) wishesAreCurrent(ctx context.Context, key client.Key, w wanted) error {
	if w.object != nil {
		own, err := r.world.ReadOwnWish(ctx, key, *w.object)
		if err == nil && !sameWish(own, w.levels[0].Annotations) {
			err = errBehind
		}
		return err
	}
	ns, lc, err := r.world.ReadWishes(ctx, key)
	if apierrors.IsNotFound(err) {
		return errBehind
	}
	if err != nil {
		return err
	}
	if !sameWish(ns.Annotations, w.levels[0].Annotations) || !sameWish(lc.Annotations, w.levels[1].Annotations) {
		return errBehind
	}
	return nil
}

// standing returns the spec that holds now for what is to be placed: of its own Placement or, until an object has one, of
// its namespace's, if the object runs already. What never ran stands nowhere.
func standing(world world, key client.Key, s scene, object *placementv1alpha1.PlacedObject, own, namespace *placementv1alpha1.Placement) placementv1alpha1.PlacementSpec {
	if own != nil {
		return own.Spec
	}
	if object == nil || namespace == nil {
		return placementv1alpha1.PlacementSpec{}
	}
	var mirrors []string
	for _, c := range s.candidates {
		if c.Mirror != "" {
			mirrors = append(mirrors, c.Mirror)
		}
	}
	if !world.Runs(key, *object, mirrors) {
		return placementv1alpha1.PlacementSpec{}
	}
	return namespace.Spec
}

// left returns the spec that holds for what gave its wish up in a namespace without a Placement: it is of the namespace
// from now on, and stays where it is as far as the namespace's wish has it so. Of several the first by name counts.
func left(wants []wanted, existing []*placementv1alpha1.Placement) placementv1alpha1.PlacementSpec {
	for _, p := range slices.SortedFunc(slices.Values(existing), func(a, b *placementv1alpha1.Placement) int { return strings.Compare(a.Name, b.Name) }) {
		if !slices.ContainsFunc(wants, func(w wanted) bool { return w.name == p.Name }) {
			return p.Spec
		}
	}
	return placementv1alpha1.PlacementSpec{}
}

// running returns the names of the clusters that run something of a Placement.
func running(p *placementv1alpha1.Placement) (names []string) {
	for _, c := range p.Status.Clusters {
		names = append(names, c.Name)
	}
	return names
}

// place decides for one Placement and writes what changed; old is nil if there is none yet, and now is what holds.
func (r *reconciler) place(ctx context.Context, key client.Key, s scene, w wanted, old *placementv1alpha1.Placement, now placementv1alpha1.PlacementSpec) error {
	p := &placementv1alpha1.Placement{ObjectMeta: metav1.ObjectMeta{Name: w.name}}
	if old != nil {
		p = old.DeepCopy()
	}
	placement := client.Key{Cluster: key.Cluster, Name: w.name}
	request := Request{Levels: w.levels, Allow: s.allow, Split: now.Split, Running: running(p), Needs: w.needs}
	var d Decision
	r.usage.decide(placement, func(count func(types.UID) int) []types.UID {
		for i := range s.candidates {
			s.candidates[i].Placements = count(s.candidates[i].UID)
		}
		d = Decide(request, s.candidates, now.Clusters)
		return uidsOf(d.Clusters)
	})

	if old != nil && leaves(old.Spec.Clusters, d.Clusters) {
		if err := r.wishesAreCurrent(ctx, key, w); err != nil {
			r.usage.release(placement)
			return err
		}
	}
	if !settleOn(p, key.Name, w.object, d, r.clock.Now()) {
		return nil
	}
	write := r.world.Update
	if old == nil {
		write = r.world.Create
	}
	if err := write(ctx, key.Cluster, p); err != nil {
		r.usage.release(placement)
		return err
	}
	klog.FromContext(ctx).V(2).Info("Decided", "placement", placement, "reason", d.Reason, "clusters", names(d.Clusters), "split", d.Split)
	return nil
}

// settleOn makes a Placement, which is new or as it was read, say a decision, and says whether that changed it. The
// condition is of the generation that the server will give it: the next if the spec changes.
func settleOn(p *placementv1alpha1.Placement, namespace string, object *placementv1alpha1.PlacedObject, d Decision, now time.Time) (changed bool) {
	generation := p.Generation
	spec := placementv1alpha1.PlacementSpec{Namespace: namespace, Object: object, Split: d.Split, Clusters: d.Clusters}
	if changed = !apiequality.Semantic.DeepEqual(p.Spec, spec); changed {
		p.Spec = spec
		generation++
	}
	return meta.SetStatusCondition(&p.Status.Conditions, metav1.Condition{
		Type: placementv1alpha1.PlacementPlaced, Status: d.Status, Reason: d.Reason, Message: d.Message,
		ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(now),
	}) || changed
}

func (r *reconciler) removeAll(ctx context.Context, key client.Key, placements []*placementv1alpha1.Placement) (time.Duration, error) {
	var errs []error
	for _, p := range placements {
		if err := r.remove(ctx, key.Cluster, p); err != nil {
			errs = append(errs, err)
		}
	}
	return settle(0, errs)
}

func (r *reconciler) remove(ctx context.Context, cluster logicalcluster.Name, p *placementv1alpha1.Placement) error {
	if p.DeletionTimestamp != nil {
		return nil
	}
	if err := r.world.Delete(ctx, cluster, p); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete placement %s: %w", client.Key{Cluster: cluster, Name: p.Name}, err)
	}
	return nil
}
