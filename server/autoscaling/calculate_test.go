package autoscaling

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"k8s.io/utils/ptr"

	"k8s.io/kubernetes/pkg/controller/podautoscaler"
	"k8s.io/kubernetes/pkg/controller/podautoscaler/metrics"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

var noon = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// runs is a pod in a cluster that serves for an hour, and asks for 100m of CPU.
func runs(name, cluster string) pod {
	return pod{
		name: name, cluster: cluster, phase: corev1.PodRunning, started: noon.Add(-time.Hour), requests: []request{{milli: 100}},
		ready: &corev1.PodCondition{Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(noon.Add(-time.Hour))},
	}
}

// uses is what a pod with one container uses.
func uses(milli int64) *metricsv1beta1.PodMetrics {
	return &metricsv1beta1.PodMetrics{
		Timestamp: metav1.NewTime(noon.Add(-10 * time.Second)), Window: metav1.Duration{Duration: 15 * time.Second},
		Containers: []metricsv1beta1.ContainerMetrics{{Name: "c", Usage: corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(milli, resource.DecimalSI)}}},
	}
}

// TestCalculate: how many pods would use as much as they are to.
func TestCalculate(t *testing.T) {
	half, fifty := goal{resource: corev1.ResourceCPU, percent: 50}, goal{resource: corev1.ResourceCPU, milli: 50}
	with := func(p pod, change func(*pod)) pod {
		p.ready = p.ready.DeepCopy()
		change(&p)
		return p
	}
	four := []pod{runs("a", "east"), runs("b", "east"), runs("c", "west"), runs("d", "west")}
	used := func(milli ...int64) usages {
		all := usages{}
		for i, n := range milli {
			if n >= 0 {
				all[four[i].name] = uses(n)
			}
		}
		return all
	}
	away := []pod{four[0], four[1], with(four[2], func(p *pod) { p.cluster = "mute" }), with(four[3], func(p *pod) { p.cluster = "mute" })}
	notReady := func(p *pod) { p.ready.Status = corev1.ConditionFalse }
	pending := func(p *pod) { p.phase, p.started, p.ready = corev1.PodPending, time.Time{}, nil }
	for name, tc := range map[string]struct {
		reason  string
		goal    goal
		current int32
		copies  int32
		pods    []pod
		used    usages
		want    int32
		waits   []string
		err     string
	}{
		"more":                            {"twice as much is used", half, 4, 1, four, used(100, 100, 100, 100), 8, nil, ""},
		"fewer":                           {"", half, 4, 1, four, used(25, 25, 25, 25), 2, nil, ""},
		"rounded up":                      {"", half, 4, 1, four, used(60, 60, 60, 60), 5, nil, ""},
		"a little more":                   {"within a tenth nothing is done", half, 4, 1, four, used(54, 54, 54, 54), 4, nil, ""},
		"a little less":                   {"", half, 4, 1, four, used(46, 46, 46, 46), 4, nil, ""},
		"thousandths":                     {"", fifty, 4, 1, four, used(100, 100, 100, 100), 8, nil, ""},
		"more than there are":             {"the pods decide, and not what was wanted", half, 9, 1, four, used(100, 100, 100, 100), 8, nil, ""},
		"in each":                         {"what pods of two clusters use is to be used by as many in each", half, 2, 2, four, used(100, 100, 100, 100), 4, nil, ""},
		"in each, fewer":                  {"", half, 2, 2, four, used(25, 25, 25, 25), 1, nil, ""},
		"in each, enough":                 {"", half, 2, 2, four, used(50, 50, 50, 50), 2, nil, ""},
		"one unknown, more":               {"it is taken for using nothing", half, 4, 1, four, used(100, 100, 100, -1), 6, nil, ""},
		"one unknown, fewer":              {"it is taken for using all that it asks for", half, 4, 1, four, used(0, 0, 0, -1), 2, nil, ""},
		"one unknown, no fewer":           {"by what it is taken for there would be more", half, 4, 1, four, used(40, 40, 40, -1), 4, nil, ""},
		"one unknown, by number":          {"it is taken for using what it is to", fifty, 4, 1, four, used(0, 0, 0, -1), 1, nil, ""},
		"a cluster is away":               {"there are not fewer, though it would do by those that are known", fifty, 4, 1, four, used(0, 0, -1, -1), 4, []string{"west"}, ""},
		"a cluster is away, by percent":   {"", goal{resource: corev1.ResourceCPU, percent: 90}, 4, 1, four, used(0, 0, -1, -1), 4, []string{"west"}, ""},
		"a cluster is away, more":         {"what is known is enough for that", half, 4, 1, four, used(200, 200, -1, -1), 8, nil, ""},
		"a cluster says nothing for ever": {"its pods are taken for using what they are to, as in Kubernetes", fifty, 4, 1, away, used(0, 0, -1, -1), 2, nil, ""},
		"a cluster says nothing for ever, by percent": {"or all that they ask for", goal{resource: corev1.ResourceCPU, percent: 90}, 4, 1, away, used(0, 0, -1, -1), 3, nil, ""},
		"what says nothing for ever is away":          {"no pod there is Ready: it is waited for", fifty, 4, 1, []pod{away[0], away[1], with(away[2], notReady), with(away[3], notReady)}, used(0, 0, -1, -1), 4, []string{"mute"}, ""},
		"what is away waits":                          {"a pod that has not begun is not away", fifty, 4, 1, []pod{four[0], four[1], with(four[2], pending)}, used(0, 0), 0, nil, ""},
		"nobody shows it":                             {"a pod that is nowhere is no cluster that is away", fifty, 3, 1, []pod{four[0], four[1], with(four[2], func(p *pod) { p.cluster = "" })}, used(0, 0), 1, nil, ""},
		"one begins, more":                            {"it will take its part", half, 4, 1, []pod{four[0], four[1], four[2], with(four[3], pending)}, used(100, 100, 100), 6, nil, ""},
		"one begins, fewer":                           {"it is not there", half, 4, 1, []pod{four[0], four[1], four[2], with(four[3], pending)}, used(25, 25, 25), 2, nil, ""},
		"one is not Ready":                            {"what it uses is of its start", half, 2, 1, []pod{four[0], with(four[1], func(p *pod) { p.started = noon.Add(-time.Minute); p.ready.Status = corev1.ConditionFalse })}, used(50, 900), 2, nil, ""},
		"one goes":                                    {"it is not there", half, 2, 1, []pod{four[0], with(four[1], func(p *pod) { p.going = true })}, used(100, 900), 2, nil, ""},
		"one has failed":                              {"it is not there", half, 2, 1, []pod{four[0], with(four[1], func(p *pod) { p.phase = corev1.PodFailed })}, used(100, 900), 2, nil, ""},
		"all begin":                                   {"", half, 2, 1, []pod{with(four[0], pending), with(four[1], pending)}, used(100, 100), 0, nil, "did not receive metrics"},
		"no request":                                  {"a part of nothing", half, 2, 1, []pod{four[0], with(four[1], func(p *pod) { p.requests = []request{{err: fmt.Errorf("missing request")}} })}, used(100, 100), 0, nil, "missing request"},
		"no request is needed":                        {"", fifty, 2, 1, []pod{four[0], with(four[1], func(p *pod) { p.requests = []request{{err: fmt.Errorf("missing request")}} })}, used(100, 100), 4, nil, ""},
		"nothing is asked for":                        {"", half, 1, 1, []pod{with(four[0], func(p *pod) { p.requests = []request{{}} })}, used(100), 0, nil, "no metrics returned matched known pods"},
		"of another resource":                         {"nothing is known", goal{resource: "gpu", milli: 50}, 4, 1, four, used(1, 1, 1, 1), 0, nil, "did not receive metrics"},
		"of another container":                        {"nothing is known", goal{resource: corev1.ResourceCPU, container: "d", milli: 50}, 4, 1, four, used(1, 1, 1, 1), 0, nil, "did not receive metrics"},
		"of the container":                            {"", goal{resource: corev1.ResourceCPU, container: "c", milli: 50}, 4, 1, four, used(100, 100, 100, 100), 8, nil, ""},
		"more than there can be":                      {"a cluster may say what it likes", half, 4, 1, four, used(math.MaxInt64, math.MaxInt64, 1, 1), (math.MaxInt32*4 + 49) / 50, nil, ""},
	} {
		got, err := calculate(tc.goal, tc.current, tc.copies, tc.pods, tc.used, func(cluster string) bool { return cluster == "mute" }, tolerance{usualTolerance, usualTolerance}, noon)
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: %v, want %q: %s", name, err, tc.err, tc.reason)
			}
			continue
		}
		if err != nil || got.replicas != tc.want || !slices.Equal(got.waits, tc.waits) {
			t.Errorf("%s: %+v, %v, want %d, because of %v: %s", name, got, err, tc.want, tc.waits, tc.reason)
		}
	}
}

