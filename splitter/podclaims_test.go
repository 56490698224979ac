package splitter

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

const (
	keepClaims   = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	deleteClaims = appsv1.DeletePersistentVolumeClaimRetentionPolicyType
)

// setOf is a StatefulSet of the workspace whose pods have a claim each.
func setOf(replicas int32) *appsv1.StatefulSet {
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "front", Name: "db", UID: "root", Generation: 1, CreationTimestamp: metav1.Unix(0, 0), Annotations: map[string]string{lcctx.Annotation: "shop"}},
		Spec:       appsv1.StatefulSetSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}},
	}
	withClaims(set)
	set.Spec.VolumeClaimTemplates[0].Labels = map[string]string{"tier": "data"}
	set.Spec.VolumeClaimTemplates[0].Spec = corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeName: "theirs"}
	return set
}

func retaining(set *appsv1.StatefulSet, deleted, scaled appsv1.PersistentVolumeClaimRetentionPolicyType) *appsv1.StatefulSet {
	set.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenDeleted: deleted, WhenScaled: scaled}
	return set
}

// podOf is a pod of the StatefulSet, as the workspace shows it.
func podOf(set *appsv1.StatefulSet, ordinal int) *corev1.Pod {
	name := fmt.Sprintf("%s-%d", set.Name, ordinal)
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: set.Namespace, Name: name, UID: types.UID(name), Labels: map[string]string{"app": "db"},
		Annotations:     map[string]string{lcctx.Annotation: "shop"},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))}}}
}

func scaledTo(set *appsv1.StatefulSet, pods int32) *appsv1.StatefulSet {
	set.Status = appsv1.StatefulSetStatus{ObservedGeneration: set.Generation, Replicas: pods} // of pods that are there
	return set
}

// inBank moves an object to a workspace of which nobody has said that it is ready.
func inBank[T ctrlclient.Object](o T) T {
	o.SetAnnotations(map[string]string{lcctx.Annotation: "bank"})
	return o
}

