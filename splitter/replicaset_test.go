package splitter

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// crewOf returns a ReplicaSet that asks for replicas of an image.
func crewOf(replicas int32, image string) *appsv1.ReplicaSet {
	r := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: "front", Name: "web", UID: "root", Generation: 1, Annotations: map[string]string{lcctx.Annotation: "shop"}}}
	r.Spec.Replicas = &replicas
	r.Spec.Template.Spec.Containers = []corev1.Container{{Name: "web", Image: image}}
	return r
}

// crewLeaf is the rendering of a ReplicaSet in a mirror, as its cluster has taken it and says: so many of its pods serve.
func crewLeaf(t *testing.T, root *appsv1.ReplicaSet, mirror string, replicas, serve int32) *appsv1.ReplicaSet {
	t.Helper()
	k, _ := kinds.ByKind("ReplicaSet")
	down := given(k, root, gift{access: kinds.APIAccessFor(&root.Spec.Template.Spec, &corev1.ServiceAccount{}), template: kinds.TemplateDigest(&root.Spec.Template)})
	st := &site{step: Step{Write: true, Replicas: replicas}, roll: Roll{Verbatim: true}}
	leaf, err := st.render(k, down, "front-"+mirror)
	if err != nil {
		t.Fatal(err)
	}
	r := leaf.(*appsv1.ReplicaSet)
	r.UID = types.UID("leaf-" + mirror)
	r.Annotations[lcctx.Annotation] = mirror
	r.Annotations[workloadv1alpha1.AppliedAnnotation] = r.Annotations[workloadv1alpha1.RenderedAnnotation]
	r.Generation = 1
	r.Status = appsv1.ReplicaSetStatus{ObservedGeneration: 1, Replicas: replicas, FullyLabeledReplicas: replicas, ReadyReplicas: serve, AvailableReplicas: serve}
	return r
}

// TestReplicaSetsLabelsStay: a Deployment of its namespace in a physical cluster would take it over by them. Its pods have theirs.
func TestReplicaSetsLabelsStay(t *testing.T) {
	t.Parallel()
	root := crewOf(1, "web")
	root.Labels = map[string]string{"app": "web"}
	root.Spec.Template.Labels = map[string]string{"app": "web"}
	leaf := crewLeaf(t, root, mirrorEast, 1, 1)
	if _, has := leaf.Labels["app"]; has || leaf.Spec.Template.Labels["app"] != "web" {
		t.Errorf("the leaf has labels %v, and its pods %v", leaf.Labels, leaf.Spec.Template.Labels)
	}
}

