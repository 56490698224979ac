package splitter

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

func TestPlanCopies(t *testing.T) {
	write, remove, wait := CopyStep{Write: true}, CopyStep{Delete: true}, CopyStep{}
	serving := Copy{Assigned: true, Exists: true, Serves: true}
	starting := Copy{Assigned: true, Exists: true}
	for reason, tc := range map[string]struct {
		a, b Copy
		want [2]CopyStep
	}{
		"new in both":                                  {Copy{Assigned: true}, Copy{Assigned: true}, [2]CopyStep{write, write}},
		"kept as it is to be":                          {serving, starting, [2]CopyStep{write, write}},
		"moves: made first":                            {Copy{Exists: true, Serves: true}, Copy{Assigned: true}, [2]CopyStep{wait, write}},
		"moves: until it serves there, it stays":       {Copy{Exists: true, Serves: true}, starting, [2]CopyStep{wait, write}},
		"moves: then it goes":                          {Copy{Exists: true}, serving, [2]CopyStep{remove, write}},
		"moves: after those whose pods may need it":    {Copy{Exists: true, Serves: true, Needed: true}, serving, [2]CopyStep{wait, write}},
		"nobody wants it any more":                     {Copy{Exists: true, Serves: true}, Copy{Exists: true}, [2]CopyStep{remove, remove}},
		"of an earlier root: gone first":               {Copy{Assigned: true, Exists: true, Deleting: true}, serving, [2]CopyStep{wait, write}},
		"the leaf that replaces it has to be made yet": {Copy{Exists: true}, Copy{Assigned: true, Exists: true, Deleting: true}, [2]CopyStep{wait, wait}},
		"its syncer would ignore it":                   {Copy{Assigned: true, Barred: true}, serving, [2]CopyStep{wait, write}},
		"its syncer ignores it since":                  {Copy{Assigned: true, Barred: true, Exists: true}, serving, [2]CopyStep{write, write}},
		"moves to where nobody would run it":           {Copy{Exists: true, Serves: true}, Copy{Assigned: true, Barred: true}, [2]CopyStep{wait, wait}},
		"moves: one beside what stays is not awaited":  {Copy{Exists: true, Serves: true}, Copy{Assigned: true, Beside: true, Exists: true}, [2]CopyStep{remove, write}},
		"new beside what stays":                        {Copy{Assigned: true, Beside: true}, serving, [2]CopyStep{write, write}},
		"nothing there, nothing wanted":                {Copy{}, serving, [2]CopyStep{wait, write}},
	} {
		tc.a.Name, tc.b.Name = "a", "b"
		steps := PlanCopies([]Copy{tc.a, tc.b})
		if got := [2]CopyStep{steps["a"], steps["b"]}; got != tc.want {
			t.Errorf("%s: %+v, want %+v", reason, got, tc.want)
		}
	}
}

// TestCopiesNeverDip: whatever is placed where, and whatever serves for how long, a cluster that served is left only while all that are
// assigned serve; and when all serves that can, it is where it is placed and nowhere else.
func TestCopiesNeverDip(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		fleet := make([]Copy, 3)
		for i := range fleet {
			fleet[i].Name = fmt.Sprint(i)
		}
		var story []string
		step := func() {
			steps := PlanCopies(fleet)
			for i := range fleet {
				c, s := &fleet[i], steps[fleet[i].Name]
				if s.Delete {
					for _, other := range fleet {
						if other.Assigned && !other.Serves {
							t.Fatalf("seed %d: %s is left, and %s does not serve:\n%s", seed, c.Name, other.Name, strings.Join(story, "\n"))
						}
					}
					c.Deleting, c.Serves = true, false
				}
				if s.Write {
					c.Exists = true
				}
			}
		}
		for range 40 {
			c := &fleet[r.IntN(len(fleet))]
			switch r.IntN(5) {
			case 0:
				c.Assigned = !c.Assigned
			case 1:
				c.Serves = c.Exists && !c.Deleting
			case 2:
				c.Serves = false
			case 3:
				if c.Deleting {
					c.Exists, c.Deleting = false, false
				}
			default:
				step()
			}
			story = append(story, fmt.Sprintf("%+v", fleet))
		}
		for range 10 {
			step()
			for i := range fleet {
				c := &fleet[i]
				if c.Deleting {
					c.Exists, c.Deleting = false, false
				}
				c.Serves = c.Exists
			}
		}
		for _, c := range fleet {
			if c.Exists != c.Assigned {
				t.Fatalf("seed %d: in the end %+v:\n%s", seed, c, strings.Join(story, "\n"))
			}
		}
	}
}

const mirrorWest = "mirrorwest000000"

// daemonSetLeaf is a root's rendering in a mirror, as its cluster has taken it and says.
func daemonSetLeaf(t *testing.T, root *appsv1.DaemonSet, mirror string, status appsv1.DaemonSetStatus) *appsv1.DaemonSet {
	t.Helper()
	k, _ := kinds.ByKind("DaemonSet")
	leaf, hash, err := render(k, root, k.Content(root), "front-"+mirror, false)
	if err != nil {
		t.Fatal(err)
	}
	leaf.SetUID(types.UID("leaf-" + mirror))
	annotations := leaf.GetAnnotations()
	annotations[lcctx.Annotation], annotations[workloadv1alpha1.AppliedAnnotation] = mirror, hash
	leaf.SetAnnotations(annotations)
	d := leaf.(*appsv1.DaemonSet)
	d.Generation, d.Status = 1, status
	return d
}