// TestPodClaims: the workspace has the claims of a StatefulSet's pods, as a cluster has them.
func TestPodClaims(t *testing.T) {
	t.Parallel()
	owned := claimOf("data-db-0")
	owned.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(setOf(1), appsv1.SchemeGroupVersion.WithKind("StatefulSet"))}
	others := claimOf("data-db-0")
	others.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Database", Name: "db", UID: "other", Controller: ptr.To(true)}}
	withPod := claimOf("data-db-1")
	withPod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(podOf(setOf(2), 1), corev1.SchemeGroupVersion.WithKind("Pod"))}
	refusing := statefulSetLeaf(t, setOf(1), mirrorEast, 2)
	refusing.Annotations[workloadv1alpha1.RefusedAnnotation] = `{"reason":"Forbidden","message":"no","rendered":"` + refusing.Annotations[workloadv1alpha1.RenderedAnnotation] + `"}`
	ends := func() ctrlclient.Object {
		leaf := claimLeaf(t, claimOf("data-db-0"), mirrorEast)
		leaf.DeletionTimestamp = ptr.To(metav1.Now())
		return leaf
	}
	for name, tc := range map[string]struct {
		reason  string
		set     *appsv1.StatefulSet
		objects []ctrlclient.Object
		want    string // claims, with the kinds of their owners
		made    bool
		told    string
	}{
		"Made":       {"each pod has one", setOf(2), []ctrlclient.Object{placedOn(mirrorEast)}, "data-db-0 data-db-1", true, "SuccessfulCreate"},
		"NotPlaced":  {"it has not begun", setOf(2), []ctrlclient.Object{placedOn()}, "", false, ""},
		"Stays":      {"it runs on where it is not placed any more", setOf(2), []ctrlclient.Object{placedOn(), statefulSetLeaf(t, setOf(1), mirrorEast, 1)}, "data-db-0 data-db-1", true, "SuccessfulCreate"},
		"There":      {"a claim is its pod's, whoever made it", setOf(1), []ctrlclient.Object{placedOn(mirrorEast), claimOf("data-db-0")}, "data-db-0", false, ""},
		"OneMore":    {"it was scaled up", setOf(2), []ctrlclient.Object{placedOn(mirrorEast), claimOf("data-db-0")}, "data-db-0 data-db-1", true, "SuccessfulCreate"},
		"StillThere": {"the one that was deleted has its pod yet", setOf(2), []ctrlclient.Object{placedOn(mirrorEast), ends()}, "data-db-1", true, "SuccessfulCreate"},
		"Planted":    {"another workspace calls a claim of its own a leaf of it", setOf(1), []ctrlclient.Object{placedOn(mirrorEast), claimLeaf(t, claimOf("data-db-0"), "bank")}, "data-db-0", true, "SuccessfulCreate"},
		"NotReady":   {"its workspace is imported: its claims are on their way", inBank(setOf(1)), []ctrlclient.Object{inBank(placedOn(mirrorEast))}, "", false, ""},
		"GoesWithIt": {"as it says", retaining(setOf(1), deleteClaims, keepClaims), []ctrlclient.Object{placedOn(mirrorEast)}, "data-db-0/StatefulSet", true, "SuccessfulCreate"},
		"GoesNow":    {"it says so since a while", retaining(setOf(1), deleteClaims, keepClaims), []ctrlclient.Object{placedOn(mirrorEast), claimOf("data-db-0")}, "data-db-0/StatefulSet", false, ""},
		"StaysNow":   {"it said so before", retaining(setOf(1), keepClaims, keepClaims), []ctrlclient.Object{placedOn(mirrorEast), owned}, "data-db-0", false, ""},
		"Others":     {"what something else controls is left to that", retaining(setOf(1), deleteClaims, keepClaims), []ctrlclient.Object{placedOn(mirrorEast), others}, "data-db-0/Database", false, ""},
		"ScalesDown": {"they go with their pods, which are there yet", scaledTo(retaining(setOf(1), keepClaims, deleteClaims), 3), []ctrlclient.Object{placedOn(mirrorEast), claimOf("data-db-0"), claimOf("data-db-1"), podOf(setOf(1), 0), podOf(setOf(1), 1)}, "data-db-0 data-db-1/Pod", false, ""},
		"ScaledDown": {"what its pod has left stays: it may be of another time", scaledTo(retaining(setOf(1), keepClaims, deleteClaims), 3), []ctrlclient.Object{placedOn(mirrorEast), claimOf("data-db-0"), claimOf("data-db-1")}, "data-db-0 data-db-1", false, ""},
		"ScaledByOther": {"the pod is somebody else's", scaledTo(retaining(setOf(1), keepClaims, deleteClaims), 3), []ctrlclient.Object{placedOn(mirrorEast), claimOf("data-db-0"), claimOf("data-db-1"), func() ctrlclient.Object {
			pod := podOf(setOf(1), 1)
			pod.OwnerReferences[0].UID = "other"
			return pod
		}()}, "data-db-0 data-db-1", false, ""},
		"ScalesUpAgain": {"it has its data", scaledTo(retaining(setOf(2), keepClaims, deleteClaims), 2), []ctrlclient.Object{placedOn(mirrorEast), claimOf("data-db-0"), withPod}, "data-db-0 data-db-1", false, ""},
		"NotAskedYet":   {"its leaf asks for the pod yet", scaledTo(retaining(setOf(1), keepClaims, deleteClaims), 3), []ctrlclient.Object{placedOn(mirrorEast), claimOf("data-db-0"), claimOf("data-db-1"), podOf(setOf(1), 1), statefulSetLeaf(t, setOf(2), mirrorEast, 2)}, "data-db-0 data-db-1", false, ""},
		"NotTaken":      {"its cluster refuses to scale it", scaledTo(retaining(setOf(1), keepClaims, deleteClaims), 3), []ctrlclient.Object{placedOn(mirrorEast), claimOf("data-db-0"), claimOf("data-db-1"), podOf(setOf(1), 1), refusing}, "data-db-0 data-db-1", false, ""},
		"KeptAfterAll":  {"it says so before the pod is gone", scaledTo(retaining(setOf(1), keepClaims, keepClaims), 3), []ctrlclient.Object{placedOn(mirrorEast), claimOf("data-db-0"), withPod, podOf(setOf(1), 1)}, "data-db-0 data-db-1", false, ""},
		"KeptByDefault": {"it says nothing any more", scaledTo(setOf(1), 1), []ctrlclient.Object{placedOn(mirrorEast), claimOf("data-db-0"), withPod}, "data-db-0 data-db-1", false, ""},
		"ScalesKept":    {"data stays by default", scaledTo(setOf(1), 3), []ctrlclient.Object{placedOn(mirrorEast), claimOf("data-db-0"), claimOf("data-db-1"), podOf(setOf(1), 1)}, "data-db-0 data-db-1", false, ""},
		"BothScales":    {"the pod goes first", scaledTo(retaining(setOf(1), deleteClaims, deleteClaims), 3), []ctrlclient.Object{placedOn(mirrorEast), claimOf("data-db-0"), claimOf("data-db-1"), podOf(setOf(1), 1)}, "data-db-0/StatefulSet data-db-1/Pod", false, ""},
		"Observed":      {"nothing is condemned any more", scaledTo(retaining(setOf(1), keepClaims, deleteClaims), 1), []ctrlclient.Object{placedOn(mirrorEast), claimOf("data-db-0"), claimOf("data-db-1"), podOf(setOf(1), 1)}, "data-db-0 data-db-1", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMirrored(t, append(cloned(tc.objects), tc.set.DeepCopy())...)
			s, k := m.sources["StatefulSet"], client.KeyOf(tc.set)
			seen, _ := s.get(k)
			made, err := m.podClaims(t.Context(), s, seen, m.placement(s, k), s.leaves(k))
			if err != nil || made != tc.made {
				t.Fatalf("made any: %v, %v, want %v", made, err, tc.made)
			}
			if got := m.claimsIn(t, "front"); got != tc.want {
				t.Errorf("%s: there are %q, want %q", tc.reason, got, tc.want)
			}
			if told := strings.Join(m.reasons(t), " "); told != tc.told {
				t.Errorf("%s: told %q, want %q", tc.reason, told, tc.told)
			}
		})
	}
}

