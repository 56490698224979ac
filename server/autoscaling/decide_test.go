package autoscaling

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	scalefake "k8s.io/client-go/scale/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"k8s.io/kubernetes/pkg/controller/podautoscaler"
	"k8s.io/kubernetes/pkg/controller/podautoscaler/metrics"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
)

// onCPU is a metric of CPU that is to be half of what pods ask for.
var onCPU = autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
	Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: ptr.To(int32(50))},
}}

var (
	onPods = autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
		Metric: autoscalingv2.MetricIdentifier{Name: "requests"}, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: resource.NewQuantity(1, resource.DecimalSI)},
	}}
	onObject = autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{
		DescribedObject: autoscalingv2.CrossVersionObjectReference{Kind: "Service", Name: "web", APIVersion: "v1"}, Metric: autoscalingv2.MetricIdentifier{Name: "requests"},
	}}
	onExternal = autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: "queue"}}}
)

func scaler(specs ...autoscalingv2.MetricSpec) *autoscalingv2.HorizontalPodAutoscaler {
	return &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "team"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
			MinReplicas:    ptr.To(int32(2)), MaxReplicas: 10, Metrics: specs,
		},
	}
}

// conditionsOf are conditions as type, status and reason.
func conditionsOf(status *autoscalingv2.HorizontalPodAutoscalerStatus) (all []string) {
	for _, c := range status.Conditions {
		all = append(all, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason))
	}
	return all
}

