package splitter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

func TestPlanSingle(t *testing.T) {
	write, remove, wait := CopyStep{Write: true}, CopyStep{Delete: true}, CopyStep{}
	free := Single{Assigned: true}
	runs := Single{Assigned: true, Exists: true}
	left := Single{Exists: true}
	ends := Single{Exists: true, Deleting: true}
	away := Single{Assigned: true, Unheard: true}
	barred := Single{Assigned: true, Barred: true}
	for reason, tc := range map[string]struct {
		a, b       Single
		seat, next string
		want       [2]CopyStep
	}{
		"new: the first by name":                  {free, free, "a", "", [2]CopyStep{write, wait}},
		"new: the heaviest":                       {free, Single{Assigned: true, Weight: 2}, "b", "", [2]CopyStep{wait, write}},
		"new: one that is heard of":               {away, free, "b", "", [2]CopyStep{wait, write}},
		"new: one that carries it":                {barred, free, "b", "", [2]CopyStep{wait, write}},
		"new, and none is heard of":               {away, Single{}, "a", "", [2]CopyStep{wait, wait}},
		"new, and none carries it":                {barred, Single{}, "a", "", [2]CopyStep{wait, wait}},
		"it stays where it is":                    {Single{Assigned: true, Weight: 9}, runs, "b", "", [2]CopyStep{wait, write}},
		"it stays in one that is not heard of":    {free, Single{Assigned: true, Exists: true, Unheard: true}, "b", "", [2]CopyStep{wait, write}},
		"it stays in one that ignores it since":   {free, Single{Assigned: true, Exists: true, Barred: true}, "b", "", [2]CopyStep{wait, write}},
		"moves: broken first":                     {left, free, "b", "", [2]CopyStep{remove, wait}},
		"moves: until it is gone there":           {ends, free, "b", "", [2]CopyStep{wait, wait}},
		"moves: then made":                        {Single{}, free, "b", "", [2]CopyStep{wait, write}},
		"turned back in time":                     {runs, Single{}, "a", "", [2]CopyStep{write, wait}},
		"turned back too late: gone first":        {Single{Assigned: true, Exists: true, Deleting: true}, Single{}, "a", "", [2]CopyStep{wait, wait}},
		"turned back when it was made":            {free, left, "a", "", [2]CopyStep{wait, remove}},
		"moves: who is not heard of may run it":   {Single{Exists: true, Unheard: true}, free, "a", "b", [2]CopyStep{write, wait}},
		"moves: nothing stops for who is away":    {left, away, "a", "b", [2]CopyStep{write, wait}},
		"moves: nor for who would ignore it":      {left, barred, "a", "b", [2]CopyStep{write, wait}},
		"a tombstone of who is away":              {Single{Exists: true, Deleting: true, Unheard: true}, free, "b", "", [2]CopyStep{wait, wait}},
		"nobody wants it any more":                {left, Single{}, "", "", [2]CopyStep{remove, wait}},
		"nobody wants it, and it is not heard of": {Single{Exists: true, Unheard: true}, Single{}, "", "", [2]CopyStep{remove, wait}},
		"its data is there":                       {Single{Exists: true, Stays: true}, free, "a", "", [2]CopyStep{write, wait}},
		"its data is there, nobody wants it":      {Single{Exists: true, Stays: true}, Single{}, "a", "", [2]CopyStep{write, wait}},
		"its data was there":                      {Single{Exists: true, Deleting: true, Stays: true}, free, "b", "", [2]CopyStep{wait, wait}},
		"two, however that came":                  {runs, runs, "a", "", [2]CopyStep{write, remove}},
	} {
		tc.a.Name, tc.b.Name = "a", "b"
		plan := PlanSingle([]Single{tc.a, tc.b})
		if got := [2]CopyStep{plan.Steps["a"], plan.Steps["b"]}; got != tc.want || plan.Seat != tc.seat || plan.Next != tc.next {
			t.Errorf("%s: %+v, want seat %q, next %q, steps %+v", reason, plan, tc.seat, tc.next, tc.want)
		}
	}
}

// A singleFleet is a small simulation of clusters, and of the splitter that has a workload run in one of them at a time. The splitter's
// cache may be old, a cluster may be away while nobody has noticed or back while nobody has, and what is deleted ends slowly.
type singleFleet struct {
	clusters map[string]*singleMember
	weights  map[string]int64 // the Placement
	seenAs   map[string]int64 // as the splitter's cache has it
	seen     map[string]singleLeaf
	root     int // its UID
	stays    bool
}

