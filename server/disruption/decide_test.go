package disruption

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/queue"
)

var noon = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(noon.Add(-d)) }

// TestDecide: how many may go, of those that are to be and those that serve.
func TestDecide(t *testing.T) {
	number := func(n int) *intstr.IntOrString { return ptr.To(intstr.FromInt(n)) }
	part := func(text string) *intstr.IntOrString { return ptr.To(intstr.FromString(text)) }
	healthy := func(names ...string) (pods []Pod) {
		for _, n := range names {
			pods = append(pods, Pod{Name: n, Healthy: true})
		}
		return pods
	}
	three := healthy("a", "b", "c")
	for name, tc := range map[string]struct {
		reason  string
		spec    policyv1.PodDisruptionBudgetSpec
		pods    []Pod
		wanted  int32
		granted map[string]metav1.Time

		healthy, desired, expected, allowed int32
		left                                []string // whose eviction counts on
		again                               time.Duration
	}{
		"at least":              {"", policyv1.PodDisruptionBudgetSpec{MinAvailable: number(2)}, three, 0, nil, 3, 2, 3, 1, nil, 0},
		"at least all":          {"", policyv1.PodDisruptionBudgetSpec{MinAvailable: number(3)}, three, 0, nil, 3, 3, 3, 0, nil, 0},
		"at least more":         {"nothing may go", policyv1.PodDisruptionBudgetSpec{MinAvailable: number(7)}, three, 0, nil, 3, 7, 3, 0, nil, 0},
		"at least, of those":    {"what there are to be is of no matter", policyv1.PodDisruptionBudgetSpec{MinAvailable: number(2)}, three, 10, nil, 3, 2, 3, 1, nil, 0},
		"at least a part":       {"of those that are to be, rounded up", policyv1.PodDisruptionBudgetSpec{MinAvailable: part("50%")}, three, 5, nil, 3, 3, 5, 0, nil, 0},
		"at most":               {"", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: number(1)}, three, 3, nil, 3, 2, 3, 1, nil, 0},
		"at most, some missing": {"they are of those that are away", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: number(1)}, three, 4, nil, 3, 3, 4, 0, nil, 0},
		"at most a part":        {"rounded up", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: part("34%")}, three, 3, nil, 3, 1, 3, 2, nil, 0},
		"at most more":          {"all may go", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: number(7)}, three, 3, nil, 3, 0, 3, 3, nil, 0},
		"nothing said":          {"nothing may go, as in Kubernetes", policyv1.PodDisruptionBudgetSpec{}, three, 3, nil, 3, 0, 0, 0, nil, 0},
		"no pods":               {"nothing is allowed of nothing", policyv1.PodDisruptionBudgetSpec{MinAvailable: number(0)}, nil, 0, nil, 0, 0, 0, 0, nil, 0},
		"not ready":             {"it does not serve", policyv1.PodDisruptionBudgetSpec{MinAvailable: number(1)}, []Pod{{Name: "a", Healthy: true}, {Name: "b"}}, 0, nil, 1, 1, 2, 0, nil, 0},
		"going":                 {"it will not serve", policyv1.PodDisruptionBudgetSpec{MinAvailable: number(1)}, []Pod{{Name: "a", Healthy: true}, {Name: "b", Healthy: true, Going: true}}, 0, nil, 1, 1, 2, 0, nil, 0},
		"granted": {"it is about to go", policyv1.PodDisruptionBudgetSpec{MinAvailable: number(1)}, three, 0, map[string]metav1.Time{"a": ago(90 * time.Second), "b": ago(30 * time.Second)},
			1, 1, 3, 0, []string{"a", "b"}, 30 * time.Second},
		"granted, and lost":  {"two minutes later it is not", policyv1.PodDisruptionBudgetSpec{MinAvailable: number(1)}, three, 0, map[string]metav1.Time{"a": ago(2 * time.Minute)}, 3, 1, 3, 2, nil, 0},
		"granted, and gone":  {"it is remembered no more", policyv1.PodDisruptionBudgetSpec{MinAvailable: number(1)}, three, 0, map[string]metav1.Time{"d": ago(time.Second)}, 3, 1, 3, 2, nil, 0},
		"granted, and going": {"its deletion says it", policyv1.PodDisruptionBudgetSpec{MinAvailable: number(1)}, []Pod{{Name: "a", Healthy: true, Going: true}, {Name: "b", Healthy: true}}, 0, map[string]metav1.Time{"a": ago(time.Second)}, 1, 1, 2, 0, nil, 0},
	} {
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Generation: 7}, Spec: tc.spec, Status: policyv1.PodDisruptionBudgetStatus{DisruptedPods: tc.granted}}
		before := budget.DeepCopy()
		got, again, err := Decide(budget, tc.pods, tc.wanted, noon)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got.CurrentHealthy != tc.healthy || got.DesiredHealthy != tc.desired || got.ExpectedPods != tc.expected || got.DisruptionsAllowed != tc.allowed || got.ObservedGeneration != 7 {
			t.Errorf("%s: %+v, want %d healthy of %d, %d desired, %d allowed: %s", name, got, tc.healthy, tc.expected, tc.desired, tc.allowed, tc.reason)
		}
		if left := slices.Sorted(maps.Keys(got.DisruptedPods)); !slices.Equal(left, tc.left) || again != tc.again {
			t.Errorf("%s: granted are %v, again after %s, want %v, %s: %s", name, left, again, tc.left, tc.again, tc.reason)
		}
		if is := meta.IsStatusConditionTrue(got.Conditions, policyv1.DisruptionAllowedCondition); is != (tc.allowed > 0) {
			t.Errorf("%s: the condition is %v", name, got.Conditions)
		}
		if diff := cmp.Diff(before, budget); diff != "" {
			t.Errorf("%s: the budget was changed:\n%s", name, diff)
		}
	}
	if _, _, err := Decide(&policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: part("many")}}, three, 3, noon); err == nil {
		t.Error("a part that is none is taken for one")
	}
}