// claimsIn returns the claims of a namespace, each with the kind of its first owner.
func (m *mirrored) claimsIn(t *testing.T, namespace string) string {
	t.Helper()
	list := &corev1.PersistentVolumeClaimList{}
	if err := m.objects.List(t.Context(), list, ctrlclient.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, claim := range list.Items {
		name := claim.Name
		for _, o := range claim.OwnerReferences {
			name += "/" + o.Kind
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// TestPodClaimIsAsInOneCluster: with the labels of the StatefulSet, and without a volume that is somebody else's.
func TestPodClaimIsAsInOneCluster(t *testing.T) {
	set := setOf(1)
	k, _ := kinds.ByKind("StatefulSet")
	want := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "front", Name: "data-db-0", Labels: map[string]string{"app": "db", "tier": "data"}},
		Spec:       corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}},
	}
	if diff := cmp.Diff(want, claimFor(set, k.PodClaimsOf(set)[0])); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
	if diff := cmp.Diff(setOf(1), set); diff != "" {
		t.Errorf("the StatefulSet was changed: -want, +got:\n%s", diff)
	}
}

// TestPodClaimsOfAnImport: those of the workspace are on their way, and must not meet others of their names.
func TestPodClaimsOfAnImport(t *testing.T) {
	set := setOf(1)
	m := newMirrored(t, set, placedOn(mirrorEast))
	c := &unran{m.Controller}
	is := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: corev1alpha1.LogicalClusterName, Annotations: map[string]string{lcctx.Annotation: "shop"}}}
	is.Status.Phase = corev1alpha1.LogicalClusterPhaseReady
	comes := is.DeepCopy()
	comes.Annotations[tenancyv1alpha1.ImportingAnnotation] = "since"
	k := key{"StatefulSet", client.KeyOf(set)}
	for name, tc := range map[string]struct {
		old  *corev1alpha1.LogicalCluster
		want bool
	}{"ready now": {comes, true}, "ready as before": {is, false}} {
		asked := c.asks(t, func() { m.onLogicalCluster(client.Event[*corev1alpha1.LogicalCluster]{Old: tc.old, New: is}) })
		if got := slices.Contains(asked, k); got != tc.want {
			t.Errorf("%s: the StatefulSet is asked for: %v", name, got)
		}
	}
	if isReady(comes) || !isReady(is) {
		t.Error("what is imported is ready")
	}
}

