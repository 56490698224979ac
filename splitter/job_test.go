package splitter

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/queue"
)

// TestJobIsDoneOnce: what has begun is never begun again, in the place or elsewhere, and what has ended is left alone.
func TestJobIsDoneOnce(t *testing.T) {
	t.Parallel()
	began := ptr.To(metav1.Unix(10, 0))
	runs := batchv1.JobStatus{StartTime: began, Active: 1, Ready: ptr.To[int32](1)}
	suspended := batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: batchv1.JobSuspended, Status: corev1.ConditionTrue}}}
	suspended135 := *suspended.DeepCopy() // up to 1.35 the time of the start stays
	suspended135.StartTime = began
	suspend := batchv1.JobSpec{Suspend: ptr.To(true)}
	ends := batchv1.JobStatus{StartTime: began, CompletionTime: began, Succeeded: 1, Conditions: []batchv1.JobCondition{
		{Type: batchv1.JobSuccessCriteriaMet, Status: corev1.ConditionTrue}, {Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}}
	deleted := workloadv1alpha1.Refusal{Reason: workloadv1alpha1.RefusedGone, Message: "deleted"}
	for name, tc := range map[string]struct {
		reason     string
		root       batchv1.JobStatus
		spec       batchv1.JobSpec
		leaf       *batchv1.JobStatus // in east; it is placed in west
		tombstone  bool               // the leaf is one
		unapplied  bool               // nor has its cluster said that it has it
		removed    bool               // its SyncTarget is being deleted
		refused    *workloadv1alpha1.Refusal
		gone, made bool
		want       string // the root's conditions
		phases     string // unless the informer has yet to see what is written
	}{
		"New":              {reason: "it begins", made: true},
		"Begun":            {reason: "it stays where it has begun", root: runs, leaf: &runs, want: "Placed False Begun", phases: "east Staying, west Pending"},
		"Suspended":        {reason: "nothing of it runs", spec: suspend, leaf: &suspended, gone: true},
		"SuspendedBegun":   {reason: "that it has stopped is told first", root: runs, spec: suspend, leaf: &suspended, want: "Suspended True "},
		"Suspended135":     {reason: "that it has stopped is told first", root: runs, spec: suspend, leaf: &suspended135, want: "Suspended True "},
		"SuspendedTold":    {reason: "nothing of it runs", root: suspended, spec: suspend, leaf: &suspended, gone: true, want: "Suspended True "},
		"SuspendedTold135": {reason: "nothing of it runs", root: suspended135, spec: suspend, leaf: &suspended135, gone: true, want: "Suspended True "},
		"SuspendedEnds":    {reason: "nothing of it runs", root: suspended135, spec: suspend, leaf: &suspended135, tombstone: true, gone: true, want: "Suspended True "},
		"SuspendedGone":    {reason: "it begins elsewhere", root: suspended, spec: suspend, made: true, want: "Suspended True "},
		"SuspendedGone135": {reason: "it begins elsewhere", root: suspended135, spec: suspend, made: true, want: "Suspended True "},
		"Resumed135":       {reason: "it begins elsewhere", root: suspended135, made: true, want: "Suspended True "},
		"LeftAsItBegan":    {reason: "it was begun there while it was being taken away", leaf: &batchv1.JobStatus{}, tombstone: true, gone: true, want: "FailureTarget True Gone, Failed True Gone"},
		"LeftBefore":       {reason: "it was not begun there", leaf: &batchv1.JobStatus{}, tombstone: true, unapplied: true, gone: true},
		"Ends":             {reason: "its end comes up, from where it is", root: runs, leaf: &ends, want: "SuccessCriteriaMet True , Complete True ", phases: "west Pending"},
		"Ended":            {reason: "its leaf stays where it ended, in nobody's way", root: ends, leaf: &ends, want: "SuccessCriteriaMet True , Complete True ", phases: "west Ready"},
		"EndedGone":        {reason: "it is not begun again", root: ends, want: "SuccessCriteriaMet True , Complete True ", phases: "west Ready"},
		"BegunGone":        {reason: "its cluster was removed, and it is not begun again", root: runs, want: "FailureTarget True Gone, Failed True Gone", phases: "west Pending"},
		"Deleted":          {reason: "somebody deleted it in east", root: runs, leaf: &runs, refused: &deleted, want: "FailureTarget True Gone, Failed True Gone"},
		"Settled":          {reason: "its leaf stands for nothing any more", root: ends, leaf: &runs, refused: &deleted, gone: true, want: "SuccessCriteriaMet True , Complete True "},
		"EndedRemoved":     {reason: "its cluster is let go", root: ends, leaf: &ends, removed: true, gone: true, want: "SuccessCriteriaMet True , Complete True "},
		"Others'":          {reason: "somebody else makes its pods", spec: batchv1.JobSpec{ManagedBy: ptr.To("kueue.example/multi")}, phases: "west Ready"},
	} {
		t.Run(name, func(t *testing.T) {
			root := &batchv1.Job{
				ObjectMeta: metav1.ObjectMeta{Namespace: "front", Name: "once", UID: "root", Generation: 1, Annotations: map[string]string{lcctx.Annotation: "shop"}},
				Spec:       tc.spec, Status: tc.root,
			}
			p := placementOf("", "Placed", mirrorWest)
			p.Status.Conditions = nil
			east := targetOf("east", mirrorEast, "jobs.batch")
			if tc.removed {
				east.Finalizers, east.DeletionTimestamp = []string{"test.atoll.dev/kept"}, ptr.To(metav1.Now())
			}
			objects := []ctrlclient.Object{root.DeepCopy(), east, targetOf("west", mirrorWest, "jobs.batch"), p}
			k, _ := kinds.ByKind("Job")
			leaf, hash, err := render(k, root, k.Content(root), "front-"+mirrorEast, false)
			if err != nil {
				t.Fatal(err)
			}
			if tc.leaf != nil {
				leaf.SetUID("leaf")
				annotations := leaf.GetAnnotations()
				annotations[lcctx.Annotation], annotations[workloadv1alpha1.AppliedAnnotation] = mirrorEast, hash
				if tc.refused != nil {
					tc.refused.Rendered = hash
					text, err := json.Marshal(tc.refused)
					if err != nil {
						t.Fatal(err)
					}
					annotations[workloadv1alpha1.RefusedAnnotation] = string(text)
				}
				if tc.unapplied {
					delete(annotations, workloadv1alpha1.AppliedAnnotation)
				}
				if tc.tombstone {
					leaf.SetDeletionTimestamp(ptr.To(metav1.Now()))
				}
				leaf.SetAnnotations(annotations)
				leaf.(*batchv1.Job).Status = *tc.leaf
				objects = append(objects, leaf)
			}
			m := newMirrored(t, objects...)
			m.look(t, key{"Job", client.Key{Cluster: "shop", Namespace: "front", Name: "once"}})
			if tc.leaf != nil {
				if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(leaf), leaf); err != nil {
					t.Fatal(err)
				}
				if gone := leaf.GetDeletionTimestamp() != nil; gone != tc.gone {
					t.Errorf("%s: the leaf in east is a tombstone: %v, want %v", tc.reason, gone, tc.gone)
				}
			}
			all := &batchv1.JobList{}
			if err := m.objects.List(t.Context(), all); err != nil {
				t.Fatal(err)
			}
			made := slices.ContainsFunc(all.Items, func(o batchv1.Job) bool { return o.Namespace == kinds.DownstreamNamespace("shop", "front", false) })
			if made != tc.made {
				t.Errorf("%s: there is a leaf in west: %v, want %v", tc.reason, made, tc.made)
			}
			told := &batchv1.Job{}
			if err := m.objects.Get(t.Context(), types.NamespacedName{Namespace: "front", Name: "once"}, told); err != nil {
				t.Fatal(err)
			}
			var said []string
			for _, c := range told.Status.Conditions {
				said = append(said, string(c.Type)+" "+string(c.Status)+" "+c.Reason)
			}
			if diff := cmp.Diff(tc.want, strings.Join(said, ", ")); diff != "" {
				t.Errorf("%s: conditions: -want, +got:\n%s", tc.reason, diff)
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

// TestBegunWhileNobodyLooks: a Job that is begun in east as it is taken away there, and gone before another splitter starts, is not begun again in west;
// one that was not begun is.
func TestBegunWhileNobodyLooks(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		begun bool
		root  func(*batchv1.Job) ctrlclient.Object // as the next splitter finds it
		ends  bool                                 // its workspace is being deleted, and its Placement is gone
		want  string                               // the root's conditions
		made  bool
	}{
		"Begun":    {begun: true, want: "FailureTarget True Gone, Failed True Gone"},
		"NotBegun": {made: true},
		"MadeAgain": {begun: true, root: func(root *batchv1.Job) ctrlclient.Object {
			root.UID = "another"
			return root
		}, made: true},
		"Deleted":       {begun: true, root: func(*batchv1.Job) ctrlclient.Object { return nil }},
		"WorkspaceEnds": {begun: true, ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			root := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "front", Name: "once", UID: "root", Generation: 1, Annotations: map[string]string{lcctx.Annotation: "shop"}}}
			fixed := []ctrlclient.Object{targetOf("west", mirrorWest, "jobs.batch"), placementOf("", "Placed", mirrorWest), spaceIn(mirrorEast)}
			k, _ := kinds.ByKind("Job")
			made, hash, err := render(k, root, k.Content(root), spaceIn(mirrorEast).Name, false)
			if err != nil {
				t.Fatal(err)
			}
			leaf := made.(*batchv1.Job)
			leaf.UID, leaf.Annotations[lcctx.Annotation] = "leaf", mirrorEast
			m := newMirrored(t, append(slices.Clone(fixed), root.DeepCopy(), leaf)...)
			once := key{"Job", client.KeyOf(root)}
			m.look(t, once)
			tombstone := &batchv1.Job{}
			if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(leaf), tombstone); err != nil || tombstone.DeletionTimestamp == nil {
				t.Fatalf("the leaf in east: %+v, %v; want a tombstone", tombstone, err)
			}
			if tc.begun {
				tombstone.Annotations[workloadv1alpha1.AppliedAnnotation] = hash
			}
			if tombstone.Finalizers = slices.DeleteFunc(tombstone.Finalizers, func(f string) bool { return f == workloadv1alpha1.SyncerFinalizer }); len(tombstone.Finalizers) == 0 {
				t.Fatal("nothing keeps it when the syncer lets it go")
			}
			tombstone.ResourceVersion = ""
			objects := append(slices.Clone(fixed), tombstone)
			var now ctrlclient.Object = root
			if tc.root != nil {
				now = tc.root(root)
			}
			if now != nil {
				objects = append(objects, now)
			}

			if tc.ends {
				objects = slices.DeleteFunc(objects, func(o ctrlclient.Object) bool { _, ok := o.(*placementv1alpha1.Placement); return ok })
			}

			m = newMirrored(t, objects...)
			if tc.ends {
				m.endWorkspaces(t)
			}
			in := types.NamespacedName{Namespace: kinds.DownstreamNamespace("shop", "front", false), Name: "once"}
			m.lookUntil(t, once, "the tombstone is gone", func() bool { return m.gone(t, tombstone) })
			m.lookUntil(t, once, fmt.Sprintf("it is begun in west: %v", tc.made), func() bool {
				err := m.objects.Get(t.Context(), in, &batchv1.Job{})
				return (err == nil) == tc.made
			})
			if now == nil {
				return
			}
			told := &batchv1.Job{}
			if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(now), told); err != nil {
				t.Fatal(err)
			}
			var said []string
			for _, c := range told.Status.Conditions {
				if c.Status == corev1.ConditionTrue {
					said = append(said, string(c.Type)+" "+string(c.Status)+" "+c.Reason)
				}
			}
			if diff := cmp.Diff(tc.want, strings.Join(said, ", ")); diff != "" {
				t.Errorf("conditions: -want, +got:\n%s", diff)
			}
		})
	}
}