// TestDecide: what follows from what is known, and how that is said.
func TestDecide(t *testing.T) {
	four := []pod{runs("a", "east"), runs("b", "east"), runs("c", "west"), runs("d", "west")}
	for i := range four {
		four[i].requests = []int64{100}
	}
	used := func(milli int64, names ...string) usages {
		all := usages{}
		for _, name := range names {
			all[name] = uses(milli)
		}
		return all
	}
	is := func(replicas int32, used usages) facts {
		return facts{replicas: replicas, selector: "app=web", pods: four, used: used}
	}
	all := []string{"a", "b", "c", "d"}
	byNumber := autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
		Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{AverageValue: resource.NewMilliQuantity(50, resource.DecimalSI)},
	}}
	of := func(container string) autoscalingv2.MetricSpec {
		return autoscalingv2.MetricSpec{Type: autoscalingv2.ContainerResourceMetricSourceType, ContainerResource: &autoscalingv2.ContainerResourceMetricSource{
			Name: corev1.ResourceCPU, Container: container, Target: autoscalingv2.MetricTarget{AverageValue: resource.NewMilliQuantity(50, resource.DecimalSI)},
		}}
	}
	onC, onD := of("c"), of("d")
	// said is what the containers of pods in east use, and of those in west.
	said := func(east, west map[string]int64) usages {
		all := usages{}
		for _, p := range four {
			containers := map[string]map[string]int64{"east": east, "west": west}[p.cluster]
			m := uses(0)
			m.Containers = nil
			for name, milli := range containers {
				m.Containers = append(m.Containers, metricsv1beta1.ContainerMetrics{Name: name, Usage: uses(milli).Containers[0].Usage})
			}
			all[p.name] = m
		}
		return all
	}
	for name, tc := range map[string]struct {
		reason     string
		metrics    []autoscalingv2.MetricSpec
		facts      facts
		replicas   int32 // 0: it is not scaled
		why        string
		conditions []string
		events     []string
		message    string // of one of the conditions
	}{
		"more": {"", []autoscalingv2.MetricSpec{onCPU}, is(4, used(100, all...)), 8, "cpu resource utilization (percentage of request) above target",
			[]string{"AbleToScale=True ReadyForNewScale", "ScalingActive=True ValidMetricFound", "ScalingLimited=False DesiredWithinRange"}, nil, ""},
		"fewer later": {"what there is was wanted once", []autoscalingv2.MetricSpec{onCPU}, is(4, used(25, all...)), 0, "",
			[]string{"AbleToScale=True ScaleDownStabilized", "ScalingActive=True ValidMetricFound", "ScalingLimited=False DesiredWithinRange"}, nil, ""},
		"no target": {"", []autoscalingv2.MetricSpec{onCPU}, facts{err: errors.New("not there")}, 0, "", []string{"AbleToScale=False FailedGetScale"}, []string{"FailedGetScale"}, "scale: not there"},
		"stopped": {"nobody starts what somebody has stopped", []autoscalingv2.MetricSpec{onCPU}, is(0, nil), 0, "",
			[]string{"AbleToScale=True SucceededGetScale", "ScalingActive=False ScalingDisabled"}, nil, ""},
		"too many": {"whatever is used", []autoscalingv2.MetricSpec{onCPU}, facts{replicas: 12}, 10, "Current number of replicas above Spec.MaxReplicas", []string{"AbleToScale=True SucceededGetScale"}, nil, ""},
		"too few":  {"whatever is used", []autoscalingv2.MetricSpec{onCPU}, facts{replicas: 1}, 2, "Current number of replicas below Spec.MinReplicas", []string{"AbleToScale=True SucceededGetScale"}, nil, ""},
		"no selector": {"", []autoscalingv2.MetricSpec{onCPU}, facts{replicas: 4}, 0, "",
			[]string{"AbleToScale=True SucceededGetScale", "ScalingActive=False InvalidSelector"}, []string{"SelectorRequired", "FailedComputeMetricsReplicas"}, "missing a selector"},
		"no selector can be read": {"", []autoscalingv2.MetricSpec{onCPU}, facts{replicas: 4, selector: "a in"}, 0, "",
			[]string{"AbleToScale=True SucceededGetScale", "ScalingActive=False InvalidSelector"}, []string{"InvalidSelector", "FailedComputeMetricsReplicas"}, "couldn't convert selector"},
		"not alone": {"two would scale against each other", []autoscalingv2.MetricSpec{onCPU}, facts{replicas: 4, selector: "app=web", pods: four, used: used(100, all...), rivals: []string{"a", "b"}}, 0, "",
			[]string{"AbleToScale=True SucceededGetScale", "ScalingActive=False AmbiguousSelector"}, []string{"AmbiguousSelector", "FailedComputeMetricsReplicas"}, "controlled by multiple HPAs: a, b, web"},
		"nobody answers": {"", []autoscalingv2.MetricSpec{onCPU}, facts{replicas: 4, selector: "app=web", pods: four, usedErr: errors.New("east is away")}, 0, "",
			[]string{"AbleToScale=True SucceededGetScale", "ScalingActive=False FailedGetResourceMetric"}, []string{"FailedGetResourceMetric", "FailedComputeMetricsReplicas"},
			"failed to get cpu utilization: unable to get metrics for resource cpu: unable to fetch metrics from resource metrics API: east is away"},
		"nothing is measured": {"", []autoscalingv2.MetricSpec{onCPU}, is(4, usages{}), 0, "",
			[]string{"AbleToScale=True SucceededGetScale", "ScalingActive=False FailedGetResourceMetric"}, []string{"FailedGetResourceMetric", "FailedComputeMetricsReplicas"}, "no metrics returned from resource metrics API"},
		"pods are not known": {"", []autoscalingv2.MetricSpec{onCPU}, facts{replicas: 4, selector: "app=web", podsErr: errors.New("no pods today")}, 0, "",
			[]string{"AbleToScale=True SucceededGetScale", "ScalingActive=False FailedGetResourceMetric"}, []string{"FailedGetResourceMetric", "FailedComputeMetricsReplicas"}, "no pods today"},
		"a cluster is away": {"", []autoscalingv2.MetricSpec{byNumber}, is(4, used(1, "a", "b")), 0, "",
			[]string{"AbleToScale=True ReadyForNewScale", "ScalingActive=True ValidMetricFound", "ScalingLimited=True MissingMetrics"}, nil, "and cpu resource of pods of physical cluster west is not:"},
		"pods are not shown": {"nobody knows what they use", []autoscalingv2.MetricSpec{byNumber}, facts{replicas: 8, reports: map[string]report{"north": {4, false}}, selector: "app=web", pods: four, used: used(20, all...)}, 0, "",
			[]string{"AbleToScale=True ReadyForNewScale", "ScalingActive=True ValidMetricFound", "ScalingLimited=True MissingMetrics"}, nil, "of pods of physical cluster north is not:"},
		"a cluster is away, and there are no more than there may be": {"were it there, there could not be fewer", []autoscalingv2.MetricSpec{byNumber}, facts{replicas: 2, selector: "app=web", pods: four[1:3], used: used(1, "b")}, 0, "",
			[]string{"AbleToScale=True ReadyForNewScale", "ScalingActive=True ValidMetricFound", "ScalingLimited=True TooFewReplicas"}, nil, "less than the minimum replica count"},
		"a cluster says nothing, enough": {"it is said all the same", []autoscalingv2.MetricSpec{onCPU}, is(4, used(50, "a", "b")), 0, "",
			[]string{"AbleToScale=True ReadyForNewScale", "ScalingActive=True ValidMetricFound", "ScalingLimited=False DesiredWithinRange"}, nil, "; what pods of physical cluster west use is not known"},
		"a cluster says nothing of one metric": {"by the other one there might be fewer", []autoscalingv2.MetricSpec{onC, onD}, is(4, said(map[string]int64{"c": 1}, map[string]int64{"c": 1, "d": 1})), 0, "",
			[]string{"AbleToScale=True ReadyForNewScale", "ScalingActive=True ValidMetricFound", "ScalingLimited=True MissingMetrics"}, nil, "cpu resource of pods of physical cluster east is not:"},
		"a cluster says nothing of the first metric": {"the order does not matter", []autoscalingv2.MetricSpec{onD, onC}, is(4, said(map[string]int64{"c": 1}, map[string]int64{"c": 1, "d": 1})), 0, "",
			[]string{"AbleToScale=True ReadyForNewScale", "ScalingActive=True ValidMetricFound", "ScalingLimited=True MissingMetrics"}, nil, "; what pods of physical cluster east use is not known"},
		"a cluster says nothing of one metric, enough": {"by the other one there are not fewer, whatever is not known", []autoscalingv2.MetricSpec{onD, onC}, is(4, said(map[string]int64{"c": 50}, map[string]int64{"c": 50, "d": 1})), 0, "",
			[]string{"AbleToScale=True ReadyForNewScale", "ScalingActive=True ValidMetricFound", "ScalingLimited=False DesiredWithinRange"}, nil, ""},
		"a cluster says nothing of one metric, more": {"", []autoscalingv2.MetricSpec{onD, onC}, is(4, said(map[string]int64{"c": 100}, map[string]int64{"c": 100, "d": 1})), 8, "cpu resource above target",
			[]string{"AbleToScale=True ReadyForNewScale", "ScalingActive=True ValidMetricFound", "ScalingLimited=False DesiredWithinRange"}, nil, ""},
		"no target is set": {"", []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU}}}, is(4, used(100, all...)), 0, "",
			[]string{"AbleToScale=True SucceededGetScale", "ScalingActive=False FailedGetResourceMetric"}, []string{"FailedGetResourceMetric", "FailedComputeMetricsReplicas"}, "neither an average utilization target nor"},
		"a long selector": {"it would take much to read, and to keep", []autoscalingv2.MetricSpec{onCPU}, facts{replicas: 4, selector: "app in (" + strings.Repeat("a,", mostSelector/2) + "b)"}, 0, "",
			[]string{"AbleToScale=True SucceededGetScale", "ScalingActive=False SelectorTooLong"}, []string{"SelectorTooLong", "FailedComputeMetricsReplicas"}, "has 2058 bytes, and none of more than 2048 is read"},
		"too many metrics": {"nobody calculates with all of them", slices.Repeat([]autoscalingv2.MetricSpec{onCPU}, kinds.MostMetrics+1), is(4, used(100, all...)), 0, "",
			[]string{"AbleToScale=True SucceededGetScale", "ScalingActive=False TooManyMetrics"}, []string{"TooManyMetrics", "FailedComputeMetricsReplicas"}, "there are 51 metrics, and nothing is scaled by more than 50"},
		"as many metrics as there may be": {"", slices.Repeat([]autoscalingv2.MetricSpec{onCPU}, kinds.MostMetrics), is(4, used(100, all...)), 8, "cpu resource utilization (percentage of request) above target",
			[]string{"AbleToScale=True ReadyForNewScale", "ScalingActive=True ValidMetricFound", "ScalingLimited=False DesiredWithinRange"}, nil, ""},
		"too many metrics, too many pods": {"that is none of theirs", slices.Repeat([]autoscalingv2.MetricSpec{onCPU}, kinds.MostMetrics+1), facts{replicas: 12}, 10, "Current number of replicas above Spec.MaxReplicas",
			[]string{"AbleToScale=True SucceededGetScale"}, nil, ""},
		"of pods": {"", []autoscalingv2.MetricSpec{onPods}, is(4, used(100, all...)), 0, "",
			[]string{"AbleToScale=True SucceededGetScale", "ScalingActive=False FailedGetPodsMetric"}, []string{"FailedGetPodsMetric", "FailedComputeMetricsReplicas"}, "no custom metrics API (custom.metrics.k8s.io) registered"},
		"of an object": {"", []autoscalingv2.MetricSpec{onObject}, is(4, used(100, all...)), 0, "",
			[]string{"AbleToScale=True SucceededGetScale", "ScalingActive=False FailedGetObjectMetric"}, []string{"FailedGetObjectMetric", "FailedComputeMetricsReplicas"}, "of Service team/web"},
		"external": {"", []autoscalingv2.MetricSpec{onExternal}, is(4, used(100, all...)), 0, "",
			[]string{"AbleToScale=True SucceededGetScale", "ScalingActive=False FailedGetExternalMetric"}, []string{"FailedGetExternalMetric", "FailedComputeMetricsReplicas"}, "get queue.external.metrics.k8s.io"},
		"some fail, more": {"one metric is enough", []autoscalingv2.MetricSpec{onPods, onCPU}, is(4, used(100, all...)), 8, "cpu resource utilization (percentage of request) above target",
			[]string{"AbleToScale=True ReadyForNewScale", "ScalingActive=True ValidMetricFound", "ScalingLimited=False DesiredWithinRange"}, []string{"FailedGetPodsMetric"}, ""},
		"some fail, fewer": {"the other might want more", []autoscalingv2.MetricSpec{onPods, onCPU}, is(4, used(25, all...)), 0, "",
			[]string{"AbleToScale=True SucceededGetScale", "ScalingActive=False FailedGetPodsMetric"}, []string{"FailedGetPodsMetric", "FailedComputeMetricsReplicas"}, ""},
	} {
		hpa := scaler(tc.metrics...)
		tc.facts.asked = askedBy(tc.metrics)
		_, tc.facts.bad = readSelector(tc.facts.selector)
		hpa.Status.DesiredReplicas = 7
		before := hpa.DeepCopy()
		o := decide(hpa, tc.facts, history{}, noon)
		var events []string
		for _, e := range o.events {
			events = append(events, e.reason)
		}
		if o.rescale != (tc.replicas > 0) || o.rescale && (o.replicas != tc.replicas || o.why != tc.why) {
			t.Errorf("%s: scales %v to %d for %q, want %d for %q: %s", name, o.rescale, o.replicas, o.why, tc.replicas, tc.why, tc.reason)
		}
		if diff := cmp.Diff(tc.conditions, conditionsOf(&o.status)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if !slices.Equal(events, tc.events) {
			t.Errorf("%s: tells %v, want %v", name, events, tc.events)
		}
		if !slices.ContainsFunc(o.status.Conditions, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
			return strings.Contains(c.Message, tc.message)
		}) {
			t.Errorf("%s: says %+v, want %q", name, o.status.Conditions, tc.message)
		}
		if diff := cmp.Diff(before, hpa); diff != "" {
			t.Errorf("%s: the object was changed:\n%s", name, diff)
		}
	}
}

