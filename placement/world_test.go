package placement

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// fakeWorld is a world in memory: a store, and informers that show it at once, or Placements and namespaces only from
// catchUp while lagging is set, or no SyncTargets while blind is set.
type fakeWorld struct {
	usage          *usage
	lagging, blind bool

	clusters   map[logicalcluster.Name]*corev1alpha1.LogicalCluster
	namespaces map[client.Key]*corev1.Namespace
	roots      map[client.Key]map[placementv1alpha1.PlacedObject]map[string]string
	placements map[client.Key]*placementv1alpha1.Placement
	policies   map[client.Key]*placementv1alpha1.PlacementPolicy
	targets    map[client.Key]*workloadv1alpha1.SyncTarget

	// leaves has the mirrors where a root has leaves.
	leaves map[client.Key]map[placementv1alpha1.PlacedObject][]string

	shownPlacements map[client.Key]*placementv1alpha1.Placement
	shownNamespaces map[client.Key]*corev1.Namespace

	// made counts UIDs, writes what was written: a resource version is the number of its write.
	made, writes int
	// failWrites of the next writes fail with a conflict.
	failWrites int
}

var _ world = &fakeWorld{}

func newWorld() (*fakeWorld, *reconciler) {
	w := &fakeWorld{
		usage:      newUsage(),
		clusters:   map[logicalcluster.Name]*corev1alpha1.LogicalCluster{},
		namespaces: map[client.Key]*corev1.Namespace{},
		roots:      map[client.Key]map[placementv1alpha1.PlacedObject]map[string]string{},
		placements: map[client.Key]*placementv1alpha1.Placement{},
		policies:   map[client.Key]*placementv1alpha1.PlacementPolicy{},
		targets:    map[client.Key]*workloadv1alpha1.SyncTarget{},
		leaves:     map[client.Key]map[placementv1alpha1.PlacedObject][]string{},
	}
	w.catchUp()
	return w, &reconciler{world: w, usage: w.usage, clock: clocktesting.NewFakePassiveClock(metav1.Unix(0, 0).Time)}
}

// catchUp shows what is stored.
func (w *fakeWorld) catchUp() {
	for key := range w.shownPlacements {
		if w.placements[key] == nil {
			w.usage.observe(key, nil, false)
		}
	}
	for key, p := range w.placements {
		w.usage.observe(key, uidsOf(p.Spec.Clusters), true)
	}
	w.shownPlacements = maps.Clone(w.placements)
	w.shownNamespaces = maps.Clone(w.namespaces)
}

func (w *fakeWorld) changed() {
	w.writes++
	if !w.lagging {
		w.catchUp()
	}
}

func (w *fakeWorld) uid(name string) types.UID {
	w.made++
	return types.UID(fmt.Sprintf("%s-%d", name, w.made))
}

func in(cluster string) map[string]string { return map[string]string{lcctx.Annotation: cluster} }

func (w *fakeWorld) addWorkspace(name, parent string) *corev1alpha1.LogicalCluster {
	lc := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: corev1alpha1.LogicalClusterName, Annotations: in(name)}}
	lc.Annotations[lcctx.PathAnnotation] = name
	if parent != "" {
		lc.Spec.Owner = &corev1alpha1.LogicalClusterOwner{Resource: "workspaces", Cluster: parent}
		lc.Annotations[lcctx.PathAnnotation] = w.clusters[logicalcluster.Name(parent)].Annotations[lcctx.PathAnnotation] + ":" + name
	}
	w.clusters[logicalcluster.Name(name)] = lc
	return lc
}

func (w *fakeWorld) addNamespace(cluster, name string) *corev1.Namespace {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: w.uid(name), Annotations: in(cluster)}}
	w.namespaces[client.Key{Cluster: logicalcluster.Name(cluster), Name: name}] = ns
	if !w.lagging {
		w.catchUp()
	}
	return ns
}