// TestSame: a count that says nothing new is not written, and each that does is.
func TestSame(t *testing.T) {
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Generation: 1}, Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt(1))}}
	budget.Status.DisruptedPods = map[string]metav1.Time{"a": ago(time.Second)}
	pods := []Pod{{Name: "a", Healthy: true}, {Name: "b", Healthy: true}}
	first, _, err := Decide(budget, pods, 0, noon)
	if err != nil {
		t.Fatal(err)
	}
	budget.Status = first
	second, _, err := Decide(budget, pods, 0, noon.Add(time.Second))
	if err != nil || !same(&first, &second) {
		t.Errorf("%v: the same count is %+v after %+v", err, second, first)
	}
	for name, change := range map[string]func(*policyv1.PodDisruptionBudgetStatus){
		"generation": func(s *policyv1.PodDisruptionBudgetStatus) { s.ObservedGeneration++ },
		"healthy":    func(s *policyv1.PodDisruptionBudgetStatus) { s.CurrentHealthy++ },
		"desired":    func(s *policyv1.PodDisruptionBudgetStatus) { s.DesiredHealthy++ },
		"expected":   func(s *policyv1.PodDisruptionBudgetStatus) { s.ExpectedPods++ },
		"allowed":    func(s *policyv1.PodDisruptionBudgetStatus) { s.DisruptionsAllowed++ },
		"granted":    func(s *policyv1.PodDisruptionBudgetStatus) { s.DisruptedPods = nil },
		"condition":  func(s *policyv1.PodDisruptionBudgetStatus) { s.Conditions[0].Reason = "Other" },
	} {
		other := *first.DeepCopy()
		if change(&other); same(&first, &other) {
			t.Errorf("a change of %s is not told", name)
		}
	}
	budget.Status.DisruptionsAllowed = 1
	unknown := Unknown(budget, errors.New("no route"), noon)
	if unknown.DisruptionsAllowed != 0 || same(&first, &unknown) || unknown.Conditions[0].Message != "no route" || unknown.Conditions[0].Reason != policyv1.SyncFailedReason {
		t.Errorf("what is not known is %+v", unknown)
	}
}