// upstream answers Kubernetes' calculator.
type upstream struct {
	metrics.MetricsClient
	used usages
	goal goal
}

func (u upstream) GetResourceMetric(context.Context, corev1.ResourceName, string, labels.Selector, string) (metrics.PodMetricsInfo, time.Time, error) {
	all := metrics.PodMetricsInfo{}
	for name, m := range u.used {
		if milli, ok := valueOf(m, u.goal); ok {
			all[name] = metrics.PodMetric{Timestamp: m.Timestamp.Time, Window: m.Window.Duration, Value: milli}
		}
	}
	return all, noon, nil
}

// TestCalculatesAsKubernetes: without tolerance, which nobody outside of it can give it, Kubernetes' calculator says the same of whatever pods.
func TestCalculatesAsKubernetes(t *testing.T) {
	synctest.Test(t, calculatesAsKubernetes) // the other one takes the time from nobody: here it stands still
}

func calculatesAsKubernetes(t *testing.T) {
	now := time.Now()
	choice := rand.New(rand.NewPCG(1, 2))
	calculated := 0
	for range 20_000 {
		g := goal{resource: []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}[choice.IntN(2)]}
		if choice.IntN(2) == 0 {
			g.percent = 1 + choice.Int32N(150)
		} else {
			g.milli = 1 + choice.Int64N(200)
		}
		indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		var pods []pod
		used := usages{}
		most := 1 + choice.Int64N(300)
		for i := range choice.IntN(6) {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i), Namespace: "team"}, Spec: corev1.PodSpec{NodeName: "east", Containers: []corev1.Container{{Name: "c"}, {Name: "d"}}}}
			for j := range p.Spec.Containers {
				p.Spec.Containers[j].Resources.Requests = corev1.ResourceList{g.resource: *resource.NewMilliQuantity(choice.Int64N(200), resource.DecimalSI)}
			}
			switch choice.IntN(20) {
			case 0:
				p.Spec.Containers[1].Resources.Requests = nil
			case 1:
				p.Spec.InitContainers = []corev1.Container{{Name: "side", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), Resources: p.Spec.Containers[0].Resources}}
			case 2:
				p.Spec.InitContainers = []corev1.Container{{Name: "before"}}
			case 3:
				p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("70m")}}
			}
			p.Status.Phase = []corev1.PodPhase{corev1.PodRunning, corev1.PodRunning, corev1.PodRunning, corev1.PodRunning, corev1.PodPending, corev1.PodFailed, corev1.PodSucceeded}[choice.IntN(7)]
			ago := func() metav1.Time { return metav1.NewTime(now.Add(-time.Duration(choice.IntN(600)+1) * time.Second)) }
			if choice.IntN(10) > 0 {
				p.Status.StartTime = ptr.To(ago())
			}
			if choice.IntN(10) > 0 {
				status := []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown}[choice.IntN(4)]
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status, LastTransitionTime: ago()}}
			}
			if choice.IntN(10) == 0 {
				p.DeletionTimestamp = &metav1.Time{Time: now}
			}
			if choice.IntN(5) > 0 {
				used[p.Name] = &metricsv1beta1.PodMetrics{
					Timestamp: metav1.NewTime(now.Add(-time.Duration(choice.IntN(60)) * time.Second)), Window: metav1.Duration{Duration: time.Duration(choice.IntN(60)) * time.Second},
					Containers: []metricsv1beta1.ContainerMetrics{{Name: "c", Usage: corev1.ResourceList{g.resource: *resource.NewMilliQuantity(choice.Int64N(most), resource.DecimalSI)}}},
				}
			}
			if err := indexer.Add(p); err != nil {
				t.Fatal(err)
			}
			spec := autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: g.resource, Target: autoscalingv2.MetricTarget{AverageUtilization: ptr.To(int32(1))}}}
			pods = append(pods, podOf(p, []autoscalingv2.MetricSpec{spec}))
		}
		current := 1 + choice.Int32N(8)
		theirs := podautoscaler.NewReplicaCalculator(upstream{used: used, goal: g}, corelisters.NewPodLister(indexer), startsFor, neverReadyFor)
		var want proposal
		var problem error
		if g.percent > 0 {
			want.replicas, want.percent, want.milli, _, problem = theirs.GetResourceReplicas(t.Context(), current, g.percent, g.resource, podautoscaler.Tolerances{}, "team", labels.Everything(), "")
		} else {
			want.replicas, want.milli, _, problem = theirs.GetRawResourceReplicas(t.Context(), current, g.milli, g.resource, podautoscaler.Tolerances{}, "team", labels.Everything(), "")
		}
		for _, mute := range []bool{false, true} {
			got, err := calculate(g, current, 1, pods, used, func(string) bool { return mute }, tolerance{}, now)
			if len(got.waits) > 0 { // the one difference
				if got.replicas != current || want.replicas >= current {
					t.Fatalf("%+v held at %d, where Kubernetes has %d", got, current, want.replicas)
				}
				continue
			}
			if (err == nil) != (problem == nil) || err == nil && (got.replicas != want.replicas || got.percent != want.percent || got.milli != want.milli) {
				t.Fatalf("%+v, %v, want %+v, %v, of %+v with %v, by %+v, %d now, mute %v", got, err, want, problem, pods, used, g, current, mute)
			}
			if err == nil && mute {
				calculated++
			}
		}
	}
	if calculated < 5_000 {
		t.Errorf("%d were calculated, want many", calculated)
	}
}
