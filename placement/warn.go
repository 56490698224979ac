package placement

import (
	"cmp"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/classes"
	"atoll.dev/atoll/internal/fleet"
	"atoll.dev/atoll/internal/kinds"
	"atoll.dev/atoll/internal/podsecurity"
)

var (
	namespaces      = schema.GroupResource{Resource: "namespaces"}
	policies        = schema.GroupResource{Group: placementv1alpha1.GroupVersion.Group, Resource: "placementpolicies"}
	logicalClusters = schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "logicalclusters"}
)

// Placer knows from informers alone where things run and can run, for warnings. It decides nothing and writes nothing.
type Placer struct {
	world *live
	usage *usage
}

// NewPlacer returns the Placer of a server in which no Controller runs on the same informers: a Controller is one itself. It
// adds handlers and indexes to the informers, which do not run yet.
func NewPlacer(informers *client.Informers) (*Placer, error) {
	p, err := newPlacer(&live{informers: informers}, func(client.Key) {})
	if err != nil {
		return nil, err
	}
	informers.Placements.OnEvent(p.count)
	return &p, nil
}

// newPlacer returns a Placer whose count is to be told of Placements. changed is told every namespace where an object to run
// comes, goes or wishes something else.
func newPlacer(world *live, changed func(namespace client.Key)) (Placer, error) {
	var err error
	if world.kinds, err = kindsOf(world.informers, changed); err != nil {
		return Placer{}, err
	}
	err = world.informers.Placements.AddIndex(byNamespace, func(p *placementv1alpha1.Placement) []string {
		return []string{namespaceOf(p).String()}
	})
	return Placer{world, newUsage()}, err
}

// count keeps the usage of SyncTargets.
func (p *Placer) count(e client.Event[*placementv1alpha1.Placement]) {
	now := e.Object()
	p.usage.observe(client.KeyOf(now), uidsOf(now.Spec.Clusters), !e.Deleted())
}

// WhyNowhere says why an object with these annotations, applied now, would run nowhere, or not as it wishes, and where it is
// until then; "" if all is well, as nowhere on purpose is where it takes nothing away. It reads informers only and decides nothing: it
// is for a warning to who applies it, who hears from the Placement a moment later in any case. A Namespace or a LogicalCluster is judged
// by its own wish alone: there may be nothing in it. Of a PlacementPolicy, whose default as annotations is given, it says whether that can be read.
func (p *Placer) WhyNowhere(cluster logicalcluster.Name, resource schema.GroupResource, namespace, name string, annotations map[string]string) string {
	return whyNowhere(p.world, cluster, resource, namespace, name, annotations)
}

// MissingClasses says which of the classes that an object names, applied now, are missing: in the clusters that it is placed on; or in
// all that its workspace may use, as long as it is placed on none. As WhyNowhere it is for a warning.
func (p *Placer) MissingClasses(cluster logicalcluster.Name, resource schema.GroupResource, namespace string, object ctrlclient.Object) []string {
	if len(classes.Named(object)) == 0 {
		return nil
	}
	return missingClasses(p.world, cluster, resource, namespace, object)
}

func missingClasses(world world, cluster logicalcluster.Name, resource schema.GroupResource, namespace string, object ctrlclient.Object) []string {
	in, placed := whereabouts(world, cluster, resource, namespace, object.GetName(), "")
	if placed {
		return classes.Missing(object, in)
	}
	var sentences []string
	for _, r := range classes.Named(object) {
		if !slices.ContainsFunc(in, func(t *workloadv1alpha1.SyncTarget) bool { return !t.LacksClass(r.Kind.Resource(), r.Name) }) {
			sentences = append(sentences, r.Missing(in)...)
		}
	}
	return sentences
}

// RefusedPods says which physical clusters refuse the pods of an object, applied now, by the Pod Security level that they hold them to: of the one that a
// pod runs in; of those that the object is placed on; or of all that its workspace may use, if all do, as long as it is placed on none.
func (p *Placer) RefusedPods(cluster logicalcluster.Name, resource schema.GroupResource, namespace string, object ctrlclient.Object) ([]string, error) {
	return refusedPods(p.world, cluster, resource, namespace, object)
}