// TestReplicas: how many pods what is divided wants over all its clusters.
func TestReplicas(t *testing.T) {
	placement := func(split placementv1alpha1.SplitPolicy, mirrors ...string) *placementv1alpha1.Placement {
		p := &placementv1alpha1.Placement{Spec: placementv1alpha1.PlacementSpec{Split: split}}
		for i, mirror := range mirrors {
			p.Spec.Clusters = append(p.Spec.Clusters, placementv1alpha1.PlacedCluster{Name: fmt.Sprint(i), Mirror: mirror})
		}
		// What is being left is not wanted.
		p.Status.Clusters = []placementv1alpha1.PlacedClusterStatus{{Name: "left", Phase: placementv1alpha1.PhaseDraining, Replicas: 3}}
		return p
	}
	even, duplicate := placement(placementv1alpha1.SplitEven, "east", "west"), placement(placementv1alpha1.SplitDuplicate, "east", "west")
	three := &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To(int32(3))}}
	wishing := three.DeepCopy()
	wishing.Annotations = map[string]string{placementv1alpha1.SplitAnnotation: "Duplicate"}
	core := &corev1.ReplicationController{Spec: corev1.ReplicationControllerSpec{Replicas: ptr.To(int32(3))}}
	for name, tc := range map[string]struct {
		reason          string
		of              ctrlclient.Object
		own, namespaces *placementv1alpha1.Placement
		want            int32 // 0 for not known
	}{
		"divided":                         {"", three, nil, even, 3},
		"divided by weight":               {"", three, nil, placement(placementv1alpha1.SplitWeighted, "east", "west"), 3},
		"divided as ever":                 {"a Placement of before there were splits has none", three, nil, placement("", "east", "west"), 3},
		"one when nothing is said":        {"as in Kubernetes", &appsv1.Deployment{}, nil, even, 1},
		"in each":                         {"each cluster runs all", three, nil, duplicate, 6},
		"in each, of the core":            {"", core, nil, duplicate, 6},
		"in each of one":                  {"", three, nil, placement(placementv1alpha1.SplitDuplicate, "east"), 3},
		"in each that there is":           {"a cluster without a mirror runs nothing", three, nil, placement(placementv1alpha1.SplitDuplicate, "east", ""), 3},
		"its own":                         {"goes before the namespace's", three, duplicate, even, 6},
		"its own, divided":                {"goes before the namespace's", three, even, duplicate, 3},
		"of its own wish":                 {"", wishing, duplicate, even, 6},
		"its own is to come":              {"the namespace's does not decide", wishing, nil, even, 0},
		"none":                            {"", three, nil, nil, 0},
		"nowhere":                         {"what runs stays, as many as it was", three, nil, placement(placementv1alpha1.SplitEven), 0},
		"in each of none":                 {"what runs stays, as many as it was", three, nil, placement(placementv1alpha1.SplitDuplicate), 0},
		"its own is nowhere":              {"the namespace's does not decide", three, placement(placementv1alpha1.SplitEven), even, 0},
		"only where there are no mirrors": {"", three, nil, placement(placementv1alpha1.SplitEven, ""), 0},
	} {
		got, in, err := replicas(tc.of, tc.own, tc.namespaces)
		if (len(in) == 0) != (tc.want == 0) || in.Has("left") {
			t.Errorf("%s: they are to be in %v", name, in)
		}
		var unknown *unscaled
		if got != tc.want || errors.As(err, &unknown) != (tc.want == 0) {
			t.Errorf("%s: %d, %v, want %d: %s", name, got, err, tc.want, tc.reason)
		}
	}
}

// selecting are budgets of a namespace, each named by the pods that it selects.
func selecting(apps ...string) map[string]remembered {
	budgets := map[string]remembered{}
	for _, app := range apps {
		budgets[app] = remembered{selector: labels.SelectorFromSet(labels.Set{"app": app})}
	}
	return budgets
}

// TestMatched: which budgets a pod is counted by, and when.
func TestMatched(t *testing.T) {
	all := selecting("a", "b")
	all["all"] = remembered{selector: labels.Everything()}
	many := map[string]remembered{}
	for i := range 5000 {
		many[fmt.Sprint(i)] = remembered{selector: labels.Everything()}
	}
	for name, tc := range map[string]struct {
		reason  string
		budgets map[string]remembered
		apps    []string
		counted int
		others  time.Duration
	}{
		"none there":     {"", nil, []string{"a"}, 0, 0},
		"one":            {"it selects the pod, and no other could have", selecting("a"), []string{"a"}, 1, 0},
		"another's":      {"it may have been this one's before", selecting("a"), []string{"b"}, 0, relabelled + podsTogether},
		"one of three":   {"", selecting("a", "b", "c"), []string{"b"}, 1, relabelled + 3*podsTogether},
		"of two pods":    {"", selecting("a", "b", "c"), []string{"b", "c"}, 2, relabelled + 3*podsTogether},
		"two of three":   {"", all, []string{"a"}, 2, relabelled + 3*podsTogether},
		"very many":      {"", many, []string{"a"}, 5000, 0},
		"none that does": {"", selecting("a", "b"), []string{"c"}, 0, relabelled + 2*podsTogether},
	} {
		var touched client.Touched
		for _, app := range tc.apps {
			touched.Add(client.NewLabelled(map[string]string{"app": app}))
		}
		counted, others := matched(tc.budgets, &touched)
		if len(counted) != tc.counted || others != tc.others {
			t.Errorf("%s: %d are counted, others after %s, want %d, others after %s: %s", name, len(counted), others, tc.counted, tc.others, tc.reason)
		}
	}
}