// TestSilence: what a physical cluster runs is not made smaller for an hour in which it says nothing at any look, and then as in Kubernetes, which is told; when it has said something, or was away, or nobody has looked, that begins anew.
func TestSilence(t *testing.T) {
	four := []pod{runs("a", "east"), runs("b", "east"), runs("c", "west"), runs("d", "west")}
	hpa := scaler(autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
		Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{AverageValue: resource.NewMilliQuantity(50, resource.DecimalSI)},
	}})
	hpa.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp: rules(0, autoscalingv2.MaxChangePolicySelect, podsPer(9, 15)), ScaleDown: rules(0, autoscalingv2.MaxChangePolicySelect, podsPer(9, 15)),
	}
	const minute = time.Minute
	silent := usages{"a": uses(0), "b": uses(0)}
	speaks := usages{"a": uses(0), "b": uses(0), "c": uses(50), "d": uses(50)}
	var past history
	at := noon
	for _, tc := range []struct {
		reason   string
		looks    time.Duration // for how long there is a look each minute; 0 for one look, a minute after the last
		facts    facts
		away     bool // no pod of west is Ready
		replicas int32
		told     bool
	}{
		{reason: "its hour begins", looks: 30 * minute, facts: facts{used: silent}, replicas: 4},
		{reason: "more are wanted by what the other one says", facts: facts{used: usages{"a": uses(200), "b": uses(200)}}, replicas: 10},
		{reason: "nobody says anything for a moment", looks: 4 * minute, facts: facts{usedErr: errors.New("all are away")}, replicas: 4},
		{reason: "the hour is not over", looks: 25 * minute, facts: facts{used: silent}, replicas: 4},
		{reason: "the hour is over", facts: facts{used: silent}, replicas: 2, told: true},
		{reason: "that stays so", looks: 10 * minute, facts: facts{used: silent}, replicas: 2, told: true},
		{reason: "it says something", facts: facts{used: speaks}, replicas: 2},
		{reason: "another hour begins", looks: 60 * minute, facts: facts{used: silent}, replicas: 4},
		{reason: "which is over", facts: facts{used: silent}, replicas: 2, told: true},
		{reason: "no pod there is Ready: it is away, for however long", looks: 9 * 60 * minute, facts: facts{used: silent}, away: true, replicas: 4},
		{reason: "it is back, and an hour begins", looks: 60 * minute, facts: facts{used: silent}, replicas: 4},
		{reason: "which is over", facts: facts{used: silent}, replicas: 2, told: true},
		{reason: "somebody stops it", looks: 8 * 60 * minute, facts: facts{replicas: -1}, replicas: 0},
		{reason: "of what was meanwhile nobody knows", looks: 60 * minute, facts: facts{used: silent}, replicas: 4},
		{reason: "the hour is over", facts: facts{used: silent}, replicas: 2, told: true},
		{reason: "its target is not found for long", looks: 6 * minute, facts: facts{err: errors.New("not there")}, replicas: 4},
		{reason: "of what was meanwhile nobody knows", looks: 60 * minute, facts: facts{used: silent}, replicas: 4},
	} {
		for left := max(tc.looks, minute); left > 0; left -= minute {
			f := tc.facts
			f.selector, f.pods = "app=web", slices.Clone(four)
			if f.replicas += 4; tc.facts.replicas < 0 {
				f.replicas = 0
			}
			for i := range f.pods {
				if tc.away && f.pods[i].cluster == "west" {
					f.pods[i].ready = &corev1.PodCondition{Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(noon)}
				}
			}
			o := decide(hpa, f, past, at)
			past = o.past
			is := f.replicas
			if o.rescale {
				is = o.replicas
			}
			told := slices.ContainsFunc(o.events, func(e event) bool {
				return e.kind == corev1.EventTypeWarning && e.reason == "MissingMetrics" && strings.Contains(e.message, "pods of physical cluster west use has not been known for 1h0m0s")
			})
			if is != tc.replicas || told != tc.told {
				t.Errorf("%s, at %s: %d replicas, told %v, want %d, %v: %v", tc.reason, at.Sub(noon), is, told, tc.replicas, tc.told, o.status.Conditions)
				break
			}
			at = at.Add(minute)
		}
	}
	if len(past.silent) != 1 {
		t.Errorf("kept are %v, want the one that is silent", past.silent)
	}
	if past = past.hears(map[string]bool{"west": false}, at); len(past.silent) != 0 {
		t.Errorf("kept are %v, want none: no pod there serves", past.silent)
	}
}