func refusedPods(world world, cluster logicalcluster.Name, resource schema.GroupResource, namespace string, object ctrlclient.Object) ([]string, error) {
	kind, ok := kinds.Of(object)
	if !ok || !kind.MakesPods() {
		return nil, nil
	}
	in, placed := whereabouts(world, cluster, resource, namespace, object.GetName(), object.GetLabels()[workloadv1alpha1.MirrorLabel])
	takes := func(t *workloadv1alpha1.SyncTarget) bool {
		refused, err := podsecurity.Refused(kind.Template(object), []*workloadv1alpha1.SyncTarget{t})
		return err == nil && len(refused) == 0
	}
	if !placed && slices.ContainsFunc(in, takes) {
		return nil, nil
	}
	return podsecurity.Refused(kind.Template(object), in)
}

// whereabouts are the SyncTargets that an object is placed on, by itself or with its namespace, or those that its workspace may use, as long as it is placed
// on none; and of a pod that runs in a physical cluster, whose mirror is given, that one.
func whereabouts(world world, cluster logicalcluster.Name, resource schema.GroupResource, namespace, name, mirror string) (in []*workloadv1alpha1.SyncTarget, placed bool) {
	lc, ok := world.LogicalCluster(cluster)
	if !ok || !fleet.IsWorkspace(lc) {
		return nil, false
	}
	chain, complete := fleet.Lineage(lc, world.LogicalCluster)
	if !complete {
		return nil, false
	}
	targets, policies := held(world, chain)
	of := func(is func(*workloadv1alpha1.SyncTarget) bool) []*workloadv1alpha1.SyncTarget {
		return slices.DeleteFunc(slices.Concat(targets...), func(t *workloadv1alpha1.SyncTarget) bool { return !is(t) })
	}
	if mirror != "" {
		return of(func(t *workloadv1alpha1.SyncTarget) bool { return t.Status.Mirror == mirror }), true
	}
	object := &placementv1alpha1.PlacedObject{Group: resource.Group, Resource: resource.Resource, Name: name}
	placements := world.Placements(client.Key{Cluster: cluster, Name: namespace})
	for _, name := range []string{placementv1alpha1.NameFor(namespace, object), placementv1alpha1.NameFor(namespace, nil)} {
		i := slices.IndexFunc(placements, func(p *placementv1alpha1.Placement) bool { return p.Name == name })
		if i < 0 || len(placements[i].Spec.Clusters) == 0 {
			continue
		}
		uids := uidsOf(placements[i].Spec.Clusters)
		return of(func(t *workloadv1alpha1.SyncTarget) bool { return slices.Contains(uids, t.UID) }), true
	}
	usable, err := fleet.Usable(lc, targets, policies)
	if err != nil {
		return nil, false // WhyNowhere says so
	}
	return usable, false
}

// PlacedOn counts the Placements that name a SyncTarget, and the workspaces that they are in: for a warning to who deletes it.
func (p *Placer) PlacedOn(target types.UID) (placements, workspaces int) {
	return p.usage.of(target)
}