// TestBegunAsItLeaves: a Job that begins in east after its leaf was read, and before that is a tombstone, stays there.
func TestBegunAsItLeaves(t *testing.T) {
	root := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "front", Name: "once", UID: "root", Generation: 1, Annotations: map[string]string{lcctx.Annotation: "shop"}}}
	k, _ := kinds.ByKind("Job")
	leaf, hash, err := render(k, root, k.Content(root), spaceIn(mirrorEast).Name, false)
	if err != nil {
		t.Fatal(err)
	}
	leaf.SetUID("leaf")
	leaf.GetAnnotations()[lcctx.Annotation] = mirrorEast
	m := newMirrored(t, targetOf("west", mirrorWest, "jobs.batch"), placementOf("", "Placed", mirrorWest), spaceIn(mirrorEast), root.DeepCopy(), leaf)
	begins := func() error {
		now := &batchv1.Job{}
		if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(leaf), now); err != nil {
			return err
		}
		now.Annotations[workloadv1alpha1.AppliedAnnotation] = hash
		return m.objects.Update(t.Context(), now)
	}
	began := false
	m.clients = &client.Clients{Objects: interceptor.NewClient(m.objects, interceptor.Funcs{
		Delete: func(ctx context.Context, below ctrlclient.WithWatch, obj ctrlclient.Object, opts ...ctrlclient.DeleteOption) error {
			if !began {
				began = true
				if err := begins(); err != nil {
					return err
				}
			}
			return below.Delete(ctx, obj, opts...)
		},
	})}
	once := key{"Job", client.KeyOf(root)}
	m.lookUntil(t, once, "it is told to stay", func() bool {
		told := &batchv1.Job{}
		if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(root), told); err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(told.Status.Conditions, func(c batchv1.JobCondition) bool { return c.Reason == "Begun" })
	})
	if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(leaf), leaf); err != nil || leaf.GetDeletionTimestamp() != nil || !began {
		t.Errorf("the leaf in east: %+v, %v; want one that is no tombstone", leaf, err)
	}
}