// TestReplicaSetMoves: its leaf in east has what west does not serve yet, and goes when west serves all; and it goes for no cluster that does not
// carry ReplicaSets. The leaf that is left keeps its template, as a leaf that stays does not.
func TestReplicaSetMoves(t *testing.T) {
	t.Parallel()
	root := crewOf(4, "new")
	serves := func(n int32) func(*testing.T) *appsv1.ReplicaSet {
		return func(t *testing.T) *appsv1.ReplicaSet { return crewLeaf(t, root, mirrorWest, 4, n) }
	}
	for name, tc := range map[string]struct {
		reason         string
		west           func(*testing.T) *appsv1.ReplicaSet
		carries        bool
		placed         []string
		image          string // of the leaf in east
		left           int32  // that the leaf in east asks for afterwards; 0 for a tombstone
		draining, made bool
		condition      string // of the root, which says it at once
	}{
		"Made":       {"there is nothing in west yet", nil, true, []string{mirrorWest}, "old", 4, true, true, ""},
		"Starting":   {"west serves nothing", serves(0), true, []string{mirrorWest}, "old", 4, true, true, ""},
		"HalfWay":    {"west serves half of them", serves(2), true, []string{mirrorWest}, "old", 2, true, true, ""},
		"Serves":     {"west serves all", serves(4), true, []string{mirrorWest}, "old", 0, false, true, ""},
		"NotCarried": {"west will not have it", nil, false, []string{mirrorWest}, "old", 4, true, false, `NotCarried: Not on "mirrorwest`},
		"Beside":     {"east has the share of who does not carry it, and its pods stay", nil, false, []string{mirrorEast, mirrorWest}, "new", 4, false, false, `NotCarried: Not on "mirrorwest`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			east := crewLeaf(t, crewOf(4, "old"), mirrorEast, 4, 4)
			west := targetOf("west", mirrorWest)
			if tc.carries {
				west = targetOf("west", mirrorWest, "replicasets.apps")
			}
			p := placementOf("", "Placed", tc.placed...)
			p.Status.Conditions[0].Status = metav1.ConditionTrue
			objects := []ctrlclient.Object{root.DeepCopy(), east, west, targetOf("east", mirrorEast, "replicasets.apps"), spaceIn(mirrorWest), p}
			if tc.west != nil {
				objects = append(objects, tc.west(t))
			}
			m := newMirrored(t, objects...)
			m.look(t, key{"ReplicaSet", client.KeyOf(root)})
			if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(east), east); err != nil {
				t.Fatal(err)
			}
			switch draining := east.Annotations[workloadv1alpha1.DrainingAnnotation] != ""; {
			case tc.left == 0 && east.DeletionTimestamp == nil:
				t.Errorf("%s: the leaf in east asks for %d, want a tombstone", tc.reason, *east.Spec.Replicas)
			case tc.left == 0:
			case east.DeletionTimestamp != nil || *east.Spec.Replicas != tc.left || draining != tc.draining || east.Spec.Template.Spec.Containers[0].Image != tc.image:
				t.Errorf("%s: the leaf in east asks for %d of %s, draining: %v, deleted: %v; want %d of %s, draining: %v",
					tc.reason, *east.Spec.Replicas, east.Spec.Template.Spec.Containers[0].Image, draining, east.DeletionTimestamp, tc.left, tc.image, tc.draining)
			}
			leaves := &appsv1.ReplicaSetList{}
			if err := m.objects.List(t.Context(), leaves, ctrlclient.HasLabels{workloadv1alpha1.WorkspaceLabel}); err != nil {
				t.Fatal(err)
			}
			if made := len(leaves.Items) > 1; made != tc.made {
				t.Errorf("%s: there are %d leaves", tc.reason, len(leaves.Items))
			}
			told := &appsv1.ReplicaSet{}
			if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(root), told); err != nil {
				t.Fatal(err)
			}
			said := ""
			for _, c := range told.Status.Conditions {
				if c.Type == kinds.ConditionPlaced {
					said += c.Reason + ": " + c.Message
				}
			}
			if tc.condition != "" && (told.Status.Replicas != 4 || !strings.HasPrefix(said, tc.condition)) || tc.condition == "" && said != "" {
				t.Errorf("%s: the root says %+v, want 4 replicas and %q", tc.reason, told.Status, tc.condition)
			}
		})
	}
}