type singleMember struct {
	away, unheard bool        // as it is, and as the hub has noticed
	leaf          *singleLeaf // what the mirror holds
	// What the cluster has: an object of a root, the pods of it, and whether it is being deleted.
	exists, ending bool
	root, pods     int
	everRan        bool
}

type singleLeaf struct {
	root     int
	deleting bool
	ran      bool // as reported
}

func newSingleFleet(names ...string) *singleFleet {
	f := &singleFleet{clusters: map[string]*singleMember{}, seen: map[string]singleLeaf{}}
	for _, n := range names {
		f.clusters[n] = &singleMember{}
	}
	return f
}

func (f *singleFleet) names() []string { return slices.Sorted(maps.Keys(f.clusters)) }

func (f *singleFleet) leaves() map[string]singleLeaf {
	leaves := map[string]singleLeaf{}
	for n, m := range f.clusters {
		if m.leaf != nil {
			leaves[n] = *m.leaf
		}
	}
	return leaves
}

func (f *singleFleet) plan(leaves map[string]singleLeaf, weights map[string]int64) SinglePlan {
	var singles []Single
	for _, n := range f.names() {
		l, exists := leaves[n]
		weight, assigned := weights[n]
		singles = append(singles, Single{
			Name: n, Assigned: assigned, Weight: weight, Unheard: f.clusters[n].unheard,
			Exists: exists, Deleting: exists && (l.deleting || l.root != f.root), Stays: exists && f.stays && l.ran,
		})
	}
	return PlanSingle(singles)
}

// split is one reconcile of the splitter.
func (f *singleFleet) split() {
	for _, m := range f.clusters { // as bury does
		if m.leaf != nil && m.leaf.root != f.root {
			m.leaf.deleting = true
		}
	}
	plan := f.plan(f.seen, f.seenAs)
	for n, step := range plan.Steps {
		if _, exists := f.seen[n]; step.Delete || step.Write && !exists {
			if !maps.Equal(f.seenAs, f.weights) {
				return // the Placement is read uncached
			}
			plan = f.plan(f.leaves(), f.weights)
			break
		}
	}
	for n, step := range plan.Steps {
		switch m := f.clusters[n]; {
		case step.Delete && m.leaf != nil:
			m.leaf.deleting = true
		case step.Write && m.leaf == nil:
			m.leaf = &singleLeaf{root: f.root}
		}
	}
}

// sync is one round of a cluster's syncer.
func (m *singleMember) sync() {
	switch {
	case m.away || m.leaf == nil:
	case !m.leaf.deleting && !m.exists && m.pods == 0:
		m.exists, m.root = true, m.leaf.root
	case !m.leaf.deleting:
		m.leaf.ran = m.leaf.ran || m.pods > 0
	case m.exists:
		m.ending = true
	case m.pods == 0:
		m.leaf = nil
	}
}

// control is one round of the cluster's own controllers. What is deleted goes after its pods.
func (m *singleMember) control() {
	switch {
	case m.exists && !m.ending:
		m.pods, m.everRan = min(m.pods+1, 2), true
	case m.pods > 0:
		m.pods--
	default:
		m.exists, m.ending = false, false
	}
}

func (f *singleFleet) act(r *rand.Rand) string {
	n := f.names()[r.IntN(len(f.clusters))]
	m := f.clusters[n]
	switch r.IntN(6) {
	case 0:
		f.split()
		return "split"
	case 1:
		m.sync()
		return "sync " + n
	case 2, 3:
		m.control()
		return "control " + n
	case 4:
		if m.leaf == nil {
			delete(f.seen, n)
		} else {
			f.seen[n] = *m.leaf
		}
		return "look at " + n
	default:
		f.seenAs, m.unheard = f.weights, m.away
		return "hear of " + n
	}
}

func (f *singleFleet) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "placed %v, root %d, stays %v\n", f.weights, f.root, f.stays)
	for _, n := range f.names() {
		fmt.Fprintf(&b, "%s: %+v, leaf %+v, seen %+v\n", n, *f.clusters[n], f.clusters[n].leaf, f.seen[n])
	}
	return b.String()
}