func (w *fakeWorld) addDeployment(cluster, namespace, name string) map[string]string {
	key := client.Key{Cluster: logicalcluster.Name(cluster), Name: namespace}
	if w.roots[key] == nil {
		w.roots[key] = map[placementv1alpha1.PlacedObject]map[string]string{}
	}
	annotations := map[string]string{}
	w.roots[key][deployment(name)] = annotations
	return annotations
}

func deployment(name string) placementv1alpha1.PlacedObject {
	return placementv1alpha1.PlacedObject{Group: "apps", Resource: "deployments", Name: name}
}

// mirrorOf is a name in the form of those of mirrors.
func mirrorOf(target types.UID) string {
	sum := sha256.Sum256([]byte(target))
	return ("m" + hex.EncodeToString(sum[:]))[:lcctx.NameLength]
}

// addTarget registers a Ready cluster.
func (w *fakeWorld) addTarget(cluster, name string) *workloadv1alpha1.SyncTarget {
	t := &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: name, UID: w.uid(name), Annotations: in(cluster), Labels: map[string]string{}}}
	t.Status.Mirror = mirrorOf(t.UID)
	setReady(t, true)
	w.targets[client.Key{Cluster: logicalcluster.Name(cluster), Name: name}] = t
	return t
}

func setReady(t *workloadv1alpha1.SyncTarget, ready bool) {
	status := metav1.ConditionTrue
	if !ready {
		status = metav1.ConditionUnknown
	}
	meta.SetStatusCondition(&t.Status.Conditions, metav1.Condition{Type: workloadv1alpha1.SyncTargetReady, Status: status, Reason: "Test"})
}

func (w *fakeWorld) LogicalCluster(name logicalcluster.Name) (*corev1alpha1.LogicalCluster, bool) {
	lc, ok := w.clusters[name]
	return lc, ok
}

func (w *fakeWorld) Namespace(key client.Key) (*corev1.Namespace, bool) {
	ns, ok := w.shownNamespaces[key]
	return ns, ok
}

func (w *fakeWorld) Roots(key client.Key) (follows []string, own []root) {
	for o, annotations := range w.roots[key] {
		if placementv1alpha1.HasWish(annotations) {
			own = append(own, root{object: o, source: "deployment " + quote(o.Name), annotations: annotations})
		} else if resource := resourceOf(o); !slices.Contains(follows, resource) {
			follows = append(follows, resource)
		}
	}
	slices.Sort(follows)
	slices.SortFunc(own, func(a, b root) int { return strings.Compare(a.object.Name, b.object.Name) })
	return follows, own
}

func (w *fakeWorld) Runs(key client.Key, o placementv1alpha1.PlacedObject, mirrors []string) bool {
	return slices.ContainsFunc(w.leaves[key][o], func(m string) bool { return slices.Contains(mirrors, m) })
}

// run gives every root its leaves, as the splitter does. Those of a root that is placed nowhere stay.
func (w *fakeWorld) run() {
	for key, roots := range w.roots {
		for o := range roots {
			p := w.placements[client.Key{Cluster: key.Cluster, Name: placementv1alpha1.NameFor(key.Name, &o)}]
			if p == nil {
				p = w.placements[key]
			}
			if p == nil || len(p.Spec.Clusters) == 0 {
				continue
			}
			if w.leaves[key] == nil {
				w.leaves[key] = map[placementv1alpha1.PlacedObject][]string{}
			}
			w.leaves[key][o] = mirrorsOf(p.Spec.Clusters)
		}
	}
}

func mirrorsOf(clusters []placementv1alpha1.PlacedCluster) (mirrors []string) {
	for _, c := range clusters {
		mirrors = append(mirrors, c.Mirror)
	}
	return mirrors
}

func (w *fakeWorld) Placements(key client.Key) (out []*placementv1alpha1.Placement) {
	for _, k := range slices.SortedFunc(maps.Keys(w.shownPlacements), byKey) {
		if k.Cluster == key.Cluster && w.shownPlacements[k].Spec.Namespace == key.Name {
			out = append(out, w.shownPlacements[k])
		}
	}
	return out
}

