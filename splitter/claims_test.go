package splitter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

func TestChooseHome(t *testing.T) {
	for reason, tc := range map[string]struct {
		a, b Home
		want string
	}{
		"the first by name":                        {Home{Users: 1}, Home{Users: 1}, "a"},
		"the heaviest":                             {Home{Users: 1, Weight: 1}, Home{Users: 1, Weight: 2}, "b"},
		"where more of its users may run":          {Home{Users: 1, Weight: 9}, Home{Users: 2}, "b"},
		"one that is heard of":                     {Home{Users: 2, Unheard: true}, Home{Users: 1}, "b"},
		"one that carries it":                      {Home{Users: 2, Barred: true}, Home{Users: 1, Unheard: true}, "b"},
		"where its users run, away or not":         {Home{Users: 2}, Home{Users: 1, Runs: true, Unheard: true}, "b"},
		"where what is mounted with it is":         {Home{Users: 2, Runs: true}, Home{Siblings: 1, Barred: true}, "b"},
		"where more of what is mounted with it is": {Home{Siblings: 1, Runs: true}, Home{Siblings: 2}, "b"},
	} {
		tc.a.Name, tc.b.Name = "a", "b"
		if got := ChooseHome([]Home{tc.a, tc.b}).Name; got != tc.want {
			t.Errorf("%s: %q, want %q", reason, got, tc.want)
		}
	}
	if got := ChooseHome(nil); got != (Home{}) {
		t.Errorf("nobody mounts it: %+v", got)
	}
}

func TestPlanSeat(t *testing.T) {
	free, runs, left := Single{Assigned: true}, Single{Assigned: true, Exists: true}, Single{Exists: true}
	none := Mount{Claim: "x"}
	new := Mount{Claim: "x", Exists: true}
	in := func(clusters ...string) Mount { return Mount{Claim: "x", Exists: true, At: clusters} }
	of := func(name string, m Mount) Mount { m.Claim = name; return m }
	for reason, tc := range map[string]struct {
		a, b   Single
		mounts []Mount
		want   Seat
	}{
		"where its claim is":                           {free, free, []Mount{in("b")}, Seat{Name: "b"}},
		"where its claim is, and it does not run":      {runs, free, []Mount{in("b")}, Seat{Name: "b"}},
		"where its claim was, and ends":                {free, free, []Mount{{Claim: "x", At: []string{"b"}}}, Seat{Name: "b"}},
		"it stays with its claim":                      {left, free, []Mount{in("a")}, Seat{Name: "a"}},
		"it stays with its claim, and nobody wants it": {left, Single{}, []Mount{in("a")}, Seat{Name: "a"}},
		"it does not start where it is not placed":     {Single{}, free, []Mount{in("a")}, Seat{Apart: []string{"x"}}},
		"nor does it start again there":                {Single{Exists: true, Deleting: true}, free, []Mount{in("a")}, Seat{Apart: []string{"x"}}},
		"it runs, and its claim is where it may not":   {Single{}, runs, []Mount{in("a")}, Seat{Name: "b", Apart: []string{"x"}}},
		"its claims are in two clusters":               {free, free, []Mount{in("a"), of("y", in("b"))}, Seat{Apart: []string{"x", "y"}}},
		"its claims are in two, and it runs":           {free, runs, []Mount{in("a"), of("y", in("b"))}, Seat{Name: "b", Apart: []string{"x", "y"}}},
		"it awaits its claim":                          {free, free, []Mount{new}, Seat{Awaits: "x"}},
		"it awaits another claim":                      {free, free, []Mount{in("b"), of("y", new)}, Seat{Awaits: "y"}},
		"it runs, and awaits another claim":            {free, runs, []Mount{in("b"), of("y", new)}, Seat{Name: "b"}},
		"it awaits the answer to its claim":            {free, free, []Mount{{Claim: "x", Exists: true, At: []string{"b"}, Unanswered: true}}, Seat{Awaits: "x"}},
		"it runs, and awaits the answer to its claim":  {free, runs, []Mount{{Claim: "x", Exists: true, At: []string{"b"}, Unanswered: true}}, Seat{Name: "b"}},
		"what has no answer is where it may not run":   {Single{}, free, []Mount{{Claim: "x", Exists: true, At: []string{"a"}, Unanswered: true}}, Seat{Apart: []string{"x"}}},
		"it runs in two, and awaits its claim":         {runs, Single{Assigned: true, Exists: true, Weight: 2}, []Mount{new}, Seat{Name: "b", Awaits: "x"}},
		"it moves, and awaits its claim":               {left, free, []Mount{new}, Seat{Name: "a", Awaits: "x"}},
		"there is no claim: as a Single":               {free, Single{Assigned: true, Weight: 2}, []Mount{none}, Seat{Name: "b"}},
		"there is no claim, and it runs":               {runs, Single{Assigned: true, Weight: 2}, []Mount{none}, Seat{Name: "a"}},
		"there is no claim, and it moves":              {left, free, []Mount{none}, Seat{Name: "b"}},
		"there is no claim, and it is nowhere":         {Single{}, Single{}, []Mount{none}, Seat{}},
	} {
		tc.a.Name, tc.b.Name = "a", "b"
		if diff := cmp.Diff(tc.want, PlanSeat([]Single{tc.a, tc.b}, tc.mounts)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", reason, diff)
		}
	}
}