// TestReplicaSetTakesAnotherTemplate: in all its clusters at once, since no pod goes for that.
func TestReplicaSetTakesAnotherTemplate(t *testing.T) {
	t.Parallel()
	k, _ := kinds.ByKind("ReplicaSet")
	root := crewOf(4, "new")
	before := crewOf(4, "old")
	sites := []*site{
		{id: "east", assigned: true, weight: 1, leaf: crewLeaf(t, before, mirrorEast, 2, 2)},
		{id: "west", assigned: true, weight: 1, leaf: crewLeaf(t, before, mirrorWest, 2, 1)},
	}
	if decide(root, placementv1alpha1.SplitEven, sites) {
		t.Error("it rests on what others do")
	}
	for _, st := range sites {
		leaf, err := st.render(k, root, "front-hash")
		if err != nil {
			t.Fatal(err)
		}
		if r := leaf.(*appsv1.ReplicaSet); *r.Spec.Replicas != 2 || r.Spec.Template.Spec.Containers[0].Image != "new" || r.Annotations[workloadv1alpha1.RevisionAnnotation] != "" {
			t.Errorf("%s is to have %+v", st.id, r)
		}
	}
	// Of too many, those go first that do not serve, whatever their template: so it shrinks to what serves.
	shrinks := &site{id: "east", leaf: crewLeaf(t, before, mirrorEast, 4, 3)}
	others := &site{id: "west", assigned: true, weight: 1, leaf: crewLeaf(t, root, mirrorWest, 4, 1)}
	if decide(root, placementv1alpha1.SplitEven, []*site{shrinks, others}); shrinks.step.Replicas != 3 || !shrinks.step.Draining {
		t.Errorf("what is left, of which 3 of 4 serve, is to do %+v where another serves 1", shrinks.step)
	}
	// It shrinks to that while its template changes, too, where a Deployment's leaf would wait: the update takes nothing from it.
	for image, template := range map[string]*appsv1.ReplicaSet{"old": before, "new": root} {
		tooMany := &site{id: "east", assigned: true, weight: 1, leaf: crewLeaf(t, template, mirrorEast, 4, 1)}
		tooFew := &site{id: "west", assigned: true, weight: 1, leaf: crewLeaf(t, template, mirrorWest, 2, 0)}
		if decide(root, placementv1alpha1.SplitEven, []*site{tooMany, tooFew}); tooMany.step.Replicas != 2 || tooMany.roll.Hold {
			t.Errorf("what has 4 %s pods, of which 1 serves, and is to have 2, is to do %+v, %+v", image, tooMany.step, tooMany.roll)
		}
	}
	// A template that lacks its ServiceAccount stays where it is, and so does the leaf's.
	lacking := &site{id: "east", assigned: true, weight: 1, leaf: crewLeaf(t, before, mirrorEast, 4, 4), lacks: noAccount{"robot"}}
	decide(root, placementv1alpha1.SplitEven, []*site{lacking})
	leaf, err := lacking.render(k, root, "front-hash")
	if err != nil {
		t.Fatal(err)
	}
	if got := leaf.(*appsv1.ReplicaSet).Spec.Template.Spec.Containers[0].Image; got != "old" {
		t.Errorf("without its ServiceAccount the template goes down: %s", got)
	}
}

// TestShareOfWhatIsNotCarried: the others have it, but not those that are to have nothing; and until somebody can have it, all stays.
func TestShareOfWhatIsNotCarried(t *testing.T) {
	t.Parallel()
	root := crewOf(4, "web")
	for name, tc := range map[string]struct {
		reason string
		sites  []*site
		want   map[string]int32 // what the leaves are to ask for
	}{
		"Others": {"east has all",
			[]*site{{id: "east", assigned: true, weight: 1}, {id: "west", assigned: true, weight: 1, barred: true}}, map[string]int32{"east": 4}},
		"Weighted": {"east is to have none",
			[]*site{{id: "east", assigned: true}, {id: "west", assigned: true, weight: 1, barred: true}}, map[string]int32{"east": 0}},
		"Equal": {"no weight is as good as any",
			[]*site{{id: "east", assigned: true}, {id: "west", assigned: true, barred: true}}, map[string]int32{"east": 4}},
		"Left": {"what is left stays where all that comes after it is barred",
			[]*site{{id: "east", leaf: crewLeaf(t, root, mirrorEast, 4, 4)}, {id: "west", assigned: true, weight: 1, barred: true}}, map[string]int32{"east": 4}},
	} {
		decide(root, placementv1alpha1.SplitWeighted, tc.sites)
		got := map[string]int32{}
		for _, st := range tc.sites {
			if st.step.Delete {
				t.Errorf("%s: %s is to be left", tc.reason, st.id)
			}
			if st.step.Write {
				got[st.id] = st.step.Replicas
			}
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s, %s: -want, +got:\n%s", name, tc.reason, diff)
		}
	}
}