// TestPodClaimRefused: by a quota for instance. It is told, and tried again, and of those after it none is made.
func TestPodClaimRefused(t *testing.T) {
	ending := func(namespace string) error {
		err := apierrors.NewForbidden(corev1.Resource("persistentvolumeclaims"), "data-db-1", fmt.Errorf("namespace %s is being terminated", namespace))
		err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
		return err
	}
	for name, tc := range map[string]struct {
		refusal error
		told    string
		fails   bool
	}{
		"Quota":  {apierrors.NewForbidden(corev1.Resource("persistentvolumeclaims"), "data-db-1", fmt.Errorf("exceeded quota")), "FailedCreate SuccessfulCreate", true},
		"Ending": {ending("front"), "SuccessfulCreate", false},
	} {
		t.Run(name, func(t *testing.T) {
			set := setOf(3)
			m := newMirrored(t, set, placedOn(mirrorEast))
			m.clients.Objects = interceptor.NewClient(m.objects, interceptor.Funcs{Create: func(ctx context.Context, c ctrlclient.WithWatch, o ctrlclient.Object, opts ...ctrlclient.CreateOption) error {
				if o.GetName() == "data-db-1" {
					return tc.refusal
				}
				return c.Create(ctx, o, opts...)
			}})
			s, k := m.sources["StatefulSet"], client.KeyOf(set)
			seen, _ := s.get(k)
			if _, err := m.podClaims(t.Context(), s, seen, m.placement(s, k), nil); (err != nil) != tc.fails {
				t.Errorf("it fails: %v, want %v", err, tc.fails)
			}
			if got := m.claimsIn(t, "front"); got != "data-db-0" {
				t.Errorf("there are %q", got)
			}
			if told := strings.Join(m.reasons(t), " "); told != tc.told {
				t.Errorf("told %q, want %q", told, tc.told)
			}
		})
	}
}

// TestStatefulSetStartsWithItsClaims: as many pods are asked for as have claims that their cluster has taken, and never fewer than it has.
func TestStatefulSetStartsWithItsClaims(t *testing.T) {
	t.Parallel()
	set := setOf(2)
	claims := []ctrlclient.Object{claimOf("data-db-0"), claimOf("data-db-1")}
	leaf := func(name string, annotation string) ctrlclient.Object {
		l := claimLeaf(t, claimOf(name), mirrorEast)
		text := l.Annotations[workloadv1alpha1.AppliedAnnotation]
		delete(l.Annotations, workloadv1alpha1.AppliedAnnotation)
		if annotation == workloadv1alpha1.RefusedAnnotation {
			text = `{"reason":"Forbidden","message":"exceeded quota","rendered":"` + text + `"}`
		}
		if annotation != "" {
			l.Annotations[annotation] = text
		}
		return l
	}
	inWest := func(name string) ctrlclient.Object { return claimLeaf(t, claimOf(name), mirrorWest) }
	gone := claimLeaf(t, claimOf("data-db-1"), mirrorEast)
	gone.Annotations[workloadv1alpha1.RefusedAnnotation] = `{"reason":"` + workloadv1alpha1.RefusedGone + `","message":"gone","rendered":"` + gone.Annotations[workloadv1alpha1.RenderedAnnotation] + `"}`
	const taken, refused = workloadv1alpha1.AppliedAnnotation, workloadv1alpha1.RefusedAnnotation
	for name, tc := range map[string]struct {
		reason  string
		objects []ctrlclient.Object
		want    int32 // replicas of the leaf in east, -1 for none
	}{
		"NoCluster":  {"they have no cluster yet", nil, -1},
		"NoAnswer":   {"their cluster has not taken them", []ctrlclient.Object{leaf("data-db-0", taken), leaf("data-db-1", "")}, -1},
		"Taken":      {"they are there", []ctrlclient.Object{leaf("data-db-0", taken), leaf("data-db-1", taken)}, 2},
		"OneRefused": {"the first pod has its own", []ctrlclient.Object{leaf("data-db-0", taken), leaf("data-db-1", refused)}, 1},
		"Refused":    {"no pod has its own", []ctrlclient.Object{leaf("data-db-0", refused), leaf("data-db-1", taken)}, 0},
		"Runs":       {"an earlier version left its claims to the cluster", []ctrlclient.Object{statefulSetLeaf(t, set, mirrorEast, 2)}, 2},
		"Grows":      {"its second claim is not there yet", []ctrlclient.Object{statefulSetLeaf(t, setOf(1), mirrorEast, 1), leaf("data-db-0", taken), leaf("data-db-1", "")}, 1},
		"HasGrown":   {"its second claim is there", []ctrlclient.Object{statefulSetLeaf(t, setOf(1), mirrorEast, 1), leaf("data-db-0", taken), leaf("data-db-1", taken)}, 2},
		"InAnother":  {"its claims are where it is not placed", []ctrlclient.Object{statefulSetLeaf(t, setOf(0), mirrorEast, 0), inWest("data-db-0"), inWest("data-db-1")}, 0},
		"Lost":       {"the claim of its second pod was lost", []ctrlclient.Object{statefulSetLeaf(t, setOf(1), mirrorEast, 1), leaf("data-db-0", taken), gone}, 1},
		"Hole":       {"its first pod runs, and its claim is on its way out", []ctrlclient.Object{statefulSetLeaf(t, setOf(1), mirrorEast, 1), leaf("data-db-1", taken)}, 2},
		"Shrinks":    {"its claims are not asked about", []ctrlclient.Object{statefulSetLeaf(t, setOf(4), mirrorEast, 4)}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMirrored(t, append(cloned(append(slices.Clone(claims), tc.objects...)), set.DeepCopy(), placedOn(mirrorEast), spaceIn(mirrorEast))...)
			m.look(t, key{"StatefulSet", client.KeyOf(set)})
			got := int32(-1)
			there := &appsv1.StatefulSet{}
			switch err := m.objects.Get(t.Context(), types.NamespacedName{Namespace: "front-" + mirrorEast, Name: "db"}, there); {
			case err == nil:
				got = *there.Spec.Replicas
			case !apierrors.IsNotFound(err):
				t.Fatal(err)
			}
			if got != tc.want {
				t.Errorf("%s: it asks for %d pods, want %d", tc.reason, got, tc.want)
			}
		})
	}
}

