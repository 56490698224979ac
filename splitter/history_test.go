package splitter

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// chronicler is a Controller that keeps the history of one Deployment, and what it writes.
type chronicler struct {
	t      *testing.T
	c      *Controller
	s      *source
	root   *appsv1.Deployment
	clock  *clocktesting.FakePassiveClock
	writes []string
	view   kinds.View
}

func newChronicler(t *testing.T) *chronicler {
	ch := &chronicler{t: t, clock: clocktesting.NewFakePassiveClock(time.Unix(1_000_000, 0))}
	wrote := func(verb string, o ctrlclient.Object) {
		if _, ok := o.(*corev1.Event); !ok {
			ch.writes = append(ch.writes, verb)
		}
	}
	objects := interceptor.NewClient(fake.NewClientBuilder().WithScheme(client.Scheme).WithStatusSubresource(&appsv1.ReplicaSet{}).Build(), interceptor.Funcs{
		Create: func(ctx context.Context, c ctrlclient.WithWatch, o ctrlclient.Object, opts ...ctrlclient.CreateOption) error {
			wrote("create", o)
			o.SetUID(types.UID("of " + o.GetName()))
			o.SetGeneration(1)
			return c.Create(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c ctrlclient.WithWatch, o ctrlclient.Object, p ctrlclient.Patch, opts ...ctrlclient.PatchOption) error {
			wrote("patch", o)
			before := &appsv1.ReplicaSet{}
			if err := c.Get(ctx, ctrlclient.ObjectKeyFromObject(o), before); ctrlclient.IgnoreNotFound(err) != nil {
				return err
			}
			if err := c.Patch(ctx, o, p, opts...); err != nil {
				return err
			}
			if r, ok := o.(*appsv1.ReplicaSet); ok && *r.Spec.Replicas != *before.Spec.Replicas { // which the fake does not do
				r.Generation++
				return c.Update(ctx, r)
			}
			return nil
		},
		SubResourcePatch: func(ctx context.Context, c ctrlclient.Client, sub string, o ctrlclient.Object, p ctrlclient.Patch, opts ...ctrlclient.SubResourcePatchOption) error {
			wrote(sub, o)
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		},
		Delete: func(ctx context.Context, c ctrlclient.WithWatch, o ctrlclient.Object, opts ...ctrlclient.DeleteOption) error {
			wrote("delete", o)
			return c.Delete(ctx, o) // the fake knows no preconditions
		},
	})
	k, _ := kinds.ByKind("Deployment")
	ch.s = &source{Kind: k}
	ch.c = &Controller{
		clients: &client.Clients{Objects: objects}, clock: ch.clock, told: lru.New(remembered), sources: map[string]*source{"Deployment": ch.s},
		recorded: client.NewPace[key](ch.clock),
	}
	ch.root = &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u", Annotations: map[string]string{"kubernetes.io/change-cause": "image 1"}},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](3), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "1"}}},
			},
		},
	}
	ch.view.Desired = 3
	return ch
}

// image changes the template, and says so as people do.
func (ch *chronicler) image(image string) {
	ch.root.Spec.Template.Spec.Containers[0].Image = image
	ch.root.Annotations["kubernetes.io/change-cause"] = "image " + image
}

// runs says that so many pods are there, so many of them of the present template, and that all are ready.
func (ch *chronicler) runs(pods, updated int32) {
	ch.view.Leaves = []kinds.Leaf{{SameTemplate: true, Settled: true, Object: &appsv1.Deployment{Status: appsv1.DeploymentStatus{
		Replicas: pods, UpdatedReplicas: updated, ReadyReplicas: pods, AvailableReplicas: pods,
	}}}}
}

// pass is one look at the Deployment, with a cache that shows everything, and returns how it wrote.
func (ch *chronicler) pass() []string {
	ch.t.Helper()
	return ch.passWith(ch.kept())
}