// TestRecounted: a budget that selects another number of pods than it did has lost one, and is counted. Where there are many it
// goes on where it was.
func TestRecounted(t *testing.T) {
	budgets := selecting("a", "b", "c")
	for name, selected := range map[string]int{"a": 2, "b": 1} {
		budgets[name] = remembered{selector: budgets[name].selector, selected: selected}
	}
	if got, last := recounted(budgets, "", []labels.Set{{"app": "a"}, {"app": "b"}, {"app": "d"}}); !slices.Equal(got, []string{"a"}) || last != "" {
		t.Errorf("%v are counted, and more after %q, want that alone that selects one less", got, last)
	}
	if got, _ := recounted(budgets, "", []labels.Set{{"app": "a"}, {"app": "a"}, {"app": "b"}}); got != nil {
		t.Errorf("%v are counted, want none", got)
	}
	pods := make([]labels.Set, mostHeld*2/5)
	var counted []string
	held, from := 0, ""
	for rounds := 1; ; rounds++ {
		before := held
		for name, is := range budgets {
			budgets[name] = remembered{selector: counting{labels.Everything(), &held}, selected: is.selected}
		}
		got, last := recounted(budgets, from, pods)
		if held-before > mostHeld {
			t.Fatalf("labels are held against selectors %d times at once", held-before)
		}
		counted = append(counted, got...)
		if from = last; last == "" {
			if rounds != 2 {
				t.Errorf("it takes %d lists, want 2", rounds)
			}
			break
		}
	}
	if !slices.Equal(counted, []string{"a", "b", "c"}) {
		t.Errorf("%v are counted, want all", counted)
	}
}

// counting is a selector that counts what is held against it.
type counting struct {
	labels.Selector
	held *int
}

func (c counting) Matches(l labels.Labels) bool {
	*c.held++
	return c.Selector.Matches(l)
}

// working has a controller do what pods ask for, and note when budgets are counted, and when the pods of a namespace are listed.
func working(c *Controller, note func(client.Key)) func(context.Context, client.Key) (time.Duration, error) {
	return func(_ context.Context, key client.Key) (time.Duration, error) {
		if key.Name != "" {
			c.begins(key)
			note(key)
			return 0, nil
		}
		c.match(key)
		wait, _, budgets := c.listed(key)
		if len(budgets) > 0 {
			note(key)
			return c.looked(key, ""), nil
		}
		return wait, nil
	}
}

func podOf(cluster, app string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: app, Namespace: "team", Labels: map[string]string{"app": app}, Annotations: map[string]string{logicalcluster.AnnotationKey: cluster},
	}}
}

func keyIn(cluster, name string) client.Key {
	return client.Key{Cluster: logicalcluster.Name(cluster), Namespace: "team", Name: name}
}

// TestEventsOfPods: of many budgets in a namespace, and others of its name, an event of a pod has the one counted that selects
// it, and the namespace once, later, however many events there are.
func TestEventsOfPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		at := map[client.Key][]time.Duration{}
		c := newController(clock.RealClock{})
		c.queue = queue.New("test", working(c, func(key client.Key) { at[key] = append(at[key], time.Since(began)) }))
		for i := range 50 {
			selector := labels.SelectorFromSet(labels.Set{"app": fmt.Sprint(i)})
			for _, cluster := range []string{"shop", "bank"} {
				c.remember(keyIn(cluster, fmt.Sprint(i)), selector)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan struct{})
		go func() { defer close(ran); c.queue.Run(ctx, 1) }()
		for range 3 {
			c.onPod(podOf("shop", "7"), false)
		}
		<-time.After(time.Minute) // of the test's own time
		cancel()
		<-ran
		if want := map[client.Key][]time.Duration{
			keyIn("shop", "7"): {client.WhileSettling + podsTogether}, keyIn("shop", ""): {client.WhileSettling + relabelled + 50*podsTogether},
		}; !cmp.Equal(at, want) {
			t.Errorf("counted are %v, want %v", at, want)
		}
		if c.match(keyIn("shop", "")); len(c.spaces)+len(c.filed)+len(c.until) > 0 {
			t.Errorf("kept when all is counted: %v, %v, %v", c.spaces, c.filed, c.until)
		}
	})
}