// claimOf is a claim of the workspace.
func claimOf(name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "front", Name: name, UID: types.UID("claim-" + name), Annotations: map[string]string{lcctx.Annotation: "shop"}},
		Spec:       corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
}

// claimLeaf is a claim in a mirror, as its cluster has bound it.
func claimLeaf(t *testing.T, root *corev1.PersistentVolumeClaim, mirror string) *corev1.PersistentVolumeClaim {
	t.Helper()
	k, _ := kinds.ByKind(kinds.ClaimKind)
	leaf, hash, err := render(k, root, k.Content(root), "front-"+mirror, false)
	if err != nil {
		t.Fatal(err)
	}
	leaf.SetUID(types.UID("leaf-" + root.Name + "-" + mirror))
	annotations := leaf.GetAnnotations()
	annotations[lcctx.Annotation], annotations[workloadv1alpha1.AppliedAnnotation] = mirror, hash
	annotations[workloadv1alpha1.VolumeAnnotation] = `{"name":"volume","storageClassName":"fast"}`
	leaf.SetAnnotations(annotations)
	c := leaf.(*corev1.PersistentVolumeClaim)
	c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, AccessModes: c.Spec.AccessModes}
	return c
}

// mounting is a Deployment of the workspace that mounts claims.
func mounting(name string, claims ...string) *appsv1.Deployment {
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "front", Name: name, UID: types.UID(name), Generation: 1, CreationTimestamp: metav1.Unix(0, 0), Annotations: map[string]string{lcctx.Annotation: "shop"}},
		Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{}},
	}
	for _, claim := range claims {
		d.Spec.Template.Spec.Volumes = append(d.Spec.Template.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}})
	}
	return d
}

// mountingLeaf is its leaf, which its cluster has taken.
func mountingLeaf(t *testing.T, root *appsv1.Deployment, mirror string) *appsv1.Deployment {
	t.Helper()
	k, _ := kinds.ByKind("Deployment")
	leaf, hash, err := render(k, root, k.Content(root), "front-"+mirror, false)
	if err != nil {
		t.Fatal(err)
	}
	leaf.SetUID(types.UID("leaf-" + root.Name + "-" + mirror))
	annotations := leaf.GetAnnotations()
	annotations[lcctx.Annotation], annotations[workloadv1alpha1.AppliedAnnotation] = mirror, hash
	leaf.SetAnnotations(annotations)
	d := leaf.(*appsv1.Deployment)
	d.Generation = 1
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 2, ReadyReplicas: 2, AvailableReplicas: 2, UpdatedReplicas: 2}
	return d
}

// placedOn is the Placement of the namespace.
func placedOn(mirrors ...string) *placementv1alpha1.Placement {
	p := placementOf("", "", mirrors...)
	p.Status.Conditions = nil
	return p
}