// kept is what a cache shows that has everything.
func (ch *chronicler) kept() (kept []ctrlclient.Object) {
	ch.t.Helper()
	list := &appsv1.ReplicaSetList{}
	if err := ch.c.clients.Objects.List(ch.t.Context(), list); err != nil {
		ch.t.Fatal(err)
	}
	for i := range list.Items {
		if r := &list.Items[i]; metav1.IsControlledBy(r, ch.root) {
			kinds.WithoutContent(r)
			kept = append(kept, r)
		}
	}
	return kept
}

func (ch *chronicler) passWith(kept []ctrlclient.Object) []string {
	ch.t.Helper()
	if err := ch.try(kept); err != nil {
		ch.t.Fatal(err)
	}
	return ch.writes
}

func (ch *chronicler) try(kept []ctrlclient.Object) error {
	ch.writes = nil
	now := ch.root.DeepCopy()
	h, _, err := ch.c.replicaSets(ch.t.Context(), ch.s, ch.root, now, kept, ch.view)
	if err == nil {
		err = ch.c.countReplicaSets(ch.t.Context(), ch.s, ch.root, h, ch.view)
	}
	if err == nil {
		ch.root = now
	}
	return err
}

// row is a ReplicaSet as people see it.
type row struct {
	Number, Image, Cause    string
	Desired, Current, Ready int32
}

func (ch *chronicler) rows() (rows []row) {
	ch.t.Helper()
	list := &appsv1.ReplicaSetList{}
	if err := ch.c.clients.Objects.List(ch.t.Context(), list); err != nil {
		ch.t.Fatal(err)
	}
	for _, r := range list.Items {
		rows = append(rows, row{
			r.Annotations[revisionAnnotation], r.Spec.Template.Spec.Containers[0].Image, r.Annotations["kubernetes.io/change-cause"],
			*r.Spec.Replicas, r.Status.Replicas, r.Status.ReadyReplicas,
		})
	}
	slices.SortFunc(rows, func(a, b row) int { return strings.Compare(a.Number+a.Image, b.Number+b.Image) })
	return rows
}

func (ch *chronicler) wrote(when string, got []string, want ...string) {
	ch.t.Helper()
	if !slices.Equal(got, want) {
		ch.t.Errorf("%s: wrote %q, want %q", when, got, want)
	}
}

// TestRevisionSaysNothingOfBefore: what a ReplicaSet said before a Deployment had it is not its status any more.
func TestRevisionSaysNothingOfBefore(t *testing.T) {
	ch := newChronicler(t)
	ch.pass()
	set := &appsv1.ReplicaSet{}
	if err := ch.c.clients.Objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(ch.kept()[0]), set); err != nil {
		t.Fatal(err)
	}
	set.Status.TerminatingReplicas = ptr.To[int32](1)
	set.Status.Conditions = []appsv1.ReplicaSetCondition{{Type: kinds.ConditionSynced, Status: corev1.ConditionFalse, Reason: "TakenOver"}}
	if err := ch.c.clients.Objects.Status().Update(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	ch.pass()
	if err := ch.c.clients.Objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(set), set); err != nil {
		t.Fatal(err)
	}
	if set.Status.TerminatingReplicas != nil || len(set.Status.Conditions) > 0 {
		t.Errorf("it says %+v", set.Status)
	}
}