// TestSilenceOfAClock: a silence is as long as the clock says, and of looks that it has turned back nothing is known.
func TestSilenceOfAClock(t *testing.T) {
	west := map[string]bool{"west": true}
	h := history{}.hears(west, noon).hears(west, noon.Add(unbroken))
	for _, tc := range []struct {
		at, want time.Duration
	}{{unbroken, unbroken}, {2 * unbroken, 2 * unbroken}, {2*unbroken + 1, 0}, {unbroken - 1, 0}} {
		if got := h.silence("west", noon.Add(tc.at)); got != tc.want {
			t.Errorf("after %s it is silent for %s, want %s", tc.at, got, tc.want)
		}
	}
	if got := h.silence("east", noon.Add(unbroken)); got != 0 {
		t.Errorf("another is silent for %s", got)
	}
}

// TestStatus: what is shown of replicas and metrics is what is known now.
func TestStatus(t *testing.T) {
	hpa := scaler(onCPU)
	hpa.Status.CurrentReplicas, hpa.Status.DesiredReplicas = 7, 7
	hpa.Status.CurrentMetrics = []autoscalingv2.MetricStatus{{Type: autoscalingv2.ResourceMetricSourceType}}
	pods := []pod{runs("a", "east"), runs("b", "east")}
	used := usages{"a": uses(100), "b": uses(100)}
	for name, tc := range map[string]struct {
		facts            facts
		failed           error // of the write
		current, desired int32
		metrics          int
	}{
		"no target":        {facts{err: errors.New("not there")}, nil, 7, 7, 1},
		"nothing is known": {facts{replicas: 2, usedErr: errors.New("all are away"), pods: pods}, nil, 2, 7, 1},
		"stopped":          {facts{}, nil, 0, 0, 0},
		"too many":         {facts{replicas: 12}, nil, 12, 10, 0},
		"more":             {facts{replicas: 2, pods: pods, used: used}, nil, 2, 4, 1},
		"more in vain":     {facts{replicas: 2, pods: pods, used: used}, errors.New("no"), 2, 7, 1},
	} {
		tc.facts.asked = askedBy(hpa.Spec.Metrics)
		o := decide(hpa, tc.facts, history{}, noon)
		if o.rescale {
			o.written(hpa, tc.facts.replicas, tc.failed, noon)
		}
		if s := o.status; s.CurrentReplicas != tc.current || s.DesiredReplicas != tc.desired || len(s.CurrentMetrics) != tc.metrics {
			t.Errorf("%s: %d replicas now, %d wanted, by %d metrics, want %d, %d, %d", name, s.CurrentReplicas, s.DesiredReplicas, len(s.CurrentMetrics), tc.current, tc.desired, tc.metrics)
		}
	}
}