// TestEndedLeavesAWorkspaceThatGoes: what has ended, or is withheld, stays where it was, but keeps no workspace from being deleted.
func TestEndedLeavesAWorkspaceThatGoes(t *testing.T) {
	k, _ := kinds.ByKind("Job")
	for name, tc := range map[string]struct {
		job  func(*batchv1.Job)
		goes bool
	}{
		"ended": {func(j *batchv1.Job) {
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
		}, false},
		"ended, goes": {func(j *batchv1.Job) {
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue}}
		}, true},
		"withheld":       {func(j *batchv1.Job) { j.Spec.ManagedBy = ptr.To("example.dev/queue") }, false},
		"withheld, goes": {func(j *batchv1.Job) { j.Spec.ManagedBy = ptr.To("example.dev/queue") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			root := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "front", Name: "once", UID: "root", Generation: 1, Annotations: map[string]string{lcctx.Annotation: "shop"}}}
			leaf, _, err := render(k, root, k.Content(root), spaceIn(mirrorEast).Name, false)
			if err != nil {
				t.Fatal(err)
			}
			leaf.SetUID("leaf")
			leaf.GetAnnotations()[lcctx.Annotation] = mirrorEast
			tc.job(root)
			m := newMirrored(t, spaceIn(mirrorEast), root, leaf)
			once := key{"Job", client.KeyOf(root)}
			tombstone := func() bool {
				now := &batchv1.Job{}
				err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(leaf), now)
				if err != nil && !apierrors.IsNotFound(err) {
					t.Fatal(err)
				}
				return err != nil || now.DeletionTimestamp != nil
			}
			if tc.goes {
				m.endWorkspaces(t)
				m.lookUntil(t, once, "its leaf goes", tombstone)
				return
			}
			if m.look(t, once); tombstone() {
				t.Error("its leaf goes")
			}
		})
	}
}