// TestReplicaSets: a rollout costs four writes beside those of its steps, and nothing is written while nothing changes.
func TestReplicaSets(t *testing.T) {
	ch := newChronicler(t)
	ch.wrote("a new Deployment", ch.pass(), "create")
	ch.wrote("the same again", ch.pass())
	ch.runs(3, 3)
	ch.wrote("its pods", ch.pass(), "status")
	ch.wrote("the same again", ch.pass())
	if n := ch.root.Annotations[revisionAnnotation]; n != "1" {
		t.Errorf("the Deployment is of revision %q", n)
	}

	ch.image("2")
	ch.runs(3, 0)
	ch.wrote("a new template", ch.pass(), "create", "patch")
	ch.runs(4, 2)
	ch.wrote("a step", ch.pass(), "status", "status")
	if diff := cmp.Diff([]row{{"1", "1", "image 1", 0, 2, 2}, {"2", "2", "image 2", 3, 2, 2}}, ch.rows()); diff != "" {
		t.Errorf("half way (-want +got):\n%s", diff)
	}
	ch.runs(3, 3)
	ch.wrote("the end", ch.pass(), "status", "status")
	ch.wrote("the same again", ch.pass())

	ch.image("1")
	ch.wrote("the template of before", ch.pass(), "patch", "patch", "status", "status")
	if diff := cmp.Diff([]row{{"2", "2", "image 2", 0, 0, 0}, {"3", "1", "image 1", 3, 3, 3}}, ch.rows()); diff != "" {
		t.Errorf("gone back (-want +got):\n%s", diff)
	}
	list := &appsv1.ReplicaSetList{}
	if err := ch.c.clients.Objects.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	for _, r := range list.Items {
		if r.Spec.Template.Spec.Containers[0].Image == "1" && r.Annotations[revisionHistoryAnnotation] != "1" {
			t.Errorf("it does not remember its first number: %v", r.Annotations)
		}
		hash := r.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
		if r.Name != "web-"+hash || hash == "" || !maps.Equal(r.Labels, r.Spec.Template.Labels) || !maps.Equal(r.Labels, r.Spec.Selector.MatchLabels) {
			t.Errorf("%s has the labels %v, the template %v, the selector %v", r.Name, r.Labels, r.Spec.Template.Labels, r.Spec.Selector)
		}
		if o := metav1.GetControllerOf(&r); o == nil || o.UID != "u" || o.Kind != "Deployment" || !*o.BlockOwnerDeletion {
			t.Errorf("%s is controlled by %+v", r.Name, o)
		}
	}

	*ch.root.Spec.Replicas, ch.view.Desired = 5, 5
	ch.wrote("scaled", ch.pass(), "patch")
	ch.runs(5, 5)
	ch.wrote("its pods", ch.pass(), "status")
	ch.root.Spec.RevisionHistoryLimit = ptr.To[int32](0)
	ch.wrote("none is to be kept", ch.pass(), "delete")
	ch.wrote("the same again", ch.pass())
}

// TestRevisionWithoutRoom: where a workspace has no room for a revision it is told so, once, and what is too many goes all the same: it makes room.
func TestRevisionWithoutRoom(t *testing.T) {
	ch := newChronicler(t)
	for n := range 4 {
		ch.image(fmt.Sprint(n))
		ch.pass()
	}
	ch.image("new")
	ch.root.Spec.RevisionHistoryLimit = ptr.To[int32](1)
	objects := ch.c.clients.Objects
	full := apierrors.NewForbidden(appsv1.Resource("replicasets"), "web", fmt.Errorf("workspace %q has 9 objects, and may have 9", "root:shop"))
	ch.c.clients.Objects = interceptor.NewClient(objects, interceptor.Funcs{Create: func(ctx context.Context, c ctrlclient.WithWatch, o ctrlclient.Object, opts ...ctrlclient.CreateOption) error {
		if _, ok := o.(*appsv1.ReplicaSet); ok {
			return full
		}
		return c.Create(ctx, o, opts...)
	}})
	for range 2 {
		ch.clock.SetTime(ch.clock.Now().Add(time.Minute)) // a cache that shows less than was written is believed after a while
		if err := ch.try(ch.kept()); !apierrors.IsForbidden(err) {
			t.Errorf("%v, want it to be tried again", err)
		}
	}
	if rows := ch.rows(); len(rows) != 1 || rows[0].Image != "3" {
		t.Errorf("there are %v, want the latest alone", rows)
	}
	events := &corev1.EventList{}
	if err := objects.List(t.Context(), events); err != nil {
		t.Fatal(err)
	}
	if n := len(events.Items); n != 1 || events.Items[0].Count != 1 || !strings.Contains(events.Items[0].Message, "may have 9") {
		t.Errorf("told %v", events.Items)
	}
	ch.c.clients.Objects = objects
	ch.clock.SetTime(ch.clock.Now().Add(time.Minute))
	ch.wrote("there is room again", ch.pass(), "create", "patch")
}