// TestPodsIn: of however many physical clusters few are named, each once.
func TestPodsIn(t *testing.T) {
	for want, clusters := range map[string][]string{
		"pods of physical cluster east":                      {"east", "east"},
		"pods of physical clusters east, west":               {"west", "east", "west"},
		"pods of physical clusters a, b, c, d, e":            {"e", "d", "c", "b", "a"},
		"pods of physical clusters a, b, c, d, e and 2 more": {"g", "f", "e", "d", "c", "b", "a"},
	} {
		if got := podsIn(clusters); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// kubernetes is Kubernetes' own controller, on what a test says.
type kubernetes struct {
	metrics.MetricsClient
	used   usages
	scale  autoscalingv1.Scale
	looked chan time.Time // when it begins to
}

func (k *kubernetes) GetResourceMetric(_ context.Context, _ corev1.ResourceName, _ string, _ labels.Selector, container string) (metrics.PodMetricsInfo, time.Time, error) {
	all := metrics.PodMetricsInfo{}
	for name, m := range k.used {
		if milli, ok := valueOf(m, goal{demand: demand{corev1.ResourceCPU, container}}); ok {
			all[name] = metrics.PodMetric{Timestamp: m.Timestamp.Time, Window: m.Window.Duration, Value: milli}
		}
	}
	if len(all) == 0 {
		return nil, time.Time{}, errors.New("no metrics returned from resource metrics API")
	}
	return all, time.Now(), nil
}

// TestBehavesAsKubernetes: for an hour, whatever behaviour is asked for, whatever is used and missing, and whatever others do meanwhile, Kubernetes' own controller writes the same replicas and says the same of them.
func TestBehavesAsKubernetes(t *testing.T) {
	looks, scaled := 0, 0
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			l, s := besideKubernetes(t, rand.New(rand.NewPCG(seed, 0)), seed)
			looks, scaled = looks+l, scaled+s
		})
	}
	if looks < 2000 || scaled < 100 {
		t.Errorf("in ten hours it looked %d times and scaled %d times, want 2400, or nearly, and many", looks, scaled)
	}
}