// TestPodClaimGoesWhereItsSetRuns: an earlier version left the claims to the cluster, which has them, and by now it may be placed elsewhere.
func TestPodClaimGoesWhereItsSetRuns(t *testing.T) {
	unapplied := statefulSetLeaf(t, setOf(1), mirrorEast, 0)
	delete(unapplied.Annotations, workloadv1alpha1.AppliedAnnotation)
	unapplied.Status = appsv1.StatefulSetStatus{}
	for name, tc := range map[string]struct {
		leaf *appsv1.StatefulSet
		want string
	}{
		"Runs":     {statefulSetLeaf(t, setOf(1), mirrorEast, 1), "east"},
		"Grows":    {statefulSetLeaf(t, setOf(0), mirrorEast, 0), "east"},
		"NeverRan": {unapplied, "west"},
	} {
		t.Run(name, func(t *testing.T) {
			claim := claimOf("data-db-0")
			m := newMirrored(t, setOf(1), claim, tc.leaf.DeepCopy(), placedOn(mirrorWest), spaceIn(mirrorEast), spaceIn(mirrorWest), targetOf("west", mirrorWest, everyKind()...))
			m.look(t, key{kinds.ClaimKind, client.KeyOf(claim)})
			if got := m.everywhere(t, &corev1.PersistentVolumeClaimList{}, "data-db-0"); !slices.Equal(got, []string{tc.want}) {
				t.Errorf("it is in %v, want %s", got, tc.want)
			}
		})
	}
}

// TestAnswerToAClaimIsHeardOf: what waits for it is asked for again, whatever was said before.
func TestAnswerToAClaimIsHeardOf(t *testing.T) {
	set := setOf(1)
	m := newMirrored(t, set)
	c := &unran{m.Controller}
	leaf := func(annotations ...string) ctrlclient.Object {
		l := claimLeaf(t, claimOf("data-db-0"), mirrorEast)
		text := l.Annotations[workloadv1alpha1.AppliedAnnotation]
		delete(l.Annotations, workloadv1alpha1.AppliedAnnotation)
		for _, a := range annotations {
			l.Annotations[a] = text
			if a == workloadv1alpha1.RefusedAnnotation {
				l.Annotations[a] = `{"reason":"NameConflict","message":"x","rendered":"` + text + `"}`
			}
		}
		return l
	}
	const taken, refused = workloadv1alpha1.AppliedAnnotation, workloadv1alpha1.RefusedAnnotation
	for name, tc := range map[string]struct {
		old, now ctrlclient.Object
		want     bool
	}{
		"taken":               {leaf(), leaf(taken), true},
		"refused":             {leaf(), leaf(refused), true},
		"taken after all":     {leaf(refused), leaf(taken), true},
		"as it was":           {leaf(taken), leaf(taken), false},
		"a change is refused": {leaf(taken), leaf(taken, refused), false},
	} {
		asked := c.asks(t, func() { c.onObject(c.sources[kinds.ClaimKind].Kind, change{old: tc.old, new: tc.now}) })
		if got := slices.Contains(asked, key{"StatefulSet", client.KeyOf(set)}); got != tc.want {
			t.Errorf("%s: the StatefulSet is asked for: %v, want %v", name, got, tc.want)
		}
	}
}