// TestPausedTemplate: while a Deployment is paused its new template has no revision, and all pods are of the latest there is.
func TestPausedTemplate(t *testing.T) {
	ch := newChronicler(t)
	ch.runs(3, 3)
	ch.pass()
	ch.image("2")
	ch.root.Spec.Paused = true
	ch.runs(3, 0)
	ch.wrote("paused", ch.pass())
	*ch.root.Spec.Replicas, ch.view.Desired = 5, 5
	ch.runs(5, 0)
	ch.wrote("paused and scaled", ch.pass(), "patch", "status")
	if diff := cmp.Diff([]row{{"1", "1", "image 1", 5, 5, 5}}, ch.rows()); diff != "" {
		t.Errorf("paused (-want +got):\n%s", diff)
	}
	ch.root.Spec.Paused = false
	ch.pass()
	if rows := ch.rows(); len(rows) != 2 || rows[1].Number != "2" {
		t.Errorf("resumed: %+v", rows)
	}
}

// TestNothingIsAdopted: what has the name and the template that a revision would have stays as it is, unless it names this Deployment as its
// controller. An orphan, which Kubernetes would adopt, is somebody's.
func TestNothingIsAdopted(t *testing.T) {
	ch := newChronicler(t)
	name := "web-" + kinds.RevisionHash(kinds.TemplateDigest(&ch.root.Spec.Template), nil)
	orphan := replicaSet(ch.root, metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"app": "web", appsv1.DefaultDeploymentUniqueLabelKey: "x"}})
	if err := ch.c.clients.Objects.Create(t.Context(), orphan); err != nil {
		t.Fatal(err)
	}
	ch.wrote("beside an orphan", ch.pass(), "create", "create")
	if n := ch.root.Status.CollisionCount; n == nil || *n != 1 {
		t.Errorf("collisions: %v, want 1", n)
	}
	ch.wrote("the same again", ch.pass())
	got := &appsv1.ReplicaSet{}
	if err := ch.c.clients.Objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(orphan), got); err != nil || got.ResourceVersion != orphan.ResourceVersion {
		t.Errorf("the orphan was changed from %s to %s (%v)", orphan.ResourceVersion, got.ResourceVersion, err)
	}
}

// TestRevisionOfTheOneBefore: the revision of an earlier Deployment of that name goes with it. Its name is waited for, not counted as taken.
func TestRevisionOfTheOneBefore(t *testing.T) {
	ch := newChronicler(t)
	ch.pass()
	ch.root.UID = "another"
	ch.wrote("while it is there", ch.pass(), "create")
	if len(ch.rows()) != 1 || ch.root.Status.CollisionCount != nil {
		t.Errorf("%+v, collisions %v", ch.rows(), ch.root.Status.CollisionCount)
	}
	if err := ch.c.clients.Objects.DeleteAllOf(t.Context(), &appsv1.ReplicaSet{}, ctrlclient.InNamespace("default")); err != nil {
		t.Fatal(err)
	}
	ch.wrote("when it is gone", ch.pass(), "create")
}

// TestRevisionNotSeenYet: a cache that lags makes no second revision, and what it shows is not changed before it shows what was written.
func TestRevisionNotSeenYet(t *testing.T) {
	ch := newChronicler(t)
	ch.runs(3, 3)
	ch.pass()
	ch.wrote("not seen yet", ch.passWith(nil), "create")
	if rows := ch.rows(); len(rows) != 1 {
		t.Errorf("%+v, want one", rows)
	}

	list := &appsv1.ReplicaSetList{}
	if err := ch.c.clients.Objects.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	kinds.WithoutContent(&list.Items[0])
	stale := []ctrlclient.Object{&list.Items[0]}
	*ch.root.Spec.Replicas, ch.view.Desired = 5, 5
	ch.wrote("scaled", ch.pass(), "patch")
	*ch.root.Spec.Replicas, ch.view.Desired = 6, 6
	ch.wrote("not seen yet", ch.passWith(stale))
	ch.clock.SetTime(ch.clock.Now().Add(time.Minute))
	if _, _, err := ch.c.replicaSets(t.Context(), ch.s, ch.root, ch.root.DeepCopy(), stale, ch.view); err == nil {
		t.Error("what was changed since was changed")
	}
}