// besideKubernetes returns how often both have looked, and scaled.
func besideKubernetes(t *testing.T, choice *rand.Rand, seed uint64) (looks, scaled int) {
	hpa := scaler(onCPU)
	if choice.IntN(3) == 0 {
		hpa.Spec.Metrics = []autoscalingv2.MetricSpec{{Type: autoscalingv2.ContainerResourceMetricSourceType, ContainerResource: &autoscalingv2.ContainerResourceMetricSource{
			Name: corev1.ResourceCPU, Container: "c", Target: autoscalingv2.MetricTarget{AverageValue: resource.NewMilliQuantity(50, resource.DecimalSI)},
		}}}
	}
	if choice.IntN(4) > 0 {
		period := 15 * (1 + choice.Int32N(8)) // of both, since it keeps what it counts by the longest of each
		direction := func() *autoscalingv2.HPAScalingRules {
			r := rules(choice.Int32N(40)*15+7, []autoscalingv2.ScalingPolicySelect{autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect}[choice.IntN(2)],
				podsPer(1+choice.Int32N(4), period-8), percentPer(10+choice.Int32N(100), period-8)) // nothing is on the edge of a window
			if choice.IntN(4) == 0 {
				r.StabilizationWindowSeconds = ptr.To(int32(0))
			}
			if choice.IntN(4) == 0 {
				r.Tolerance = resource.NewMilliQuantity(choice.Int64N(300), resource.DecimalSI)
			}
			return r
		}
		hpa.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: direction(), ScaleDown: direction()}
	}

	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
	defer cancel()
	kube := fake.NewClientset(hpa.DeepCopy())
	k := &kubernetes{looked: make(chan time.Time, 100), scale: autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "team"}, Spec: autoscalingv1.ScaleSpec{Replicas: 3}, Status: autoscalingv1.ScaleStatus{Selector: "app=web"}}}
	scales := &scalefake.FakeScaleClient{}
	scales.AddReactor("get", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
		k.looked <- time.Now()
		return true, k.scale.DeepCopy(), nil
	})
	scales.AddReactor("update", "deployments", func(a clienttesting.Action) (bool, runtime.Object, error) {
		k.scale = *a.(clienttesting.UpdateAction).GetObject().(*autoscalingv1.Scale)
		return true, k.scale.DeepCopy(), nil
	})
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{{Group: "apps", Version: "v1"}})
	mapper.Add(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, meta.RESTScopeNamespace)
	factory := informers.NewSharedInformerFactory(kube, 0)
	podInformer := factory.Core().V1().Pods()
	c := podautoscaler.NewHorizontalController(ctx, kube.CoreV1(), scales, kube.AutoscalingV2(), mapper, k, factory.Autoscaling().V2().HorizontalPodAutoscalers(), podInformer,
		every, usualWindow, usualTolerance, startsFor, neverReadyFor)
	indexer := podInformer.Informer().GetIndexer()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx, 1) })
	defer running.Wait()
	defer factory.Shutdown()
	defer cancel()

	began := metav1.NewTime(time.Now().Add(-time.Hour))
	ours, past := hpa.DeepCopy(), history{}
	load := int64(150)
	for step := range 240 {
		// What serves is what was wanted one look before.
		replicas := k.scale.Spec.Replicas
		if choice.IntN(40) == 0 {
			replicas = 1 + choice.Int32N(12) // somebody scales by hand
			k.scale.Spec.Replicas = replicas
		}
		if choice.IntN(6) == 0 {
			load = choice.Int64N(600)
		}
		var there []pod
		a := askedBy(hpa.Spec.Metrics)
		var rows []any
		k.used = usages{}
		for i := range replicas {
			p := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i), Namespace: "team", Labels: map[string]string{"app": "web"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}}}}},
				Status:     corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &began, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: began}}},
			}
			if choice.IntN(10) > 0 { // no cluster is away: its name is none
				k.used[p.Name] = &metricsv1beta1.PodMetrics{Timestamp: metav1.Now(), Window: metav1.Duration{Duration: every}, Containers: uses(load / int64(replicas)).Containers}
			}
			if choice.IntN(20) == 0 {
				p.Status.Phase = corev1.PodPending
			}
			rows = append(rows, p)
			there = append(there, podOf(p, &a))
		}
		if err := indexer.Replace(rows, ""); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		time.Sleep(every) // of the test's own time
		synctest.Wait()
		for range len(k.looked) { // mostly one; its queue leaves one out now and then
			now := <-k.looked
			looks++
			o := decide(ours, facts{replicas: replicas, selector: "app=web", pods: there, asked: a, used: k.used}, past, now)
			if o.rescale {
				o.written(ours, replicas, nil, now)
				replicas = o.replicas
				scaled++
			}
			ours.Status, past = o.status, o.past
		}
		theirs, err := kube.AutoscalingV2().HorizontalPodAutoscalers("team").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if replicas != k.scale.Spec.Replicas {
			t.Fatalf("seed %d, look %d, of %+v: %d replicas, want %d; it says %+v, want %+v", seed, step, hpa.Spec.Behavior, replicas, k.scale.Spec.Replicas, ours.Status.Conditions, theirs.Status.Conditions)
		}
		if diff := cmp.Diff(theirs.Status, ours.Status, cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })); diff != "" {
			t.Fatalf("seed %d, look %d: the status (-want +got):\n%s", seed, step, diff)
		}
	}
	return looks, scaled
}

