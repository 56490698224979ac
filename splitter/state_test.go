package splitter

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// TestStuckUpdateKeepsWhatServes: a cluster that has given up waiting for an update still has old pods that serve beside new
// ones that do not. Of fewer replicas it takes away both in proportion, so leaving it must not begin before the replacement.
func TestStuckUpdateKeepsWhatServes(t *testing.T) {
	stuck := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Generation: 2, Annotations: map[string]string{
			workloadv1alpha1.RenderedAnnotation: "h", workloadv1alpha1.AppliedAnnotation: "h"}},
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](4)},
		Status: appsv1.DeploymentStatus{
			ObservedGeneration: 2, Replicas: 5, UpdatedReplicas: 2, ReadyReplicas: 3, AvailableReplicas: 3, UnavailableReplicas: 2,
			Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ProgressDeadlineExceeded"}},
		},
	}
	st := &site{id: "a", leaf: stuck}
	steps := Plan([]Cluster{
		{Name: "a", Leaf: st.state(&stuck.Spec.Template)},
		{Name: "b", Assigned: true, Target: 4, Leaf: settled(4, 4, 0)},
	}, false)
	if got := steps["a"]; got.Replicas < 4 || got.Delete {
		t.Errorf("with nothing available elsewhere, the cluster with 3 pods that serve is to do %+v", got)
	}
}

// TestNothingIsLeftForWhatIsOnlyObserved: what a cluster that was restored says may be of another time, as what one says that is not heard
// of. Nor is it waited for: nothing is written there until somebody confirms.
func TestNothingIsLeftForWhatIsOnlyObserved(t *testing.T) {
	k, _ := kinds.ByKind("Deployment")
	root := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
		Namespace: "front", Name: "web", UID: "root", Generation: 1, Annotations: map[string]string{lcctx.Annotation: "shop"}}}
	root.Spec.Replicas = ptr.To[int32](2)
	in := func(image string) *appsv1.Deployment {
		of := root.DeepCopy()
		of.Spec.Template.Spec.Containers = []corev1.Container{{Name: "web", Image: image}}
		leaf, hash, err := render(k, of, k.Content(of), "front", false)
		if err != nil {
			t.Fatal(err)
		}
		d := leaf.(*appsv1.Deployment)
		d.Annotations[workloadv1alpha1.AppliedAnnotation] = hash
		d.Status = appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 2}
		return d
	}
	for _, west := range []site{{}, {lost: true}, {observed: true}} {
		trusted := !west.lost && !west.observed
		west.id, west.assigned, west.weight, west.leaf = "west", true, 1, in("")
		east := &site{id: "east", leaf: in("")}
		decide(root, placementv1alpha1.SplitEven, []*site{east, &west})
		if east.step.Delete != trusted || !trusted && east.step.Replicas != 2 {
			t.Errorf("west is lost: %v, only observed: %v, and east, which is left for it, is to do %+v", west.lost, west.observed, east.step)
		}
	}
	for _, east := range []site{{}, {lost: true}, {observed: true}} {
		trusted := !east.lost && !east.observed
		rolls := root.DeepCopy()
		rolls.Spec.Template.Spec.Containers = []corev1.Container{{Name: "web", Image: "new"}}
		none := intstr.FromInt32(0)
		rolls.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{
			MaxUnavailable: ptr.To(intstr.FromInt32(1)), MaxSurge: &none}}
		east.id, east.assigned, east.weight, east.leaf = "east", true, 1, in("")
		west := &site{id: "west", assigned: true, weight: 1, leaf: in("")}
		decide(rolls, placementv1alpha1.SplitEven, []*site{&east, west})
		if east.roll.Hold == trusted || west.roll.Hold != trusted {
			t.Errorf("east is lost: %v, only observed: %v, and waits for its turn: %v; so does west: %v", east.lost, east.observed, east.roll.Hold, west.roll.Hold)
		}
	}
}