// TestPlacementIsNotUndone: kubectl gives the Deployment all annotations of the revision that it goes back to.
func TestPlacementIsNotUndone(t *testing.T) {
	const clusters = "placement.atoll.dev/clusters"
	ch := newChronicler(t)
	ch.root.Annotations[clusters] = "east"
	ch.pass()
	ch.image("2")
	ch.pass()
	check := func(want string) {
		t.Helper()
		list := &appsv1.ReplicaSetList{}
		if err := ch.c.clients.Objects.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		for _, r := range list.Items {
			if r.Annotations[clusters] != want {
				t.Errorf("revision %s says %q, want %q", r.Annotations[revisionAnnotation], r.Annotations[clusters], want)
			}
		}
	}
	ch.root.Annotations[clusters] = "west"
	ch.pass()
	check("west")
	delete(ch.root.Annotations, clusters)
	ch.pass()
	check("")
}

func TestSetNumber(t *testing.T) {
	annotations := map[string]string{}
	for n := range int64(2000) {
		setNumber(annotations, n+1)
	}
	had := annotations[revisionHistoryAnnotation]
	if annotations[revisionAnnotation] != "2000" || len(had) > revisionHistoryLength || !strings.HasSuffix(had, ",1998,1999") || strings.HasPrefix(had, "1,") {
		t.Errorf("of %d characters it remembers %.20s...%s", len(had), had, had[len(had)-20:])
	}
}

// TestControllerRevisions: each template of a DaemonSet or a StatefulSet is kept as the patch that kubectl goes back by.
func TestControllerRevisions(t *testing.T) {
	template := newChronicler(t).root.Spec.Template
	for kind, root := range map[string]ctrlclient.Object{
		"DaemonSet":   &appsv1.DaemonSet{Spec: appsv1.DaemonSetSpec{Template: *template.DeepCopy(), RevisionHistoryLimit: ptr.To[int32](1)}},
		"StatefulSet": &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Template: *template.DeepCopy(), RevisionHistoryLimit: ptr.To[int32](1)}},
	} {
		t.Run(kind, func(t *testing.T) { testControllerRevisions(t, kind, root) })
	}
}

