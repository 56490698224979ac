package autoscaling

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
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

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

var noon = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// runs is a pod in a cluster that serves for an hour, and asks for 100m of CPU.
func runs(name, cluster string) pod {
	return pod{
		name: name, cluster: cluster, phase: corev1.PodRunning, started: noon.Add(-time.Hour), requests: []int64{100},
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
	cpu := demand{resource: corev1.ResourceCPU}
	half, fifty := goal{demand: cpu, percent: 50}, goal{demand: cpu, milli: 50}
	lacking := func(g goal) goal {
		g.lacks = errors.New("missing request")
		return g
	}
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
		for i := range 4 {
			all[fmt.Sprint("idle-", i)], all[fmt.Sprint("more-", i)] = uses(0), uses(0)
		}
		return all
	}
	away := []pod{four[0], four[1], with(four[2], func(p *pod) { p.cluster = "mute" }), with(four[3], func(p *pod) { p.cluster = "mute" })}
	notReady := func(p *pod) { p.ready.Status = corev1.ConditionFalse }
	pending := func(p *pod) { p.phase, p.started, p.ready = corev1.PodPending, time.Time{}, nil }
	in := func(p pod, cluster string) pod { return with(p, func(p *pod) { p.cluster = cluster }) }
	east := []pod{four[0], four[1], in(four[2], "east"), in(four[3], "east")}
	lopsided := []pod{four[0], four[1], in(four[2], "east"), four[3]}
	idle, more := make([]pod, 4), make([]pod, 4)
	for i := range idle {
		idle[i], more[i] = runs(fmt.Sprint("idle-", i), "west"), runs(fmt.Sprint("more-", i), "north")
	}
	gone := func(p *pod) { notReady(p); p.lost = true }
	lost := []pod{four[0], four[1], with(four[2], gone), with(four[3], gone)}
	for name, tc := range map[string]struct {
		reason  string
		goal    goal
		current int32
		each    bool
		pods    []pod
		used    usages
		want    int32
		waits   []string
		err     string
	}{
		"more":                               {"twice as much is used", half, 4, false, four, used(100, 100, 100, 100), 8, nil, ""},
		"fewer":                              {"", half, 4, false, four, used(25, 25, 25, 25), 2, nil, ""},
		"rounded up":                         {"", half, 4, false, four, used(60, 60, 60, 60), 5, nil, ""},
		"a little more":                      {"within a tenth nothing is done", half, 4, false, four, used(54, 54, 54, 54), 4, nil, ""},
		"a little less":                      {"", half, 4, false, four, used(46, 46, 46, 46), 4, nil, ""},
		"thousandths":                        {"", fifty, 4, false, four, used(100, 100, 100, 100), 8, nil, ""},
		"more than there are":                {"what uses too much is no reason for fewer, however few are seen", half, 9, false, four, used(100, 100, 100, 100), 9, nil, ""},
		"in each":                            {"two in each use twice as much", half, 2, true, four, used(100, 100, 100, 100), 4, nil, ""},
		"in each, fewer":                     {"", half, 2, true, four, used(25, 25, 25, 25), 1, nil, ""},
		"in each, enough":                    {"", half, 2, true, four, used(50, 50, 50, 50), 2, nil, ""},
		"west shows none":                    {"east alone uses all that is used, and needs as many as it would with nobody beside it", half, 4, true, east, used(75, 75, 75, 75), 6, nil, ""},
		"west shows none, enough":            {"", half, 4, true, east, used(50, 50, 50, 50), 4, nil, ""},
		"west shows none, fewer":             {"", half, 4, true, east, used(25, 25, 25, 25), 2, nil, ""},
		"west shows some, more":              {"what is used too much of is no reason for fewer, however many there are", half, 4, true, lopsided, used(60, 60, 60, 60), 4, nil, ""},
		"west shows some, fewer":             {"not fewer than east needs", half, 3, true, lopsided, used(40, 40, 40, 40), 3, nil, ""},
		"west says nothing":                  {"what east needs is known", half, 2, true, four, used(200, 200, -1, -1), 8, nil, ""},
		"a third leaves, more":               {"one in each uses twice as much", half, 1, true, []pod{four[0], four[2], in(four[3], "north")}, used(100, -1, 100, 100), 2, nil, ""},
		"a third leaves":                     {"what uses less than it is to is no reason for more", half, 1, true, []pod{four[0], four[2], in(four[3], "north")}, used(40, -1, 40, 40), 1, nil, ""},
		"in each, one is idle":               {"what it does not use is nothing that the other could", half, 4, true, append(slices.Clone(east), idle...), used(60, 60, 60, 60), 5, nil, ""},
		"in each, one is idle, enough":       {"", half, 4, true, append(slices.Clone(east), idle...), used(48, 48, 48, 48), 4, nil, ""},
		"in each, one is idle, fewer":        {"", half, 4, true, append(slices.Clone(east), idle...), used(30, 30, 30, 30), 3, nil, ""},
		"in each, two are idle":              {"", half, 4, true, append(append(slices.Clone(east), idle...), more...), used(95, 95, 95, 95), 8, nil, ""},
		"in each, one says nothing":          {"what the other one needs says nothing of it", half, 2, true, four, used(1, 1, -1, -1), 2, []string{"west"}, ""},
		"in each, one says nothing for ever": {"nor does it then", half, 2, true, away, used(1, 1, -1, -1), 2, []string{"mute"}, ""},
		"in each, one begins":                {"what it will need is not known", half, 2, true, []pod{four[0], four[1], with(four[2], pending), with(four[3], pending)}, used(1, 1), 2, []string{"west"}, ""},
		"in each, one has not begun for as long as counts":   {"", half, 2, true, []pod{four[0], four[1], with(four[2], func(p *pod) { p.started = noon.Add(-time.Minute); p.ready.Status = corev1.ConditionFalse })}, used(1, 1, 900), 2, []string{"west"}, ""},
		"in each, one begins, more":                          {"the other needs it", half, 2, true, []pod{four[0], four[1], with(four[2], pending)}, used(100, 100), 4, nil, ""},
		"in each, one is nowhere":                            {"it is of no cluster", half, 2, true, []pod{four[0], four[1], with(in(four[2], ""), pending)}, used(1, 1), 1, nil, ""},
		"in each, one goes":                                  {"it makes room for others", half, 2, true, []pod{four[0], four[1], with(four[2], func(p *pod) { p.going = true })}, used(1, 1), 2, []string{"west"}, ""},
		"in each, one has failed":                            {"nothing is to be there", half, 2, true, []pod{four[0], four[1], with(four[2], func(p *pod) { p.going, p.phase = true, corev1.PodFailed })}, used(1, 1), 1, nil, ""},
		"in each, none is measured":                          {"", half, 2, true, four, usages{}, 0, nil, "did not receive metrics"},
		"in each, no request":                                {"", lacking(half), 2, true, four, used(1, 1, 1, 1), 0, nil, "missing request"},
		"one has ended":                                      {"of it there is nothing to say", fifty, 3, false, []pod{four[0], four[1], with(four[2], func(p *pod) { p.phase = corev1.PodSucceeded; notReady(p) })}, used(0, 0), 1, nil, ""},
		"one has ended, in each":                             {"", fifty, 2, true, []pod{four[0], four[1], with(four[2], func(p *pod) { p.phase = corev1.PodSucceeded; notReady(p) })}, used(0, 0), 0, nil, ""},
		"a cluster says nothing for long, more":              {"the others need what they need", half, 4, false, []pod{four[0], four[1], in(four[2], "quiet"), in(four[3], "quiet")}, used(95, 95, -1, -1), 6, nil, ""},
		"a cluster says nothing for a while, more":           {"it may have just begun", half, 4, false, four, used(95, 95, -1, -1), 4, nil, ""},
		"a cluster says nothing for long, fewer":             {"not for long enough", fifty, 4, false, []pod{four[0], four[1], in(four[2], "quiet"), in(four[3], "quiet")}, used(1, 1, -1, -1), 4, []string{"quiet"}, ""},
		"a cluster is lost, in which one begins":             {"it will not", half, 4, false, []pod{four[0], four[1], lost[2], with(four[3], pending)}, used(100, 100, -1, -1), 6, nil, ""},
		"a cluster is lost, in which all begin":              {"whatever was last seen of them", half, 4, false, []pod{four[0], four[1], with(lost[2], pending), with(lost[3], pending)}, used(95, 95, -1, -1), 6, nil, ""},
		"a cluster is lost, in which all begin, fewer":       {"it is waited for", fifty, 4, false, []pod{four[0], four[1], with(lost[2], pending), with(lost[3], pending)}, used(1, 1, -1, -1), 4, []string{"west"}, ""},
		"a cluster is lost, of which one serves":             {"it does not, either: that is still to be said", half, 4, false, []pod{four[0], four[1], lost[2], four[3]}, used(100, 100, -1, -1), 6, nil, ""},
		"a move":                                             {"what uses less than it is to is no reason for more, though there are twice as many", half, 2, false, four, used(40, 40, 40, 40), 2, nil, ""},
		"a move, fewer":                                      {"", half, 3, false, four, used(20, 20, 20, 20), 2, nil, ""},
		"a move, one unknown":                                {"", half, 2, false, four, used(40, 40, 40, -1), 2, nil, ""},
		"one unknown, more":                                  {"it is taken for using nothing", half, 4, false, four, used(100, 100, 100, -1), 6, nil, ""},
		"one unknown, fewer":                                 {"it is taken for using all that it asks for", half, 4, false, four, used(0, 0, 0, -1), 2, nil, ""},
		"one unknown, no fewer":                              {"by what it is taken for there would be more", half, 4, false, four, used(40, 40, 40, -1), 4, nil, ""},
		"one unknown, by number":                             {"it is taken for using what it is to", fifty, 4, false, four, used(0, 0, 0, -1), 1, nil, ""},
		"a cluster is away":                                  {"there are not fewer, though it would do by those that are known", fifty, 4, false, four, used(0, 0, -1, -1), 4, []string{"west"}, ""},
		"a cluster is away, by percent":                      {"", goal{demand: cpu, percent: 90}, 4, false, four, used(0, 0, -1, -1), 4, []string{"west"}, ""},
		"a cluster is away, more":                            {"what is known is enough for that", half, 4, false, four, used(200, 200, -1, -1), 8, nil, ""},
		"a cluster is lost, more":                            {"those that are left are to do without it", half, 4, false, lost, used(100, 100, -1, -1), 6, nil, ""},
		"a cluster is lost, one begins":                      {"it will take its part", half, 4, false, append([]pod{with(four[0], func(p *pod) { p.name = "e"; pending(p) })}, lost...), used(200, 200, -1, -1), 9, nil, ""},
		"a cluster is lost, enough":                          {"", half, 4, false, lost, used(50, 50, -1, -1), 4, nil, ""},
		"a cluster is lost, a little":                        {"", half, 4, false, lost, used(54, 54, -1, -1), 4, nil, ""},
		"a cluster is lost, fewer":                           {"", fifty, 4, false, lost, used(1, 1, -1, -1), 4, []string{"west"}, ""},
		"a cluster is lost, in each":                         {"it is one less", half, 2, true, lost, used(100, 100, -1, -1), 4, nil, ""},
		"what is lost is left":                               {"it is not of the replicas any more", half, 2, false, lost, used(100, 100, -1, -1), 4, nil, ""},
		"what is lost is being left":                         {"in part", half, 3, false, lost, used(100, 100, -1, -1), 5, nil, ""},
		"few are there, one is lost":                         {"not fewer", half, 8, false, lost, used(75, 75, -1, -1), 8, nil, ""},
		"not Ready, and not lost":                            {"it may have just begun", half, 4, false, []pod{four[0], four[1], with(four[2], notReady), with(four[3], notReady)}, used(100, 100, -1, -1), 4, nil, ""},
		"lost, and heard of":                                 {"it is taken for using nothing", half, 3, false, []pod{four[0], four[2], lost[3]}, used(200, -1, 200, -1), 8, nil, ""},
		"what says nothing for ever is away, and one serves": {"that is still to be said", fifty, 4, false, []pod{away[0], away[1], with(away[2], gone), away[3]}, used(0, 0, -1, -1), 4, []string{"mute"}, ""},
		"a cluster says nothing for ever":                    {"its pods are taken for using what they are to, as in Kubernetes", fifty, 4, false, away, used(0, 0, -1, -1), 2, nil, ""},
		"a cluster says nothing for ever, and one serves":    {"that is enough", fifty, 4, false, []pod{away[0], away[1], away[2], with(away[3], notReady)}, used(0, 0, -1, -1), 2, nil, ""},
		"one that begins says something":                     {"so its cluster does", fifty, 4, false, []pod{four[0], four[1], with(four[2], pending), four[3]}, used(0, 0, 1, -1), 1, nil, ""},
		"a cluster says nothing for ever, by percent":        {"or all that they ask for", goal{demand: cpu, percent: 90}, 4, false, away, used(0, 0, -1, -1), 3, nil, ""},
		"what says nothing for ever is away":                 {"no pod there is Ready: it is waited for", fifty, 4, false, []pod{away[0], away[1], with(away[2], notReady), with(away[3], notReady)}, used(0, 0, -1, -1), 4, []string{"mute"}, ""},
		"what is away waits":                                 {"a pod that has not begun is not away", fifty, 4, false, []pod{four[0], four[1], with(four[2], pending)}, used(0, 0), 0, nil, ""},
		"nobody shows it":                                    {"a pod that is nowhere is no cluster that is away", fifty, 3, false, []pod{four[0], four[1], with(four[2], func(p *pod) { p.cluster = "" })}, used(0, 0), 1, nil, ""},
		"one begins, more":                                   {"it will take its part", half, 4, false, []pod{four[0], four[1], four[2], with(four[3], pending)}, used(100, 100, 100), 6, nil, ""},
		"one begins, fewer":                                  {"it is not there", half, 4, false, []pod{four[0], four[1], four[2], with(four[3], pending)}, used(25, 25, 25), 2, nil, ""},
		"one is not Ready":                                   {"what it uses is of its start", half, 2, false, []pod{four[0], with(four[1], func(p *pod) { p.started = noon.Add(-time.Minute); p.ready.Status = corev1.ConditionFalse })}, used(50, 900), 2, nil, ""},
		"one goes":                                           {"it is not there", half, 2, false, []pod{four[0], with(four[1], func(p *pod) { p.going = true })}, used(100, 900), 2, nil, ""},
		"one has failed":                                     {"it is not there", half, 2, false, []pod{four[0], with(four[1], func(p *pod) { p.phase = corev1.PodFailed })}, used(100, 900), 2, nil, ""},
		"all begin":                                          {"", half, 2, false, []pod{with(four[0], pending), with(four[1], pending)}, used(100, 100), 0, nil, "did not receive metrics"},
		"no request":                                         {"a part of nothing", lacking(half), 2, false, four[:2], used(100, 100), 0, nil, "missing request"},
		"no request is needed":                               {"", lacking(fifty), 2, false, four[:2], used(100, 100), 4, nil, ""},
		"nothing is asked for":                               {"", half, 1, false, []pod{with(four[0], func(p *pod) { p.requests = []int64{0} })}, used(100), 0, nil, "no metrics returned matched known pods"},
		"of another resource":                                {"nothing is known", goal{demand: demand{resource: "gpu"}, milli: 50}, 4, false, four, used(1, 1, 1, 1), 0, nil, "did not receive metrics"},
		"of another container":                               {"nothing is known", goal{demand: demand{corev1.ResourceCPU, "d"}, milli: 50}, 4, false, four, used(1, 1, 1, 1), 0, nil, "did not receive metrics"},
		"of the container":                                   {"", goal{demand: demand{corev1.ResourceCPU, "c"}, milli: 50}, 4, false, four, used(100, 100, 100, 100), 8, nil, ""},
		"more than there can be":                             {"a cluster may say what it likes", half, 4, false, four, used(math.MaxInt64, math.MaxInt64, 1, 1), (math.MaxInt32*4 + 49) / 50, nil, ""},
	} {
		f := facts{replicas: tc.current, each: tc.each, pods: tc.pods, used: tc.used, silence: func(cluster string) time.Duration {
			return map[string]time.Duration{"quiet": startsFor, "mute": believedFor}[cluster]
		}}
		got, err := calculate(tc.goal, &f, tolerance{usualTolerance, usualTolerance}, noon)
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

// TestNeediest: where each cluster runs all replicas, the numbers that are shown are those of the one that needs most, and of no other.
func TestNeediest(t *testing.T) {
	pods := []pod{runs("a", "east"), runs("b", "west"), runs("c", "north")}
	for name, tc := range map[string]struct {
		a, b, c int64
		percent int32
	}{
		"more":   {10, 90, 20, 90},
		"enough": {48, 46, 0, 48},
		"fewer":  {1, 2, 3, 3},
	} {
		f := facts{replicas: 1, each: true, pods: pods, used: usages{"a": uses(tc.a), "b": uses(tc.b), "c": uses(tc.c)}}
		is, err := calculate(goal{demand: demand{resource: corev1.ResourceCPU}, percent: 50}, &f, tolerance{usualTolerance, usualTolerance}, noon)
		if err != nil || is.percent != tc.percent || is.milli != int64(tc.percent) {
			t.Errorf("%s: %+v, %v, want %d %%", name, is, err, tc.percent)
		}
	}
}

// TestHidden: pods that are reported and that nobody shows are no reason for fewer, as those of a physical cluster that says nothing.
func TestHidden(t *testing.T) {
	var five []pod
	used := func(milli int64) usages {
		all := usages{}
		for i := range 5 {
			all[fmt.Sprint(i)] = uses(milli)
		}
		return all
	}
	for i := range 5 {
		five = append(five, runs(fmt.Sprint(i), "east"))
	}
	ended := runs("ended", "east")
	ended.phase = corev1.PodSucceeded
	failed := runs("failed", "east")
	failed.phase = corev1.PodFailed
	going := runs("going", "east")
	going.going = true
	in := func(p pod, cluster string) pod {
		p.cluster = cluster
		return p
	}
	half, high := goal{demand: demand{resource: corev1.ResourceCPU}, percent: 50}, goal{demand: demand{resource: corev1.ResourceCPU}, percent: 90}
	both := func(east, west int) map[string]report {
		return map[string]report{"east": {east, false}, "west": {west, false}}
	}
	away := map[string]report{"east": {5, false}, "west": {5, true}}
	deleted := slices.Clone(five) // those of west, which is away, by somebody who does not wait for it
	for i := range 5 {
		p := in(runs(fmt.Sprint("w", i), "west"), "west")
		p.going, p.lost = true, true
		deleted = append(deleted, p)
	}
	for name, tc := range map[string]struct {
		reason  string
		goal    goal
		each    bool
		current int32
		reports map[string]report
		pods    []pod
		used    usages
		silence time.Duration // of west
		want    int32
		waits   []string
	}{
		"all are shown":                 {"", half, false, 5, both(5, 0), five, used(20), 0, 2, nil},
		"more are shown":                {"others have the labels, too", half, false, 5, both(3, 0), five, used(20), 0, 2, nil},
		"half are":                      {"the others may use as much as they are to", half, false, 10, both(5, 5), five, used(20), 0, 10, nil},
		"half are, by much":             {"by those that are shown one would do", high, false, 10, both(5, 5), five, used(1), 0, 10, []string{"west"}},
		"half are, more":                {"those that are shown use too much", half, false, 10, both(5, 5), five, used(60), 0, 10, nil},
		"half are, many more":           {"the others are taken for using nothing", half, false, 6, both(5, 5), five, used(200), 0, 20, nil},
		"half are for long, more":       {"the others need what they need", half, false, 10, both(5, 5), five, used(95), startsFor, 15, nil},
		"half are for an hour":          {"the others count for all that they ask for", high, false, 10, both(5, 5), five, used(1), believedFor, 6, nil},
		"half are, west is away":        {"it is not waited for", half, false, 10, away, five, used(95), 0, 15, nil},
		"half are, west is away, fewer": {"it is, for however long", high, false, 10, away, five, used(1), believedFor, 10, []string{"west"}},
		"some are":                      {"what a cluster shows says what it does, and the others count as in Kubernetes", high, false, 7, both(7, 0), five, used(1), 0, 3, nil},
		"all but one are":               {"what is reported is of another moment than what is shown", half, false, 6, both(6, 0), five, used(20), 0, 4, nil},
		"one goes":                      {"a StatefulSet counts it", half, false, 6, both(6, 0), append(slices.Clone(five), going), used(20), 0, 2, nil},
		"one goes, more":                {"what is on its way out is not taken for using nothing", half, false, 6, both(6, 0), append(slices.Clone(five), going), used(64), 0, 7, nil},
		"west's are deleted, more":      {"it is away as before", half, false, 10, away, deleted, used(95), 0, 15, nil},
		"west's are deleted, fewer":     {"it is waited for as before", high, false, 10, away, deleted, used(1), believedFor, 10, []string{"west"}},
		"west's are deleted, which are not seen, more":  {"they are not seen as before", half, false, 10, both(5, 5), deleted, used(95), 0, 15, nil},
		"west's are deleted, which are not seen, fewer": {"they are waited for as before", high, false, 10, both(5, 5), deleted, used(1), believedFor, 10, []string{"west"}},
		"west's are deleted, in each":                   {"", half, true, 5, away, deleted, used(1), 0, 5, []string{"west"}},
		"one of west's has failed":                      {"that says nothing of the others", high, false, 10, both(5, 5), append(slices.Clone(five), in(failed, "west")), used(1), 0, 10, []string{"west"}},
		"those of west go":                              {"", high, false, 6, both(5, 1), append(slices.Clone(five), in(going, "west")), used(1), 0, 1, nil},
		"what has ended is shown":                       {"and not reported", high, false, 6, both(5, 1), append(slices.Clone(five), ended, failed, going), used(1), 0, 6, []string{"west"}},
		"what has ended is shown, of all":               {"and not reported", half, false, 6, both(6, 0), append(slices.Clone(five), ended, failed), used(10), 0, 5, nil},
		"in each, half are":                             {"", half, true, 5, both(5, 5), five, used(20), 0, 5, []string{"west"}},
		"in each, half are for long":                    {"", half, true, 5, both(5, 5), five, used(20), believedFor, 5, []string{"west"}},
		"in each, all but one are":                      {"", half, true, 6, both(6, 0), five, used(20), 0, 4, nil},
		"in each, more":                                 {"what the other one needs is known", half, true, 5, both(5, 5), five, used(60), 0, 6, nil},
	} {
		f := facts{replicas: tc.current, reports: tc.reports, each: tc.each, pods: tc.pods, used: tc.used, silence: func(cluster string) time.Duration {
			return map[string]time.Duration{"west": tc.silence}[cluster]
		}}
		got, err := calculate(tc.goal, &f, tolerance{usualTolerance, usualTolerance}, noon)
		if err != nil || got.replicas != tc.want || !slices.Equal(got.waits, tc.waits) {
			t.Errorf("%s: %+v, %v, want %d, because of %v: %s", name, got, err, tc.want, tc.waits, tc.reason)
		}
	}
	for _, east := range []int{mostHidden - 1, mostHidden} {
		if n, want := (&facts{reports: both(east, math.MaxInt32)}).hidden(), (map[string]int{"east": east, "west": 1}); !maps.Equal(n, want) {
			t.Errorf("%v are hidden, want %v whatever somebody writes, and that each is known", n, want)
		}
	}
}

// TestAMoveComesToRest: while pods of two physical clusters use the same each, as of memory, and less than they are to, there are not more with each look.
func TestAMoveComesToRest(t *testing.T) {
	current := int32(10)
	for look := range 5 {
		var pods []pod
		used := usages{}
		for cluster, n := range map[string]int32{"east": 10, "west": current} {
			for i := range n {
				p := runs(fmt.Sprint(cluster, i), cluster)
				pods, used[p.name] = append(pods, p), uses(85)
			}
		}
		is, err := calculate(goal{demand: demand{resource: corev1.ResourceCPU}, milli: 100}, &facts{replicas: current, pods: pods, used: used}, tolerance{usualTolerance, usualTolerance}, noon)
		if err != nil {
			t.Fatal(err)
		}
		if current = is.replicas; current != 10 {
			t.Fatalf("look %d: %d replicas, want 10", look, current)
		}
	}
}

// TestMilliOf: what a physical cluster says that pods use is neither less than nothing nor more than there can be.
func TestMilliOf(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "-5": 0, "70m": 70, "1u": 1, "9223372036854775": 9223372036854775000, "9223372036854776": math.MaxInt64, "1e30": math.MaxInt64} {
		if got := milliOf(resource.MustParse(text)); got != want {
			t.Errorf("%s is %d, want %d", text, got, want)
		}
	}
}

// TestAsked: what pods ask for is read once for each container, however many metrics there are, and why one cannot be told of the first that does not ask.
func TestAsked(t *testing.T) {
	of := func(container string) autoscalingv2.MetricSpec {
		target := autoscalingv2.MetricTarget{AverageUtilization: ptr.To(int32(50))}
		if container == "" {
			return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU, Target: target}}
		}
		return autoscalingv2.MetricSpec{Type: autoscalingv2.ContainerResourceMetricSourceType, ContainerResource: &autoscalingv2.ContainerResourceMetricSource{Name: corev1.ResourceCPU, Container: container, Target: target}}
	}
	specs := []autoscalingv2.MetricSpec{onPods, onObject, of("c"), of("d")}
	for range 20_000 {
		specs = append(specs, of(""))
	}
	a := askedBy(specs)
	if want := []demand{{corev1.ResourceCPU, "c"}, {corev1.ResourceCPU, "d"}, {corev1.ResourceCPU, ""}}; !slices.Equal(a.of, want) {
		t.Fatalf("asked for are %v, want %v", a.of, want)
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("70m")}}}}}}
	if is := podOf(p, &a); !slices.Equal(is.requests, []int64{70, 0, 70}) {
		t.Errorf("it asks for %v", is.requests)
	}
	p.Name, p.Spec.Containers[0].Name = "b", "e"
	podOf(p, &a)
	p.Name = "z"
	podOf(p, &a)
	for i, want := range []string{"container c not found in Pod b", "container d not found in Pod a", ""} {
		if got := fmt.Sprint(a.lacks[i]); got != want && (want != "" || a.lacks[i] != nil) {
			t.Errorf("%d: %s, want %q", i, got, want)
		}
	}
	none := askedBy(nil)
	if is := podOf(p, &none); is.requests != nil {
		t.Errorf("it asks for %v, and nobody wants to know", is.requests)
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

// than says that less is used than is to be, -1, or more, 1.
func (g goal) than(is proposal) int {
	if g.percent > 0 {
		return cmp.Compare(is.percent, g.percent)
	}
	return cmp.Compare(is.milli, g.milli)
}

// TestCalculatesAsKubernetes: without tolerance, which nobody outside of it can give it, Kubernetes' calculator says the same of whatever pods, except that what uses too little is here no reason for more, nor what
// uses too much for fewer, and for what a physical cluster says nothing of.
func TestCalculatesAsKubernetes(t *testing.T) {
	synctest.Test(t, calculatesAsKubernetes) // the other one takes the time from nobody: here it stands still
}

func calculatesAsKubernetes(t *testing.T) {
	now := time.Now()
	choice := rand.New(rand.NewPCG(1, 2))
	calculated, held := 0, map[int]int{}
	for range 20_000 {
		g := goal{demand: demand{resource: []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}[choice.IntN(2)]}}
		if choice.IntN(2) == 0 {
			g.percent = 1 + choice.Int32N(150)
		} else {
			g.milli = 1 + choice.Int64N(200)
		}
		spec := autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: g.resource, Target: autoscalingv2.MetricTarget{AverageUtilization: ptr.To(int32(1))}}}
		a := askedBy([]autoscalingv2.MetricSpec{spec})
		indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		var pods []pod
		used := usages{}
		most := 1 + choice.Int64N(300)
		for i := range choice.IntN(6) {
			cluster := []string{"east", "west"}[choice.IntN(2)]
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i), Namespace: "team", Labels: map[string]string{workloadv1alpha1.MirrorLabel: cluster}}, Spec: corev1.PodSpec{NodeName: cluster, Containers: []corev1.Container{{Name: "c"}, {Name: "d"}}}}
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
			pods = append(pods, podOf(p, &a))
		}
		g.lacks = a.lacks[0]
		current := 1 + choice.Int32N(8)
		theirs := podautoscaler.NewReplicaCalculator(upstream{used: used, goal: g}, corelisters.NewPodLister(indexer), startsFor, neverReadyFor)
		var want proposal
		var problem error
		if g.percent > 0 {
			want.replicas, want.percent, want.milli, _, problem = theirs.GetResourceReplicas(t.Context(), current, g.percent, g.resource, podautoscaler.Tolerances{}, "team", labels.Everything(), "")
		} else {
			want.replicas, want.milli, _, problem = theirs.GetRawResourceReplicas(t.Context(), current, g.milli, g.resource, podautoscaler.Tolerances{}, "team", labels.Everything(), "")
		}
		for _, silence := range []time.Duration{0, believedFor} {
			got, err := calculate(g, &facts{replicas: current, pods: pods, used: used, silence: func(string) time.Duration { return silence }}, tolerance{}, now)
			switch than := g.than(got); {
			case err == nil && got.replicas == current && (than < 0 && want.replicas > current || than > 0 && want.replicas < current):
				held[than]++
				continue
			case len(got.waits) > 0:
				if got.replicas != current || want.replicas >= current {
					t.Fatalf("%+v held at %d, where Kubernetes has %d", got, current, want.replicas)
				}
				held[0]++
				continue
			case err == nil && than > 0 && len(got.unheard) > 0 && silence > 0:
				continue // what is silent for long is left out
			}
			if (err == nil) != (problem == nil) || err == nil && (got.replicas != want.replicas || got.percent != want.percent || got.milli != want.milli) {
				t.Fatalf("%+v, %v, want %+v, %v, of %+v with %v, by %+v, %d now, silent for %s", got, err, want, problem, pods, used, g, current, silence)
			}
			if err == nil && silence > 0 {
				calculated++
			}
		}
	}
	if calculated < 5_000 || len(held) != 3 {
		t.Errorf("%d were calculated, and %v held, want many, and some of each", calculated, held)
	}
}