// TestRolling: a leaf has its turn in use unless its last report is about it as it is, and says that all pods are of its template. That is
// not certain where the last report said so of the leaf as it was, and the next report tells, unless the cluster has refused the leaf.
func TestRolling(t *testing.T) {
	for reason, test := range map[string]struct {
		applied, refused                string
		share, pods, updated, available int32
		want                            RollingCluster
	}{
		"has finished":                    {"h", "", 4, 4, 4, 4, RollingCluster{}},
		"lacks a pod":                     {"h", "", 4, 4, 4, 3, RollingCluster{Lacks: 1}},
		"is to grow":                      {"h", "", 6, 4, 4, 4, RollingCluster{Lacks: 2}},
		"is to shrink, and has not yet":   {"h", "", 2, 4, 4, 3, RollingCluster{Lacks: 1}},
		"has another template since":      {"earlier", "", 4, 4, 4, 4, RollingCluster{Rolling: true, Unsure: true, Awaited: true}},
		"is refused since":                {"earlier", "h", 4, 4, 4, 4, RollingCluster{Rolling: true, Unsure: true}},
		"was refused before":              {"earlier", "earlier", 4, 4, 4, 4, RollingCluster{Rolling: true, Unsure: true, Awaited: true}},
		"is scaled with another template": {"h", "", 4, 4, 0, 4, RollingCluster{Rolling: true}},
		"rolls, with one more":            {"h", "", 4, 5, 2, 5, RollingCluster{Rolling: true}},
		"rolls, and is scaled since":      {"earlier", "", 4, 5, 2, 4, RollingCluster{Rolling: true}},
		"has never reported":              {"", "", 4, 0, 0, 0, RollingCluster{Rolling: true, Unsure: true, Awaited: true, Lacks: 4}},
	} {
		st := &site{id: "a", assigned: true, target: test.share, leaf: &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
				workloadv1alpha1.RenderedAnnotation: "h", workloadv1alpha1.AppliedAnnotation: test.applied}},
			Spec:   appsv1.DeploymentSpec{Replicas: ptr.To[int32](4)},
			Status: appsv1.DeploymentStatus{Replicas: test.pods, UpdatedReplicas: test.updated, AvailableReplicas: test.available},
		}}
		if test.refused != "" {
			st.leaf.GetAnnotations()[workloadv1alpha1.RefusedAnnotation] = fmt.Sprintf(`{"rendered": %q, "reason": "Forbidden"}`, test.refused)
		}
		r, _ := st.rolling(podsOf(st.leaf), 4)
		if got := (RollingCluster{Rolling: r.Rolling, Unsure: r.Unsure, Awaited: r.Awaited, Lacks: r.Lacks}); got != test.want {
			t.Errorf("what %s: %+v, want %+v", reason, got, test.want)
		}
	}
}

// TestNoShare: what still runs where there is no share rolls no more, whether the Placement names the cluster or not.
func TestNoShare(t *testing.T) {
	template := &corev1.PodTemplateSpec{}
	for reason, test := range map[string]struct {
		assigned        bool
		share, replicas int32
		want            bool
	}{
		"has a share":      {true, 1, 1, false},
		"has its last pod": {true, 0, 1, true},
		"is at rest":       {true, 0, 0, false},
		"is left":          {false, 0, 1, true},
	} {
		st := &site{id: "a", assigned: test.assigned, target: test.share, leaf: &appsv1.Deployment{}}
		if r, _ := st.rolling(template, test.replicas); r.Leaving != test.want {
			t.Errorf("who %s: Leaving is %v", reason, r.Leaving)
		}
	}
}

// TestShareGoesDownWithATemplate: what a cluster has of one template, and is to get another, it may lose as if it had both.
func TestShareGoesDownWithATemplate(t *testing.T) {
	next := &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"version": "2"}}}
	st := &site{id: "a", assigned: true, leaf: &appsv1.Deployment{
		Spec:   appsv1.DeploymentSpec{Replicas: ptr.To[int32](3)},
		Status: appsv1.DeploymentStatus{Replicas: 3, UpdatedReplicas: 3, AvailableReplicas: 1},
	}}
	if same := podsOf(st.leaf); st.state(same).Mixed || !st.state(next).Mixed {
		t.Errorf("Mixed is %v with its template, %v with the next", st.state(same).Mixed, st.state(next).Mixed)
	}
	if surge := st.state(next).Surge; surge != 0 {
		t.Errorf("%d may be in surplus by an update that has not begun", surge)
	}
	if st.assigned = false; st.state(next).Mixed {
		t.Error("Mixed where it is left, although it keeps its template")
	}
}

// TestOldRoot: a leaf that was read just now may be the rendering of a generation that the informer has not shown yet.
func TestOldRoot(t *testing.T) {
	root := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{UID: "root", Generation: 4}}
	for reason, test := range map[string]struct {
		uid, generation string
		want            bool
	}{
		"another has written it":         {"root", "5", true},
		"as seen":                        {"root", "4", false},
		"to be written":                  {"root", "3", false},
		"of an earlier root of its name": {"before", "9", false},
		"says nothing":                   {"root", "", false},
	} {
		leaf := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
			Labels:      map[string]string{workloadv1alpha1.RootUIDLabel: test.uid},
			Annotations: map[string]string{workloadv1alpha1.RootGenerationAnnotation: test.generation},
		}}
		if got := isAhead(leaf, root); got != test.want {
			t.Errorf("%s: %v, want %v", reason, got, test.want)
		}
	}
}