// TestEventsOfPodsHoldUpNobody: who hears of the pods of all workspaces holds none against the budgets of one, however many it
// has, and a worker no more than some budgets against some pods.
func TestEventsOfPodsHoldUpNobody(t *testing.T) {
	c := newController(clock.RealClock{})
	c.queue = queue.New("test", working(c, func(client.Key) {}))
	defer c.queue.Stop()
	held := 0
	for i := range 20_000 {
		c.remember(keyIn("shop", fmt.Sprint(i)), counting{labels.Everything(), &held})
	}
	for i := range 1000 {
		c.onPod(podOf("shop", fmt.Sprint(i%100)), false)
	}
	if held != 0 {
		t.Errorf("1,000 events of pods are held %d times against selectors by who hears of all pods", held)
	}
	c.match(keyIn("shop", ""))
	if held > mostBudgets*client.MostTouched {
		t.Errorf("a worker held labels of pods %d times against selectors", held)
	}
}

// TestOneTooMany: a namespace has so many budgets that are counted. The others say so, and each is counted when there is room.
func TestOneTooMany(t *testing.T) {
	c := newController(clock.RealClock{})
	c.queue = queue.New("test", working(c, func(client.Key) {}))
	defer c.queue.Stop()
	for i := range mostBudgets + 3 {
		c.remember(keyIn("shop", fmt.Sprintf("%04d", i)), labels.Everything())
	}
	c.remember(keyIn("bank", "one"), labels.Everything())
	is := func(name string, want bool) {
		t.Helper()
		if got := c.counts(keyIn("shop", name), labels.Everything()); got != want {
			t.Errorf("%s counts: %v, want %v", name, got, want)
		}
	}
	is("0000", true)
	is("1000", false)
	is("1002", false)
	if !c.counts(keyIn("bank", "one"), labels.Everything()) {
		t.Error("another workspace's does not count")
	}
	c.forget(keyIn("shop", "1001")) // which makes no room
	is("1000", false)
	for _, name := range []string{"0000", "0001", "0002"} {
		before := c.queue.Len()
		c.forget(keyIn("shop", name))
		if name == "0000" && c.queue.Len() == before {
			t.Error("none of the others is looked at when there is room")
		}
	}
	is("1000", true)
	is("1002", true)
	is("gone", true)
	if known := c.named.In(keyIn("shop", "")); len(known) != mostBudgets-1 || len(c.beyond) > 0 {
		t.Errorf("%d budgets are counted, and %d namespaces have more, want all that are there, and none that is gone", len(known), len(c.beyond))
	}
	c.onPod(podOf("shop", "a"), false)
	c.leave(keyIn("shop", ""))
	c.forget(keyIn("bank", "one"))
	if len(c.named)+len(c.beyond)+len(c.spaces)+len(c.filed) > 0 {
		t.Errorf("kept of what is gone: %v, %v, %v, %v", c.named, c.beyond, c.spaces, c.filed)
	}
}

// TestLabelsOfAWorkspace: of the pods of a workspace that wait for a worker so many sets of labels are kept, over all its
// namespaces; in the others all budgets are counted.
func TestLabelsOfAWorkspace(t *testing.T) {
	c := newController(clock.RealClock{})
	c.queue = queue.New("test", working(c, func(client.Key) {}))
	defer c.queue.Stop()
	nothing := labels.SelectorFromSet(labels.Set{"app": "none"})
	in := func(cluster string, space int) client.Key {
		return client.Key{Cluster: logicalcluster.Name(cluster), Namespace: fmt.Sprint(space)}
	}
	event := func(cluster string, space, app int) {
		pod := podOf(cluster, fmt.Sprint(app))
		pod.Namespace = fmt.Sprint(space)
		c.onPod(pod, false)
	}
	many := 2 * mostFiled / 10
	for _, cluster := range []string{"shop", "bank"} {
		for space := range many {
			key := in(cluster, space)
			key.Name = "web"
			c.remember(key, nothing)
		}
	}
	for space := range many {
		for app := range 10 {
			event("shop", space, app)
		}
	}
	event("bank", 0, 0)
	if kept := c.filed["shop"]; kept > mostFiled {
		t.Errorf("%d sets of labels are kept of a workspace", kept)
	}
	for space, want := range map[client.Key]bool{in("shop", 0): false, in("shop", many-1): true, in("bank", 0): false} {
		touched := c.spaces[space].touched
		if counted, _ := matched(c.named[space], &touched); (len(counted) == 1) != want {
			t.Errorf("in %s are counted %v", space, counted)
		}
	}
	for _, cluster := range []string{"shop", "bank"} {
		for space := range many {
			c.match(in(cluster, space))
		}
	}
	if len(c.filed) > 0 {
		t.Errorf("kept when all were looked at: %v", c.filed)
	}
}