// TestNeverTwoAtOnce: whatever is placed where, slow, away or made again, there never are two clusters that have it or pods of it; what
// has its data somewhere is nowhere else; and when everybody is heard of, it runs in one cluster of its Placement.
func TestNeverTwoAtOnce(t *testing.T) {
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 7))
		f := newSingleFleet("a", "b", "c")
		f.stays = seed%3 == 0
		place := func() {
			f.weights = map[string]int64{}
			for _, n := range f.names() {
				if r.IntN(2) == 0 {
					f.weights[n] = int64(1 + r.IntN(3))
				}
			}
		}
		place()
		var log []string
		check := func() {
			t.Helper()
			var in []string
			for _, n := range f.names() {
				if m := f.clusters[n]; m.exists || m.pods > 0 {
					in = append(in, n)
				}
			}
			if len(in) > 1 {
				t.Fatalf("seed %d: it is in %v, after %s\n%s", seed, in, strings.Join(log, ", "), f)
			}
		}
		for range 300 {
			switch r.IntN(40) {
			case 0:
				place()
				log = append(log, fmt.Sprint("place ", f.weights))
			case 1, 2:
				n := f.names()[r.IntN(3)]
				f.clusters[n].away = !f.clusters[n].away
				log = append(log, fmt.Sprint("away ", n, f.clusters[n].away))
			case 3:
				f.root++
				for _, m := range f.clusters {
					m.everRan = false
				}
				log = append(log, fmt.Sprint("root ", f.root))
			default:
				log = append(log, f.act(r))
			}
			check()
		}
		for _, m := range f.clusters {
			m.away, m.unheard = false, false
		}
		for range 40 {
			f.seen, f.seenAs = f.leaves(), f.weights
			f.split()
			for _, m := range f.clusters {
				m.sync()
				m.control()
			}
			check()
		}
		running := 0
		for n, m := range f.clusters {
			if m.pods == 0 {
				continue
			}
			running++
			if _, assigned := f.weights[n]; !assigned && !(f.stays && m.everRan) {
				t.Fatalf("seed %d: in the end it is in %s:\n%s", seed, n, f)
			}
		}
		if running == 0 && len(f.weights) > 0 {
			t.Fatalf("seed %d: in the end it runs nowhere:\n%s", seed, f)
		}
	}
}

// statefulSetLeaf is a root's rendering in a mirror, as its cluster has taken it and says.
func statefulSetLeaf(t *testing.T, root *appsv1.StatefulSet, mirror string, ready int32) *appsv1.StatefulSet {
	t.Helper()
	k, _ := kinds.ByKind("StatefulSet")
	leaf, hash, err := render(k, root, k.Content(root), "front-"+mirror, false)
	if err != nil {
		t.Fatal(err)
	}
	leaf.SetUID(types.UID("leaf-" + mirror))
	annotations := leaf.GetAnnotations()
	annotations[lcctx.Annotation], annotations[workloadv1alpha1.AppliedAnnotation] = mirror, hash
	leaf.SetAnnotations(annotations)
	d := leaf.(*appsv1.StatefulSet)
	d.Generation = 1
	d.Status = appsv1.StatefulSetStatus{ObservedGeneration: 1, Replicas: ready, ReadyReplicas: ready, AvailableReplicas: ready, UpdatedReplicas: ready}
	return d
}