// TestDaemonSetMoves: its leaf in east stays until the one in west is known to be rolled out, also when only an uncached read shows that
// it is not any more; and the status tells of both meanwhile.
func TestDaemonSetMoves(t *testing.T) {
	t.Parallel()
	root := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: "front", Name: "agent", UID: "root", Generation: 1, Annotations: map[string]string{lcctx.Annotation: "shop"}}}
	serves := appsv1.DaemonSetStatus{ObservedGeneration: 1, CurrentNumberScheduled: 2, DesiredNumberScheduled: 2, NumberReady: 2, UpdatedNumberScheduled: 2, NumberAvailable: 2}
	starts := appsv1.DaemonSetStatus{ObservedGeneration: 1, CurrentNumberScheduled: 2, DesiredNumberScheduled: 2, UpdatedNumberScheduled: 2, NumberUnavailable: 2}
	earlier := serves
	earlier.UpdatedNumberScheduled = 1
	in := func(mirror string, status appsv1.DaemonSetStatus) func() *appsv1.DaemonSet {
		return func() *appsv1.DaemonSet { return daemonSetLeaf(t, root, mirror, status) }
	}
	for name, tc := range map[string]struct {
		reason      string
		west        func() *appsv1.DaemonSet
		now         *appsv1.DaemonSetStatus // what an uncached read shows of west, if it is something else
		byHand      bool                    // pods are replaced by hand
		change      func(west *workloadv1alpha1.SyncTarget)
		beside      string // where a Deployment is placed that runs in east
		gone        bool
		ready, want int32 // of the root
	}{
		"Made":     {reason: "there is nothing in west yet", ready: 2, want: 2},
		"Starting": {reason: "west does not serve", west: in(mirrorWest, starts), ready: 2, want: 4},
		"Serving":  {reason: "west serves", west: in(mirrorWest, serves), gone: true, ready: 4, want: 4},
		"Updating": {reason: "west serves by an earlier template", west: in(mirrorWest, earlier), ready: 4, want: 4},
		"ByHand":   {reason: "west serves, and nobody may ever replace its pods", west: in(mirrorWest, earlier), byHand: true, gone: true, ready: 4, want: 4},
		"HandsOn":  {reason: "west does not serve", west: in(mirrorWest, starts), byHand: true, ready: 2, want: 4},
		"Beside":   {reason: "pods of the Deployment that leaves east may need it", west: in(mirrorWest, serves), beside: mirrorWest, ready: 4, want: 4},
		"Stays":    {reason: "the Deployment does not leave east", west: in(mirrorWest, serves), beside: mirrorEast, gone: true, ready: 4, want: 4},
		"Fails":    {reason: "west does not serve any more", west: in(mirrorWest, serves), now: &starts, ready: 2, want: 4},
		"Observed": {reason: "what west says may be of before its restore", west: in(mirrorWest, serves), change: func(t *workloadv1alpha1.SyncTarget) {
			meta.SetStatusCondition(&t.Status.Conditions, metav1.Condition{Type: workloadv1alpha1.SyncTargetObserveOnly, Status: metav1.ConditionTrue, Reason: "Restored"})
		}, ready: 4, want: 4},
		"Away": {reason: "west is not heard of", west: in(mirrorWest, serves), change: func(t *workloadv1alpha1.SyncTarget) {
			t.Status.Conditions = nil
		}, ready: 2, want: 4},
	} {
		t.Run(name, func(t *testing.T) {
			root.Spec.UpdateStrategy.Type = appsv1.RollingUpdateDaemonSetStrategyType
			if tc.byHand {
				root.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType
			}
			east := in(mirrorEast, serves)()
			west := targetOf("west", mirrorWest, "daemonsets.apps")
			if tc.change != nil {
				tc.change(west)
			}
			objects := []ctrlclient.Object{root.DeepCopy(), east, west, placementOf("", "Placed", mirrorWest)}
			if tc.west != nil {
				objects = append(objects, tc.west())
			}
			if tc.beside != "" {
				web, leaf := pair("Deployment", "web")
				leaf.SetNamespace(east.Namespace)
				objects = append(objects, web, leaf, placementOf("web", "Placed", tc.beside))
			}
			m := newMirrored(t, objects...)
			s, k := m.sources["DaemonSet"], client.Key{Cluster: "shop", Namespace: "front", Name: "agent"}
			leaves := s.leaves(k)
			if tc.now != nil {
				live := tc.west()
				if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(live), live); err != nil {
					t.Fatal(err)
				}
				live.Status = *tc.now
				if err := m.objects.Status().Update(t.Context(), live); err != nil {
					t.Fatal(err)
				}
			}
			p := m.placement(s, k)
			seen, _ := s.get(k)
			if _, err := m.copies(t.Context(), s, seen, p, leaves, nil); err != nil {
				t.Fatal(err)
			}
			if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(east), east); err != nil {
				t.Fatal(err)
			}
			if gone := east.DeletionTimestamp != nil; gone != tc.gone {
				t.Errorf("%s: the leaf in east is a tombstone: %v, want %v", tc.reason, gone, tc.gone)
			}
			told := &appsv1.DaemonSet{}
			if err := m.objects.Get(t.Context(), types.NamespacedName{Namespace: "front", Name: "agent"}, told); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]int32{tc.ready, tc.want}, []int32{told.Status.NumberReady, told.Status.DesiredNumberScheduled}); diff != "" {
				t.Errorf("%s: ready and wanted: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}