// TestRevisionsDoNotGoDown: ReplicaSets of a Deployment are records, and all others go. One that a Deployment takes goes from where it was.
func TestRevisionsDoNotGoDown(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		owner *metav1.OwnerReference
		want  bool
	}{
		"nobody's":             {nil, true},
		"of a custom resource": {&metav1.OwnerReference{APIVersion: "argoproj.io/v1alpha1", Kind: "Rollout", Name: "web", UID: "o", Controller: ptr.To(true)}, true},
		"of a Deployment":      {&metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "o", Controller: ptr.To(true)}, false},
		"of a StatefulSet":     {&metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: "o", Controller: ptr.To(true)}, true},
		"a Deployment that is not its controller": {&metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "o"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			owned := crewOf(2, "web")
			if tc.owner != nil {
				owned.OwnerReferences = []metav1.OwnerReference{*tc.owner}
			}
			p := placementOf("", "Placed", mirrorEast)
			m := newMirrored(t, owned, spaceIn(mirrorEast), p)
			m.look(t, key{"ReplicaSet", client.KeyOf(owned)})
			if made := len(m.everywhere(t, &appsv1.ReplicaSetList{}, "web")) > 0; made != tc.want {
				t.Errorf("it goes down: %v, want %v", made, tc.want)
			}
			if sums, _ := m.sumsOf(p); (len(sums) > 0) != tc.want {
				t.Errorf("its Placement counts %v", sums)
			}
		})
		t.Run(name+", by now", func(t *testing.T) {
			t.Parallel()
			root := crewOf(2, "web")
			leaf := crewLeaf(t, root, mirrorEast, 2, 2)
			m := newMirrored(t, root, leaf, placementOf("", "Placed", mirrorEast))
			if tc.owner != nil {
				root.OwnerReferences = []metav1.OwnerReference{*tc.owner}
			}
			if err := m.objects.Update(t.Context(), root); err != nil {
				t.Fatal(err)
			}
			k := key{"ReplicaSet", client.KeyOf(root)}
			for began := time.Now(); ; runtime.Gosched() { // until the informer shows it
				if now, ok := m.sources["ReplicaSet"].get(k.Key); ok == tc.want && (!ok || len(now.GetOwnerReferences()) == len(root.OwnerReferences)) {
					break
				} else if time.Since(began) > time.Minute {
					t.Fatalf("the informer shows %v", now)
				}
			}
			goes := func() bool { // as far as a syncer that does not run lets it
				if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(leaf), leaf); err != nil {
					t.Fatal(err)
				}
				return leaf.DeletionTimestamp != nil
			}
			if m.look(t, k); !tc.want {
				m.lookUntil(t, k, "its leaf goes", goes) // which is when the handler was told too: later than the informer shows
			} else if goes() {
				t.Error("its leaf goes")
			}
		})
	}
}

// TestRevisionsAreHeldOnce: the informer of what goes down has no revision, nor that of revisions anything else.
func TestRevisionsAreHeldOnce(t *testing.T) {
	t.Parallel()
	own, record := crewOf(2, "web"), crewOf(2, "web")
	record.Name, record.UID = "web-5d8c", "record"
	record.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "o", Controller: ptr.To(true)}}
	m := newMirrored(t, own, record)
	names := func(objects []ctrlclient.Object) (names []string) {
		for _, o := range objects {
			names = append(names, o.GetName())
		}
		return slices.Sorted(slices.Values(names))
	}
	if diff := cmp.Diff([]string{"web"}, names(m.sources["ReplicaSet"].list("shop", "front"))); diff != "" {
		t.Errorf("what goes down: -want, +got:\n%s", diff)
	}
	var records []ctrlclient.Object
	for _, r := range m.informers.ReplicaSets.List("shop", "front") {
		records = append(records, r)
	}
	if diff := cmp.Diff([]string{"web-5d8c"}, names(records)); diff != "" {
		t.Errorf("the revisions: -want, +got:\n%s", diff)
	}
}