// TestStatefulSetMoves: it leaves east first, and is made in west only where an uncached read of all clusters shows none; what has its
// data in east stays, and what keeps it is told.
func TestStatefulSetMoves(t *testing.T) {
	away := func(t *workloadv1alpha1.SyncTarget) { t.Status.Conditions = nil }
	tombstone := func(leaf *appsv1.StatefulSet) {
		leaf.DeletionTimestamp = ptr.To(metav1.Now())
	}
	for name, tc := range map[string]struct {
		reason     string
		without    bool                      // no leaf in east
		leaf       func(*appsv1.StatefulSet) // changes the one in east
		root       func(*appsv1.StatefulSet) // changes it before it is rendered
		east, west func(*workloadv1alpha1.SyncTarget)
		placed     []string // west, unless it says so
		behind     bool     // the informer does not show the leaf in east
		gone, made bool
		why        string // the condition Placed, its reason
		updated    int32
		phases     string // unless the informer has yet to see what is written
	}{
		"Leaves":  {reason: "nothing runs in west before it has left", gone: true},
		"Ends":    {reason: "its pods end in east", leaf: tombstone, gone: true, phases: "east Deleting, west Pending"},
		"Starts":  {reason: "it is gone", without: true, made: true},
		"Unseen":  {reason: "east was given it by somebody whose writes are not seen yet", behind: true, gone: true},
		"Volumes": {reason: "its data is in east", root: withClaims, why: "VolumesStay", updated: 2, phases: "east Staying, west Pending"},
		"VolumesNeverRan": {reason: "there is no data yet", root: withClaims, leaf: func(leaf *appsv1.StatefulSet) {
			delete(leaf.Annotations, workloadv1alpha1.AppliedAnnotation)
			leaf.Status = appsv1.StatefulSetStatus{}
		}, gone: true},
		"VolumesNowhere": {reason: "it is not taken away, as its claims might be", root: withClaims, placed: []string{}, why: "VolumesStay", updated: 2, phases: "east Staying"},
		"EastAway":       {reason: "nobody knows that it does not run in east", east: away, why: "Unreachable", phases: "east Draining, west Pending"},
		"EndsAway":       {reason: "nor whether it has ended", leaf: tombstone, east: away, gone: true, why: "Unreachable", phases: "east Deleting, west Pending"},
		"WestAway":       {reason: "it runs better in east than nowhere", west: away, why: "Unreachable", phases: "east Draining, west Pending"},
		"WestBarred":     {reason: "nobody would start it", west: func(t *workloadv1alpha1.SyncTarget) { t.Status.CarriedResources = []string{"deployments.apps"} }, why: "NotCarried", phases: "east Draining, west Pending"},
		"WestBarredNew":  {reason: "nobody would start it", without: true, west: func(t *workloadv1alpha1.SyncTarget) { t.Status.CarriedResources = []string{"deployments.apps"} }, why: "NotCarried", phases: "west Pending"},
		"Both":           {reason: "it stays where it is, and west lacks nothing", placed: []string{mirrorEast, mirrorWest}, updated: 2, phases: "east Ready, west Ready"},
		"Nowhere":        {reason: "as somebody asked", placed: []string{}, gone: true, why: "Nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			root := &appsv1.StatefulSet{
				ObjectMeta: metav1.ObjectMeta{Namespace: "front", Name: "db", UID: "root", Generation: 1, Annotations: map[string]string{lcctx.Annotation: "shop"}},
				Spec:       appsv1.StatefulSetSpec{Replicas: ptr.To[int32](2)},
			}
			if tc.root != nil {
				tc.root(root)
			}
			leaf := statefulSetLeaf(t, root, mirrorEast, 2)
			if tc.leaf != nil {
				tc.leaf(leaf)
			}
			east, west := targetOf("east", mirrorEast, "statefulsets.apps"), targetOf("west", mirrorWest, "statefulsets.apps")
			if tc.east != nil {
				tc.east(east)
			}
			if tc.west != nil {
				tc.west(west)
			}
			if tc.placed == nil {
				tc.placed = []string{mirrorWest}
			}
			p := placementOf("", "Nowhere", tc.placed...)
			p.Status.Conditions[0].ObservedGeneration = p.Generation
			if len(tc.placed) > 0 {
				p.Status.Conditions = nil
			}
			objects := []ctrlclient.Object{root.DeepCopy(), east, west, p}
			if !tc.without {
				objects = append(objects, leaf)
			}
			m := newMirrored(t, objects...)
			s, k := m.sources["StatefulSet"], client.Key{Cluster: "shop", Namespace: "front", Name: "db"}
			leaves := s.leaves(k)
			if tc.behind {
				leaves = nil
			}
			seen, _ := s.get(k)
			if _, err := m.single(t.Context(), s, seen, m.placement(s, k), leaves, nil); err != nil {
				t.Fatal(err)
			}
			if !tc.without {
				if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(leaf), leaf); err != nil {
					t.Fatal(err)
				}
				if gone := leaf.DeletionTimestamp != nil; gone != tc.gone {
					t.Errorf("%s: the leaf in east is a tombstone: %v, want %v", tc.reason, gone, tc.gone)
				}
			}
			all := &appsv1.StatefulSetList{}
			if err := m.objects.List(t.Context(), all); err != nil {
				t.Fatal(err)
			}
			made := slices.ContainsFunc(all.Items, func(o appsv1.StatefulSet) bool {
				return o.Name == "db" && o.Namespace == kinds.DownstreamNamespace("shop", "front", false)
			})
			if made != tc.made {
				t.Errorf("%s: there is a leaf in west: %v, want %v", tc.reason, made, tc.made)
			}
			told := &appsv1.StatefulSet{}
			if err := m.objects.Get(t.Context(), types.NamespacedName{Namespace: "front", Name: "db"}, told); err != nil {
				t.Fatal(err)
			}
			why := ""
			for _, c := range told.Status.Conditions {
				if c.Type == kinds.ConditionPlaced && c.Status == corev1.ConditionFalse {
					why = c.Reason
				}
			}
			if why != tc.why || told.Status.UpdatedReplicas != tc.updated {
				t.Errorf("%s: the status says %q, with %d updated, want %q and %d: %+v", tc.reason, why, told.Status.UpdatedReplicas, tc.why, tc.updated, told.Status)
			}
			sums, _ := m.tally.ofAll(namespaceValue("shop", "front"), decisionOf(p), nil)
			var shown []string
			for _, c := range phases(p, sums, logicalcluster.Name.String) {
				shown = append(shown, strings.TrimSuffix(strings.TrimPrefix(c.Name, "mirror"), "000000")+" "+string(c.Phase))
			}
			if diff := cmp.Diff(tc.phases, strings.Join(shown, ", ")); diff != "" && tc.phases != "" {
				t.Errorf("%s: phases: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestUnreadableRows: a StatefulSet is not made in west while its row in east cannot be read, which its owner is told; rows of others in the
// way of a list, and of what leaves for good, do not keep it.
func TestUnreadableRows(t *testing.T) {
	const elsewhere = "front-other"
	own := kinds.DownstreamNamespace("shop", "front", false)
	for name, tc := range map[string]struct {
		in    string // the namespace in east with the row
		of    string // whose that is
		ends  bool   // its workspace is being deleted, and its leaf in east is seen
		made  bool
		gone  bool
		stops bool
	}{
		"Own":          {in: own, of: "shop", stops: true},
		"OwnDedicated": {in: "front", of: "shop", stops: true},
		"OfNobody":     {in: "front", stops: true},
		"OfAnother":    {in: "front", of: "bank", made: true},
		"Elsewhere":    {in: elsewhere, of: "bank", made: true},
		"Ends":         {in: own, of: "shop", ends: true, gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			root := &appsv1.StatefulSet{
				ObjectMeta: metav1.ObjectMeta{Namespace: "front", Name: "db", UID: "root", Generation: 1, Annotations: map[string]string{lcctx.Annotation: "shop"}},
				Spec:       appsv1.StatefulSetSpec{Replicas: ptr.To[int32](2)},
			}
			leaf := statefulSetLeaf(t, root, mirrorEast, 2)
			objects := []ctrlclient.Object{root.DeepCopy(), targetOf("east", mirrorEast, "statefulsets.apps"), targetOf("west", mirrorWest, "statefulsets.apps")}
			if tc.ends {
				objects = append(objects, leaf)
			} else {
				objects = append(objects, placementOf("", "Placed", mirrorWest))
			}
			m := newMirrored(t, objects...)
			if tc.ends {
				m.endWorkspaces(t)
			}
			broken := apierrors.NewInternalError(errors.New(`statefulsets.apps "` + tc.in + `/db" of logical cluster "` + mirrorEast + `" cannot be read`))
			m.clients.Objects = interceptor.NewClient(m.objects, interceptor.Funcs{
				List: func(ctx context.Context, c ctrlclient.WithWatch, list ctrlclient.ObjectList, opts ...ctrlclient.ListOption) error {
					asked := (&ctrlclient.ListOptions{}).ApplyOptions(opts)
					if _, ok := list.(*appsv1.StatefulSetList); ok && (asked.Namespace == "" || asked.Namespace == tc.in) {
						return broken
					}
					return c.List(ctx, list, opts...)
				},
				Get: func(ctx context.Context, c ctrlclient.WithWatch, k ctrlclient.ObjectKey, o ctrlclient.Object, opts ...ctrlclient.GetOption) error {
					if in, _ := lcctx.ClusterFrom(ctx); in.Name != mirrorEast {
						return c.Get(ctx, k, o, opts...)
					}
					n, isNamespace := o.(*corev1.Namespace)
					switch {
					case isNamespace && k.Name == tc.in && tc.of != "":
						n.Name, n.Labels = tc.in, map[string]string{workloadv1alpha1.WorkspaceLabel: tc.of}
						n.Annotations = map[string]string{workloadv1alpha1.RootAnnotation: "/front"}
						return nil
					case !isNamespace && k == ctrlclient.ObjectKey{Namespace: tc.in, Name: "db"}:
						return broken
					case tc.in == elsewhere && !isNamespace:
						t.Errorf("mirrors are asked one by one for what is not in the way: %v", k)
					}
					return c.Get(ctx, k, o, opts...)
				},
			})
			s, k := m.sources["StatefulSet"], client.KeyOf(root)
			for range 2 {
				seen, _ := s.get(k)
				if _, err := m.single(t.Context(), s, seen, m.placement(s, k), s.leaves(k), nil); (err != nil) != tc.stops {
					t.Fatalf("error %v, want one: %v", err, tc.stops)
				}
			}
			err := m.objects.Get(t.Context(), types.NamespacedName{Namespace: own, Name: "db"}, &appsv1.StatefulSet{})
			if made := err == nil; made != tc.made {
				t.Errorf("there is a leaf in west: %v, want %v", made, tc.made)
			}
			if tc.ends {
				if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(leaf), leaf); err != nil || (leaf.DeletionTimestamp != nil) != tc.gone {
					t.Errorf("the leaf in east: %v, tombstone: %v", err, leaf.DeletionTimestamp != nil)
				}
			}
			events := &corev1.EventList{}
			if err := m.objects.List(t.Context(), events); err != nil {
				t.Fatal(err)
			}
			var told []corev1.Event
			for _, e := range events.Items {
				if e.Reason == "Unreadable" {
					told = append(told, e)
				}
			}
			switch {
			case !tc.stops && len(told) > 0:
				t.Errorf("told: %v", told)
			case tc.stops && (len(told) != 1 || told[0].Count != 1 || !strings.Contains(told[0].Message, `"east"`) || strings.Contains(told[0].Message, tc.in+"/")):
				t.Errorf("told: %v, want once, of east alone", told)
			}
		})
	}
}

// TestStatefulSetRevisions: the status names revisions that its workspace keeps, and an update has ended when its cluster says so.
func TestStatefulSetRevisions(t *testing.T) {
	root := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "front", Name: "db", UID: "root", Generation: 1, Annotations: map[string]string{lcctx.Annotation: "shop"}}}
	root.Spec.Template.Spec.Containers = []corev1.Container{{Name: "db", Image: "1"}}
	leaf := statefulSetLeaf(t, root, mirrorEast, 1)
	leaf.Status.CurrentRevision, leaf.Status.UpdateRevision = "db-below", "db-below"
	m := newMirrored(t, root.DeepCopy(), leaf, placementOf("", "Placed", mirrorEast))
	s := m.sources["StatefulSet"]
	images := func() (current, update string) {
		t.Helper()
		if _, err := m.single(t.Context(), s, root, m.placement(s, client.KeyOf(root)), []ctrlclient.Object{leaf}, nil); err != nil {
			t.Fatal(err)
		}
		told := &appsv1.StatefulSet{}
		if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(root), told); err != nil {
			t.Fatal(err)
		}
		root.Status, root.ResourceVersion = told.Status, told.ResourceVersion
		image := func(revision string) string {
			r := &appsv1.ControllerRevision{}
			if err := m.objects.Get(t.Context(), types.NamespacedName{Namespace: "front", Name: revision}, r); err != nil {
				return err.Error()
			}
			var patch struct{ Spec appsv1.StatefulSetSpec }
			if err := json.Unmarshal(r.Data.Raw, &patch); err != nil || !metav1.IsControlledBy(r, root) {
				t.Fatalf("%v of %v: %v", r, root, err)
			}
			return patch.Spec.Template.Spec.Containers[0].Image
		}
		return image(told.Status.CurrentRevision), image(told.Status.UpdateRevision)
	}
	check := func(when, current, update string) {
		t.Helper()
		if c, u := images(); c != current || u != update {
			t.Errorf("%s: the current revision is %q, that of the update %q; want %q and %q", when, c, u, current, update)
		}
	}
	check("as it was made", "1", "1")
	root.Generation, root.Spec.Template.Spec.Containers[0].Image = 2, "2"
	if err := m.objects.Update(t.Context(), root); err != nil {
		t.Fatal(err)
	}
	check("with the next template", "1", "2")
	leaf = statefulSetLeaf(t, root, mirrorEast, 1)
	leaf.Status.CurrentRevision, leaf.Status.UpdateRevision = "db-below", "db-below-2"
	check("while it is updated", "1", "2")
	leaf.Status.CurrentRevision = "db-below-2"
	check("when it is", "2", "2")
}

func withClaims(s *appsv1.StatefulSet) {
	s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}
}