// endWorkspaces has the one logical cluster, which the fake takes for all of them, be deleted.
func (m *mirrored) endWorkspaces(t *testing.T) {
	t.Helper()
	lc := &corev1alpha1.LogicalCluster{}
	if err := m.objects.Get(t.Context(), types.NamespacedName{Name: corev1alpha1.LogicalClusterName}, lc); err != nil {
		t.Fatal(err)
	}
	lc.Status.Phase = corev1alpha1.LogicalClusterPhaseTerminating
	if err := m.objects.Update(t.Context(), lc); err != nil {
		t.Fatal(err)
	}
}

// lookUntil reconciles a key until something is so.
func (m *mirrored) lookUntil(t *testing.T, k key, what string, is func() bool) {
	t.Helper()
	for began := time.Now(); ; runtime.Gosched() {
		if m.look(t, k); is() {
			return
		}
		if time.Since(began) > 10*time.Second {
			t.Fatal("it is not so that " + what)
		}
	}
}

// TestEndOfAJobLetsGo: what a Job that has left its namespace behind kept in east is asked for when the Job ends, although it never was
// unfinished: nothing else happens there afterwards.
func TestEndOfAJobLetsGo(t *testing.T) {
	_, service := pair("Service", "web")
	c := unrun(t)
	c.sources["Service"].list = func(logicalcluster.Name, string) []ctrlclient.Object { return []ctrlclient.Object{service} }
	runs := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: service.GetNamespace(), Name: "once", UID: "job",
		Labels:      map[string]string{workloadv1alpha1.WorkspaceLabel: "shop"},
		Annotations: map[string]string{lcctx.Annotation: mirrorEast, workloadv1alpha1.RootAnnotation: "front/once"}}}
	ends := runs.DeepCopy()
	ends.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	if finished(runs) != finished(ends) {
		t.Fatal("the Job's end shows in what is asked anyway")
	}
	for name, tc := range map[string]struct {
		old, new *batchv1.Job
		want     bool
	}{
		"Runs": {runs, runs, false},
		"Ends": {runs, ends, true},
		"Over": {ends, ends, false},
	} {
		t.Run(name, func(t *testing.T) {
			asked := c.asks(t, func() { c.onObject(c.sources["Job"].Kind, change{old: tc.old, new: tc.new}) })
			if got := slices.Contains(asked, key{"Service", client.Key{Cluster: "shop", Namespace: "front", Name: "web"}}); got != tc.want {
				t.Errorf("the Service is asked for: %v, want %v; asked: %v", got, tc.want, asked)
			}
		})
	}
}

// unrun returns a Controller whose informers do not run, and show nothing.
func unrun(t *testing.T) *unran {
	t.Helper()
	clients := &client.Clients{Objects: fake.NewClientBuilder().WithScheme(client.Scheme).Build()}
	informers, err := client.NewInformers(clients)
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(clients, informers, testclock.NewFakeClock(time.Unix(0, 0)))
	if err != nil {
		t.Fatal(err)
	}
	return &unran{c}
}

type unran struct{ *Controller }

// asks returns the keys that an event has reconciled.
func (c *unran) asks(t *testing.T, event func()) (asked []key) {
	ctx, end := context.WithCancel(t.Context())
	c.queue = queue.New("test", func(_ context.Context, k key) (time.Duration, error) {
		if k == (key{}) {
			end()
			return 0, nil
		}
		asked = append(asked, k)
		return 0, nil
	})
	event()
	c.queue.Add(key{}) // the last
	c.queue.Run(ctx, 1)
	return asked
}