// everyKind is what a syncer of this version carries.
func everyKind() (resources []string) {
	for _, k := range kinds.All {
		resources = append(resources, k.GVR.GroupResource().String())
	}
	return resources
}

// everywhere returns the clusters with a leaf of a root that is no tombstone, sorted.
func (m *mirrored) everywhere(t *testing.T, list ctrlclient.ObjectList, name string) (clusters []string) {
	t.Helper()
	if err := m.objects.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	if err := meta.EachListItem(list, func(obj runtime.Object) error {
		o := obj.(ctrlclient.Object)
		for cluster, mirror := range map[string]string{"east": mirrorEast, "west": mirrorWest} {
			if o.GetName() == name && o.GetNamespace() == "front-"+mirror && o.GetDeletionTimestamp() == nil {
				clusters = append(clusters, cluster)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(clusters)
	return clusters
}

// reasons returns the reasons of all events, each once and sorted.
func (m *mirrored) reasons(t *testing.T) []string {
	t.Helper()
	events := &corev1.EventList{}
	if err := m.objects.List(t.Context(), events); err != nil {
		t.Fatal(err)
	}
	reasons := map[string]bool{}
	for _, e := range events.Items {
		reasons[e.Reason] = true
	}
	return slices.Sorted(maps.Keys(reasons))
}

// TestClaimGoesOnce: a claim goes to one cluster, where what mounts it is placed, and no Placement takes it from there.
func TestClaimGoesOnce(t *testing.T) {
	t.Parallel()
	west := targetOf("west", mirrorWest, everyKind()...)
	away, early := west.DeepCopy(), west.DeepCopy()
	away.Status.Conditions = nil
	early.Status.CarriedResources = []string{"deployments.apps"}
	bound := claimOf("data")
	bound.Status.Phase = corev1.ClaimBound
	sourced := claimOf("data")
	sourced.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "VolumeSnapshot", Name: "monday"}
	web := mounting("web", "data")
	for name, tc := range map[string]struct {
		objects []ctrlclient.Object
		want    []string
		told    string
	}{
		"Unmounted": {[]ctrlclient.Object{claimOf("data"), placedOn(mirrorEast)}, nil, "WaitForFirstConsumer"},
		"Mounted":   {[]ctrlclient.Object{claimOf("data"), web, placedOn(mirrorWest)}, []string{"west"}, ""},
		"OneOfTwo":  {[]ctrlclient.Object{claimOf("data"), web, placedOn(mirrorEast, mirrorWest)}, []string{"east"}, ""},
		"WhereItRuns": {[]ctrlclient.Object{claimOf("data"), web, mountingLeaf(t, web, mirrorWest), placedOn(mirrorEast, mirrorWest)},
			[]string{"west"}, ""},
		"WithTheOther": {[]ctrlclient.Object{claimOf("data"), claimOf("logs"), claimLeaf(t, claimOf("logs"), mirrorWest), mounting("web", "data", "logs"),
			placedOn(mirrorEast, mirrorWest)}, []string{"west"}, ""},
		"Awaited": {[]ctrlclient.Object{claimOf("data"), web, func() ctrlclient.Object {
			second := mounting("second", "data")
			second.Annotations[placementv1alpha1.ClustersAnnotation] = "west"
			return second
		}(), placedOn(mirrorEast, mirrorWest)}, nil, ""},
		"There":      {[]ctrlclient.Object{claimOf("data"), claimLeaf(t, claimOf("data"), mirrorEast), web, placedOn(mirrorWest)}, []string{"east"}, ""},
		"Nowhere":    {[]ctrlclient.Object{claimOf("data"), claimLeaf(t, claimOf("data"), mirrorEast)}, []string{"east"}, ""},
		"Lost":       {[]ctrlclient.Object{bound, web, placedOn(mirrorWest)}, nil, "ClaimLost"},
		"Sourced":    {[]ctrlclient.Object{sourced, web, placedOn(mirrorWest)}, nil, "NotSynced"},
		"Unheard":    {[]ctrlclient.Object{claimOf("data"), web, away, placedOn(mirrorWest)}, nil, "Unreachable"},
		"NotCarried": {[]ctrlclient.Object{claimOf("data"), web, early, placedOn(mirrorWest)}, nil, "NotCarried"},
		"OfTheEarlier": {[]ctrlclient.Object{claimOf("data"), web, placedOn(mirrorEast, mirrorWest), func() ctrlclient.Object {
			earlier := claimOf("data")
			earlier.UID = "earlier"
			leaf := claimLeaf(t, earlier, mirrorWest)
			leaf.DeletionTimestamp = ptr.To(metav1.Now())
			return leaf
		}()}, nil, "StillThere"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := cloned(tc.objects)
			if !slices.ContainsFunc(objects, func(o ctrlclient.Object) bool { return o.GetName() == "west" }) {
				objects = append(objects, west.DeepCopy())
			}
			m := newMirrored(t, append(objects, spaceIn(mirrorEast), spaceIn(mirrorWest))...)
			m.look(t, key{kinds.ClaimKind, client.Key{Cluster: "shop", Namespace: "front", Name: "data"}})
			got := m.everywhere(t, &corev1.PersistentVolumeClaimList{}, "data")
			if !slices.Equal(got, tc.want) {
				t.Errorf("it is in %v, want %v", got, tc.want)
			}
			if told := strings.Join(m.reasons(t), " "); told != tc.told {
				t.Errorf("told %q, want %q", told, tc.told)
			}
			now := &corev1.PersistentVolumeClaim{}
			if err := m.objects.Get(t.Context(), types.NamespacedName{Namespace: "front", Name: "data"}, now); err != nil {
				t.Fatal(err)
			}
			shown := fmt.Sprint(now.Status.Phase, " ", now.Spec.VolumeName, " ", ptr.Deref(now.Spec.StorageClassName, ""))
			if want := map[string]string{"There": "Bound volume fast", "Nowhere": "Bound volume fast", "Lost": "Lost  "}[name]; want != shown && (want != "" || shown != "Pending  ") {
				t.Errorf("it is shown as %q, want %q", shown, want)
			}
		})
	}
}

// TestClaimIsNeverInTwo: what the informer does not show may be there all the same.
func TestClaimIsNeverInTwo(t *testing.T) {
	root := claimOf("data")
	m := newMirrored(t, root, claimLeaf(t, root, mirrorEast), mounting("web", "data"), placedOn(mirrorWest), spaceIn(mirrorEast), spaceIn(mirrorWest),
		targetOf("west", mirrorWest, everyKind()...))
	s, k := m.sources[kinds.ClaimKind], client.KeyOf(root)
	seen, _ := s.get(k)
	again, err := m.house(t.Context(), s, k, seen)
	if got := m.everywhere(t, &corev1.PersistentVolumeClaimList{}, "data"); err != nil || again == 0 || !slices.Equal(got, []string{"east"}) {
		t.Errorf("it is in %v, again in %s, %v", got, again, err)
	}
}

// TestVolumeIn: what a cluster says of a volume is a name, or nothing.
func TestVolumeIn(t *testing.T) {
	for text, want := range map[string]workloadv1alpha1.Volume{
		`{"name":"pv-1","storageClassName":"fast"}`: {Name: "pv-1", StorageClassName: "fast"},
		`{"name":"pv-1"}`:                        {Name: "pv-1"},
		`{"name":"../pv"}`:                       {},
		`{"name":"pv","storageClassName":"A B"}`: {},
		`{"name":1}`:                             {},
		"":                                       {},
	} {
		if got := volumeIn(text); got != want {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
}

// TestWhatMountsAClaimIsWhereItIs: not divided, never in another cluster, and with words where its Placement says otherwise.
func TestWhatMountsAClaimIsWhereItIs(t *testing.T) {
	t.Parallel()
	web := mounting("web", "data")
	divided := mounting("web")
	claim := claimOf("data")
	for name, tc := range map[string]struct {
		leaves []ctrlclient.Object // of the Deployment and of the claim
		placed []string
		old    bool // the claim was made long ago
		want   []string
		why    string // the condition Placed of the Deployment
		told   string
		phases string
	}{
		"Together":  {[]ctrlclient.Object{claimLeaf(t, claim, mirrorWest)}, []string{mirrorEast, mirrorWest}, true, []string{"west"}, "", "OneCluster Placed", ""},
		"Awaits":    {nil, []string{mirrorEast, mirrorWest}, false, nil, "", "", "mirroreast000000 Pending, mirrorwest000000 Pending"},
		"AwaitsOn":  {nil, []string{mirrorEast}, true, nil, "VolumesAwaited", "VolumesAwaited", "mirroreast000000 Pending"},
		"Stays":     {[]ctrlclient.Object{claimLeaf(t, claim, mirrorEast), mountingLeaf(t, web, mirrorEast)}, []string{mirrorWest}, true, []string{"east"}, "VolumesStay", "VolumesStay", "east Staying, mirrorwest000000 Pending"},
		"Nowhere":   {[]ctrlclient.Object{claimLeaf(t, claim, mirrorEast), mountingLeaf(t, web, mirrorEast)}, nil, true, []string{"east"}, "VolumesStay", "VolumesStay", "east Staying"},
		"Elsewhere": {[]ctrlclient.Object{claimLeaf(t, claim, mirrorEast)}, []string{mirrorWest}, true, nil, "VolumesApart", "VolumesApart", "mirrorwest000000 Pending"},
		"Divided": {[]ctrlclient.Object{claimLeaf(t, claim, mirrorWest), mountingLeaf(t, divided, mirrorEast), mountingLeaf(t, divided, mirrorWest)},
			[]string{mirrorEast, mirrorWest}, true, []string{"west"}, "", "OneCluster Placed", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := placedOn(tc.placed...)
			root, data := web.DeepCopy(), claim.DeepCopy()
			m := newMirrored(t, append(cloned(tc.leaves), root, data, p, spaceIn(mirrorEast), spaceIn(mirrorWest), targetOf("west", mirrorWest, everyKind()...))...)
			if tc.old {
				m.clock.Step(patienceWithClaims)
			}
			k := key{"Deployment", client.KeyOf(root)}
			m.look(t, k)
			if got := m.everywhere(t, &appsv1.DeploymentList{}, "web"); !slices.Equal(got, tc.want) {
				t.Errorf("it is in %v, want %v", got, tc.want)
			}
			told := slices.DeleteFunc(m.reasons(t), func(reason string) bool { return reason == "ScalingReplicaSet" })
			if got := strings.Join(told, " "); got != tc.told {
				t.Errorf("told %q, want %q", got, tc.told)
			}
			if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(root), root); err != nil {
				t.Fatal(err)
			}
			why := ""
			for _, c := range root.Status.Conditions {
				if string(c.Type) == kinds.ConditionPlaced {
					why = c.Reason
				}
			}
			if why != tc.why {
				t.Errorf("its condition Placed says %q, want %q", why, tc.why)
			}
			if tc.phases == "" {
				return
			}
			m.lookUntil(t, k, "its phases are "+tc.phases, func() bool { // as the informers show what was written
				sums, planned := m.sumsOf(p)
				var phased []string
				for _, s := range phases(p, sums, func(mirror logicalcluster.Name) string { return nameOf(m.target(mirror), mirror) }) {
					phased = append(phased, s.Name+" "+string(s.Phase))
				}
				return planned && strings.Join(phased, ", ") == tc.phases
			})
		})
	}
}

// TestOwnWishIsAwaited: what wishes something of its own does not begin where its namespace goes, while its Placement is on its way.
func TestOwnWishIsAwaited(t *testing.T) {
	t.Parallel()
	wish := func(d *appsv1.Deployment) *appsv1.Deployment {
		d = d.DeepCopy()
		d.Annotations[placementv1alpha1.ClustersAnnotation] = "west"
		return d
	}
	web := wish(mounting("web"))
	earlier := mounting("web")
	earlier.UID = "earlier"
	ends := mountingLeaf(t, earlier, mirrorEast)
	ends.DeletionTimestamp = ptr.To(metav1.Now())
	own := placementOf("web", "", mirrorWest)
	own.Status.Conditions = nil
	for name, tc := range map[string]struct {
		root    *appsv1.Deployment
		objects []ctrlclient.Object
		want    string // the Placement
	}{
		"NoWish":     {mounting("web"), nil, "front"},
		"Awaits":     {web, nil, ""},
		"There":      {web, []ctrlclient.Object{own}, own.Name},
		"Runs":       {web, []ctrlclient.Object{mountingLeaf(t, mounting("web"), mirrorEast)}, "front"},
		"RunBefore":  {web, []ctrlclient.Object{ends}, ""},
		"InNoMirror": {web, []ctrlclient.Object{mountingLeaf(t, mounting("web"), "bank")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMirrored(t, append(cloned(tc.objects), tc.root.DeepCopy(), placedOn(mirrorEast), spaceIn(mirrorEast), spaceIn(mirrorWest), targetOf("west", mirrorWest, everyKind()...))...)
			s, k := m.sources["Deployment"], client.KeyOf(tc.root)
			got := ""
			if p := m.placement(s, k); p != nil {
				got = p.Name
			}
			if got != tc.want {
				t.Errorf("it goes by Placement %q, want %q", got, tc.want)
			}
			if name != "Awaits" {
				return
			}
			if m.look(t, key{"Deployment", k}); len(m.everywhere(t, &appsv1.DeploymentList{}, "web")) > 0 {
				t.Error("it is begun before anybody knows where")
			}
		})
	}
}

// TestOwnWishBesideWhatStays: nor does it begin beside what stays somewhere. What is of the server's own making has no wish.
func TestOwnWishBesideWhatStays(t *testing.T) {
	root, leaf := staying(t)
	service := func(namespace, name string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name),
			Annotations: map[string]string{lcctx.Annotation: "shop", placementv1alpha1.ClustersAnnotation: "west"}}}
	}
	wishes, given := service("front", "wishes"), service("default", "kubernetes")
	m := newMirrored(t, root, leaf, wishes, given, placementOf("", "Placed", mirrorWest), spaceIn(mirrorEast))
	s := m.sources["Service"]
	if got := m.goesTo(s, client.KeyOf(wishes), m.placement(s, client.KeyOf(wishes)), []logicalcluster.Name{mirrorEast}); len(got) > 0 {
		t.Errorf("it goes to %v", got)
	}
	if !m.awaitsItsOwn(s, client.KeyOf(wishes)) || m.awaitsItsOwn(s, client.KeyOf(given)) {
		t.Error("the one awaits its Placement, and the other has none")
	}
}