// TestNext: those of a namespace are looked at together, others not, and each once in 15 s.
func TestNext(t *testing.T) {
	of := func(cluster, namespace, name string) client.Key {
		return client.Key{Cluster: logicalcluster.Name(cluster), Namespace: namespace, Name: name}
	}
	seconds := map[time.Duration]int{}
	for i := range 1500 {
		seconds[next(of(fmt.Sprint("w", i), "default", "web"), noon).Truncate(time.Second)]++
	}
	for second, n := range seconds {
		if n > 200 || second < 0 || second > every {
			t.Errorf("%d of 1500 are looked at in %s, want them spread over 15 s", n, second)
		}
	}
	a := of("shop", "team", "a")
	if first, second := next(a, noon), next(of("shop", "team", "b"), noon); first != second {
		t.Errorf("of one namespace one is looked at in %s, another in %s", first, second)
	}
	if first, second := next(a, noon), next(of("bank", "team", "a"), noon); first == second {
		t.Errorf("of two workspaces both are looked at in %s", first)
	}
	at := noon.Add(next(a, noon))
	for range 3 {
		if again := next(a, at); again != every {
			t.Errorf("the next look is in %s", again)
		}
		at = at.Add(every)
	}
	if early := next(a, at.Add(-time.Second)); early != time.Second {
		t.Errorf("a second before it is in %s", early)
	}
}

// TestReadings: metrics of a namespace are read once for all that look in the same moment, and nothing is kept of them.
func TestReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clk := clocktesting.NewFakePassiveClock(noon)
		read := map[client.Key]int{}
		var mu sync.Mutex
		answer := make(chan struct{})
		r := newReadings(clk, func(_ context.Context, of client.Key, _ *time.Duration) (usages, error) {
			mu.Lock()
			read[of]++
			mu.Unlock()
			<-answer
			return usages{"a": uses(int64(len(of.Cluster)))}, nil
		})
		shop, bank := client.Key{Cluster: "shop", Namespace: "team"}, client.Key{Cluster: "thebank", Namespace: "team"}
		var all sync.WaitGroup
		var idle atomic.Int64 // of all
		ask := func(of client.Key) {
			all.Go(func() {
				var waited time.Duration
				used, err := r.of(t.Context(), of, &waited)
				idle.Add(int64(waited))
				if err != nil || used["a"].Containers[0].Usage.Cpu().MilliValue() != int64(len(of.Cluster)) {
					t.Errorf("%v: %s is told %v", err, of, used)
				}
			})
		}
		for range 5 {
			ask(shop)
			ask(bank)
		}
		synctest.Wait()
		clk.SetTime(noon.Add(time.Second))
		close(answer)
		all.Wait()
		if got := time.Duration(idle.Load()); got != 8*time.Second {
			t.Errorf("they have waited %s, want a second each of the eight that do not read", got)
		}
		clk.SetTime(noon.Add(readFor))
		ask(shop)
		all.Wait()
		if want := (map[client.Key]int{shop: 1, bank: 1}); !cmp.Equal(read, want) {
			t.Errorf("read were %v, want %v", read, want)
		}
		clk.SetTime(noon.Add(readFor + time.Second))
		ask(shop)
		all.Wait()
		if read[shop] != 2 {
			t.Errorf("what is old was read %d times, want anew", read[shop])
		}
		r.sweep()
		if len(r.taken) != 1 {
			t.Errorf("kept are %d, want what is new alone", len(r.taken))
		}
		clk.SetTime(noon.Add(time.Minute))
		if r.sweep(); len(r.taken) != 0 {
			t.Errorf("kept are %d, want none", len(r.taken))
		}
	})
}

// TestReadingEnds: that who reads has no time left says nothing to those that look after it.
func TestReadingEnds(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	r := newReadings(clocktesting.NewFakePassiveClock(noon), func(ctx context.Context, _ client.Key, _ *time.Duration) (usages, error) {
		return usages{}, ctx.Err()
	})
	end()
	for _, ctx := range []context.Context{ctx, t.Context()} {
		if _, err := r.of(ctx, web, new(time.Duration)); !errors.Is(err, ctx.Err()) {
			t.Errorf("%v, want %v", err, ctx.Err())
		}
	}
}