func testControllerRevisions(t *testing.T, kind string, root ctrlclient.Object) {
	ch := newChronicler(t)
	k, _ := kinds.ByKind(kind)
	s := &source{Kind: k}
	root.SetNamespace("default")
	root.SetName("agent")
	root.SetUID("d")
	change := func(image, cause string) {
		k.Template(root).Spec.Containers[0].Image = image
		root.SetAnnotations(map[string]string{"kubernetes.io/change-cause": cause})
	}
	change("1", "first")
	revisions := func() *appsv1.ControllerRevisionList {
		list := &appsv1.ControllerRevisionList{}
		if err := ch.c.clients.Objects.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		return list
	}
	pass := func() []string {
		t.Helper()
		ch.writes = nil
		var kept []ctrlclient.Object
		for _, r := range revisions().Items {
			kinds.WithoutContent(&r)
			kept = append(kept, &r)
		}
		if _, _, err := ch.c.controllerRevisions(t.Context(), s, root, root.DeepCopyObject().(ctrlclient.Object), kept, true); err != nil {
			t.Fatal(err)
		}
		return ch.writes
	}
	ch.wrote("a new one", pass(), "create")
	ch.wrote("the same again", pass())
	change("2", "second")
	ch.wrote("a new template", pass(), "create")
	change("3", "third")
	ch.wrote("another", pass(), "create", "delete")
	change("2", "back")
	ch.wrote("the one before", pass(), "patch")
	ch.wrote("the same again", pass())
	var got []string
	for _, r := range revisions().Items {
		var patch struct {
			Spec struct {
				Template struct {
					Patch string `json:"$patch"`
					corev1.PodTemplateSpec
				}
			}
		}
		if err := json.Unmarshal(r.Data.Raw, &patch); err != nil {
			t.Fatal(err)
		}
		if r.Labels[appsv1.ControllerRevisionHashLabelKey] == "" || r.Labels["app"] != "web" {
			t.Errorf("%s has the labels %v", r.Name, r.Labels)
		}
		template := patch.Spec.Template
		got = append(got, fmt.Sprintf("%d %s %s %s", r.Revision, template.Patch, template.Spec.Containers[0].Image, r.Annotations["kubernetes.io/change-cause"]))
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"3 replace 3 third", "4 replace 2 back"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestLeafSaysItsRevision: a leaf says of which ReplicaSet its template is: the one that is kept, or that will be made; and that it had
// while it keeps its template.
func TestLeafSaysItsRevision(t *testing.T) {
	object, _ := pair("Deployment", "web")
	root := object.(*appsv1.Deployment)
	k, _ := kinds.ByKind("Deployment")
	made := kinds.RevisionHash(kinds.TemplateDigest(&root.Spec.Template), nil)
	kept := replicaSet(root, metav1.ObjectMeta{
		Name: "web-kept", Namespace: "front", Labels: map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: "kept"},
		Annotations: map[string]string{lcctx.Annotation: "shop"}, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(root, k.GVK)},
	})
	for want, objects := range map[string][]ctrlclient.Object{made: {root}, "kept": {root, kept}} {
		if got := newMirrored(t, objects...).hashOf(root); got != want {
			t.Errorf("its template is of %q, want %q", got, want)
		}
	}

	leaf := root.DeepCopy()
	leaf.Annotations = map[string]string{workloadv1alpha1.RevisionAnnotation: "earlier"}
	for reason, tc := range map[string]struct {
		site site
		want string
	}{
		"it gets the template":  {site{leaf: leaf, roll: Roll{Verbatim: true}}, "now"},
		"it waits for its turn": {site{leaf: leaf, roll: Roll{Hold: true}}, "earlier"},
		"it is left":            {site{leaf: leaf, step: Step{Draining: true}}, "earlier"},
	} {
		tc.site.revision = "now"
		got, err := tc.site.render(k, root, "front-hash")
		if err != nil || got.GetAnnotations()[workloadv1alpha1.RevisionAnnotation] != tc.want {
			t.Errorf("%s: %v, %v, want %q", reason, got.GetAnnotations(), err, tc.want)
		}
	}
}

// TestRevisionNamesOfAStatefulSet: its status names the workspace's revisions also while a cache does not show the one that was just made.
func TestRevisionNamesOfAStatefulSet(t *testing.T) {
	root, leaf := staying(t)
	root.Status.CurrentRevision, root.Status.UpdateRevision = "db-1", "db-2"
	leaf.Status.CurrentRevision, leaf.Status.UpdateRevision = "below-1", "below-2"
	before := &appsv1.ControllerRevision{Revision: 1, Data: k8sruntime.RawExtension{Raw: []byte(`{"spec": {}}`)}, ObjectMeta: metav1.ObjectMeta{
		Namespace: "front", Name: "db-1", UID: "one", Annotations: map[string]string{lcctx.Annotation: "shop"},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(root, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))},
	}}
	m := newMirrored(t, root, leaf, before, placementOf("", "Placed", mirrorEast))
	k := key{"StatefulSet", client.KeyOf(root)}
	told := func(when, current, update string) {
		t.Helper()
		m.look(t, k)
		if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(root), root); err != nil {
			t.Fatal(err)
		}
		s := root.Status
		if s.CurrentRevision != current || s.UpdateRevision != update || s.ReadyReplicas != leaf.Status.ReadyReplicas {
			t.Errorf("%s: %q, %q and %d ready, want %q, %q and %d", when, s.CurrentRevision, s.UpdateRevision, s.ReadyReplicas, current, update, leaf.Status.ReadyReplicas)
		}
	}
	m.recorded.Wrote(k, "1000000")
	told("db-2 was made a moment ago", "db-1", "db-2")
}