// TestSiblingsThatCannotBeRead: a row of somebody's that cannot be read keeps nobody else's claims from their clusters.
func TestSiblingsThatCannotBeRead(t *testing.T) {
	m := newMirrored(t, claimOf("data"), claimOf("logs"), mounting("web", "data", "logs"), placedOn(mirrorEast), spaceIn(mirrorEast))
	unnamed := 0
	m.clients.Objects = interceptor.NewClient(m.objects, interceptor.Funcs{List: func(ctx context.Context, c ctrlclient.WithWatch, list ctrlclient.ObjectList, opts ...ctrlclient.ListOption) error {
		in, _ := lcctx.ClusterFrom(ctx)
		if _, claims := list.(*corev1.PersistentVolumeClaimList); claims && in.Wildcard && (&ctrlclient.ListOptions{}).ApplyOptions(opts).FieldSelector == nil {
			unnamed++
			return apierrors.NewInternalError(errors.New("a row cannot be read"))
		}
		return c.List(ctx, list, opts...)
	}})
	m.look(t, key{kinds.ClaimKind, client.KeyOf(claimOf("data"))})
	if got := m.everywhere(t, &corev1.PersistentVolumeClaimList{}, "data"); !slices.Equal(got, []string{"east"}) || unnamed == 0 {
		t.Errorf("it is in %v, after %d lists without a name", got, unnamed)
	}
}

func cloned(objects []ctrlclient.Object) (clones []ctrlclient.Object) {
	for _, o := range objects {
		clones = append(clones, o.DeepCopyObject().(ctrlclient.Object))
	}
	return clones
}