// TestReplicaSetOfTwoTemplates: what pods of an earlier template refer to stays for as long as there may be some: until their cluster has told of a
// time without pods.
func TestReplicaSetOfTwoTemplates(t *testing.T) {
	t.Parallel()
	with := func(replicas int32, settings string) *appsv1.ReplicaSet {
		r := crewOf(replicas, "web")
		r.Spec.Template.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{
			ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: settings}}}}
		return r
	}
	root := with(2, "settings-2")
	root.Generation = 2
	p := placementOf("", "Placed", mirrorEast)
	leaf := crewLeaf(t, with(2, "settings-1"), mirrorEast, 2, 2)
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings-1", Namespace: "front-" + mirrorEast, UID: "leaf-settings",
		Labels:      map[string]string{workloadv1alpha1.WorkspaceLabel: "shop", workloadv1alpha1.RootUIDLabel: "root-settings"},
		Annotations: map[string]string{lcctx.Annotation: mirrorEast, workloadv1alpha1.RootAnnotation: "front/settings-1"}}}
	m := newMirrored(t, root, leaf, settings, spaceIn(mirrorEast), p)
	k := key{"ReplicaSet", client.KeyOf(root)}
	read := func() *appsv1.ReplicaSet {
		t.Helper()
		if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(leaf), leaf); err != nil {
			t.Fatal(err)
		}
		return leaf
	}
	// takes: the cluster takes the leaf as it is by then, and tells of so many pods, and of so many that are on their way out.
	takes := func(pods, terminating int32) {
		t.Helper()
		now := read()
		now.Annotations[lcctx.Annotation] = mirrorEast // as the server does, and the fake does not
		now.Annotations[workloadv1alpha1.AppliedAnnotation] = now.Annotations[workloadv1alpha1.RenderedAnnotation]
		if err := m.objects.Update(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		now.Status = appsv1.ReplicaSetStatus{ObservedGeneration: now.Generation, Replicas: pods, FullyLabeledReplicas: pods, ReadyReplicas: pods, AvailableReplicas: pods,
			TerminatingReplicas: &terminating}
		if err := m.objects.Status().Update(t.Context(), now); err != nil {
			t.Fatal(err)
		}
	}
	// edit: the root as it is by then, whose status is written beside us, is changed.
	edit := func(change func(spec *appsv1.ReplicaSetSpec)) {
		t.Helper()
		if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(root), root); err != nil {
			t.Fatal(err)
		}
		change(&root.Spec)
		root.Generation++
		if err := m.objects.Update(t.Context(), root); err != nil {
			t.Fatal(err)
		}
	}
	asks := func(replicas int32) {
		t.Helper()
		edit(func(spec *appsv1.ReplicaSetSpec) { spec.Replicas = &replicas })
		m.lookUntil(t, k, "the leaf asks for them", func() bool { return *read().Spec.Replicas == replicas })
	}
	needed := func() bool {
		t.Helper()
		got, err := m.needed(t.Context(), m.sources["ConfigMap"], client.Key{Cluster: "shop", Namespace: "front", Name: "settings-1"}, p, settings)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	stays := func(reason string) {
		t.Helper()
		if m.look(t, k); !needed() {
			t.Errorf("%s, and what the earlier template refers to is not needed", reason)
		}
	}
	m.lookUntil(t, k, "the leaf refers to settings-2", func() bool {
		return slices.Contains(needsOf(read()), kinds.Reference{Kind: "ConfigMap", Name: "settings-2"})
	})
	takes(2, 0)
	stays("two pods of the earlier template serve")
	asks(0)
	takes(0, 1)
	stays("one is on its way out")
	asks(3)
	takes(3, 0)
	stays("it grew before that was gone")
	asks(0)
	takes(0, 0)
	m.lookUntil(t, k, "nothing needs settings-1 when there are no pods", func() bool { return !needed() })
	takes(0, 0)
	asks(3)
	takes(3, 0)
	m.lookUntil(t, k, "nothing needs settings-1, since all pods are of the present template", func() bool { return !needed() })

	takes(3, 0)
	asks(0)
	takes(0, 0)
	asks(3)
	untold := read() // of the three that its cluster may make of the template of settings-2
	untold.Annotations[lcctx.Annotation] = mirrorEast
	if err := m.objects.Update(t.Context(), untold); err != nil {
		t.Fatal(err)
	}
	edit(func(spec *appsv1.ReplicaSetSpec) {
		spec.Template.Spec.Containers[0].EnvFrom[0].ConfigMapRef.Name = "settings-3"
	})
	m.lookUntil(t, k, "the leaf refers to settings-3", func() bool {
		return slices.Contains(needsOf(read()), kinds.Reference{Kind: "ConfigMap", Name: "settings-3"})
	})
	if read().Annotations[workloadv1alpha1.EarlierTemplateAnnotation] == "" {
		t.Error("it may have pods of what was written before, and is not marked")
	}
}