// TestRemembered: what is known is of one object of that name, what others of the namespace select is known of them alone, and nothing is left of what has gone.
func TestRemembered(t *testing.T) {
	c := &Controller{known: client.ByNamespace[remembered]{}}
	of := func(namespace, name string) (client.Key, *autoscalingv2.HorizontalPodAutoscaler) {
		hpa := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name), Annotations: map[string]string{logicalcluster.AnnotationKey: "shop"}}}
		return client.KeyOf(hpa), hpa
	}
	a, first := of("team", "a")
	b, second := of("team", "b")
	other, third := of("bank", "a")
	for key, hpa := range map[client.Key]*autoscalingv2.HorizontalPodAutoscaler{a: first, b: second, other: third} {
		c.remember(key, remembered{uid: hpa.UID, past: history{}.begun(3, noon), selector: everything})
	}
	if is := c.recall(a, first.UID); len(is.past.recommended) != 1 {
		t.Errorf("%+v is known of one that was looked at", is)
	}
	if is := c.recall(a, "another"); is.past.recommended != nil || is.uid != "another" {
		t.Errorf("%+v is known of one that was made anew", is)
	}
	if others := c.others(a); len(others) != 1 || others[0].name != "b" {
		t.Errorf("others of the namespace are %v, want b", others)
	}
	c.see(second, true)
	if others := c.others(a); len(others) != 0 {
		t.Errorf("others are %v, want none of what has gone", others)
	}
	c.see(first, true)
	c.see(third, true)
	if len(c.known) != 0 {
		t.Errorf("kept are %v, want none", c.known)
	}
}

// everything is a selector of all pods.
var everything = &selector{labels.Everything(), ""}

// TestSelectors: the same selector is read, and kept, once for all of a namespace, and not again by who has it.
func TestSelectors(t *testing.T) {
	c := &Controller{known: client.ByNamespace[remembered]{}}
	of := func(namespace, name string) client.Key {
		return client.Key{Cluster: "shop", Namespace: namespace, Name: name}
	}
	read := func(key client.Key, known *selector, text string) *selector {
		t.Helper()
		is, bad := c.selectorOf(key, known, text)
		if bad != nil {
			t.Fatalf("%s: %+v", text, bad)
		}
		return is
	}
	first := read(of("team", "a"), nil, "app=web")
	c.remember(of("team", "a"), remembered{selector: first})
	if again := read(of("team", "a"), first, "app=web"); again != first {
		t.Error("what is known is read once more")
	}
	if other := read(of("team", "b"), nil, "app=web"); other != first {
		t.Error("what another has is read once more")
	}
	if other := read(of("bank", "a"), nil, "app=web"); other == first {
		t.Error("what one of another namespace has is kept for it")
	}
	if changed := read(of("team", "a"), first, "app=api"); changed == first || changed.text != "app=api" || changed.String() != "app=api" {
		t.Errorf("what has changed is %v", changed)
	}
	if _, bad := c.selectorOf(of("team", "a"), first, "app in"); bad == nil {
		t.Error("what cannot be read is kept")
	}
	if _, bad := readSelector("app in (" + strings.Repeat("a,", mostSelector)); bad == nil || bad.reason != "SelectorTooLong" || len(bad.words) > 200 {
		t.Errorf("what is too long is read: %v", bad)
	}
}

func TestSelecting(t *testing.T) {
	others := []rival{{"all", &selector{labels.Nothing(), ""}}}
	if got := selecting(others, labels.Set{"app": "web"}); len(got) > 0 {
		t.Errorf("%v select it", got)
	}
	for i := range 2 * mostNamed {
		others = append(others, rival{fmt.Sprint("all-", 2*mostNamed-i-1), everything})
	}
	if got, want := selecting(others, labels.Set{"app": "web"}), []string{"all-0", "all-1", "all-2", "all-3", "all-4"}; !slices.Equal(got, want) {
		t.Errorf("%v select it, want the first %v", got, want)
	}
}

func TestInEach(t *testing.T) {
	placement := func(split placementv1alpha1.SplitPolicy, mirrors ...string) *placementv1alpha1.Placement {
		p := &placementv1alpha1.Placement{Spec: placementv1alpha1.PlacementSpec{Split: split}}
		for _, mirror := range mirrors {
			p.Spec.Clusters = append(p.Spec.Clusters, placementv1alpha1.PlacedCluster{Mirror: mirror})
		}
		return p
	}
	even, duplicate := placement(placementv1alpha1.SplitEven, "east", "west"), placement(placementv1alpha1.SplitDuplicate, "east", "west", "")
	wish := map[string]string{placementv1alpha1.SplitAnnotation: "Duplicate"}
	for name, tc := range map[string]struct {
		annotations     map[string]string
		own, namespaces *placementv1alpha1.Placement
		want            bool
	}{
		"nowhere":               {nil, nil, nil, false},
		"divided":               {nil, nil, even, false},
		"in each":               {nil, nil, duplicate, true},
		"its own":               {wish, duplicate, even, true},
		"its own, divided":      {wish, even, duplicate, false},
		"its own is to come":    {wish, nil, duplicate, false},
		"its own is to go soon": {nil, even, duplicate, false},
	} {
		if got := inEach(tc.annotations, tc.own, tc.namespaces); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
