package kinds

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

func TestStatefulSetGoesDown(t *testing.T) {
	root := &appsv1.StatefulSet{
		Spec: appsv1.StatefulSetSpec{
			Replicas: ptr.To[int32](3), ServiceName: "db", PodManagementPolicy: appsv1.ParallelPodManagement,
			Ordinals:             &appsv1.StatefulSetOrdinals{Start: 5},
			UpdateStrategy:       appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType},
			RevisionHistoryLimit: ptr.To[int32](2),
			PersistentVolumeClaimRetentionPolicy: &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
				WhenDeleted: appsv1.DeletePersistentVolumeClaimRetentionPolicyType},
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				NodeName: "n1", Containers: []corev1.Container{{Name: "db", EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{}}}}}}},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: ptr.To("fast"), VolumeName: "pv-of-somebody"}}},
		},
		Status: appsv1.StatefulSetStatus{Replicas: 3},
	}
	k, _ := ByKind("StatefulSet")
	want := &appsv1.StatefulSet{Spec: *root.Spec.DeepCopy()}
	want.Spec.Template.Spec.NodeName, want.Spec.Template.Spec.AutomountServiceAccountToken = "", ptr.To(false)
	want.Spec.VolumeClaimTemplates[0].Spec.VolumeName = ""
	want.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
		WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType, WhenScaled: appsv1.RetainPersistentVolumeClaimRetentionPolicyType}
	if diff := cmp.Diff(want, k.Content(root)); diff != "" {
		t.Errorf("its spec goes down whole, without the names of a node and a volume, without a token, and keeping its claims: -want, +got:\n%s", diff)
	}
	if got := k.WhatIsDropped(root); len(got) != 2 {
		t.Errorf("the user is told of %q, want the node's name and the volume's", got)
	}
	if diff := cmp.Diff([]Reference{{"Service", "db"}}, k.References(root)); diff != "" {
		t.Errorf("what it needs before it: -want, +got:\n%s", diff)
	}
}

// TestPodClaims: they have the names that Kubernetes' controller gives them.
func TestPodClaims(t *testing.T) {
	k, _ := ByKind("StatefulSet")
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: appsv1.StatefulSetSpec{
		Ordinals: &appsv1.StatefulSetOrdinals{Start: 3}, ServiceName: "db",
		VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}, {ObjectMeta: metav1.ObjectMeta{Name: "wal"}}},
	}}
	names := func(replicas *int32) (names []string) {
		set.Spec.Replicas = replicas
		for _, c := range k.PodClaimsOf(set) {
			names = append(names, c.Name)
			if c.Template != &set.Spec.VolumeClaimTemplates[0] && c.Template != &set.Spec.VolumeClaimTemplates[1] {
				t.Errorf("claim %s is of %+v", c.Name, c.Template)
			}
		}
		return names
	}
	if diff := cmp.Diff([]string{"data-db-3", "wal-db-3"}, names(nil)); diff != "" {
		t.Errorf("one pod unless it says so: -want, +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"data-db-3", "wal-db-3", "data-db-4", "wal-db-4"}, names(ptr.To[int32](2))); diff != "" {
		t.Errorf("of one pod after the other: -want, +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"data-db-3", "data-db-4", "wal-db-3", "wal-db-4"}, ClaimsOf(set)); diff != "" {
		t.Errorf("they are mounted: -want, +got:\n%s", diff)
	}
	if diff := cmp.Diff([]Reference{{"Service", "db"}, {ClaimKind, "data-db-3"}, {ClaimKind, "wal-db-3"}, {ClaimKind, "data-db-4"}, {ClaimKind, "wal-db-4"}}, k.ReferencesOf(set)); diff != "" {
		t.Errorf("and needed: -want, +got:\n%s", diff)
	}
	if got := names(ptr.To[int32](2_000_000_000)); len(got) != MostPodClaims {
		t.Errorf("of a StatefulSet that asks for any number of pods there are %d", len(got))
	}
	if got := names(ptr.To[int32](0)); len(got) != 0 {
		t.Errorf("without pods there are %v", got)
	}

	set.Spec.Replicas = ptr.To[int32](2)
	for claim, want := range map[string]struct{ is, scaledAway bool }{
		"data-db-3": {true, false}, "wal-db-4": {true, false}, "data-db-2": {true, true}, "data-db-5": {true, true}, "data-db-0": {true, true},
		"data-db-05": {}, "data-db-": {}, "data-db--1": {}, "data-db-x": {}, "logs-db-3": {}, "data-web-3": {}, "data-db-99999999999": {}, "data-db-+3": {}, "data": {},
	} {
		if _, is := OrdinalOf(set, claim); is != want.is || IsScaledAway(set, claim) != want.scaledAway {
			t.Errorf("%s is one of its claims: %v, of a pod that it has no more: %v; want %+v", claim, is, IsScaledAway(set, claim), want)
		}
	}
}

func TestStatefulSetStays(t *testing.T) {
	claims := func(s *appsv1.StatefulSet) { s.Spec.VolumeClaimTemplates = make([]corev1.PersistentVolumeClaim, 1) }
	mounts := func(source corev1.VolumeSource) func(*appsv1.StatefulSet) {
		return func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Volumes = []corev1.Volume{{VolumeSource: source}} }
	}
	applied := func(s *appsv1.StatefulSet) {
		s.Annotations = map[string]string{workloadv1alpha1.AppliedAnnotation: "1"}
	}
	reported := func(s *appsv1.StatefulSet) { s.Status.Replicas = 1 }
	for reason, tc := range map[string]struct {
		is   []func(*appsv1.StatefulSet)
		want bool
	}{
		"it keeps nothing":                    {is: []func(*appsv1.StatefulSet){applied, reported}},
		"it never was there":                  {is: []func(*appsv1.StatefulSet){claims}},
		"it may have begun to write":          {is: []func(*appsv1.StatefulSet){claims, applied}, want: true},
		"it was deleted below, and had begun": {is: []func(*appsv1.StatefulSet){claims, reported}, want: true},
		"its pods use a claim": {is: []func(*appsv1.StatefulSet){applied, mounts(corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}})}, want: true},
		"its volumes end with their pods": {is: []func(*appsv1.StatefulSet){applied, mounts(corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}})}},
	} {
		leaf := &appsv1.StatefulSet{}
		for _, is := range tc.is {
			is(leaf)
		}
		k, _ := ByKind("StatefulSet")
		if got := k.WhyStays(leaf); got != nil != tc.want {
			t.Errorf("%s: it stays: %+v, want %v", reason, got, tc.want)
		}
	}
}