// TestSelectorOf: a selector is read up to a length, whatever it is made of, and beyond says so.
func TestSelectorOf(t *testing.T) {
	values := func(n, size int) *metav1.LabelSelector {
		e := metav1.LabelSelectorRequirement{Key: "app", Operator: metav1.LabelSelectorOpIn}
		for i := range n {
			e.Values = append(e.Values, fmt.Sprintf("%0*d", size, i))
		}
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{e}}
	}
	long := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for i := range 50 {
		long.MatchLabels[fmt.Sprintf("example.com/label-%02d", i)] = strings.Repeat("x", 63)
	}
	pod := labels.Set{"app": "0000"}
	for name, tc := range map[string]struct {
		selector *metav1.LabelSelector
		selects  bool
		why      string
	}{
		"none":            {nil, false, ""},
		"all":             {&metav1.LabelSelector{}, true, ""},
		"one":             {&metav1.LabelSelector{MatchLabels: pod}, true, ""},
		"many values":     {values(400, 4), true, ""},
		"values by far":   {values(200_000, 6), false, "its selector has 1400003 bytes of keys and values, and none of more than 2048 is read"},
		"empty values":    {&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: make([]string, 3000)}}}, false, "its selector has 3003 bytes"},
		"many labels":     {long, false, "none of more than 2048 is read"},
		"cannot be read":  {&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Like"}}}, false, "its selector cannot be read"},
		"no such label":   {&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "of", Operator: metav1.LabelSelectorOpDoesNotExist}}}, true, ""},
		"another's label": {&metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, false, ""},
	} {
		got, err := selectorOf(&policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{Selector: tc.selector}})
		var not *uncounted
		if (err != nil) != (tc.why != "") || err != nil && (!errors.As(err, &not) || !strings.Contains(err.Error(), tc.why)) {
			t.Errorf("%s: %v, want %q", name, err, tc.why)
		}
		if is := got.Matches(pod); is != tc.selects {
			t.Errorf("%s: it selects the pod: %v", name, is)
		}
	}
}

// TestCountsOfAWorkspace: whatever its pods do, a workspace's budgets are counted one after the other, large ones more slowly,
// and each in the end; another workspace's do not wait for them.
func TestCountsOfAWorkspace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		counts, last := map[client.Key]int{}, map[client.Key]time.Duration{}
		c := newController(clock.RealClock{})
		c.queue = queue.New("test", working(c, func(key client.Key) {
			counts[key]++
			last[key] = time.Since(began)
		}))
		selector := func(app string) labels.Selector { return labels.SelectorFromSet(labels.Set{"app": app}) }
		for i := range 100 {
			c.remember(keyIn("shop", fmt.Sprint(i)), selector(fmt.Sprint(i)))
		}
		c.remember(keyIn("bank", "large"), selector("large"))
		c.counted(keyIn("bank", "large"), 2000)
		c.remember(keyIn("inn", "one"), selector("one"))
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan struct{})
		go func() { defer close(ran); c.queue.Run(ctx, 1) }()
		for range 600 { // of each pod ten events a second, for a minute
			for i := range 100 {
				c.onPod(podOf("shop", fmt.Sprint(i)), false)
			}
			c.onPod(podOf("bank", "large"), false)
			<-time.After(100 * time.Millisecond) // of the test's own time
		}
		c.onPod(podOf("inn", "one"), false)
		<-time.After(client.WhileSettling + podsTogether + time.Millisecond)
		cancel()
		<-ran
		sum, least := 0, 1000
		for i := range 100 {
			n := counts[keyIn("shop", fmt.Sprint(i))]
			sum, least = sum+n, min(least, n)
		}
		if sum > 301 || least < 2 {
			t.Errorf("100 budgets are counted %d times in a minute, each %d times at least; want five a second, and each in its turn", sum, least)
		}
		if n := counts[keyIn("bank", "large")]; n < 10 || n > 15 {
			t.Errorf("a budget of 2,000 pods is counted %d times in a minute, want each 4.2 s", n)
		}
		if at := last[keyIn("inn", "one")]; at != time.Minute+client.WhileSettling+podsTogether {
			t.Errorf("another workspace's is counted after %s, want it not to wait", at)
		}
	})
}