func byKey(a, b client.Key) int { return strings.Compare(a.String(), b.String()) }

func of[T any](m map[client.Key]T, cluster logicalcluster.Name) (out []T) {
	for _, k := range slices.SortedFunc(maps.Keys(m), byKey) {
		if k.Cluster == cluster {
			out = append(out, m[k])
		}
	}
	return out
}

func (w *fakeWorld) Policies(cluster logicalcluster.Name) []*placementv1alpha1.PlacementPolicy {
	return of(w.policies, cluster)
}

func (w *fakeWorld) SyncTargets(cluster logicalcluster.Name) []*workloadv1alpha1.SyncTarget {
	if w.blind {
		return nil
	}
	return of(w.targets, cluster)
}

func (w *fakeWorld) ReadWishes(_ context.Context, key client.Key) (*corev1.Namespace, *corev1alpha1.LogicalCluster, error) {
	ns, lc := w.namespaces[key], w.clusters[key.Cluster]
	if ns == nil || lc == nil {
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, key.Name)
	}
	return ns, lc, nil
}

func (w *fakeWorld) ReadHolds(_ context.Context, key client.Key) (holds, follows bool, err error) {
	followers, own := w.Roots(key)
	return len(followers)+len(own) > 0, len(followers) > 0, nil
}

func (w *fakeWorld) ReadOwnWish(_ context.Context, key client.Key, o placementv1alpha1.PlacedObject) (map[string]string, error) {
	return w.roots[key][o], nil
}

func (w *fakeWorld) ReadSyncTarget(_ context.Context, key client.Key, uid types.UID) (bool, error) {
	t, ok := w.targets[key]
	return ok && t.UID == uid, nil
}

// write stores what change makes of the stored Placement, under optimistic locking as the server has it.
func (w *fakeWorld) write(cluster logicalcluster.Name, p *placementv1alpha1.Placement, change func(stored *placementv1alpha1.Placement)) error {
	key := client.Key{Cluster: cluster, Name: p.Name}
	resource := schema.GroupResource{Group: placementv1alpha1.GroupVersion.Group, Resource: "placements"}
	stored, ok := w.placements[key]
	switch {
	case w.failWrites > 0:
		w.failWrites--
		return apierrors.NewConflict(resource, p.Name, nil)
	case p.ResourceVersion == "" && ok:
		return apierrors.NewAlreadyExists(resource, p.Name)
	case p.ResourceVersion == "":
		stored = &placementv1alpha1.Placement{ObjectMeta: metav1.ObjectMeta{Name: p.Name, UID: w.uid(p.Name), Annotations: in(string(cluster))}}
	case !ok:
		return apierrors.NewNotFound(resource, p.Name)
	case stored.ResourceVersion != p.ResourceVersion:
		return apierrors.NewConflict(resource, p.Name, nil)
	}
	stored = stored.DeepCopy()
	change(stored)
	stored.ResourceVersion = fmt.Sprint(w.writes + 1)
	w.placements[key] = stored
	stored.DeepCopyInto(p)
	w.changed()
	return nil
}

func (w *fakeWorld) Create(_ context.Context, cluster logicalcluster.Name, p *placementv1alpha1.Placement) error {
	return w.Update(context.Background(), cluster, p)
}

func (w *fakeWorld) Update(_ context.Context, cluster logicalcluster.Name, p *placementv1alpha1.Placement) error {
	return w.write(cluster, p, func(stored *placementv1alpha1.Placement) {
		if !apiequality.Semantic.DeepEqual(stored.Spec, p.Spec) {
			stored.Generation++
		}
		p.Spec.DeepCopyInto(&stored.Spec)
		p.Status.DeepCopyInto(&stored.Status)
	})
}

func (w *fakeWorld) Delete(_ context.Context, cluster logicalcluster.Name, p *placementv1alpha1.Placement) error {
	delete(w.placements, client.Key{Cluster: cluster, Name: p.Name})
	w.changed()
	return nil
}