func whyNowhere(world world, cluster logicalcluster.Name, resource schema.GroupResource, namespace, name string, annotations map[string]string) string {
	if resource == policies { // what its default names may be registered, and allowed, in a workspace below
		if _, err := parseWish(Level{Source: "this PlacementPolicy's default", Annotations: annotations}); err != nil {
			return err.Error() + "; until then what is placed by it stays where it is, and nothing new is."
		}
		return ""
	}
	lc, ok := world.LogicalCluster(cluster)
	if !ok || !fleet.IsWorkspace(lc) || isTerminating(lc) {
		return ""
	}
	var object *placementv1alpha1.PlacedObject // nil for a Namespace or a LogicalCluster
	key := client.Key{Cluster: cluster, Name: namespace}
	switch resource {
	case logicalClusters:
	case namespaces:
		key.Name = name
	default:
		object = &placementv1alpha1.PlacedObject{Group: resource.Group, Resource: resource.Resource, Name: name}
	}
	placements := world.Placements(key)
	placement := func(object *placementv1alpha1.PlacedObject) *placementv1alpha1.Placement {
		name := placementv1alpha1.NameFor(key.Name, object)
		if i := slices.IndexFunc(placements, func(p *placementv1alpha1.Placement) bool { return p.Name == name }); i >= 0 {
			return placements[i]
		}
		return nil
	}
	own, ofNamespace := placementv1alpha1.HasWish(annotations), placement(nil)
	isPlaced := ofNamespace != nil && len(ofNamespace.Spec.Clusters) > 0
	var needs []string
	if object != nil {
		needs = []string{resourceOf(*object)}
	}
	if !own && (object == nil || !kinds.MakesPods(resource) || isPlaced && slices.Contains(workloadv1alpha1.CarriedByAll, needs[0])) {
		return "" // an object goes where its namespace is; and what runs nowhere, its workloads tell
	}

	chain, complete := fleet.Lineage(lc, world.LogicalCluster)
	if !complete {
		return ""
	}
	s, fallback := (&reconciler{world: world}).look(lc, chain)
	if !own && isPlaced {
		return strings.TrimSpace(notCarried(ofNamespace.Spec.Clusters, s.candidates, needs))
	}
	decide := func(now placementv1alpha1.PlacementSpec, levels ...Level) Decision {
		return Decide(Request{Levels: levels, Allow: s.allow, Split: now.Split, Needs: needs}, s.candidates, now.Clusters)
	}
	ofWorkspace := Level{Source: "this workspace's LogicalCluster " + quote(v1alpha1.LogicalClusterName), Annotations: lc.Annotations}
	var d Decision
	switch {
	case resource == logicalClusters:
		ofWorkspace.Annotations = annotations
		if d = decide(placementv1alpha1.PlacementSpec{}, ofWorkspace); d.Problem != "" {
			return d.Problem + "; until then what is placed stays where it is."
		}
		if d.Reason == placementv1alpha1.ReasonNowhere && !sameWish(lc.Annotations, annotations) {
			return d.Message + " What runs because of this workspace's wish, if anything, is taken away."
		}
		return ""
	case object == nil:
		now := standing(world, key, s, nil, ofNamespace, nil)
		d = decide(now, Level{Source: "namespace " + quote(name), Annotations: annotations})
		if d.Problem == "" { // nowhere on purpose is no problem, but not a small thing either
			return takenAway(d, now)
		}
	case own:
		now := standing(world, key, s, object, placement(object), ofNamespace)
		d = decide(now, Level{Source: "this object", Annotations: annotations})
		if gone := takenAway(d, now); gone != "" {
			return gone
		}
	default:
		var levels []Level
		if ns, ok := world.Namespace(key); ok {
			levels = append(levels, Level{Source: "namespace " + quote(namespace), Annotations: ns.Annotations})
		}
		// What gives its own wish up in a namespace that is placed nowhere yet stays where it is, as left has it.
		now := placementv1alpha1.PlacementSpec{}
		if p := cmp.Or(ofNamespace, placement(object)); p != nil {
			now = p.Spec
		}
		d = decide(now, append(append(levels, ofWorkspace), fallback...)...)
	}
	if d.Status == metav1.ConditionTrue {
		return ""
	}
	return d.Message
}

// takenAway says that what stands as now is taken away because no cluster is asked for; "" if nothing is.
func takenAway(d Decision, now placementv1alpha1.PlacementSpec) string {
	if d.Reason != placementv1alpha1.ReasonNowhere || len(now.Clusters) == 0 {
		return ""
	}
	return d.Message + " What runs on " + enumerate(names(now.Clusters)) + " is taken away."
}