// ordinals is a leaf of which that many pods serve, all of one revision.
func ordinals(cluster string, n int32, changes ...func(*Leaf, *appsv1.StatefulSet)) Leaf {
	s := &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3)}, Status: appsv1.StatefulSetStatus{
		Replicas: n, ReadyReplicas: n, AvailableReplicas: n, CurrentReplicas: n, UpdatedReplicas: n, CurrentRevision: "db-1", UpdateRevision: "db-1"}}
	l := Leaf{Cluster: cluster, Assigned: true, Current: true, Settled: true, Object: s}
	for _, change := range changes {
		change(&l, s)
	}
	return l
}

func TestSummariseStatefulSet(t *testing.T) {
	type counts struct{ Replicas, Ready, Available, Current, Updated int32 }
	away := func(l *Leaf, _ *appsv1.StatefulSet) { l.Lost = true }
	left := func(l *Leaf, _ *appsv1.StatefulSet) { l.Assigned = false }
	stale := func(l *Leaf, _ *appsv1.StatefulSet) { l.Settled = false }
	rolling := func(_ *Leaf, s *appsv1.StatefulSet) {
		s.Status.UpdatedReplicas, s.Status.CurrentReplicas, s.Status.UpdateRevision = 1, 2, "db-2"
	}
	one := "db-1 db-1"
	tests := map[string]struct {
		reason     string
		leaves     []Leaf
		notPlaced  *Reason
		partition  int32
		was        int64 // observedGeneration, of 3
		observed   int64
		counts     counts
		revisions  string // current and update
		conditions map[string]string
		done       bool // as `kubectl rollout status` has it
		through    bool // as Finished has it
	}{
		"Serves":    {reason: "all of it", leaves: []Leaf{ordinals("east", 3)}, observed: 3, counts: counts{3, 3, 3, 3, 3}, revisions: one, done: true, through: true},
		"Fewer":     {reason: "two of three", leaves: []Leaf{ordinals("east", 2)}, observed: 3, counts: counts{2, 2, 2, 2, 2}, revisions: one},
		"Rolling":   {reason: "all serve, two of them the earlier revision", leaves: []Leaf{ordinals("east", 3, rolling)}, observed: 3, counts: counts{3, 3, 3, 2, 1}, revisions: "db-1 db-2"},
		"Partition": {reason: "kubectl is content, what the others refer to is needed yet", partition: 2, leaves: []Leaf{ordinals("east", 3, rolling)}, observed: 3, counts: counts{3, 3, 3, 2, 1}, revisions: "db-1 db-2", done: true},
		"NewTemplate": {reason: "what was updated before is not by now", leaves: []Leaf{ordinals("east", 3, stale)}, was: 2, observed: 2,
			counts: counts{3, 3, 3, 3, 0}, revisions: one},
		"MetadataGoesDown": {reason: "what was told of this generation holds", leaves: []Leaf{ordinals("east", 3, stale)}, was: 3, observed: 3,
			counts: counts{3, 3, 3, 3, 3}, revisions: one, done: true},
		"Left":    {reason: "a rollout ends with the move", leaves: []Leaf{ordinals("east", 3, left), {Cluster: "west", Assigned: true}}, was: 3, observed: 3, counts: counts{3, 3, 3, 0, 0}, revisions: "db-0 db-0"},
		"Between": {reason: "it runs nowhere", leaves: []Leaf{{Cluster: "west", Assigned: true}}, was: 3, observed: 3, revisions: "db-0 db-0"},
		"Starts": {reason: "west has said nothing yet", leaves: []Leaf{ordinals("west", 0, stale, func(_ *Leaf, s *appsv1.StatefulSet) {
			s.Status = appsv1.StatefulSetStatus{}
		})}, was: 3, observed: 3, revisions: "db-0 db-0"},
		"Lost": {reason: "not ready, and said so", leaves: []Leaf{ordinals("east", 3, away)}, was: 3, observed: 3, counts: counts{3, 0, 0, 3, 3}, revisions: one,
			conditions: map[string]string{ConditionSynced: `Unreachable: Not heard of, their replicas count as not ready: cluster "east".`}, through: true},
		"Refused": {reason: "in the cluster's words", leaves: []Leaf{ordinals("east", 0, stale, func(l *Leaf, s *appsv1.StatefulSet) {
			l.Refused, s.Status = &workloadv1alpha1.Refusal{Reason: "Forbidden", Message: "no host paths"}, appsv1.StatefulSetStatus{}
		})}, was: 2, observed: 2, revisions: "db-0 db-0",
			conditions: map[string]string{ConditionSynced: `Forbidden: cluster "east" refused it (Forbidden): no host paths`}},
		"Stays": {reason: "it runs, and not where it is placed", leaves: []Leaf{ordinals("east", 3)}, notPlaced: &Reason{"VolumesStay", "It stays."},
			observed: 3, counts: counts{3, 3, 3, 3, 3}, revisions: one, done: true, through: true,
			conditions: map[string]string{ConditionPlaced: "VolumesStay: It stays."}},
		"Conditions": {reason: "its controller's own words, and no others'", leaves: []Leaf{ordinals("east", 3, func(_ *Leaf, s *appsv1.StatefulSet) {
			s.Status.Conditions = []appsv1.StatefulSetCondition{{Type: "Odd", Reason: "Some", Message: "words"}, {Type: ConditionPlaced, Reason: "No", Message: "word"}}
		})}, observed: 3, counts: counts{3, 3, 3, 3, 3}, revisions: one, done: true, through: true, conditions: map[string]string{"Odd": "Some: words"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			root := &appsv1.StatefulSet{
				ObjectMeta: metav1.ObjectMeta{Name: "db", Generation: 3},
				Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3), UpdateStrategy: appsv1.StatefulSetUpdateStrategy{
					Type: appsv1.RollingUpdateStatefulSetStrategyType, RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: &tc.partition}}},
				Status: appsv1.StatefulSetStatus{ObservedGeneration: tc.was, UpdatedReplicas: 3, CurrentRevision: "db-0", UpdateRevision: "db-0"},
			}
			view := View{Leaves: tc.leaves, NotPlaced: tc.notPlaced, Now: time.Unix(1000, 0)}
			summariseStatefulSet(root, view)
			s := root.Status
			if s.ObservedGeneration != tc.observed {
				t.Errorf("%s: observedGeneration = %d, want %d", tc.reason, s.ObservedGeneration, tc.observed)
			}
			got := counts{s.Replicas, s.ReadyReplicas, s.AvailableReplicas, s.CurrentReplicas, s.UpdatedReplicas}
			if diff := cmp.Diff(tc.counts, got); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
			if got := s.CurrentRevision + " " + s.UpdateRevision; got != tc.revisions {
				t.Errorf("%s: revisions are %q, want %q", tc.reason, got, tc.revisions)
			}
			var conditions map[string]string
			for _, c := range s.Conditions {
				if conditions == nil {
					conditions = map[string]string{}
				}
				conditions[string(c.Type)] = c.Reason + ": " + c.Message
			}
			if diff := cmp.Diff(tc.conditions, conditions); diff != "" {
				t.Errorf("%s: conditions: -want, +got:\n%s", tc.reason, diff)
			}
			if done := rolloutStatusEnds(t, "StatefulSet", root); done != tc.done {
				t.Errorf("%s: rollout status ends: %v, want %v", tc.reason, done, tc.done)
			}
			if through := len(tc.leaves) == 1 && tc.leaves[0].Finished(); through != tc.through {
				t.Errorf("%s: rolled out: %v, want %v", tc.reason, through, tc.through)
			}
			before := root.DeepCopy()
			view.Now = view.Now.Add(time.Hour)
			summariseStatefulSet(root, view)
			if diff := cmp.Diff(before, root); diff != "" {
				t.Errorf("%s: the same leaves give another status an hour later: -before, +after:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestNameStatefulSetRevision: the names are of revisions that the workspace keeps, whatever the cluster calls its own.
func TestNameStatefulSetRevision(t *testing.T) {
	for reason, tc := range map[string]struct {
		was, below string // current and update
		kept       string
		revision   string
		want       string
	}{
		"the first":                        {"", "f1 f1", "", "r1", "r1 r1"},
		"an update begins":                 {"r1 r1", "f1 f2", "r1 r2", "r2", "r1 r2"},
		"it ends":                          {"r1 r2", "f2 f2", "r1 r2", "r2", "r2 r2"},
		"the new one is not seen yet":      {"r1 r2", "f1 f2", "r1 r2", "", "r1 r2"},
		"none is made, by a quota":         {"r1 r1", "f1 f2", "r1 r2", "", "r1 r1"},
		"the one before is none that is":   {"f1 r2", "f1 f2", "r1 r2", "r2", "r2 r2"},
		"the one before has been deleted":  {"r0 r1", "f1 f2", "r1 r2", "r2", "r2 r2"},
		"the first is not seen yet":        {"r1 r1", "f1 f2", "", "r2", "r1 r2"},
		"nothing is kept and nothing told": {"", "f1 f1", "", "", ""},
	} {
		names := func(current string) *appsv1.StatefulSet {
			s := &appsv1.StatefulSet{}
			s.Status.CurrentRevision, s.Status.UpdateRevision, _ = strings.Cut(current, " ")
			return s
		}
		root := names(tc.below)
		view := View{Leaves: []Leaf{{Assigned: true, Current: true, Settled: true, Object: root}}}
		nameStatefulSetRevision(names(tc.was), root, view, tc.revision, strings.Fields(tc.kept))
		if got := strings.TrimSpace(root.Status.CurrentRevision + " " + root.Status.UpdateRevision); got != tc.want {
			t.Errorf("%s: %q, want %q", reason, got, tc.want)
		}
	}
}

// TestStatefulSetServes: what a partition holds back serves, and so do pods that are replaced by hand; what they need they need yet.
func TestStatefulSetServes(t *testing.T) {
	partition := func(n int32) appsv1.StatefulSetUpdateStrategy {
		return appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType, RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: &n}}
	}
	byHand := appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
	for name, tc := range map[string]struct {
		strategy                     appsv1.StatefulSetUpdateStrategy
		replicas, updated, available int32
		serves, finished             bool
	}{
		"rolled out":                     {partition(0), 3, 3, 3, true, true},
		"rolling":                        {partition(0), 3, 2, 3, false, false},
		"by default":                     {appsv1.StatefulSetUpdateStrategy{}, 3, 2, 3, false, false},
		"to a partition, all of those":   {partition(2), 3, 1, 3, true, false},
		"to a partition, not yet":        {partition(1), 3, 1, 3, false, false},
		"to a partition that is no pod":  {partition(7), 3, 0, 3, true, false},
		"to a partition, one is down":    {partition(2), 3, 1, 2, false, false},
		"to a partition, one is missing": {partition(2), 2, 1, 2, false, false},
		"by hand, all replaced":          {byHand, 3, 3, 3, true, true},
		"by hand, none replaced":         {byHand, 3, 0, 3, true, false},
		"by hand, one is down":           {byHand, 3, 0, 2, false, false},
	} {
		set := &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Replicas: ptr.To(int32(3)), UpdateStrategy: tc.strategy}}
		set.Status = appsv1.StatefulSetStatus{Replicas: tc.replicas, UpdatedReplicas: tc.updated, AvailableReplicas: tc.available}
		leaf := Leaf{Settled: true, Object: set}
		if got := [2]bool{leaf.Serves(), leaf.Finished()}; got != [2]bool{tc.serves, tc.finished} {
			t.Errorf("%s: serves and is finished: %v, want %v, %v", name, got, tc.serves, tc.finished)
		}
	}
}
